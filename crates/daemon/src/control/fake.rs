//! Workers that move no frame: what the tests of the control plane look at.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use packet::{MacAddr, VlanId};
use program::Program;
use protocol::name::PortName;
use protocol::{Attached, Counter, ExternLearn, Vxlan};
use switch::{MirrorPoint, PortConfig, SwitchConfig};

use crate::control::datapath::closings::Unclosed;
use crate::control::datapath::security::Notice;
use crate::control::datapath::workers::WorkerStall;
use crate::model::error::DatapathError;
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::replies::{Attachment, FdbChange, Lease};
use crate::model::specs::{Claim, NewRegion, RegionSpec, RingSpec, ShmSpec};

/// Everything the control plane said, and what there is after it.
#[derive(Debug, Default)]
pub struct Fake {
    pub(super) switches: BTreeMap<SwitchKey, SwitchConfig>,
    /// Switches whose workers were told of chains.
    pub(super) steered: BTreeSet<SwitchKey>,
    /// Programs that switches run.
    pub(super) programs: BTreeMap<SwitchKey, Program>,
    pub(super) ports: BTreeMap<PortKey, (SwitchKey, PortConfig)>,
    pub(super) reserved: BTreeMap<PortKey, ShmSpec>,
    pub(super) pipes: BTreeMap<PipeKey, u32>,
    pub(super) bound: BTreeMap<PortKey, FakeBound>,
    /// Attached ports that no switch serves.
    pub(super) unswitched: Vec<PortKey>,
    /// Captures that were told to go on, and that were ended.
    pub(super) resumed: Vec<PortKey>,
    pub(super) ended_captures: Vec<PortKey>,
    /// Functions that were to ask for theirs.
    pub(super) told: Vec<PortKey>,
    /// Ports whose buffers were put in order.
    pub(super) recovered: Vec<PortKey>,
    pub(super) fdb: BTreeMap<(u64, u16), (SwitchKey, PortKey, MacAddr, VlanId)>,
    /// Databases whose changes are kept, and the next changes of one of them.
    pub(super) followed: BTreeSet<SwitchKey>,
    pub(super) fdb_changes: (Vec<FdbChange>, u64),
    /// Regions that are kept without a port.
    pub(super) kept: Vec<u16>,
    /// Regions of bound ports.
    pub(super) regions: BTreeMap<u16, NewRegion>,
    /// What every port has sent.
    pub(super) counted: Counter,
    /// How often addresses were put somewhere, and ports made or changed.
    pub(super) calls: usize,
    /// The next call that needs memory fails.
    pub(super) out_of_memory: bool,
    /// The number of such calls that succeed before one fails.
    pub(super) fails_after: Option<u32>,
    /// Whether another thread opens interfaces; `unwanted` counts those that no request wants.
    pub(super) opens_elsewhere: bool,
    pub(super) unwanted: usize,
    /// Trust groups with the keys of their members, and which were looked at.
    pub(super) groups: BTreeMap<GroupKey, Vec<PortKey>>,
    pub(super) audited: Vec<GroupKey>,
    /// Ports that were made in groups, and which.
    pub(super) grouped: BTreeMap<PortKey, GroupKey>,
    /// How often a worker was asked what it has counted of chains.
    pub(super) reports: usize,
    /// Messages with changes of maps.
    pub(super) map_changes: usize,
    /// What workers have found out about ports and loops.
    pub(super) notices: Vec<Notice>,
    /// Stalls that the watchdog has seen.
    pub(super) stalls: Vec<WorkerStall>,
    /// Ports whose VMM was disconnected, and why.
    pub(super) evicted: Vec<(PortKey, String)>,
    /// Memory is given back when a test empties the list of leases that have ended.
    pub(super) reclaims_late: bool,
    pub(super) ended: Vec<Lease>,
    /// Tunnels that were changed.
    pub(super) tunnels: BTreeMap<PortKey, Vxlan>,
    /// What routing daemons have said.
    pub(super) extern_learned: Vec<(PortKey, VlanId, ExternLearn)>,
    /// Ports that were moved, and the worker of each.
    pub(super) moved: BTreeMap<PortKey, u32>,
    /// Mirror ports: the rate, and what each gets.
    pub(super) mirrors: BTreeMap<PortKey, (u32, Vec<(PortKey, MirrorPoint)>)>,
    /// The workers have stopped for the next daemon.
    pub(super) is_halted: bool,
    /// Files of closed ports that are not closed yet, by user.
    pub(super) unclosed: BTreeMap<u32, Unclosed>,
    /// The users whose closers have closed something.
    pub(super) closed: Arc<Mutex<Vec<u32>>>,
    /// The next memory that is built cannot be had.
    pub(super) build_fails: bool,
}

/// A bound port and its holders, with the number of extra buffers of each.
#[derive(Debug)]
pub struct FakeBound {
    pub(super) name: PortName,
    pub(super) switch: SwitchKey,
    pub(super) rings: RingSpec,
    pub(super) region: u16,
    pub(super) holders: BTreeMap<ConnKey, (Claim, u32)>,
}

impl Fake {
    pub(super) fn allocate(&mut self) -> Result<(), DatapathError> {
        let fails = self.fails_after.is_some_and(|left| left == 0);
        self.fails_after = self.fails_after.and_then(|left| left.checked_sub(1));
        if std::mem::take(&mut self.out_of_memory) || fails {
            return Err(std::io::Error::from(std::io::ErrorKind::OutOfMemory).into());
        }
        Ok(())
    }

    fn has_region(&self, id: u16) -> bool {
        self.kept.contains(&id) || self.bound.values().any(|port| port.region == id)
    }

    pub(super) fn find_or_make_region(&mut self, region: &RegionSpec) -> u16 {
        match region {
            RegionSpec::Known(id) => {
                assert!(self.has_region(*id), "known");
                *id
            }
            RegionSpec::New(new) => {
                let id = (2..).find(|&id| !self.has_region(id)).expect("numbers");
                self.regions.insert(id, new.clone());
                id
            }
        }
    }

    pub(super) fn drop_empty_regions(&mut self) {
        let mut regions = std::mem::take(&mut self.regions);
        regions.retain(|id, _| self.has_region(*id));
        self.regions = regions;
    }

    pub(super) fn build(&mut self) -> Build {
        let fails = std::mem::take(&mut self.build_fails);
        Box::new(move || match fails {
            true => Err(std::io::ErrorKind::OutOfMemory.into()),
            false => Ok(()),
        })
    }
}

pub(super) fn attachment(name: &PortName, rings: &RingSpec) -> Attachment {
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("the test's own file"));
    let geometry = Attached {
        port: name.clone(),
        region_bytes: 4096,
        block: 4096,
        pool: 8192,
        stride: rings.stride,
        buffers: 2,
        tx_rings: rings.counts.tx_rings,
        rx_rings: rings.counts.rx_rings,
        tx_slots: rings.counts.tx_slots.slots(),
        rx_slots: rings.counts.rx_slots.slots(),
        extra_bufs: rings.extra_bufs,
        peer_block: None,
        function: false,
    };
    let lease = Lease::new(Arc::new(()));
    Attachment { geometry, lease, region: file(), kick: file(), wake: file() }
}

//! What the control plane needs from the workers: the one border between deciding and moving
//! frames.
//!
//! Everything that was decided here has been checked already (names, permissions, quotas, ranges),
//! so an implementation only fails for want of memory or descriptors, and then leaves nothing
//! behind. It carries each call to the worker that owns the switch, to be run between two batches.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use packet::{MacAddr, VlanId};
use port::host::{HostError, Opened};
use port::machine::SocketError;
use protocol::name::{PipeSide, PortName};
use protocol::{FdbCounters, HostIf, HostIfInfo, MachineInfo, PortGeometry, PortKind, PortStats};
use ring::audit::Held;
use ring::family::Traffic;
use ring::layout::RingCounts;
use switch::forward::chain::{Report, Tables};
use switch::{PortConfig, Sight, SwitchConfig};
use thiserror::Error;

use super::state::ConnKey;
use super::state::bound::Claim;

/// A switch, for the life of the daemon: never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchKey(pub u32);

/// A port of whichever switch, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey(pub u32);

/// A trust group: its user, and its name.
pub type GroupKey = (u32, String);

/// A pipe, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipeKey(pub u32);

/// A direct hop, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopKey(pub u32);

/// Rings and buffers of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Rings and slots.
    pub counts: RingCounts,
    /// Extra buffers, at most [`MAX_EXTRA_BUFS`].
    pub extra_bufs: u32,
    /// Distance of the buffers in bytes, a legal one.
    pub stride: u32,
}

impl RingSpec {
    /// Buffers that a port of these is given.
    #[must_use]
    pub fn buffers(&self) -> u32 {
        self.counts.buffers().saturating_add(self.extra_bufs)
    }
}

/// Bytes of a trust group's region: by default, and at least and at most where somebody says.
pub const NEW_GROUP: u64 = 512 << 20;
/// See above.
pub const GROUP_MEMORY_MIN: u64 = 1 << 20;
/// See above.
pub const GROUP_MEMORY_MAX: u64 = 4095 << 20;

/// Most extra buffers of a port.
pub const MAX_EXTRA_BUFS: u32 = 1 << 20;

/// A port of a switch that a client attaches.
#[derive(Clone, Debug)]
pub struct ShmSpec {
    /// Its key.
    pub key: PortKey,
    /// Its name, for the `netmap_if`.
    pub name: PortName,
    /// Its switch.
    pub switch: SwitchKey,
    /// Rings and buffers.
    pub rings: RingSpec,
    /// Trust group, of that user: ports of one group share a region.
    pub group: Option<GroupKey>,
    /// Bytes that the group's region has at most, if the port is its first.
    pub group_memory: u64,
}

/// A port of a switch that netmap programs bind.
#[derive(Clone, Debug)]
pub struct BoundSpec {
    /// Its key.
    pub key: PortKey,
    /// Its name, for the `netmap_if`.
    pub name: PortName,
    /// Its switch.
    pub switch: SwitchKey,
    /// Rings and buffers; extra ones are its holders'.
    pub rings: RingSpec,
    /// The region to live in; `None`: a new one.
    pub region: Option<u16>,
    /// Most bytes of a new one.
    pub room: Option<u64>,
}

/// A port with a network interface of the host behind it.
#[derive(Clone, Debug)]
pub struct HostSpec {
    /// Its key.
    pub key: PortKey,
    /// Its name, for the log.
    pub name: PortName,
    /// Its switch.
    pub switch: SwitchKey,
    /// What is behind it.
    pub kind: PortKind,
    /// The interface, which has a name.
    pub host: HostIf,
    /// How the switch treats it.
    pub config: PortConfig,
    /// The interface, if it has been opened for it.
    pub opening: Option<Opening>,
}

/// An interface that is opened by another thread.
#[derive(Clone, Default)]
pub struct Opening(Arc<OpeningSlot>);

/// What came of it, once it is known.
pub type OpeningSlot = Mutex<Option<Result<Opened, HostError>>>;

impl Opening {
    /// It has been opened, or could not be.
    pub fn put(&self, opened: Result<Opened, HostError>) {
        *self.0.lock().expect("nobody panics with it") = Some(opened);
    }

    /// What came of it, once.
    #[must_use]
    pub fn take(&self) -> Option<Result<Opened, HostError>> {
        self.0.lock().expect("nobody panics with it").take()
    }

    /// To know whether anybody is interested still.
    #[must_use]
    pub fn watch(&self) -> Weak<OpeningSlot> {
        Arc::downgrade(&self.0)
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}

/// The port of a virtual machine.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Its key.
    pub key: PortKey,
    /// How its monitor is spoken to.
    pub kind: PortKind,
    /// Its name, for the log.
    pub name: PortName,
    /// Its switch.
    pub switch: SwitchKey,
    /// Its socket.
    pub socket: port::machine::Spec,
    /// How the switch treats it.
    pub config: PortConfig,
}

/// Why there is no such port.
#[derive(Debug, Error)]
pub enum MakeMachineError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The system had nothing left.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
}

/// Why there is no such port.
#[derive(Debug, Error)]
pub enum MakeHostError {
    /// The interface.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The system had nothing left.
    #[error(transparent)]
    Datapath(#[from] DatapathError),
}

impl From<io::Error> for MakeHostError {
    fn from(error: io::Error) -> Self {
        Self::Datapath(error.into())
    }
}

/// Rings of one connection that no switch serves: a null port's or a monitor's.
#[derive(Clone, Debug)]
pub struct LoneSpec {
    /// Their key.
    pub key: PortKey,
    /// The name that was asked for.
    pub name: PortName,
    /// For the `netmap_if`.
    pub label: String,
    /// Rings and buffers.
    pub rings: RingSpec,
    /// The region to live in; `None`: a new one.
    pub region: Option<u16>,
    /// For a monitor: what it sees.
    pub sights: Vec<(PortKey, Sight)>,
}

/// What a holder of a bound port needs: the numbers and the descriptors of
/// [`Bound`](protocol::Bound).
#[derive(Debug)]
pub struct Binding {
    /// The reply without the descriptors.
    pub bound: protocol::Bound,
    /// The region.
    pub region: OwnedFd,
    /// The holder writes here.
    pub kick: OwnedFd,
    /// The holder reads here.
    pub wake: OwnedFd,
}

/// The slow half of making a port: commits its memory. It is run on a thread of its own; when it is
/// done, the port can be attached.
pub type Build = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// What a client needs to use a port: the numbers and the descriptors of
/// [`Attached`](protocol::Attached).
#[derive(Debug)]
pub struct Attachment {
    /// The reply without the descriptors.
    pub geometry: protocol::Attached,
    /// The region.
    pub region: OwnedFd,
    /// The client writes here.
    pub kick: OwnedFd,
    /// The client reads here.
    pub wake: OwnedFd,
}

/// An entry of a forwarding database, in the keys of this border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbRow {
    /// Address.
    pub mac: MacAddr,
    /// VLAN.
    pub vlan: VlanId,
    /// Port.
    pub port: PortKey,
    /// Made by command.
    pub is_static: bool,
    /// Milliseconds since it was last seen.
    pub age_ms: u64,
}

/// Where a direct hop lies in the region of its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopPlaceInfo {
    /// Offset of its block.
    pub block: u64,
    /// Slots of the ring that nobody uses.
    pub tx_slots: u32,
    /// Slots of the one that frames go through.
    pub rx_slots: u32,
}

/// Members of a group that are looked at in one go, at most.
pub const AUDIT_MEMBERS: usize = 32;

/// A part of a trust group in an audit.
#[derive(Clone, Debug)]
pub struct Audited {
    /// Bytes of its region that are committed.
    pub committed: u64,
    /// Buffers of its region.
    pub buffers: u32,
    /// Those that are nobody's.
    pub free: u32,
    /// What all members were given, and what they have.
    pub given: u32,
    /// See above.
    pub owned: u32,
    /// Some of them.
    pub members: Vec<AuditedMember>,
    /// How many extra buffers were looked at.
    pub listed: u32,
    /// The next one, if there are more.
    pub next: Option<PortKey>,
}

/// A member of it.
#[derive(Clone, Copy, Debug)]
pub struct AuditedMember {
    /// Its port.
    pub port: PortKey,
    /// What it has.
    pub held: Held,
    /// It is reserved, and not attached yet.
    pub begins: bool,
}

/// The system had nothing left to give.
#[derive(Debug, Error)]
pub enum DatapathError {
    /// Memory, descriptors, a system call that failed for want of them.
    #[error("the system refused: {0}")]
    System(#[from] io::Error),
    /// A table of fixed size is full.
    #[error("no room for more {0}")]
    Full(&'static str),
}

/// The workers, as the control plane sees them.
pub trait Datapath {
    /// How many workers there are.
    fn workers(&self) -> u32;
    /// The worker that runs a switch.
    fn worker_of(&self, switch: SwitchKey) -> u32;

    /// A new switch without ports; on the worker of another, where one is given.
    fn add_switch(
        &mut self,
        switch: SwitchKey,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<(), DatapathError>;
    /// Changes its settings.
    fn set_switch(&mut self, switch: SwitchKey, config: SwitchConfig) -> Result<(), DatapathError>;
    /// From now on frames go through chains as these say; without any through none.
    fn steer(&mut self, switch: SwitchKey, tables: Option<Tables>);
    /// What there is to say of that.
    fn steering(&mut self, switch: SwitchKey) -> Option<Report>;
    /// All trust groups, in the order of their keys.
    fn groups(&self) -> Vec<GroupKey>;
    /// Is there one of that key?
    fn has_group(&self, group: &GroupKey) -> bool;
    /// Where the buffers of one are: its members from a port on, at most [`AUDIT_MEMBERS`]. `None`:
    /// there is no such group.
    fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited>;
    /// Makes a direct hop between two functions, attached in one group and one switch: frames go
    /// from the first to the second.
    fn add_hop(&mut self, hop: HopKey, ends: [PortKey; 2]) -> Result<(), DatapathError>;
    /// Where it lies.
    fn hop_place(&self, hop: HopKey) -> HopPlaceInfo;
    /// The doorbells of one end: to write to, and to read from.
    fn open_hop(&self, hop: HopKey, end: usize) -> Result<[OwnedFd; 2], DatapathError>;
    /// What it has carried.
    fn hop_traffic(&self, hop: HopKey) -> Traffic;
    /// Removes one that both ends have let go of; what still waits in it is lost.
    fn del_hop(&mut self, hop: HopKey) -> Traffic;
    /// Has the function behind a port ask for its hops.
    fn tell(&mut self, port: PortKey);
    /// Removes a switch that has no ports any more.
    fn del_switch(&mut self, switch: SwitchKey);

    /// Bytes of shared memory that a port with these rings costs; `None`: there are no regions of
    /// that size.
    fn memory_of(&self, rings: &RingSpec) -> Option<u64>;
    /// The same for a pipe, both ends together.
    fn pipe_memory_of(&self, rings: &RingSpec) -> Option<u64>;
    /// Reserves a port for a client, known by its key from now on; the switch sees it when it is
    /// attached.
    fn reserve_shm(&mut self, spec: &ShmSpec) -> Result<Build, DatapathError>;
    /// Attaches a port that was built. The descriptors go to the client; whatever the daemon needs
    /// itself it has duplicated. After an error it is still reserved.
    fn attach_shm(
        &mut self,
        port: PortKey,
        config: PortConfig,
    ) -> Result<Attachment, DatapathError>;
    /// Reserves a port for netmap programs that nobody holds yet; returns the number of its region,
    /// which exists where one is given and goes with its last port.
    fn reserve_bound(&mut self, spec: &BoundSpec) -> Result<u16, DatapathError>;
    /// Reserves for a connection the rings of a port that it claims, or of both sides of an
    /// interface, which are in one region and on one worker; and at most so many extra buffers:
    /// returns how many. What is built is that and `parts`, of which the ports are some.
    fn reserve_holder(
        &mut self,
        holds: &[(PortKey, Claim)],
        parts: &[PortKey],
        holder: ConnKey,
        extra_bufs: u32,
    ) -> Result<(Build, u32), DatapathError>;
    /// Attaches a port that was built. After an error it is still reserved.
    fn attach_bound(&mut self, port: PortKey, config: PortConfig) -> Result<(), DatapathError>;
    /// What a holder needs of an attached port; once more for each further process, with a doorbell
    /// of its own.
    fn resume(&mut self, port: PortKey, holder: ConnKey) -> Result<Binding, DatapathError>;
    /// Takes back what one holder has, of both sides. [`Datapath::detach`] does it for all.
    fn remove_holder(&mut self, port: PortKey, holder: ConnKey);
    /// Reserves rings that no switch serves and nobody holds yet, as [`Datapath::reserve_bound`].
    /// All ports that are looked at have rings and are in one switch; the monitor sees nothing more
    /// when the first of them goes.
    fn reserve_lone(&mut self, spec: &LoneSpec) -> Result<u16, DatapathError>;
    /// They are built.
    fn attach_lone(&mut self, port: PortKey);
    /// Removes them, with their holder.
    fn remove_lone(&mut self, port: PortKey);
    /// Rings of a bound port, of a monitor and the like, or of whatever other port a worker moves
    /// frames of from ring to ring.
    fn rings_of(&self, port: PortKey) -> Option<RingSpec>;
    /// Keeps a region, the one of that number or a new one for such rings, until
    /// [`Datapath::drop_region`], also while no port is in it.
    fn keep_region(
        &mut self,
        region: Option<u16>,
        name: &PortName,
        rings: &RingSpec,
    ) -> Result<u16, DatapathError>;
    /// The end of that.
    fn drop_region(&mut self, region: u16);
    /// Sizes of a region; of the one that a port with these rings would get, where none is given.
    fn region_sizes(&self, region: Option<u16>, rings: &RingSpec) -> PortGeometry;

    /// Makes a port that takes every frame and drops it.
    fn add_null(
        &mut self,
        port: PortKey,
        switch: SwitchKey,
        config: PortConfig,
    ) -> Result<(), DatapathError>;
    /// Makes the port of a virtual machine.
    fn add_machine(&mut self, spec: &MachineSpec) -> Result<(), MakeMachineError>;
    /// Makes it without its socket, and remembers why: nobody can connect.
    fn add_silent(&mut self, spec: &MachineSpec, why: String) -> Result<(), MakeMachineError>;
    /// What there is to say of the machine behind a port.
    fn machine_info(&self, port: PortKey) -> Option<MachineInfo>;
    /// Makes a cable between two switches, a port in each.
    fn add_cable(
        &mut self,
        ends: [(PortKey, SwitchKey, PortConfig); 2],
    ) -> Result<(), DatapathError>;
    /// Moves an attached port of netmap programs, without pipes, to another switch on the same
    /// worker. Monitors see it go.
    fn move_bound(&mut self, port: PortKey, name: &PortName, switch: SwitchKey, config: PortConfig);
    /// Begins to open a network interface of the host for a port of a switch, if there is that one
    /// already; `given` is open already. `None`: it is opened when the port is made.
    fn opening(
        &mut self,
        _switch: Option<SwitchKey>,
        _kind: PortKind,
        _host: &HostIf,
        _given: Vec<OwnedFd>,
    ) -> Option<(Opening, Build)> {
        None
    }
    /// Nobody wants it any more: what has been opened is closed by another thread.
    fn forget_opening(&mut self, _opening: Opening) {}
    /// Closes the interfaces whose ports are gone, if there are any.
    fn closing(&mut self) -> Option<Build> {
        None
    }
    /// Does so sooner or later, for nobody waits for it.
    fn close_later(&mut self) {}
    /// Makes a port with a network interface of the host.
    fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError>;
    /// Makes it without, while another thread opens the interface; one that cannot be had is taken
    /// when it appears.
    fn add_soon(&mut self, spec: &HostSpec) -> Result<(), MakeHostError>;
    /// Waits until all interfaces are open that are being opened, or could not be; not for ever.
    fn await_interfaces(&mut self, _patience: Duration) {}
    /// What there is to say of the interface of a port.
    fn host_info(&self, port: PortKey) -> Option<HostIfInfo>;
    /// Readable when something has happened to an interface, for [`Datapath::hear_host`].
    fn host_bell(&self) -> Option<BorrowedFd<'_>>;
    /// Takes note of what has happened to the interfaces.
    fn hear_host(&mut self);
    /// Removes a port of whichever kind, its learnt and static addresses, and its memory. Returns
    /// its last counters.
    fn detach(&mut self, port: PortKey, name: &PortName) -> PortStats;
    /// The number of a port in its switch.
    fn number_of(&self, port: PortKey) -> Option<u16>;
    /// Changes how the switch treats a port.
    fn set_port(&mut self, port: PortKey, config: PortConfig);

    /// Reserves the region of a pipe; both ends have these rings, one's transmit rings being the
    /// other's receive rings.
    fn add_pipe(&mut self, pipe: PipeKey, rings: &RingSpec) -> Result<(), DatapathError>;
    /// Builds it, unless that was done before.
    fn build_pipe(&mut self, pipe: PipeKey) -> Build;
    /// One end of a pipe that was built, for the client that opens it (`name` goes into its
    /// `netmap_if`). An end
    /// may be opened again after its client left.
    fn open_pipe(
        &mut self,
        pipe: PipeKey,
        side: PipeSide,
        name: &PortName,
    ) -> Result<Attachment, DatapathError>;
    /// Removes a pipe that both clients left.
    fn del_pipe(&mut self, pipe: PipeKey);

    /// Counters of ports, in the order of `ports`; a port's name is filled in by the caller.
    fn stats(&mut self, ports: &[(PortKey, PortName)]) -> Vec<PortStats>;

    /// Entries of a forwarding database, and what has happened to them.
    fn fdb_count(&mut self, switch: SwitchKey) -> (usize, FdbCounters);
    /// Up to `max` entries from `cursor` on (0 for the first), and where to go on.
    fn fdb_page(
        &mut self,
        switch: SwitchKey,
        cursor: u64,
        max: usize,
    ) -> (Vec<FdbRow>, Option<u64>);
    /// Adds a static entry or replaces the entry of that address.
    fn fdb_add(&mut self, port: PortKey, mac: MacAddr, vlan: VlanId) -> Result<(), DatapathError>;
    /// Deletes an entry; false where there is none.
    fn fdb_del(&mut self, switch: SwitchKey, mac: MacAddr, vlan: VlanId) -> bool;
    /// Forgets what was learnt, on all ports or on one.
    fn fdb_flush(&mut self, switch: SwitchKey, port: Option<PortKey>);
}

macro_rules! show_number {
    ($($key:ty),*) => {$(
        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
show_number!(SwitchKey, PortKey, PipeKey, HopKey);

//! What the control plane needs from the workers: the one border between deciding and moving
//! frames.
//!
//! Everything that was decided here has been checked already (names, permissions, quotas, ranges),
//! so an implementation only fails for want of memory or descriptors, and then leaves nothing
//! behind. It carries each call to the worker that owns the switch, to be run between two batches.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use packet::{MacAddr, VlanId};
use protocol::name::{PipeSide, PortName};
use protocol::{FdbCounters, HostIf, HostIfInfo, MachineInfo, PortGeometry, PortKind, PortStats};
use switch::chain::{Report, Tables};
use switch::{PortConfig, SwitchConfig};

use crate::model::audit::Audited;
use crate::model::error::{DatapathError, MakeHostError, MakeMachineError};
use crate::model::keys::{ConnKey, GroupKey, PipeKey, PortKey, SwitchKey};
use crate::model::opening::{Build, Opening};
use crate::model::replies::{Attachment, Binding, FdbRow};
use crate::model::specs::{
    BoundSpec, Claim, HostSpec, MachineSpec, RingSpec, ShmSpec, UnswitchedSpec,
};

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
    /// Where the buffers of one are: its members from a port on, at most [`AUDIT_MEMBERS`](crate::model::audit::AUDIT_MEMBERS). `None`:
    /// there is no such group.
    fn audit(&mut self, group: &GroupKey, from: PortKey) -> Option<Audited>;
    /// Has the function behind a port ask which ones follow it.
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
    fn reserve_lone(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError>;
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

//! Every call, by its subject.
//!
//! ```text
//!  {"switch_add":{…}}  ◄── the same text ──►  Request::Switch(SwitchRequest::Add(…))
//! ```
//!
//! The subject is no part of a message: each call has a name of its own there, and an unknown name
//! is refused with the names that there are. [`wire`] finds the subject of a name.

mod wire;

use serde::{Deserialize, Serialize};

use crate::{
    Attach, Bind, ChainAdd, ChainRef, EventsQuery, ExternLearn, FdbAdd, FdbDel, FdbFlush, FdbList,
    FunctionNote, GeometryQuery, Hello, InterfaceAdd, InterfaceAttach, InterfacePoll, MdbChange,
    MdbList, NeighList, PageFrom, PortAdd, PortList, PortRef, PortSet, ProgramEntryRef,
    ProgramEntrySet, ProgramMapQuery, RuleAdd, RuleDel, StatsQuery, SteeringQuery, SwitchRef,
    SwitchSpec, TraceQuery, WorkerMove,
};

/// A call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Request {
    /// About the connection, and the ports that it holds.
    Session(SessionRequest),
    /// About switches.
    Switch(SwitchRequest),
    /// About ports.
    Port(PortRequest),
    /// About forwarding databases.
    Fdb(FdbRequest),
    /// About multicast groups.
    Mdb(MdbRequest),
    /// About virtual interfaces, and interfaces as parts of a switch.
    Interface(InterfaceRequest),
    /// About chains of functions.
    Chain(ChainRequest),
    /// About the rules that send frames into chains.
    Rule(RuleRequest),
    /// About instances of services.
    Function(FunctionRequest),
    /// About forwarding programs.
    Program(ProgramRequest),
    /// About trust groups.
    Group(GroupRequest),
    /// About workers.
    Worker(WorkerRequest),
    /// About what the daemon and its users have.
    Usage(UsageRequest),
}

/// A call about the connection, and the ports that it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionRequest {
    /// The client introduces itself. Answer: [`Reply::Daemon`](crate::Reply::Daemon).
    Hello(Hello),
    /// Opens a port, and creates its switch and the port if there are none.
    /// Answer: [`Reply::Attached`](crate::Reply::Attached) with descriptors.
    Attach(Attach),
    /// Gives an attached port back.
    Detach(PortRef),
    /// Puts the buffers of an attached port in order for another program, while none uses its
    /// rings. Answer: [`Reply::Done`](crate::Reply::Done).
    Recover(PortRef),
    /// Opens a port as netmap does. Answer: [`Reply::Bound`](crate::Reply::Bound) with descriptors.
    Bind(Bind),
    /// Asks what this connection has bound. Answer: [`Reply::Bound`](crate::Reply::Bound) with
    /// descriptors.
    Resume,
    /// Asks how many frames found no room in the monitor or capture that this connection has bound.
    /// Answer: [`Reply::Missed`](crate::Reply::Missed).
    Missed,
    /// Asks for what changes, as it changes. Answer: [`Reply::Done`](crate::Reply::Done), and then
    /// a [`Reply::Events`](crate::Reply::Events) whenever something has changed, without a call.
    Events(EventsQuery),
    /// The next daemon asks for interfaces of this one, one at a time.
    /// Answer: [`Reply::HandedOver`](crate::Reply::HandedOver) with descriptors.
    HandOver(PageFrom),
    /// The next daemon asks for ports of clients, one at a time.
    /// Answer: [`Reply::HandedPort`](crate::Reply::HandedPort) with descriptors.
    HandOverPort(PageFrom),
    /// Ends the daemon as SIGTERM does. Answer: [`Reply::Done`](crate::Reply::Done). To one that
    /// was asked for ports of clients, with a descriptor: a file that says where it has stopped.
    End,
}

/// A call about switches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SwitchRequest {
    /// Creates a switch that stays until it is deleted; one that came with its first port stays
    /// from now on.
    #[serde(rename = "switch_add")]
    Add(SwitchSpec),
    /// Changes the settings that are given.
    #[serde(rename = "switch_set")]
    Set(SwitchSpec),
    /// Chains and rules that do not fit in one message: they stand before those of this
    /// connection's next [`SwitchRequest::Set`] of the switch, and change nothing until then.
    #[serde(rename = "switch_draft")]
    Draft(SwitchSpec),
    /// Asks whether a switch is permanent and has the settings that are given. Answer:
    /// [`Reply::Done`](crate::Reply::Done), or an error that names a difference.
    #[serde(rename = "switch_compare")]
    Compare(SwitchSpec),
    /// Deletes a switch with all its ports.
    #[serde(rename = "switch_del")]
    Del(SwitchRef),
    /// Lists the switches that the caller may see, a page at a time.
    /// Answer: [`Reply::Switches`](crate::Reply::Switches).
    #[serde(rename = "switch_list")]
    List(PageFrom),
    /// Shows a switch. Answer: [`Reply::Switch`](crate::Reply::Switch).
    #[serde(rename = "switch_show")]
    Show(SwitchRef),
}

/// A call about ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum PortRequest {
    /// Creates a persistent port. Answer: [`Reply::Done`](crate::Reply::Done).
    #[serde(rename = "port_add")]
    Add(Box<PortAdd>),
    /// Changes the settings that are given.
    #[serde(rename = "port_set")]
    Set(Box<PortSet>),
    /// Asks whether a port is the one that [`PortRequest::Add`] would create, whatever settings it
    /// has beside the given ones. Answer: [`Reply::Done`](crate::Reply::Done), or an error that
    /// names a difference.
    #[serde(rename = "port_compare")]
    Compare(Box<PortAdd>),
    /// Enables a port that the switch has disabled.
    #[serde(rename = "port_enable")]
    Enable(PortRef),
    /// Deletes a port; a client that holds it loses it.
    #[serde(rename = "port_del")]
    Del(PortRef),
    /// Lists ports, a page at a time. Answer: [`Reply::Ports`](crate::Reply::Ports).
    #[serde(rename = "port_list")]
    List(PortList),
    /// Shows a port. Answer: [`Reply::Port`](crate::Reply::Port).
    #[serde(rename = "port_show")]
    Show(PortRef),
    /// Counters, a page at a time. Answer: [`Reply::Stats`](crate::Reply::Stats).
    #[serde(rename = "stats")]
    Stats(StatsQuery),
    /// What the switch would do with a frame. Answer: [`Reply::Trace`](crate::Reply::Trace).
    #[serde(rename = "trace")]
    Trace(TraceQuery),
    /// Sizes of a port or of a region.
    /// Answer: [`Reply::PortGeometry`](crate::Reply::PortGeometry).
    #[serde(rename = "port_geometry")]
    Geometry(GeometryQuery),
}

/// A call about forwarding databases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FdbRequest {
    /// Lists the forwarding database of a switch, a page at a time.
    /// Answer: [`Reply::Fdb`](crate::Reply::Fdb).
    #[serde(rename = "fdb_list")]
    List(FdbList),
    /// Adds a static entry.
    #[serde(rename = "fdb_add")]
    Add(FdbAdd),
    /// Deletes one entry.
    #[serde(rename = "fdb_del")]
    Del(FdbDel),
    /// Forgets all learned entries of a switch or of one of its ports.
    #[serde(rename = "fdb_flush")]
    Flush(FdbFlush),
    /// Names stations behind the remotes of a port, or takes them back.
    #[serde(rename = "extern_learn")]
    ExternLearn(ExternLearn),
    /// Lists the IP addresses of stations that a port knows, a page at a time.
    /// Answer: [`Reply::Neigh`](crate::Reply::Neigh).
    #[serde(rename = "neigh_list")]
    Neigh(NeighList),
}

/// A call about multicast groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MdbRequest {
    /// Lists the multicast database of a switch, a page at a time.
    /// Answer: [`Reply::Mdb`](crate::Reply::Mdb).
    #[serde(rename = "mdb_list")]
    List(MdbList),
    /// Adds a static entry.
    #[serde(rename = "mdb_add")]
    Add(MdbChange),
    /// Deletes a static entry.
    #[serde(rename = "mdb_del")]
    Del(MdbChange),
}

/// A call about virtual interfaces, and interfaces as parts of a switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum InterfaceRequest {
    /// Creates a virtual interface, which stays until it is deleted.
    /// Answer: [`Reply::PortGeometry`](crate::Reply::PortGeometry).
    #[serde(rename = "interface_add")]
    Add(InterfaceAdd),
    /// Deletes an interface that is in no switch and that no client holds.
    #[serde(rename = "interface_del")]
    Del(PortRef),
    /// Puts an interface that no client holds into a switch.
    #[serde(rename = "interface_attach")]
    Attach(InterfaceAttach),
    /// Takes the interface that is this port of a switch out of it.
    #[serde(rename = "interface_detach")]
    Detach(PortRef),
    /// Says that threads should poll a host interface that is in a switch, or no longer.
    #[serde(rename = "interface_poll")]
    Poll(InterfacePoll),
}

/// A call about chains of functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ChainRequest {
    /// Creates or changes a chain.
    #[serde(rename = "chain_add")]
    Add(ChainAdd),
    /// Deletes a chain that no port and no rule uses.
    #[serde(rename = "chain_del")]
    Del(ChainRef),
    /// Lists chains, a page at a time. Answer: [`Reply::Chains`](crate::Reply::Chains).
    #[serde(rename = "chain_list")]
    List(SteeringQuery),
}

/// A call about the rules that send frames into chains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RuleRequest {
    /// Adds rules. Answer: [`Reply::RulesAdded`](crate::Reply::RulesAdded).
    #[serde(rename = "rule_add")]
    Add(RuleAdd),
    /// Deletes rules.
    #[serde(rename = "rule_del")]
    Del(RuleDel),
    /// Lists rules in the order in which they are tried, a page at a time.
    /// Answer: [`Reply::Rules`](crate::Reply::Rules).
    #[serde(rename = "rule_list")]
    List(SteeringQuery),
}

/// A call about instances of services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FunctionRequest {
    /// Lists instances of services, a page at a time.
    /// Answer: [`Reply::Functions`](crate::Reply::Functions).
    #[serde(rename = "function_list")]
    List(SteeringQuery),
    /// Reports what the function at a port that this process holds has counted.
    /// Answer: [`Reply::Done`](crate::Reply::Done).
    #[serde(rename = "function_note")]
    Note(FunctionNote),
    /// Asks which functions follow the one at a port that the connection holds.
    /// Answer: [`Reply::NextFunctions`](crate::Reply::NextFunctions).
    #[serde(rename = "next_functions")]
    Next(PortRef),
}

/// A call about forwarding programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ProgramRequest {
    /// Shows the program of a switch. Answer: [`Reply::Program`](crate::Reply::Program).
    #[serde(rename = "program_show")]
    Show(SwitchRef),
    /// Lists the entries of a map, a page at a time.
    /// Answer: [`Reply::ProgramEntries`](crate::Reply::ProgramEntries).
    #[serde(rename = "program_map_list")]
    MapList(ProgramMapQuery),
    /// Reads an entry of a map; of an `lpm` map, that of the longest prefix.
    /// Answer: [`Reply::ProgramEntry`](crate::Reply::ProgramEntry).
    #[serde(rename = "program_map_get")]
    MapGet(ProgramEntryRef),
    /// Sets an entry of a map, now and whenever the daemon starts.
    #[serde(rename = "program_map_set")]
    MapSet(ProgramEntrySet),
    /// Deletes an entry of a map.
    #[serde(rename = "program_map_del")]
    MapDel(ProgramEntryRef),
}

/// A call about trust groups.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GroupRequest {
    /// Shows where the buffers of the caller's trust groups are, a page at a time.
    /// Answer: [`Reply::Audit`](crate::Reply::Audit).
    #[serde(rename = "audit")]
    Audit(PageFrom),
}

/// A call about workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum WorkerRequest {
    /// Lists the workers, a page at a time.
    /// Answer: [`Reply::Workers`](crate::Reply::Workers).
    #[serde(rename = "worker_list")]
    List(PageFrom),
    /// Moves a port to another worker of its switch, until its client detaches it. Answer:
    /// [`Reply::Done`](crate::Reply::Done).
    #[serde(rename = "worker_move")]
    Move(WorkerMove),
}

/// A call about what the daemon and its users have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum UsageRequest {
    /// Shows what the daemon uses. Answer: [`Reply::Usage`](crate::Reply::Usage).
    #[serde(rename = "usage")]
    Show,
    /// Lists users with what they have, a page at a time: all of them for root and the daemon's
    /// user, else the caller. Answer: [`Reply::Users`](crate::Reply::Users).
    #[serde(rename = "user_list")]
    Users(PageFrom),
}

//! Names of PCI devices, which only programs in a virtual machine use: no daemon serves them.
//!
//! Each call that names one is refused here, in the same words, before anything looks for it or
//! makes it. `netmap:0000:00:04.0` is also the name of a switch in which an interface is alone.

use protocol::name::{PortName, SwitchName};
use protocol::{
    ChainRequest, FdbRequest, FunctionRequest, InterfaceRequest, MdbRequest, PortRequest,
    ProgramRequest, Request, RuleRequest, SessionRequest, SwitchRequest, WorkerRequest,
};

use super::ports::refusal::PortRefusal;
use super::refusal::Refusal;

/// Refuses a call that names a device.
pub(super) fn refuse(request: &Request) -> Result<(), Refusal> {
    let port = port_of(request).filter(|port| port.pci_address().is_some());
    let switch = switch_of(request).filter(|switch| switch.pci_address().is_some());
    match port.map(PortName::to_string).or(switch.map(SwitchName::to_string)) {
        None => Ok(()),
        Some(name) => Err(PortRefusal::OfDevice(name).into()),
    }
}

/// The port that a call is about.
fn port_of(request: &Request) -> Option<&PortName> {
    Some(match request {
        Request::Session(SessionRequest::Attach(call)) => &call.port,
        Request::Session(SessionRequest::Bind(call)) => &call.port,
        Request::Session(SessionRequest::Detach(of) | SessionRequest::Recover(of)) => &of.port,
        Request::Port(call) => return port_of_port(call),
        Request::Fdb(FdbRequest::Add(call)) => &call.port,
        Request::Fdb(FdbRequest::Flush(call)) => return call.port.as_ref(),
        Request::Fdb(FdbRequest::ExternLearn(call)) => &call.port,
        Request::Fdb(FdbRequest::Neigh(call)) => &call.port,
        Request::Mdb(MdbRequest::Add(call) | MdbRequest::Del(call)) => &call.port,
        Request::Interface(InterfaceRequest::Add(call)) => &call.port,
        Request::Interface(InterfaceRequest::Attach(call)) => &call.port,
        Request::Interface(InterfaceRequest::Poll(call)) => &call.port,
        Request::Interface(InterfaceRequest::Del(of) | InterfaceRequest::Detach(of)) => &of.port,
        Request::Function(FunctionRequest::Note(call)) => &call.port,
        Request::Function(FunctionRequest::Next(of)) => &of.port,
        Request::Worker(WorkerRequest::Move(call)) => &call.port,
        _ => return None,
    })
}

fn port_of_port(call: &PortRequest) -> Option<&PortName> {
    match call {
        PortRequest::Add(call) | PortRequest::Compare(call) => Some(&call.port),
        PortRequest::Set(call) => Some(&call.port),
        PortRequest::Enable(of) | PortRequest::Del(of) | PortRequest::Show(of) => Some(&of.port),
        PortRequest::Stats(call) => call.port.as_ref(),
        PortRequest::Trace(call) => Some(&call.port),
        PortRequest::Geometry(call) => call.port.as_ref(),
        PortRequest::List(_) => None,
    }
}

/// The switch that a call is about.
fn switch_of(request: &Request) -> Option<&SwitchName> {
    Some(match request {
        Request::Session(SessionRequest::Events(call)) => return call.switch.as_ref(),
        Request::Switch(SwitchRequest::Del(of) | SwitchRequest::Show(of)) => &of.switch,
        Request::Switch(
            SwitchRequest::Add(call)
            | SwitchRequest::Set(call)
            | SwitchRequest::Draft(call)
            | SwitchRequest::Compare(call),
        ) => &call.switch,
        Request::Port(PortRequest::List(call)) => return call.switch.as_ref(),
        Request::Port(PortRequest::Stats(call)) => return call.switch.as_ref(),
        Request::Fdb(FdbRequest::List(call)) => &call.switch,
        Request::Fdb(FdbRequest::Del(call)) => &call.switch,
        Request::Fdb(FdbRequest::Flush(call)) => &call.switch,
        Request::Mdb(MdbRequest::List(call)) => &call.switch,
        Request::Chain(ChainRequest::Add(call)) => &call.switch,
        Request::Chain(ChainRequest::Del(of)) => &of.switch,
        Request::Rule(RuleRequest::Add(call)) => &call.switch,
        Request::Rule(RuleRequest::Del(call)) => &call.switch,
        Request::Chain(ChainRequest::List(of))
        | Request::Rule(RuleRequest::List(of))
        | Request::Function(FunctionRequest::List(of)) => &of.switch,
        Request::Program(call) => match call {
            ProgramRequest::Show(of) => &of.switch,
            ProgramRequest::MapList(call) => &call.switch,
            ProgramRequest::MapGet(of) | ProgramRequest::MapDel(of) => &of.switch,
            ProgramRequest::MapSet(call) => &call.switch,
        },
        _ => return None,
    })
}

//! Numbers that functions use, by the names of what they stand for.
//!
//! The daemon is asked, which takes a moment: ask before the first batch, and once more after a
//! reconnect, because another daemon may count differently. A service and a chain keep their
//! numbers as long as they are there, a port as long as a client holds it.

use protocol::{
    ChainInfo, ChainRequest, ErrorCode, Failure, FunctionInfo, FunctionRequest, PortRef,
    PortRequest, Reply, Request, SteeringQuery,
};

use crate::control::{ControlError, unexpected};
use crate::listing::{self, Listed};
use crate::{Error, Port};

/// The number of a service of the port's switch, for [`Action::Service`](super::Action::Service).
///
/// # Errors
/// The service has no instance, or the daemon is gone.
pub fn service_number(port: &Port, service: &str) -> Result<u8, Error> {
    let all: Vec<FunctionInfo> = list(port, |it| Request::Function(FunctionRequest::List(it)))?;
    let found = all.into_iter().find(|info| info.service == service);
    found.map(|info| info.number).ok_or_else(|| {
        let switch = port.name().switch();
        let cure = format!("make it: uvala port add {switch}:PORT --service {service}");
        not_found(format!("switch {switch} has no service {service:?}; {cure}"))
    })
}

/// The number of a chain of the port's switch, as in [`Metadata`](super::Metadata::chain).
///
/// # Errors
/// There is none of this name, or the daemon is gone.
pub fn chain_number(port: &Port, chain: &str) -> Result<u8, Error> {
    let all: Vec<ChainInfo> = list(port, |it| Request::Chain(ChainRequest::List(it)))?;
    let found = all.into_iter().find(|info| info.chain.name == chain);
    found.map(|info| info.number).ok_or_else(|| {
        let switch = port.name().switch();
        let cure = format!("make it: uvala chain add {switch} {chain} SERVICE");
        not_found(format!("switch {switch} has no chain {chain:?}; {cure}"))
    })
}

/// The number of a port of the port's switch, such as `vale0:out`, for
/// [`Action::Port`](super::Action::Port).
///
/// # Errors
/// The port does not exist, no client holds it, it belongs to another switch, or the daemon is
/// gone.
pub fn port_number(port: &Port, name: &str) -> Result<u16, Error> {
    let (name, own) = (name.parse::<protocol::name::PortName>()?, port.name().switch());
    if name.switch() != own {
        return Err(not_found(format!(
            "{name} is no port of switch {own}, where {} is",
            port.name()
        )));
    }
    match port.call(Request::Port(PortRequest::Show(PortRef { port: name })))? {
        Reply::Port(info) => info.number.ok_or_else(|| {
            not_found(format!("no client holds port {}, so it has no number yet", info.port))
        }),
        other => Err(unexpected(&other).into()),
    }
}

fn list<T: Listed>(port: &Port, ask: fn(SteeringQuery) -> Request) -> Result<Vec<T>, ControlError> {
    let switch = port.name().switch();
    let query = |from| ask(SteeringQuery { switch: switch.clone(), from });
    listing::all(|request| port.call(request), query)
}

fn not_found(why: String) -> Error {
    ControlError::Refused(Failure::new(ErrorCode::NotFound, why)).into()
}

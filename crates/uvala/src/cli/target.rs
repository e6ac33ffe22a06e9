//! What a command is about, and the calls that look at it and change it.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use client::control::{Connection, ControlError, unexpected};
use protocol::name::{NameError, PortName, SwitchName};
use protocol::{ErrorCode, PortInfo, PortRef, PortRequest, Reply, Request};

use super::Global;
use super::output::Output;
use terminal::Usage;

/// Arguments of every change of what a switch has.
#[derive(Debug, clap::Args)]
pub struct InSwitch {
    /// Name of the switch, such as vale0
    switch: String,
    #[command(flatten)]
    pub output: Output,
}

impl InSwitch {
    /// Name of the switch.
    pub fn name(&self) -> Result<SwitchName, NameError> {
        self.switch.parse()
    }

    /// The name within the switch of one of its ports, which may also be given in full.
    pub fn port<'a>(&self, name: &'a str) -> Result<&'a str, Usage> {
        let short = name.strip_prefix(&self.switch).and_then(|rest| rest.strip_prefix(':'));
        match short.unwrap_or(name) {
            "" => Err(Usage(format!(
                "{name:?}: the name of a port is missing; write one such as {}:vm1",
                self.switch
            ))),
            short => Ok(short),
        }
    }

    /// Makes a change that answers with nothing.
    pub fn change(
        &self,
        global: &Global,
        request: impl FnOnce(SwitchName) -> Request,
    ) -> anyhow::Result<()> {
        change(global, request(self.name()?), self.output)
    }
}

/// Parses an IP address; the error shows a right one.
pub fn ip(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "not an IP address; write one such as 10.0.0.1 or fd00::1")
}

/// Refuses a change that changes nothing.
pub fn refuse_empty<T: Default + PartialEq>(settings: &T, command: &str) -> Result<(), Usage> {
    match *settings == T::default() {
        false => Ok(()),
        true => Err(Usage(format!("{command}: no setting given; name one, such as --mode 660"))),
    }
}

/// Adds something; where it exists already and `compare` is given, that call decides.
pub fn add(
    connection: &Connection,
    (add, given): (Request, &[BorrowedFd<'_>]),
    compare: Option<Request>,
    output: Output,
) -> anyhow::Result<()> {
    let reply = match (connection.call_giving(add, given), compare) {
        (Err(ControlError::Refused(failure)), Some(compare))
            if failure.code == ErrorCode::Exists =>
        {
            connection.call(compare)?
        }
        (reply, _) => reply?,
    };
    match reply {
        Reply::Done => output.done(),
        other => Err(unexpected(&other).into()),
    }
}

/// A call that answers with nothing.
pub fn change(global: &Global, request: Request, output: Output) -> anyhow::Result<()> {
    match global.connect()?.call(request)? {
        Reply::Done => output.done(),
        other => Err(unexpected(&other).into()),
    }
}

/// A port as the daemon describes it.
pub fn show(connection: &Connection, port: &PortName) -> anyhow::Result<PortInfo> {
    let request = Request::Port(PortRequest::Show(PortRef { port: port.clone() }));
    match connection.call(request)? {
        Reply::Port(info) => Ok(info),
        other => Err(unexpected(&other).into()),
    }
}

/// The code with which the daemon has refused a call, if it has.
pub fn code_of(error: &anyhow::Error) -> Option<ErrorCode> {
    error.downcast_ref().and_then(ControlError::code)
}

/// Whether the daemon says that there is no such port or switch.
pub fn is_missing(error: &anyhow::Error) -> bool {
    code_of(error) == Some(ErrorCode::NotFound)
}

/// Whether there is a port of this name.
pub fn is_there(connection: &Connection, port: &PortName) -> anyhow::Result<bool> {
    match show(connection, port) {
        Err(error) if is_missing(&error) => Ok(false),
        shown => shown.map(|_| true),
    }
}

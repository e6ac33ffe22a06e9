//! Where a function is to run: in a switch that has chains, at ports that are of a service.

use client::control::{Connection, ControlError, unexpected};
use protocol::name::{PortName, SwitchName};
use protocol::{
    ErrorCode, Failure, PortInfo, PortRequest, PortSet, PortSettings, Reply, Request, SwitchRef,
    SwitchRequest,
};

use crate::cli::target::{code_of, show};

/// Service and instances of the ports, as far as the command names them.
#[derive(Debug)]
pub struct Role<'a> {
    /// Instances of this service.
    pub service: Option<&'a str>,
    /// Counted from this one.
    pub first: Option<u16>,
}

impl Role<'_> {
    /// Ports that are there are of this service, or become it. Those that are not there will be.
    pub fn assign(&self, connection: &Connection, ports: &[PortName]) -> anyhow::Result<()> {
        for (at, port) in (0u16..).zip(ports) {
            let info = match show(connection, port) {
                Err(error) if is_unseen(&error) => continue,
                shown => shown?,
            };
            let number = self.first.and_then(|first| first.checked_add(at));
            self.assign_port(connection, &info, number)?;
        }
        Ok(())
    }

    fn assign_port(
        &self,
        connection: &Connection,
        info: &PortInfo,
        number: Option<u16>,
    ) -> anyhow::Result<()> {
        let port = &info.port;
        match (&info.settings.service, self.service) {
            (Some(service), _) => {
                let why = self.contradicts(port, service, info.settings.instance, number);
                why.map_or(Ok(()), |why| Err(Failure::new(ErrorCode::Unsupported, why).into()))
            }
            // The daemon says which process holds it.
            (None, _) if info.client.is_some() => Ok(()),
            (None, None) => {
                let why = format!(
                    "port {port} is not an instance of a service, so a function there would send \
                     frames in a loop; change it: uvala port set {port} --service NAME, or \
                     uvala nf run --service NAME"
                );
                Err(Failure::new(ErrorCode::Unsupported, why).into())
            }
            (None, Some(service)) => {
                let service = Some(service.to_owned());
                let settings =
                    PortSettings { service, instance: number, ..PortSettings::default() };
                let set = PortSet { port: port.clone(), settings, vxlan: None };
                match connection.call(Request::Port(PortRequest::Set(Box::new(set))))? {
                    Reply::Done => Ok(()),
                    other => Err(unexpected(&other).into()),
                }
            }
        }
    }

    /// Why a port that is an instance already is not the one that was asked for.
    fn contradicts(
        &self,
        port: &PortName,
        service: &str,
        instance: Option<u16>,
        number: Option<u16>,
    ) -> Option<String> {
        let wanted = self.service.unwrap_or(service);
        let is_it = wanted == service && (number.is_none() || number == instance);
        let instance = instance.unwrap_or_default();
        let asked = number.map(|number| format!(" --instance {number}")).unwrap_or_default();
        (!is_it).then(|| {
            format!(
                "port {port} is instance {instance} of service {service}: leave out --service and \
                 --instance, or change the port: uvala port set {port} --service {wanted}{asked}"
            )
        })
    }
}

/// Whether it is missing, or hidden: a user that may not list it may still be allowed to attach.
fn is_unseen(error: &anyhow::Error) -> bool {
    matches!(code_of(error), Some(ErrorCode::NotFound | ErrorCode::Permission))
}

/// Only chains lead to functions. Without, frames are flooded to them, and two that pass everything
/// on send them round and round.
pub fn check_switch(connection: &Connection, name: &SwitchName) -> anyhow::Result<()> {
    let (code, why) = match connection
        .call(Request::Switch(SwitchRequest::Show(SwitchRef { switch: name.clone() })))
    {
        Ok(Reply::Switch(info)) if info.forwarding == "chain" => return Ok(()),
        Ok(Reply::Switch(info)) => {
            let why = format!(
                "switch {name} has no chains (its forwarding is {}), so functions in it would send \
                 frames in a loop; change it: uvala switch set {name} --forwarding chain",
                info.forwarding
            );
            (ErrorCode::Unsupported, why)
        }
        Err(ControlError::Refused(failure)) if failure.code == ErrorCode::NotFound => {
            let why = format!(
                "there is no switch {name}; make it: uvala switch add {name} --forwarding chain"
            );
            (ErrorCode::NotFound, why)
        }
        // A user that may not list it may still be allowed to attach.
        Err(ControlError::Refused(failure)) if failure.code == ErrorCode::Permission => {
            return Ok(());
        }
        Ok(other) => return Err(unexpected(&other).into()),
        Err(error) => return Err(error.into()),
    };
    Err(Failure::new(code, why).into())
}

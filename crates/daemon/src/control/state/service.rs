//! Services of which one process has all instances, because their function cannot do otherwise.
//!
//! ```text
//!   ordinary instance   ──┐                             ┌── instance that is alone
//!                         ├─► others of its process ◄───┤
//!   refused: any that is  │   always                    │   refused: any of other
//!   alone elsewhere    ◄──┘                             └──► processes
//! ```
//!
//! What counts is the process that holds a port, from the moment the port is reserved; of two calls
//! at the same time, the second finds the first.

use protocol::name::PortName;

use super::shared::Binder;
use super::{Holder, Port, State};
use crate::control::chains::clash::Clash;
use crate::control::chains::refusal::ChainRefusal;
use crate::control::refusal::Refusal;
use crate::model::policy::Process;

/// A client that holds a port.
struct User<'a> {
    process: Process,
    pid: u32,
    uid: u32,
    name: &'a str,
    alone: bool,
}

impl Port {
    fn users(&self) -> impl Iterator<Item = User<'_>> {
        let held = self.holder.iter().map(|holder| {
            let &Holder { process, pid, uid, alone, ref name, .. } = holder;
            User { process, pid, uid, name, alone }
        });
        let bound = self.bound.iter().flat_map(|shared| {
            shared.holders.iter().map(|&Binder { process, pid, ref name, .. }| User {
                process,
                pid,
                uid: shared.uid,
                name,
                alone: false,
            })
        });
        held.chain(bound)
    }
}

impl State {
    /// Whether a process may have a port beside other instances of the port's service.
    pub fn check_service(
        &self,
        name: &PortName,
        process: Process,
        alone: bool,
    ) -> Result<(), Refusal> {
        let service = self.find_port(name).and_then(|port| port.config.role.service.as_deref());
        service.map_or(Ok(()), |service| self.goes_with(name, service, process, alone))
    }

    /// Whether holders of a port may be instances of this service with it.
    pub fn check_services(&self, name: &PortName, service: &str) -> Result<(), Refusal> {
        let mut users = self.find_port(name).into_iter().flat_map(Port::users);
        users.try_for_each(|user| self.goes_with(name, service, user.process, user.alone))
    }

    fn goes_with(
        &self,
        name: &PortName,
        service: &str,
        process: Process,
        alone: bool,
    ) -> Result<(), Refusal> {
        let others = self.ports_of(name.switch()).filter(|(port, it)| {
            *port != name && it.config.role.service.as_deref() == Some(service)
        });
        let mut users = others.flat_map(|(port, it)| it.users().map(move |user| (port, user)));
        let other = users.find(|(_, user)| user.process != process && (alone || user.alone));
        let Some((port, user)) = other else { return Ok(()) };
        let User { pid, uid, .. } = user;
        let (service, port, name) = (service.to_owned(), port.clone(), user.name.to_owned());
        let clash = Box::new(Clash { service, port, pid, uid, name });
        Err(if user.alone {
            Refusal::from(ChainRefusal::SingleInstance(clash))
        } else {
            Refusal::from(ChainRefusal::OtherInstance(clash))
        })
    }
}

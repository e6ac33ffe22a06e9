//! What ports are in chains: instances of services, by number, as long as there are chains.

use std::collections::BTreeMap;

use protocol::name::{PortName, SwitchName};
use protocol::{PortKind, PortSettings};
use switch::chain::service::INSTANCES_MAX;
use switch::{Forwarding, Role, SwitchConfig};

use crate::control::Control;
use crate::control::chains::refusal::ChainRefusal;
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::model::steering::lowest_free;

impl<D: Datapath> Control<D> {
    /// Whether a port may have this role, which has the lowest number that is free where the
    /// settings name none.
    pub(in crate::control) fn assign_role(
        &self,
        name: &PortName,
        kind: PortKind,
        role: &mut Role,
        settings: &PortSettings,
    ) -> Result<(), Refusal> {
        if role.service.is_some() && kind != PortKind::Shm {
            return Err(ChainRefusal::ServiceKind(name.clone()).into());
        }
        if let Some(service) = &role.service {
            let is_asked = settings.instance.is_some();
            role.instance = self.number(name, service, role.instance, is_asked)?;
            self.state.check_services(name, service)?;
        }
        let switch = self.state.find_switch(name.switch());
        match &role.chain {
            Some(chain) if !switch.is_some_and(|switch| switch.steering.has_chain(chain)) => {
                Err(ChainRefusal::NoChain(name.switch().clone(), chain.clone()).into())
            }
            _ => Ok(()),
        }
    }

    /// The number of one more instance of a service: this one, if it is free or asked for.
    fn number(
        &self,
        name: &PortName,
        service: &str,
        requested: u16,
        is_asked: bool,
    ) -> Result<u16, Refusal> {
        let views = self.views(name.switch());
        let others = views.iter().filter(|port| port.name != name.port());
        let others = others.filter(|port| port.role.service.as_deref() == Some(service));
        let taken: Vec<_> = others.map(|port| (port.role.instance, port.name)).collect();
        let refuse = |why| Err(ChainRefusal::Invalid(name.switch().clone(), why).into());
        if taken.len() >= INSTANCES_MAX {
            return refuse(format!(
                "service {service} has {INSTANCES_MAX} instances, the limit; give {name} another \
                 service"
            ));
        }
        let taken: BTreeMap<u16, &str> = taken.into_iter().collect();
        match taken.get(&requested) {
            None => Ok(requested),
            Some(port) if is_asked => refuse(format!(
                "instance {requested} of service {service} is port {port}; give {name} another \
                 number"
            )),
            Some(_) => Ok(lowest_free(|number| taken.contains_key(&number))),
        }
    }

    /// Whether a switch may have this forwarding: functions need chains.
    pub(in crate::control) fn check_forwarding(
        &self,
        name: &SwitchName,
        config: SwitchConfig,
    ) -> Result<(), Refusal> {
        if config.forwarding == Forwarding::Chain || !self.has_chains(name) {
            return Ok(());
        }
        let running = self.state.ports_of(name).find(|(_, port)| port.has_function());
        running.map_or(Ok(()), |(port, _)| Err(ChainRefusal::NeedsChains(port.clone()).into()))
    }

    /// Whether frames reach a port by chains alone.
    pub(in crate::control) fn is_function(&self, name: &PortName) -> bool {
        let port = self.state.find_port(name);
        let has_service = port.is_some_and(|port| port.config.role.service.is_some());
        has_service && self.has_chains(name.switch())
    }

    fn has_chains(&self, name: &SwitchName) -> bool {
        let switch = self.state.find_switch(name);
        switch.is_some_and(|switch| switch.config.forwarding == Forwarding::Chain)
    }
}

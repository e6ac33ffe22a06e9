//! Switches, as they are listed.

use std::collections::HashMap;

use protocol::name::SwitchName;
use protocol::{PageFrom, Reply, SwitchInfo};

use super::{Control, count, page};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::Switch;
use crate::model::policy::{Access, Caller};

impl<D: Datapath> Control<D> {
    pub(super) fn switch_list(&mut self, caller: &Caller, from: &PageFrom) -> Reply {
        let from = from.from.as_deref().unwrap_or("");
        let datapath = &mut self.datapath;
        let mut ports: HashMap<&SwitchName, usize> = HashMap::new();
        for (port, _) in self.state.ports() {
            *ports.entry(port.switch()).or_default() += 1;
        }
        let visible = self.state.switches_from(from).filter(|(name, _)| !name.is_interface());
        let visible = visible.filter(|(_, s)| s.permissions.allow(caller, Access::Look));
        Reply::Switches(page(visible.map(|(name, switch)| {
            let ports = ports.get(name).copied().unwrap_or(0);
            (name.to_string(), switch_info(datapath, name, switch, ports))
        })))
    }

    pub(super) fn switch_show(
        &mut self,
        caller: &Caller,
        name: &SwitchName,
    ) -> Result<Reply, Refusal> {
        let switch = self.state.switch(caller, name, Access::Look)?;
        let ports = self.state.ports_of(name).count();
        Ok(Reply::Switch(switch_info(&mut self.datapath, name, switch, ports)))
    }
}

fn switch_info<D: Datapath>(
    datapath: &mut D,
    name: &SwitchName,
    switch: &Switch,
    ports: usize,
) -> SwitchInfo {
    let (entries, fdb) = datapath.fdb_count(switch.key);
    SwitchInfo {
        switch: name.clone(),
        persistent: switch.persistent,
        forwarding: switch.config.forwarding.to_string(),
        age_s: u32::try_from(switch.config.ageing_ms / 1000).unwrap_or(u32::MAX),
        fdb_capacity: count(switch.config.fdb_capacity),
        owner: switch.permissions.owner,
        group: switch.permissions.group,
        mode: switch.permissions.mode,
        new_ports: switch.new_ports,
        ports: count(ports),
        fdb_entries: count(entries),
        fdb,
        worker: datapath.worker_of(switch.key),
    }
}

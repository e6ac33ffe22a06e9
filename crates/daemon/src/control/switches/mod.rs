//! Switches: added, changed, deleted, listed.

pub(super) mod multipart;
pub mod refusal;

use std::time::Instant;

use protocol::name::{PortName, SwitchName};
use protocol::{NewPorts, PageFrom, Reply, RunBy, SwitchInfo, SwitchSpec};
use switch::{Forwarding, PortSecurity, SwitchConfig};

use super::{Control, page};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::{Gone, Switch, change_permissions};
use crate::control::stats::counters;
use crate::model::choices::{show_forwarding, show_workers};
use crate::model::keys::SwitchKey;
use crate::model::policy::{Access, Caller, Permissions};
use crate::model::replies::count;
use crate::model::settings;
use crate::model::steering::Steering;
use refusal::SwitchRefusal;

impl<D: Datapath> Control<D> {
    pub(super) fn switch_add(
        &mut self,
        caller: &Caller,
        spec: &SwitchSpec,
    ) -> Result<Reply, Refusal> {
        match self.state.find_switch(&spec.switch) {
            None => {}
            Some(switch) if switch.persistent || spec.switch.is_interface() => {
                return Err(SwitchRefusal::Exists(spec.switch.clone()).into());
            }
            Some(_) => return self.switch_keep(caller, spec),
        }
        let config = settings::change_switch(SwitchConfig::default(), &spec.settings)?;
        self.check_workers(&spec.switch, config)?;
        self.state.check_switch(caller, config.fdb_capacity)?;
        let mine = self.new_permissions(caller);
        let permissions = change_permissions(mine, caller, &spec.settings)?;
        let owner = permissions.owner;
        let steering = self.requested_steering(owner, &spec.switch, &spec.settings)?;
        let program = self.requested_program(owner, &spec.switch, config, &spec.settings)?;
        self.make_switch(&spec.switch, true, permissions, config, None)?;
        let switch = self.state.switch_mut(&spec.switch).expect("made just now");
        switch.new_ports = spec.settings.new_ports.unwrap_or_default();
        switch.steering = steering.unwrap_or_default();
        program.into_iter().for_each(|program| self.load_program(&spec.switch, program));
        self.refresh_forwarding(&spec.switch);
        Ok(Reply::Done)
    }

    /// A switch that came with its first port stays from now on.
    fn switch_keep(&mut self, caller: &Caller, spec: &SwitchSpec) -> Result<Reply, Refusal> {
        self.switch_set(caller, spec)?;
        self.state.switch_mut(&spec.switch).expect("it was there just now").persistent = true;
        Ok(Reply::Done)
    }

    pub(super) fn switch_set(
        &mut self,
        caller: &Caller,
        spec: &SwitchSpec,
    ) -> Result<Reply, Refusal> {
        let switch = self.state.switch(caller, &spec.switch, Access::Manage)?;
        let key = switch.key;
        let permissions = change_permissions(switch.permissions, caller, &spec.settings)?;
        let config = settings::change_switch(switch.config, &spec.settings)?;
        self.check_capacity(&spec.switch, config)?;
        self.check_forwarding(&spec.switch, config)?;
        self.check_workers(&spec.switch, config)?;
        let owner = permissions.owner;
        let steering = self.requested_steering(owner, &spec.switch, &spec.settings)?;
        let program = self.requested_program(owner, &spec.switch, config, &spec.settings)?;
        let more = config.fdb_capacity.saturating_sub(switch.config.fdb_capacity);
        self.state.check_addresses(switch.permissions.owner, more)?;
        let (old, access_before) = (switch.config, switch.permissions);
        // Loaded first, so that no frame meets a switch without its program. A switch that goes to
        // other workers has no ports, and begins there without a program.
        let (first, last) = match old.is_spread == config.is_spread {
            true => (program, None),
            false => (None, program.or(self.kept_program(&spec.switch, config))),
        };
        first.into_iter().for_each(|program| self.load_program(&spec.switch, program));
        if config != old {
            let done = self.datapath.set_switch(key, config);
            done.inspect_err(|_| self.tidy_program(&spec.switch))?;
        }
        let switch = self.state.switch_mut(&spec.switch).expect("it was there just now");
        switch.permissions = permissions;
        switch.config = config;
        switch.new_ports = spec.settings.new_ports.unwrap_or(switch.new_ports);
        if let Some(steering) = steering {
            switch.steering = steering;
        }
        last.into_iter().for_each(|it| self.load_program(&spec.switch, it.with_empty_maps()));
        self.tidy_program(&spec.switch);
        if config.security.mac_lock != old.security.mac_lock {
            self.forget_first_macs(&spec.switch);
        }
        self.refresh_forwarding(&spec.switch);
        self.refresh_drop_captures(&spec.switch);
        if permissions != access_before {
            self.refresh_captures_in(&spec.switch);
        }
        Ok(Reply::Done)
    }

    /// Other users may have a switch now: captures of its ports end if their callers may see the
    /// frames no more.
    fn refresh_captures_in(&mut self, name: &SwitchName) {
        let ports: Vec<_> = self.state.ports_of(name).map(|(port, _)| port.clone()).collect();
        ports.iter().for_each(|port| self.refresh_captures(port));
    }

    pub(super) fn switch_del(
        &mut self,
        caller: &Caller,
        name: &SwitchName,
    ) -> Result<Reply, Refusal> {
        self.state.switch(caller, name, Access::Manage)?;
        let ports: Vec<PortName> = self.state.ports_of(name).map(|(n, _)| n.clone()).collect();
        for port in ports {
            self.drop_port(&port);
        }
        if let Some(key) = self.state.remove_switch(name) {
            self.datapath.del_switch(key);
        }
        Ok(Reply::Done)
    }

    /// Whether the workers that are asked for can run a switch with this configuration.
    pub(super) fn check_workers(
        &self,
        name: &SwitchName,
        config: SwitchConfig,
    ) -> Result<(), Refusal> {
        if config.is_spread && config.forwarding == Forwarding::Chain {
            return Err(SwitchRefusal::ChainsOfAllWorkers(name.clone()).into());
        }
        let is_other = |switch: &Switch| switch.config.is_spread != config.is_spread;
        let has_ports = self.state.ports_of(name).next().is_some();
        if has_ports && self.state.find_switch(name).is_some_and(is_other) {
            return Err(SwitchRefusal::WorkersWithPorts(name.clone()).into());
        }
        Ok(())
    }

    pub(super) fn new_permissions(&self, caller: &Caller) -> Permissions {
        Permissions { owner: caller.uid, group: caller.gid, mode: self.defaults.switch_mode }
    }

    pub(super) fn make_switch(
        &mut self,
        name: &SwitchName,
        persistent: bool,
        permissions: Permissions,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<SwitchKey, Refusal> {
        let key = SwitchKey(self.state.new_key());
        self.datapath.add_switch(key, config, beside)?;
        let (new_ports, steering) = (NewPorts::Any, Steering::default());
        let switch = Switch {
            key,
            persistent,
            permissions,
            new_ports,
            config,
            steering,
            program: None,
            refused_program: None,
            planner: None,
            listed: None,
        };
        self.state.add_switch(name.clone(), switch);
        Ok(key)
    }

    /// The switch of an attach or of a new port, made if there is none. The caller's right to it
    /// has been checked.
    pub(super) fn find_or_make(
        &mut self,
        caller: &Caller,
        name: &SwitchName,
    ) -> Result<SwitchKey, Refusal> {
        if let Some(switch) = self.state.find_switch(name) {
            return Ok(switch.key);
        }
        let permissions = self.new_permissions(caller);
        // One descriptor may hold both sides of an interface, and rings one worker's doorbell.
        let other_side = name.other_side().and_then(|other| self.state.find_switch(&other));
        let beside = other_side.map(|switch| switch.key);
        let mut config = settings::new_switch(name);
        // The two ports of an interface's switch, mostly one program's, gain nothing by a second
        // worker.
        config.is_spread = self.defaults.switch_workers == RunBy::All && !name.is_interface();
        self.make_switch(name, false, permissions, config, beside)
    }

    /// Tells the workers what went away, and keeps the counters of a port that stays.
    pub(super) fn account_gone(&mut self, name: &PortName, gone: &Gone) {
        if let Some(key) = gone.port {
            self.notes.polled.remove(&key);
            if let Some(uid) = gone.user {
                self.notes.stalls.note_departed(key, uid, Instant::now());
            }
            self.remember_security(name, key);
            self.note_addresses(name.switch());
            let last = self.datapath.detach(key, name);
            self.note_addresses(name.switch());
            if let Some(uplink) = self.notes.uplinks.remove(&key) {
                self.datapath.detach(uplink, name);
            }
            if let Some(port) = self.state.port_mut(name) {
                let past = port.past.get_or_insert_with(|| counters::none(name.clone()).into());
                counters::add(past, &last);
            } else if let Some(left) = gone.left.clone() {
                let past = left.past.as_deref().cloned();
                let mut sum = past.unwrap_or_else(|| counters::none(name.clone()));
                counters::add(&mut sum, &last);
                self.state.departures.note(left, sum, Instant::now());
            }
        }
        self.refresh_port(name);
        if let Some(pipe) = gone.pipe {
            self.datapath.del_pipe(pipe);
        }
        for switch in gone.patch.into_iter().chain(gone.switch) {
            self.datapath.del_switch(switch);
        }
        if let Some(region) = gone.region {
            self.datapath.drop_region(region);
        }
        self.refresh_groups();
    }
}

/// Listings.
impl<D: Datapath> Control<D> {
    pub(super) fn switch_list(&self, caller: &Caller, from: &PageFrom) -> Reply {
        let from = from.from.as_deref().unwrap_or("");
        let visible = self.state.switches_from(from).filter(|(name, _)| !name.is_interface());
        let visible = visible.filter(|(_, s)| s.permissions.allow(caller, Access::Look));
        Reply::Switches(page(visible.map(|(name, switch)| {
            let ports = self.state.ports_of(name).count();
            (name.to_string(), self.switch_info(name, switch, ports))
        })))
    }

    pub(super) fn switch_show(&self, caller: &Caller, name: &SwitchName) -> Result<Reply, Refusal> {
        let switch = self.state.switch(caller, name, Access::Look)?;
        let ports = self.state.ports_of(name).count();
        Ok(Reply::Switch(self.switch_info(name, switch, ports)))
    }

    fn switch_info(&self, name: &SwitchName, switch: &Switch, ports: usize) -> SwitchInfo {
        let (entries, fdb) = self.datapath.fdb_count(switch.key);
        let in_force = switch.config.security.or(PortSecurity::OFF);
        let in_force = PortSecurity { max_macs: switch.config.security.max_macs, ..in_force };
        SwitchInfo {
            switch: name.clone(),
            persistent: switch.persistent,
            forwarding: show_forwarding(switch.config.forwarding).to_string(),
            age_s: u32::try_from(switch.config.ageing_ms / 1000).unwrap_or(u32::MAX),
            fdb_capacity: count(switch.config.fdb_capacity),
            group_fwd_mask: switch.config.group_fwd_mask,
            mcast_snooping: switch.config.mcast_snooping,
            mcast_querier: switch.config.mcast_querier,
            mcast: self.datapath.mdb_count(switch.key),
            workers: show_workers(switch.config.is_spread),
            owner: switch.permissions.owner,
            group: switch.permissions.group,
            mode: switch.permissions.mode,
            new_ports: switch.new_ports,
            ports: count(ports),
            fdb_entries: count(entries),
            fdb,
            looped: self.loop_of(name, switch.key),
            port_settings: settings::show_security(&in_force),
            worker: self.datapath.worker_of(switch.key),
        }
    }
}

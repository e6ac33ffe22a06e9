//! Switches, as the workers run them.

use std::collections::BTreeMap;

use ring::doorbell::store_load_fence;
use ring::table::HugeTable;
use switch::chain::{Report, Tables};
use switch::{Plug, Switch, SwitchConfig};

use super::system::random_seed;
use super::{Places, SwitchPlace, Workers};
use crate::control::datapath::chains::Chains;
use crate::control::datapath::switches::Switches;
use crate::engine::worker::Worker;
use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};

impl Switches for Workers {
    fn workers(&self) -> u32 {
        u32::try_from(self.workers.len()).unwrap_or(u32::MAX)
    }

    fn worker_of(&self, switch: SwitchKey) -> u32 {
        u32::try_from(self.place(switch).home).unwrap_or(u32::MAX)
    }

    fn add_switch(
        &mut self,
        key: SwitchKey,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<(), DatapathError> {
        let switches = |worker: &usize| self.switches_at(*worker);
        let home = match beside {
            Some(other) => Some(self.place(other).home),
            None => (0..self.workers.len()).min_by_key(switches),
        };
        let home = home.ok_or(DatapathError::Full("switches: there is no worker"))?;
        let at = self.places.free();
        self.places.take(at);
        let (ids, keys) = (Places::default(), BTreeMap::new());
        self.switches.insert(key, SwitchPlace { home, is_spread: false, at, ids, keys });
        self.start_switch(key, config);
        Ok(())
    }

    fn set_switch(&mut self, key: SwitchKey, config: SwitchConfig) -> Result<(), DatapathError> {
        if self.place(key).is_spread == config.is_spread {
            let ageing_ms = config.ageing_ms;
            let set = move |worker: &mut Worker, at| worker.switch(at).set_config(config);
            let flows = self.on_replicas(key, set);
            self.reclaimer.run(move || drop(flows));
            self.on_vxlans_of(key, move |port| port.remotes().set_ageing(ageing_ms));
        } else {
            self.orphan_drops(key);
            self.stop_switch(key);
            self.start_switch(key, config);
        }
        Ok(())
    }

    fn del_switch(&mut self, key: SwitchKey) {
        self.orphan_drops(key);
        self.stop_switch(key);
        if let Some(place) = self.switches.remove(&key) {
            self.places.give_back(place.at);
        }
    }
}

impl Workers {
    /// Has one worker or all run a switch, which has no port.
    fn start_switch(&mut self, key: SwitchKey, config: SwitchConfig) {
        let place = self.switches.get_mut(&key).expect("control made the switch");
        assert!(place.keys.is_empty(), "a switch starts without ports");
        place.is_spread = config.is_spread;
        let (at, workers) = (place.at, self.workers_of(key));
        let switch = Switch::new(config, random_seed(), HugeTable::new);
        for (worker, replica) in workers.clone().zip(switch.into_replicas(workers.len())) {
            self.workers[worker].handle.call(move |worker| worker.add_switch(at, replica));
        }
    }

    fn stop_switch(&self, key: SwitchKey) {
        let old = self.on_replicas(key, Worker::remove_switch);
        self.reclaimer.run(move || drop(old));
    }

    /// How many switches a worker runs.
    pub(super) fn switches_at(&self, worker: usize) -> usize {
        let runs = |place: &&SwitchPlace| place.is_spread || place.home == worker;
        self.switches.values().filter(runs).count()
    }
}

impl Chains for Workers {
    fn set_chains(&mut self, key: SwitchKey, tables: Option<Tables>) {
        let old = self.on_switch(key, move |worker, at| match tables {
            Some(tables) => {
                let now = worker.now();
                (Some(worker.switch(at).steer(tables, now)), None)
            }
            None => (None, worker.switch(at).stop_steering()),
        });
        self.reclaimer.run(move || drop(old));
    }

    fn chain_report(&mut self, key: SwitchKey) -> Option<Report> {
        self.on_switch(key, |worker, at| worker.switch(at).steering())
    }

    fn prompt_function(&mut self, port: PortKey) {
        let Some(place) = self.ports.get(&port) else { return };
        let id = place.id;
        self.on_port(place, move |worker, at| {
            if let Some(Plug::Rings(host, wake)) = worker.switch(at).plug_mut(id) {
                host.tell();
                // How the client sleeps is looked at after that. Partner: its fence when it arms.
                store_load_fence();
                wake.wake();
            }
        });
    }
}

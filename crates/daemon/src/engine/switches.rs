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
        u32::try_from(self.place(switch).worker).unwrap_or(u32::MAX)
    }

    fn add_switch(
        &mut self,
        key: SwitchKey,
        config: SwitchConfig,
        beside: Option<SwitchKey>,
    ) -> Result<(), DatapathError> {
        let taken = |worker: &usize| self.workers[*worker].switches.taken();
        let worker = match beside {
            Some(other) => Some(self.place(other).worker),
            None => (0..self.workers.len()).min_by_key(taken),
        };
        let worker = worker.ok_or(DatapathError::Full("switches: there is no worker"))?;
        let (at, seed) = (self.workers[worker].switches.free(), random_seed());
        self.workers[worker].switches.take(at);
        let place = SwitchPlace { worker, at, ids: Places::default(), keys: BTreeMap::new() };
        self.switches.insert(key, place);
        let switch = Switch::new(config, seed, HugeTable::new);
        self.on_switch(key, move |worker, at| worker.add_switch(at, switch));
        Ok(())
    }

    fn set_switch(&mut self, key: SwitchKey, config: SwitchConfig) -> Result<(), DatapathError> {
        let flows = self.on_switch(key, move |worker, at| worker.switch(at).set_config(config));
        self.reclaimer.run(move || drop(flows));
        Ok(())
    }

    fn del_switch(&mut self, key: SwitchKey) {
        let old = self.on_switch(key, Worker::remove_switch);
        self.reclaimer.run(move || drop(old));
        if let Some(place) = self.switches.remove(&key) {
            self.workers[place.worker].switches.give_back(place.at);
        }
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
        let Some((switch, id)) = self.switch_of(port) else { return };
        self.on_switch(switch, move |worker, at| {
            if let Some(Plug::Rings(host, wake)) = worker.switch(at).plug_mut(id) {
                host.tell();
                // How the client sleeps is looked at after that. Partner: its fence when it arms.
                store_load_fence();
                wake.wake();
            }
        });
    }
}

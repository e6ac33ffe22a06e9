//! Stations in forwarding databases: counted, listed, put in by hand, forgotten.

use packet::{MacAddr, PortId, VlanId};
use protocol::FdbCounters;
use switch::{FdbChanges, Flush, StaticError};

use super::Workers;
use crate::control::datapath::fdb::Fdb;
use crate::control::stats::counters;
use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::replies::{FdbChange, FdbRow};

impl Fdb for Workers {
    fn fdb_count(&self, switch: SwitchKey) -> (usize, FdbCounters) {
        self.on_switch(switch, |worker, at| {
            let fdb = worker.switch(at).bridge().fdb();
            (fdb.count(), counters::of_fdb(fdb.stats()))
        })
    }

    fn fdb_page(
        &mut self,
        switch: SwitchKey,
        cursor: u64,
        max: usize,
    ) -> (Vec<FdbRow>, Option<u64>) {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let entries = self.on_switch(switch, move |worker, at| {
            let now = worker.now();
            let fdb = worker.switch(at).bridge().fdb();
            fdb.entries(from, now).take(max + 1).collect::<Vec<_>>()
        });
        // Each entry comes with the position after it.
        let more = entries.len() > max;
        let next = more.then(|| entries[max - 1].0 as u64);
        let keys = &self.place(switch).keys;
        let row = |entry: &switch::FdbEntry| FdbRow {
            mac: entry.mac,
            vlan: entry.vlan,
            port: keys[&entry.port],
            is_static: entry.age_ms.is_none(),
            extern_learn: entry.is_external,
            age_ms: entry.age_ms.unwrap_or(0),
        };
        (entries.iter().take(max).map(|(_, entry)| row(entry)).collect(), next)
    }

    fn fdb_changes(&mut self, switch: SwitchKey, goes_on: bool) -> (Vec<FdbChange>, u64) {
        let next = goes_on.then(FdbChanges::with_room);
        let changes = self.on_switch(switch, move |worker, at| {
            worker.switch(at).bridge_mut().take_fdb_changes(next)
        });
        let Some(FdbChanges { changes, lost }) = changes.map(|all| *all) else {
            return (Vec::new(), 0);
        };
        let keys = &self.place(switch).keys;
        let key = |port: Option<PortId>| port.and_then(|port| keys.get(&port).copied());
        let changes = changes.iter().map(|it| FdbChange {
            mac: it.mac,
            vlan: it.vlan,
            from: key(it.from),
            to: key(it.to),
            is_static: it.is_static,
        });
        (changes.filter(|it| it.from.is_some() || it.to.is_some()).collect(), lost)
    }

    fn fdb_add(&mut self, port: PortKey, mac: MacAddr, vlan: VlanId) -> Result<(), DatapathError> {
        let missing = DatapathError::Full("entries: the port is not attached");
        let (switch, id) = self.switch_of(port).ok_or(missing)?;
        let added = self.on_switch(switch, move |worker, at| {
            worker.switch(at).bridge_mut().add_static(vlan, mac, id)
        });
        added.map_err(|why| match why {
            StaticError::Full => DatapathError::Full("static addresses"),
            StaticError::NoPort => DatapathError::Full("entries: the port is not attached"),
            StaticError::GroupAddress => {
                DatapathError::Full("group addresses: they are not behind one port")
            }
        })
    }

    fn fdb_del(&mut self, switch: SwitchKey, mac: MacAddr, vlan: VlanId) -> bool {
        self.on_switch(switch, move |worker, at| {
            worker.switch(at).bridge_mut().remove_entry(vlan, mac)
        })
    }

    fn fdb_flush(&mut self, switch: SwitchKey, port: Option<PortKey>) {
        let what = match port.map(|key| self.switch_of(key)) {
            None => Flush::All,
            Some(Some((_, id))) => Flush::Port(id),
            Some(None) => return,
        };
        self.on_switch(switch, move |worker, at| worker.switch(at).bridge_mut().flush(what));
        match port {
            None => self.on_vxlans_of(switch, |port| port.remotes().flush()),
            Some(port) => {
                self.on_vxlan(port, |port| port.remotes().flush());
            }
        }
    }
}

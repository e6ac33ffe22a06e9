//! Multicast groups: counted and listed.

use protocol::McastCounters;
use switch::McastRow;

use super::Workers;
use crate::control::datapath::mdb::Mdb;
use crate::control::stats::counters;
use crate::model::keys::SwitchKey;
use crate::model::replies::MdbRow;

impl Mdb for Workers {
    fn mdb_count(&self, switch: SwitchKey) -> McastCounters {
        self.on_switch(switch, |worker, at| counters::of_groups(worker.switch(at).bridge()))
    }

    fn mdb_page(&self, switch: SwitchKey, cursor: u64, max: usize) -> (Vec<MdbRow>, Option<u64>) {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let rows = self.on_switch(switch, move |worker, at| {
            let now = worker.now();
            worker.switch(at).bridge_mut().mcast_rows(now, from, max.saturating_add(1))
        });
        let next = (rows.len() > max).then(|| cursor + max as u64);
        let keys = &self.place(switch).keys;
        let row = |row: McastRow| {
            let port = match row {
                McastRow::Querier(querier) => querier.port,
                McastRow::Router(router) => Some(router.port),
                McastRow::Member(member) => Some(member.port),
            };
            // One that has gone meanwhile is left out.
            let key = port.map_or(Some(None), |port| keys.get(&port).copied().map(Some));
            key.map(|port| MdbRow { port, row })
        };
        (rows.into_iter().take(max).filter_map(row).collect(), next)
    }
}

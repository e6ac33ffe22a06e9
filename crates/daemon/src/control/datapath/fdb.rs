//! Forwarding databases.

use packet::{MacAddr, VlanId};
use protocol::FdbCounters;

use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::replies::{FdbChange, FdbRow};

/// Forwarding databases.
pub trait Fdb {
    /// How many entries a forwarding database has, and its counters.
    fn fdb_count(&self, switch: SwitchKey) -> (usize, FdbCounters);

    /// Up to `max` entries from `cursor` on (0 for the first), and the next cursor.
    fn fdb_page(
        &mut self,
        switch: SwitchKey,
        cursor: u64,
        max: usize,
    ) -> (Vec<FdbRow>, Option<u64>);

    /// Changes since the last call, and how many more there were. From the first call on they are
    /// kept, for a caller that goes on. Entries of ports that are gone are left out.
    fn fdb_changes(&mut self, switch: SwitchKey, goes_on: bool) -> (Vec<FdbChange>, u64);

    /// Adds a static entry, or replaces the entry of that address.
    fn fdb_add(&mut self, port: PortKey, mac: MacAddr, vlan: VlanId) -> Result<(), DatapathError>;

    /// Deletes an entry; `false` if there is none.
    fn fdb_del(&mut self, switch: SwitchKey, mac: MacAddr, vlan: VlanId) -> bool;

    /// Forgets learned addresses: of one port, or of all.
    fn fdb_flush(&mut self, switch: SwitchKey, port: Option<PortKey>);
}

#[cfg(test)]
mod fake {
    use packet::{MacAddr, VlanId};
    use protocol::FdbCounters;

    use super::Fdb;
    use crate::control::fake::Fake;
    use crate::model::error::DatapathError;
    use crate::model::keys::{PortKey, SwitchKey};
    use crate::model::replies::{FdbChange, FdbRow};

    impl Fdb for Fake {
        fn fdb_count(&self, switch: SwitchKey) -> (usize, FdbCounters) {
            let entries = self.fdb.values().filter(|entry| entry.0 == switch);
            (entries.count(), FdbCounters::default())
        }

        fn fdb_page(
            &mut self,
            switch: SwitchKey,
            cursor: u64,
            max: usize,
        ) -> (Vec<FdbRow>, Option<u64>) {
            let skip = usize::try_from(cursor).expect("what a page said");
            let row = |&(_, port, mac, vlan): &(SwitchKey, PortKey, MacAddr, VlanId)| FdbRow {
                mac,
                vlan,
                port,
                is_static: true,
                extern_learn: false,
                age_ms: 0,
            };
            let all: Vec<FdbRow> = self.fdb.values().filter(|e| e.0 == switch).map(row).collect();
            let next = (skip + max < all.len()).then_some(cursor + max as u64);
            (all.into_iter().skip(skip).take(max).collect(), next)
        }

        fn fdb_changes(&mut self, switch: SwitchKey, goes_on: bool) -> (Vec<FdbChange>, u64) {
            match goes_on {
                true => self.followed.insert(switch),
                false => self.followed.remove(&switch),
            };
            std::mem::take(&mut self.fdb_changes)
        }

        fn fdb_add(
            &mut self,
            port: PortKey,
            mac: MacAddr,
            vlan: VlanId,
        ) -> Result<(), DatapathError> {
            self.calls += 1;
            let switch = self.ports[&port].0;
            self.fdb.insert((mac.as_u64(), vlan.get()), (switch, port, mac, vlan));
            Ok(())
        }

        fn fdb_del(&mut self, _: SwitchKey, mac: MacAddr, vlan: VlanId) -> bool {
            self.fdb.remove(&(mac.as_u64(), vlan.get())).is_some()
        }

        fn fdb_flush(&mut self, switch: SwitchKey, port: Option<PortKey>) {
            self.fdb.retain(|_, e| e.0 != switch || port.is_some_and(|port| port != e.1));
        }
    }
}

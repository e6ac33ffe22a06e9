//! Multicast groups.

use protocol::McastCounters;

use crate::model::keys::SwitchKey;
use crate::model::replies::MdbRow;

/// Multicast groups, router ports and queriers.
pub trait Mdb {
    /// What snooping knows and has counted.
    fn mdb_count(&self, switch: SwitchKey) -> McastCounters;

    /// Up to `max` rows from `cursor` on (0 for the first), and the next cursor.
    fn mdb_page(&self, switch: SwitchKey, cursor: u64, max: usize) -> (Vec<MdbRow>, Option<u64>);
}

#[cfg(test)]
mod fake {
    use protocol::McastCounters;

    use super::Mdb;
    use crate::control::fake::Fake;
    use crate::model::keys::SwitchKey;
    use crate::model::replies::MdbRow;

    impl Mdb for Fake {
        fn mdb_count(&self, _: SwitchKey) -> McastCounters {
            McastCounters::default()
        }

        fn mdb_page(&self, _: SwitchKey, _: u64, _: usize) -> (Vec<MdbRow>, Option<u64>) {
            (Vec::new(), None)
        }
    }
}

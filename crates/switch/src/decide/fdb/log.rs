//! What changes in a forwarding database, kept while a client listens.

use packet::{MacAddr, PortId, VlanId};

use super::table::{Key, Value};

/// Most changes that are kept between two looks.
const CHANGES: usize = 256;

/// An entry that has come, moved or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbChange {
    /// The VLAN.
    pub vlan: VlanId,
    /// The address.
    pub mac: MacAddr,
    /// The port on which it was.
    pub from: Option<PortId>,
    /// The port on which it is.
    pub to: Option<PortId>,
    /// Whether the entry is static now, or was when it went.
    pub is_static: bool,
}

/// Changes since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FdbChanges {
    /// The changes, the oldest first.
    pub changes: Vec<FdbChange>,
    /// The number of those that found no room.
    pub lost: u64,
}

impl FdbChanges {
    /// Room for all changes that are kept: workers note them, and allocate nothing.
    #[must_use]
    pub fn with_room() -> Box<Self> {
        Box::new(Self { changes: Vec::with_capacity(CHANGES), lost: 0 })
    }

    pub(super) fn note(&mut self, key: Key, from: Option<Value>, to: Option<Value>) {
        let Some(last) = to.or(from) else { return };
        if self.changes.len() >= CHANGES {
            self.lost += 1;
            return;
        }
        self.changes.push(FdbChange {
            vlan: key.vlan(),
            mac: key.mac(),
            from: from.map(Value::port),
            to: to.map(Value::port),
            is_static: last.is_static(),
        });
    }
}

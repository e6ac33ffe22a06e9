//! Memory that clients were given.
//!
//! ```text
//!           attached, bound             the connection detaches or closes    given back
//!   (none) ────────────────► leased ───────────────────────────────────► left ─────────► (none)
//!                               │                                         ▲
//!                               └── the port is deleted: counted as left ─┘
//! ```
//!
//! The pages of a port stay as long as its client has the connection: it may be at work in them
//! when the port is deleted. They stay a little longer until the system has them back. The user
//! pays for them all that time, so no client gets more than the quota by keeping what it gave up.
//! When the daemon ends, its clients keep the pages.
//!
//! A region of bound ports is left when its last port goes, whichever connections have it by then;
//! it is counted once, with a life that all its leases share.

use std::collections::BTreeMap;
use std::io;
use std::sync::Weak;

use protocol::name::PortName;

use super::groups::Charge;
use super::{Holder, State};
use crate::model::keys::ConnKey;
use crate::model::opening::await_own;
use crate::model::replies::Lease;

/// The leases of connections, and what is left of those that ended.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: BTreeMap<ConnKey, BTreeMap<PortName, Lease>>,
    left: BTreeMap<u32, Vec<Left>>,
}

/// Memory that a user pays for, and has no port of any more.
#[derive(Debug)]
struct Left {
    bytes: u64,
    life: Weak<()>,
}

impl Left {
    fn is_there(&self) -> bool {
        self.life.strong_count() > 0
    }
}

impl Leases {
    /// What a user paid for is gone, but for those that have it.
    pub(super) fn leave(&mut self, Charge { uid, memory: bytes }: Charge, life: Weak<()>) {
        let left = self.left.entry(uid).or_default();
        left.retain(Left::is_there);
        left.push(Left { bytes, life });
    }
}

impl State {
    /// A connection was given the memory of a port. Returns the lease that this one replaces.
    pub fn lease(&mut self, conn: ConnKey, name: PortName, lease: Lease) -> Option<Lease> {
        self.leases.held.entry(conn).or_default().insert(name, lease)
    }

    /// A connection gives a port back.
    pub fn end_lease(&mut self, conn: ConnKey, name: &PortName) -> Vec<Lease> {
        let Some(held) = self.leases.held.get_mut(&conn) else { return Vec::new() };
        let lease = held.remove(name);
        if held.is_empty() {
            self.leases.held.remove(&conn);
        }
        lease.into_iter().collect()
    }

    /// A connection gives back what it has.
    pub fn end_leases(&mut self, conn: ConnKey) -> Vec<Lease> {
        self.leases.held.remove(&conn).unwrap_or_default().into_values().collect()
    }

    /// A port loses the client that had its memory. Of a trust group it had all.
    pub(super) fn note_left(&mut self, name: &PortName, holder: Option<&Holder>) {
        let Some(holder) = holder else { return };
        let charge = holder.group.as_ref().and_then(|group| self.charge_of(group));
        let memory = charge.map_or(holder.memory, |charge| charge.memory);
        let lease = self.leases.held.get(&holder.conn).and_then(|held| held.get(name));
        if let Some(life) = lease.map(Lease::life) {
            self.leases.leave(Charge { uid: holder.uid, memory }, life);
        }
    }

    /// The memory that a user has to wait for before there is memory for what it has reserved.
    #[must_use]
    pub fn owed(&self, uid: u32) -> Option<Owed> {
        let left = self.leases.left.get(&uid)?.iter().filter(|left| left.is_there());
        let (bytes, lives): (Vec<u64>, Vec<_>) =
            left.map(|left| (left.bytes, left.life.clone())).unzip();
        let more = bytes.iter().sum::<u64>();
        (self.usage(uid).memory.saturating_add(more) > self.quota.memory).then_some(Owed(lives))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Clients read what is in their rings also when the daemon has gone.
        std::mem::forget(std::mem::take(&mut self.leases.held));
    }
}

/// Memory that is not the system's again yet.
#[derive(Debug)]
pub struct Owed(Vec<Weak<()>>);

impl Owed {
    /// Waits until the system has it.
    ///
    /// # Errors
    /// The wait takes too long: a program still has a port that was deleted.
    pub fn wait(&self) -> io::Result<()> {
        let late = || {
            io::Error::other(
                "your deleted ports take the rest of quota.memory until the programs that had \
                 them close their connections",
            )
        };
        await_own(|| self.0.iter().all(|life| life.strong_count() == 0), late)
    }
}

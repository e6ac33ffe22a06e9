//! The entries of a forwarding database and what is counted of them, for the worker that may
//! change them.
//!
//! A [`Sequence::change`] spans all stores by which a look-up could answer otherwise.
//!
//! [`Sequence::change`]: ring::sequence::Sequence::change

use std::ops::Range;
use std::sync::Arc;

use packet::{PortId, VlanId};

use super::table::{self, Buckets, Key, Table, Value};
use super::{Common, FdbChanges, FdbFull, FdbStats, Flush, Learned};
use crate::decide::loops::{Loop, LoopDetector};
use crate::model::now::Now;
use crate::model::users::Users;

/// What workers change under the lock.
pub(super) struct Entries {
    table: Table,
    ports: Vec<Tally>,
    /// Addresses learned by the ports of each user that has only a share.
    users: Users<usize>,
    /// The slot where the next sweep begins.
    pub(super) sweep: usize,
    stats: FdbStats,
    loops: LoopDetector,
    /// While a client listens.
    changes: Option<Box<FdbChanges>>,
}

/// The ports of one user may learn this part of the table, together.
const USER_SHARE: usize = 4;

/// The entries of one port.
#[derive(Clone, Copy)]
struct Tally {
    learned: u32,
    fixed: u32,
    limit: u32,
    /// The place in [`Entries::users`] of a user that has only a share.
    user: Option<usize>,
}

impl Tally {
    const NONE: Self = Self { learned: 0, fixed: 0, limit: u32::MAX, user: None };

    fn count_of(&mut self, value: Value) -> &mut u32 {
        if value.is_static() { &mut self.fixed } else { &mut self.learned }
    }

    /// The place of the port's user, if the entry counts against that user's share.
    fn user_of(&self, value: Value) -> Option<usize> {
        self.user.filter(|_| !value.is_static())
    }
}

/// Counts an entry no more, for its port and the port's user.
fn count_out(ports: &mut [Tally], users: &mut Users<usize>, value: Value) {
    let tally = &mut ports[value.port().index()];
    let count = tally.count_of(value);
    assert!(*count > 0, "an entry is counted as long as it is there");
    *count -= 1;
    if let Some(at) = tally.user_of(value) {
        users[at] -= 1;
    }
}

impl Entries {
    pub(super) fn new(capacity: usize, seed: u64) -> Self {
        Self {
            table: Table::new(capacity, seed),
            ports: Vec::new(),
            users: Users::default(),
            sweep: 0,
            stats: FdbStats::default(),
            loops: LoopDetector::default(),
            changes: None,
        }
    }

    /// Where the entries are now, to read.
    pub(super) fn buckets(&self) -> &Arc<Buckets> {
        self.table.buckets()
    }

    pub(super) fn count(&self) -> usize {
        self.table.count()
    }

    pub(super) fn stats(&self) -> FdbStats {
        FdbStats { loop_seconds: self.loops.intervals(), ..self.stats }
    }

    pub(super) fn loops(&self) -> &LoopDetector {
        &self.loops
    }

    pub(super) fn take_changes(
        &mut self,
        next: Option<Box<FdbChanges>>,
    ) -> Option<Box<FdbChanges>> {
        std::mem::replace(&mut self.changes, next)
    }

    pub(super) fn take_found_loop(&mut self) -> Option<(Loop, bool)> {
        self.loops.take_found()
    }

    pub(super) fn set_limit(&mut self, port: PortId, limit: Option<u32>, user: Option<u32>) {
        self.tally(port).limit = limit.unwrap_or(u32::MAX);
        self.set_user(port, user);
    }

    /// What a port has learned counts for this user from now on.
    fn set_user(&mut self, port: PortId, user: Option<u32>) {
        let Tally { learned, user: before, .. } = *self.tally(port);
        if let Some(at) = before {
            self.users[at] -= learned as usize;
            self.users.leave(at);
        }
        let user = user.map(|uid| self.users.join(uid));
        if let Some(at) = user {
            self.users[at] += learned as usize;
        }
        self.tally(port).user = user;
    }

    pub(super) fn set_capacity(&mut self, common: &Common, capacity: usize) {
        self.table.set_capacity(capacity);
        if self.table.count() > self.table.capacity() {
            self.flush_where(common, |_, _| true);
        }
    }

    /// Learns an address, which other workers may have learned meanwhile.
    pub(super) fn learn(&mut self, common: &Common, key: Key, port: PortId, now: Now) -> Learned {
        match self.table.get(key) {
            None => self.learn_new(common, key, port, now),
            Some(value) if value.is_static() => Learned::Static,
            Some(value) if value.port() == port && !common.is_expired(value, now) => {
                if !value.is_external() {
                    self.table.refresh(key, value, Value::learned(port, now));
                }
                Learned::Refreshed
            }
            Some(value) => self.relearn(common, key, value, port, now),
        }
    }

    /// What [`learn`](Self::learn) would do, unless static entries fill the places of the address.
    pub(super) fn would_learn(&self, common: &Common, key: Key, port: PortId, now: Now) -> Learned {
        match self.table.get(key) {
            Some(value) if value.is_static() => Learned::Static,
            Some(value) if value.port() == port && !common.is_expired(value, now) => {
                Learned::Refreshed
            }
            other if self.is_full(port, other) => Learned::PortLimit,
            Some(value) if !common.is_expired(value, now) => Learned::Moved { from: value.port() },
            _ => Learned::New,
        }
    }

    fn learn_new(&mut self, common: &Common, key: Key, port: PortId, now: Now) -> Learned {
        if self.is_full(port, None) {
            return self.refuse_limit();
        }
        match self.insert(common, key, Value::learned(port, now)) {
            Ok(()) => {
                self.stats.learned += 1;
                Learned::New
            }
            Err(FdbFull) => {
                self.stats.refused_full += 1;
                Learned::Full
            }
        }
    }

    /// Learns an address whose dynamic entry is expired or on another port. An expired entry counts
    /// as none: its station did not move, it is new.
    fn relearn(
        &mut self,
        common: &Common,
        key: Key,
        old: Value,
        port: PortId,
        now: Now,
    ) -> Learned {
        if common.is_expired(old, now) {
            self.remove(common, key);
            self.stats.aged += 1;
            return self.learn_new(common, key, port, now);
        }
        if self.is_full(port, Some(old)) {
            return self.refuse_limit();
        }
        self.replace(common, key, old, Value::learned(port, now));
        self.stats.moved += 1;
        self.loops.count(key.mac(), key.vlan(), [old.port(), port], now);
        Learned::Moved { from: old.port() }
    }

    fn refuse_limit(&mut self) -> Learned {
        self.stats.refused_limit += 1;
        Learned::PortLimit
    }

    /// Whether a port can learn no more, also where the dynamic entry `old` goes for that.
    fn is_full(&self, port: PortId, old: Option<Value>) -> bool {
        let tally_of = |port: PortId| self.ports.get(port.index()).copied().unwrap_or(Tally::NONE);
        let (tally, old) = (tally_of(port), old.map(Value::port));
        let of_port = u32::from(old == Some(port));
        let of_user = usize::from(old.is_some_and(|old| tally_of(old).user == tally.user));
        let share = self.table.capacity().div_ceil(USER_SHARE);
        tally.learned - of_port >= tally.limit
            || tally.user.is_some_and(|at| self.users[at] - of_user >= share)
    }

    pub(super) fn add_static(
        &mut self,
        common: &Common,
        key: Key,
        port: PortId,
    ) -> Result<(), FdbFull> {
        let fixed = Value::fixed(port);
        match self.table.get(key) {
            Some(old) => {
                self.replace(common, key, old, fixed);
                Ok(())
            }
            None => self.insert(common, key, fixed),
        }
    }

    pub(super) fn add_external(&mut self, common: &Common, key: Key, port: PortId) -> Learned {
        let external = Value::external(port);
        let old = self.table.get(key);
        match old {
            Some(old) if old.is_static() => return Learned::Static,
            Some(old) if old.port() == port => {
                self.replace(common, key, old, external);
                return Learned::Refreshed;
            }
            _ if self.is_full(port, old) => {
                // The station is not where it was, and is flooded to where it is.
                self.remove(common, key);
                return self.refuse_limit();
            }
            Some(old) => {
                self.replace(common, key, old, external);
                return Learned::Moved { from: old.port() };
            }
            None => {}
        }
        self.insert(common, key, external).map_or(Learned::Full, |()| Learned::New)
    }

    pub(super) fn remove_external(&mut self, common: &Common, key: Key, port: PortId) {
        let there = self.table.get(key).filter(|value| value.port() == port && !value.is_static());
        if there.is_some() {
            self.remove(common, key);
        }
    }

    fn replace(&mut self, common: &Common, key: Key, old: Value, new: Value) {
        debug_assert!(self.table.get(key).is_some_and(|there| there.port() == old.port()));
        let _change = common.sequence.change();
        self.table.set(key, new);
        self.count_out(old);
        self.count_in(new);
        self.note(key, Some(old), Some(new));
    }

    #[inline]
    fn note(&mut self, key: Key, from: Option<Value>, to: Option<Value>) {
        if let Some(changes) = &mut self.changes {
            changes.note(key, from, to);
        }
    }

    fn insert(&mut self, common: &Common, key: Key, value: Value) -> Result<(), FdbFull> {
        debug_assert!(self.table.get(key).is_none(), "an address has one entry");
        let _change = common.sequence.change();
        let evicted = self.table.insert(key, value).map_err(|table::Full| FdbFull)?;
        if let Some((other, old)) = evicted {
            self.count_out(old);
            self.stats.evicted += 1;
            self.note(other, Some(old), None);
        }
        self.count_in(value);
        self.note(key, None, Some(value));
        Ok(())
    }

    pub(super) fn remove(&mut self, common: &Common, key: Key) -> bool {
        let _change = common.sequence.change();
        let Some(value) = self.table.remove(key) else { return false };
        self.count_out(value);
        self.note(key, Some(value), None);
        true
    }

    pub(super) fn age(&mut self, common: &Common, now: Now, budget: usize) -> usize {
        let slots = self.table.slots();
        let start = self.sweep.min(slots);
        let end = slots.min(start.saturating_add(budget));
        assert!(start <= end && end <= slots, "a sweep stays in the table");
        self.sweep = if end == slots { 0 } else { end };
        let expired =
            self.remove_where(common, start..end, |_, value| common.is_expired(value, now));
        self.stats.aged += u64::try_from(expired).unwrap_or(u64::MAX);
        expired
    }

    pub(super) fn flush(&mut self, common: &Common, what: Flush<'_>) -> usize {
        match what {
            Flush::All => self.flush_where(common, |_, value| !value.is_external()),
            Flush::Port(port) => {
                self.flush_where(common, |_, value| value.port() == port && !value.is_external())
            }
            Flush::Vlans(vlans) => self.flush_where(common, |key, value| {
                vlans.contains(key.vlan()) && !value.is_external()
            }),
        }
    }

    pub(super) fn flush_port_except(
        &mut self,
        common: &Common,
        port: PortId,
        carries: impl Fn(VlanId) -> bool,
    ) -> usize {
        if self.learned_on(port) == 0 {
            return 0;
        }
        self.flush_where(common, |key, value| value.port() == port && !carries(key.vlan()))
    }

    pub(super) fn remove_port(&mut self, common: &Common, port: PortId) -> usize {
        let Some(&Tally { learned, fixed, .. }) = self.ports.get(port.index()) else {
            return 0;
        };
        // No changes of their own: they go with the port.
        let changes = self.changes.take();
        let removed = match learned + fixed {
            0 => 0,
            _ => self.remove_where(common, 0..self.table.slots(), |_, value| value.port() == port),
        };
        self.changes = changes;
        self.set_user(port, None);
        self.ports[port.index()] = Tally::NONE;
        removed
    }

    fn flush_where(&mut self, common: &Common, doomed: impl Fn(Key, Value) -> bool) -> usize {
        let slots = 0..self.table.slots();
        self.remove_where(common, slots, |key, value| !value.is_static() && doomed(key, value))
    }

    fn remove_where(
        &mut self,
        common: &Common,
        slots: Range<usize>,
        doomed: impl Fn(Key, Value) -> bool,
    ) -> usize {
        let before = self.table.count();
        let mut entries = slots.clone().filter_map(|slot| self.table.entry(slot));
        if entries.any(|(key, value)| doomed(key, value)) {
            let _change = common.sequence.change();
            let Self { ports, users, changes, .. } = self;
            self.table.retain(slots.clone(), |key, value| {
                let keep = !doomed(key, value);
                if !keep {
                    count_out(ports, users, value);
                    changes.iter_mut().for_each(|it| it.note(key, Some(value), None));
                }
                keep
            });
        }
        if slots.end == self.table.slots() {
            self.table.shrink();
        }
        assert!(self.table.count() <= before, "removing adds nothing");
        before - self.table.count()
    }

    pub(super) fn learned_on(&self, port: PortId) -> u32 {
        self.ports.get(port.index()).map_or(0, |tally| tally.learned)
    }

    fn count_in(&mut self, value: Value) {
        let tally = self.tally(value.port());
        *tally.count_of(value) += 1;
        if let Some(at) = tally.user_of(value) {
            self.users[at] += 1;
        }
    }

    fn count_out(&mut self, value: Value) {
        count_out(&mut self.ports, &mut self.users, value);
    }

    fn tally(&mut self, port: PortId) -> &mut Tally {
        if self.ports.len() <= port.index() {
            self.ports.resize(port.index() + 1, Tally::NONE);
        }
        &mut self.ports[port.index()]
    }
}

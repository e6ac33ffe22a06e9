//! The forwarding database (FDB): which address of which VLAN is behind which port.
//!
//! There are three kinds of entries. The switch *learns* the source of every frame: such an entry
//! is dynamic, follows its station from port to port, and is forgotten when the station was silent
//! for the ageing time. An operator adds *static* entries: they neither move nor age. A routing
//! protocol adds *external* entries: they do not age, but follow a station that is heard on another
//! port, as learned ones, which they are then.
//!
//! - Ageing is exact: an entry seen `ageing_ms` ago is not found, whether or not [`Fdb::age`] has
//!   removed it. `age` looks at a few slots in each call.
//! - The database never holds more addresses than its capacity. A further one replaces a dynamic
//!   one. When little of the memory is used, the database gives memory back.
//! - A port's limit bounds what it can learn, and a user's share what the ports of the user can, so
//!   that they cannot push out the addresses of the others. An expired entry counts until it is
//!   swept.
//! - [`Fdb::generation`] changes whenever a lookup could answer otherwise than before, except
//!   by the mere passing of time.
//!
//! The workers of a switch have one database, a handle each. They look up and refresh without a
//! lock. Where a *sequence counter* tells them that an entry has come, moved or gone meanwhile,
//! they look under the lock ([`ring::shared`]), which such changes take, too. The database of one
//! worker has none.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | keys, values | the worker with the lock; any refreshes | all | Relaxed, within the sequence |
//! | `sequence` | the worker with the lock | all | [`ring::sequence`] |
//! | `ageing_ms` | the worker with the lock | all | Relaxed: it changes with the sequence |
//!
//! Not here: which addresses may be learned at all (the bridge decides), group addresses (flooded,
//! never looked up), and the hash table itself (`table`).

mod entries;
mod log;
mod table;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use packet::{MacAddr, PortId, VlanId, VlanSet};
use ring::sequence::Sequence;
use ring::shared::Shared;

use crate::decide::loops::Loop;
use crate::model::now::Now;
use entries::Entries;
pub use log::{FdbChange, FdbChanges};
use table::{Buckets, Key, Value};

/// The forwarding database of one switch: a worker's handle of it.
pub struct Fdb {
    common: Arc<Common>,
    /// Where the entries were at the last look.
    buckets: Arc<Buckets>,
    entries: Shared<Entries>,
}

/// What workers read without the lock.
struct Common {
    sequence: Sequence,
    ageing_ms: AtomicU64,
}

/// Entries changed during a look, or have moved to other memory.
struct Changing;

/// What the switch did with a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address is new.
    New,
    /// The address was known on this port, and its entry is refreshed.
    Refreshed,
    /// The address was known on another port.
    Moved {
        /// The port that it was on.
        from: PortId,
    },
    /// A static entry names the address, and stays as it is.
    Static,
    /// Not learned: the port has reached its limit.
    PortLimit,
    /// Not learned: all entries at its place and close by are static.
    Full,
}

/// Which learned entries to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush<'a> {
    /// All learned entries.
    All,
    /// Entries of one port.
    Port(PortId),
    /// Entries of these VLANs.
    Vlans(&'a VlanSet),
}

/// What happened to entries since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FdbStats {
    /// Addresses learned that were not known.
    pub learned: u64,
    /// Addresses that changed port.
    pub moved: u64,
    /// Entries forgotten because their station was silent.
    pub aged: u64,
    /// Entries that made room for another.
    pub evicted: u64,
    /// Addresses not learned because of a port's limit.
    pub refused_limit: u64,
    /// Addresses not learned because of static entries in the way.
    pub refused_full: u64,
    /// Seconds in which addresses moved back and forth between two ports.
    pub loop_seconds: u64,
}

/// One entry, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbEntry {
    /// The VLAN.
    pub vlan: VlanId,
    /// The address.
    pub mac: MacAddr,
    /// The port behind which it is.
    pub port: PortId,
    /// Milliseconds since the station was last seen; none for a static entry.
    pub age_ms: Option<u64>,
    /// Whether a routing protocol has added it.
    pub is_external: bool,
}

/// No room for a static entry: the capacity, or all places of the address, are full of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbFull;

impl Fdb {
    /// An empty database that grows until it holds `capacity` addresses. Entries expire after
    /// `ageing_ms`, or never if that is 0. The seed should be random, and differ from run to run.
    pub fn new(capacity: usize, ageing_ms: u64, seed: u64) -> Self {
        let ageing_ms = AtomicU64::new(ageing_ms);
        let common = Arc::new(Common { sequence: Sequence::default(), ageing_ms });
        let entries = Entries::new(capacity, seed);
        let buckets = entries.buckets().clone();
        Self { common, buckets, entries: Shared::sole(entries) }
    }

    /// Puts a lock around the database, so that there may be [other handles](Self::handle).
    pub(crate) fn into_common(self) -> Self {
        Self { entries: self.entries.into_common(), ..self }
    }

    /// Another worker's handle of the same database.
    ///
    /// # Panics
    /// If the database has no lock: see [`Fdb::into_common`].
    pub(crate) fn handle(&self) -> Self {
        let (common, buckets) = (self.common.clone(), self.buckets.clone());
        Self { common, buckets, entries: self.entries.handle() }
    }

    /// Notes that a frame with this source came in by this port.
    #[inline]
    pub fn learn(&mut self, vlan: VlanId, mac: MacAddr, port: PortId, now: Now) -> Learned {
        let key = Key::new(vlan, mac);
        if let Ok(Some(value)) = self.look(key) {
            if value.is_static() {
                return Learned::Static;
            }
            if value.port() == port && !self.common.is_expired(value, now) {
                if !value.is_external() {
                    self.buckets.refresh(key, value, Value::learned(port, now));
                }
                return Learned::Refreshed;
            }
        }
        self.learn_changed(key, port, now)
    }

    /// What [`learn`](Self::learn) would do, unless static entries fill the places of the address.
    pub fn would_learn(&self, vlan: VlanId, mac: MacAddr, port: PortId, now: Now) -> Learned {
        let key = Key::new(vlan, mac);
        self.entries.with(|entries| entries.would_learn(&self.common, key, port, now))
    }

    /// Adds a static entry; it replaces a learned one.
    pub fn add_static(&mut self, vlan: VlanId, mac: MacAddr, port: PortId) -> Result<(), FdbFull> {
        self.change(|entries, common| entries.add_static(common, Key::new(vlan, mac), port))
    }

    /// Adds an external entry; it replaces a learned one, and counts against the port's limit. If
    /// that is reached, a learned entry goes all the same: its station has left.
    pub fn add_external(&mut self, vlan: VlanId, mac: MacAddr, port: PortId) -> Learned {
        self.change(|entries, common| entries.add_external(common, Key::new(vlan, mac), port))
    }

    /// Forgets an address that is on this port, unless its entry is static.
    pub fn remove_external(&mut self, vlan: VlanId, mac: MacAddr, port: PortId) {
        self.change(|entries, common| entries.remove_external(common, Key::new(vlan, mac), port));
    }

    /// Forgets an address, static or not. Returns whether there was an entry.
    pub fn remove(&mut self, vlan: VlanId, mac: MacAddr) -> bool {
        self.change(|entries, common| entries.remove(common, Key::new(vlan, mac)))
    }

    /// Removes expired entries from at most `budget` slots; the next call, of any handle, continues
    /// where this one ends. Returns how many it removed.
    pub fn age(&mut self, now: Now, budget: usize) -> usize {
        self.change(|entries, common| entries.age(common, now, budget))
    }

    /// Forgets learned entries; returns how many. Static and external entries stay.
    pub fn flush(&mut self, what: Flush<'_>) -> usize {
        self.change(|entries, common| entries.flush(common, what))
    }

    /// Forgets the dynamic entries of a port in VLANs that it does not carry.
    pub(crate) fn flush_port_except(
        &mut self,
        port: PortId,
        carries: impl Fn(VlanId) -> bool,
    ) -> usize {
        self.change(|entries, common| entries.flush_port_except(common, port, carries))
    }

    /// Forgets everything about a port: its entries, the static ones too, and its limit.
    pub fn remove_port(&mut self, port: PortId) -> usize {
        self.change(|entries, common| entries.remove_port(common, port))
    }

    /// Bounds the addresses that are learned on a port, and on all ports of its user together: a
    /// quarter of the capacity. Those that it has stay.
    pub fn set_limit(&mut self, port: PortId, limit: Option<u32>, user: Option<u32>) {
        self.change(|entries, _| entries.set_limit(port, limit, user));
    }

    /// Changes the ageing time, at once and for all entries.
    pub fn set_ageing(&mut self, ageing_ms: u64) {
        self.change(|_, common| {
            let _change = common.sequence.change();
            common.ageing_ms.store(ageing_ms, Relaxed);
        });
    }

    /// Changes the capacity. If the database holds more addresses, only static entries stay.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.change(|entries, common| entries.set_capacity(common, capacity));
    }

    /// The port behind which an address is.
    #[inline]
    pub fn lookup(&self, vlan: VlanId, mac: MacAddr, now: Now) -> Option<PortId> {
        self.live(Key::new(vlan, mac), now).map(Value::port)
    }

    /// The entry of an address.
    pub fn find(&self, vlan: VlanId, mac: MacAddr, now: Now) -> Option<FdbEntry> {
        let key = Key::new(vlan, mac);
        self.live(key, now).map(|value| listed(key, value, now))
    }

    /// A number that changes with every change that can alter the result of a look-up, and is odd
    /// during one.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.common.sequence.number()
    }

    /// Lists entries from a cursor on (0 to begin), each with the cursor of the next one, so that a
    /// listing can have pages. A listing may miss entries that are added, removed or moved between
    /// two pages, or show them twice.
    pub fn entries(&self, from: usize, now: Now) -> impl Iterator<Item = (usize, FdbEntry)> + '_ {
        let buckets = self.entries.with(|entries| entries.buckets().clone());
        (from..buckets.slots()).filter_map(move |slot| {
            // An entry that comes or goes now is missed.
            let (key, value) = self.common.sequence.read(|| buckets.entry(slot))??;
            let entry = listed(key, value, now);
            (!self.common.is_expired(value, now)).then_some((slot + 1, entry))
        })
    }

    /// The number of entries, including expired ones that no sweep has removed yet.
    pub fn count(&self) -> usize {
        self.entries.with(Entries::count)
    }

    /// Dynamic entries of a port, counted as in [`count`](Self::count).
    pub fn learned_on(&self, port: PortId) -> u32 {
        self.entries.with(|entries| entries.learned_on(port))
    }

    /// What happened since the start.
    pub fn stats(&self) -> FdbStats {
        self.entries.with(Entries::stats)
    }

    /// The changes since the last call; `None` if there was none. From now on they are kept in
    /// `next`, once for all handles.
    pub fn take_changes(&mut self, next: Option<Box<FdbChanges>>) -> Option<Box<FdbChanges>> {
        self.entries.lock().take_changes(next)
    }

    /// The loop that was seen last.
    pub fn last_loop(&self) -> Option<Loop> {
        self.entries.with(|entries| entries.loops().last())
    }

    /// A loop that was found since the last call, and whether it is to be told of.
    pub(crate) fn take_found_loop(&mut self) -> Option<(Loop, bool)> {
        self.entries.lock().take_found_loop()
    }

    /// The value of a key, if it is there and not expired.
    #[inline]
    fn live(&self, key: Key, now: Now) -> Option<Value> {
        let value = self.look(key).unwrap_or_else(|Changing| self.look_locked(key))?;
        (!self.common.is_expired(value, now)).then_some(value)
    }

    /// The value of a key, if it is there.
    #[inline]
    fn look(&self, key: Key) -> Result<Option<Value>, Changing> {
        let look = || (self.buckets.get(key), self.buckets.is_left());
        match self.common.sequence.read(look) {
            Some((value, false)) => Ok(value),
            _ => Err(Changing),
        }
    }

    #[cold]
    fn look_locked(&self, key: Key) -> Option<Value> {
        self.entries.with(|entries| entries.buckets().get(key))
    }

    #[cold]
    fn learn_changed(&mut self, key: Key, port: PortId, now: Now) -> Learned {
        self.change(|entries, common| entries.learn(common, key, port, now))
    }

    /// Changes entries, and looks where they are after that.
    fn change<R>(&mut self, change: impl FnOnce(&mut Entries, &Common) -> R) -> R {
        let mut entries = self.entries.lock();
        let result = change(&mut entries, &self.common);
        if self.buckets.is_left() {
            self.buckets = entries.buckets().clone();
        }
        result
    }
}

impl Common {
    /// Whether an entry is too old to be used.
    #[inline]
    fn is_expired(&self, value: Value, now: Now) -> bool {
        let ageing_ms = self.ageing_ms.load(Relaxed);
        ageing_ms != 0 && !value.is_static() && now.ms_since(value.seen()) >= ageing_ms
    }
}

fn listed(key: Key, value: Value, now: Now) -> FdbEntry {
    let age_ms = (!value.is_static()).then(|| now.ms_since(value.seen()));
    let is_external = value.is_external();
    FdbEntry { vlan: key.vlan(), mac: key.mac(), port: value.port(), age_ms, is_external }
}

#[cfg(test)]
mod tests;

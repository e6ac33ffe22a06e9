//! The forwarding database (FDB): which address of which VLAN is behind which port.
//!
//! There are two kinds of entries. The switch *learns* the source of every frame: such an entry is
//! dynamic, follows its station from port to port, and is forgotten when the station was silent for
//! the ageing time. An operator adds *static* entries: they neither move nor age.
//!
//! - Ageing is exact: an entry seen `ageing_ms` ago is not found, whether or not [`Fdb::age`] has
//!   removed it. `age` looks at a few slots in each call.
//! - The database never holds more addresses than its capacity. A further one replaces a dynamic
//!   one. When little of the memory is used, the database gives memory back.
//! - A port's limit bounds what it can learn, so that one port cannot push out the addresses of
//!   the others. An expired entry counts against the limit until it is swept.
//! - [`Fdb::generation`] changes whenever a lookup could answer otherwise than before, except
//!   by the mere passing of time.
//!
//! Not here: which addresses may be learned at all (the bridge decides), group addresses (flooded,
//! never looked up), and the hash table itself (`table`).

mod table;

use packet::{MacAddr, PortId, VlanId};

use crate::decide::loops::{Loop, LoopDetector};
use crate::model::now::Now;
use table::{Key, Table, Value};

/// The forwarding database of one switch.
pub struct Fdb {
    table: Table,
    ports: Vec<Tally>,
    ageing_ms: u64,
    /// The slot where the next sweep begins.
    sweep: usize,
    generation: u64,
    stats: FdbStats,
    loops: LoopDetector,
}

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

/// Which dynamic entries to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// All dynamic entries.
    All,
    /// Entries of one port.
    Port(PortId),
    /// Entries of one VLAN.
    Vlan(VlanId),
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
}

/// No room for a static entry: the capacity, or all places of the address, are full of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdbFull;

/// The entries of one port.
#[derive(Clone, Copy)]
struct Tally {
    learned: u32,
    fixed: u32,
    limit: u32,
}

impl Tally {
    const NONE: Self = Self { learned: 0, fixed: 0, limit: u32::MAX };

    fn count_of(&mut self, value: Value) -> &mut u32 {
        if value.is_static() { &mut self.fixed } else { &mut self.learned }
    }
}

impl Fdb {
    /// An empty database that grows until it holds `capacity` addresses. Entries expire after
    /// `ageing_ms`, or never if that is 0. The seed should be random, and differ from run to run.
    pub fn new(capacity: usize, ageing_ms: u64, seed: u64) -> Self {
        Self {
            table: Table::new(capacity, seed),
            ports: Vec::new(),
            ageing_ms,
            sweep: 0,
            generation: 0,
            stats: FdbStats::default(),
            loops: LoopDetector::default(),
        }
    }

    /// Notes that a frame with this source came in by this port.
    #[inline]
    pub fn learn(&mut self, vlan: VlanId, mac: MacAddr, port: PortId, now: Now) -> Learned {
        let key = Key::new(vlan, mac);
        let ageing_ms = self.ageing_ms;
        let Some(value) = self.table.get_mut(key) else {
            return self.learn_new(key, port, now);
        };
        if value.is_static() {
            return Learned::Static;
        }
        if value.port() == port && !is_expired(*value, ageing_ms, now) {
            *value = Value::learned(port, now);
            return Learned::Refreshed;
        }
        let old = *value;
        self.relearn(key, old, port, now)
    }

    /// Adds a static entry; it replaces a learned one.
    pub fn add_static(&mut self, vlan: VlanId, mac: MacAddr, port: PortId) -> Result<(), FdbFull> {
        let key = Key::new(vlan, mac);
        let fixed = Value::fixed(port);
        match self.table.get_mut(key) {
            Some(value) => {
                let old = std::mem::replace(value, fixed);
                self.count_out(old);
                self.count_in(fixed);
                Ok(())
            }
            None => self.insert(key, fixed),
        }
    }

    /// Forgets an address, static or not. Returns whether there was an entry.
    pub fn remove(&mut self, vlan: VlanId, mac: MacAddr) -> bool {
        let removed = self.table.remove(Key::new(vlan, mac));
        removed.map(|value| self.count_out(value)).is_some()
    }

    /// Removes expired entries from at most `budget` slots; the next call continues where this one
    /// ends. Returns how many it removed.
    pub fn age(&mut self, now: Now, budget: usize) -> usize {
        let slots = self.table.slots();
        let start = self.sweep.min(slots);
        let end = slots.min(start.saturating_add(budget));
        assert!(start <= end && end <= slots, "a sweep stays in the table");
        self.sweep = if end == slots { 0 } else { end };
        let ageing_ms = self.ageing_ms;
        let expired = self.remove_where(start..end, |_, value| is_expired(value, ageing_ms, now));
        self.stats.aged += u64::try_from(expired).unwrap_or(u64::MAX);
        expired
    }

    /// Forgets dynamic entries; returns how many. Static entries stay.
    pub fn flush(&mut self, what: Flush) -> usize {
        match what {
            Flush::All => self.flush_where(|_, _| true),
            Flush::Port(port) => self.flush_port_except(port, |_| false),
            Flush::Vlan(vlan) => self.flush_where(|key, _| key.vlan() == vlan),
        }
    }

    /// Forgets the dynamic entries of a port in VLANs that it does not carry.
    pub(crate) fn flush_port_except(
        &mut self,
        port: PortId,
        carries: impl Fn(VlanId) -> bool,
    ) -> usize {
        if self.learned_on(port) == 0 {
            return 0;
        }
        self.flush_where(|key, value| value.port() == port && !carries(key.vlan()))
    }

    /// Forgets everything about a port: its entries, the static ones too, and its limit.
    pub fn remove_port(&mut self, port: PortId) -> usize {
        let Some(&Tally { learned, fixed, .. }) = self.ports.get(port.index()) else {
            return 0;
        };
        let removed = match learned + fixed {
            0 => 0,
            _ => self.remove_where(0..self.table.slots(), |_, value| value.port() == port),
        };
        self.ports[port.index()] = Tally::NONE;
        removed
    }

    /// Bounds the addresses that are learned on a port. Those that it has stay.
    pub fn set_limit(&mut self, port: PortId, limit: Option<u32>) {
        self.tally(port).limit = limit.unwrap_or(u32::MAX);
    }

    /// Changes the ageing time, at once and for all entries.
    pub fn set_ageing(&mut self, ageing_ms: u64) {
        self.ageing_ms = ageing_ms;
        self.generation += 1;
    }

    /// Changes the capacity. If the database holds more addresses, only static entries stay.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.table.set_capacity(capacity);
        if self.table.count() > self.table.capacity() {
            self.flush(Flush::All);
        }
    }

    /// The port behind which an address is.
    #[inline]
    pub fn lookup(&self, vlan: VlanId, mac: MacAddr, now: Now) -> Option<PortId> {
        let value = self.table.get(Key::new(vlan, mac))?;
        (!is_expired(value, self.ageing_ms, now)).then(|| value.port())
    }

    /// A number that changes with every change that can alter the result of a look-up.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Lists entries from a cursor on (0 to begin), each with the cursor of the next one, so that a
    /// listing can have pages. A listing may miss entries that are added, removed or moved between
    /// two pages, or show them twice.
    pub fn entries(&self, from: usize, now: Now) -> impl Iterator<Item = (usize, FdbEntry)> + '_ {
        (from..self.table.slots()).filter_map(move |slot| {
            let (key, value) = self.table.entry(slot)?;
            let entry = listed(key, value, now);
            (!is_expired(value, self.ageing_ms, now)).then_some((slot + 1, entry))
        })
    }

    /// The number of entries, including expired ones that no sweep has removed yet.
    pub fn count(&self) -> usize {
        self.table.count()
    }

    /// Dynamic entries of a port, counted as in [`count`](Self::count).
    pub fn learned_on(&self, port: PortId) -> u32 {
        self.ports.get(port.index()).map_or(0, |tally| tally.learned)
    }

    /// What happened since the start.
    pub fn stats(&self) -> FdbStats {
        FdbStats { loop_seconds: self.loops.intervals(), ..self.stats }
    }

    /// The loop that was seen last.
    pub fn last_loop(&self) -> Option<Loop> {
        self.loops.last()
    }

    /// A loop that was found since the last call, and whether it is new.
    pub(crate) fn take_found_loop(&mut self) -> Option<(Loop, bool)> {
        self.loops.take_found()
    }

    #[cold]
    fn learn_new(&mut self, key: Key, port: PortId, now: Now) -> Learned {
        if self.is_at_limit(port) {
            return self.refuse_limit();
        }
        match self.insert(key, Value::learned(port, now)) {
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
    #[cold]
    fn relearn(&mut self, key: Key, old: Value, port: PortId, now: Now) -> Learned {
        if is_expired(old, self.ageing_ms, now) {
            self.table.remove(key);
            self.count_out(old);
            self.stats.aged += 1;
            return self.learn_new(key, port, now);
        }
        if self.is_at_limit(port) {
            return self.refuse_limit();
        }
        let new = Value::learned(port, now);
        *self.table.get_mut(key).expect("the entry was just found") = new;
        self.count_out(old);
        self.count_in(new);
        self.stats.moved += 1;
        self.loops.count(key.mac(), key.vlan(), [old.port(), port], now);
        Learned::Moved { from: old.port() }
    }

    fn refuse_limit(&mut self) -> Learned {
        self.stats.refused_limit += 1;
        Learned::PortLimit
    }

    fn is_at_limit(&mut self, port: PortId) -> bool {
        let tally = self.tally(port);
        tally.learned >= tally.limit
    }

    fn insert(&mut self, key: Key, value: Value) -> Result<(), FdbFull> {
        let evicted = self.table.insert(key, value).map_err(|table::Full| FdbFull)?;
        if let Some(old) = evicted {
            self.count_out(old);
            self.stats.evicted += 1;
        }
        self.count_in(value);
        Ok(())
    }

    fn flush_where(&mut self, mut doomed: impl FnMut(Key, Value) -> bool) -> usize {
        let slots = 0..self.table.slots();
        self.remove_where(slots, |key, value| !value.is_static() && doomed(key, value))
    }

    fn remove_where(
        &mut self,
        slots: std::ops::Range<usize>,
        mut doomed: impl FnMut(Key, Value) -> bool,
    ) -> usize {
        let before = self.table.count();
        let ports = &mut self.ports;
        self.table.retain(slots.clone(), |key, value| {
            let keep = !doomed(key, value);
            if !keep {
                *ports[value.port().index()].count_of(value) -= 1;
            }
            keep
        });
        if slots.end == self.table.slots() {
            self.table.shrink();
        }
        assert!(self.table.count() <= before, "removing adds nothing");
        let removed = before - self.table.count();
        self.generation += u64::from(removed > 0);
        removed
    }

    /// Counts a new entry, and invalidates cached verdicts.
    fn count_in(&mut self, value: Value) {
        *self.tally(value.port()).count_of(value) += 1;
        self.generation += 1;
    }

    /// Takes an entry off the counts, and invalidates cached verdicts.
    fn count_out(&mut self, value: Value) {
        let count = self.tally(value.port()).count_of(value);
        assert!(*count > 0, "an entry is counted as long as it is there");
        *count -= 1;
        self.generation += 1;
    }

    fn tally(&mut self, port: PortId) -> &mut Tally {
        if self.ports.len() <= port.index() {
            self.ports.resize(port.index() + 1, Tally::NONE);
        }
        &mut self.ports[port.index()]
    }
}

fn listed(key: Key, value: Value, now: Now) -> FdbEntry {
    let age_ms = (!value.is_static()).then(|| now.ms_since(value.seen()));
    FdbEntry { vlan: key.vlan(), mac: key.mac(), port: value.port(), age_ms }
}

/// Whether an entry is too old to be used.
#[inline]
fn is_expired(value: Value, ageing_ms: u64, now: Now) -> bool {
    ageing_ms != 0 && !value.is_static() && now.ms_since(value.seen()) >= ageing_ms
}

#[cfg(test)]
mod tests;

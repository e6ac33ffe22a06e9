//! The hash table under the forwarding database.
//!
//! A bucket is one cache line with four entries. A key has two buckets; nearly all keys sit in
//! the first, so a hit costs one cache line and a miss two. Deleting leaves no tombstone.
//!
//! ```text
//!  bucket (64 bytes)   key key key key │ value value value value
//!  key                 vlan:12 mac:48            never 0: VLANs start at 1, 0 is a free entry
//!  value               seen:51 static:1 port:12  seen is in milliseconds; all ones: external
//! ```
//!
//! An insertion that finds both buckets full moves one of the eight entries to its other bucket.
//! The table doubles when it is half full, up to its capacity; below half load two buckets and one
//! such move have always been enough (see the tests). A full table makes room for one more by
//! giving up a dynamic entry: of the two buckets the one seen longest ago, else one close by. A
//! table of which little is used is rebuilt smaller after a sweep over all of it.
//!
//! One thread at a time changes the table ([`Table`]), while others read it ([`Buckets`]): what
//! they find is of one moment if the sequence counter of the database says so. A table that moves
//! to other memory leaves a mark in the old one, which readers then let go.
//!
//! The hash is a multiplication, folded, twice, by an odd number drawn from the caller's seed: a
//! client that does not know the seed cannot choose addresses that collide. Folding once is not
//! enough: stations often have consecutive addresses, and with one seed in ten a table of such
//! addresses then overflows at half load. Folded twice, they spread as random addresses do.

use std::iter;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use packet::hash::folded_multiply;
use packet::{MacAddr, PortId, VlanId};

use crate::model::config::FDB_CAPACITY_MAX;
use crate::model::now::Now;

/// What is looked up: an address in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    const FREE: Self = Self(0);

    #[inline]
    pub(super) fn new(vlan: VlanId, mac: MacAddr) -> Self {
        debug_assert!(mac.as_u64() >> 48 == 0, "an address has 48 bits");
        Self(u64::from(vlan.get()) << 48 | mac.as_u64())
    }

    pub(super) fn vlan(self) -> VlanId {
        let number = (self.0 >> 48 & 0xfff) as u16;
        VlanId::new(number).expect("a key is made of a VLAN")
    }

    pub(super) fn mac(self) -> MacAddr {
        MacAddr::from_u64(self.0)
    }
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(u64);

impl Value {
    const FREE: Self = Self(0);
    const STATIC: u64 = 1 << 12;
    const SEEN_SHIFT: u32 = 13;
    /// Later than any moment: see [`Value::external`].
    const EVER: u64 = u64::MAX << Self::SEEN_SHIFT;

    /// An address learned on `port` at `now`.
    #[inline]
    pub(super) fn learned(port: PortId, now: Now) -> Self {
        debug_assert!(now.as_ms() >> (64 - Self::SEEN_SHIFT) == 0, "71 000 years");
        Self(now.as_ms() << Self::SEEN_SHIFT | u64::from(port.number()))
    }

    /// An address that a routing protocol put on `port`: as if the station were heard for ever.
    pub(super) fn external(port: PortId) -> Self {
        Self(Self::EVER | u64::from(port.number()))
    }

    /// An address that the operator put on `port`.
    pub(super) fn fixed(port: PortId) -> Self {
        Self(Self::STATIC | u64::from(port.number()))
    }

    #[inline]
    pub(super) fn port(self) -> PortId {
        PortId::from_low_bits(self.0)
    }

    #[inline]
    pub(super) fn is_static(self) -> bool {
        self.0 & Self::STATIC != 0
    }

    #[inline]
    pub(super) fn is_external(self) -> bool {
        self.0 & Self::EVER == Self::EVER
    }

    #[inline]
    pub(super) fn seen(self) -> Now {
        Now::from_ms(self.0 >> Self::SEEN_SHIFT)
    }
}

/// No entry of the two buckets can make room: all are static.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// An address with what is known of it.
type Entry = (Key, Value);

/// Where an entry is.
#[derive(Clone, Copy)]
struct Place {
    bucket: usize,
    slot: usize,
}

/// Four entries, of which one thread changes what others read. Relaxed: the sequence counter of the
/// database orders them.
#[repr(C, align(64))]
#[derive(Default)]
struct Bucket {
    keys: [AtomicU64; WAYS],
    values: [AtomicU64; WAYS],
}

impl Bucket {
    #[inline]
    fn find(&self, key: Key) -> Option<usize> {
        self.keys.iter().position(|other| other.load(Relaxed) == key.0)
    }
}

/// The memory of a table, as threads without its lock see it.
pub(super) struct Buckets {
    /// A power of two.
    buckets: Box<[Bucket]>,
    multiplier: u64,
    /// The table has moved to other memory.
    is_left: AtomicBool,
}

impl Buckets {
    fn new(buckets: usize, multiplier: u64) -> Self {
        assert!(buckets.is_power_of_two() && buckets >= MIN_BUCKETS, "buckets are found by a mask");
        assert!(multiplier & 1 == 1, "an odd factor loses no bit");
        let buckets = iter::repeat_with(Bucket::default).take(buckets).collect();
        Self { buckets, multiplier, is_left: AtomicBool::new(false) }
    }

    /// Whether the table has moved to other memory, so that nothing changes here any more.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Relaxed)
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<Value> {
        self.find(key).map(|place| self.value(place))
    }

    /// Writes a newer value of the same port into an entry, unless the entry has changed. At worst
    /// another address has taken its slot, with the same value: that one is refreshed, which the
    /// same port has sent in the same millisecond.
    #[inline]
    pub(super) fn refresh(&self, key: Key, old: Value, new: Value) {
        debug_assert!(old.port() == new.port() && old.is_static() == new.is_static());
        if old != new
            && let Some(place) = self.find(key)
        {
            let value = &self.buckets[place.bucket].values[place.slot];
            let _ = value.compare_exchange(old.0, new.0, Relaxed, Relaxed);
        }
    }

    /// The entry in a slot.
    pub(super) fn entry(&self, slot: usize) -> Option<(Key, Value)> {
        let place = Place { bucket: slot / WAYS, slot: slot % WAYS };
        let key = self.key(place);
        (key != Key::FREE).then(|| (key, self.value(place)))
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.buckets.len() * WAYS
    }

    #[inline]
    fn find(&self, key: Key) -> Option<Place> {
        let hash = self.hash(key);
        let bucket = self.first(hash);
        if let Some(slot) = self.buckets[bucket].find(key) {
            return Some(Place { bucket, slot });
        }
        let bucket = self.second(hash);
        self.buckets[bucket].find(key).map(|slot| Place { bucket, slot })
    }

    #[inline]
    fn hash(&self, key: Key) -> u64 {
        folded_multiply(folded_multiply(key.0, self.multiplier), self.multiplier)
    }

    #[inline]
    fn first(&self, hash: u64) -> usize {
        self.masked(hash)
    }

    /// The other bucket of a hash. The lowest bit is set in the difference: never the first again.
    #[inline]
    fn second(&self, hash: u64) -> usize {
        self.first(hash) ^ (self.masked(hash >> 32) | 1)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "the low bits of a hash are what is wanted")]
    fn masked(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn pair(&self, key: Key) -> [usize; 2] {
        let hash = self.hash(key);
        [self.first(hash), self.second(hash)]
    }

    fn key(&self, place: Place) -> Key {
        Key(self.buckets[place.bucket].keys[place.slot].load(Relaxed))
    }

    fn value(&self, place: Place) -> Value {
        Value(self.buckets[place.bucket].values[place.slot].load(Relaxed))
    }

    fn put(&self, place: Place, key: Key, value: Value) {
        debug_assert!(!self.is_left(), "readers have let go of this memory");
        let bucket = &self.buckets[place.bucket];
        bucket.keys[place.slot].store(key.0, Relaxed);
        bucket.values[place.slot].store(value.0, Relaxed);
    }
}

/// The table, for the thread that may change it.
pub(super) struct Table {
    buckets: Arc<Buckets>,
    /// Most entries.
    capacity: usize,
    count: usize,
}

impl Table {
    /// An empty table that grows until it holds `capacity` entries.
    pub(super) fn new(capacity: usize, seed: u64) -> Self {
        let buckets = Arc::new(Buckets::new(MIN_BUCKETS, mix(seed) | 1));
        Self { buckets, capacity: capacity.min(FDB_CAPACITY_MAX), count: 0 }
    }

    /// Where the entries are now, to read.
    pub(super) fn buckets(&self) -> &Arc<Buckets> {
        &self.buckets
    }

    /// Changes how many entries the table may hold. If it has more, each insertion gives up another
    /// entry until some are removed.
    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.min(FDB_CAPACITY_MAX);
    }

    /// How many entries the table may hold.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Inserts a key that is not in the table. Returns the entry that had to make room, if any.
    pub(super) fn insert(&mut self, key: Key, value: Value) -> Result<Option<Entry>, Full> {
        debug_assert!(key != Key::FREE && self.get(key).is_none());
        if self.count >= self.capacity {
            return self.insert_for_another(key, value).map(Some);
        }
        if self.count * 2 >= self.slots() {
            self.grow();
        }
        while !self.try_insert(key, value) {
            if !self.grow() {
                return self.replace_oldest(key, value).map(Some);
            }
        }
        Ok(None)
    }

    /// If less than an eighth of the memory is used, rebuilds the table at a quarter of its size.
    pub(super) fn shrink(&mut self) {
        let fitting = buckets_for(self.count * 2);
        if self.count * 8 < self.slots()
            && fitting < self.buckets.buckets.len()
            && let Some(smaller) = self.rebuilt(fitting)
        {
            self.move_to(smaller);
        }
    }

    /// Gives a key that is in the table another value.
    pub(super) fn set(&mut self, key: Key, value: Value) {
        let place = self.find(key).expect("the key is there");
        self.put(place, key, value);
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: Key) -> Option<Value> {
        let place = self.find(key)?;
        Some(self.free(place))
    }

    /// Removes the entries of a range of slots for which `keep` says no.
    pub(super) fn retain(&mut self, slots: Range<usize>, mut keep: impl FnMut(Key, Value) -> bool) {
        for slot in slots {
            let place = Place { bucket: slot / WAYS, slot: slot % WAYS };
            if self.entry(slot).is_some_and(|(key, value)| !keep(key, value)) {
                self.free(place);
            }
        }
    }

    /// The number of entries.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Inserts if one of the two buckets has room, or can get it by one move.
    fn try_insert(&mut self, key: Key, value: Value) -> bool {
        let pair = self.pair(key);
        let Some(place) = self.room_in(pair).or_else(|| self.make_room(pair)) else {
            return false;
        };
        assert!(self.key(place) == Key::FREE, "a new entry takes a free slot");
        self.put(place, key, value);
        self.count += 1;
        true
    }

    fn room_in(&self, buckets: [usize; 2]) -> Option<Place> {
        buckets.into_iter().find_map(|bucket| self.room(bucket))
    }

    fn room(&self, bucket: usize) -> Option<Place> {
        self.buckets.buckets[bucket].find(Key::FREE).map(|slot| Place { bucket, slot })
    }

    /// Moves an entry of these full buckets to its other bucket.
    fn make_room(&mut self, buckets: [usize; 2]) -> Option<Place> {
        let (from, to) = places(buckets).find_map(|from| {
            let pair = self.pair(self.key(from));
            self.room_in(pair).map(|to| (from, to))
        })?;
        assert!(to.bucket != from.bucket, "an entry moves to its other bucket");
        self.put(to, self.key(from), self.value(from));
        self.put(from, Key::FREE, Value::FREE);
        Some(from)
    }

    /// Inserts into a table that holds as many entries as it may.
    fn insert_for_another(&mut self, key: Key, value: Value) -> Result<Entry, Full> {
        if let Ok(old) = self.replace_oldest(key, value) {
            return Ok(old);
        }
        let pair = self.pair(key);
        if self.room_in(pair).is_none() {
            return Err(Full);
        }
        let buckets = self.buckets.buckets.len();
        let close = (0..buckets.min(CLOSE)).map(|i| (pair[0] + i) % buckets);
        let victim = close.flat_map(places_of).find(|&place| self.is_dynamic(place)).ok_or(Full)?;
        let old = (self.key(victim), self.free(victim));
        let inserted = self.try_insert(key, value);
        assert!(inserted, "there was room");
        Ok(old)
    }

    /// Replaces a dynamic entry of its two buckets.
    fn replace_oldest(&mut self, key: Key, value: Value) -> Result<Entry, Full> {
        let dynamic = places(self.pair(key)).filter(|&place| self.is_dynamic(place));
        let place = dynamic.min_by_key(|&place| self.value(place).seen()).ok_or(Full)?;
        let old = (self.key(place), self.value(place));
        self.put(place, key, value);
        Ok(old)
    }

    fn is_dynamic(&self, place: Place) -> bool {
        self.key(place) != Key::FREE && !self.value(place).is_static()
    }

    /// Moves all entries to a table at least twice as large. `false` at the largest size.
    fn grow(&mut self) -> bool {
        let largest = buckets_for(self.capacity);
        let larger = iter::successors(Some(self.buckets.buckets.len() * 2), |size| Some(size * 2));
        let grown = larger.take_while(|&size| size <= largest).find_map(|size| self.rebuilt(size));
        grown.map(|table| self.move_to(table)).is_some()
    }

    fn rebuilt(&self, buckets: usize) -> Option<Self> {
        let buckets = Arc::new(Buckets::new(buckets, self.multiplier));
        let mut table = Self { buckets, capacity: self.capacity, count: 0 };
        let mut entries = (0..self.slots()).filter_map(|slot| self.entry(slot));
        entries.all(|(key, value)| table.try_insert(key, value)).then_some(table)
    }

    /// Uses the memory of another table with the same entries.
    fn move_to(&mut self, other: Self) {
        assert!(other.count == self.count, "a rebuilt table holds every entry");
        let old = std::mem::replace(self, other);
        old.buckets.is_left.store(true, Relaxed);
    }

    fn free(&mut self, place: Place) -> Value {
        let value = self.value(place);
        assert!(self.key(place) != Key::FREE && self.count > 0, "a free slot holds no entry");
        self.put(place, Key::FREE, Value::FREE);
        self.count -= 1;
        value
    }
}

impl Deref for Table {
    type Target = Buckets;

    fn deref(&self) -> &Buckets {
        &self.buckets
    }
}

fn places(buckets: [usize; 2]) -> impl Iterator<Item = Place> {
    buckets.into_iter().flat_map(places_of)
}

fn places_of(bucket: usize) -> impl Iterator<Item = Place> {
    (0..WAYS).map(move |slot| Place { bucket, slot })
}

/// Buckets of a table that is at most half full with this many entries.
fn buckets_for(capacity: usize) -> usize {
    let slots = capacity.min(FDB_CAPACITY_MAX) * 2;
    slots.div_ceil(WAYS).next_power_of_two().max(MIN_BUCKETS)
}

/// Spreads the bits of a seed (the finalizer of SplitMix64), so that seed 1 is as good as any.
fn mix(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let seed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ seed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ seed >> 31
}

/// Entries of a bucket.
const WAYS: usize = 4;
/// A new table: 1 KiB, room for 32 stations.
const MIN_BUCKETS: usize = 16;
/// How far from its own buckets a new entry looks for one that can make room.
const CLOSE: usize = 64;

const _: () = assert!(size_of::<Bucket>() == 64 && align_of::<Bucket>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        let vlan = VlanId::DEFAULT;
        let octets = u32::try_from(number).unwrap().to_be_bytes();
        Key::new(vlan, MacAddr::new([2, 0, octets[0], octets[1], octets[2], octets[3]]))
    }

    fn port(index: usize) -> PortId {
        PortId::new(index).unwrap()
    }

    #[test]
    fn test_packing_keeps_everything() {
        let mac = MacAddr::new([0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let vlan = VlanId::new(4094).unwrap();
        let key = Key::new(vlan, mac);
        assert_eq!((key.vlan(), key.mac()), (vlan, mac));
        let value = Value::learned(port(4095), Now::from_ms((1 << 51) - 1));
        assert_eq!((value.port().index(), value.seen().as_ms()), (4095, (1 << 51) - 1));
        assert!(!value.is_static() && Value::fixed(port(0)).is_static());
    }

    /// The promise of the capacity: sequential addresses, as generators make them, under many
    /// seeds, and nothing is pushed out.
    #[test]
    fn test_table_holds_its_capacity_without_eviction() {
        for seed in 0..8 {
            let mut table = Table::new(65_536, seed);
            for number in 0..65_536 {
                let value = Value::learned(port(0), Now::START);
                assert_eq!(table.insert(key(number), value), Ok(None), "seed {seed}");
            }
            assert_eq!(table.count(), 65_536);
            assert!(table.buckets.buckets.len() * size_of::<Bucket>() <= 2 << 20);
            assert!((0..65_536).all(|number| table.get(key(number)).is_some()));
        }
    }

    #[test]
    fn test_most_keys_sit_in_their_first_bucket() {
        let mut table = Table::new(65_536, 1);
        for number in 0..65_536 {
            table.insert(key(number), Value::fixed(port(0))).unwrap();
        }
        let at_home = |number: &usize| {
            let first = table.first(table.hash(key(*number)));
            table.buckets.buckets[first].find(key(*number)).is_some()
        };
        assert!((0..65_536).filter(at_home).count() > 65_536 * 9 / 10);
    }

    #[test]
    fn test_full_table_replaces_the_entry_seen_longest_ago() {
        let mut table = Table::new(32, 1);
        let slots = table.slots();
        let mut evicted = Vec::new();
        for number in 0..slots * 2 {
            let seen = Now::from_ms(u64::try_from(number).unwrap());
            evicted.extend(table.insert(key(number), Value::learned(port(0), seen)).unwrap());
        }
        assert_eq!((table.count(), evicted.len()), (32, slots * 2 - 32));
        let age_sum: u64 = evicted.iter().map(|(_, value)| value.seen().as_ms()).sum();
        let mean = age_sum / u64::try_from(evicted.len()).unwrap();
        assert!(mean < u64::try_from(slots).unwrap(), "evicted entries were young: mean {mean}");
    }

    #[test]
    fn test_table_full_of_static_entries_refuses() {
        let mut table = Table::new(1, 1);
        let full = (0..10_000).find(|n| table.insert(key(*n), Value::fixed(port(0))).is_err());
        assert_eq!((full, table.count()), (Some(1), 1));
    }

    #[test]
    fn test_small_capacities_are_exact() {
        for capacity in [0, 1, 2, 7, 33, 1000] {
            let mut table = Table::new(capacity, 3);
            for number in 0..3000 {
                let seen = Now::from_ms(u64::try_from(number).unwrap());
                let inserted = table.insert(key(number), Value::learned(port(0), seen));
                assert_eq!(inserted.is_err(), capacity == 0);
                assert_eq!(table.count(), capacity.min(number + 1));
            }
        }
    }

    #[test]
    fn test_one_dynamic_entry_among_static_ones_makes_room() {
        let mut table = Table::new(20, 1);
        for number in 0..19 {
            table.insert(key(number), Value::fixed(port(0))).unwrap();
        }
        let learned = |seen| Value::learned(port(1), Now::from_ms(seen));
        table.insert(key(100), learned(0)).unwrap();
        for number in 101..200 {
            let old = table.insert(key(number), learned(1)).unwrap();
            assert!(old.is_some_and(|(_, old)| !old.is_static()));
            assert_eq!(table.count(), 20);
        }
        assert!((0..19).all(|number| table.get(key(number)).is_some()));
    }

    #[test]
    fn test_emptied_table_gives_its_memory_back() {
        let mut table = Table::new(65_536, 1);
        for number in 0..60_000 {
            table.insert(key(number), Value::learned(port(0), Now::START)).unwrap();
        }
        let large = table.slots();
        table.shrink();
        assert_eq!(table.slots(), large, "it is used");
        for number in 100..60_000 {
            table.remove(key(number)).unwrap();
        }
        table.shrink();
        assert!(table.slots() <= 1024, "{} slots for 100 entries", table.slots());
        assert!((0..100).all(|number| table.get(key(number)).is_some()));
        (0..100).for_each(|number| assert!(table.remove(key(number)).is_some()));
        table.shrink();
        assert_eq!(table.slots(), MIN_BUCKETS * WAYS);
    }

    #[test]
    fn test_removed_key_leaves_no_trace() {
        let mut table = Table::new(32, 1);
        table.insert(key(1), Value::fixed(port(7))).unwrap();
        assert_eq!(table.remove(key(1)), Some(Value::fixed(port(7))));
        assert_eq!((table.get(key(1)), table.count()), (None, 0));
        assert_eq!(table.remove(key(1)), None);
    }
}

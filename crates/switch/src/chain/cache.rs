//! The flow cache: the rule that an earlier frame of a flow has found.
//!
//! ```text
//!   hash ──► set ──► a cache line of 32 tags ──► an entry, a cache line
//! ```
//!
//! # Theory of operation
//!
//! There are twice as many places as flows, and a set has 32 of them, so a set is hardly ever full.
//! A new flow takes a free place of its set, or the place of the flow that was silent longest. The
//! table never grows and never fills up. A change of rules or chains starts a new epoch, which
//! invalidates all entries at once.
//!
//! The tags show where to look, so a frame costs one cache line of tags and one of its entry. The
//! kernel commits memory when flows use it, in huge pages where the table is large. When all flows
//! are silent, the cache gives its memory back.

use ring::table::{HugeTable, lanes};

use packet::flow::{FlowKey, WORDS};

/// Places of a set: as many as a cache line has tags.
const WAYS: usize = 32;
/// Words in a line of tags: four tags each.
const TAGS: usize = WAYS / 4;
/// Most flows.
pub const FLOWS_MAX: usize = 1 << 20;

/// What is known of a flow, in the last word of its entry: when it was seen last, in milliseconds
/// that wrap after 49 days; the epoch of the tables when it was entered, 0 in an empty entry; and
/// what was found.
#[derive(Clone, Copy)]
struct Note {
    seen: u32,
    epoch: u16,
    found: u16,
}

#[allow(clippy::cast_possible_truncation)] // reason: takes a word apart.
impl Note {
    fn of(word: u64) -> Self {
        Self { seen: word as u32, epoch: (word >> 32) as u16, found: (word >> 48) as u16 }
    }

    fn word(self) -> u64 {
        u64::from(self.seen) | u64::from(self.epoch) << 32 | u64::from(self.found) << 48
    }
}

/// Words in an entry: the flow, and its note.
const ENTRY: usize = WORDS + 1;
const _: () = assert!(ENTRY * size_of::<u64>() == 64, "a cache line");

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Frames whose flow was in the cache.
    pub hits: u64,
    /// Frames whose flow had to be looked up in the rules.
    pub misses: u64,
    /// Flows that made room for others while they were live.
    pub evicted: u64,
}

/// A flow to look up.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    pub(super) key: FlowKey,
    pub(super) hash: u32,
    /// The set in which it may be.
    place: usize,
}

impl Flow {
    /// A flow with this key, which has this hash.
    #[inline]
    #[must_use]
    pub fn new(key: FlowKey, hash: u32) -> Self {
        Self { key, hash, place: 0 }
    }
}

/// Maps a table of this many words, all zero. The caller of the switch hands this in, because the
/// switch itself makes no system call.
pub type MapTable = fn(words: usize) -> HugeTable;

/// The flows.
pub struct FlowCache {
    map: MapTable,
    /// Entry after entry.
    words: HugeTable,
    /// A line of tags for each set; 0 where nothing was ever entered.
    tags: HugeTable,
    capacity: usize,
    epoch: u16,
    /// A flow is forgotten when it was silent for so long.
    idle_ms: u32,
    /// Something was entered.
    is_used: bool,
    /// The number of look-ups at the last check, and when it changed.
    asked: (u64, u32),
    /// Counters.
    pub stats: CacheStats,
}

impl FlowCache {
    /// Room for `flows`, rounded up.
    #[must_use]
    pub fn new(flows: usize, idle_ms: u32, map: MapTable) -> Self {
        assert!(idle_ms > 0, "a flow lives for a while");
        let sets = (2 * flows.min(FLOWS_MAX)).div_ceil(WAYS).next_power_of_two();
        let (words, tags) = (map(sets * WAYS * ENTRY), map(sets * TAGS));
        let (is_used, asked, stats) = (false, (0, 0), CacheStats::default());
        Self { map, words, tags, capacity: flows, epoch: 1, idle_ms, is_used, asked, stats }
    }

    /// Forgets all flows, at once. Sometimes returns old tables, which take long to free.
    #[must_use]
    pub fn clear(&mut self) -> Option<Self> {
        match self.epoch.checked_add(1) {
            Some(next) => self.epoch = next,
            None => return Some(self.renew()),
        }
        None
    }

    /// The old tables, once all flows are silent. A thread that moves no frames should free them.
    #[must_use]
    pub fn age(&mut self, now_ms: u32) -> Option<Self> {
        let asked = self.stats.hits.wrapping_add(self.stats.misses);
        if asked != self.asked.0 {
            self.asked = (asked, now_ms);
        } else if self.is_used && now_ms.wrapping_sub(self.asked.1) >= self.idle_ms {
            return Some(self.renew());
        }
        None
    }

    /// Begins with empty tables for another number of flows; returns the old ones.
    pub(super) fn resized(&mut self, flows: usize) -> Self {
        let new = Self::new(flows, self.idle_ms, self.map);
        std::mem::replace(self, new)
    }

    /// Begins with empty tables, of which nothing is committed; returns the old ones.
    fn renew(&mut self) -> Self {
        let (asked, stats) = (self.asked, self.stats);
        let new = Self { asked, stats, ..Self::new(self.capacity, self.idle_ms, self.map) };
        std::mem::replace(self, new)
    }

    /// How many flows fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn set_of(&self, hash: u32) -> usize {
        hash as usize & (self.tags.len() / TAGS - 1)
    }

    #[inline]
    fn tags(&self, set: usize) -> &[u64; TAGS] {
        let at = set * TAGS;
        self.tags[at..at + TAGS].try_into().expect("as long as a line")
    }

    #[inline]
    fn entry(&mut self, place: usize) -> &mut [u64; ENTRY] {
        let at = place * ENTRY;
        (&mut self.words[at..at + ENTRY]).try_into().expect("as long as an entry")
    }

    /// Prefetches the tags that [`FlowCache::locate`] will read.
    #[inline]
    pub fn fetch(&self, hash: u32) {
        self.tags.fetch(self.set_of(hash) * TAGS, false);
    }

    /// Finds the probable place of a flow, and prefetches its entry. To be called for many flows
    /// first; it has no branch that depends on memory, so the processor loads many entries at once.
    #[inline]
    pub fn locate(&self, flow: &mut Flow) {
        let set = self.set_of(flow.hash);
        let way = lanes(self.tags(set), tag(flow.hash)).trailing_zeros() as usize;
        flow.place = set * WAYS + way % WAYS;
        debug_assert!((flow.place + 1) * ENTRY <= self.words.len(), "a place is in the table");
        self.words.fetch(flow.place * ENTRY, true);
    }

    /// The rule that an earlier frame of this flow has found.
    #[inline]
    pub fn get(&mut self, flow: &Flow, now_ms: u32) -> Option<u16> {
        if let Some(found) = self.get_at(flow.place, &flow.key, now_ms) {
            return Some(found);
        }
        let set = self.set_of(flow.hash);
        let mut yields_left = lanes(self.tags(set), tag(flow.hash));
        while yields_left != 0 {
            let place = set * WAYS + yields_left.trailing_zeros() as usize;
            if let Some(found) = self.get_at(place, &flow.key, now_ms) {
                return Some(found);
            }
            yields_left &= yields_left - 1;
        }
        self.stats.misses += 1;
        None
    }

    /// The entry of a flow, if it is in this place.
    #[inline]
    fn get_at(&mut self, place: usize, key: &FlowKey, now_ms: u32) -> Option<u16> {
        let (epoch, idle_ms) = (self.epoch, self.idle_ms);
        let [known @ .., word] = self.entry(place);
        let note = Note::of(*word);
        let is_live = note.epoch == epoch && now_ms.wrapping_sub(note.seen) < idle_ms;
        if !is_live || known != key.words() {
            return None;
        }
        *word = Note { seen: now_ms, ..note }.word();
        self.stats.hits += 1;
        Some(note.found)
    }

    /// Notes the rule of a flow.
    pub fn put(&mut self, flow: &Flow, found: u16, now_ms: u32) {
        debug_assert!(self.epoch > 0, "0 marks an empty entry");
        let (epoch, set) = (self.epoch, self.set_of(flow.hash));
        let way = match lanes(self.tags(set), 0) {
            0 => self.silent_longest(set, now_ms),
            free => free.trailing_zeros() as usize,
        };
        self.is_used = true;
        let (tags, lane) = (&mut self.tags[set * TAGS + way / 4], 16 * (way % 4));
        *tags = *tags & !(0xffff << lane) | u64::from(tag(flow.hash)) << lane;
        let [known @ .., word] = self.entry(set * WAYS + way);
        *known = *flow.key.words();
        *word = Note { seen: now_ms, epoch, found }.word();
    }

    /// The place in a full set that a new flow takes.
    fn silent_longest(&mut self, set: usize, now_ms: u32) -> usize {
        let silent: [u32; WAYS] = std::array::from_fn(|way| {
            let note = Note::of(self.entry(set * WAYS + way)[WORDS]);
            if note.epoch == self.epoch { now_ms.wrapping_sub(note.seen) } else { u32::MAX }
        });
        let way = (0..WAYS).max_by_key(|&way| silent[way]).expect("a set has places");
        self.stats.evicted += u64::from(silent[way] < self.idle_ms);
        way
    }
}

/// The part of a hash that is the tag; never 0.
#[inline]
#[allow(clippy::cast_possible_truncation)] // reason: the upper half of it.
fn tag(hash: u32) -> u16 {
    (hash >> 16) as u16 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(hash: u32, number: u64) -> Flow {
        Flow::new(FlowKey::from([number, 1, 2, 3, 4, 5, 6]), hash)
    }

    #[test]
    fn test_flows_are_found_until_they_are_silent() {
        let mut cache = FlowCache::new(64, 1000, HugeTable::new);
        cache.put(&flow(7, 1), 11, 0);
        assert_eq!(cache.get(&flow(7, 2), 0), None, "the hash alone is not the flow");
        assert_eq!(cache.get(&flow(7, 1), 999), Some(11));
        assert_eq!(cache.get(&flow(7, 1), 1998), Some(11), "it was seen meanwhile");
        assert_eq!(cache.get(&flow(7, 1), 2998), None);
    }

    #[test]
    fn test_a_full_set_forgets_who_was_silent_longest() {
        let mut cache = FlowCache::new(4, 1000, HugeTable::new);
        (0..36).for_each(|it| cache.put(&flow(0, it), 1, u32::try_from(it).unwrap()));
        assert_eq!(cache.stats.evicted, 4);
        assert_eq!(cache.get(&flow(0, 4), 50), Some(1));
        cache.put(&flow(0, 99), 2, 51);
        assert_eq!(cache.stats.evicted, 5);
        let found = [5, 4, 6, 99].map(|it| cache.get(&flow(0, it), 51));
        assert_eq!(found, [None, Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn test_as_many_flows_as_are_said_are_remembered() {
        const FLOWS: u64 = 1 << 14;
        let mut cache = FlowCache::new(1 << 14, 1000, HugeTable::new);
        let hash = |flow: u64| {
            let word = packet::hash::folded_multiply(flow + 1, 0x9e37_79b9_7f4a_7c15);
            u32::try_from(word >> 32).unwrap()
        };
        (0..FLOWS).for_each(|it| cache.put(&flow(hash(it), it), 3, 0));
        let lost = (0..FLOWS).filter(|&it| cache.get(&flow(hash(it), it), 1).is_none());
        let lost = lost.count() as u64;
        assert!(lost < FLOWS / 1000, "{lost} of {FLOWS}");
        assert_eq!(cache.stats.evicted, lost);
    }

    #[test]
    fn test_memory_is_given_back_when_all_flows_are_silent_and_not_before() {
        let mut cache = FlowCache::new(1 << 10, 1000, HugeTable::new);
        (0..9).for_each(|it| cache.put(&flow(7, it), 3, 0));
        let is_empty = |cache: &FlowCache| cache.words.iter().all(|&word| word == 0);
        for now_ms in (0..4000).step_by(100) {
            assert!(cache.age(now_ms).is_none());
            assert_eq!(cache.get(&flow(7, 8), now_ms), Some(3), "it goes on");
        }
        assert!(cache.age(4000).is_none() && cache.age(4999).is_none());
        let stats = cache.stats;
        let old = cache.age(5000).expect("the caller frees it");
        assert!(!is_empty(&old) && is_empty(&cache) && cache.stats == stats);
        assert!(cache.age(99_000).is_none(), "there is nothing to free");
        cache.put(&flow(7, 1), 4, 5000);
        assert_eq!(cache.get(&flow(7, 1), 5001), Some(4));
    }

    #[test]
    fn test_another_epoch_forgets_all_also_after_the_last() {
        let (mut cache, mut old) = (FlowCache::new(4, 1000, HugeTable::new), 0);
        for _ in 0..70_000 {
            cache.put(&flow(0, 1), 1, 0);
            old += usize::from(cache.clear().is_some());
            assert_eq!(cache.get(&flow(0, 1), 0), None);
        }
        assert_eq!((old, cache.stats.misses), (1, 70_000));
    }
}

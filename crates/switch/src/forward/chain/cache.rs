//! The flow cache: what was found for flows that were seen before.
//!
//! ```text
//!   hash ─┬─► set ─► four tags ─► at most a few entries, a cache line each
//!         └─► another set, likewise
//! ```
//!
//! A flow has eight places in two sets, and there are twice as many places as flows: with that,
//! sets are full so rarely that a switch remembers as many flows as it is said to. One that is new
//! takes a place in the set with more free ones, or that of the flow that was silent longest: the
//! table never grows, and never fills up. Whatever changes rules or chains changes the epoch, which
//! makes all entries old at once.
//!
//! The tags tell where to look: a frame costs one line of these and one line of its entry; one that
//! is not there, eight entries at most. Memory is committed when flows use it, in huge pages where
//! the table is large, and when all flows are silent it is given back.

use ring::words::Words;

use super::flow::{FlowKey, WORDS};

/// Places of a set.
const WAYS: usize = 4;
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

/// Words of an entry: the flow, and its note.
const ENTRY: usize = WORDS + 1;
const _: () = assert!(ENTRY * size_of::<u64>() == 64, "a cache line");

/// What the cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Frames whose flow was there.
    pub hits: u64,
    /// Frames whose flow was looked for in the rules.
    pub misses: u64,
    /// Flows that made room for others while they were live.
    pub evicted: u64,
}

/// The flows.
pub struct FlowCache {
    /// Entry after entry.
    words: Words,
    /// A word for each set.
    tags: Words,
    capacity: usize,
    epoch: u16,
    /// A flow is forgotten when it was silent for so long.
    idle_ms: u32,
    /// Something was entered.
    is_used: bool,
    /// Frames that had asked when this was last looked at, and when that changed.
    asked: (u64, u32),
    /// What was done.
    pub stats: CacheStats,
}

impl FlowCache {
    /// Room for `flows`, rounded up.
    #[must_use]
    pub fn new(flows: usize, idle_ms: u32) -> Self {
        let sets = (2 * flows.min(FLOWS_MAX)).div_ceil(WAYS).max(2).next_power_of_two();
        let (words, tags) = (Words::new(sets * WAYS * ENTRY), Words::new(sets));
        let (is_used, asked, stats) = (false, (0, 0), CacheStats::default());
        Self { words, tags, capacity: flows, epoch: 1, idle_ms, is_used, asked, stats }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        match self.epoch.checked_add(1) {
            Some(next) => self.epoch = next,
            None => *self = Self { stats: self.stats, ..Self::new(self.capacity, self.idle_ms) },
        }
    }

    /// Gives memory back, if all flows are silent.
    pub fn age(&mut self, now_ms: u32) {
        let asked = self.stats.hits.wrapping_add(self.stats.misses);
        if asked != self.asked.0 {
            self.asked = (asked, now_ms);
        } else if self.is_used && now_ms.wrapping_sub(self.asked.1) >= self.idle_ms {
            let (asked, stats) = (self.asked, self.stats);
            *self = Self { asked, stats, ..Self::new(self.capacity, self.idle_ms) };
        }
    }

    /// How many flows there is room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn sets_of(&self, hash: u32) -> [usize; 2] {
        let other = hash.wrapping_mul(0x9e37_79b9) >> 9;
        [hash, other].map(|hash| hash as usize & (self.tags.len() - 1))
    }

    /// The entry at a place of a set.
    #[inline]
    fn entry(&mut self, set: usize, way: usize) -> &mut [u64; ENTRY] {
        let at = (set * WAYS + way) * ENTRY;
        (&mut self.words[at..at + ENTRY]).try_into().expect("as long as an entry")
    }

    /// Reads what [`FlowCache::get`] will probably read of all these flows, so that it comes from
    /// memory together. The result says nothing. Two loops without a branch that depends on what is
    /// read: one that is guessed wrong waits for memory, and all behind it do.
    #[inline]
    #[must_use]
    pub fn touch(&self, hashes: impl Iterator<Item = u32> + Clone) -> u64 {
        let tags = hashes.clone().fold(0, |all, hash| {
            let [set, _] = self.sets_of(hash);
            all ^ self.tags[set]
        });
        hashes.fold(tags, |all, hash| {
            let [set, _] = self.sets_of(hash);
            let tags = self.tags[set];
            let is = |way: usize| usize::from(tag_at(tags, way) == tag(hash));
            let way = (is(1) + 2 * is(2) + 3 * is(3)) & (WAYS - 1);
            all ^ self.words[(set * WAYS + way) * ENTRY]
        })
    }

    /// What was found for this flow.
    #[inline]
    pub fn get(&mut self, hash: u32, key: &FlowKey, now_ms: u32) -> Option<u16> {
        let (epoch, idle_ms) = (self.epoch, self.idle_ms);
        for set in self.sets_of(hash) {
            let tags = self.tags[set];
            for way in (0..WAYS).filter(|&way| tag_at(tags, way) == tag(hash)) {
                let [flow @ .., word] = self.entry(set, way);
                let note = Note::of(*word);
                let is_live = note.epoch == epoch && now_ms.wrapping_sub(note.seen) < idle_ms;
                if is_live && *flow == key.0 {
                    *word = Note { seen: now_ms, ..note }.word();
                    self.stats.hits += 1;
                    return Some(note.found);
                }
            }
        }
        self.stats.misses += 1;
        None
    }

    /// Notes what was found.
    pub fn put(&mut self, hash: u32, key: &FlowKey, found: u16, now_ms: u32) {
        let (epoch, idle_ms) = (self.epoch, self.idle_ms);
        let (mut best, mut place) = (None, (0, 0));
        for set in self.sets_of(hash) {
            let silent: [u32; WAYS] = std::array::from_fn(|way| {
                let note = Note::of(self.entry(set, way)[WORDS]);
                let is_old = note.epoch != epoch;
                if is_old { u32::MAX } else { now_ms.wrapping_sub(note.seen) }
            });
            let free = silent.iter().filter(|&&ms| ms >= idle_ms).count();
            let way = (0..WAYS).max_by_key(|&way| silent[way]).expect("a set has places");
            let rank = Some((free, silent[way]));
            if rank > best {
                (best, place) = (rank, (set, way));
            }
        }
        let (set, way) = place;
        self.is_used = true;
        self.stats.evicted += u64::from(best.is_some_and(|(free, _)| free == 0));
        let others = self.tags[set] & !(0xffff << (16 * way));
        self.tags[set] = others | u64::from(tag(hash)) << (16 * way);
        let [flow @ .., word] = self.entry(set, way);
        *flow = key.0;
        *word = Note { seen: now_ms, epoch, found }.word();
    }
}

/// What of a hash stands in the tags; never 0.
#[inline]
#[allow(clippy::cast_possible_truncation)] // reason: the upper half of it.
fn tag(hash: u32) -> u16 {
    (hash >> 16) as u16 | 1
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // reason: takes a word apart.
fn tag_at(tags: u64, way: usize) -> u16 {
    (tags >> (16 * way)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(flow: u64) -> FlowKey {
        FlowKey([flow, 1, 2, 3, 4, 5, 6])
    }

    #[test]
    fn test_flows_are_found_until_they_are_silent() {
        let mut cache = FlowCache::new(64, 1000);
        cache.put(7, &key(1), 11, 0);
        assert_eq!(cache.get(7, &key(2), 0), None, "the hash alone is not the flow");
        assert_eq!(cache.get(7, &key(1), 999), Some(11));
        assert_eq!(cache.get(7, &key(1), 1998), Some(11), "it was seen meanwhile");
        assert_eq!(cache.get(7, &key(1), 2998), None);
    }

    #[test]
    fn test_a_full_set_forgets_who_was_silent_longest() {
        let mut cache = FlowCache::new(4, 1000);
        (0..8).for_each(|flow| cache.put(0, &key(flow), 1, u32::try_from(flow).unwrap()));
        assert_eq!(cache.stats.evicted, 4, "both sets of this hash are one");
        (4..8).for_each(|flow| assert_eq!(cache.get(0, &key(flow), 8), Some(1)));
        cache.get(0, &key(4), 10);
        cache.put(0, &key(9), 2, 11);
        assert_eq!(cache.get(0, &key(5), 11).or(cache.get(0, &key(6), 11)), Some(1));
        assert_eq!(cache.get(0, &key(9), 11), Some(2));
        assert_eq!(cache.get(0, &key(4), 11), Some(1));
        assert_eq!(cache.stats.evicted, 5);
    }

    #[test]
    fn test_as_many_flows_as_are_said_are_remembered() {
        const FLOWS: u64 = 1 << 14;
        let mut cache = FlowCache::new(1 << 14, 1000);
        let hash = |flow: u64| {
            let word = super::super::flow::fold(flow + 1, 0x9e37_79b9_7f4a_7c15);
            u32::try_from(word >> 32).unwrap()
        };
        (0..FLOWS).for_each(|flow| cache.put(hash(flow), &key(flow), 3, 0));
        let lost = (0..FLOWS).filter(|&flow| cache.get(hash(flow), &key(flow), 1).is_none());
        let lost = lost.count() as u64;
        assert!(lost < FLOWS / 1000, "{lost} of {FLOWS}");
        assert_eq!(cache.stats.evicted, lost);
    }

    #[test]
    fn test_memory_is_given_back_when_all_flows_are_silent_and_not_before() {
        let mut cache = FlowCache::new(1 << 10, 1000);
        (0..9).for_each(|flow| cache.put(7, &key(flow), 3, 0));
        let is_empty = |cache: &FlowCache| cache.words.iter().all(|&word| word == 0);
        for now_ms in (0..4000).step_by(100) {
            cache.age(now_ms);
            assert_eq!(cache.get(7, &key(8), now_ms), Some(3), "it goes on");
        }
        cache.age(4000);
        cache.age(4999);
        assert!(!is_empty(&cache));
        let stats = cache.stats;
        cache.age(5000);
        assert!(is_empty(&cache) && cache.stats == stats);
        cache.put(7, &key(1), 4, 5000);
        assert_eq!(cache.get(7, &key(1), 5001), Some(4));
    }

    #[test]
    fn test_another_epoch_forgets_all_also_after_the_last() {
        let mut cache = FlowCache::new(4, 1000);
        for _ in 0..70_000 {
            cache.put(0, &key(1), 1, 0);
            cache.clear();
            assert_eq!(cache.get(0, &key(1), 0), None);
        }
    }
}

//! Bounded tables that expire idle entries.
//!
//! A hand goes round the table, a few places with each batch: expiry never stops a function, and an
//! entry that is over is found late rather than at a cost. A table allocates all its memory at the
//! start; a full one refuses new keys, and the function counts that.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use hashbrown::HashTable;
use packet::hash::folded_multiply;

/// Places that the hand is to look at with a batch of so many frames: more where nothing comes.
pub fn places(frames: u32) -> usize {
    if frames == 0 { 4096 } else { 32 }
}

/// A map with a fixed capacity.
#[derive(Debug)]
pub struct Table<K, V> {
    /// The place of each key.
    index: HashTable<u32>,
    seed: Seed,
    places: Vec<Option<(K, V)>>,
    free: Vec<u32>,
    most: usize,
    hand: usize,
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    /// An empty table for this many values.
    pub fn new(most: u32) -> Self {
        let most = usize::try_from(most).expect("64 bits");
        Self {
            // Half empty at most, so that it never grows, and removals leave few traces behind.
            index: HashTable::with_capacity(2 * most),
            seed: Seed::default(),
            places: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            most,
            hand: 0,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Where a key is.
    #[inline]
    pub fn find(&self, key: &K) -> Option<u32> {
        let has_it =
            |place: &u32| self.places[*place as usize].as_ref().is_some_and(|(k, _)| k == key);
        self.index.find(self.seed.hash_one(key), has_it).copied()
    }

    /// What is at a place that was found.
    #[inline]
    pub fn at(&mut self, place: u32) -> Option<&mut V> {
        self.places.get_mut(place as usize)?.as_mut().map(|(_, value)| value)
    }

    /// What a key has.
    #[inline]
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        self.find(key).and_then(|place| self.at(place))
    }

    /// Puts it in the place of what the key had; `None`: the table is full.
    pub fn insert(&mut self, key: K, value: V) -> Option<u32> {
        let place = match self.find(&key) {
            Some(place) => place,
            None if self.is_full() => return None,
            None => self.free.pop().unwrap_or_else(|| {
                self.places.push(None);
                u32::try_from(self.places.len() - 1).expect("`most` is one")
            }),
        };
        if self.places[place as usize].replace((key, value)).is_none() {
            let hash_at = |place: &u32| {
                let (key, _) = self.places[*place as usize].as_ref().expect("it is in the index");
                self.seed.hash_one(key)
            };
            self.index.insert_unique(self.seed.hash_one(key), place, hash_at);
        }
        Some(place)
    }

    /// Takes a value out.
    pub fn remove(&mut self, place: u32) -> Option<(K, V)> {
        let (key, value) = self.places.get_mut(place as usize)?.take()?;
        let found = self.index.find_entry(self.seed.hash_one(key), |known| *known == place);
        found.expect("each key is in the index").remove();
        self.free.push(place);
        Some((key, value))
    }

    /// The hand goes on by one place, and takes out what is over there.
    pub fn turn(&mut self, is_over: impl Fn(&V) -> bool) -> Option<(K, V)> {
        let place = u32::try_from(self.hand).expect("`most` is one");
        self.hand = if self.hand + 1 < self.places.len() { self.hand + 1 } else { 0 };
        self.at(place).is_some_and(|value| is_over(value)).then(|| self.remove(place))?
    }

    /// Whether the table takes no new key.
    pub fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// All that it has.
    pub fn into_values(self) -> impl Iterator<Item = (K, V)> {
        self.places.into_iter().flatten()
    }
}

/// Hashes small keys, differently in each process: no host can choose keys that collide.
#[derive(Clone, Debug)]
pub struct Seed(u64);

impl Default for Seed {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seed {
    type Hasher = Fold;

    #[inline]
    fn build_hasher(&self) -> Fold {
        Fold { state: self.0, seed: self.0 | 1 }
    }
}

/// See [`Seed`].
#[derive(Debug)]
pub struct Fold {
    state: u64,
    seed: u64,
}

impl Hasher for Fold {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(16) {
            let mut words = [0; 16];
            words[..part.len()].copy_from_slice(part);
            self.write_u128(u128::from_le_bytes(words));
        }
    }

    /// Two words at the cost of one: a host that does not know the seed cannot choose one so that
    /// the other does not count.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // reason: takes a number apart.
    fn write_u128(&mut self, number: u128) {
        let (a, b) = (number as u64, (number >> 64) as u64);
        self.state =
            folded_multiply(self.state ^ a, self.seed.rotate_left(32) ^ b).wrapping_add(self.seed);
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.state =
            folded_multiply(self.state ^ number, 0x9e37_79b9_7f4a_7c15).wrapping_add(self.seed);
    }

    #[inline]
    fn finish(&self) -> u64 {
        folded_multiply(self.state, self.seed ^ 0xd6e8_feb8_6659_fd93)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn test_a_full_table_takes_nothing_until_something_is_over() {
        let mut table = Table::new(2);
        assert!(table.insert(1u64, 'a').is_some() && table.insert(2, 'b').is_some());
        assert_eq!(table.insert(3, 'c'), None);
        assert!(table.insert(2, 'B').is_some(), "in its own place");
        let gone = table.turn(|value| *value == 'a');
        assert_eq!((gone, table.len()), (Some((1, 'a')), 1));
        assert!(table.insert(3, 'c').is_some());
        assert_eq!((table.find(&3).is_some(), table.find(&1)), (true, None));
    }

    proptest! {
        #[test]
        fn test_a_table_knows_what_a_map_knows(
            most in 1u32..40,
            does in prop::collection::vec((0u64..60, any::<bool>()), 1..400)
        ) {
            let (mut table, mut map) = (Table::new(most), HashMap::new());
            for (number, (key, adds)) in (0..).zip(does) {
                if adds {
                    let fits = map.contains_key(&key) || map.len() < most as usize;
                    prop_assert_eq!(table.insert(key, number).is_some(), fits);
                    fits.then(|| map.insert(key, number));
                } else {
                    let gone = table.find(&key).and_then(|place| table.remove(place));
                    prop_assert_eq!(gone, map.remove_entry(&key));
                }
                prop_assert_eq!(table.len(), map.len());
                for key in 0..60 {
                    prop_assert_eq!(table.get(&key).copied(), map.get(&key).copied());
                }
            }
        }
    }

    #[test]
    fn test_the_hand_comes_to_every_place_in_turn() {
        let mut table = Table::new(10);
        for key in 0..10u64 {
            table.insert(key, key);
        }
        for left in (0..10).rev() {
            assert!(table.turn(|_| true).is_some());
            assert_eq!(table.len(), left);
        }
        assert_eq!(table.turn(|_| true), None, "it is empty");
    }
}

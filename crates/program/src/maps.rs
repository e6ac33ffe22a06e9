//! Maps: what a program shares with itself of later frames, and with its operator.
//!
//! # Theory of operation
//!
//! A map has as many entries as it was declared with, allocated when it is made. An entry is a
//! number: the place of its value among all, where the program may keep a pointer to it for the
//! rest of a run. So an entry never moves, and one that was deleted is only marked as free.
//!
//! ```text
//!  hash, lpm   key ─hash─► heads[h] ─► entry 7 ─next─► entry 2 ─► NONE        free ─► 4 ─► 0 ─► …
//!  array       key = number of the entry; all are there, and none goes
//! ```
//!
//! `lpm` finds the longest prefix: the hash table holds the prefixes, and a search asks it for each
//! length that some prefix has, the longest first.
//!
//! A search takes steps of the run for each entry that it meets. The hash has a seed, so that a
//! sender cannot choose keys that collide.
//!
//! A look at what a run would do changes a map, and takes that back: from `Map::keep` on, the map
//! notes what each change replaces, until `Map::undo`. So a look costs what the run changes, and
//! not the size of the map.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use thiserror::Error;

use crate::dispatch::low;
use crate::limits::{LENGTHS_STEPS, SEARCH_STEPS};
use crate::memory::{store, to_usize};
use crate::mix::{begin, mix, put_words};

/// Largest key, in bytes.
pub const KEY_MAX: usize = 64;
/// Largest value, in bytes.
pub const VALUE_MAX: usize = 256;
/// Most entries of a map.
pub const ENTRIES_MAX: u32 = 65_536;
/// Longest name of a map.
pub const NAME_MAX: usize = 32;
/// Bytes of a number at the beginning of the key of an `lpm` map: the length of the prefix in bits.
const PREFIX_LENGTH: usize = 4;
/// Longest prefix, in bits: an IPv6 address.
const PREFIX_MAX: usize = 128;
/// In place of the number of an entry.
const NONE: u32 = u32::MAX;

/// How a map finds its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// By their number.
    Array,
    /// By their key.
    Hash,
    /// By the longest prefix of the key.
    Lpm,
}

impl MapKind {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Array, "array"), (Self::Hash, "hash"), (Self::Lpm, "lpm")];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Hash => "hash",
            Self::Lpm => "lpm",
        }
    }
}

impl FromStr for MapKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind).ok_or(())
    }
}

/// A map as a program declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// Letters, digits, `_` and `.`.
    pub name: String,
    /// How it finds its entries.
    pub kind: MapKind,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Number of entries.
    pub entries: u32,
}

impl MapDef {
    /// Bytes of a key.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.key as usize
    }

    fn key_words(&self) -> usize {
        self.key_bytes().div_ceil(8)
    }

    /// Bytes of a value.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.value as usize
    }

    /// Bytes of a value with what is unused behind it.
    fn stride(&self) -> usize {
        self.value_bytes().next_multiple_of(8)
    }

    fn heads(&self) -> usize {
        (self.entries as usize).next_power_of_two()
    }

    /// Bytes of all values.
    #[must_use]
    pub fn values(&self) -> usize {
        self.entries as usize * self.stride()
    }

    /// Bytes of memory that the map takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let table = match self.kind {
            MapKind::Array => 0,
            MapKind::Hash | MapKind::Lpm => {
                let entry = self.key_words() * 8 + size_of::<u32>() + size_of::<bool>();
                self.entries as usize * entry + self.heads() * size_of::<u32>()
            }
        };
        self.values() + table
    }

    /// A key as the map has it: of an `lpm` map, with zeros behind the prefix. `None`: it is none
    /// of the map's.
    #[must_use]
    pub fn canonical(&self, key: Vec<u8>) -> Option<Vec<u8>> {
        if self.kind != MapKind::Lpm || key.len() != self.key_bytes() {
            return (key.len() == self.key_bytes()).then_some(key);
        }
        let read = Key::new(&key);
        let masked = masked(&read, prefix_length(&read)?);
        Some(masked.bytes[..key.len()].to_vec())
    }

    /// Checks the definition.
    ///
    /// # Errors
    /// What is wrong, and the right form.
    pub fn check(&self) -> Result<(), String> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
        if !(1..=NAME_MAX).contains(&self.name.len()) || !self.name.bytes().all(is_letter) {
            let form = format!("1 to {NAME_MAX} letters, digits, '_' and '.'");
            return Err(format!("its name is not {form}"));
        }
        let key = match self.kind {
            MapKind::Array => 4..=4,
            MapKind::Hash => 1..=KEY_MAX,
            MapKind::Lpm => PREFIX_LENGTH + 1..=PREFIX_LENGTH + PREFIX_MAX / 8,
        };
        let ranges = [
            ("key", self.key_bytes(), key),
            ("value", self.value_bytes(), 1..=VALUE_MAX),
            ("number of entries", self.entries as usize, 1..=ENTRIES_MAX as usize),
        ];
        match ranges.iter().find(|(_, number, range)| !range.contains(number)) {
            None => Ok(()),
            Some((what, number, range)) => Err(format!(
                "its {what} is {number}; of kind {}, expected {} to {}",
                self.kind.name(),
                range.start(),
                range.end()
            )),
        }
    }
}

/// Why a map does not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// There is no such entry.
    #[error("the map has no such entry")]
    Missing,
    /// There is such an entry.
    #[error("the map has such an entry already")]
    Exists,
    /// An array has no entry of this number.
    #[error("the array has no such entry: the first is 0; see: uvala program show")]
    Index,
    /// There is no room for one more.
    #[error("the map is full; delete an entry, or declare it with more")]
    Full,
    /// Entries of arrays stay.
    #[error("entries of an array cannot be deleted; set it to zeros")]
    Array,
    /// The key is longer or shorter than the map's, or a prefix is longer than the key.
    #[error("the key is none of this map's; see: uvala program show")]
    Key,
    /// The value is longer or shorter than the map's.
    #[error("the value is none of this map's; see: uvala program show")]
    Value,
}

impl MapError {
    /// Linux's number for it.
    pub(crate) fn errno(self) -> i64 {
        match self {
            Self::Missing => 2,
            Self::Full | Self::Index => 7,
            Self::Exists => 17,
            Self::Array | Self::Key | Self::Value => 22,
        }
    }
}

/// Which entry an update takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// An old one or a new one.
    Any,
    /// A new one.
    New,
    /// An old one.
    Old,
}

/// A map.
#[derive(Debug)]
pub struct Map {
    def: MapDef,
    table: Table,
    /// The values of all entries, in the order of their numbers.
    values: Box<[u8]>,
    /// From one value to the next.
    stride: usize,
    /// The bits of a word that a key may have; 0: a key is more than a word.
    short: u64,
    /// What changes have replaced, the first first, if they are to be undone.
    replaced: Option<Vec<Replaced>>,
}

/// What a change of a map has replaced.
#[derive(Debug)]
enum Replaced {
    /// Bytes at a place among the values.
    Bytes(usize, Box<[u8]>),
    /// No entry of a key.
    Absence(Key),
    /// The entry of a key.
    Entry(Key),
}

/// A key, with zeros behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    bytes: [u8; KEY_MAX],
    len: usize,
}

impl Key {
    /// A key of as many bytes as its map's.
    #[inline(always)]
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut bytes = [0; KEY_MAX];
        put_words(key, bytes.as_chunks_mut().0);
        Self { bytes, len: key.len() }
    }

    /// The number in its first four bytes.
    fn number(&self) -> u32 {
        let [a, b, c, d, ..] = self.bytes;
        u32::from_le_bytes([a, b, c, d])
    }

    #[inline(always)]
    fn words(&self) -> impl Iterator<Item = u64> {
        let (words, _) = self.bytes.as_chunks::<8>();
        words[..self.len.div_ceil(8)].iter().map(|&word| u64::from_le_bytes(word))
    }
}

/// The hash table of a map; an array has none.
#[derive(Debug, Default)]
struct Table {
    /// Where the hash of each key begins, by the seed.
    begin: u64,
    heads: Box<[u32]>,
    next: Box<[u32]>,
    keys: Box<[u64]>,
    live: Box<[bool]>,
    free: u32,
    /// Number of entries.
    count: u32,
    /// Prefixes of each length in bits.
    lengths: Vec<u32>,
}

/// What a search gives that may run out of steps.
pub(crate) type Searched<T> = Option<T>;

impl Map {
    pub(crate) fn new(def: &MapDef, seed: u64) -> Self {
        let table = match def.kind {
            MapKind::Array => Table::default(),
            MapKind::Hash | MapKind::Lpm => Table::new(def, seed),
        };
        let (values, stride) = (vec![0; def.values()].into(), def.stride());
        let short = match def.key_bytes() {
            bytes @ 1..=8 if def.kind != MapKind::Lpm => u64::MAX >> (64 - 8 * bytes),
            _ => 0,
        };
        Self { def: def.clone(), table, values, stride, short, replaced: None }
    }

    /// How the map is declared.
    #[must_use]
    pub fn def(&self) -> &MapDef {
        &self.def
    }

    /// Number of entries that it has.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self.def.kind {
            MapKind::Array => self.def.entries,
            MapKind::Hash | MapKind::Lpm => self.table.count,
        }
    }

    /// Where the value of an entry begins among all.
    #[inline(always)]
    pub(crate) fn start(&self, entry: u32) -> usize {
        entry as usize * self.stride
    }

    fn place(&self, entry: u32) -> Range<usize> {
        self.start(entry)..self.start(entry) + self.def.value_bytes()
    }

    /// The values of all entries.
    #[inline(always)]
    pub(crate) fn values(&self) -> &[u8] {
        &self.values
    }

    /// Writes a number to a place among the values of all entries; `None`: there is none.
    #[inline(always)]
    pub(crate) fn write<const BYTES: usize>(&mut self, at: usize, number: u64) -> Option<()> {
        if self.replaced.is_some() {
            self.note(at..(at + BYTES).min(self.values.len()));
        }
        store::<BYTES>(self.values.get_mut(at..)?, number)
    }

    /// The map notes what changes replace from here on, for [`Map::undo`].
    pub(crate) fn keep(&mut self) {
        self.replaced = Some(Vec::new());
    }

    /// Undoes all changes since [`Map::keep`], the last one first. An entry that comes back gets
    /// its old place, which was the last one to become free.
    pub(crate) fn undo(&mut self) {
        for replaced in self.replaced.take().into_iter().flatten().rev() {
            match replaced {
                Replaced::Bytes(at, bytes) => {
                    self.values[at..][..bytes.len()].copy_from_slice(&bytes);
                }
                Replaced::Absence(key) => drop(self.remove(&key, &mut u32::MAX.clone())),
                Replaced::Entry(key) => drop(self.enter(&key, Update::New, &mut u32::MAX.clone())),
            }
        }
    }

    /// Notes bytes that are about to be replaced, if they are to come back.
    fn note(&mut self, place: Range<usize>) {
        if let (Some(notes), Some(bytes)) = (&mut self.replaced, self.values.get(place.clone())) {
            notes.push(Replaced::Bytes(place.start, bytes.into()));
        }
    }

    /// The value of an entry.
    pub(crate) fn value(&self, entry: u32) -> &[u8] {
        &self.values[self.place(entry)]
    }

    /// Sets the value of an entry, which is as long as the map's.
    pub(crate) fn set_value(&mut self, entry: u32, value: &[u8]) {
        let place = self.place(entry);
        self.note(place.clone());
        self.values[place].copy_from_slice(value);
    }

    /// The first entry from a number on, and its key.
    pub(crate) fn entry(&self, from: u32) -> Option<(u32, Vec<u8>)> {
        match self.def.kind {
            MapKind::Array => {
                (from < self.def.entries).then(|| (from, from.to_le_bytes().to_vec()))
            }
            MapKind::Hash | MapKind::Lpm => {
                let live = self.table.live.get(from as usize..)?;
                let skip = live.iter().position(|&is_live| is_live)?;
                let entry = from + u32::try_from(skip).ok()?;
                let words = self.table.key(entry, self.def.key_words()).iter();
                let mut key: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
                key.truncate(self.def.key_bytes());
                Some((entry, key))
            }
        }
    }

    /// The entry of a key; of an `lpm` map, that of the longest prefix. The outer `None`: there
    /// are too few steps.
    #[inline]
    pub(crate) fn find(&self, key: &Key, steps: &mut u32) -> Searched<Option<u32>> {
        match self.def.kind {
            MapKind::Array => Some(self.numbered(key.number())),
            MapKind::Hash => self.table.find(key, steps),
            MapKind::Lpm => self.find_longest(key, steps),
        }
    }

    /// The key at the beginning of a word; `None`: keys are longer, or have prefixes.
    #[inline(always)]
    pub(crate) fn short_key(&self, word: u64) -> Option<u64> {
        (self.short != 0).then_some(word & self.short)
    }

    /// As [`Map::find`], for a key that is a word.
    #[inline(always)]
    pub(crate) fn find_short(&self, word: u64, steps: &mut u32) -> Searched<Option<u32>> {
        debug_assert!(word & !self.short == 0, "it is one of the map's");
        match self.def.kind {
            MapKind::Array => Some(self.numbered(low(word))),
            MapKind::Hash | MapKind::Lpm => self.table.find_word(word, steps),
        }
    }

    fn numbered(&self, number: u32) -> Option<u32> {
        (number < self.def.entries).then_some(number)
    }

    fn find_longest(&self, key: &Key, steps: &mut u32) -> Searched<Option<u32>> {
        let Some(bits) = prefix_length(key) else { return Some(None) };
        *steps = steps.checked_sub(LENGTHS_STEPS)?;
        for bits in (0..=bits).rev().filter(|&bits| self.table.lengths[bits] > 0) {
            if let Some(entry) = self.table.find(&masked(key, bits), steps)? {
                return Some(Some(entry));
            }
        }
        Some(None)
    }

    /// The entry of exactly this key, made if need be.
    pub(crate) fn enter(
        &mut self,
        key: &Key,
        how: Update,
        steps: &mut u32,
    ) -> Searched<Result<u32, MapError>> {
        if self.def.kind == MapKind::Array {
            return Some(match how {
                Update::New => Err(MapError::Exists),
                Update::Any | Update::Old => self.numbered(key.number()).ok_or(MapError::Index),
            });
        }
        let Some((key, bits)) = self.exact(key) else { return Some(Err(MapError::Key)) };
        Some(match (self.table.find(&key, steps)?, how) {
            (Some(_), Update::New) => Err(MapError::Exists),
            (Some(entry), _) => Ok(entry),
            (None, Update::Old) => Err(MapError::Missing),
            (None, _) => {
                let entered = self.table.insert(&key, bits).ok_or(MapError::Full);
                if let (Some(notes), Ok(_)) = (&mut self.replaced, entered) {
                    notes.push(Replaced::Absence(key));
                }
                entered
            }
        })
    }

    /// Removes the entry of exactly this key.
    pub(crate) fn remove(&mut self, key: &Key, steps: &mut u32) -> Searched<Result<(), MapError>> {
        if self.def.kind == MapKind::Array {
            return Some(Err(MapError::Array));
        }
        let Some((key, bits)) = self.exact(key) else { return Some(Err(MapError::Key)) };
        let removed = self.table.remove(&key, bits, steps)?;
        if let (Some(notes), Ok(())) = (&mut self.replaced, removed) {
            notes.push(Replaced::Entry(key));
        }
        Some(removed)
    }

    /// The key as the table has it, and the bits of its prefix.
    fn exact(&self, key: &Key) -> Option<(Key, usize)> {
        if self.def.kind != MapKind::Lpm {
            return Some((*key, 0));
        }
        let bits = prefix_length(key)?;
        Some((masked(key, bits), bits))
    }
}

/// Bits of the prefix in a key, if it has as many.
fn prefix_length(key: &Key) -> Option<usize> {
    let bits = key.number() as usize;
    (bits <= (key.len - PREFIX_LENGTH) * 8).then_some(bits)
}

/// The key of a prefix of so many bits: what is behind the prefix is zero.
fn masked(key: &Key, bits: usize) -> Key {
    let mut masked = *key;
    let whole = PREFIX_LENGTH + bits / 8;
    let length = u32::try_from(bits).expect("a prefix is short");
    masked.bytes[..PREFIX_LENGTH].copy_from_slice(&length.to_le_bytes());
    masked.bytes[whole..key.len].fill(0);
    if !bits.is_multiple_of(8) {
        masked.bytes[whole] = key.bytes[whole] & (0xff << (8 - bits % 8));
    }
    masked
}

impl Table {
    fn new(def: &MapDef, seed: u64) -> Self {
        let entries = def.entries as usize;
        let next = (1..def.entries).chain([NONE]);
        Self {
            begin: begin(seed),
            heads: vec![NONE; def.heads()].into(),
            next: next.collect(),
            keys: vec![0; entries * def.key_words()].into(),
            live: vec![false; entries].into(),
            free: 0,
            count: 0,
            lengths: vec![0; PREFIX_MAX + 1],
        }
    }

    #[inline]
    fn head(&self, key: &Key) -> usize {
        self.head_of(mix(self.begin, key.words()))
    }

    /// The place among the heads, which are a power of two, that a hash leads to.
    #[inline(always)]
    fn head_of(&self, hash: u64) -> usize {
        to_usize(hash & (self.heads.len() as u64 - 1))
    }

    #[inline]
    fn key(&self, entry: u32, words: usize) -> &[u64] {
        &self.keys[entry as usize * words..][..words]
    }

    #[inline]
    fn find(&self, key: &Key, steps: &mut u32) -> Searched<Option<u32>> {
        let (mut entry, words) = (self.heads[self.head(key)], key.len.div_ceil(8));
        while entry != NONE {
            *steps = steps.checked_sub(SEARCH_STEPS)?;
            // No call of a function that compares any number of bytes: a key is a word or two.
            if self.key(entry, words).iter().zip(key.words()).all(|(&its, asked)| its == asked) {
                return Some(Some(entry));
            }
            entry = self.next[entry as usize];
        }
        *steps = steps.checked_sub(SEARCH_STEPS)?;
        Some(None)
    }

    /// As [`Table::find`], where keys are a word.
    #[inline(always)]
    fn find_word(&self, word: u64, steps: &mut u32) -> Searched<Option<u32>> {
        let hash = mix(self.begin, [word].into_iter());
        let mut entry = self.heads[self.head_of(hash)];
        // There is no key at `NONE`.
        while let Some(&its) = self.keys.get(entry as usize) {
            *steps = steps.checked_sub(SEARCH_STEPS)?;
            if its == word {
                return Some(Some(entry));
            }
            entry = self.next[entry as usize];
        }
        *steps = steps.checked_sub(SEARCH_STEPS)?;
        Some(None)
    }

    /// Makes an entry of a key that has none.
    fn insert(&mut self, key: &Key, bits: usize) -> Option<u32> {
        let (entry, head) = (self.free, self.head(key));
        if entry == NONE {
            return None;
        }
        let at = entry as usize;
        debug_assert!(!self.live[at], "a free entry is free");
        self.free = self.next[at];
        self.next[at] = std::mem::replace(&mut self.heads[head], entry);
        let words = key.len.div_ceil(8);
        let place = &mut self.keys[at * words..][..words];
        place.iter_mut().zip(key.words()).for_each(|(place, word)| *place = word);
        self.live[at] = true;
        self.lengths[bits] += 1;
        self.count += 1;
        Some(entry)
    }

    fn remove(
        &mut self,
        key: &Key,
        bits: usize,
        steps: &mut u32,
    ) -> Searched<Result<(), MapError>> {
        let Some(entry) = self.find(key, steps)? else { return Some(Err(MapError::Missing)) };
        let (head, at) = (self.head(key), entry as usize);
        let behind = self.next[at];
        if self.heads[head] == entry {
            self.heads[head] = behind;
        } else {
            let mut before = self.heads[head] as usize;
            while self.next[before] != entry {
                before = self.next[before] as usize;
            }
            self.next[before] = behind;
        }
        self.next[at] = std::mem::replace(&mut self.free, entry);
        self.live[at] = false;
        self.lengths[bits] -= 1;
        self.count -= 1;
        Some(Ok(()))
    }
}

impl fmt::Display for MapDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, kind, key, value, entries } = self;
        write!(f, "{name} {} {key} {value} {entries}", kind.name())
    }
}

impl FromStr for MapDef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let read = || {
            let &[name, kind, key, value, entries] = words.as_slice() else { return None };
            let kind = kind.parse().ok()?;
            let (key, value) = (key.parse().ok()?, value.parse().ok()?);
            Some(Self { name: name.to_owned(), kind, key, value, entries: entries.parse().ok()? })
        };
        let def = read().ok_or("expected a name, a kind, and three numbers")?;
        def.check().map(|()| def)
    }
}

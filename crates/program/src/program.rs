//! A program with its memory, ready to run.

use std::ops::Range;

use crate::code::{Limits, decode};
use crate::dispatch::Insn;
use crate::fault::{Fault, FaultKind};
use crate::image::{Image, ImageError, Looks};
use crate::limits::{CALLS_MAX, PORTS_MAX, STACK, STEPS_MAX};
use crate::machine::{Caller, Machine};
use crate::maps::{Key, Map, MapError, Update};
use crate::memory::{FRAME_REGION, MAP_REGION, Memory};

/// Bytes of a packet that a program may see: what flows are made of.
pub const PACKET_BYTES: usize = packet::flow::PREFIX;
/// Bytes of `struct uvala_frame` in front of those of the packet.
const FRAME_FIELDS: usize = 16;

/// A frame, as a program sees it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Microseconds since the daemon started.
    pub now_us: u64,
    /// Number of the port that it came by.
    pub port: u16,
    /// The VLAN that it is in.
    pub vlan: u16,
    /// The first bytes of the frame, [`PACKET_BYTES`] at most.
    pub bytes: &'a [u8],
}

/// What a program says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nowhere.
    Drop,
    /// Where a learning bridge would send it.
    Learning,
    /// To all ports that take such floods.
    Flood,
    /// To the ports of [`Program::ports`].
    Set,
    /// To this port.
    To(u16),
}

impl Decision {
    /// The decision that a program returned. Linux takes the lower half of what a program returns,
    /// too: the upper half of an `int` may be anything.
    fn of(returned: u64) -> Option<Self> {
        const TO: u64 = 0x1_0000;
        match returned & 0xffff_ffff {
            0 => Some(Self::Drop),
            1 => Some(Self::Learning),
            2 => Some(Self::Flood),
            3 => Some(Self::Set),
            number => u16::try_from(number.checked_sub(TO)?).ok().map(Self::To),
        }
    }
}

/// What a program has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs, each for a frame or for some that follow each other with the same header.
    pub runs: u64,
    /// Runs that ended in a fault.
    pub faults: u64,
    /// The last of these.
    pub fault: Option<Fault>,
    /// Steps of all runs.
    pub steps: u64,
}

/// The instructions of an image, which is checked.
fn decoded(image: &Image) -> Result<Box<[Insn]>, ImageError> {
    image.check()?;
    let limits = Limits { maps: image.maps.len(), data: image.data.len() };
    Ok(decode(&image.code, limits)?)
}

/// A program with its memory.
#[derive(Clone, Debug)]
pub struct Program {
    code: Box<[Insn]>,
    looks: Looks,
    memory: Memory,
    maps: Vec<Map>,
    ports: Vec<u16>,
    calls: Box<[Caller; CALLS_MAX]>,
    /// Bytes of the packet that the last run saw.
    shown: usize,
    counts: Counts,
}

impl Program {
    /// A program with empty maps. The seed of their hashes should be random.
    ///
    /// # Errors
    /// What of the image cannot be.
    pub fn new(image: &Image, seed: u64) -> Result<Self, ImageError> {
        let code = decoded(image)?;
        let values = image.maps.iter().map(crate::MapDef::values);
        let frame = FRAME_FIELDS + PACKET_BYTES;
        let memory = Memory::new(frame, STACK * CALLS_MAX, &image.data, values);
        let maps = image.maps.iter().map(|def| Map::new(def, seed)).collect();
        let (ports, calls) = (Vec::with_capacity(PORTS_MAX), Box::default());
        let (looks, shown, counts) = (image.looks, 0, Counts::default());
        Ok(Self { code, looks, memory, maps, ports, calls, shown, counts })
    }

    /// Checks what [`Program::new`] would make a program of.
    ///
    /// # Errors
    /// What of the image cannot be.
    pub fn check(image: &Image) -> Result<(), ImageError> {
        decoded(image).map(drop)
    }

    /// Takes over the maps of the program before it that are declared alike, with their entries.
    pub fn adopt(&mut self, before: &mut Self) {
        for (mine, map) in self.maps.iter_mut().enumerate() {
            let theirs = before.maps.iter().position(|old| old.def() == map.def());
            if let Some(theirs) = theirs {
                std::mem::swap(map, &mut before.maps[theirs]);
                let (to, from) = (MAP_REGION + mine, MAP_REGION + theirs);
                self.memory.swap(to, &mut before.memory, from);
            }
        }
    }

    /// How far the program looks into a frame.
    #[inline]
    #[must_use]
    pub fn looks(&self) -> Looks {
        self.looks
    }

    /// Asks the program about a frame.
    ///
    /// # Errors
    /// The program failed, and has decided nothing.
    #[inline]
    pub fn run(&mut self, frame: &Frame<'_>) -> Result<Decision, Fault> {
        self.show(frame);
        self.ports.clear();
        self.memory.changed = false;
        self.counts.runs += 1;
        let Self { memory, maps, ports, calls, .. } = self;
        let mut machine = Machine::new(memory, maps, ports, calls, frame.now_us);
        let returned = machine.run(&self.code);
        self.counts.steps += u64::from(STEPS_MAX - machine.steps);
        let no_decision = Fault { kind: FaultKind::Decision, at: self.code.len() - 1 };
        let decided = returned.and_then(|it| Decision::of(it).ok_or(no_decision));
        if let Err(fault) = decided {
            self.counts.faults += 1;
            self.counts.fault = Some(fault);
        }
        decided
    }

    /// Writes `struct uvala_frame`.
    #[inline]
    fn show(&mut self, frame: &Frame<'_>) {
        let Frame { now_us, port, vlan, bytes } = *frame;
        let count = bytes.len().min(PACKET_BYTES);
        let place = self.memory.region_mut(FRAME_REGION);
        let (fields, packet) = place.split_at_mut(FRAME_FIELDS);
        fields[..8].copy_from_slice(&now_us.to_le_bytes());
        fields[8..10].copy_from_slice(&port.to_le_bytes());
        fields[10..12].copy_from_slice(&vlan.to_le_bytes());
        fields[12] = u8::try_from(count).expect("a few bytes");
        packet[..count].copy_from_slice(&bytes[..count]);
        if count < self.shown {
            packet[count..self.shown].fill(0);
        }
        self.shown = count;
    }

    /// The ports that the last run added to its set.
    #[inline]
    #[must_use]
    pub fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Whether the last run changed a map.
    #[inline]
    #[must_use]
    pub fn has_changed_maps(&self) -> bool {
        self.memory.changed
    }

    /// What the program has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The maps.
    #[must_use]
    pub fn maps(&self) -> &[Map] {
        &self.maps
    }

    fn value(&self, map: usize, entry: u32) -> &[u8] {
        &self.memory.region(MAP_REGION + map)[self.maps[map].place(entry)]
    }

    /// The value of a key; of an `lpm` map, that of the longest prefix.
    ///
    /// # Errors
    /// The key is none of the map's, or the map has no such entry.
    pub fn get(&self, map: usize, key: &[u8]) -> Result<&[u8], MapError> {
        let key = self.key(map, key)?;
        let found = self.maps[map].find(&key, &mut u32::MAX.clone()).flatten();
        found.map(|entry| self.value(map, entry)).ok_or(MapError::Missing)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Key or value are none of the map's, or it is full.
    pub fn set(&mut self, map: usize, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        let key = self.key(map, key)?;
        if value.len() != self.maps[map].def().value_bytes() {
            return Err(MapError::Value);
        }
        let entered = self.maps[map].enter(&key, Update::Any, &mut u32::MAX.clone());
        let place: Range<usize> = self.maps[map].place(entered.ok_or(MapError::Full)??);
        self.memory.region_mut(MAP_REGION + map)[place].copy_from_slice(value);
        Ok(())
    }

    /// Deletes an entry.
    ///
    /// # Errors
    /// The key is none of the map's, the map has no such entry, or it is an array.
    pub fn delete(&mut self, map: usize, key: &[u8]) -> Result<(), MapError> {
        let key = self.key(map, key)?;
        self.maps[map].remove(&key, &mut u32::MAX.clone()).ok_or(MapError::Missing)?
    }

    fn key(&self, map: usize, key: &[u8]) -> Result<Key, MapError> {
        let is_its_own = key.len() == self.maps[map].def().key_bytes();
        if is_its_own { Ok(Key::new(key)) } else { Err(MapError::Key) }
    }

    /// The entries of a map from a place on: the place behind each, its key and its value.
    pub fn entries(
        &self,
        map: usize,
        from: u32,
    ) -> impl Iterator<Item = (u32, Vec<u8>, Vec<u8>)> + '_ {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            let (entry, key) = self.maps[map].entry(next?)?;
            next = entry.checked_add(1);
            Some((entry + 1, key, self.value(map, entry).to_vec()))
        })
    }
}

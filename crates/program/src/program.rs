//! A program with its memory, ready to run.
//!
//! Each worker that asks a program has one of its own: code and maps are common ([`crate::store`]),
//! and what a run needs besides, and what is counted, is the worker's.

use std::sync::Arc;

use crate::code::{Limits, decode};
use crate::dispatch::Insn;
use crate::fault::{Fault, FaultKind};
use crate::image::{Image, ImageError, Looks};
use crate::limits::{CALLS_MAX, PORTS_MAX, STEPS_MAX};
use crate::machine::{Caller, Machine};
use crate::maps::{Key, Map, MapDef, MapError, Update};
use crate::memory::{FRAME, Memory};
use crate::mix::put_words;
use crate::quicken::quicken;
use crate::store::Maps;

/// Bytes of a packet that a program may see: what flows are made of.
pub const PACKET_BYTES: usize = packet::flow::PREFIX;
/// Bytes of `struct uvala_frame` in front of those of the packet.
const FRAME_FIELDS: usize = 16;

const _: () = assert!(FRAME == FRAME_FIELDS + PACKET_BYTES, "struct uvala_frame");

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
    Ok(quicken(decode(&image.code, limits)?))
}

impl Counts {
    /// Adds what another worker has counted.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.faults += other.faults;
        self.fault = self.fault.or(other.fault);
        self.steps += other.steps;
    }
}

/// A program with its memory.
#[derive(Debug)]
pub struct Program {
    code: Arc<[Insn]>,
    looks: Looks,
    /// How its maps are declared.
    defs: Arc<[MapDef]>,
    maps: Maps,
    memory: Box<Memory>,
    ports: Vec<u16>,
    calls: Box<[Caller; CALLS_MAX]>,
    /// Words of the packet that the last run saw.
    shown: usize,
    /// The last run has changed a map.
    has_changed_maps: bool,
    counts: Counts,
}

impl Program {
    /// A program with empty maps. The seed of their hashes should be random.
    ///
    /// # Errors
    /// What of the image cannot be.
    pub fn new(image: &Image, seed: u64) -> Result<Self, ImageError> {
        let code = decoded(image)?.into();
        let memory = Memory::new(&image.data).into();
        let (defs, maps) = (image.maps.clone().into(), Maps::new(&image.maps, seed));
        Ok(Self::with(code, image.looks, defs, maps, memory))
    }

    fn with(
        code: Arc<[Insn]>,
        looks: Looks,
        defs: Arc<[MapDef]>,
        maps: Maps,
        memory: Box<Memory>,
    ) -> Self {
        let (ports, calls) = (Vec::with_capacity(PORTS_MAX), Box::default());
        let (shown, has_changed_maps, counts) = (PACKET_BYTES / 8, false, Counts::default());
        Self { code, looks, defs, maps, memory, ports, calls, shown, has_changed_maps, counts }
    }

    /// Puts a lock around the maps, so that several workers may [have the program](Self::handle).
    #[must_use]
    pub fn into_common(self) -> Self {
        Self { maps: self.maps.into_common(), ..self }
    }

    /// A handle of the program for another worker: with the same maps, and counts of its own.
    ///
    /// # Panics
    /// If the maps have no lock: see [`Program::into_common`].
    #[must_use]
    pub fn handle(&self) -> Self {
        self.again(self.maps.handle())
    }

    fn again(&self, maps: Maps) -> Self {
        let (code, defs, memory) = (self.code.clone(), self.defs.clone(), self.memory.clone());
        Self::with(code, self.looks, defs, maps, memory)
    }

    /// Checks what [`Program::new`] would make a program of.
    ///
    /// # Errors
    /// What of the image cannot be.
    pub fn check(image: &Image) -> Result<(), ImageError> {
        decoded(image).map(drop)
    }

    /// Takes over the maps of the program before it that are declared alike, with their entries.
    /// Other workers may run the program before for some time still.
    pub fn adopt(&mut self, before: &mut Self) {
        self.maps.adopt(&mut before.maps);
    }

    /// Once all workers run this program: takes out the maps of those before it, to be freed.
    #[must_use]
    pub fn sweep(&mut self) -> Vec<Map> {
        self.maps.sweep()
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
        self.counts.runs += 1;
        let Self { code, maps, memory, ports, calls, counts, .. } = self;
        let (returned, has_changed) = maps.run(|maps, places| {
            ports.clear();
            let mut machine = Machine::new(memory, (maps, places), ports, calls, frame.now_us);
            let returned = machine.run(code);
            counts.steps += u64::from(STEPS_MAX - machine.steps);
            (returned, machine.touch)
        });
        self.has_changed_maps = has_changed;
        let decided = self.decided(returned);
        if let Err(fault) = decided {
            self.counts.faults += 1;
            self.counts.fault = Some(fault);
        }
        decided
    }

    /// What [`Program::run`] would say of a frame now, and the ports of its set. Nothing is
    /// counted, and the maps stay as they are.
    ///
    /// # Errors
    /// As of a run.
    pub fn peek(&self, frame: &Frame<'_>) -> (Result<Decision, Fault>, Vec<u16>) {
        // With memory of its own, which the next run may find as the last one has left it.
        let mut other = self.again(Maps::new(&[], 0));
        other.show(frame);
        let Self { code, memory, ports, calls, .. } = &mut other;
        let returned = self.maps.peek(|maps, places| {
            ports.clear();
            let mut machine = Machine::new(memory, (maps, places), ports, calls, frame.now_us);
            (machine.run(code), machine.touch)
        });
        (self.decided(returned), other.ports)
    }

    fn decided(&self, returned: Result<u64, Fault>) -> Result<Decision, Fault> {
        let no_decision = Fault { kind: FaultKind::Decision, at: self.code.len() - 1 };
        returned.and_then(|it| Decision::of(it).ok_or(no_decision))
    }

    /// Writes `struct uvala_frame`.
    #[inline]
    fn show(&mut self, frame: &Frame<'_>) {
        let Frame { now_us, port, vlan, bytes } = *frame;
        let count = bytes.len().min(PACKET_BYTES);
        let fields = [now_us, u64::from(port) | u64::from(vlan) << 16 | (count as u64) << 32];
        let (words, _) = self.memory.frame.as_chunks_mut();
        let (places, packet) = words.split_at_mut(FRAME_FIELDS / 8);
        places.iter_mut().zip(fields).for_each(|(place, field)| *place = field.to_le_bytes());
        let shown = std::mem::replace(&mut self.shown, count.div_ceil(8));
        put_words(&bytes[..count], packet);
        if self.shown < shown {
            packet[self.shown..shown].fill([0; 8]);
        }
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
        self.has_changed_maps
    }

    /// A number that only grows, and is another one after each change of a map, by any worker. A
    /// program that [adopts](Self::adopt) maps goes on with that of the program before.
    #[inline]
    #[must_use]
    pub fn map_changes(&self) -> u64 {
        self.maps.changes()
    }

    /// The number of changes that the last run has left behind.
    #[inline]
    #[must_use]
    pub fn map_changes_seen(&self) -> u64 {
        self.maps.seen()
    }

    /// What the program has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How the maps are declared.
    #[must_use]
    pub fn defs(&self) -> &[MapDef] {
        &self.defs
    }

    /// Number of entries that a map has.
    #[must_use]
    pub fn count(&self, map: usize) -> u32 {
        self.maps.look(map, Map::count)
    }

    /// The value of a key; of an `lpm` map, that of the longest prefix.
    ///
    /// # Errors
    /// The key is none of the map's, or the map has no such entry.
    pub fn get(&self, map: usize, key: &[u8]) -> Result<Vec<u8>, MapError> {
        let key = self.key(map, key)?;
        self.maps.look(map, |map| {
            let found = map.find(&key, &mut u32::MAX.clone()).flatten();
            found.map(|entry| map.value(entry).to_vec()).ok_or(MapError::Missing)
        })
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Key or value are none of the map's, or it is full.
    pub fn set(&mut self, map: usize, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        let key = self.key(map, key)?;
        if value.len() != self.defs[map].value_bytes() {
            return Err(MapError::Value);
        }
        self.maps.change(map, |map| {
            let entered = map.enter(&key, Update::Any, &mut u32::MAX.clone());
            map.set_value(entered.ok_or(MapError::Full)??, value);
            Ok(())
        })
    }

    /// Deletes an entry.
    ///
    /// # Errors
    /// The key is none of the map's, the map has no such entry, or it is an array.
    pub fn delete(&mut self, map: usize, key: &[u8]) -> Result<(), MapError> {
        let key = self.key(map, key)?;
        let remove = |map: &mut Map| map.remove(&key, &mut u32::MAX.clone());
        self.maps.change(map, |map| remove(map).ok_or(MapError::Missing)?)
    }

    fn key(&self, map: usize, key: &[u8]) -> Result<Key, MapError> {
        let is_its_own = key.len() == self.defs[map].key_bytes();
        if is_its_own { Ok(Key::new(key)) } else { Err(MapError::Key) }
    }

    /// Up to `max` entries of a map from a place on: the place behind each, its key and its value.
    #[must_use]
    pub fn entries(&self, map: usize, from: u32, max: usize) -> Vec<(u32, Vec<u8>, Vec<u8>)> {
        let mut next = Some(from);
        self.maps.look(map, |map| {
            let entries = std::iter::from_fn(|| {
                let (entry, key) = map.entry(next?)?;
                next = entry.checked_add(1);
                Some((entry + 1, key, map.value(entry).to_vec()))
            });
            entries.take(max).collect()
        })
    }
}

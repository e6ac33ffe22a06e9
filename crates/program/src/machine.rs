//! The machine that runs a program: registers, steps, calls and helpers.
//!
//! An interpreter of instructions that were decoded and [quickened](crate::quicken) before: one
//! jump leads to what an instruction does, and it is done there. An instruction takes one step of
//! [`STEPS_MAX`], one of sixteen bytes two; helpers take more by what they look at. The machine
//! takes the steps where a block ends (a jump, a call, a return), so a run exceeds the limit by one
//! block at most, whatever loops it has. A fault ends the run; what it has changed in maps stays. A
//! run that may only read them ends at the first change ([`crate::store`]).

use std::slice;

use crate::dispatch::{
    Insn, Op, Register, apply, execute, low, low_signed, operations, signed, swap_16,
};
use crate::fault::{Fault, FaultKind};
use crate::limits::{CALLS_MAX, PORTS_MAX, SEARCH_STEPS, STACK, STEPS_MAX};
use crate::maps::{Key, Map, MapError, Searched, Update, VALUE_MAX};
use crate::memory::{
    FRAME_REGION, MAP_REGION, Memory, STACK_REGION, address, load, map_of, offset_of, region_of,
    to_usize,
};
use crate::mix::{begin, mix, words};
use crate::store::{Reach, Touch};

/// What a run has to itself.
pub(crate) struct Machine<'a> {
    pub(crate) memory: &'a mut Memory,
    pub(crate) maps: Reach<'a>,
    /// Places of the program's maps.
    pub(crate) places: &'a [usize],
    /// What the run has done to them.
    pub(crate) touch: Touch,
    /// Ports that the program has added to its set.
    pub(crate) ports: &'a mut Vec<u16>,
    pub(crate) now_us: u64,
    /// Functions that wait.
    pub(crate) calls: &'a mut [Caller; CALLS_MAX],
    /// Steps that are left.
    pub(crate) steps: u32,
    depth: usize,
}

/// A function that waits for another one to return.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caller {
    /// Where it goes on.
    at: usize,
    /// Registers 6 to 9, which the other one must keep.
    kept: [u64; 4],
}

/// A number for each register; the last place stays empty.
type Registers = [u64; Register::Immediate as usize + 1];

/// Loads a number into a register, or ends the run.
macro_rules! load {
    ($machine:ident, $bytes:literal, $at:expr, $to:expr) => {
        match $machine.load::<$bytes>($at) {
            Some(number) => $to = number,
            None => break FaultKind::Read,
        }
    };
}

/// Stores the operand of an instruction, or ends the run.
macro_rules! store {
    ($machine:ident, $bytes:literal, $at:expr, $insn:ident, $registers:ident) => {
        if $machine.store::<$bytes>($at, operand($insn, &$registers)).is_none() {
            break FaultKind::Write;
        }
    };
}

/// Calls a helper, or ends the run.
macro_rules! help {
    ($machine:ident, $insn:ident, $registers:ident) => {
        if let Some(fault) = $machine.help($insn.op, &mut $registers) {
            break fault;
        }
    };
}

/// What a helper or a call returns to errors: Linux's numbers, negative.
fn failure(errno: i64) -> u64 {
    (-errno).cast_unsigned()
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        memory: &'a mut Memory,
        (maps, places): (Reach<'a>, &'a [usize]),
        ports: &'a mut Vec<u16>,
        calls: &'a mut [Caller; CALLS_MAX],
        now_us: u64,
    ) -> Self {
        let (touch, steps, depth) = (Touch::Read, STEPS_MAX, 0);
        Self { memory, maps, places, touch, ports, now_us, calls, steps, depth }
    }

    /// Runs a program to its end; returns what it returned.
    pub(crate) fn run(&mut self, code: &[Insn]) -> Result<u64, Fault> {
        let mut registers: Registers = [0; _];
        registers[1] = address(FRAME_REGION, 0);
        registers[10] = address(STACK_REGION, STACK);
        let mut begin = 0;
        'blocks: loop {
            let mut rest = code.get(begin..).unwrap_or_default().iter();
            // Where the run leaves the block: behind the instruction at hand.
            let next = |rest: &slice::Iter<'_, Insn>| code.len() - rest.len();
            let fault = loop {
                let Some(insn) = rest.next() else { break FaultKind::Code };
                let (dst, src) = (insn.dst as usize, insn.src as usize);
                operations!(execute! (self, insn, rest, registers, {
                    self.pay(begin, next(&rest))?;
                    begin = place(insn);
                    continue 'blocks;
                }) {
                    Op::Load1 => load!(self, 1, beside(insn, registers[src]), registers[dst]),
                    Op::Load2 => load!(self, 2, beside(insn, registers[src]), registers[dst]),
                    Op::Load4 => load!(self, 4, beside(insn, registers[src]), registers[dst]),
                    Op::Load8 => load!(self, 8, beside(insn, registers[src]), registers[dst]),
                    Op::Store1 => store!(self, 1, beside(insn, registers[dst]), insn, registers),
                    Op::Store2 => store!(self, 2, beside(insn, registers[dst]), insn, registers),
                    Op::Store4 => store!(self, 4, beside(insn, registers[dst]), insn, registers),
                    Op::Store8 => store!(self, 8, beside(insn, registers[dst]), insn, registers),
                    Op::Atomic4 | Op::Atomic8 => {
                        let at = beside(insn, registers[dst]);
                        if let Some(fault) = self.atomic(insn, at, &mut registers) {
                            break fault;
                        }
                    }
                    Op::Wide => {
                        registers[dst] = insn.imm;
                        rest.next();
                    }
                    Op::Call => {
                        self.pay(begin, next(&rest))?;
                        self.call(&mut registers, next(&rest))?;
                        begin = place(insn);
                        continue 'blocks;
                    }
                    Op::Exit => {
                        self.pay(begin, next(&rest))?;
                        if self.depth == 0 {
                            return Ok(registers[0]);
                        }
                        begin = self.give_back(&mut registers);
                        continue 'blocks;
                    }
                    Op::Lookup => match self.lookup_short(registers[1], registers[2]) {
                        Some(place) => registers[0] = place,
                        None => help!(self, insn, registers),
                    },
                    Op::Update | Op::Delete | Op::Time | Op::Hash | Op::AddPort | Op::Trap
                        | Op::Hole => help!(self, insn, registers),
                });
            };
            self.pay(begin, next(&rest))?;
            return Err(Fault { kind: fault, at: next(&rest).saturating_sub(1) });
        }
    }

    /// Takes steps for the instructions of a block that has ended, or ends the run.
    #[inline(always)]
    fn pay(&mut self, begin: usize, next: usize) -> Result<(), Fault> {
        let left = u32::try_from(next.saturating_sub(begin))
            .ok()
            .and_then(|insns| self.steps.checked_sub(insns));
        self.steps = left.unwrap_or(0);
        left.map(drop).ok_or(Fault { kind: FaultKind::Steps, at: next.saturating_sub(1) })
    }

    /// Takes the steps for something of so many bytes, or ends the run.
    fn pay_for(&mut self, bytes: usize) -> Result<(), FaultKind> {
        self.steps = paid_for(self.steps, bytes)?;
        Ok(())
    }

    #[inline(never)]
    fn atomic(&mut self, insn: &Insn, place: u64, registers: &mut Registers) -> Option<FaultKind> {
        match insn.op {
            Op::Atomic4 => self.exchange::<4>(insn, place, registers).err(),
            _ => self.exchange::<8>(insn, place, registers).err(),
        }
    }

    fn exchange<const BYTES: usize>(
        &mut self,
        insn: &Insn,
        place: u64,
        registers: &mut Registers,
    ) -> Result<(), FaultKind> {
        let old = self.load::<BYTES>(place).ok_or(FaultKind::Read)?;
        let with = registers[insn.src as usize];
        let low = |number| if BYTES == 4 { apply(Op::Low32, number, 0) } else { number };
        let compares = insn.how == Op::Same;
        let new = match compares {
            true if old == low(registers[0]) => with,
            true => old,
            false => apply(insn.how, old, with),
        };
        self.store::<BYTES>(place, new).ok_or(FaultKind::Write)?;
        match compares {
            true => registers[0] = old,
            false if insn.imm != 0 => registers[insn.src as usize] = old,
            false => {}
        }
        Ok(())
    }

    /// Begins a function, which has a stack of its own.
    fn call(&mut self, registers: &mut Registers, next: usize) -> Result<(), Fault> {
        if self.depth + 1 >= CALLS_MAX {
            return Err(Fault { kind: FaultKind::Calls, at: next - 1 });
        }
        let mut kept = [0; 4];
        kept.copy_from_slice(&registers[6..10]);
        self.calls[self.depth] = Caller { at: next, kept };
        self.depth += 1;
        registers[10] = address(STACK_REGION, (self.depth + 1) * STACK);
        Ok(())
    }

    /// Ends a function; returns where its caller goes on.
    fn give_back(&mut self, registers: &mut Registers) -> usize {
        self.depth -= 1;
        let Caller { at, kept } = self.calls[self.depth];
        registers[6..10].copy_from_slice(&kept);
        registers[10] = address(STACK_REGION, (self.depth + 1) * STACK);
        at
    }

    /// Calls a helper; returns how it failed.
    #[inline(never)]
    fn help(&mut self, helper: Op, registers: &mut Registers) -> Option<FaultKind> {
        let &mut [_, a, b, c, d, ..] = registers;
        match self.helped(helper, [a, b, c, d]) {
            Ok(result) => {
                registers[0] = result;
                None
            }
            Err(fault) => Some(fault),
        }
    }

    fn helped(&mut self, helper: Op, [a, b, c, d]: [u64; 4]) -> Result<u64, FaultKind> {
        match helper {
            Op::Lookup => self.lookup(a, b),
            Op::Update => self.update(a, b, c, d),
            Op::Delete => self.delete(a, b),
            Op::Time => Ok(self.now_us.saturating_mul(1000)),
            Op::Hash => {
                let bytes = to_usize(b);
                self.pay_for(bytes)?;
                Ok(hash(c, self.bytes(a, bytes)?))
            }
            Op::AddPort => {
                if self.ports.len() == PORTS_MAX {
                    return Err(FaultKind::Ports);
                }
                self.ports.push(u16::try_from(a).map_err(|_| FaultKind::Decision)?);
                Ok(0)
            }
            Op::Trap => Err(FaultKind::Panic),
            _ => Err(FaultKind::Code),
        }
    }

    /// A map of the program.
    #[inline(always)]
    fn map(&self, map: usize) -> Option<&Map> {
        self.maps.map(*self.places.get(map)?)
    }

    /// A map of the program, to change it. Also `None`: the run may only read, and ends here.
    #[inline(always)]
    fn map_mut(&mut self, map: usize) -> Option<&mut Map> {
        let place = *self.places.get(map)?;
        match &mut self.maps {
            Reach::Alone(maps) => {
                self.touch = Touch::Changed;
                maps.get_mut(place)?.as_mut()
            }
            Reach::Read(_) => {
                self.touch = Touch::NeedsAlone;
                None
            }
        }
    }

    /// All bytes from an address to the end of its region.
    #[inline(always)]
    fn from(&self, address: u64) -> Option<&[u8]> {
        let region = region_of(address);
        let bytes = match region.checked_sub(MAP_REGION) {
            None => self.memory.region(region)?,
            Some(map) => self.map(map)?.values(),
        };
        bytes.get(offset_of(address)..)
    }

    /// So many bytes from an address on.
    fn bytes(&self, address: u64, count: usize) -> Result<&[u8], FaultKind> {
        self.from(address).and_then(|bytes| bytes.get(..count)).ok_or(FaultKind::Read)
    }

    /// Reads a number.
    #[inline(always)]
    fn load<const BYTES: usize>(&self, address: u64) -> Option<u64> {
        match self.memory.load_near::<BYTES>(address) {
            Some(number) => Some(number),
            None => self.load_far::<BYTES>(address),
        }
    }

    /// Reads a number of a map or of constants.
    #[inline(never)]
    fn load_far<const BYTES: usize>(&self, address: u64) -> Option<u64> {
        self.from(address).and_then(load::<BYTES>)
    }

    /// Writes a number to the stack, or to a value of a map.
    #[inline(always)]
    fn store<const BYTES: usize>(&mut self, address: u64, number: u64) -> Option<()> {
        match self.memory.store_near::<BYTES>(address, number) {
            Some(()) => Some(()),
            None => self.store_far::<BYTES>(address, number),
        }
    }

    /// Writes a number to a value of a map.
    #[inline(never)]
    fn store_far<const BYTES: usize>(&mut self, address: u64, number: u64) -> Option<()> {
        let map = self.map_mut(region_of(address).checked_sub(MAP_REGION)?)?;
        map.write::<BYTES>(offset_of(address), number)
    }

    /// The map that a handle stands for, and the key at an address, copied out.
    #[inline(always)]
    fn map_and_key(&mut self, handle: u64, key: u64) -> Result<(usize, Key), FaultKind> {
        let number = map_of(handle).ok_or(FaultKind::Map)?;
        let bytes = self.map(number).ok_or(FaultKind::Map)?.def().key_bytes();
        self.pay_for(bytes)?;
        Ok((number, Key::new(self.bytes(key, bytes)?)))
    }

    /// The address of a key's value, or 0, where the key is at most a word in the frame or on the
    /// stack. `None`: it is not, or there is a fault; [`Machine::lookup`] tells.
    #[inline(never)]
    fn lookup_short(&mut self, handle: u64, key: u64) -> Option<u64> {
        let number = map_of(handle)?;
        let map = self.map(number)?;
        let word = map.short_key(self.memory.load_near::<8>(key)?)?;
        let mut steps = paid_for(self.steps, 1).ok()?;
        let found = map.find_short(word, &mut steps)?;
        let place = found.map_or(0, |entry| address(MAP_REGION + number, map.start(entry)));
        self.steps = steps;
        Some(place)
    }

    fn lookup(&mut self, handle: u64, key: u64) -> Result<u64, FaultKind> {
        let number = map_of(handle).ok_or(FaultKind::Map)?;
        let map = self.map(number).ok_or(FaultKind::Map)?;
        let bytes = map.def().key_bytes();
        let mut steps = paid_for(self.steps, bytes)?;
        let key = Key::new(self.bytes(key, bytes)?);
        let found = map.find(&key, &mut steps).ok_or(FaultKind::Steps)?;
        let place = found.map_or(0, |entry| address(MAP_REGION + number, map.start(entry)));
        self.steps = steps;
        Ok(place)
    }

    fn update(&mut self, handle: u64, key: u64, value: u64, flags: u64) -> Result<u64, FaultKind> {
        let (number, key) = self.map_and_key(handle, key)?;
        let bytes = self.map(number).ok_or(FaultKind::Map)?.def().value_bytes();
        self.pay_for(bytes)?;
        let mut copy = [0; VALUE_MAX];
        copy[..bytes].copy_from_slice(self.bytes(value, bytes)?);
        let how = match flags {
            0 => Update::Any,
            1 => Update::New,
            2 => Update::Old,
            _ => return Ok(failure(EINVAL)),
        };
        self.change(number, |map, steps| {
            let entered = map.enter(&key, how, steps)?;
            Some(entered.map(|entry| map.set_value(entry, &copy[..bytes])))
        })
    }

    fn delete(&mut self, handle: u64, key: u64) -> Result<u64, FaultKind> {
        let (number, key) = self.map_and_key(handle, key)?;
        self.change(number, |map, steps| map.remove(&key, steps))
    }

    /// Lets `change` change a map; returns what its helper does.
    fn change(
        &mut self,
        number: usize,
        change: impl FnOnce(&mut Map, &mut u32) -> Searched<Result<(), MapError>>,
    ) -> Result<u64, FaultKind> {
        let (mut steps, before) = (self.steps, self.touch);
        let map = self.map_mut(number).ok_or(FaultKind::Map)?;
        let changed = change(map, &mut steps);
        self.steps = steps;
        if !matches!(changed, Some(Ok(()))) {
            self.touch = before;
        }
        Ok(changed.ok_or(FaultKind::Steps)?.map_or_else(|it| failure(it.errno()), |()| 0))
    }
}

const EINVAL: i64 = 22;

/// What is left of some steps behind something of so many bytes.
#[inline(always)]
pub(crate) fn paid_for(steps: u32, bytes: usize) -> Result<u32, FaultKind> {
    let words = u32::try_from(bytes.div_ceil(8)).map_err(|_| FaultKind::Steps)?;
    let price = words.saturating_add(1).saturating_mul(SEARCH_STEPS);
    steps.checked_sub(price).ok_or(FaultKind::Steps)
}

/// The operand of a store.
#[inline(always)]
fn operand(insn: &Insn, registers: &Registers) -> u64 {
    match insn.src {
        Register::Immediate => insn.imm,
        register => registers[register as usize],
    }
}

/// An address of an instruction, by the one in a register.
#[inline(always)]
fn beside(insn: &Insn, base: u64) -> u64 {
    base.wrapping_add_signed(insn.offset.into())
}

/// Where a jump leads.
#[inline(always)]
fn place(insn: &Insn) -> usize {
    usize::try_from(insn.offset).unwrap_or(usize::MAX)
}

/// A hash of some bytes, the same on each machine and in each version.
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    mix(begin(seed ^ bytes.len() as u64), words(bytes))
}

//! The machine that runs a program: registers, steps, calls and helpers.
//!
//! An interpreter of instructions that were decoded before. An instruction takes one step of
//! [`STEPS_MAX`], one of sixteen bytes two; helpers take more by what they look at. The machine
//! takes the steps where a block ends (a jump, a call, a return), so a run exceeds the limit by one
//! block at most, whatever loops it has. A fault ends the run; what it has changed in maps stays. A
//! run that may only read them ends at the first change ([`crate::store`]).

use std::slice;

use crate::dispatch::{Insn, Op, Outcome, Register, apply, result};
use crate::fault::{Fault, FaultKind};
use crate::limits::{CALLS_MAX, PORTS_MAX, SEARCH_STEPS, STACK, STEPS_MAX};
use crate::maps::{Key, Map, MapError, Searched, Update, VALUE_MAX};
use crate::memory::{
    FRAME_REGION, MAP_REGION, Memory, STACK_REGION, address, load, map_of, offset_of, region_of,
    store, to_usize,
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

/// How a block of instructions ends: where the run goes on, or with a return.
enum End {
    Jump(usize),
    Call(usize),
    Return,
}

/// A number for each register; the last place stays empty.
type Registers = [u64; Register::Immediate as usize + 1];

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
        loop {
            let insns = code.get(begin..).unwrap_or_default();
            let mut rest = insns.iter();
            let end = self.block(&mut rest, &mut registers);
            let count = insns.len() - rest.len();
            let next = begin + count;
            let fault = |kind| Fault { kind, at: next.saturating_sub(1) };
            self.pay(count).map_err(fault)?;
            begin = match end.map_err(fault)? {
                End::Jump(place) => place,
                End::Call(place) => {
                    self.call(&mut registers, next).map_err(fault)?;
                    place
                }
                End::Return if self.depth == 0 => return Ok(registers[0]),
                End::Return => self.give_back(&mut registers),
            };
        }
    }

    /// Runs instructions up to one that leads elsewhere.
    #[inline(always)]
    fn block(
        &mut self,
        insns: &mut slice::Iter<'_, Insn>,
        registers: &mut Registers,
    ) -> Result<End, FaultKind> {
        while let Some(insn) = insns.next() {
            let (to, src) = (insn.dst as usize, registers[insn.src as usize]);
            let dst = registers[to];
            let operand = if insn.src == Register::Immediate { insn.imm } else { src };
            let beside = |base: u64| base.wrapping_add_signed(insn.offset.into());
            match result(insn.op, dst, operand) {
                Outcome::Number(number) => registers[to] = number,
                Outcome::Condition(false) => {}
                Outcome::Condition(true) => return Ok(End::Jump(place(insn))),
                Outcome::Other => match insn.op {
                    Op::Load1 => registers[to] = self.load::<1>(beside(src))?,
                    Op::Load2 => registers[to] = self.load::<2>(beside(src))?,
                    Op::Load4 => registers[to] = self.load::<4>(beside(src))?,
                    Op::Load8 => registers[to] = self.load::<8>(beside(src))?,
                    Op::Store1 => self.store::<1>(beside(dst), operand)?,
                    Op::Store2 => self.store::<2>(beside(dst), operand)?,
                    Op::Store4 => self.store::<4>(beside(dst), operand)?,
                    Op::Store8 => self.store::<8>(beside(dst), operand)?,
                    Op::Atomic4 => self.atomic::<4>(insn, beside(dst), registers)?,
                    Op::Atomic8 => self.atomic::<8>(insn, beside(dst), registers)?,
                    Op::Wide => {
                        registers[to] = insn.imm;
                        insns.next();
                    }
                    Op::Call => return Ok(End::Call(place(insn))),
                    Op::Exit => return Ok(End::Return),
                    _ => registers[0] = self.help(insn.op, registers)?,
                },
            }
        }
        Err(FaultKind::Code)
    }

    /// Takes steps for so many instructions, or ends the run.
    fn pay(&mut self, insns: usize) -> Result<(), FaultKind> {
        let left = u32::try_from(insns).ok().and_then(|insns| self.steps.checked_sub(insns));
        self.steps = left.unwrap_or(0);
        left.map(drop).ok_or(FaultKind::Steps)
    }

    /// Takes the steps for something of so many bytes, or ends the run.
    fn pay_for(&mut self, bytes: usize) -> Result<(), FaultKind> {
        self.steps = paid_for(self.steps, bytes)?;
        Ok(())
    }

    fn atomic<const BYTES: usize>(
        &mut self,
        insn: &Insn,
        place: u64,
        registers: &mut Registers,
    ) -> Result<(), FaultKind> {
        let (old, with) = (self.load::<BYTES>(place)?, registers[insn.src as usize]);
        let low = |number| if BYTES == 4 { apply(Op::Low32, number, 0) } else { number };
        let compares = insn.how == Op::Same;
        let new = match compares {
            true if old == low(registers[0]) => with,
            true => old,
            false => apply(insn.how, old, with),
        };
        self.store::<BYTES>(place, new)?;
        match compares {
            true => registers[0] = old,
            false if insn.imm != 0 => registers[insn.src as usize] = old,
            false => {}
        }
        Ok(())
    }

    /// Begins a function, which has a stack of its own.
    fn call(&mut self, registers: &mut Registers, next: usize) -> Result<(), FaultKind> {
        if self.depth + 1 >= CALLS_MAX {
            return Err(FaultKind::Calls);
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

    fn help(&mut self, helper: Op, registers: &Registers) -> Result<u64, FaultKind> {
        let &[_, a, b, c, d, ..] = registers;
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
    fn load<const BYTES: usize>(&self, address: u64) -> Result<u64, FaultKind> {
        self.from(address).and_then(load::<BYTES>).ok_or(FaultKind::Read)
    }

    /// Writes a number to the stack, or to a value of a map.
    #[inline(always)]
    fn store<const BYTES: usize>(&mut self, address: u64, number: u64) -> Result<(), FaultKind> {
        let (region, offset) = (region_of(address), offset_of(address));
        let written = match region.checked_sub(MAP_REGION) {
            None if region == STACK_REGION => {
                let rest = self.memory.region_mut(STACK_REGION).get_mut(offset..);
                rest.and_then(|rest| store::<BYTES>(rest, number))
            }
            None => None,
            Some(map) => self.map_mut(map).and_then(|map| map.write::<BYTES>(offset, number)),
        };
        written.ok_or(FaultKind::Write)
    }

    /// The map that a handle stands for, and the key at an address, copied out.
    #[inline(always)]
    fn map_and_key(&mut self, handle: u64, key: u64) -> Result<(usize, Key), FaultKind> {
        let number = map_of(handle).ok_or(FaultKind::Map)?;
        let bytes = self.map(number).ok_or(FaultKind::Map)?.def().key_bytes();
        self.pay_for(bytes)?;
        Ok((number, Key::new(self.bytes(key, bytes)?)))
    }

    fn lookup(&mut self, handle: u64, key: u64) -> Result<u64, FaultKind> {
        let number = map_of(handle).ok_or(FaultKind::Map)?;
        let map = self.map(number).ok_or(FaultKind::Map)?;
        let bytes = map.def().key_bytes();
        let mut steps = paid_for(self.steps, bytes)?;
        let key = Key::new(self.bytes(key, bytes)?);
        let found = map.find(&key, &mut steps).ok_or(FaultKind::Steps)?;
        let place = found.map_or(0, |entry| address(MAP_REGION + number, map.place(entry).start));
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
fn paid_for(steps: u32, bytes: usize) -> Result<u32, FaultKind> {
    let words = u32::try_from(bytes.div_ceil(8)).map_err(|_| FaultKind::Steps)?;
    let price = words.saturating_add(1).saturating_mul(SEARCH_STEPS);
    steps.checked_sub(price).ok_or(FaultKind::Steps)
}

/// Where a jump leads.
#[inline(always)]
fn place(insn: &Insn) -> usize {
    usize::try_from(insn.offset).unwrap_or(usize::MAX)
}

/// A hash of some bytes, the same on each machine and in each version.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    mix(begin(seed ^ bytes.len() as u64), words(bytes))
}

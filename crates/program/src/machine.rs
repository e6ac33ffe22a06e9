//! The machine that runs a program: registers, steps, calls and helpers.
//!
//! An interpreter of instructions that were decoded before. Each instruction takes a step of
//! [`STEPS_MAX`], and helpers take more by what they look at, so the time of a run is bounded, with
//! whatever loops. A fault ends the run; what it has changed in maps stays. A run that may only
//! read them ends at the first change ([`crate::store`]).

use crate::dispatch::{Helper, IMMEDIATE, Insn, Kind, Op, apply};
use crate::fault::{Fault, FaultKind};
use crate::limits::{CALLS_MAX, PORTS_MAX, SEARCH_STEPS, STACK, STEPS_MAX};
use crate::maps::{Key, Map, MapError, Searched, Update, VALUE_MAX};
use crate::memory::{
    FRAME_REGION, MAP_REGION, Memory, STACK_REGION, address, load, map_of, offset_of, region_of,
    store, to_usize,
};
use crate::mix::mix;
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

/// A number for each value of the four bits that name a register.
type Registers = [u64; 16];

#[inline(always)]
fn at(register: u8) -> usize {
    usize::from(register & 15)
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
        let mut registers: Registers = [0; 16];
        registers[1] = address(FRAME_REGION, 0);
        registers[10] = address(STACK_REGION, STACK);
        // The steps are at hand in a register, but while a helper takes some.
        let (mut next, mut steps) = (0, STEPS_MAX);
        loop {
            let place = next;
            let step = code.get(place).ok_or(FaultKind::Code).and_then(|insn| {
                next += 1;
                steps = steps.checked_sub(1).ok_or(FaultKind::Steps)?;
                if let Kind::Helper(helper) = insn.kind {
                    self.steps = steps;
                    let [_, a, b, c, d, ..] = registers;
                    registers[0] = self.help(helper, [a, b, c, d])?;
                    steps = self.steps;
                    return Ok(false);
                }
                self.step(insn, &mut registers, &mut next)
            });
            let ended = match step {
                Ok(false) => continue,
                Ok(true) => Ok(registers[0]),
                Err(kind) => Err(Fault { kind, at: place }),
            };
            self.steps = self.steps.min(steps);
            return ended;
        }
    }

    /// Runs an instruction that calls no helper. `true`: the program has returned.
    #[inline(always)]
    fn step(
        &mut self,
        insn: &Insn,
        registers: &mut Registers,
        next: &mut usize,
    ) -> Result<bool, FaultKind> {
        let (dst, src) = (registers[at(insn.dst)], registers[at(insn.src)]);
        let operand = if insn.src == IMMEDIATE { insn.imm } else { src };
        let beside = |base: u64| base.wrapping_add_signed(insn.offset.into());
        match insn.kind {
            Kind::Compute => registers[at(insn.dst)] = apply(insn.op, dst, operand),
            Kind::Wide => {
                registers[at(insn.dst)] = insn.imm;
                *next += 1;
            }
            Kind::Branch => {
                if apply(insn.op, dst, operand) != 0 {
                    *next = place(insn);
                }
            }
            Kind::Load => registers[at(insn.dst)] = self.load(beside(src), insn.op)?,
            Kind::Store => self.store(beside(dst), insn.op, operand)?,
            Kind::Atomic(how) => self.atomic(insn, how, beside(dst), registers)?,
            Kind::Call => {
                self.call(registers, *next)?;
                *next = place(insn);
            }
            Kind::Exit if self.depth == 0 => return Ok(true),
            Kind::Exit => *next = self.give_back(registers),
            Kind::Hole | Kind::Helper(_) => return Err(FaultKind::Code),
        }
        Ok(false)
    }

    /// Takes steps, or ends the run.
    fn pay(&mut self, steps: u32) -> Result<(), FaultKind> {
        self.steps = self.steps.checked_sub(steps).ok_or(FaultKind::Steps)?;
        Ok(())
    }

    /// Takes the steps for something of so many bytes.
    fn pay_for(&mut self, bytes: usize) -> Result<(), FaultKind> {
        let words = u32::try_from(bytes.div_ceil(8)).map_err(|_| FaultKind::Steps)?;
        self.pay(words.saturating_add(1).saturating_mul(SEARCH_STEPS))
    }

    fn atomic(
        &mut self,
        insn: &Insn,
        how: Op,
        place: u64,
        registers: &mut Registers,
    ) -> Result<(), FaultKind> {
        let (old, with) = (self.load(place, insn.op)?, registers[at(insn.src)]);
        let low = |number| match insn.op {
            Op::Size4 => apply(Op::Low32, number, 0),
            _ => number,
        };
        let compares = how == Op::Same;
        let new = match compares {
            true if old == low(registers[0]) => with,
            true => old,
            false => apply(how, old, with),
        };
        self.store(place, insn.op, new)?;
        match compares {
            true => registers[0] = old,
            false if insn.imm != 0 => registers[at(insn.src)] = old,
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

    fn help(&mut self, helper: Helper, [a, b, c, d]: [u64; 4]) -> Result<u64, FaultKind> {
        match helper {
            Helper::Lookup => self.lookup(a, b),
            Helper::Update => self.update(a, b, c, d),
            Helper::Delete => self.delete(a, b),
            Helper::Time => Ok(self.now_us.saturating_mul(1000)),
            Helper::Hash => {
                let bytes = to_usize(b);
                self.pay_for(bytes)?;
                Ok(hash(c, self.bytes(a, bytes)?))
            }
            Helper::AddPort => {
                if self.ports.len() == PORTS_MAX {
                    return Err(FaultKind::Ports);
                }
                self.ports.push(u16::try_from(a).map_err(|_| FaultKind::Decision)?);
                Ok(0)
            }
            Helper::Trap => Err(FaultKind::Panic),
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
    fn load(&self, address: u64, size: Op) -> Result<u64, FaultKind> {
        self.from(address).and_then(|bytes| load(bytes, size)).ok_or(FaultKind::Read)
    }

    /// Writes a number to the stack, or to a value of a map.
    #[inline(always)]
    fn store(&mut self, address: u64, size: Op, number: u64) -> Result<(), FaultKind> {
        let (region, offset) = (region_of(address), offset_of(address));
        let written = match region.checked_sub(MAP_REGION) {
            None if region == STACK_REGION => {
                let rest = self.memory.region_mut(STACK_REGION).get_mut(offset..);
                rest.and_then(|rest| store(rest, size, number))
            }
            None => None,
            Some(map) => self.map_mut(map).and_then(|map| map.write(offset, size, number)),
        };
        written.ok_or(FaultKind::Write)
    }

    /// The map that a handle stands for, and the key at an address, copied out.
    #[inline]
    fn map_and_key(&mut self, handle: u64, key: u64) -> Result<(usize, Key), FaultKind> {
        let number = map_of(handle).ok_or(FaultKind::Map)?;
        let bytes = self.map(number).ok_or(FaultKind::Map)?.def().key_bytes();
        self.pay_for(bytes)?;
        Ok((number, Key::new(self.bytes(key, bytes)?)))
    }

    fn lookup(&mut self, handle: u64, key: u64) -> Result<u64, FaultKind> {
        let (number, key) = self.map_and_key(handle, key)?;
        let mut steps = self.steps;
        let map = self.map(number).ok_or(FaultKind::Map)?;
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

/// Where a jump leads.
#[inline(always)]
fn place(insn: &Insn) -> usize {
    usize::try_from(insn.offset).unwrap_or(usize::MAX)
}

/// A hash of some bytes, the same on each machine and in each version.
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    mix(seed ^ bytes.len() as u64, words)
}

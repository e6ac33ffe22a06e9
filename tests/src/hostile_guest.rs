//! A VMM and its guest that do what they like: vhost-user messages of every kind with any values
//! and files, halves of messages, garbage; queues, descriptors and indirect tables full of random
//! numbers; memory with holes, and memory that goes away. Their seed decides what and when.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bench::frontend::{Frontend, VERSION, pair, request};
use harness::Random;
use harness::role::{HostileGuest, Report};
use ring::guest::{Extent, GuestMapping, GuestMemory, Window};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_setfl, ftruncate};
use rustix::net::RecvFlags;

use super::{doorbells, odd_files};

/// Bytes of the guest's memory, and where it is in the VMM, as far as the switch is told.
const BYTES: u64 = 4 << 20;
const USER: u64 = 1 << 42;
/// All of it, as a message says it.
const TABLE: [u64; 5] = [1, 0, BYTES, USER, 0];
/// Queues of the guest, and bytes of each: descriptors, the driver's page, the device's.
const QUEUES: u32 = 4;
const QUEUE: u64 = 8 * 4096;
/// Where descriptors and indirect tables, the driver's area and the device's are in a queue.
const DRIVER: u64 = 4 * 4096;
const DEVICE: u64 = 6 * 4096;
/// Requests that are not numbers of `bench::frontend::request`, and unknown ones.
const REQUESTS: u32 = 44;

struct Attacker {
    socket: PathBuf,
    random: Random,
    attacks: u64,
    ended: Arc<AtomicBool>,
}

/// A machine with which it is connected.
struct Machine {
    frontend: Frontend,
    file: OwnedFd,
    whole: Window,
    /// Kicks, then calls.
    events: Vec<OwnedFd>,
    is_truncated: bool,
}

/// Attacks until stdin ends.
pub fn run(role: &HostileGuest) -> Report {
    let random = Random::new(role.seed);
    let mut attacker =
        Attacker { socket: role.socket.clone(), random, attacks: 0, ended: super::end_of_stdin() };
    super::say(&Report::Ready);
    while !attacker.is_over() {
        // The switch hangs up on most of it.
        let _ = attacker.connect();
        std::thread::sleep(Duration::from_millis(attacker.random.below(4)));
    }
    Report::Attacked(attacker.attacks)
}

impl Attacker {
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn connect(&mut self) -> io::Result<()> {
        let stream = UnixStream::connect(&self.socket)?;
        // Where the switch answers late, it gets the next message all the same.
        stream.set_read_timeout(Some(Duration::from_millis(200)))?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        match self.random.below(8) {
            0 => self.say_halves(stream),
            _ => self.be_machine(Machine::new(stream)?),
        }
    }

    fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.random.below(bound.into())).expect("below it")
    }

    fn half(&mut self) -> u16 {
        u16::try_from(self.random.any() & 0xffff).expect("masked")
    }

    /// Messages that stop in the middle, and garbage.
    fn say_halves(&mut self, mut stream: UnixStream) -> io::Result<()> {
        for _ in 0..self.random.below(10) {
            self.attacks += 1;
            let mut bytes = self.random.bytes(12);
            if self.random.below(2) == 0 {
                let header = [self.small(REQUESTS), VERSION, self.small(64)];
                bytes = header.into_iter().flat_map(u32::to_ne_bytes).collect();
            }
            let payload = self.random.index(80);
            bytes.extend(self.random.bytes(payload));
            let len = 1 + self.random.index(bytes.len());
            stream.write_all(&bytes[..len])?;
            std::thread::sleep(Duration::from_micros(self.random.below(3000)));
        }
        Ok(())
    }

    fn be_machine(&mut self, mut machine: Machine) -> io::Result<()> {
        if self.random.below(8) > 0 {
            self.boot(&machine)?;
        }
        let mut held = Vec::new();
        let mut left = self.random.below(300);
        while left > 0 && !self.is_over() {
            left -= 1;
            self.attacks += 1;
            self.attack(&mut machine, &mut held)?;
            machine.take_answers();
            if self.random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(self.random.below(2000)));
            }
        }
        Ok(())
    }

    /// What a VMM says before a driver is at work, mostly right.
    fn boot(&mut self, machine: &Machine) -> io::Result<()> {
        let offered = machine.frontend.ask(request::GET_FEATURES)?;
        let kept = if self.random.below(2) == 0 { u64::MAX } else { self.random.any() };
        // Without REPLY_ACK: it does not wait for answers.
        let protocol = machine.frontend.ask(request::GET_PROTOCOL_FEATURES)? & !8;
        machine.tell(request::SET_PROTOCOL_FEATURES, &[protocol & self.random.any()], &[])?;
        machine.tell(request::SET_OWNER, &[], &[])?;
        machine.tell(request::SET_FEATURES, &[offered & (kept | 1 << 30 | 1 << 32)], &[])?;
        machine.tell(request::SET_MEM_TABLE, &TABLE, &[machine.file.as_fd()])?;
        (0..QUEUES / 2).try_for_each(|index| self.set_up(machine, index))
    }

    /// Stops a queue in one way or another, or does not.
    fn stop(&mut self, machine: &Machine, index: u32) -> io::Result<()> {
        match self.random.below(4) {
            0 => machine.tell(request::GET_VRING_BASE, &[index.into()], &[]),
            1 => machine.tell(request::SET_VRING_ENABLE, &[pair(index, 0)], &[]),
            2 => machine.tell(request::SET_MEM_TABLE, &TABLE, &[machine.file.as_fd()]),
            _ => Ok(()),
        }
    }

    fn set_up(&mut self, machine: &Machine, index: u32) -> io::Result<()> {
        let size = if self.random.below(8) == 0 { self.random.any() } else { 256 };
        let size = u32::try_from(size & 0xffff).expect("masked");
        machine.tell(request::SET_VRING_NUM, &[pair(index, size)], &[])?;
        machine.tell(request::SET_VRING_BASE, &[pair(index, 0)], &[])?;
        machine.tell(request::SET_VRING_ADDR, &places(index), &[])?;
        let [kick, call] = machine.doorbells(index);
        machine.tell(request::SET_VRING_KICK, &[index.into()], &[kick])?;
        machine.tell(request::SET_VRING_CALL, &[index.into()], &[call])?;
        machine.tell(request::SET_VRING_ENABLE, &[pair(index, 1)], &[])
    }

    fn attack(&mut self, machine: &mut Machine, held: &mut Vec<OwnedFd>) -> io::Result<()> {
        match self.random.below(64) {
            0..40 => self.scribble(machine),
            40..46 => self.flood_kicks(machine),
            46..50 => self.change_events(machine, held),
            50..52 => self.punch(machine),
            52..57 => {
                // Most machines have one pair of queues.
                let queue = if self.random.below(64) == 0 { self.small(6) } else { self.small(2) };
                self.stop(machine, queue)?;
                self.set_up(machine, queue)?;
            }
            57 if self.random.below(8) == 0 => {
                ftruncate(&machine.file, self.random.below(BYTES))?;
                machine.is_truncated = true;
            }
            // Most of them end the connection.
            58 | 59 => self.say(machine)?,
            _ => std::thread::sleep(Duration::from_micros(self.random.below(500))),
        }
        Ok(())
    }

    /// Numbers all over the queues: wild ones, and such that the switch may believe.
    fn scribble(&mut self, machine: &Machine) {
        // What is gone cannot be written.
        if machine.is_truncated {
            return;
        }
        for _ in 0..64 {
            let queue = QUEUE * self.random.below(u64::from(QUEUES) / 2);
            match self.random.below(8) {
                0 => {
                    let at = self.random.index(to_size(BYTES) / 8) * 8;
                    machine.whole.u64(at).store(self.random.any(), Ordering::Relaxed);
                }
                1..4 => self.descriptor(machine, queue),
                4..6 => self.entry(machine, queue),
                _ => self.index(machine, queue),
            }
        }
        self.kick(machine);
    }

    /// A descriptor of a queue or of an indirect table, split or packed.
    fn descriptor(&mut self, machine: &Machine, queue: u64) {
        let at = to_size(queue) + 16 * self.random.index(to_size(DRIVER) / 16);
        let address = match self.random.below(8) {
            0 => self.random.any(),
            1 => BYTES - self.random.below(64),
            // A table among the descriptors.
            2 | 3 => queue + 16 * self.random.below(DRIVER / 16),
            _ => self.random.below(BYTES),
        };
        let len = match self.random.below(8) {
            0 => self.random.any() & 0xffff_ffff,
            1 | 2 => 16 * self.random.below(64),
            _ => 1 + self.random.below(2048),
        };
        // NEXT, WRITE, INDIRECT; AVAIL and USED of packed queues; the next descriptor, or an id.
        let flags = if self.random.below(2) == 0 { self.random.any() & 0x8087 } else { 0 };
        let next = self.random.below(300);
        machine.whole.u64(at).store(address, Ordering::Relaxed);
        machine.whole.u64(at + 8).store(len | flags << 32 | next << 48, Ordering::Release);
    }

    /// An entry of the driver's area, or of the device's, which is not the driver's to write.
    fn entry(&mut self, machine: &Machine, queue: u64) {
        let area = *self.random.one_of(&[DRIVER, DRIVER, DRIVER, DEVICE]);
        // Seldom the device's flags and index.
        let first = if self.random.below(64) == 0 { 0 } else { 2 };
        let at = to_size(queue + area) + 2 * (first + self.random.index(600));
        let value = if self.random.below(8) == 0 { self.half() } else { self.half() % 256 };
        machine.whole.u16(at).store(value, Ordering::Relaxed);
    }

    /// The driver's index: so far ahead of the device's as it may be, or anywhere.
    fn index(&mut self, machine: &Machine, queue: u64) {
        let used = machine.whole.u16(to_size(queue + DEVICE) + 2).load(Ordering::Relaxed);
        let ahead = if self.random.below(64) == 0 { self.half() } else { self.half() % 256 };
        let index = machine.whole.u16(to_size(queue + DRIVER) + 2);
        index.store(used.wrapping_add(ahead), Ordering::Release);
    }

    fn kick(&mut self, machine: &Machine) {
        let event = self.random.one_of(&machine.events);
        let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
    }

    fn flood_kicks(&mut self, machine: &Machine) {
        (0..self.random.below(1000)).for_each(|_| self.kick(machine));
    }

    /// Fills, watches or changes doorbells, and goes on without sleeping in them.
    fn change_events(&mut self, machine: &Machine, held: &mut Vec<OwnedFd>) {
        let event = self.random.one_of(&machine.events);
        match self.random.below(4) {
            0 => doorbells::fill(event.as_fd()),
            1 if held.is_empty() => *held = doorbells::watch(event.as_fd(), 2000),
            2 => drop(rustix::io::read(event, &mut [0; 8])),
            _ => drop(fcntl_setfl(event, *self.random.one_of(&[OFlags::empty(), OFlags::ASYNC]))),
        }
        std::thread::sleep(Duration::from_micros(self.random.below(200)));
        let _ = fcntl_setfl(event, OFlags::NONBLOCK);
    }

    fn punch(&mut self, machine: &Machine) {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = 1 + self.random.below(BYTES);
        let _ = fallocate(&machine.file, punch, self.random.below(BYTES), len);
    }

    /// A message with values and files that fit more or less.
    fn say(&mut self, machine: &Machine) -> io::Result<()> {
        let number = self.small(REQUESTS);
        let flags = match self.random.below(8) {
            0 => self.small(16),
            1 => VERSION | 8,
            _ => VERSION,
        };
        let mut payload: Vec<u8> =
            (0..self.words_of(number)).flat_map(|_| self.value().to_ne_bytes()).collect();
        if self.random.below(8) == 0 {
            let count = self.random.index(40);
            payload = self.random.bytes(count);
        }
        let count = match number {
            5 | 6 | 7 | 12 | 13 | 14 | 32 | 37 => self.random.below(3),
            _ => self.random.below(9) / 8,
        };
        let files = (0..count).map(|_| self.file_for(machine)).collect::<io::Result<Vec<_>>>()?;
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        machine.frontend.send(number, flags, &payload, &fds)
    }

    fn file_for(&mut self, machine: &Machine) -> io::Result<OwnedFd> {
        match self.random.below(3) {
            0 => odd_files::any(&mut self.random, machine.frontend.as_fd()),
            1 => Ok(machine.file.try_clone()?),
            _ => Ok(self.random.one_of(&machine.events).try_clone()?),
        }
    }

    /// Words of eight bytes that a request has, by the specification.
    fn words_of(&mut self, number: u32) -> u64 {
        match number {
            // One region, or several.
            5 => 1 + 4 * (1 + self.random.below(3)),
            6 | 17 => 2,
            9 | 37 | 38 => 5,
            31 | 32 => 3,
            1 | 3 | 4 | 15 | 34 | 36 | 40 => 0,
            _ => 1,
        }
    }

    /// A number that means something somewhere, or none.
    fn value(&mut self) -> u64 {
        let places = places(0);
        match self.random.below(16) {
            0 => self.random.any(),
            1 => u64::MAX,
            2 => BYTES,
            3 => USER + 16 * self.random.below(BYTES / 16),
            4 => *self.random.one_of(&places),
            5 => 4096 * self.random.below(2048),
            6 => pair(1, 1),
            7 => pair(self.small(5), 256),
            _ => self.random.below(4),
        }
    }
}

fn to_size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("64 bits")
}

/// Where a queue is: its number, and its areas in the order of the message.
fn places(index: u32) -> [u64; 5] {
    let base = USER + QUEUE * u64::from(index);
    [index.into(), base, base + DEVICE, base + DRIVER, 0]
}

impl Machine {
    fn new(stream: UnixStream) -> io::Result<Self> {
        let file = odd_files::memory(BYTES)?;
        let lent = GuestMapping::map(&file, 0, to_size(BYTES))?;
        let extent = Extent { guest: 0, user: USER, size: BYTES, offset: 0, lent };
        let memory = GuestMemory::new(vec![extent]).expect("one");
        let whole = memory.window(USER, to_size(BYTES), 1).expect("all of it");
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let events: Result<Vec<_>, _> = (0..2 * QUEUES).map(|_| event()).collect();
        let frontend = Frontend(stream);
        Ok(Self { frontend, file, whole, events: events?, is_truncated: false })
    }

    fn tell(&self, request: u32, values: &[u64], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.frontend.tell(request, values, fds)
    }

    /// The kick and the call of a queue.
    fn doorbells(&self, index: u32) -> [BorrowedFd<'_>; 2] {
        [index, QUEUES + index].map(|at| self.events[at as usize % self.events.len()].as_fd())
    }

    /// Receives the daemon's answers, and drops them.
    fn take_answers(&self) {
        let take = || rustix::net::recv(&self.frontend, &mut [0; 4096], RecvFlags::DONTWAIT);
        while take().is_ok_and(|(_, count)| count > 0) {}
    }
}

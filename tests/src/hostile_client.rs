//! A client that does whatever its socket, its memory and its descriptors let it do: documented
//! calls with foreign names, calls with errors in them, garbage; numbers all over its region;
//! floods of kicks, holes, odd modes and files. Its seed decides what and when.
//!
//! It never waits for the daemon longer than a moment, and it dies when the test likes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::control::Connection;
use harness::Random;
use harness::role::{HostileClient, Report};
use harness::socket::send_beside;
use protocol::paths::SOCKET_NAME;
use protocol::{Attach, MAX_MESSAGE};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, SealFlags, fallocate, fcntl_setfl};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};

use super::scribble::Target;
use super::{doorbells, odd_files};

/// A call of each kind, one on each line.
const CALLS: &str = include_str!("../../crates/protocol/tests/calls.txt");
/// Threads that it lets sleep in the kernel, at most.
const SLEEPERS_MAX: u32 = 8;

struct Attacker {
    socket: PathBuf,
    dir: PathBuf,
    ports: Vec<String>,
    random: Random,
    attacks: u64,
    sleepers: u32,
    ended: Arc<AtomicBool>,
    /// Regions that it keeps after it has given the port back.
    kept: Vec<OwnedFd>,
}

/// Attacks until stdin ends.
pub fn run(role: &HostileClient) -> Report {
    let mut attacker = Attacker {
        socket: role.dir.join(SOCKET_NAME),
        dir: role.dir.clone(),
        ports: role.ports.clone(),
        random: Random::new(role.seed),
        attacks: 0,
        sleepers: 0,
        ended: super::end_of_stdin(),
        kept: Vec::new(),
    };
    super::say(&Report::Ready);
    while !attacker.is_over() {
        // The daemon refuses much of it, and hangs up; so may the system.
        let _ = match attacker.random.below(4) {
            0 => attacker.talk(),
            1 => attacker.churn(),
            _ => attacker.hold(),
        };
        attacker.kept.truncate(20);
        std::thread::sleep(Duration::from_millis(attacker.random.below(4)));
    }
    Report::Attacked(attacker.attacks)
}

impl Attacker {
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Calls and garbage on one connection; it reads some of the answers.
    fn talk(&mut self) -> io::Result<()> {
        let socket = self.connect()?;
        for _ in 0..self.random.below(40) {
            let message = self.message();
            self.attacks += 1;
            if self.random.below(6) == 0 {
                let most = if self.random.below(8) == 0 { 253 } else { 4 };
                let count = 1 + self.random.below(most);
                let files = (0..count).map(|_| odd_files::any(&mut self.random, socket.as_fd()));
                send_beside(&socket, &message, &files.collect::<io::Result<Vec<_>>>()?)?;
            } else {
                send(&socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
            }
            if self.random.below(2) == 0 {
                let _ = recv(&socket, &mut [0; 4096], RecvFlags::DONTWAIT);
            }
        }
        Ok(())
    }

    /// Many connections that attach, and go without a look at the answer.
    fn churn(&mut self) -> io::Result<()> {
        let sockets: io::Result<Vec<_>> =
            (0..1 + self.random.below(16)).map(|_| self.connect()).collect();
        for socket in &sockets? {
            let attach = self.attach();
            let call = serde_json::json!({"v": 1, "call": {"attach": attach}}).to_string();
            self.attacks += 1;
            send(socket, call.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        }
        std::thread::sleep(Duration::from_millis(self.random.below(3)));
        Ok(())
    }

    /// Attaches, and attacks by what it got.
    fn hold(&mut self) -> io::Result<()> {
        let connection = Connection::open(Some(&self.dir)).map_err(io::Error::other)?;
        let attach = self.attach();
        let (attached, fds) = connection.attach(attach).map_err(io::Error::other)?;
        let mut target = Target::new(attached, fds, Random::new(self.random.any()));
        let socket = connection.into_fd();
        // Its own kicks must not put it to sleep.
        fcntl_setfl(&target.fds.kick, OFlags::NONBLOCK)?;
        let mut held = Vec::new();
        let mut left = self.random.below(200);
        while left > 0 && !self.is_over() {
            left -= 1;
            self.attacks += 1;
            self.attack(&mut target, &socket, &mut held)?;
            if self.random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(self.random.below(2000)));
            }
        }
        if self.random.below(4) == 0 {
            self.kept.push(target.fds.region.try_clone()?);
        }
        Ok(())
    }

    /// One attack by a port.
    fn attack(
        &mut self,
        target: &mut Target,
        socket: &OwnedFd,
        held: &mut Vec<OwnedFd>,
    ) -> io::Result<()> {
        match self.random.below(64) {
            0..40 => drop(target.burst()),
            40..46 => self.flood_kicks(target.fds.kick.as_fd()),
            46..50 => self.change_mode(target),
            50..53 => self.punch(target),
            53..55 => self.resize(target),
            55..57 => self.write_file(target),
            57 if held.is_empty() => {
                *held = doorbells::watch(self.some_doorbell(target), 2000);
            }
            58 => self.sleep_in_doorbell(target)?,
            59 => self.replace(target)?,
            60 => self.take_wakes(target),
            61 => self.give_away(target, socket)?,
            _ => {
                let message = self.message();
                send(socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
            }
        }
        Ok(())
    }

    fn flood_kicks(&mut self, kick: BorrowedFd<'_>) {
        // It would sleep itself otherwise.
        let _ = fcntl_setfl(kick, OFlags::NONBLOCK);
        for _ in 0..self.random.below(1000) {
            let count = if self.random.below(50) == 0 { self.random.any() } else { 1 };
            let _ = rustix::io::write(kick, &count.to_ne_bytes());
        }
    }

    fn some_doorbell<'a>(&mut self, target: &'a Target) -> BorrowedFd<'a> {
        let fds = &target.fds;
        if self.random.below(2) == 0 { fds.kick.as_fd() } else { fds.wake.as_fd() }
    }

    /// What may be changed is changed; what may not is refused.
    fn change_mode(&mut self, target: &Target) {
        const MODES: [OFlags; 5] =
            [OFlags::empty(), OFlags::NONBLOCK, OFlags::APPEND, OFlags::ASYNC, OFlags::DIRECT];
        let mode = *self.random.one_of(&MODES);
        match self.random.below(5) {
            0 => drop(fcntl_setfl(&target.fds.region, mode)),
            1 => drop(rustix::fs::flock(
                &target.fds.region,
                FlockOperation::NonBlockingLockExclusive,
            )),
            2 => {
                let size = 1 << self.random.below(21);
                let _ = rustix::pipe::fcntl_setpipe_size(&target.fds.wake, size);
            }
            _ => drop(fcntl_setfl(self.some_doorbell(target), mode)),
        }
        let _ = fcntl_setfl(&target.fds.kick, mode | OFlags::NONBLOCK);
    }

    fn punch(&mut self, target: &Target) {
        let size = target.size() as u64;
        let (from, len) = match self.random.below(4) {
            0 => (0, size),
            _ => (self.random.below(size), 1 + self.random.below(1 << 16)),
        };
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(&target.fds.region, punch, from, len);
    }

    fn resize(&mut self, target: &Target) {
        let region = &target.fds.region;
        let _ = rustix::fs::ftruncate(region, self.random.below(2 * target.size() as u64));
        let seals = [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL];
        let _ = rustix::fs::fcntl_add_seals(region, *self.random.one_of(&seals));
        let _ = fallocate(region, FallocateFlags::empty(), target.size() as u64, 1 << 20);
    }

    /// Bytes by a system call, not by the mapping.
    fn write_file(&mut self, target: &Target) {
        let bytes = self.garbage(16_384);
        let at = self.random.below(target.size() as u64);
        let _ = rustix::io::pwrite(&target.fds.region, &bytes, at);
    }

    /// Threads that sleep in a doorbell, if the kernel lets them.
    fn sleep_in_doorbell(&mut self, target: &Target) -> io::Result<()> {
        if self.sleepers >= SLEEPERS_MAX {
            return Ok(());
        }
        self.sleepers += 2;
        let kick = target.fds.kick.as_fd().try_clone_to_owned()?;
        if self.random.below(2) == 0 {
            doorbells::splice_for_ever(kick);
        } else {
            doorbells::fill(kick.as_fd());
            std::thread::spawn(move || rustix::io::write(&kick, &1_u64.to_ne_bytes()));
        }
        // The threads sleep by now; this one goes on.
        std::thread::sleep(Duration::from_millis(2));
        let _ = fcntl_setfl(&target.fds.kick, OFlags::NONBLOCK);
        Ok(())
    }

    /// Closes a descriptor early: another file takes its place.
    fn replace(&mut self, target: &mut Target) -> io::Result<()> {
        let odd = odd_files::any(&mut self.random, target.fds.kick.as_fd())?;
        let fds = &mut target.fds;
        match self.random.below(3) {
            0 => *fds.kick.fd_mut() = odd,
            1 => fds.wake = odd,
            _ => fds.region = odd,
        }
        // A write to what is there now must not put it to sleep.
        let _ = fcntl_setfl(&fds.kick, OFlags::NONBLOCK);
        Ok(())
    }

    /// Takes all wake-ups, so that no thread of the port sees them.
    fn take_wakes(&mut self, target: &Target) {
        let _ = fcntl_setfl(&target.fds.wake, OFlags::NONBLOCK);
        drain(&target.fds.wake);
    }

    /// Sends its descriptors to the daemon that they came from.
    fn give_away(&mut self, target: &Target, socket: &OwnedFd) -> io::Result<()> {
        let fds = &target.fds;
        let gifts = [
            fds.kick.as_fd().try_clone_to_owned()?,
            fds.wake.try_clone()?,
            fds.region.try_clone()?,
        ];
        send_beside(socket, &self.message(), &gifts)?;
        Ok(())
    }

    fn connect(&self) -> io::Result<OwnedFd> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(&self.socket)?)?;
        Ok(socket)
    }

    fn port(&mut self) -> String {
        self.random.one_of(&self.ports).clone()
    }

    /// An attach in some shape.
    fn attach(&mut self) -> Attach {
        let port = self.port().parse().expect("a name");
        let mut some = |bound| (self.random.below(3) == 0).then(|| self.random.below(bound));
        let rings = some(6).and_then(|rings| u16::try_from(rings).ok());
        let slots = some(14).map(|bits| 1_u32 << bits);
        let group = some(2).map(|number| format!("g{number}"));
        Attach {
            tx_rings: rings,
            rx_rings: rings,
            tx_slots: slots,
            extra_bufs: some(100).and_then(|count| u32::try_from(count).ok()),
            group_memory: group.as_ref().map(|_| 16 << 20),
            group,
            ..Attach::new(port)
        }
    }

    /// A message: a call, a call with errors, or garbage.
    fn message(&mut self) -> Vec<u8> {
        match self.random.below(16) {
            0 => {
                let longest = if self.random.below(8) == 0 { 100_000 } else { 1000 };
                self.garbage(longest)
            }
            1 => self.call().bytes().cycle().take(MAX_MESSAGE).collect(),
            2..7 => self.spoilt_call(),
            _ => self.call().into_bytes(),
        }
    }

    fn garbage(&mut self, longest: usize) -> Vec<u8> {
        let count = 1 + self.random.index(longest);
        self.random.bytes(count)
    }

    /// A call as it is documented, about one of its names.
    fn call(&mut self) -> String {
        let calls: Vec<&str> = CALLS.lines().collect();
        let call = *self.random.one_of(&calls);
        let port = self.port();
        let (switch, _) = port.split_once(':').expect("a port of a switch");
        let call = call.replace("vale0:a", &port).replace("\"vale0\"", &format!("{switch:?}"));
        format!(r#"{{"v":1,"call":{call}}}"#)
    }

    /// A call with a few bytes changed, without its end, or with two ends.
    fn spoilt_call(&mut self) -> Vec<u8> {
        let mut bytes = self.call().into_bytes();
        for _ in 0..=self.random.below(3) {
            let at = self.random.index(bytes.len());
            match self.random.below(4) {
                0 => bytes.truncate(at + 1),
                1 => bytes.extend_from_within(at..),
                2 => bytes[at] = *self.random.one_of(b"{}:\"[]09\\,-"),
                _ => bytes[at] = self.random.any().to_le_bytes()[0],
            }
        }
        bytes
    }
}

/// Takes what there is, in a file that may have no end.
fn drain(file: &OwnedFd) {
    let mut reads = (0..1000).map(|_| rustix::io::read(file, &mut [0; 4096]));
    let _ = reads.find(|read| !matches!(read, Ok(1..)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client puts odd files in the place of its descriptors.
    #[test]
    fn a_file_without_an_end_is_left_after_a_while() {
        drain(&std::fs::File::open("/dev/zero").expect("a device").into());
    }
}

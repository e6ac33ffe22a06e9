//! The peer of a `stream` or `dgram` port that sends what it likes: frames of any length, in a
//! stream cut anywhere and behind lengths that are wrong. It watches its socket very often, stops
//! reading, goes and comes again. Its seed decides what and when.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use harness::Random;
use harness::frames::announcement;
use harness::role::{HostilePeer, Report};

use super::doorbells;

/// How long a call for its socket waits.
const PATIENCE: Duration = Duration::from_millis(20);
/// The station of its frames, unless they are nonsense.
const STATION: u32 = 8;
/// Epoll watches of its socket.
const WATCHES: u32 = 2000;

struct Attacker<'a> {
    role: &'a HostilePeer,
    random: Random,
    attacks: u64,
    ended: Arc<AtomicBool>,
}

enum Socket {
    Stream(UnixStream),
    Datagrams(UnixDatagram),
}

/// Attacks until stdin ends.
pub fn run(role: &HostilePeer) -> Report {
    let (random, ended) = (Random::new(role.seed), super::end_of_stdin());
    let mut attacker = Attacker { role, random, attacks: 0, ended };
    super::say(&Report::Ready);
    while !attacker.is_over() {
        // The port hangs up on most of it.
        let _ = attacker.connect();
        std::thread::sleep(Duration::from_millis(attacker.random.below(4)));
    }
    Report::Attacked(attacker.attacks)
}

impl Attacker<'_> {
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn connect(&mut self) -> io::Result<()> {
        let mut socket = Socket::open(self.role)?;
        let mut held = Vec::new();
        let mut left = self.random.below(200);
        while left > 0 && !self.is_over() {
            left -= 1;
            self.attacks += 1;
            match self.random.below(32) {
                0 if held.is_empty() => held = doorbells::watch(socket.as_fd(), WATCHES),
                1 => held.clear(),
                // Meanwhile it reads nothing.
                2..6 => std::thread::sleep(Duration::from_micros(self.random.below(5000))),
                6..12 => socket.receive()?,
                _ => socket.send(self.role, &self.bytes())?,
            }
        }
        Ok(())
    }

    /// A frame as it is sent, or what is none.
    fn bytes(&mut self) -> Vec<u8> {
        let len = match self.random.below(16) {
            0 => self.random.index(14),
            1 => self.random.index(70_000),
            _ => 60 + self.random.index(1500),
        };
        let mut frame = announcement(STATION);
        if self.random.below(8) == 0 {
            frame = self.random.bytes(frame.len());
        }
        frame.resize(len, 0);
        if self.role.peer.is_some() {
            return frame;
        }
        let length = match self.random.below(32) {
            0 => self.random.any() & 0xffff_ffff,
            _ => frame.len() as u64,
        };
        let length = u32::try_from(length).expect("masked, or short").to_be_bytes();
        let mut bytes = [&length[..], &frame].concat();
        if self.random.below(32) == 0 {
            bytes.truncate(self.random.index(bytes.len()));
        }
        bytes
    }
}

impl Socket {
    fn open(role: &HostilePeer) -> io::Result<Self> {
        let Some(path) = &role.peer else {
            let socket = UnixStream::connect(&role.socket)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.set_write_timeout(Some(PATIENCE))?;
            return Ok(Self::Stream(socket));
        };
        // The socket of an earlier life is still there.
        let _ = std::fs::remove_file(path);
        let socket = UnixDatagram::bind(path)?;
        // Also for a daemon of another user.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self::Datagrams(socket))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stream(socket) => socket.as_fd(),
            Self::Datagrams(socket) => socket.as_fd(),
        }
    }

    /// Receives what is there. An error ends the connection.
    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; 1 << 14];
        let received = match self {
            Self::Stream(socket) => socket.read(&mut bytes),
            Self::Datagrams(socket) => socket.recv(&mut bytes),
        };
        match received {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    fn send(&mut self, role: &HostilePeer, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stream(socket) => socket.write_all(bytes),
            Self::Datagrams(socket) => {
                // A full queue, a frame that is too long, or no port: it goes on.
                let _ = socket.send_to(bytes, &role.socket);
                Ok(())
            }
        }
    }
}

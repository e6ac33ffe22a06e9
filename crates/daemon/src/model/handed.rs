//! A client's port on its way from a daemon to the next one.
//!
//! ```text
//!   while the daemon runs    HandedPort + copies of descriptors    for each port
//!   when it has stopped      Parting, a file in memory             for all ports, by their keys
//! ```
//!
//! The next daemon takes over ports of which it has both.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

use packet::MacAddr;
use port::shm::PortMemory;
use port::sys::Kick;
use ring::krings::{Positions, RxPosition, TxPosition};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::specs::RingSpec;

/// What the next daemon gets of a port while this one goes on.
#[derive(Debug)]
pub struct Copies {
    /// Rings and buffers.
    pub rings: RingSpec,
    /// Region, kicks, doorbell: see [`HandedPort`](protocol::HandedPort).
    pub fds: [OwnedFd; 3],
}

/// What a worker needs to go on with a port.
#[derive(Debug)]
pub struct Inherited {
    /// The memory, which is built and in use.
    pub memory: PortMemory,
    /// What the client kicks by, at each worker, where it rings for no port yet.
    pub kicks: Vec<Kick>,
    /// The daemon's end of the client's doorbell.
    pub wake: OwnedFd,
    /// Where the switch is in the rings.
    pub at: Positions,
}

/// What a daemon says when its workers have stopped. A field that one of the two daemons does not
/// know is none that it needs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Parting {
    /// Microseconds in which systemd wants a report of the service (`WatchdogSec=`).
    #[serde(default)]
    pub watchdog_us: u64,
    /// The ports, by [`HandedPort::key`](protocol::HandedPort::key).
    pub ports: Vec<StoppedPort>,
}

/// A port where its worker has stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoppedPort {
    /// The number by which it was handed over.
    pub key: u32,
    bell: u32,
    tx: Vec<TxAt>,
    rx: Vec<RxAt>,
    /// The addresses that were learned behind it, with their VLANs.
    #[serde(default)]
    pub stations: Vec<(MacAddr, u16)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TxAt {
    next: u32,
    resyncs: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct RxAt {
    tail: u32,
    returned: u32,
    filled: u64,
    waiter: u32,
    resyncs: u32,
}

impl StoppedPort {
    /// A port with what was learned behind it.
    #[must_use]
    pub fn new(key: u32, at: Positions, stations: Vec<(MacAddr, u16)>) -> Self {
        let tx = |TxPosition { next, resyncs }| TxAt { next, resyncs };
        let rx = |RxPosition { tail, returned, filled, waiter, resyncs }| RxAt {
            tail,
            returned,
            filled,
            waiter,
            resyncs,
        };
        let (tx, rx) = (at.tx.into_iter().map(tx).collect(), at.rx.into_iter().map(rx).collect());
        Self { key, bell: at.bell, tx, rx, stations }
    }

    /// Where the switch is in its rings. The port that goes on there bounds the numbers.
    #[must_use]
    pub fn positions(&self) -> Positions {
        let tx = |&TxAt { next, resyncs }: &TxAt| TxPosition { next, resyncs };
        let rx = |&RxAt { tail, returned, filled, waiter, resyncs }: &RxAt| RxPosition {
            tail,
            returned,
            filled,
            waiter,
            resyncs,
        };
        Positions {
            bell: self.bell,
            tx: self.tx.iter().map(tx).collect(),
            rx: self.rx.iter().map(rx).collect(),
        }
    }
}

/// The longest text of a daemon that is read.
const LONGEST: u64 = 256 << 20;

impl Parting {
    /// Writes it to a file in memory: it may be longer than a message.
    ///
    /// # Errors
    /// No memory or descriptors left.
    pub fn write(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("uvala-parting", MemfdFlags::CLOEXEC)?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// Reads what another daemon has written.
    ///
    /// # Errors
    /// The file cannot be read, or says something else.
    pub fn read(fd: OwnedFd) -> io::Result<Self> {
        let (mut file, mut text) = (File::from(fd), Vec::new());
        file.rewind()?;
        file.take(LONGEST).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parting() -> Parting {
        let rx = RxPosition { tail: 7, returned: 5, filled: 1 << 40, waiter: 3, resyncs: 0 };
        let tx = vec![TxPosition { next: 9, resyncs: 2 }; 2];
        let at = Positions { bell: 77, tx, rx: vec![rx] };
        let mac = "02:00:00:00:00:01".parse().expect("an address");
        Parting { watchdog_us: 5, ports: vec![StoppedPort::new(4, at, vec![(mac, 1)])] }
    }

    #[test]
    fn what_a_daemon_says_at_its_end_is_what_the_next_one_reads() {
        let said = parting();
        let read = Parting::read(said.write().expect("memory")).expect("JSON");
        assert_eq!(format!("{read:?}"), format!("{said:?}"));
        assert_eq!(read.ports[0].positions(), said.ports[0].positions());
    }

    #[test]
    fn what_a_later_version_adds_is_passed_over_and_what_it_leaves_out_is_an_error() {
        let mut json = serde_json::to_value(parting()).expect("plain data");
        json["ports"][0]["more"] = 1.into();
        let read: Parting = serde_json::from_value(json.clone()).expect("the fields are there");
        assert_eq!(read.ports.len(), 1);
        json["ports"][0].as_object_mut().expect("one").remove("rx");
        assert!(serde_json::from_value::<Parting>(json).is_err());
    }
}

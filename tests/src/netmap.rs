//! A program that holds a netmap descriptor, as the library for such programs does it: the
//! descriptor is a control connection, rings are read and written where netmap has them, syncs go
//! through [`client::netmap`].

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use client::control::{Connection, ControlError, PortFds};
use client::netmap::Binding;
use client::{Error, Lost};
use protocol::{Bind, Bound};
use ring::abi::{NetmapIf, NetmapRing, Slot};
use rustix::event::{PollFd, PollFlags, Timespec};

/// An open descriptor that has bound something.
#[derive(Debug)]
pub struct Descriptor {
    socket: OwnedFd,
    binding: Binding,
    memory: File,
}

/// One ring, by its place in the region.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    at: u64,
    slots: u32,
}

impl Descriptor {
    /// Opens `/dev/netmap` and registers, so to speak.
    pub fn bind(dir: &Path, bind: Bind) -> Result<Self, Error> {
        let connection = Connection::open(Some(dir))?;
        let (bound, fds) = connection.bind(bind)?;
        Self::new(connection.into_fd(), bound, fds)
    }

    /// Resumes the port of a descriptor that another process has bound.
    pub fn resume(dir: &Path, socket: OwnedFd) -> Result<Self, Error> {
        let (bound, fds) = Connection::from_fd(socket.as_fd(), dir).resume()?;
        Self::new(socket, bound, fds)
    }

    fn new(socket: OwnedFd, bound: Bound, fds: PortFds) -> Result<Self, Error> {
        let memory = fds.region.try_clone().map_err(Error::Map)?;
        Ok(Self { socket, binding: Binding::new(bound, fds)?, memory: memory.into() })
    }

    /// The descriptor itself, to be passed on.
    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// What it has bound.
    #[must_use]
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    fn bound(&self) -> &Bound {
        self.binding.bound()
    }

    /// The offset of ring `i`, counted as in `ring_ofs`; `None` where it is not bound.
    #[must_use]
    pub fn ring_ofs(&self, i: u16) -> Option<u64> {
        let entry = size_of::<NetmapIf>() as u64 + 8 * u64::from(i);
        let mut offset = [0; 8];
        self.memory.read_exact_at(&mut offset, self.bound().nifp + entry).expect("in the region");
        Some(u64::from_ne_bytes(offset)).filter(|offset| *offset != 0)
    }

    /// Transmit ring `i`; those on the host's side come after the others.
    ///
    /// # Panics
    /// If it is not bound.
    #[must_use]
    pub fn tx(&self, i: u16) -> Ring {
        self.ring(self.sides()[0] + i, self.bound().attached.tx_slots)
    }

    /// Receive ring `i`, likewise.
    ///
    /// # Panics
    /// If it is not bound.
    #[must_use]
    pub fn rx(&self, i: u16) -> Ring {
        let [before, after] = self.sides();
        let tx_rings = before + self.bound().attached.tx_rings + after;
        self.ring(tx_rings + before + i, self.bound().attached.rx_slots)
    }

    /// Rings of the other side that stand before ours in `ring_ofs`, and after.
    fn sides(&self) -> [u16; 2] {
        match &self.bound().host {
            Some(host) => [0, host.attached.tx_rings],
            None if self.bound().attached.port.is_host_side() => [1, 0],
            None => [0, 1],
        }
    }

    fn ring(&self, i: u16, slots: u32) -> Ring {
        let at = self.bound().nifp + self.ring_ofs(i).expect("a ring that is bound");
        Ring { at, slots }
    }

    /// A word of the region.
    #[must_use]
    pub fn word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.memory.read_exact_at(&mut word, at).expect("in the region");
        u32::from_ne_bytes(word)
    }

    /// Writes a word of the region.
    pub fn set_word(&self, at: u64, value: u32) {
        self.memory.write_all_at(&value.to_ne_bytes(), at).expect("in the region");
    }

    /// `head`, `cur` and `tail`.
    #[must_use]
    pub fn indexes(&self, ring: Ring) -> [u32; 3] {
        [20, 24, 28].map(|field| self.word(ring.at + field))
    }

    /// Moves `cur`, then `head`.
    pub fn advance(&self, ring: Ring, to: u32) {
        self.set_word(ring.at + 24, to);
        self.set_word(ring.at + 20, to);
    }

    /// Where a slot is.
    #[must_use]
    pub fn slot_at(&self, ring: Ring, slot: u32) -> u64 {
        ring.at + (size_of::<NetmapRing>() + slot as usize * size_of::<Slot>()) as u64
    }

    /// Number of the buffer in a slot.
    #[must_use]
    pub fn buffer(&self, ring: Ring, slot: u32) -> u32 {
        self.word(self.slot_at(ring, slot))
    }

    /// Length and flags of a slot.
    #[must_use]
    pub fn len_and_flags(&self, ring: Ring, slot: u32) -> (usize, u16) {
        let word = self.word(self.slot_at(ring, slot) + 4).to_ne_bytes();
        let half = |i: usize| u16::from_ne_bytes([word[i], word[i + 1]]);
        (usize::from(half(0)), half(2))
    }

    /// Where a buffer is.
    #[must_use]
    pub fn buffer_at(&self, buffer: u32) -> u64 {
        let attached = &self.bound().attached;
        attached.pool + u64::from(buffer) * u64::from(attached.stride)
    }

    /// Buffers in the list of extra ones.
    #[must_use]
    pub fn extra(&self) -> Vec<u32> {
        let follow = |at: u64| Some(self.word(at)).filter(|buffer| *buffer != 0);
        let head = follow(self.bound().nifp + 32);
        std::iter::successors(head, |buffer| follow(self.buffer_at(*buffer))).collect()
    }

    /// Puts a frame into the next free slot of transmit ring `i`, without a sync. `false`: there is
    /// none.
    #[must_use]
    pub fn put(&self, i: u16, frame: &[u8], flags: u16) -> bool {
        let ring = self.tx(i);
        let [head, _, tail] = self.indexes(ring);
        if head == tail {
            return false;
        }
        let len = u16::try_from(frame.len()).expect("a frame of one slot");
        self.memory.write_all_at(frame, self.buffer_at(self.buffer(ring, head))).expect("a buffer");
        let word = u32::from(len) | u32::from(flags) << 16;
        self.set_word(self.slot_at(ring, head) + 4, word);
        self.advance(ring, (head + 1) % ring.slots);
        true
    }

    /// Takes the next frame out of receive ring `i`, without a sync; the slot is given back.
    #[must_use]
    pub fn take(&self, i: u16) -> Option<Vec<u8>> {
        let ring = self.rx(i);
        let [head, _, tail] = self.indexes(ring);
        if head == tail {
            return None;
        }
        let mut frame = vec![0; self.len_and_flags(ring, head).0];
        let at = self.buffer_at(self.buffer(ring, head));
        self.memory.read_exact_at(&mut frame, at).expect("a buffer");
        self.advance(ring, (head + 1) % ring.slots);
        Some(frame)
    }

    /// `NIOCTXSYNC`.
    pub fn txsync(&self) -> Result<(), Lost> {
        if self.binding.rings().txsync(false).kick { self.binding.kick() } else { Ok(()) }
    }

    /// `NIOCRXSYNC`.
    pub fn rxsync(&self) -> Result<(), Lost> {
        if self.binding.rings().rxsync([1, 2]).kick { self.binding.kick() } else { Ok(()) }
    }

    /// `poll`: waits until a transmit or a receive ring is ready, as asked. `false`: the time is
    /// over.
    pub fn poll(&self, tx: bool, rx: bool, timeout: Duration) -> Result<bool, Lost> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut synced = self.binding.rings().txsync(!tx);
            let mut ready = synced.ready && tx;
            if rx {
                let received = self.binding.rings().rxsync([1, 2]);
                ready |= received.ready;
                synced.kick |= received.kick;
            }
            if synced.kick {
                self.binding.kick()?;
            }
            if ready || !self.binding.rings().arm(tx, rx) && Instant::now() < deadline {
                if ready {
                    return Ok(true);
                }
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let left = Timespec::try_from(left).expect("a short time");
            let doorbell = self.binding.doorbell();
            let mut fds = [PollFd::new(&doorbell, PollFlags::IN)];
            if rustix::event::poll(&mut fds, Some(&left)) != Ok(0) {
                self.binding.acknowledge()?;
            }
        }
    }

    /// Sends a frame, after waiting for room.
    pub fn send(&self, frame: &[u8]) -> Result<(), Lost> {
        while !self.put(self.bound().tx.first, frame, 0) {
            self.poll(true, false, crate::wait::PATIENCE)?;
        }
        Ok(())
    }

    /// The next frame, after waiting for one. `None`: the time is over.
    pub fn receive(&self, timeout: Duration) -> Result<Option<Vec<u8>>, Lost> {
        loop {
            if let Some(frame) = self.take(self.bound().rx.first) {
                return Ok(Some(frame));
            }
            if !self.poll(false, true, timeout)? {
                return Ok(None);
            }
        }
    }
}

/// The code of a refusal.
///
/// # Panics
/// If it was none.
#[must_use]
pub fn code(error: &Error) -> protocol::ErrorCode {
    match error {
        Error::Control(ControlError::Refused(failure)) => failure.code,
        other => panic!("{other:?}"),
    }
}

//! A hostile client: random numbers all over what it can map, as fast as it can.

#![allow(unsafe_code)] // UNSAFETY: writes where no honest client would, through a raw mapping.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering};

use client::control::{Connection, PortFds};
use client::{Error, FRAME_MIN};
use harness::Random;
use harness::role::{Report, Scribble};
use protocol::{Attach, Attached};
use ring::cursor::RingSize;
use ring::layout::{PortLayout, RingCounts};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The client's view of its own port.
pub struct Target {
    base: *mut u8,
    attached: Attached,
    port: PortLayout,
    /// What the daemon gave it.
    pub fds: PortFds,
    random: Random,
}

/// Attaches and scribbles until stdin ends.
pub fn run(scribble: &Scribble) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let connection = Connection::open(Some(&scribble.at.dir))?;
    let attach = Attach::new(scribble.at.port.parse()?);
    let (rings, group) = (scribble.at.rings, scribble.at.group.clone());
    let group_memory = scribble.at.group_memory;
    let attach = Attach { tx_rings: rings, rx_rings: rings, group, group_memory, ..attach };
    let (attached, fds) = connection.attach(attach)?;
    let mut target = Target::new(attached, fds, Random::new(scribble.seed));
    if scribble.fill {
        target.fill();
    }
    super::say(&Report::Ready);
    let mut written = 0;
    while !ended.load(Ordering::Relaxed) {
        written += target.burst();
    }
    Ok(Report::Scribbled(written))
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and no code uses it any more.
        unsafe { munmap(self.base.cast(), self.size()).expect("mapped") };
    }
}

impl Target {
    /// Maps the memory of a port.
    pub fn new(attached: Attached, fds: PortFds, random: Random) -> Self {
        let size = usize::try_from(attached.region_bytes).expect("it fits the address space");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, &fds.region, 0) };
        let base = base.expect("a region to map").cast();
        let counts = RingCounts {
            tx_rings: attached.tx_rings,
            rx_rings: attached.rx_rings,
            tx_slots: RingSize::new(attached.tx_slots).expect("what the daemon says"),
            rx_slots: RingSize::new(attached.rx_slots).expect("what the daemon says"),
        };
        let port = PortLayout::new(usize::try_from(attached.block).expect("inside"), counts);
        Self { base, attached, port, fds, random }
    }

    /// Bytes of the region.
    pub fn size(&self) -> usize {
        usize::try_from(self.attached.region_bytes).expect("it fits")
    }

    /// Many numbers, and a kick; returns how many.
    pub fn burst(&mut self) -> u64 {
        const NUMBERS: u64 = 64;
        (0..NUMBERS).for_each(|_| self.scribble());
        self.ring_bell();
        NUMBERS
    }

    /// Commits all that there is.
    fn fill(&mut self) {
        for at in (0..self.size()).step_by(ring::layout::PAGE) {
            self.byte(at).store(1, Ordering::Relaxed);
        }
    }

    /// One number somewhere: sometimes a wild one, sometimes one that the switch may believe.
    fn scribble(&mut self) {
        match self.random.below(16) {
            // The unused part of a group's region is no different, and should stay uncommitted.
            0 => self.wild(0, self.attached.region_bytes.min(64 << 20)),
            1 => self.wild(0, self.attached.pool),
            2 => self.wild(self.port.nifp() as u64, 1024),
            3 => self.frame(),
            4..9 => self.slot(),
            _ => self.csb(),
        }
    }

    fn wild(&mut self, from: u64, size: u64) {
        let at = from + self.random.below(size);
        let value = self.random.any().to_le_bytes()[0];
        self.byte(usize::try_from(at).expect("inside")).store(value, Ordering::Relaxed);
    }

    /// A word of a CSB line of a ring of either direction.
    fn csb(&mut self) {
        let counts = self.port.counts();
        let rings = u64::from(counts.tx_rings) + u64::from(counts.rx_rings);
        let lines = rings * 2 + 1;
        let at = self.port.bell() as u64 + self.random.below(lines) * 64 + self.random.below(4) * 4;
        let value = match self.random.below(8) {
            0 => self.random.any(),
            1 => 0,
            _ => self.random.below(u64::from(self.attached.tx_slots) + 8),
        };
        let value = u32::try_from(value & 0xffff_ffff).expect("masked");
        self.word(at).store(value, Ordering::Relaxed);
    }

    /// A field of a slot, mostly in range.
    fn slot(&mut self) {
        let (start, end) = (self.port.ring(0) as u64, self.port.end() as u64);
        let at = (start + self.random.below(end - start)) & !15;
        let at = at.min(self.attached.pool - 16);
        let buffers = u64::from(self.attached.buffers);
        let index = match self.random.below(8) {
            0 => self.random.any() & 0xffff_ffff,
            _ => self.random.below(buffers + 2),
        };
        self.word(at).store(u32::try_from(index).expect("masked"), Ordering::Relaxed);
        let len = match self.random.below(8) {
            0 => self.random.any() & 0xffff,
            _ => u64::from(FRAME_MIN) + self.random.below(1500),
        };
        self.half(at + 4).store(u16::try_from(len).expect("masked"), Ordering::Relaxed);
        let flags = if self.random.below(4) == 0 { self.random.any() & 0xffff } else { 0 };
        self.half(at + 6).store(u16::try_from(flags).expect("masked"), Ordering::Relaxed);
    }

    /// A header in some buffer.
    fn frame(&mut self) {
        let buffer = self.random.below(u64::from(self.attached.buffers));
        let at = self.attached.pool + buffer * u64::from(self.attached.stride);
        for i in 0..4 {
            let value = u32::try_from(self.random.any() & 0xffff_ffff).expect("masked");
            self.word(at + 4 * i).store(value, Ordering::Relaxed);
        }
    }

    fn ring_bell(&mut self) {
        let count = match self.random.below(4) {
            0 => self.random.any(),
            _ => 1,
        };
        // Full or not, it has rung.
        let _ = rustix::io::write(&self.fds.kick, &count.to_ne_bytes());
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!((at as u64) < self.attached.region_bytes);
        // SAFETY: inside the mapping, as just checked.
        unsafe { AtomicU8::from_ptr(self.base.add(at)) }
    }

    fn half(&self, at: u64) -> &AtomicU16 {
        assert!(at.is_multiple_of(2) && at + 2 <= self.attached.region_bytes);
        let at = usize::try_from(at).expect("inside");
        // SAFETY: inside the mapping and aligned, as just checked; the mapping is page-aligned.
        unsafe { AtomicU16::from_ptr(self.base.add(at).cast()) }
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.attached.region_bytes);
        let at = usize::try_from(at).expect("inside");
        // SAFETY: as in `half`.
        unsafe { AtomicU32::from_ptr(self.base.add(at).cast()) }
    }
}

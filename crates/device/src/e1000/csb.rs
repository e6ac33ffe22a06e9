//! The communication status block: an e1000 that is told by memory instead of by traps.
//!
//! A driver that knows it (subsystem 0x1101) writes the guest address of a page to CSBAH and then
//! CSBAL; 0 in CSBAL ends it. While `guest_csb_on` is set, TDT comes from the page, and each side
//! says there when it wants to be told: a write to TDT or RDT is a *kick*, an interrupt its
//! counterpart. The protocol is that of ANCS'13, "Speeding up packet I/O in virtual machines".
//!
//! ```text
//!   driver, to transmit                       device, before it sleeps
//!   STORE guest_tdt (Release)                 STORE host_need_txkick = 1
//!   fence                ◄───────────────►    fence: its owner's
//!   LOAD  host_need_txkick                    LOAD  guest_tdt (Acquire)
//!   set: write TDT                            moved: do not sleep
//!
//!   device, when descriptors are done         driver, when the ring is full
//!   STORE descriptors, host_tdh (Release)     STORE guest_need_txkick = 1
//!   fence                ◄───────────────►    fence
//!   LOAD  guest_need_txkick                   LOAD  descriptors
//!   set: interrupt                            done: do not wait
//! ```
//!
//! Receiving is the same with `rx` for `tx`; there the driver gives buffers by `guest_rdt`.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `guest_tdt`, `guest_rdt` | driver | device | Release after descriptors / Acquire before them |
//! | `guest_need_txkick`, `guest_need_rxkick` | driver | device | Relaxed, between fences |
//! | `guest_csb_on` | driver | device | Relaxed: looked at in each call |
//! | `host_tdh`, `host_rdh` | device | driver | Release after descriptors / Acquire before them |
//! | `host_need_txkick`, `host_need_rxkick` | device | driver | Relaxed, between fences |
//! | `host_isr` | device | driver | Relaxed: ICR at the last frame; ICR itself may have more |
//!
//! There are two ways to ask for a kick: the flag, and an index (`guest_txkick_at`,
//! `host_rxkick_at`) that the other side's head or tail has to pass; [`NONE`] is no index. A driver
//! uses one of them. The device looks at both of the driver's, and sets both of its own.
//!
//! A driver may switch the block off and on. While it is off, TDT and RDT come from the registers
//! again; but a device that goes to sleep asks for kicks in any case, for the time when it is on.
//!
//! Each word is looked up by its guest address and read once, and an index of it is bounded like
//! that of a register. A page that is not in the guest's memory, or not aligned, is none: the
//! device is a plain e1000 then.
//!
//! Not used: `guest_use_msix` (there is no MSI-X), `host_txcycles` and its limit (how long to spin
//! is for the owner to decide), `vnet_ring`.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, fence};

use ring::guest::GuestMemory;

use super::descriptors::Ring;
use super::registers::{CSBAL, ICR, RDBAL, RDH, RDT, Registers, TDBAL, TDH, TDT};

/// The words of the page: the driver's in one cache line, the device's in the next.
const GUEST_TDT: u64 = 0x00;
const GUEST_NEED_TXKICK: u64 = 0x04;
const GUEST_NEED_RXKICK: u64 = 0x08;
const GUEST_CSB_ON: u64 = 0x0c;
const GUEST_RDT: u64 = 0x10;
const GUEST_TXKICK_AT: u64 = 0x14;
const HOST_TDH: u64 = 0x40;
const HOST_NEED_TXKICK: u64 = 0x44;
const HOST_RDH: u64 = 0x50;
const HOST_NEED_RXKICK: u64 = 0x54;
const HOST_ISR: u64 = 0x58;
const HOST_RXKICK_AT: u64 = 0x5c;
/// No index.
const NONE: u32 = u32::MAX;
/// The page's length, and what its address is a multiple of.
const PAGE: u64 = 4096;

/// A page in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Csb<'a> {
    memory: &'a GuestMemory,
    page: u64,
}

impl<'a> Csb<'a> {
    /// The driver's page, if it has named one.
    pub fn find(registers: &Registers, memory: &'a GuestMemory) -> Option<Self> {
        let page = registers.pair(CSBAL);
        let last = page.checked_add(PAGE - 4)?;
        if page == 0 || !page.is_multiple_of(PAGE) || memory.atomic_u32(last).is_none() {
            return None;
        }
        Some(Self { memory, page })
    }

    /// Whether the driver uses it now.
    pub fn is_on(&self) -> bool {
        self.load(GUEST_CSB_ON) != 0
    }

    fn word(&self, offset: u64) -> Option<&'a AtomicU32> {
        self.memory.atomic_u32(self.page + offset)
    }

    fn load(&self, offset: u64) -> u32 {
        self.word(offset).map_or(0, |word| u32::from_le(word.load(Relaxed)))
    }

    fn store(&self, offset: u64, value: u32) {
        if let Some(word) = self.word(offset) {
            word.store(value.to_le(), Relaxed);
        }
    }

    /// Takes the driver's indexes over into its registers. What is no index of 16 bits leaves them
    /// as they are.
    pub fn take_tails(&self, registers: &mut Registers) {
        for (offset, tail) in [(GUEST_TDT, TDT), (GUEST_RDT, RDT)] {
            let index = self.word(offset).map(|word| u32::from_le(word.load(Acquire)));
            if let Some(index) = index.filter(|index| *index <= 0xffff) {
                registers.set(tail, index);
            }
        }
    }

    /// Shows the driver the device's indexes, behind the descriptors that they stand for.
    pub fn show_heads(&self, registers: &Registers) {
        for (offset, head) in [(HOST_TDH, TDH), (HOST_RDH, RDH)] {
            if let Some(word) = self.word(offset) {
                word.store(registers.get(head).to_le(), Release);
            }
        }
    }

    /// Whether the driver wants to be told that TDH has moved from `from` to where it is. The fence
    /// stands between the descriptors, which are done, and the look at what the driver wants.
    pub fn wants_transmit(&self, registers: &Registers, from: u32) -> bool {
        fence(SeqCst);
        let ring = Ring::new(registers, TDBAL);
        let moved = ring.between(from, registers.get(TDH));
        let passed = (1..=moved).contains(&ring.between(from, self.load(GUEST_TXKICK_AT)));
        passed || self.load(GUEST_NEED_TXKICK) != 0
    }

    /// Whether the driver wants to be told of a frame, which is stored.
    pub fn wants_receive(&self) -> bool {
        fence(SeqCst);
        self.load(GUEST_NEED_RXKICK) != 0
    }

    /// Shows the causes of an interrupt.
    pub fn show_causes(&self, registers: &Registers) {
        self.store(HOST_ISR, registers.get(ICR));
    }

    /// Asks for a kick with the next descriptor to transmit.
    pub fn want_transmit_kick(&self) {
        self.store(HOST_NEED_TXKICK, 1);
    }

    /// Asks for a kick with the next buffer, or when three quarters of the ring are buffers again.
    pub fn want_receive_kick(&self, registers: &Registers) {
        let ring = Ring::new(registers, RDBAL);
        if ring.len > 0 {
            self.store(HOST_RXKICK_AT, (registers.get(RDH) + ring.len / 4 * 3) % ring.len);
            self.store(HOST_NEED_RXKICK, 1);
        }
    }

    /// Asks for no kicks.
    pub fn want_none(&self) {
        self.store(HOST_NEED_TXKICK, 0);
        self.store(HOST_NEED_RXKICK, 0);
        self.store(HOST_RXKICK_AT, NONE);
    }
}

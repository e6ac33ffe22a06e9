//! The 82540EM (8086:100e): a Gigabit Ethernet controller for guests without a paravirtual driver.
//!
//! The manual is Intel's "PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's
//! Manual" (317453). Section numbers in this folder are its own, as are the names of registers,
//! fields and descriptors.
//!
//! # Theory of operation
//!
//! ```text
//!   driver                      device                                    switch's side
//!   BAR 0: read, write ───────► registers ─┬─ eeprom, phy
//!   I/O: IOADDR, IODATA ──────►            │
//!                                          ├─ transmit, offload ─────────► frames, and what is
//!   guest's memory: ◄──────────────────────┤                               left to do to them
//!   descriptors, frames                    ├─ filter, receive ◄────────── frames
//!                                          │
//!   INTx ◄──────────────────────────────── └─ interrupts ◄─────────────── time
//! ```
//!
//! [`E1000`] is a state and the operations on it. Its owner forwards accesses of the driver, calls
//! [`E1000::transmit`] when the driver has moved TDT ([`Effects`]), [`E1000::receive`] with each
//! frame for the guest, and [`E1000::expire`] at [`E1000::deadline`]; after each call it drives the
//! interrupt line to the level of [`E1000::interrupt`]. Time is in nanoseconds, from any beginning,
//! and never goes back.
//!
//! | file | holds | chapter |
//! |---|---|---|
//! | `registers` | the table of all registers | 13 |
//! | `eeprom`, `phy` | EECD, EERD; MDIC and the link | 5, 13.4.7 |
//! | `descriptors` | rings | 3.2.6, 3.4 |
//! | `transmit`, `offload` | descriptors to frames; checksums, segments | 3.3, 3.5, 3.6 |
//! | `receive`, `filter` | frames to descriptors; addresses, VLANs | 3.2, 9 |
//! | `interrupts` | causes, their delays, the line | 3.2.7, 3.4.3 |
//! | `statistics` | counters | 13.7 |
//! | `csb` | an e1000 that knows shared memory; only if [`Config::csb`] | |
//!
//! # What is absent
//!
//! Half duplex, flow control, wake-up, management, loopback, flexible filters, flash, the FCS (no
//! frame has one; IFCS says nothing), the padding of frames that are sent (PSP; receivers pad), and
//! the pieces of the packet buffer. The owner has the PCI configuration space. No memory of the
//! guest is kept mapped between two calls: it is looked up by address each time, because firmware
//! maps it again and again.
//!
//! Everything that the driver writes is bounded where it is read: an offset by the table of
//! registers, a head or a tail by its ring, an address by the guest's memory, a frame by bytes and
//! pieces, a call by its budget.

mod csb;
mod descriptors;
mod eeprom;
mod filter;
mod interrupts;
mod offload;
mod phy;
mod receive;
mod registers;
mod statistics;
mod transmit;

use ring::guest::GuestMemory;

pub use receive::Received;
pub use transmit::{Progress, Sent, TxFrame};

use csb::Csb;
use eeprom::Eeprom;
use interrupts::Interrupts;
use phy::Phy;
use receive::Receiver;
use registers::{
    CSBAH, CSBAL, CTRL, CTRL_EXT, EECD, EERD, ICR, ICS, IMC, IMS, ITR, MDIC, PBA, RAL, RCTL, RDT,
    RDTR, Registers, STATUS, TCTL, TDH, TDT, cause, ctrl, ctrl_ext, rah, rctl, rdtr, status, tctl,
};
use transmit::Transmitter;

/// Bytes of BAR 0, the registers in memory.
pub const BAR0_LEN: u32 = 0x2_0000;
/// Bytes of the BAR in I/O space, a window to the registers (13.2.1).
pub const IO_LEN: u32 = 0x40;
/// The two registers of that window.
const IOADDR: u32 = 0;
const IODATA: u32 = 4;

/// The KiB of the packet buffer, which PBA divides (13.4.16).
const PACKET_BUFFER: u32 = 64;
const PBA_BITS: u32 = 0x7f;

/// The subsystem of a device with a communication status block.
pub const CSB_SUBSYSTEM: u16 = 0x1101;

/// What the operator decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The address in the EEPROM.
    pub mac: [u8; 6],
    /// The least time between two interrupts, whatever the driver asks for, in microseconds.
    pub coalesce_usecs: u16,
    /// The device has a communication status block, and says so by its subsystem.
    pub csb: bool,
}

/// What the owner has to do after a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// There may be something to transmit.
    pub transmit: bool,
    /// There may be buffers for frames that wait.
    pub receive: bool,
}

/// Frames that the driver made impossible, and buffers that are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// A frame with more bytes or pieces than can be sent.
    pub too_long: u64,
    /// A frame without a whole Ethernet header.
    pub too_short: u64,
    /// A buffer outside of the guest's memory, in either direction.
    pub outside: u64,
    /// A checksum or segments that do not fit the frame's headers.
    pub malformed: u64,
}

/// Frames, and how often driver and device told each other of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames of the guest. A run of segments is one.
    pub tx_frames: u64,
    /// Frames that the guest has got.
    pub rx_frames: u64,
    /// Writes to TDT.
    pub tx_kicks: u64,
    /// Writes to RDT.
    pub rx_kicks: u64,
    /// Rises of the interrupt line.
    pub interrupts: u64,
    /// Frames received, and batches of descriptors written back, that did not raise the line at
    /// once: it was up, moderation held it down, or the driver wanted no interrupt.
    pub suppressed: u64,
}

/// An 82540EM.
#[derive(Debug)]
pub struct E1000 {
    registers: Registers,
    eeprom: Eeprom,
    phy: Phy,
    interrupts: Interrupts,
    transmitter: Transmitter,
    receiver: Receiver,
    counts: Counts,
    traffic: Traffic,
    /// IOADDR.
    io_address: u32,
    has_csb: bool,
}

impl E1000 {
    /// A device after power-on, without a link.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut this = Self {
            registers: Registers::new(),
            eeprom: Eeprom::new(config.mac, config.csb.then_some(CSB_SUBSYSTEM)),
            phy: Phy::new(),
            interrupts: Interrupts::new(config.coalesce_usecs),
            transmitter: Transmitter::new(),
            receiver: Receiver::new(),
            counts: Counts::default(),
            traffic: Traffic::default(),
            io_address: 0,
            has_csb: config.csb,
        };
        this.reset_mac();
        this
    }

    /// A reset of the bus or of the function (14.3): all but the EEPROM and the cable.
    pub fn reset(&mut self) {
        self.phy.reset();
        self.registers.set_pair(CSBAL, 0);
        self.reset_mac();
        self.io_address = 0;
    }

    /// CTRL.RST: all but the PHY (13.4.1). Drivers name the page of the communication status block
    /// once, and reset the device afterwards.
    fn reset_mac(&mut self) {
        let page = self.registers.pair(CSBAL);
        self.registers.reset();
        self.registers.set_pair(CSBAL, page);
        self.eeprom.reset();
        self.interrupts.reset();
        self.transmitter.reset();
        self.load_eeprom();
        self.show_link();
    }

    /// 5.6.1: the first receive address.
    fn load_eeprom(&mut self) {
        self.registers.set_pair(RAL, u64::from(rah::AV) << 32 | self.eeprom.address());
    }

    /// STATUS.LU follows the PHY.
    fn show_link(&mut self) {
        let link = if self.phy.link() { status::LU } else { 0 };
        self.registers.set(STATUS, self.registers.get(STATUS) & !status::LU | link);
    }

    /// Plugs the cable in, or pulls it.
    pub fn set_link(&mut self, up: bool, now_ns: u64) {
        if self.phy.set_cable(up) {
            self.link_changed(now_ns);
        }
    }

    fn link_changed(&mut self, now_ns: u64) {
        self.show_link();
        self.interrupts.raise(&mut self.registers, cause::LSC, now_ns);
    }

    /// The level of the interrupt line.
    #[must_use]
    pub fn interrupt(&self) -> bool {
        self.interrupts.line()
    }

    /// When [`expire`](Self::expire) has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.interrupts.deadline()
    }

    /// Does what is due at this time.
    pub fn expire(&mut self, now_ns: u64) {
        self.interrupts.expire(&mut self.registers, now_ns);
    }

    /// What the driver made impossible so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What has passed so far, and how it was told of.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let (interrupts, suppressed) = self.interrupts.counts();
        Traffic { interrupts, suppressed, ..self.traffic }
    }

    /// The communication status block, if the driver uses it; its tails are in the registers then.
    fn csb<'a>(&mut self, memory: &'a GuestMemory) -> Option<Csb<'a>> {
        let csb = self.csb_page(memory).filter(Csb::is_on)?;
        csb.take_tails(&mut self.registers);
        Some(csb)
    }

    /// The block, whether it is in use or not.
    fn csb_page<'a>(&self, memory: &'a GuestMemory) -> Option<Csb<'a>> {
        Csb::find(&self.registers, memory).filter(|_| self.has_csb)
    }

    /// Whether the driver is told by memory: then its owner may look for work by itself, and asks
    /// for kicks before it sleeps.
    #[must_use]
    pub fn is_shared(&self, memory: &GuestMemory) -> bool {
        self.csb_page(memory).is_some_and(|csb| csb.is_on())
    }

    /// Asks the driver for kicks, before the owner sleeps: with the next descriptor to transmit,
    /// and with the next buffer if frames wait for more of them. The owner passes a fence and
    /// looks again ([`pending`](Self::pending), [`has_room`](Self::has_room)). A driver without a
    /// communication status block always kicks.
    pub fn want_kicks(&mut self, memory: &GuestMemory, frames_wait: bool) {
        self.csb(memory);
        if let Some(csb) = self.csb_page(memory) {
            csb.want_transmit_kick();
            if frames_wait {
                csb.want_receive_kick(&self.registers);
            }
        }
    }

    /// Asks for no kicks: the owner looks by itself.
    pub fn want_none(&mut self, memory: &GuestMemory) {
        if let Some(csb) = self.csb(memory) {
            csb.want_none();
        }
    }

    /// Whether there is something to transmit.
    #[must_use]
    pub fn pending(&mut self, memory: &GuestMemory) -> bool {
        self.csb(memory);
        self.transmitter.pending(memory, &self.registers)
    }

    /// Offers the frames of at most `budget` descriptors. Where `send` says [`Sent::Later`], the
    /// frame is offered again by the next call.
    pub fn transmit(
        &mut self,
        memory: &GuestMemory,
        now_ns: u64,
        budget: u32,
        mut send: impl FnMut(TxFrame<'_>) -> Sent,
    ) -> Progress {
        let csb = self.csb(memory);
        let from = self.registers.get(TDH);
        let Self { registers, transmitter, counts, interrupts, traffic, .. } = self;
        let mut send = |frame: TxFrame<'_>| {
            let sent = send(frame);
            traffic.tx_frames += u64::from(sent == Sent::Taken);
            sent
        };
        let (progress, done) = transmitter.run(memory, registers, counts, budget, &mut send);
        let mut causes = if done.emptied { cause::TXQE } else { 0 };
        let (mut reported, mut wanted) = (done.reported, true);
        if let Some(csb) = csb {
            csb.show_heads(registers);
            reported = registers.get(TDH) != from;
            wanted = reported && csb.wants_transmit(registers, from);
            causes = 0;
        }
        match (reported, wanted) {
            (false, _) => interrupts.raise(registers, causes, now_ns),
            (true, false) => interrupts.suppress(),
            (true, true) => interrupts.transmitted(registers, causes, done.at_once, now_ns),
        }
        self.show_causes(csb);
        progress
    }

    /// Whether the receiver is on, and there is a link. If not, frames are lost.
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        receive::is_on(&self.registers)
    }

    /// Whether there is a buffer for frames.
    #[must_use]
    pub fn has_buffers(&mut self, memory: &GuestMemory) -> bool {
        self.has_room(memory, 0)
    }

    /// Whether there are buffers for a frame of this many bytes. A frame for which there can never
    /// be enough has room, too: it is not to wait, and [`receive`](Self::receive) drops it.
    #[must_use]
    pub fn has_room(&mut self, memory: &GuestMemory, bytes: usize) -> bool {
        self.csb(memory);
        receive::has_room(memory, &self.registers, bytes)
    }

    /// Gives a frame to the guest: finished, without FCS. `checksum_good`: its TCP or UDP checksum
    /// is known to be right.
    pub fn receive(
        &mut self,
        memory: &GuestMemory,
        now_ns: u64,
        frame: &[u8],
        checksum_good: bool,
    ) -> Received {
        let csb = self.csb(memory);
        let Self { registers, receiver, counts, interrupts, .. } = self;
        let (what, causes) = receiver.store(memory, registers, counts, frame, checksum_good);
        if let Some(csb) = csb {
            csb.show_heads(registers);
        }
        let wanted = csb.is_none_or(|csb| csb.wants_receive());
        match what {
            Received::Stored if wanted => interrupts.received(registers, causes, now_ns),
            Received::Stored => interrupts.suppress(),
            _ => interrupts.raise(registers, causes, now_ns),
        }
        self.traffic.rx_frames += u64::from(what == Received::Stored);
        self.show_causes(csb);
        what
    }

    fn show_causes(&self, csb: Option<Csb<'_>>) {
        if let Some(csb) = csb.filter(|_| self.interrupt()) {
            csb.show_causes(&self.registers);
        }
    }

    /// The driver reads `width` bytes of BAR 0, at most 8. Bytes behind its end are zeros.
    pub fn read(&mut self, offset: u32, width: u8, now_ns: u64) -> u64 {
        let begin = offset % 4;
        let words = (begin + u32::from(width.min(8))).div_ceil(4);
        let mut bytes = [0; 12];
        for word in 0..words {
            let value = self.read_word((offset - begin).saturating_add(4 * word), now_ns);
            bytes[4 * word as usize..][..4].copy_from_slice(&value.to_le_bytes());
        }
        bytes.copy_within(begin as usize.., 0);
        bytes[usize::from(width.min(8))..].fill(0);
        u64::from_le_bytes(*bytes.first_chunk().expect("twelve"))
    }

    /// The driver writes `width` bytes of BAR 0. Registers are written whole (13.2): what is no
    /// word, or two of them, does nothing.
    pub fn write(&mut self, offset: u32, width: u8, value: u64, now_ns: u64) -> Effects {
        let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
        let (low, high) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        match (offset % 4, width) {
            (0, 4) => self.write_word(offset, low, now_ns),
            (0, 8) => {
                let first = self.write_word(offset, low, now_ns);
                let second = self.write_word(offset.saturating_add(4), high, now_ns);
                Effects {
                    transmit: first.transmit || second.transmit,
                    receive: first.receive || second.receive,
                }
            }
            _ => Effects::default(),
        }
    }

    /// The driver reads the window in I/O space (13.2.1).
    pub fn read_io(&mut self, offset: u32, width: u8, now_ns: u64) -> u64 {
        match (offset, width) {
            (IOADDR, 4) => self.io_address.into(),
            (IODATA, 4) if self.io_address < BAR0_LEN => {
                self.read(self.io_address & !3, width, now_ns)
            }
            _ => 0,
        }
    }

    /// The driver writes the window in I/O space. Linux and FreeBSD reset the device this way.
    pub fn write_io(&mut self, offset: u32, width: u8, value: u64, now_ns: u64) -> Effects {
        match (offset, width) {
            (IOADDR, 4) => self.io_address = u32::try_from(value & 0xffff_ffff).expect("masked"),
            (IODATA, 4) if self.io_address < BAR0_LEN => {
                return self.write(self.io_address & !3, width, value, now_ns);
            }
            _ => {}
        }
        Effects::default()
    }

    fn read_word(&mut self, offset: u32, now_ns: u64) -> u32 {
        match offset {
            EECD => self.eeprom.read_eecd(),
            EERD => self.eeprom.read_eerd(),
            ICR => {
                let causes = self.registers.get(ICR);
                self.interrupts.clear(&mut self.registers, causes, now_ns);
                causes
            }
            // Reads as ICR and does not clear it, on real devices, too.
            ICS => self.registers.get(ICR),
            _ => self.registers.load(offset),
        }
    }

    /// A write to a register, and its effect if there is one.
    fn write_word(&mut self, offset: u32, value: u32, now_ns: u64) -> Effects {
        let mut effects = Effects::default();
        if !self.has_csb && matches!(offset, CSBAL | CSBAH) {
            return effects;
        }
        self.registers.store(offset, value);
        let registers = &mut self.registers;
        match offset {
            CTRL => self.control(value, now_ns),
            CTRL_EXT if value & ctrl_ext::EE_RST != 0 => self.load_eeprom(),
            EECD => self.eeprom.write_eecd(value),
            EERD => self.eeprom.write_eerd(value),
            MDIC => self.access_phy(value, now_ns),
            ICR => self.interrupts.clear(registers, value, now_ns),
            ICS => self.interrupts.raise(registers, value & cause::ALL, now_ns),
            IMS => self.mask(self.registers.get(IMS) | value & cause::ALL, now_ns),
            IMC => self.mask(self.registers.get(IMS) & !value, now_ns),
            ITR => self.interrupts.update(registers, now_ns),
            RDTR if value & rdtr::FPD != 0 => self.interrupts.flush(registers, now_ns),
            PBA => {
                let receive = (value & PBA_BITS).min(PACKET_BUFFER);
                registers.set(PBA, (PACKET_BUFFER - receive) << 16 | receive);
            }
            TDH => self.transmitter.rewind(self.registers.get(TDH)),
            TDT => {
                self.traffic.tx_kicks += 1;
                effects.transmit = true;
            }
            TCTL => effects.transmit = value & tctl::EN != 0,
            RDT => {
                self.traffic.rx_kicks += 1;
                effects.receive = true;
            }
            RCTL => effects.receive = value & rctl::EN != 0,
            CSBAL => effects = Effects { transmit: true, receive: true },
            _ => {}
        }
        effects
    }

    /// 13.4.1.
    fn control(&mut self, value: u32, now_ns: u64) {
        if value & ctrl::PHY_RST != 0 && self.phy.reset() {
            self.link_changed(now_ns);
        }
        if value & ctrl::RST != 0 {
            self.reset_mac();
        }
    }

    /// 13.4.7.
    fn access_phy(&mut self, value: u32, now_ns: u64) {
        let done = self.phy.access(value);
        self.registers.set(MDIC, done.mdic);
        if done.link_changed {
            self.link_changed(now_ns);
        }
        if done.interrupt {
            self.interrupts.raise(&mut self.registers, cause::MDAC, now_ns);
        }
    }

    fn mask(&mut self, mask: u32, now_ns: u64) {
        self.registers.set(IMS, mask);
        self.interrupts.update(&self.registers, now_ns);
    }
}

#[cfg(test)]
mod tests;

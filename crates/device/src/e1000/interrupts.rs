//! Interrupts: causes, their mask, the line, and what delays it (3.2.7, 3.4.3, 13.4.17 to 13.4.21).
//!
//! ```text
//!   frame stored ──► RDTR, RADV ──┐
//!                                 ├──► ICR & IMS ──► gap since the last rise? ──► line
//!   descriptor done ► TIDV, TADV ─┘                   ITR, or the operator's
//!   all other causes ─────────────┘
//! ```
//!
//! Two kinds of timers come one after the other. The *delays* of frames and descriptors stand in
//! front of ICR: a packet timer, begun anew by each of them, and an absolute timer, begun by the
//! first. Whichever expires first sets the cause and stops the other. The *gap* stands behind ICR:
//! the line does not rise again until it has passed. The line is level-triggered: it falls when no
//! enabled cause is left.
//!
//! The operator may set a least gap, because drivers often set none.

use super::registers::{ICR, IMS, ITR, RADV, RDTR, Registers, TADV, TIDV, cause};

/// The unit of ITR, and that of the delays, in nanoseconds.
const ITR_NS: u64 = 256;
const DELAY_NS: u64 = 1024;

/// The interrupt line, and the timers.
#[derive(Debug)]
pub(super) struct Interrupts {
    line: bool,
    /// The least time between two rises, whatever ITR says.
    gap_ns: u64,
    /// The time of the last rise.
    rose_ns: Option<u64>,
    /// The line rises then, unless all causes go away.
    rises_ns: Option<u64>,
    receive: Delay,
    transmit: Delay,
    /// Rises of the line, and events of frames that did not raise it.
    rises: u64,
    suppressed: u64,
}

/// A packet timer and an absolute timer: when they expire.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    packet_ns: Option<u64>,
    absolute_ns: Option<u64>,
}

impl Delay {
    /// Begins the packet timer anew, and the absolute one unless it runs. A length of 0 is no
    /// timer.
    fn begin(&mut self, now_ns: u64, packet: u32, absolute: u32) {
        let ends = |units: u32| now_ns.saturating_add(u64::from(units) * DELAY_NS);
        self.packet_ns = Some(ends(packet));
        if absolute > 0 && self.absolute_ns.is_none() {
            self.absolute_ns = Some(ends(absolute));
        }
    }

    fn deadline(self) -> Option<u64> {
        self.packet_ns.into_iter().chain(self.absolute_ns).min()
    }

    /// Stops both timers if one has expired.
    fn expire(&mut self, now_ns: u64) -> bool {
        let expired = self.deadline().is_some_and(|deadline| deadline <= now_ns);
        if expired {
            *self = Self::default();
        }
        expired
    }
}

impl Interrupts {
    pub fn new(coalesce_usecs: u16) -> Self {
        Self {
            line: false,
            gap_ns: u64::from(coalesce_usecs) * 1000,
            rose_ns: None,
            rises_ns: None,
            receive: Delay::default(),
            transmit: Delay::default(),
            rises: 0,
            suppressed: 0,
        }
    }

    /// Stops all timers and lets the line fall. The gap goes on: a driver cannot end it by a reset.
    pub fn reset(&mut self) {
        let Self { gap_ns, rose_ns, rises, suppressed, .. } = *self;
        *self = Self { gap_ns, rose_ns, rises, suppressed, ..Self::new(0) };
    }

    /// The level of the line.
    pub fn line(&self) -> bool {
        self.line
    }

    /// Rises of the line, and events of frames that did not raise it at once.
    pub fn counts(&self) -> (u64, u64) {
        (self.rises, self.suppressed)
    }

    /// Counts an event of which the driver wants no interrupt.
    pub fn suppress(&mut self) {
        self.suppressed += 1;
    }

    /// When [`expire`](Self::expire) has something to do.
    pub fn deadline(&self) -> Option<u64> {
        let delays = [self.receive.deadline(), self.transmit.deadline(), self.rises_ns];
        delays.into_iter().flatten().min()
    }

    /// Sets causes.
    pub fn raise(&mut self, registers: &mut Registers, causes: u32, now_ns: u64) {
        registers.set(ICR, registers.get(ICR) | causes);
        self.update(registers, now_ns);
    }

    /// Clears causes.
    pub fn clear(&mut self, registers: &mut Registers, causes: u32, now_ns: u64) {
        registers.set(ICR, registers.get(ICR) & !causes);
        self.update(registers, now_ns);
    }

    /// Sets the causes of frames that were stored, and of others: RXT0 at once or when a timer
    /// expires (3.2.7.1).
    pub fn received(&mut self, registers: &mut Registers, mut causes: u32, now_ns: u64) {
        let (packet, absolute) = (registers.get(RDTR), registers.get(RADV));
        if packet == 0 {
            self.receive = Delay::default();
            causes |= cause::RXT0;
        } else {
            self.receive.begin(now_ns, packet, absolute);
        }
        self.raise_for_frames(registers, causes, now_ns);
    }

    /// The driver wants the receive timer to expire (13.4.30).
    pub fn flush(&mut self, registers: &mut Registers, now_ns: u64) {
        self.receive = Delay::default();
        self.raise(registers, cause::RXT0, now_ns);
    }

    /// Sets the causes of descriptors that were written back: TXDW at once, or when a timer expires
    /// (3.4.3). `at_once`: one of them did not allow a delay; that stops the timers.
    pub fn transmitted(
        &mut self,
        registers: &mut Registers,
        mut causes: u32,
        at_once: bool,
        now_ns: u64,
    ) {
        let (packet, absolute) = (registers.get(TIDV), registers.get(TADV));
        if at_once || packet == 0 {
            self.transmit = Delay::default();
            causes |= cause::TXDW;
        } else {
            self.transmit.begin(now_ns, packet, absolute);
        }
        self.raise_for_frames(registers, causes, now_ns);
    }

    /// Sets causes, and counts whether the line rises by that.
    fn raise_for_frames(&mut self, registers: &mut Registers, causes: u32, now_ns: u64) {
        let before = self.rises;
        self.raise(registers, causes, now_ns);
        self.suppressed += u64::from(self.rises == before);
    }

    /// Does what is due.
    pub fn expire(&mut self, registers: &mut Registers, now_ns: u64) {
        let mut causes = 0;
        if self.receive.expire(now_ns) {
            causes |= cause::RXT0;
        }
        if self.transmit.expire(now_ns) {
            causes |= cause::TXDW;
        }
        self.raise(registers, causes, now_ns);
    }

    /// Moves the line, after causes, the mask or ITR changed.
    pub fn update(&mut self, registers: &Registers, now_ns: u64) {
        self.rises_ns = None;
        if !registers.has(ICR, registers.get(IMS)) {
            self.line = false;
        } else if !self.line {
            let gap = self.gap_ns.max(u64::from(registers.get(ITR)) * ITR_NS);
            match self.rose_ns.map(|rose| rose.saturating_add(gap)).filter(|free| *free > now_ns) {
                None => {
                    (self.line, self.rose_ns) = (true, Some(now_ns));
                    self.rises += 1;
                }
                later => self.rises_ns = later,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Device {
        registers: Registers,
        interrupts: Interrupts,
    }

    impl Device {
        /// With all causes enabled and these registers set.
        fn new(coalesce_usecs: u16, set: &[(u32, u32)]) -> Self {
            let mut registers = Registers::new();
            registers.set(IMS, cause::ALL);
            set.iter().for_each(|(offset, value)| registers.set(*offset, *value));
            Self { registers, interrupts: Interrupts::new(coalesce_usecs) }
        }

        fn receive(&mut self, now_ns: u64) {
            self.interrupts.received(&mut self.registers, 0, now_ns);
        }

        fn transmit(&mut self, at_once: bool, now_ns: u64) {
            self.interrupts.transmitted(&mut self.registers, 0, at_once, now_ns);
        }

        fn expire(&mut self, now_ns: u64) -> bool {
            self.interrupts.expire(&mut self.registers, now_ns);
            self.interrupts.line()
        }

        fn deadline(&self) -> Option<u64> {
            self.interrupts.deadline()
        }

        /// What the driver does in its interrupt handler.
        fn handle(&mut self, now_ns: u64) -> u32 {
            let causes = self.registers.get(ICR);
            self.interrupts.clear(&mut self.registers, u32::MAX, now_ns);
            assert!(!self.interrupts.line());
            causes
        }
    }

    /// 13.4.20 and 13.4.21.
    #[test]
    fn the_line_is_high_while_an_enabled_cause_is_set() {
        let mut device = Device::new(0, &[(IMS, cause::LSC)]);
        device.interrupts.raise(&mut device.registers, cause::RXT0, 0);
        assert!(!device.interrupts.line(), "masked");
        device.interrupts.raise(&mut device.registers, cause::LSC, 0);
        assert!(device.interrupts.line());
        device.registers.set(IMS, 0);
        device.interrupts.update(&device.registers, 0);
        assert!(!device.interrupts.line());
        assert_eq!(device.handle(0), cause::RXT0 | cause::LSC);
    }

    /// 13.4.18: in units of 256 ns.
    #[test]
    fn itr_spaces_the_rises_of_the_line() {
        let mut device = Device::new(0, &[(ITR, 1000)]);
        device.receive(5);
        assert!(device.interrupts.line(), "the first does not wait");
        device.handle(10);
        device.receive(20);
        assert_eq!((device.interrupts.line(), device.deadline()), (false, Some(256_005)));
        assert!(!device.expire(256_004) && device.expire(256_005));
        assert_eq!(device.handle(256_010), cause::RXT0);
        device.receive(1_000_000);
        assert!(device.interrupts.line(), "the gap is over");
    }

    #[test]
    fn the_operators_gap_holds_where_the_driver_sets_none_or_less() {
        for (itr, gap) in [(0, 50_000), (100, 50_000), (1000, 256_000)] {
            let mut device = Device::new(50, &[(ITR, itr)]);
            device.receive(0);
            device.handle(0);
            device.receive(1);
            assert_eq!((device.interrupts.line(), device.deadline()), (false, Some(gap)));
            device.interrupts.reset();
            device.receive(2);
            assert_eq!((device.interrupts.line(), device.deadline()), (false, Some(gap)));
        }
    }

    #[test]
    fn causes_that_go_away_in_the_gap_do_not_raise_the_line() {
        let mut device = Device::new(0, &[(ITR, 1000)]);
        device.receive(0);
        device.handle(0);
        device.receive(1);
        device.handle(2);
        assert_eq!(device.deadline(), None);
        assert!(!device.expire(1_000_000));
    }

    /// 3.2.7.1.1 and 13.4.30: in units of 1.024 us, begun anew by each frame.
    #[test]
    fn the_packet_timer_expires_when_no_frame_came_for_its_time() {
        let mut device = Device::new(0, &[(RDTR, 10)]);
        device.receive(0);
        assert_eq!((device.interrupts.line(), device.deadline()), (false, Some(10_240)));
        device.receive(10_000);
        assert!(!device.expire(10_240));
        assert_eq!(device.registers.get(ICR), 0);
        assert!(device.expire(20_240));
        assert_eq!((device.handle(20_240), device.deadline()), (cause::RXT0, None));
    }

    /// 3.2.7.1.2 and 13.4.31: case B of the drawing there.
    #[test]
    fn the_absolute_timer_is_begun_by_the_first_frame_only() {
        let mut device = Device::new(0, &[(RDTR, 10), (RADV, 15)]);
        device.receive(0);
        device.receive(8_000);
        assert_eq!(device.deadline(), Some(15_360));
        assert!(device.expire(15_360));
        assert_eq!((device.handle(15_360), device.deadline()), (cause::RXT0, None), "both stop");
        device.receive(20_000);
        assert_eq!(device.deadline(), Some(30_240));
    }

    /// 13.4.30: no timer, and FPD.
    #[test]
    fn no_delay_and_a_flush_interrupt_at_once() {
        let mut device = Device::new(0, &[(RADV, 15)]);
        device.receive(0);
        assert!(device.interrupts.line(), "RADV counts with RDTR only");
        let mut device = Device::new(0, &[(RDTR, 10)]);
        device.receive(0);
        device.interrupts.flush(&mut device.registers, 1);
        assert_eq!((device.interrupts.line(), device.deadline()), (true, None));
    }

    /// 3.3.7.1 (IDE), 13.4.41 and 13.4.44.
    #[test]
    fn a_descriptor_with_ide_delays_and_one_without_stops_the_timers() {
        let mut device = Device::new(0, &[(TIDV, 10), (TADV, 15)]);
        device.transmit(false, 0);
        device.transmit(false, 8_000);
        assert_eq!((device.interrupts.line(), device.deadline()), (false, Some(15_360)));
        device.transmit(true, 9_000);
        assert_eq!((device.interrupts.line(), device.deadline()), (true, None));
        assert_eq!(device.handle(9_000), cause::TXDW);
        device.transmit(false, 10_000);
        assert!(device.expire(20_240));
    }
}

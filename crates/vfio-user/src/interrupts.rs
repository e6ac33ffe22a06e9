//! How a device interrupts its guest: eventfds that the VMM passes, vector by vector.
//!
//! A vector is an edge: [`Interrupts::send`] signals its eventfd. The line is a level, which VFIO
//! makes edges of:
//!
//! ```text
//!            level rises                       the VMM unmasks, level still high
//!   Quiet ───────────────► Signalled, masked ──────────────────► signalled again
//!     ▲                            │ the VMM unmasks, level low
//!     └────────────────────────────┘
//! ```
//!
//! The VMM unmasks when the guest has touched the device, because then its driver may have lowered
//! the line; or by an eventfd of its own ([`Interrupts::unmask_fd`]), as with KVM.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::device::{Description, Irq, irq};
use crate::message::{Action, IrqData, SetIrqs};
use crate::refused::Refused;

/// All interrupts of a device.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// The kinds, by number.
    kinds: [Vec<Option<Eventfd>>; irq::COUNT],
    line: Line,
}

#[derive(Debug, Default)]
struct Line {
    level: bool,
    masked: bool,
    unmask: Option<Eventfd>,
}

/// An eventfd of the VMM's.
#[derive(Debug)]
struct Eventfd(OwnedFd);

impl Eventfd {
    /// Takes an eventfd, and nothing else: a write to another file could take long.
    fn new(fd: OwnedFd) -> Result<Self, Refused> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let is_eventfd =
            std::fs::read_link(link).is_ok_and(|path| path.as_os_str() == "anon_inode:[eventfd]");
        let no_eventfd = |errno| Refused::new(errno, "an interrupt's descriptor is no eventfd");
        if !is_eventfd {
            return Err(no_eventfd(Errno::INVAL));
        }
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(no_eventfd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(no_eventfd)?;
        Ok(Self(fd))
    }

    /// Signals it. If its counter is full, the VMM has been told already. A VMM that makes it
    /// blocking and full at the right moment holds up its own device only.
    fn signal(&self) {
        let mut room = [PollFd::new(&self.0, PollFlags::OUT)];
        if poll(&mut room, Some(&Timespec::default())) != Ok(1) {
            return;
        }
        while rustix::io::write(&self.0, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

impl Interrupts {
    /// The interrupts of a device, none of which is signalled yet.
    #[must_use]
    pub fn new(description: &Description) -> Self {
        let empty = |irq: Irq| (0..irq.count()).map(|_| None).collect();
        Self { kinds: description.irqs.map(empty), line: Line::default() }
    }

    /// Raises or lowers the line.
    pub fn set_line(&mut self, level: bool) {
        let rises = level && !self.line.level;
        self.line.level = level;
        if rises {
            self.signal_line();
        }
    }

    /// Sends a message-signalled interrupt, if the VMM wants this vector.
    pub fn send(&self, vector: u16) {
        let vectors = &self.kinds[irq::MSIX as usize];
        if let Some(Some(eventfd)) = vectors.get(usize::from(vector)) {
            eventfd.signal();
        }
    }

    /// The eventfd by which the VMM unmasks the line, to be watched; [`Self::unmasked`] if it is
    /// signalled.
    #[must_use]
    pub fn unmask_fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.unmask.as_ref().map(|eventfd| eventfd.0.as_fd())
    }

    /// The VMM has signalled [`Self::unmask_fd`].
    pub fn unmasked(&mut self) {
        if let Some(Eventfd(fd)) = &self.line.unmask {
            // What the counter says does not matter, nor that another read took it.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
        self.unmask_line();
    }

    /// Changes interrupts as the VMM says.
    ///
    /// # Errors
    /// [`Refused`]
    pub fn set(&mut self, request: SetIrqs) -> Result<(), Refused> {
        let SetIrqs { index, start, count, action, data } = request;
        let invalid = |why: &str| Refused::new(Errno::INVAL, format!("{why}, kind {index}"));
        let kind = usize::try_from(index).ok().filter(|kind| *kind < irq::COUNT);
        let kind = kind.ok_or_else(|| invalid("interrupts that are not there"))?;
        let all = self.kinds[kind].len();
        let bounds = usize::try_from(start).ok().zip(usize::try_from(count).ok());
        let range = bounds.and_then(|(start, count)| Some(start..start.checked_add(count)?));
        let range = range.filter(|range| range.end <= all);
        let range = range.ok_or_else(|| invalid("more interrupts than there are"))?;
        let is_line = index == irq::INTX;
        match (action, data) {
            // No vector at all means: away with all of them.
            (Action::Trigger, IrqData::All) if range.is_empty() => self.disable(kind),
            (Action::Trigger, IrqData::Eventfds(fds)) => self.connect(kind, range, fds)?,
            (Action::Trigger, IrqData::All) => range.for_each(|at| self.trigger(kind, at)),
            (Action::Trigger, IrqData::Bools(bools)) => {
                let chosen = range.zip(bools).filter(|(_, chosen)| *chosen);
                chosen.for_each(|(at, _)| self.trigger(kind, at));
            }
            _ if !is_line => return Err(invalid("vectors are not masked")),
            (Action::Unmask, IrqData::Eventfds(fds)) => {
                let fd = fds.into_iter().next_back();
                self.line.unmask = fd.map(Eventfd::new).transpose()?;
            }
            (_, data) => {
                let chosen = match data {
                    IrqData::All => !range.is_empty(),
                    IrqData::Bools(bools) => bools.contains(&true),
                    IrqData::Eventfds(_) => return Err(invalid("no eventfd masks")),
                };
                match action {
                    _ if !chosen => {}
                    Action::Mask => self.line.masked = true,
                    _ => self.unmask_line(),
                }
            }
        }
        Ok(())
    }

    /// Takes the eventfds of a range of vectors; without any, the range has none.
    fn connect(
        &mut self,
        kind: usize,
        range: std::ops::Range<usize>,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refused> {
        let mut eventfds = fds.into_iter().map(Eventfd::new).collect::<Result<Vec<_>, _>>()?;
        eventfds.reverse();
        for at in range {
            self.kinds[kind][at] = eventfds.pop();
        }
        if kind == irq::INTX as usize {
            self.unmask_line();
        }
        Ok(())
    }

    fn disable(&mut self, kind: usize) {
        self.kinds[kind].fill_with(|| None);
        if kind == irq::INTX as usize {
            self.line.unmask = None;
            self.line.masked = false;
        }
    }

    fn trigger(&self, kind: usize, at: usize) {
        if let Some(eventfd) = &self.kinds[kind][at] {
            eventfd.signal();
        }
    }

    fn unmask_line(&mut self) {
        self.line.masked = false;
        self.signal_line();
    }

    fn signal_line(&mut self) {
        if !self.line.level || self.line.masked {
            return;
        }
        if let Some(Some(eventfd)) = self.kinds[irq::INTX as usize].first() {
            self.line.masked = true;
            eventfd.signal();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    fn interrupts() -> Interrupts {
        let mut description = Description::default();
        description.irqs[irq::INTX as usize] = Irq::Line;
        description.irqs[irq::MSIX as usize] = Irq::Vectors(3);
        Interrupts::new(&description)
    }

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("descriptors")
    }

    /// How often it was signalled since the last look.
    fn signals(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    fn request(index: u32, range: (u32, u32), action: Action, data: IrqData) -> SetIrqs {
        SetIrqs { index, start: range.0, count: range.1, action, data }
    }

    fn eventfds(events: &[&OwnedFd]) -> IrqData {
        let clone = |event: &&OwnedFd| event.try_clone().expect("descriptors");
        IrqData::Eventfds(events.iter().map(clone).collect())
    }

    #[test]
    fn the_line_is_signalled_once_until_it_is_unmasked_and_again_while_it_is_high() {
        let (mut interrupts, event) = (interrupts(), event());
        interrupts.set_line(true);
        let connect = request(irq::INTX, (0, 1), Action::Trigger, eventfds(&[&event]));
        interrupts.set(connect).expect("an eventfd");
        assert_eq!(signals(&event), 1, "it was high before");
        interrupts.set_line(false);
        interrupts.set_line(true);
        assert_eq!(signals(&event), 0, "it masks itself");
        let unmask = || request(irq::INTX, (0, 1), Action::Unmask, IrqData::All);
        interrupts.set(unmask()).expect("a line");
        assert_eq!(signals(&event), 1, "it is still high");
        interrupts.set_line(false);
        interrupts.set(unmask()).expect("a line");
        assert_eq!(signals(&event), 0);
        let mask = request(irq::INTX, (0, 1), Action::Mask, IrqData::Bools(vec![true]));
        interrupts.set(mask).expect("a line");
        interrupts.set_line(true);
        assert_eq!(signals(&event), 0, "the VMM holds it back");
        interrupts.set(unmask()).expect("a line");
        assert_eq!(signals(&event), 1);
    }

    #[test]
    fn an_eventfd_of_the_vmm_unmasks_the_line() {
        let (mut interrupts, event, unmask) = (interrupts(), event(), event());
        for (action, fd) in [(Action::Trigger, &event), (Action::Unmask, &unmask)] {
            interrupts.set(request(irq::INTX, (0, 1), action, eventfds(&[fd]))).expect("eventfds");
        }
        interrupts.set_line(true);
        assert_eq!(signals(&event), 1);
        assert!(interrupts.unmask_fd().is_some());
        rustix::io::write(&unmask, &1u64.to_ne_bytes()).expect("room");
        interrupts.unmasked();
        assert_eq!((signals(&event), signals(&unmask)), (1, 0));
        interrupts.set(request(irq::INTX, (0, 0), Action::Trigger, IrqData::All)).expect("a line");
        assert!(interrupts.unmask_fd().is_none());
        interrupts.unmasked();
        assert_eq!(signals(&event), 0, "it is disabled");
    }

    #[test]
    fn vectors_come_one_at_a_time_without_an_eventfd_and_again_with_one() {
        let (mut interrupts, events) = (interrupts(), [event(), event()]);
        let set = |start, data| request(irq::MSIX, (start, 1), Action::Trigger, data);
        interrupts.set(set(2, eventfds(&[]))).expect("a dummy");
        interrupts.set(set(2, eventfds(&[&events[0]]))).expect("a vector");
        interrupts.set(set(0, eventfds(&[&events[1]]))).expect("a vector");
        (0..4).for_each(|vector| interrupts.send(vector));
        assert_eq!(events.each_ref().map(signals), [1, 1]);
        interrupts.set(set(2, eventfds(&[&events[1]]))).expect("another one");
        interrupts.send(2);
        assert_eq!(events.each_ref().map(signals), [0, 1]);
        interrupts.set(set(0, IrqData::All)).expect("a test of the VMM's");
        assert_eq!(signals(&events[1]), 1);
        interrupts.set(request(irq::MSIX, (0, 0), Action::Trigger, IrqData::All)).expect("none");
        (0..3).for_each(|vector| interrupts.send(vector));
        assert_eq!(events.each_ref().map(signals), [0, 0]);
    }

    #[test]
    fn what_is_no_interrupt_or_no_eventfd_is_refused() {
        let mut interrupts = interrupts();
        let file = memfd_create("file", MemfdFlags::CLOEXEC).expect("memory");
        let all = || IrqData::All;
        for wrong in [
            request(5, (0, 1), Action::Trigger, all()),
            request(u32::MAX, (0, 1), Action::Trigger, all()),
            request(irq::INTX, (0, 2), Action::Unmask, all()),
            request(irq::INTX, (0, 1), Action::Mask, eventfds(&[])),
            request(irq::MSIX, (3, 1), Action::Trigger, all()),
            request(irq::MSIX, (u32::MAX, u32::MAX), Action::Trigger, all()),
            request(irq::MSIX, (0, 1), Action::Mask, all()),
            request(irq::MSIX, (0, 1), Action::Trigger, eventfds(&[&file])),
            request(1, (0, 1), Action::Trigger, all()),
        ] {
            let text = format!("{wrong:?}");
            assert_eq!(interrupts.set(wrong).expect_err("wrong").errno, Errno::INVAL, "{text}");
        }
    }
}

//! The event loop: one thread for the VMM, the port and the time.
//!
//! ```text
//!   VMM's socket ──► requests, replies ──┐
//!   port's doorbell ─────────────────────┼──► turn: frames out, frames in, moderation ──► line
//!   deadline of the model ───────────────┘              │ nothing moved
//!                                                       ▼
//!                                            arm the port, poll all of them
//! ```
//!
//! A driver that shares memory with the device kicks only one that asks for it. A device that is
//! faster than its driver would be kicked for each frame if it asked whenever it finds none. So it
//! naps first, and looks by itself after each nap:
//!
//! ```text
//!   moved ──► nap, no kicks, look ──── nothing for --poll-usecs ───► ask for kicks, fence, look
//!     ▲                                                                   │ nothing: sleep
//!     └────────────── a kick, a frame, the VMM: want no kicks ◄───────────┘
//! ```
//!
//! It does not spin: the guest's processor often waits for the core that the device runs on.
//!
//! The loop ends by a signal. It survives each VMM, and the switch: one listens again, the other is
//! opened again ([`crate::uplink`]).

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result};
use client::{Interest, Lost, Stop};
use ring::guest::GuestMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use vfio::{Description, Device};

use crate::frames::{Outbox, Turn, discard, receive};
use crate::log::Log;
use crate::machine::Machine;
use crate::nic::Nic;
use crate::shown::{Counts, Shown};
use crate::socket::Listener;
use crate::uplink::Uplink;

/// Free slots of the port that a frame waits for, if it does not need more.
const ROOM: u32 = 64;
/// How long a nap is. Linux adds 50 µs.
const NAP_NS: u64 = 20_000;
/// Counters that were not handed over wait for this long.
const COUNTS_NS: u64 = 1_000_000_000;

/// The device, and everything that it waits for.
pub struct Server<'a> {
    nic: Nic,
    /// How long to nap before it asks for kicks, and when a frame was moved last.
    polls_ns: u64,
    moved_ns: u64,
    listener: Listener,
    uplink: Uplink,
    machine: Option<Machine<'a>>,
    outbox: Outbox,
    log: Log,
    joined: Vec<u8>,
    shown: Shown,
    description: &'a Description,
    /// Readable when the process is to end.
    signals: OwnedFd,
    stop: Stop,
}

/// What a sleep waits for, beside the VMM.
#[derive(Clone, Copy, Debug, Default)]
struct Wants {
    frames: bool,
    room: bool,
    /// Buffers for a frame of this many bytes.
    buffers: Option<usize>,
}

impl<'a> Server<'a> {
    /// A device that listens, whose port is open.
    pub fn new(
        nic: Nic,
        polls: Duration,
        listener: Listener,
        mut uplink: Uplink,
        description: &'a Description,
        signals: OwnedFd,
        stop: Stop,
    ) -> Self {
        let shown = Shown::at(uplink.port().expect("it was just opened"));
        Self {
            nic,
            polls_ns: u64::try_from(polls.as_nanos()).expect("short"),
            moved_ns: 0,
            listener,
            uplink,
            machine: None,
            outbox: Outbox::default(),
            log: Log::default(),
            joined: Vec::new(),
            shown,
            description,
            signals,
            stop,
        }
    }

    /// Runs until a signal.
    pub fn run(mut self) -> Result<()> {
        loop {
            self.nic.now_ns = now_ns();
            let (turn, wants) = match self.turn() {
                Ok(done) => done,
                Err(Lost) => {
                    self.lose()?;
                    continue;
                }
            };
            self.signal_line();
            self.look_for_loss(turn);
            let Self { nic, outbox, shown, .. } = &mut self;
            shown.update(|| counts(nic, outbox));
            if self.wait(turn, wants)? {
                self.stop.stop();
                return Ok(());
            }
        }
    }

    /// Moves frames, as far as there are any, and says what to wait for.
    fn turn(&mut self) -> Result<(Turn, Wants), Lost> {
        let Self { nic, uplink, machine, outbox, joined, .. } = self;
        let now = nic.now_ns;
        if nic.model.deadline().is_some_and(|deadline| deadline <= now) {
            nic.model.expire(now);
        }
        let port = uplink.port();
        let (out, back) = match (reached(machine.as_ref(), nic), port) {
            (Some(memory), Some(port)) => {
                let out = outbox.transmit(&mut nic.model, memory, now, port)?;
                let rx = port.rx(0);
                (out, receive(&mut nic.model, memory, now, rx, joined)?)
            }
            // Frames for a switch that is away are lost, as on a wire.
            (Some(memory), None) => (outbox.lose(&mut nic.model, memory, now), Turn::default()),
            (None, Some(port)) => (Turn::default(), discard(port.rx(0))?),
            (None, None) => Default::default(),
        };
        let buffers = back.blocked.then_some(back.bytes);
        let wants = Wants { frames: !back.blocked, room: out.blocked, buffers };
        let (moved, more) = (out.moved || back.moved, out.more && !out.blocked || back.more);
        Ok((Turn { moved, more, ..Turn::default() }, wants))
    }

    fn signal_line(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.client.session_mut().interrupts_mut().set_line(self.nic.line());
        }
    }

    /// Ends the session of a VMM that has taken memory away while it was used.
    fn look_for_loss(&mut self, turn: Turn) {
        let lost = |machine: &Machine<'_>| machine.client.session().dma().memory().is_lost();
        if turn.moved && self.machine.as_ref().is_some_and(lost) {
            self.end(&"the VMM truncated the guest's memory while it was used");
        }
    }

    /// Serves what is ready, after a sleep if nothing is. `true`: the process is to end.
    fn wait(&mut self, turn: Turn, wants: Wants) -> Result<bool> {
        if turn.moved {
            self.moved_ns = self.nic.now_ns;
        }
        let is_idle = !turn.moved && !turn.more;
        let naps = is_idle && self.naps();
        let sleeps = is_idle && (naps || self.ask_driver(wants)) && self.arm(wants);
        let timeout = if sleeps { self.timeout(naps) } else { Some(Timespec::default()) };
        let ready = self.poll(timeout)?;
        if is_idle && let Some(memory) = reached(self.machine.as_ref(), &self.nic) {
            self.nic.model.want_none(memory);
        }
        if ready.signal {
            return Ok(true);
        }
        if ready.uplink || sleeps {
            self.disarm()?;
        }
        self.nic.set_link(self.uplink.has_cable());
        self.nic.now_ns = now_ns();
        if ready.unmask
            && let Some(machine) = &mut self.machine
        {
            machine.client.session_mut().interrupts_mut().unmasked();
        }
        if ready.machine {
            self.serve();
        }
        if ready.listener {
            self.accept();
        }
        Ok(false)
    }

    /// Whether the device looks for frames by itself before it asks for kicks.
    fn naps(&self) -> bool {
        let is_due = self.nic.now_ns - self.moved_ns < self.polls_ns;
        let memory = reached(self.machine.as_ref(), &self.nic).filter(|_| is_due);
        memory.is_some_and(|memory| self.nic.model.is_shared(memory))
    }

    /// Asks the driver for kicks. `false`: there is something to do already.
    fn ask_driver(&mut self, wants: Wants) -> bool {
        let Some(memory) = reached(self.machine.as_ref(), &self.nic) else { return true };
        let model = &mut self.nic.model;
        model.want_kicks(memory, wants.buffers.is_some());
        // This fence pairs with the driver's, between its tail and its look at what was asked.
        fence(Ordering::SeqCst);
        let has_room = wants.buffers.is_some_and(|bytes| model.has_room(memory, bytes));
        !has_room && (wants.room || !model.pending(memory))
    }

    /// Asks the switch for kicks. `false`: there is something to do already.
    fn arm(&mut self, wants: Wants) -> bool {
        let room = Interest::Tx(self.outbox.wanted().max(ROOM));
        let Some(port) = self.uplink.port() else { return true };
        (!wants.frames || port.arm(Interest::Rx)) && (!wants.room || port.arm(room))
    }

    fn disarm(&mut self) -> Result<()> {
        match self.uplink.port().map(client::Port::disarm) {
            Some(Ok(())) => Ok(()),
            Some(Err(Lost)) => self.lose(),
            None => {
                self.uplink.hear();
                Ok(())
            }
        }
    }

    /// The switch is gone.
    fn lose(&mut self) -> Result<()> {
        self.outbox.clear();
        self.uplink.lose(&self.stop).context("cannot attach again")
    }

    /// The time until the model has something to do, there are counters to hand over, or a nap is
    /// over.
    fn timeout(&self, naps: bool) -> Option<Timespec> {
        let now = now_ns();
        let left = self.nic.model.deadline().map(|deadline| deadline.saturating_sub(now));
        let is_known = self.shown.are_known(&counts(&self.nic, &self.outbox));
        let others = [(!is_known).then_some(COUNTS_NS), naps.then_some(NAP_NS)];
        let left = left.into_iter().chain(others.into_iter().flatten()).min()?;
        let second = 1_000_000_000;
        let parts = [left / second, left % second].map(|part| i64::try_from(part).ok());
        let [Some(tv_sec), Some(tv_nsec)] = parts else { return None };
        Some(Timespec { tv_sec, tv_nsec })
    }

    fn poll(&self, timeout: Option<Timespec>) -> Result<Ready> {
        let read = PollFlags::IN;
        let watch = |fd| PollFd::from_borrowed_fd(fd, read);
        let (signals, machine) = (self.signals.as_fd(), self.machine.as_ref());
        let unmask = machine.and_then(|it| it.client.session().interrupts().unmask_fd());
        let vmm = machine.map(Machine::watch);
        let mut fds = [
            watch(signals),
            watch(self.uplink.fd()),
            watch(self.listener.as_fd()),
            vmm.clone().unwrap_or(watch(signals)),
            watch(unmask.unwrap_or(signals)),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(errno).context("cannot wait"),
        }
        let [signal, uplink, listener, socket, unmasked] = fds.map(|fd| !fd.revents().is_empty());
        let (machine, unmask) = (vmm.is_some() && socket, unmask.is_some() && unmasked);
        Ok(Ready { signal, uplink, machine, listener, unmask })
    }

    /// Serves requests of the VMM.
    fn serve(&mut self) {
        let Some(machine) = &mut self.machine else { return };
        let now = self.nic.now_ns;
        if let Err(end) = machine.serve(&mut self.nic, &mut self.log, now) {
            self.end(&end);
        }
    }

    /// The VMM has gone; the device is as new for the next one.
    fn end(&mut self, why: &dyn Display) {
        let dropped = self.outbox.dropped;
        let counts = self.nic.model.counts();
        let text = format_args!("{why} (frames dropped so far: {dropped}, {counts:?})");
        self.log.line(self.nic.now_ns, text);
        self.machine = None;
        self.outbox.clear();
        self.nic.reset();
    }

    /// A VMM connects.
    fn accept(&mut self) {
        let (now, log) = (self.nic.now_ns, &mut self.log);
        let tell = |text: &dyn Display| log.line(now, text);
        Machine::accept(&mut self.machine, &self.listener, self.description, tell);
    }
}

/// The guest's memory, if the device may reach it.
fn reached<'a>(machine: Option<&'a Machine<'_>>, nic: &Nic) -> Option<&'a GuestMemory> {
    let machine = machine.filter(|_| nic.is_bus_master());
    machine.map(|machine| machine.client.session().dma().memory())
}

fn counts(nic: &Nic, outbox: &Outbox) -> Counts {
    let (traffic, accesses) = (nic.model.traffic(), nic.accesses);
    Counts { traffic, accesses, dropped: outbox.dropped }
}

/// What a poll has found.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    signal: bool,
    uplink: bool,
    machine: bool,
    listener: bool,
    unmask: bool,
}

/// The time since the machine's start.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(ns).expect("the time since boot")
}

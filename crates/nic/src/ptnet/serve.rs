//! The event loop of a ptnet device: one thread for the VMM and the port.
//!
//! ```text
//!   VMM's socket ──► requests, replies ──► kicks ──► the port's doorbell
//!   port's socket ─────────────────────► rings that are due ──► vectors
//! ```
//!
//! While the switch is the other side of the guest's rings, these two lines are all that there is
//! to do. [`Relay`](super::relay) has the third case, in which frames pass through here.
//!
//! *Memory.* A VMM maps the region when it connects, and keeps it. So each VMM finds a region that
//! no other has seen: after one has gone, the port is opened anew. A VMM that connects while there
//! is no switch waits for it. The region of a trust group is that of its other members, too.
//!
//! *No spinning.* The device does not poll for a while before it sleeps. Between guest and switch
//! it has nothing to look at: both ask for a wake-up in the memory that they share, and the worker
//! of the switch yields before it asks.

use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use client::{Interest, Lost, Port, Stop};
use device::ptnet::status;
use packet::MacAddr;
use ring::user::RxRing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vfio::Description;

use super::relay::Turn;
use super::{Nic, Rings, description};
use crate::frames::discard;
use crate::log::Log;
use crate::machine::Machine;
use crate::serve::now_ns;
use crate::socket::Listener;
use crate::uplink::Uplink;

/// Everything that a device waits for, whichever VMM it has.
pub struct Server {
    mac: MacAddr,
    /// The port is in a trust group.
    is_shared: bool,
    listener: Listener,
    uplink: Uplink,
    log: Log,
    /// Readable when the process is to end.
    signals: OwnedFd,
    stop: Stop,
}

/// Why a session has ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The process is to end.
    Signal,
    /// The memory is not for another VMM.
    Spent,
}

impl Server {
    /// A device that listens.
    pub fn new(
        mac: MacAddr,
        is_shared: bool,
        listener: Listener,
        uplink: Uplink,
        signals: OwnedFd,
        stop: Stop,
    ) -> Self {
        Self { mac, is_shared, listener, uplink, log: Log::default(), signals, stop }
    }

    /// Runs until a signal.
    pub fn run(mut self) -> Result<()> {
        while self.wait_for_port()? {
            let port = self.uplink.port().expect("it was waited for");
            let memory = port.memory().expect("it was asked for").clone();
            let description = description(&memory).context("cannot pass the port's memory on")?;
            let nic = Nic::new(self.mac, memory, self.is_shared);
            let server = &mut self;
            let (woken, is_function) = (false, false);
            let session = Session { server, nic, machine: None, woken, is_function, sent: 0 };
            if session.run(&description)? == End::Signal {
                break;
            }
            if self.uplink.port().is_some() {
                self.uplink.renew(&self.stop).context("cannot attach again")?;
            }
        }
        self.stop.stop();
        Ok(())
    }

    /// Waits until the port is open. `false`: the process is to end.
    fn wait_for_port(&mut self) -> Result<bool> {
        while self.uplink.port().is_none() {
            let read = PollFlags::IN;
            let signals = PollFd::new(&self.signals, read);
            let mut fds = [signals, PollFd::from_borrowed_fd(self.uplink.fd(), read)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).context("cannot wait"),
            }
            if !fds[0].revents().is_empty() {
                return Ok(false);
            }
            self.uplink.hear();
        }
        Ok(true)
    }
}

/// A device on one region: before its VMM comes, and until it has gone.
struct Session<'a, 'b> {
    server: &'b mut Server,
    nic: Nic,
    machine: Option<Machine<'a>>,
    /// The switch has rung since the last turn.
    woken: bool,
    /// The port was an instance of a service when it was opened last.
    is_function: bool,
    /// Interrupts.
    sent: u64,
}

impl<'a> Session<'a, '_> {
    fn run(mut self, description: &'a Description) -> Result<End> {
        loop {
            let turn = match self.turn() {
                Ok(turn) => turn,
                Err(Lost) => {
                    self.lose()?;
                    continue;
                }
            };
            self.show_link();
            if self.machine.is_none() && self.server.uplink.port().is_none() {
                return Ok(End::Spent);
            }
            if let Some(end) = self.wait(turn, description)? {
                return Ok(end);
            }
        }
    }

    /// Passes a kick on, moves frames where that is for this process to do, and interrupts.
    fn turn(&mut self) -> Result<Turn, Lost> {
        let Self { server, nic, machine, woken, sent, .. } = self;
        let (kicked, woken) = (std::mem::take(&mut nic.kicked), std::mem::take(woken));
        let mut interrupt = |vector| {
            *sent += 1;
            interrupt(machine.as_ref(), vector);
        };
        let port = server.uplink.port();
        match (&mut nic.rings, port) {
            (Rings::Switch, Some(port)) => {
                if kicked {
                    port.kick()?;
                }
                if woken {
                    nic.sleepers.due().for_each(interrupt);
                }
                Ok(Turn::default())
            }
            (Rings::Drain(rings), Some(port)) => {
                // What the driver published last, before it stopped its rings.
                if kicked {
                    port.kick()?;
                }
                for ring in rings {
                    let count = ring.refresh();
                    if ring.release(count) {
                        port.kick()?;
                    }
                }
                Ok(Turn::default())
            }
            (Rings::Relay(relay), port) => relay.turn(port, &mut interrupt),
            // The driver has not come back to its rings yet.
            (Rings::Lost, Some(port)) => {
                (0..port.rx_rings()).try_for_each(|ring| discard(port.rx(ring)).map(drop))?;
                Ok(Turn::default())
            }
            (_, None) => Ok(Turn::default()),
        }
    }

    /// The switch is gone.
    fn lose(&mut self) -> Result<()> {
        self.nic.lose_port();
        self.server.uplink.lose(&self.server.stop).context("cannot attach again")
    }

    /// Tells the driver of the link, and of rings that are gone.
    fn show_link(&mut self) {
        let port = self.server.uplink.port();
        if let Some(port) = &port {
            self.is_function = port.is_function();
        }
        // No driver of a group's memory that is gone has a use for the port's new one.
        let has_link = port.is_some() && !self.nic.is_at_its_end();
        let bits = [(has_link, status::LINK), (self.is_function, status::FUNCTION)];
        let status: u32 = bits.iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
        if self.nic.model.set_status(status) {
            interrupt(self.machine.as_ref(), self.nic.model.status_vector());
        }
    }

    /// Serves what is ready, after a sleep if nothing is.
    fn wait(&mut self, turn: Turn, description: &'a Description) -> Result<Option<End>> {
        let sleeps = !turn.moved && self.arm(turn);
        let ready = self.poll(if sleeps { None } else { Some(Timespec::default()) })?;
        if ready.signal {
            return Ok(Some(End::Signal));
        }
        // A wake-up that is taken out of the doorbell is followed by a look at the rings.
        self.woken = ready.uplink;
        let asked = sleeps && !matches!(self.nic.rings, Rings::Switch);
        if (ready.uplink || asked) && self.disarm().is_err() {
            self.lose()?;
        }
        if ready.machine && self.serve() {
            return Ok(Some(End::Spent));
        }
        if ready.listener {
            let (now, log) = (now_ns(), &mut self.server.log);
            let tell = |text: &dyn Display| log.line(now, text);
            Machine::accept(&mut self.machine, &self.server.listener, description, tell);
        }
        Ok(None)
    }

    /// Asks for kicks. `false`: there is something to do already.
    fn arm(&mut self, turn: Turn) -> bool {
        let port: Option<&mut Port> = self.server.uplink.port();
        match &mut self.nic.rings {
            Rings::Relay(relay) => relay.arm(port, turn),
            Rings::Drain(rings) => rings.iter_mut().all(|ring| ring.arm(1)),
            Rings::Switch => true,
            Rings::Lost => port.is_none_or(|port| port.arm(Interest::Rx)),
        }
    }

    /// Takes the requests back, and the wake-ups.
    fn disarm(&mut self) -> Result<(), Lost> {
        let Self { server, nic, .. } = self;
        match &mut nic.rings {
            Rings::Relay(relay) => relay.disarm(),
            Rings::Drain(rings) => rings.iter().for_each(RxRing::disarm),
            Rings::Switch | Rings::Lost => {}
        }
        match (&nic.rings, server.uplink.port()) {
            // The rings of a port whose memory is lent are not this process's.
            (Rings::Switch | Rings::Drain(_), Some(port)) => port.acknowledge(),
            (_, Some(port)) => port.disarm(),
            (_, None) => {
                server.uplink.hear();
                Ok(())
            }
        }
    }

    fn poll(&mut self, timeout: Option<Timespec>) -> Result<Ready> {
        let read = PollFlags::IN;
        let Self { server, machine, .. } = self;
        let watch = |fd| PollFd::from_borrowed_fd(fd, read);
        let signals = server.signals.as_fd();
        let vmm = machine.as_ref().map(Machine::watch);
        let mut fds = [
            watch(signals),
            watch(server.uplink.fd()),
            watch(server.listener.as_fd()),
            vmm.clone().unwrap_or(watch(signals)),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(errno) => return Err(errno).context("cannot wait"),
        }
        let [signal, uplink, listener, socket] = fds.map(|fd| !fd.revents().is_empty());
        Ok(Ready { signal, uplink, machine: vmm.is_some() && socket, listener })
    }

    /// Serves requests of the VMM. `true`: one that may have mapped the memory has gone.
    fn serve(&mut self) -> bool {
        let Some(machine) = &mut self.machine else { return false };
        let now = now_ns();
        let Err(end) = machine.serve(&mut self.nic, &mut self.server.log, now) else {
            return false;
        };
        let (kicks, sent) = (self.nic.kicks, self.sent);
        let text = format_args!("{end} (kicks: {kicks}, interrupts: {sent})");
        self.server.log.line(now, text);
        let has_spoken = machine.client.session().is_open();
        self.machine = None;
        has_spoken
    }
}

fn interrupt(machine: Option<&Machine<'_>>, vector: u16) {
    if let Some(machine) = machine {
        machine.client.session().interrupts().send(vector);
    }
}

/// What a poll has found.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    signal: bool,
    uplink: bool,
    machine: bool,
    listener: bool,
}

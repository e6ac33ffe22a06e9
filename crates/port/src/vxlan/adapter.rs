//! The worker's side of a VXLAN port: sockets read and written.
//!
//! # Theory of operation
//!
//! ```text
//!  recv   1. answers of the port itself
//!         2. what is left of the inbox ──────────┐
//!         3. socket ──► inbox ───────────────────┼──► inlet ──► batch
//!            mailbox (`address`) ──► letters ────┘
//!
//!  send   frame ──► outbox ─┬─ answered from here
//!                           ├─ to the remote of its station ─┬──► runs ──► senders
//!                           └─ to all remotes of its VLAN ───┘
//! ```
//!
//! *In.* A batch takes what it has room for, and the next one goes on there: a message may hold
//! many datagrams (`next`). Socket and mailbox come first by turns, so that neither starves the
//! other.
//!
//! *Out.* A frame is copied into the outbox first, where the checks find its bytes in one piece.
//! The outbox is sent when it is full and at the end of a list. It knows then what became of each
//! frame, which counts once, however many copies it had.
//!
//! *Cost.* Copies of floods and messages that the kernel refuses are bounded for each turn
//! ([`Budget`]), which `flush` ends. Of a run that is too long, or that the kernel cannot cut, the
//! frames are sent one by one; the sender of a frame that is too long for the path is told
//! (`answers`).

use std::any::Any;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use packet::{VlanId, VlanSet, vxlan};
use protocol::{NeighEntry, REMOTES_MAX, RemoteVlans, VxlanStation};
use ring::frame::FRAME_MAX;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Now, Sent};

use super::ETHERNET_AND_TAG;
use super::address::{Letters, Place, Seat};
use super::answers::Answers;
use super::inlet::Inlet;
use super::neighbours::{Neighbours, Place as NeighPlace};
use super::networks::{Inside, Networks, TAG};
use super::outbox::{Outbox, SENDERS};
use super::remotes::Remotes;
use super::sender::{Way, send_runs};
use crate::sys::PortBell;
use crate::sys::udp::Inbox;

/// What a turn may cost, beyond what each frame costs at any port. What exceeds it is dropped.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Copies of flooded frames.
    copies: usize,
    /// Bytes of these copies.
    bytes: usize,
    /// Messages that the kernel refuses, each in a call of its own.
    failures: u32,
}

const TURN: Budget = Budget { copies: 1024, bytes: 4 << 20, failures: 64 };
const _: () = assert!(REMOTES_MAX <= TURN.copies, "a frame may go to all remotes");
/// The most datagrams of the mailbox that a turn reads.
const LETTERS: usize = 1024;
/// Milliseconds between two sweeps of the table.
const SWEEP_MS: u64 = 10;

/// The worker's side of a port.
pub struct VxlanPort {
    /// Closed before the seat is left, in the order of these fields.
    receiver: OwnedFd,
    seat: Seat,
    letters: Letters,
    /// The mailbox comes before the socket in this turn, so that neither starves the other.
    is_mail_first: bool,
    senders: Vec<OwnedFd>,
    /// The MTU of frames inside, if one is set; the kernel may refuse shorter ones.
    mtu: Option<u32>,
    inlet: Inlet,
    inbox: Box<Inbox>,
    /// The next message of the inbox to deliver, and where in it.
    next: (usize, usize),
    outbox: Outbox,
    answers: Answers,
    /// What this turn may still cost.
    left: Budget,
    started: Instant,
    swept_ms: u64,
}

impl VxlanPort {
    pub(super) fn new(
        receiver: OwnedFd,
        seat: Seat,
        senders: Vec<OwnedFd>,
        inlet: Inlet,
        answers: Answers,
        mtu: Option<u32>,
    ) -> Self {
        Self {
            receiver,
            seat,
            letters: Letters::default(),
            is_mail_first: false,
            senders,
            mtu,
            inlet,
            inbox: Box::default(),
            next: (0, 0),
            outbox: Outbox::default(),
            answers,
            left: TURN,
            started: Instant::now(),
            swept_ms: 0,
        }
    }

    /// Sets the remotes, the VLANs that they are in, and the static entries.
    pub fn set(&mut self, remotes: &[IpAddr], vlans: &RemoteVlans, stations: &[VxlanStation]) {
        self.inlet.remotes.set(remotes, stations);
        self.inlet.remotes.set_vlans(vlans);
        self.seat.set_remotes(remotes);
    }

    /// Sets the networks, and forgets what was learned in those that go. The
    /// [place](Self::place) says which datagrams come.
    pub fn set_networks(&mut self, networks: Networks) {
        let before = std::mem::replace(&mut self.inlet.networks, networks);
        let Inlet { networks, remotes, neighbours, .. } = &mut self.inlet;
        let is_gone = |vlan, vni| networks.inside(vni).is_none_or(|it| it.vlan() != vlan);
        let gone = before.vlans().filter(|&(vlan, vni)| is_gone(vlan, vni));
        let gone: VlanSet = gone.map(|(vlan, _)| vlan).collect();
        if gone.count() > 0 {
            remotes.flush_vlans(&gone);
            neighbours.forget_vlans(&gone);
        }
    }

    /// The port's place at its address.
    #[must_use]
    pub fn place(&self) -> Place {
        self.seat.place()
    }

    /// Learns source addresses, or does not, and then forgets those that it has learned.
    pub fn set_learning(&mut self, learning: bool) {
        self.inlet.learning = learning;
        if !learning {
            self.inlet.remotes.flush();
        }
    }

    /// The remotes, and the stations behind them.
    pub fn remotes(&mut self) -> &mut Remotes {
        &mut self.inlet.remotes
    }

    /// Which station has which IP address.
    pub fn neighbours(&mut self) -> &mut Neighbours {
        &mut self.inlet.neighbours
    }

    /// What is known of neighbours as of now: see [`Neighbours::page`]. Where all are of one
    /// network, no entry has a VLAN.
    #[must_use]
    pub fn neighbour_page(
        &self,
        from: Option<NeighPlace>,
        count: usize,
    ) -> (Vec<NeighEntry>, Option<NeighPlace>) {
        let (mut entries, next) = self.inlet.neighbours.page(from, count, self.now());
        if !self.inlet.networks.are_of_vlans() {
            entries.iter_mut().for_each(|entry| entry.vlan = None);
        }
        (entries, next)
    }

    fn now(&self) -> Now {
        let ms = self.started.elapsed().as_millis();
        Now::from_ms(u64::try_from(ms).unwrap_or(u64::MAX))
    }

    fn sweep(&mut self, now: Now) {
        if now.as_ms() >= self.swept_ms + SWEEP_MS {
            self.swept_ms = now.as_ms();
            self.inlet.remotes.sweep(now);
            self.inlet.neighbours.sweep(now);
        }
    }

    /// Delivers the messages of the inbox; returns `false` if there was not enough room.
    fn give_out(&mut self, now: Now, batch: &mut Batch, drops: &mut Drops) -> bool {
        while self.next.0 < self.inbox.count() {
            let (message, at) = self.next;
            let seat = &self.seat;
            let hand_over = |vni, from, bytes: &[u8]| seat.hand_over(vni, from, bytes);
            let rest = match self.inbox.get(message) {
                Some(received) => self.inlet.take(received, at, now, (batch, drops), hand_over),
                None => {
                    drops.add(DropReason::TooLong, 1);
                    None
                }
            };
            if let Some(rest) = rest {
                self.next.1 = rest;
                return false;
            }
            self.next = (message + 1, 0);
        }
        true
    }

    /// Delivers what came to the sockets of other ports; returns `false` if there was not enough
    /// room.
    fn read_letters(&mut self, now: Now, batch: &mut Batch, drops: &mut Drops) -> bool {
        if self.letters.first().is_none() {
            self.seat.collect(&mut self.letters, drops);
        }
        let seat = &self.seat;
        for _ in 0..LETTERS {
            let Some(received) = self.letters.first() else { return true };
            let hand_over = |vni, from, bytes: &[u8]| seat.hand_over(vni, from, bytes);
            if self.inlet.take(received, 0, now, (batch, drops), hand_over).is_some() {
                return false;
            }
            self.letters.advance();
        }
        self.letters.first().is_none()
    }

    /// Reads the socket, and delivers what came; returns `false` if there was not enough room.
    fn read_socket(&mut self, now: Now, batch: &mut Batch, drops: &mut Drops) -> bool {
        self.next = (0, 0);
        // An error says that there is nothing; one of the network is not the receiver's.
        self.inbox.receive(&self.receiver).is_err() || self.give_out(now, batch, drops)
    }

    /// Puts a frame into the outbox, for one remote or for all of its VLAN.
    fn push(&mut self, now: Now, batch: &Batch, delivery: Delivery) -> Result<(), DropReason> {
        let entry = &batch.frames()[usize::from(delivery.frame)];
        let Inlet { networks, remotes, .. } = &self.inlet;
        let (frame, head) = batch.outgoing(delivery);
        let (vni, head, inside) = networks.outside(head)?;
        let home = remotes.find(inside.vlan(), entry.header.dst(), now);
        let longest = self.mtu.map_or(FRAME_MAX, |mtu| mtu + ETHERNET_AND_TAG) as usize;
        let longest = longest - inside.more();
        if let Err(why) = self.outbox.push(vxlan::header(vni), (frame, head), longest) {
            if let (Some(_), Some(mtu)) = (home, self.mtu) {
                let mut frame = Vec::new();
                batch.append(delivery, &mut frame);
                self.answers.answer_long(&frame, mtu, now);
            }
            return Err(why);
        }
        if let Err(why) = inside.check(self.outbox.last()) {
            self.outbox.discard_last();
            return Err(why);
        }
        if self.is_answered(inside, now) {
            self.outbox.keep_last();
            return Ok(());
        }
        let sender = u8::try_from(batch.flow(entry) % u32::from(SENDERS)).expect("a few");
        match home {
            Some(remote) => self.outbox.send_to(remote, sender),
            None => self.flood(inside.vlan(), entry.bytes as usize, sender)?,
        }
        Ok(())
    }

    /// Sends the frame that was pushed last, of this many bytes, to all remotes of its VLAN; or
    /// takes it out again.
    fn flood(&mut self, vlan: VlanId, bytes: usize, sender: u8) -> Result<(), DropReason> {
        let copies = self.inlet.remotes.flooded(vlan).count();
        if let Err(why) = self.check_flood(copies, copies * bytes) {
            self.outbox.discard_last();
            return Err(why);
        }
        self.left.copies -= copies;
        self.left.bytes -= copies * bytes;
        let remotes = self.inlet.remotes.flooded(vlan);
        remotes.for_each(|remote| self.outbox.send_to(remote, sender));
        Ok(())
    }

    /// Whether the frame that was pushed last asks for a neighbour, and its sender gets the answer
    /// from here.
    fn is_answered(&mut self, inside: Inside, now: Now) -> bool {
        let Inlet { neighbours, remotes, .. } = &mut self.inlet;
        let vlan = inside.vlan();
        let is_remote = |mac| remotes.find(vlan, mac, now).is_some();
        let answer = neighbours.hear_local(vlan, self.outbox.last(), now, is_remote);
        let tagged = |answer: Vec<u8>| inside.tagged(&answer, &mut [0; TAG]).concat();
        let is_answered = answer.is_some_and(|answer| self.answers.add(tagged(answer)));
        if is_answered {
            neighbours.count_suppressed();
        }
        is_answered
    }

    /// Whether a frame may be flooded, in this many copies of this many bytes together.
    fn check_flood(&self, copies: usize, bytes: usize) -> Result<(), DropReason> {
        match copies {
            0 => Err(DropReason::NoDestination),
            _ if copies > self.left.copies || bytes > self.left.bytes => Err(DropReason::NoRoom),
            _ => Ok(()),
        }
    }

    /// Sends what is in the outbox.
    fn transmit(&mut self, now: Now, sent: &mut Sent) {
        let Inlet { networks, remotes, .. } = &self.inlet;
        let (failures, answers) = (&mut self.left.failures, &mut self.answers);
        let mut way = Way { networks, remotes, failures, answers, now };
        for (sender, socket) in (0..SENDERS).zip(&self.senders) {
            let runs = self.outbox.take_runs(sender);
            send_runs(socket, &runs, &mut self.outbox, &mut way);
            self.outbox.put_back(sender, runs);
        }
        for (bytes, outcome) in self.outbox.drain() {
            match outcome {
                Ok(()) => sent.delivered.add(1, bytes as u64),
                Err(why) => sent.drops.add(why, 1),
            }
        }
    }
}

impl Adapter for VxlanPort {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        let now = self.now();
        self.sweep(now);
        self.inlet.begin(batch);
        while self.inlet.has_room(batch)
            && let Some(answer) = self.answers.next()
        {
            self.inlet.put(&[&answer], batch);
        }
        if !self.give_out(now, batch, drops) {
            return;
        }
        self.is_mail_first = !self.is_mail_first;
        let _ = match self.is_mail_first {
            true => self.read_letters(now, batch, drops) && self.read_socket(now, batch, drops),
            false => self.read_socket(now, batch, drops) && self.read_letters(now, batch, drops),
        };
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let (now, mut sent) = (self.now(), Sent::default());
        for &delivery in list {
            if !self.outbox.has_room(self.inlet.remotes.count()) {
                self.transmit(now, &mut sent);
            }
            if let Err(why) = self.push(now, batch, delivery) {
                sent.drops.add(why, 1);
            }
        }
        self.transmit(now, &mut sent);
        debug_assert_eq!(sent.delivered.frames + sent.drops.total(), list.len() as u64);
        sent
    }

    fn flush(&mut self) {
        self.left = TURN;
        self.answers.wake(self.inlet.networks.first());
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}

impl Notify for VxlanPort {
    fn pending(&mut self) -> bool {
        let has_mail = self.letters.first().is_some() || self.seat.has_mail();
        self.next.0 < self.inbox.count() || has_mail || self.answers.wait()
    }

    fn has_answers(&self) -> bool {
        self.answers.wait()
    }

    fn is_socket(&self) -> bool {
        true
    }

    fn watch(&mut self, bell: &dyn Any) -> bool {
        PortBell::of(bell).watch_all([&self.receiver, self.seat.bell()])
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        PortBell::of(bell).unwatch_all([&self.receiver, self.seat.bell()]);
    }
}

#[cfg(test)]
mod tests;

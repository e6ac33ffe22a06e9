//! Answers of a port to the stations that send to it: to frames that are too long for the path of
//! the tunnel, and to requests for the address of a [neighbour](super::neighbours).
//!
//! # Theory of operation
//!
//! When the kernel refuses a datagram as too long, it does not say how long one may be. A socket
//! of its own, which keeps the kernel's errors, tries the datagram once more and finds out. The
//! frame's sender then gets an ICMP error in the name of the station that it wrote to, as the
//! port's next received frame.
//!
//! Only a frame to a station that is known to be behind a remote has an answer: if the switch
//! floods a frame, its station may be at another port, which takes it. The answers of a second are
//! bounded, as is what waits to be received.
//!
//! Another worker than the port's may have sent the frame. So a datagram to the port's own address,
//! with its VNI and no frame, makes the port's worker look for the answer.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use packet::bytes::mac_at;
use packet::ethernet::network_header;
use packet::too_big;
use packet::vxlan::{self, HEADER, Vni, header};
use switch::Now;

use super::networks::{Networks, TAG};
use super::remotes::Remotes;
use super::{UDP_HEADER, ip_header};
use crate::sys::udp::{self, Message, Target};

/// The most answers of a second.
const PER_SECOND: u32 = 100;
/// The most that wait.
const WAITING: usize = 256;

/// The answers of a port.
pub struct Answers {
    prober: OwnedFd,
    /// The port's own address.
    own: Target,
    /// A datagram to it is on its way.
    is_woken: bool,
    /// Bytes of a packet in front of the frame.
    outside: u32,
    /// What waits to be received.
    frames: VecDeque<Vec<u8>>,
    /// The second in which `count` answers were made.
    second: u64,
    count: u32,
}

impl Answers {
    pub fn new(prober: OwnedFd, local: SocketAddr) -> Self {
        let outside = ip_header(local.ip()) + UDP_HEADER + u32::try_from(HEADER).expect("8");
        let (own, frames) = (local.into(), VecDeque::new());
        Self { prober, own, is_woken: false, outside, frames, second: 0, count: 0 }
    }

    /// Whether one waits to be received.
    pub fn wait(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Takes the first that waits.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        self.is_woken = false;
        self.frames.pop_front()
    }

    /// Makes the worker of the port, which has this VNI, look if one waits.
    pub fn wake(&mut self, vni: Vni) {
        if self.wait() && !self.is_woken {
            // A host without the address, or with a firewall, gets the answer with the next turn.
            let message = Message { to: &self.own, bytes: &header(vni), segment: u16::MAX };
            self.is_woken = udp::send(&self.prober, &[message]).is_ok();
        }
    }

    /// Adds an answer; `false`: too many wait.
    pub fn add(&mut self, answer: Vec<u8>) -> bool {
        let has_room = self.frames.len() < WAITING;
        if has_room {
            self.frames.push_back(answer);
        }
        has_room
    }

    /// Answers a frame, behind its VXLAN header, that the kernel has refused as too long.
    pub fn answer_refused(
        &mut self,
        message: Message<'_>,
        networks: &Networks,
        remotes: &Remotes,
        now: Now,
    ) {
        let Some((vni, frame)) = vxlan::read(message.bytes) else { return };
        let Some(inside) = networks.inside(vni) else { return };
        let home = remotes.find(inside.vlan(), mac_at(frame, 0), now);
        if home.is_none() || !self.may_answer(now) {
            return;
        }
        let outer = udp::limit(&self.prober, message);
        let longest = outer.and_then(|mtu| mtu.checked_sub(self.outside));
        let ethernet = network_header(frame).1;
        let mtu = longest.and_then(|longest| longest.checked_sub(u32::try_from(ethernet).ok()?));
        if let Some(mtu) = mtu {
            self.push(&inside.tagged(frame, &mut [0; TAG]).concat(), mtu);
        }
    }

    /// Answers a frame for a known station that is longer than the port's own MTU.
    pub fn answer_long(&mut self, frame: &[u8], mtu: u32, now: Now) {
        if self.may_answer(now) {
            self.push(frame, mtu);
        }
    }

    fn push(&mut self, frame: &[u8], mtu: u32) {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        if let Some(answer) = too_big::answer(frame, mtu) {
            self.frames.push_back(answer);
            self.count += 1;
        }
    }

    fn may_answer(&mut self, now: Now) -> bool {
        let second = now.as_ms() / 1000;
        if second != self.second {
            (self.second, self.count) = (second, 0);
        }
        self.count < PER_SECOND && self.frames.len() < WAITING
    }
}

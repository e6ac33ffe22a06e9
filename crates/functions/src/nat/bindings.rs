//! Bindings of addresses and ports inside to those outside, with their expiry.
//!
//! One *binding* is one end inside (address, port, protocol) and the end that the outside sees in
//! its place, whichever host it talks to: endpoint-independent mapping (RFC 4787, REQ-1; RFC 5382,
//! REQ-1; RFC 5508, REQ-1). It lives as long as packets go out by it, and the sort of its protocol
//! says how long it may be silent. Packets that come in never prolong it: no host outside can,
//! where it is known which packets come from inside (`from_inside`).
//!
//! TCP is silent for hours while a connection is open, and for minutes otherwise (RFC 5382,
//! REQ-5). What of a binding is known is the connection to its first remote end:
//!
//! ```text
//!            the remote acknowledges        we acknowledge
//!  Opening ─────────────────────────► Heard ──────────────► Open
//!     ▲                                 │ RST                │ RST, or FIN from both
//!     │          a SYN goes out         ▼                    │
//!     └────────────────────────────── Closing ◄──────────────┘
//! ```
//!
//! A second remote end, while the connection to the first is open, makes the binding *shared*: it
//! is kept as if it were open, because to forget it could cut a connection. Before and after that
//! the remote end that was spoken to last is the one that counts: what has no answer is never kept
//! for hours.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use packet::hash::folded_multiply;

use super::ports::Ports;
use crate::shares::{Shares, Source};
use crate::table::{Seed, Table};
use crate::time::Ms;
use packet::ipv4::{End, Protocol, tcp_flag};

/// How long each sort may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// UDP.
    pub udp: Ms,
    /// TCP connections that are open.
    pub tcp: Ms,
    /// Connections that are not yet established, or closing.
    pub transitory: Ms,
    /// Echo requests.
    pub icmp: Ms,
}

/// See the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tcp {
    /// Something went out.
    Opening,
    /// The remote has acknowledged something.
    Heard,
    /// We have acknowledged something after that.
    Open,
    /// A reset, or an end from both.
    Closing,
}

/// One end inside and what it is outside.
#[derive(Debug)]
pub struct Binding {
    protocol: Protocol,
    inside: End,
    outside: End,
    /// When a packet went out by it last; `None`: it is of the configuration, and stays.
    seen: Option<Ms>,
    remote: End,
    is_shared: bool,
    tcp: Tcp,
    /// Ends that were seen: 1 ours, 2 theirs.
    fins: u8,
}

impl Binding {
    fn new(protocol: Protocol, inside: End, outside: End, remote: End, seen: Option<Ms>) -> Self {
        let (is_shared, tcp, fins) = (false, Tcp::Opening, 0);
        Self { protocol, inside, outside, seen, remote, is_shared, tcp, fins }
    }

    fn is_over(&self, now: Ms, timeouts: &Timeouts) -> bool {
        let idle = match self.protocol {
            Protocol::Udp => timeouts.udp,
            Protocol::Icmp => timeouts.icmp,
            Protocol::Tcp if self.is_shared || self.tcp == Tcp::Open => timeouts.tcp,
            Protocol::Tcp => timeouts.transitory,
        };
        self.seen.is_some_and(|seen| now - seen >= idle)
    }

    /// A segment goes out with these flags.
    fn sent(&mut self, flags: u8, remote: End) {
        let begins = flags & tcp_flag::SYN != 0 && flags & tcp_flag::ACK == 0;
        let is_other = remote != self.remote;
        let begins_anew = match self.tcp {
            Tcp::Opening => is_other,
            Tcp::Closing => is_other || begins,
            Tcp::Heard | Tcp::Open => false,
        };
        if begins_anew {
            self.is_shared &= !begins;
            (self.tcp, self.remote, self.fins) = (Tcp::Opening, remote, 0);
        } else if is_other {
            self.is_shared |= self.tcp == Tcp::Open;
            return;
        }
        let is_plain = flags & (tcp_flag::SYN | tcp_flag::FIN | tcp_flag::RST) == 0;
        if self.tcp == Tcp::Heard && is_plain {
            self.tcp = Tcp::Open;
        }
        self.ended(flags, 1);
    }

    /// A segment comes in with these flags.
    fn heard(&mut self, flags: u8, remote: End) {
        if remote == self.remote {
            if self.tcp == Tcp::Opening && flags & tcp_flag::ACK != 0 {
                self.tcp = Tcp::Heard;
            }
            self.ended(flags, 2);
        }
    }

    fn ended(&mut self, flags: u8, by: u8) {
        self.fins |= if flags & tcp_flag::FIN != 0 { by } else { 0 };
        if flags & tcp_flag::RST != 0 || self.fins == 3 {
            self.tcp = Tcp::Closing;
        }
    }
}

/// Why there is no binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The table is full.
    Full,
    /// This host has as many as one may.
    Host,
    /// All ports of its address are in use.
    NoPort,
}

/// All bindings.
#[derive(Debug)]
pub struct Bindings {
    /// By the end inside.
    table: Table<u64, Binding>,
    /// By the end outside: the place in `table`.
    outside: HashMap<u64, u32, Seed>,
    /// The bindings of each host inside.
    hosts: Shares,
    addresses: Vec<Ipv4Addr>,
    /// Free ports of each address, for each protocol.
    ports: Vec<[Ports; 3]>,
    timeouts: Timeouts,
    random: u64,
    /// When the batch came.
    pub now: Ms,
}

impl Bindings {
    /// An empty table for at most `most` bindings, which `hosts` share.
    pub fn new(
        (most, hosts): (u32, Shares),
        addresses: &[Ipv4Addr],
        range: &RangeInclusive<u16>,
        timeouts: Timeouts,
    ) -> Self {
        // Identifiers of echo requests are no ports: all of them can be had.
        let ports = || [0..=u16::MAX, range.clone(), range.clone()].map(Ports::new);
        Self {
            table: Table::new(most),
            outside: HashMap::with_capacity_and_hasher(most as usize, Seed::default()),
            hosts,
            addresses: addresses.to_vec(),
            ports: addresses.iter().map(|_| ports()).collect(),
            timeouts,
            random: Seed::default().hash_one(0u64),
            now: Ms::now(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// A packet goes out: what its sender is outside. `flags` are those of TCP.
    #[inline]
    pub fn out(
        &mut self,
        protocol: Protocol,
        (inside, remote): (End, End),
        flags: u8,
    ) -> Result<End, Refused> {
        let place = match self.table.find(&inside.key(protocol)) {
            Some(place) if !self.is_over(place) => place,
            over => {
                over.into_iter().for_each(|place| self.forget(place));
                self.bind(protocol, inside, remote)?
            }
        };
        let now = self.now;
        let binding = self.table.at(place).expect("found or made just now");
        binding.seen = binding.seen.map(|_| now);
        if protocol == Protocol::Tcp {
            binding.sent(flags, remote);
        }
        Ok(binding.outside)
    }

    /// The inner host that an incoming packet is for.
    #[inline]
    pub fn back(
        &mut self,
        protocol: Protocol,
        (remote, outside): (End, End),
        flags: u8,
    ) -> Option<End> {
        let place = *self.outside.get(&outside.key(protocol))?;
        if self.is_over(place) {
            self.forget(place);
            return None;
        }
        let binding = self.table.at(place)?;
        if protocol == Protocol::Tcp {
            binding.heard(flags, remote);
        }
        Some(binding.inside)
    }

    /// The inner end of what an error quotes; this neither prolongs nor makes a binding.
    pub fn known_outside(&mut self, protocol: Protocol, outside: End) -> Option<End> {
        let place = *self.outside.get(&outside.key(protocol))?;
        (!self.is_over(place)).then(|| self.table.at(place).map(|known| known.inside))?
    }

    /// What an end inside is outside, likewise.
    pub fn known_inside(&mut self, protocol: Protocol, inside: End) -> Option<End> {
        let place = self.table.find(&inside.key(protocol))?;
        (!self.is_over(place)).then(|| self.table.at(place).map(|known| known.outside))?
    }

    #[inline]
    fn is_over(&mut self, place: u32) -> bool {
        let (now, timeouts) = (self.now, self.timeouts);
        self.table.at(place).is_none_or(|binding| binding.is_over(now, &timeouts))
    }

    /// All packets of a host have one address outside: paired pooling (RFC 4787, REQ-2).
    fn bind(&mut self, protocol: Protocol, inside: End, remote: End) -> Result<u32, Refused> {
        if self.table.is_full() {
            return Err(Refused::Full);
        }
        if self.hosts.is_used_up(source(inside.ip)) {
            return Err(Refused::Host);
        }
        self.random =
            folded_multiply(self.random.wrapping_add(0x9e37_79b9_7f4a_7c15), 0xd6e8_feb8_6659_fd93);
        let pool = folded_multiply(source(inside.ip), 0xa076_1d64_78bd_642f);
        let which = usize::try_from(pool % self.addresses.len() as u64).expect("small");
        let ports = &mut self.ports[which][usize::from(protocol.number())];
        let port = ports.take(inside.port, self.random).ok_or(Refused::NoPort)?;
        let outside = End { ip: self.addresses[which], port };
        self.put(Binding::new(protocol, inside, outside, remote, Some(self.now)))
    }

    fn put(&mut self, binding: Binding) -> Result<u32, Refused> {
        let (inside, outside) = (binding.inside, binding.outside);
        let protocol = binding.protocol;
        let place = self.table.insert(inside.key(protocol), binding).ok_or(Refused::Full)?;
        self.outside.insert(outside.key(protocol), place);
        self.hosts.add(source(inside.ip));
        Ok(place)
    }

    fn ports_of(&mut self, protocol: Protocol, ip: Ipv4Addr) -> Option<&mut Ports> {
        let which = self.addresses.iter().position(|address| *address == ip)?;
        Some(&mut self.ports[which][usize::from(protocol.number())])
    }

    /// Binds these two for ever. `false`: one of them is bound already, or the table is full.
    pub fn fix(&mut self, protocol: Protocol, inside: End, outside: End) -> bool {
        let is_new = self.table.find(&inside.key(protocol)).is_none()
            && !self.outside.contains_key(&outside.key(protocol));
        // Its port may lie outside of the range that is given out.
        self.ports_of(protocol, outside.ip).map(|ports| ports.take_this(outside.port));
        is_new && self.put(Binding::new(protocol, inside, outside, outside, None)).is_ok()
    }

    /// Takes over what others knew, where it fits: where `is_inside`, and the end outside is free.
    pub fn adopt(&mut self, others: Self, is_inside: impl Fn(Ipv4Addr) -> bool) {
        for (inside, binding) in others.table.into_values() {
            let fits = binding.seen.is_some()
                && is_inside(binding.inside.ip)
                && self.table.find(&inside).is_none()
                && !self.table.is_full()
                && !self.hosts.is_used_up(source(binding.inside.ip));
            let outside = binding.outside;
            let mut is_free = || {
                let ports = self.ports_of(binding.protocol, outside.ip);
                ports.is_some_and(|ports| ports.take_this(outside.port))
            };
            if fits && is_free() {
                let _ = self.put(binding);
            }
        }
    }

    fn forget(&mut self, place: u32) {
        if let Some((_, binding)) = self.table.remove(place) {
            self.give_back(&binding);
        }
    }

    fn give_back(&mut self, binding: &Binding) {
        self.outside.remove(&binding.outside.key(binding.protocol));
        self.hosts.remove(source(binding.inside.ip));
        let ports = self.ports_of(binding.protocol, binding.outside.ip);
        ports.into_iter().for_each(|ports| ports.give_back(binding.outside.port));
    }

    /// Looks at this many bindings, and forgets those that are over.
    pub fn sweep(&mut self, places: usize) {
        let (now, timeouts) = (self.now, self.timeouts);
        for _ in 0..places {
            if let Some((_, old)) = self.table.turn(|binding| binding.is_over(now, &timeouts)) {
                self.give_back(&old);
            }
        }
    }
}

/// The host inside, of which the bindings are counted.
fn source(host: Ipv4Addr) -> Source {
    u32::from(host).into()
}

//! Rule fields: which frames an operator means, and whether a frame is one of them.
//!
//! [`Fields`] are what a rule says, as text and configuration files give it. A [`Matcher`] is the
//! same as words under masks, so that a rule with three fields costs as much as one with seven;
//! ranges of L4 ports are compared beside them.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::ethernet::EtherType;
use crate::flow::{FlowKey, WORDS, halves, has_ports, layout};
use crate::icmpv6::ICMPV6;
use crate::mac::MacAddr;
use crate::port::PortId;
use crate::vlan::VlanId;

/// An IP network: an address and a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An address of the network.
    pub address: IpAddr,
    /// The length of the prefix.
    pub bits: u8,
}

impl Network {
    /// The first address of the network.
    #[must_use]
    pub fn first(self) -> IpAddr {
        match self.address {
            IpAddr::V4(ip) => {
                let mask =
                    u32::MAX.checked_shl(32u32.saturating_sub(self.bits.into())).unwrap_or(0);
                IpAddr::V4((u32::from(ip) & mask).into())
            }
            IpAddr::V6(ip) => {
                let mask =
                    u128::MAX.checked_shl(128u32.saturating_sub(self.bits.into())).unwrap_or(0);
                IpAddr::V6((u128::from(ip) & mask).into())
            }
        }
    }
}

/// Which frames: those for which all that is said holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The port that it came in by.
    pub port: Option<PortId>,
    /// Source address.
    pub src_mac: Option<MacAddr>,
    /// Destination address.
    pub dst_mac: Option<MacAddr>,
    /// The VLAN that the switch has put it in.
    pub vlan: Option<VlanId>,
    /// The type, behind tags.
    pub ethertype: Option<EtherType>,
    /// IP source.
    pub src: Option<Network>,
    /// IP destination.
    pub dst: Option<Network>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// L4 source ports.
    pub src_ports: Option<RangeInclusive<u16>>,
    /// L4 destination ports.
    pub dst_ports: Option<RangeInclusive<u16>>,
}

impl Fields {
    /// Why no frame can match these fields, if that is so.
    #[must_use]
    pub fn contradiction(&self) -> Option<&'static str> {
        let [src, dst] = [self.src, self.dst].map(|net| net.map(|net| net.address.is_ipv4()));
        let (asks_for_ports, is_v4) =
            (self.src_ports.is_some() || self.dst_ports.is_some(), src.or(dst));
        let asks_for_ip = asks_for_ports || is_v4.is_some() || self.protocol.is_some();
        let other_version = |kind| match kind {
            EtherType::IPV4 => is_v4 == Some(false),
            EtherType::IPV6 => is_v4 == Some(true),
            _ => false,
        };
        let is_ip = |kind| [EtherType::IPV4, EtherType::IPV6].contains(&kind);
        if src.is_some_and(|src| dst.is_some_and(|dst| src != dst)) {
            Some("one of its networks is of IPv4 and the other of IPv6")
        } else if asks_for_ip && self.ethertype.is_some_and(|kind| !is_ip(kind)) {
            Some("frames of its type have no IP addresses, protocols or ports")
        } else if self.ethertype.is_some_and(other_version) {
            Some("its type is of another version of IP than its networks")
        } else if asks_for_ports && self.protocol.is_some_and(|number| !has_ports(number)) {
            Some("packets of its protocol have no ports")
        } else {
            None
        }
    }

    /// Why an operator cannot mean these fields: no frame matches them, or none that a host sends.
    #[must_use]
    pub fn mistake(&self) -> Option<&'static str> {
        let is_v4 = |net: Network| net.address.is_ipv4();
        let of_networks = self.src.or(self.dst).map(is_v4);
        let is_v4 = of_networks.or(self.ethertype.map(|kind| kind == EtherType::IPV4));
        let is_of_other = match self.protocol {
            Some(ICMP) => is_v4 == Some(false),
            Some(ICMPV6) => is_v4 == Some(true),
            _ => false,
        };
        let why = "icmp is of IPv4 and icmpv6 of IPv6, unlike its networks or its type";
        self.contradiction().or(is_of_other.then_some(why))
    }
}

/// Protocols of one version of IP alone.
const ICMP: u8 = 1;

/// [`Fields`] ready to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    want: [u64; WORDS],
    mask: [u64; WORDS],
    src_ports: [u16; 2],
    dst_ports: [u16; 2],
}

impl From<&Fields> for Matcher {
    fn from(fields: &Fields) -> Self {
        let all = [0, u16::MAX];
        let mut this = Self { want: [0; WORDS], mask: [0; WORDS], src_ports: all, dst_ports: all };
        const MAC: u64 = 0xffff_ffff_ffff;
        if let Some(mac) = fields.dst_mac {
            this.ask(layout::DST_MAC, mac.as_u64(), MAC);
        }
        if let Some(mac) = fields.src_mac {
            this.ask(layout::SRC_MAC, mac.as_u64(), MAC);
        }
        if let Some(EtherType(kind)) = fields.ethertype {
            let mask = 0xffff << layout::ABOVE_MAC;
            this.ask(layout::DST_MAC, u64::from(kind) << layout::ABOVE_MAC, mask);
        }
        if let Some(vlan) = fields.vlan {
            let mask = 0xffff << layout::ABOVE_MAC;
            this.ask(layout::SRC_MAC, u64::from(vlan.get()) << layout::ABOVE_MAC, mask);
        }
        if let Some(port) = fields.port {
            let want = u64::from(port.number()) << layout::IN_PORT;
            this.ask(layout::REST, want, 0xfff << layout::IN_PORT);
        }
        if let Some(protocol) = fields.protocol {
            // A frame that is no IP packet has none, not number 0.
            let want = u64::from(protocol) << layout::PROTOCOL | layout::IP;
            this.ask(layout::REST, want, 0xff << layout::PROTOCOL | layout::IP);
        }
        this.ask_network(layout::SRC_IP, fields.src);
        this.ask_network(layout::DST_IP, fields.dst);
        this.ask_ports(fields);
        this
    }
}

impl Matcher {
    /// The value of each word of a matching flow key, under the [mask](Self::mask).
    #[inline]
    #[must_use]
    pub fn want(&self) -> &[u64; WORDS] {
        &self.want
    }

    /// The bits that the rule looks at. Port ranges are not among them.
    #[inline]
    #[must_use]
    pub fn mask(&self) -> &[u64; WORDS] {
        &self.mask
    }

    fn ask(&mut self, word: usize, want: u64, mask: u64) {
        self.want[word] |= want & mask;
        self.mask[word] |= mask;
    }

    fn ask_network(&mut self, word: usize, network: Option<Network>) {
        let Some(Network { address, bits }) = network else { return };
        let (number, width, version) = match address {
            IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32, layout::V4),
            IpAddr::V6(ip) => (u128::from(ip), 128, layout::V6),
        };
        let host = u32::from(width - bits.min(width));
        let every = if width == 32 { u128::from(u32::MAX) } else { u128::MAX };
        let mask = every & u128::MAX.checked_shl(host).unwrap_or(0);
        let ([want_high, want_low], [high, low]) = (halves(number), halves(mask));
        self.ask(word, want_high, high);
        self.ask(word + 1, want_low, low);
        self.ask(layout::REST, version, layout::V4 | layout::V6);
    }

    fn ask_ports(&mut self, fields: &Fields) {
        let range = |wanted: &Option<RangeInclusive<u16>>| {
            wanted.as_ref().map_or([0, u16::MAX], |wanted| [*wanted.start(), *wanted.end()])
        };
        self.src_ports = range(&fields.src_ports);
        self.dst_ports = range(&fields.dst_ports);
        for ([first, last], shift) in [(self.src_ports, 0), (self.dst_ports, layout::DST_PORT)] {
            // One port is bits like any others.
            if first == last {
                self.ask(layout::REST, u64::from(first) << shift, 0xffff << shift);
            }
        }
        if fields.src_ports.is_some() || fields.dst_ports.is_some() {
            self.ask(layout::REST, layout::HAS_PORTS, layout::HAS_PORTS);
        }
    }

    /// Whether the frame with this key matches.
    #[inline]
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // reason: takes ports out of a word.
    pub fn matches(&self, key: &FlowKey) -> bool {
        let words = key.0.iter().zip(&self.want).zip(&self.mask);
        let differ = words.fold(0, |differ, ((has, want), mask)| differ | ((has ^ want) & mask));
        let rest = key.0[layout::REST];
        let within = |[first, last]: [u16; 2], port: u16| first <= port && port <= last;
        differ == 0
            && within(self.src_ports, rest as u16)
            && within(self.dst_ports, (rest >> layout::DST_PORT) as u16)
    }

    /// Whether this matcher matches every frame that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let asks_no_more =
            self.mask.iter().zip(&other.mask).all(|(ours, theirs)| ours & !theirs == 0);
        let contains = |a: [u16; 2], b: [u16; 2]| a[0] <= b[0] && b[1] <= a[1];
        asks_no_more
            && self.agrees(other)
            && contains(self.src_ports, other.src_ports)
            && contains(self.dst_ports, other.dst_ports)
    }

    /// Whether one frame can match both.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let meet = |a: [u16; 2], b: [u16; 2]| a[0] <= b[1] && b[0] <= a[1];
        self.agrees(other)
            && meet(self.src_ports, other.src_ports)
            && meet(self.dst_ports, other.dst_ports)
    }

    /// Whether both ask for the same value of each field that both name.
    fn agrees(&self, other: &Self) -> bool {
        let ours = self.want.iter().zip(&self.mask);
        let theirs = other.want.iter().zip(&other.mask);
        ours.zip(theirs).all(|((want, mask), (other, theirs))| (want ^ other) & mask & theirs == 0)
    }
}

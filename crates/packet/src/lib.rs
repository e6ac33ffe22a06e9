//! Frames and packets: reads and writes their headers.
//!
//! This crate reads and writes bytes that the caller holds. It does no input or output, has no
//! state, and depends on no other crate unless its feature `serde` is on. So the switch, the
//! network functions, the client library and the tools share one definition of each header and rule
//! field.
//!
//! | module | holds |
//! |---|---|
//! | [`mac`] | MAC addresses |
//! | [`mac_lock`] | the source addresses that a port may use |
//! | [`ethernet`] | the head of an Ethernet frame: addresses, EtherType, 802.1Q tag |
//! | [`ipv4`] | IPv4 packets with TCP, UDP or ICMP: fields, and changes that keep checksums right |
//! | `icmpv6` | packets of ICMPv6 |
//! | [`checksum`] | the Internet checksum |
//! | [`bytes`] | fields of packets that may be cut |
//! | [`arp`] | ARP packets |
//! | [`build`] | frames from their fields |
//! | [`dropped`] | what stands in front of a dropped frame that is shown |
//! | [`vlan`] | VLAN numbers, sets of them, and how a port takes part in VLANs |
//! | [`port`] | the number of a switch port |
//! | [`flow`] | flow keys: what rules and flow tables compare |
//! | [`fields`] | rule fields, and whether a frame matches them |
//! | [`rule`] | rules of chains, and whether they go with each other |
//! | [`mcast`] | membership of multicast groups: IGMP and MLD |
//! | [`metadata`] | what the switch and functions tell each other about a frame |
//! | [`neigh`] | ARP and neighbour discovery |
//! | [`offload`] | checksums and segments that a sender left to its network device |
//! | [`shown`] | texts of others, as a terminal or a log shows them |
//! | [`summary`] | a frame in one line of text |
//! | [`text`] | rule fields as people write them |
//! | [`too_big`] | the answer to a packet that is too long for a link |
//! | [`vxlan`] | the header of VXLAN |
//! | [`hash`] | the mixing step of hash functions; a hash of names |
//! | [`error`] | the error of text that cannot be read |
#![forbid(unsafe_code)]

pub mod arp;
pub mod build;
pub mod bytes;
pub mod checksum;
pub mod dropped;
pub mod error;
pub mod ethernet;
pub mod fields;
pub mod flow;
pub mod hash;
mod icmpv6;
pub mod ipv4;
pub mod mac;
pub mod mac_lock;
pub mod mcast;
pub mod metadata;
pub mod neigh;
pub mod offload;
pub mod port;
pub mod rule;
pub mod shown;
pub mod summary;
pub mod text;
pub mod too_big;
pub mod vlan;
pub mod vxlan;

pub use error::ParseError;
pub use ethernet::EtherType;
pub use mac::MacAddr;
pub use mac_lock::{LOCKED_MACS_MAX, MacList, MacLock};
pub use port::{MAX_PORTS, PortId};
pub use vlan::{VlanId, VlanMode, VlanSet};

//! Messages of IPFIX (RFC 7011): what flows were, for a collector.
//!
//! ```text
//!  version 10 │ length │ time │ sequence │ domain ║ set 2: both templates ║ set 256: records │ …
//! ```
//!
//! Each message has the templates in it: a collector that comes late understands the next one,
//! and nothing has to be sent again by the clock.

use std::net::IpAddr;

use packet::flow::FiveTuple;

/// Longest message: it fits into any Ethernet frame, with headers to spare.
const LONGEST: usize = 1400;
const HEADER: usize = 16;
const VERSION: u16 = 10;
const TEMPLATES: u16 = 2;
const V4: u16 = 256;
const V6: u16 = 257;

/// Information elements (IANA's registry, RFC 7012) and their lengths, in the records' order.
const COMMON: [(u16, u16); 8] = [
    (1, 8),   // octetDeltaCount
    (2, 8),   // packetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (136, 1), // flowEndReason
];
/// sourceIPv4Address, destinationIPv4Address, and those of IPv6.
const ADDRESSES_V4: [(u16, u16); 2] = [(8, 4), (12, 4)];
const ADDRESSES_V6: [(u16, u16); 2] = [(27, 16), (28, 16)];

/// Why a flow is reported (flowEndReason).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The flow was idle.
    Idle = 1,
    /// The flow goes on; this is an interim report.
    Active = 2,
    /// The exporter ends.
    Forced = 4,
}

/// What a flow was since it was reported last.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Key of the flow.
    pub way: FiveTuple,
    /// Bytes of its IP packets.
    pub bytes: u64,
    /// IP packets.
    pub packets: u64,
    /// When its first came and its last, in milliseconds since 1970.
    pub times_ms: [u64; 2],
    /// Why now.
    pub reason: Reason,
}

/// A message that is being written.
#[derive(Debug)]
pub struct Message {
    bytes: Vec<u8>,
    /// Where the set begins that records are added to, and of which template it is.
    set: Option<(usize, u16)>,
    records: u32,
    sequence: u32,
    domain: u32,
}

impl Message {
    /// An empty one of an observation domain.
    pub fn new(domain: u32) -> Self {
        let bytes = Vec::with_capacity(LONGEST);
        let mut message = Self { bytes, set: None, records: 0, sequence: 0, domain };
        message.begin();
        message
    }

    fn begin(&mut self) {
        self.bytes.clear();
        self.bytes.resize(HEADER, 0);
        self.open(TEMPLATES);
        for (template, addresses) in [(V4, ADDRESSES_V4), (V6, ADDRESSES_V6)] {
            let fields = COMMON.len() + addresses.len();
            self.words([template, u16::try_from(fields).expect("ten")]);
            COMMON.into_iter().chain(addresses).for_each(|(id, len)| self.words([id, len]));
        }
        self.close();
        self.records = 0;
    }

    fn words(&mut self, words: [u16; 2]) {
        words.iter().for_each(|word| self.bytes.extend(word.to_be_bytes()));
    }

    fn open(&mut self, id: u16) {
        self.set = Some((self.bytes.len(), id));
        self.words([id, 0]);
    }

    fn close(&mut self) {
        if let Some((at, _)) = self.set.take() {
            let len = u16::try_from(self.bytes.len() - at).expect("a message is short");
            self.bytes[at + 2..at + 4].copy_from_slice(&len.to_be_bytes());
        }
    }

    /// Whether the message has no room for one more record.
    pub fn is_full(&self) -> bool {
        self.bytes.len() + 4 + 70 > LONGEST
    }

    /// Adds a record. The message must have room.
    pub fn add(&mut self, record: &Record) {
        let id = if record.way.src.is_ipv4() { V4 } else { V6 };
        if self.set.is_none_or(|(_, open)| open != id) {
            self.close();
            self.open(id);
        }
        let [start, end] = record.times_ms;
        for number in [record.bytes, record.packets, start, end] {
            self.bytes.extend(number.to_be_bytes());
        }
        self.words(record.way.ports);
        self.bytes.extend([record.way.protocol, record.reason as u8]);
        for ip in [record.way.src, record.way.dst] {
            match ip {
                IpAddr::V4(ip) => self.bytes.extend(ip.octets()),
                IpAddr::V6(ip) => self.bytes.extend(ip.octets()),
            }
        }
        self.records += 1;
    }

    /// Hands the message to `send`, if there is a record in it, and begins the next.
    pub fn finish(&mut self, now_ms: u64, send: impl FnOnce(&[u8])) {
        if self.records == 0 {
            return;
        }
        self.close();
        let len = u16::try_from(self.bytes.len()).expect("a message is short");
        // Until 2106.
        let seconds = u32::try_from(now_ms / 1000).unwrap_or(u32::MAX);
        self.bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        self.bytes[2..4].copy_from_slice(&len.to_be_bytes());
        self.bytes[4..8].copy_from_slice(&seconds.to_be_bytes());
        self.bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        self.bytes[12..16].copy_from_slice(&self.domain.to_be_bytes());
        send(&self.bytes);
        self.sequence = self.sequence.wrapping_add(self.records);
        self.begin();
    }
}

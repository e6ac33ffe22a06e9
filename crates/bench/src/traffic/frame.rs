//! Frames that say what they are: UDP over IPv4, numbered, stamped with the time, every byte known.
//!
//! ```text
//!  0         14        34     42   44              52        60                       len
//!  | Ethernet | IPv4    | UDP  | uv | stream, number | time ns | filler | filler | … tail |
//!                                     16     48 bits    64 bits
//! ```
//!
//! In a VLAN, four bytes of tag stand between the addresses and the rest, which is as above.
//!
//! All numbers are in network order. The filler is the XOR of the two words before it, so a byte of
//! another frame, an old one or a missing one shows. It also makes the UDP checksum cheap: equal
//! words add up by multiplication, and neither sender nor receiver sums a payload byte by byte.

use packet::EtherType;
use packet::build::{DONT_FRAGMENT, UDP_HEADER, ethernet_header, ipv4_header, udp_header};
use packet::checksum::Sum;

use super::values::{Endpoints, MacRange};

/// Bytes of a VLAN tag.
pub const TAG: usize = 4;

/// Shortest frame that holds number and time; Ethernet has no shorter ones either.
pub const SHORTEST: usize = 60;
/// Longest: an IPv4 packet of the greatest length.
pub const LONGEST: usize = ETHERNET + 65_535;

const ETHERNET: usize = 14;
const UDP: usize = 34;
const PAYLOAD: usize = 42;
const HEAD: usize = 44;
const ADDRESSES: usize = 12;
const IPV4: u16 = EtherType::IPV4.0;
/// What an 802.1Q tag begins with.
const DOT1Q: [u8; 2] = [0x81, 0x00];
const UDP_PROTOCOL: u8 = 17;
const MAGIC: [u8; 2] = *b"uv";
const NUMBER_BITS: u32 = 48;

/// What a frame says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which sender's run it belongs to.
    pub stream: u16,
    /// The number of the frame in its stream, from 0 on.
    pub number: u64,
    /// Monotonic clock when it was written.
    pub time_ns: u64,
}

impl Stamp {
    fn words(self) -> [u64; 2] {
        [u64::from(self.stream) << NUMBER_BITS | self.number, self.time_ns]
    }
}

/// What a received frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// One of these frames, every byte right.
    Good(Stamp),
    /// One of these frames, and some byte is wrong.
    Corrupted,
    /// A frame of another program.
    Foreign,
}

/// Source, destination and length.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Destination addresses.
    pub to: MacRange,
    /// Source addresses.
    pub from: MacRange,
    /// Source IP addresses and ports.
    pub source: Endpoints,
    /// Destination IP addresses and ports.
    pub destination: Endpoints,
    /// Bytes of each frame, with its tag.
    pub length: usize,
    /// The VLAN of its tag, if it has one.
    pub vlan: Option<u16>,
}

/// Makes the frames of a plan.
#[derive(Clone, Debug)]
pub struct Builder {
    plan: Plan,
    /// The head, where it is always the same.
    fixed: Option<Head>,
    stream: u16,
}

/// Everything in front of the numbers, the UDP checksum missing.
#[derive(Clone, Copy, Debug)]
struct Head {
    bytes: [u8; HEAD],
    /// What the checksum has to cover of it.
    sum: Sum,
}

impl Builder {
    /// For a run with a stream number of its own.
    ///
    /// # Panics
    /// If the length is out of range.
    pub fn new(plan: Plan, stream: u16) -> Self {
        let untagged = plan.length - plan.tag();
        assert!((SHORTEST..=LONGEST).contains(&untagged), "a length that frames can have");
        let Plan { to, from, source, destination, .. } = plan;
        let spans = [to.0, from.0, source.ip, source.port, destination.ip, destination.port];
        let fixed = spans.iter().all(|span| span.is_one()).then(|| plan.head(0));
        Self { plan, fixed, stream }
    }

    /// The stream's number.
    pub fn stream(&self) -> u16 {
        self.stream
    }

    /// Writes every byte of the `number`-th frame.
    ///
    /// # Panics
    /// If `frame` has not the length of the plan.
    #[inline]
    pub fn write(&self, frame: &mut [u8], number: u64, time_ns: u64) {
        assert_eq!(frame.len(), self.plan.length);
        match self.plan.vlan {
            None => self.write_untagged(frame, number, time_ns),
            Some(vlan) => {
                self.write_untagged(&mut frame[TAG..], number, time_ns);
                frame.copy_within(TAG..TAG + ADDRESSES, 0);
                frame[ADDRESSES..ADDRESSES + 2].copy_from_slice(&DOT1Q);
                frame[ADDRESSES + 2..ADDRESSES + TAG].copy_from_slice(&vlan.to_be_bytes());
            }
        }
    }

    #[inline]
    fn write_untagged(&self, frame: &mut [u8], number: u64, time_ns: u64) {
        let head = self.fixed.unwrap_or_else(|| self.plan.head(number));
        let stamp = Stamp { stream: self.stream, number, time_ns };
        // The length as a constant makes the shortest frame's work a handful of stores.
        match <&mut [u8; SHORTEST]>::try_from(&mut *frame) {
            Ok(short) => write(short, head, stamp),
            Err(_) => write(frame, head, stamp),
        }
    }
}

impl Plan {
    /// Bytes of the tag.
    fn tag(&self) -> usize {
        if self.vlan.is_some() { TAG } else { 0 }
    }

    /// The head of the `n`-th frame.
    fn head(&self, n: u64) -> Head {
        let payload = self.length - self.tag() - PAYLOAD;
        let ends = (self.source.ip_at(n), self.destination.ip_at(n));
        let mut bytes = [0; HEAD];
        bytes[..ETHERNET].copy_from_slice(&ethernet_header(self.to.at(n), self.from.at(n), IPV4));
        let ipv4 = ipv4_header(UDP_PROTOCOL, DONT_FRAGMENT, ends, UDP_HEADER + payload);
        bytes[ETHERNET..UDP].copy_from_slice(&ipv4);
        let ports = (self.source.port_at(n), self.destination.port_at(n));
        bytes[UDP..PAYLOAD].copy_from_slice(&udp_header(ports.0, ports.1, payload));
        bytes[PAYLOAD..].copy_from_slice(&MAGIC);
        Head { bytes, sum: udp_sum(&bytes) }
    }
}

#[inline(always)]
fn write(frame: &mut [u8], head: Head, stamp: Stamp) {
    let words = stamp.words();
    let payload_sum = head.sum.and(stamp_sum(words, frame.len()));
    frame[..HEAD].copy_from_slice(&head.bytes);
    frame[40..42].copy_from_slice(&payload_sum.nonzero_checksum().to_be_bytes());
    frame[HEAD..52].copy_from_slice(&words[0].to_be_bytes());
    frame[52..SHORTEST].copy_from_slice(&words[1].to_be_bytes());
    let filler = (words[0] ^ words[1]).to_be_bytes();
    let (fillers, tail) = frame[SHORTEST..].as_chunks_mut::<8>();
    fillers.fill(filler);
    tail.copy_from_slice(&filler[..tail.len()]);
}

/// Reads every byte of a frame that should be in a VLAN, or in none. One that is not where it
/// should be is another program's.
#[inline]
pub fn read_in(frame: &[u8], vlan: Option<u16>) -> Seen {
    match vlan {
        None => read(frame),
        // The addresses are not looked at: what stands before the tag is as good.
        Some(vlan) if tag_of(frame) == Some(vlan) => read(&frame[TAG..]),
        Some(_) => Seen::Foreign,
    }
}

/// The VLAN of a frame that has a tag.
fn tag_of(frame: &[u8]) -> Option<u16> {
    let tag: &[u8; TAG] = frame.get(ADDRESSES..)?.first_chunk()?;
    (tag[..2] == DOT1Q).then(|| u16::from_be_bytes([tag[2] & 0x0f, tag[3]]))
}

#[inline]
fn read(frame: &[u8]) -> Seen {
    match <&[u8; SHORTEST]>::try_from(frame) {
        Ok(short) => read_bytes(short),
        Err(_) => read_bytes(frame),
    }
}

#[inline(always)]
fn read_bytes(frame: &[u8]) -> Seen {
    let is_ours = frame.len() >= SHORTEST
        && frame[12..14] == IPV4.to_be_bytes()
        && frame[23] == UDP_PROTOCOL
        && frame[PAYLOAD..HEAD] == MAGIC;
    if !is_ours {
        return Seen::Foreign;
    }
    let words = [word(frame, HEAD), word(frame, 52)];
    let filler = words[0] ^ words[1];
    let (fillers, tail) = frame[SHORTEST..].as_chunks::<8>();
    let wrong = fillers.iter().fold(0, |wrong, w| wrong | (u64::from_be_bytes(*w) ^ filler));
    let sum = udp_sum(frame).and(stamp_sum(words, frame.len()));
    let right = wrong == 0
        && *tail == filler.to_be_bytes()[..tail.len()]
        && frame[40..42] == sum.nonzero_checksum().to_be_bytes()
        && frame[16..18] == be16(frame.len() - ETHERNET)
        && Sum::of(&frame[ETHERNET..UDP]).fold() == u16::MAX;
    if !right {
        return Seen::Corrupted;
    }
    let stream = words[0].to_be_bytes();
    Seen::Good(Stamp {
        stream: u16::from_be_bytes([stream[0], stream[1]]),
        number: words[0] & ((1 << NUMBER_BITS) - 1),
        time_ns: words[1],
    })
}

/// Exchanges sender and receiver at all layers: the frame goes back, its checksums as right as
/// before. What came for a group of addresses goes back from `own`: a group sends nothing.
pub fn turn_around(frame: &mut [u8], own: [u8; 6]) {
    let tag = if tag_of(frame).is_some() { TAG } else { 0 };
    let inner = &frame[tag.min(frame.len())..];
    let is_udp =
        inner.len() >= PAYLOAD && inner[12..14] == IPV4.to_be_bytes() && inner[23] == UDP_PROTOCOL;
    let fields = [(0, 6), (tag + 26, 4), (tag + 34, 2)];
    let count = if is_udp { fields.len() } else { 1 };
    for &(at, len) in &fields[..count] {
        if let Some(both) = frame.get_mut(at..at + 2 * len) {
            let (a, b) = both.split_at_mut(len);
            a.swap_with_slice(b);
        }
    }
    if let Some(source) = frame.get_mut(6..12)
        && source[0] & 1 != 0
    {
        source.copy_from_slice(&own);
    }
}

/// The sum of the pseudo-header, the UDP header without its checksum, and the magic number.
#[inline(always)]
fn udp_sum(head: &[u8]) -> Sum {
    let length = u16::from_be_bytes([head[38], head[39]]);
    let pseudo_header = Sum::pseudo_header(&head[26..34], UDP_PROTOCOL, length);
    pseudo_header.and(Sum::of(&head[34..40])).and(Sum::of(&head[PAYLOAD..HEAD]))
}

/// The sum of the two words and of as many fillers as the frame has room for.
#[inline(always)]
fn stamp_sum(words: [u64; 2], length: usize) -> Sum {
    let sum = |word: u64| Sum::of(&word.to_be_bytes());
    let filler = words[0] ^ words[1];
    let (whole, rest) = ((length - SHORTEST) / 8, (length - SHORTEST) % 8);
    let tail = filler & !(u64::MAX >> (8 * rest));
    sum(words[0]).and(sum(words[1])).and(sum(filler).times(whole as u64)).and(sum(tail))
}

#[inline(always)]
fn word(frame: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes"))
}

#[inline(always)]
fn be16(number: usize) -> [u8; 2] {
    u16::try_from(number).unwrap_or(u16::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;

    fn plan(length: usize) -> Plan {
        Plan {
            to: "02:00:00:00:00:02-02:00:00:00:00:05".parse().unwrap(),
            from: "02:00:00:00:00:01".parse().unwrap(),
            source: "10.0.0.1:2000-10.0.0.9:2010".parse().unwrap(),
            destination: "10.1.0.1".parse().unwrap(),
            length,
            vlan: None,
        }
    }

    fn frame(length: usize, number: u64, time_ns: u64) -> Vec<u8> {
        let mut frame = vec![0xaa; length];
        Builder::new(plan(length), 0xbeef).write(&mut frame, number, time_ns);
        frame
    }

    #[track_caller]
    fn check_by_reference(frame: &[u8]) {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = packet.net else { panic!("not IPv4") };
        let Some(TransportSlice::Udp(udp)) = packet.transport else { panic!("not UDP") };
        let ip = ip.header().to_header();
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        let udp_header = udp.to_header();
        let expected = udp_header.calc_checksum_ipv4(&ip, udp.payload()).unwrap();
        assert_eq!(udp_header.checksum, expected, "{} bytes", frame.len());
        assert_eq!(usize::from(ip.total_len) + ETHERNET, frame.len());
    }

    proptest! {
        #[test]
        fn test_checksums_are_those_of_another_implementation(
            length in SHORTEST..2100usize, number in 0..1u64 << NUMBER_BITS, time_ns: u64,
        ) {
            check_by_reference(&frame(length, number, time_ns));
        }

        #[test]
        fn test_read_tells_what_was_written(
            length in SHORTEST..2100usize, number in 0..1u64 << NUMBER_BITS, time_ns: u64,
        ) {
            let stamp = Stamp { stream: 0xbeef, number, time_ns };
            prop_assert_eq!(read(&frame(length, number, time_ns)), Seen::Good(stamp));
        }
    }

    #[test]
    fn test_longest_frame() {
        let frame = frame(LONGEST, 5, 77);
        check_by_reference(&frame);
        assert!(matches!(read(&frame), Seen::Good(_)));
    }

    #[test]
    fn test_one_wrong_byte_behind_the_addresses_is_seen() {
        let mut frame = frame(81, 1000, 123_456_789);
        for at in ETHERNET..frame.len() {
            frame[at] ^= 0x10;
            assert!(!matches!(read(&frame), Seen::Good(_)), "byte {at}");
            frame[at] ^= 0x10;
        }
        assert!(matches!(read(&frame), Seen::Good(_)));
        assert_eq!(read(&frame[..80]), Seen::Corrupted);
        assert_eq!(read(&frame[..59]), Seen::Foreign);
        assert_eq!(read(&[0; 60]), Seen::Foreign);
    }

    #[test]
    fn test_turn_around_leaves_a_right_frame() {
        let mut frame = frame(67, 9, 10);
        let before = frame.clone();
        let own = [2, 0, 0, 0, 0, 9];
        turn_around(&mut frame, own);
        check_by_reference(&frame);
        assert_eq!(read(&frame), read(&before));
        assert_eq!((&frame[..6], &frame[6..12]), (&before[6..12], &before[..6]));
        assert_eq!(frame[26..30], before[30..34]);
        turn_around(&mut frame, own);
        assert_eq!(frame, before);
        frame[0] = 1;
        turn_around(&mut frame, own);
        assert_eq!(frame[6..12], own);
    }

    #[test]
    fn test_a_tag_is_four_bytes_more_and_nothing_else() {
        let plain = frame(77, 9, 10);
        let mut tagged = vec![0xaa; 81];
        let plan = Plan { vlan: Some(4094), ..plan(81) };
        Builder::new(plan, 0xbeef).write(&mut tagged, 9, 10);
        assert_eq!(tagged[12..16], [0x81, 0, 0x0f, 0xfe]);
        let without: Vec<u8> = [&tagged[..12], &tagged[16..]].concat();
        assert_eq!(without, plain);
        assert_eq!(read_in(&tagged, Some(4094)), read(&plain));
        for (bytes, vlan) in [(&tagged, None), (&tagged, Some(1)), (&plain, Some(4094))] {
            assert_eq!(read_in(bytes, vlan), Seen::Foreign, "{vlan:?}");
        }
        turn_around(&mut tagged, [2, 0, 0, 0, 0, 9]);
        check_by_reference(&[&tagged[..12], &tagged[16..]].concat());
        assert_eq!((&tagged[..6], &tagged[6..12]), (&plain[6..12], &plain[..6]));
    }

    #[test]
    fn test_ranges_take_turns() {
        let last = |number| frame(60, number, 0)[5];
        assert_eq!([last(0), last(1), last(3), last(4)], [2, 3, 5, 2]);
    }
}

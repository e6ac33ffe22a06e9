//! What a packet is to a connection.
//!
//! ```text
//!                            opens one      passes as of one that is known
//!  TCP SYN without ACK       yes            from the end that began it
//!  echo request              yes            from the end that began it
//!  echo reply                no             from the other end, by the request's identifier
//!  ICMP error                no             where it quotes a packet, to that packet's sender
//!  other ICMP                no             no
//!  everything else           yes            from both ends
//! ```
//!
//! A connection is two ends and a protocol; of echo requests also an identifier and the asking end,
//! so that both ends may ask each other with one identifier. What an error quotes is no sign of
//! life: any host may write it.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use packet::flow::{FlowKey, PREFIX, WORDS};

use crate::shares::Source;
use crate::text::{Hidden, read};
use crate::time::Ms;
use packet::bytes::u16_at;
use packet::ethernet::ETHERNET_HEADER;
use packet::ipv4::{icmp, tcp_flag};

/// What a connection is known by.
#[derive(Clone, Copy, Debug, Eq)]
pub struct Ends([u64; WORDS]);

impl Ends {
    fn protocol(&self) -> u64 {
        self.0[WORDS - 1]
    }
}

impl PartialEq for Ends {
    /// All words without a branch: nearly all that are compared are the same.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl Hash for Ends {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g] = self.0;
        for [high, low] in [[a, d], [b, e], [c | g << 16, f]] {
            state.write_u128(u128::from(high) << 64 | u128::from(low));
        }
    }
}

/// Above the protocol in [`Ends`]: the second end asks.
const SECOND_ASKS: u64 = 1 << 8;
/// Bytes of headers of ICMP, behind which a quoted packet begins.
const ICMP: usize = 8;

/// One that is known.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    seen: Ms,
    /// By the end that its [`Ends`] name first.
    begun_by_first: bool,
    /// The host that began it.
    pub source: Source,
}

fn source(key: &FlowKey) -> Option<Source> {
    match key.five_tuple()?.src {
        IpAddr::V4(ip) => Some(u32::from(ip).into()),
        IpAddr::V6(ip) => u64::try_from(u128::from(ip) >> 64).ok(),
    }
}

impl Connection {
    /// Whether the connection's last packet is less than `idle` old.
    pub fn lives(&self, now: Ms, idle: Ms) -> bool {
        now - self.seen < idle
    }

    /// Whether the connection lets this packet pass.
    pub fn takes(&mut self, packet: &Packet, part: Part, now: Ms, idle: Ms) -> bool {
        let is_other = part == Part::Begins && packet.key.is_from_first() != self.begun_by_first;
        if is_other || !self.lives(now, idle) {
            return false;
        }
        if part != Part::Quotes {
            self.seen = now;
        }
        true
    }
}

/// What it is to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Begins one.
    Begins,
    /// Goes from the one end to the other; may be the first that was seen of it.
    GoesOn,
    /// Answers a request.
    Answers,
    /// Is an error about a packet of it.
    Quotes,
}

/// What a frame says of itself.
#[derive(Debug)]
pub struct Packet {
    pub key: FlowKey,
    pub hidden: Option<Hidden>,
    /// The connection of the packet, and its part in it; `None`: nothing, or it does not show what.
    pub part: Option<(Ends, Part)>,
}

impl Packet {
    /// The one in a frame.
    pub fn of(frame: &[u8]) -> Self {
        let (key, payload) = read(frame);
        let hidden = Hidden::by(&key);
        let ends = key.conversation().filter(|_| hidden.is_none()).map(Ends);
        let part = ends.and_then(|ends| match ends.protocol() {
            1 | 58 => message(&key, ends, frame, payload?),
            6 => Some((ends, segment(frame, payload.map(|(_, at)| at)))),
            _ => Some((ends, Part::GoesOn)),
        });
        Self { key, hidden, part }
    }

    /// The connection that is known from now on, if the packet is let through.
    pub fn begins(&self, now: Ms) -> Option<(Ends, Connection)> {
        let (ends, part) = self.part?;
        let begun_by_first = self.key.is_from_first();
        let is_first = matches!(part, Part::Begins | Part::GoesOn);
        let source = source(&self.key).filter(|_| is_first)?;
        Some((ends, Connection { seen: now, begun_by_first, source }))
    }
}

/// The part of a TCP segment; one whose flags are hidden counts as SYN.
fn segment(frame: &[u8], payload: Option<usize>) -> Part {
    let flags = payload.and_then(|at| frame.get(at + 13)).unwrap_or(&tcp_flag::SYN);
    match flags & (tcp_flag::SYN | tcp_flag::ACK) {
        tcp_flag::SYN => Part::Begins,
        _ => Part::GoesOn,
    }
}

/// The part of a message of ICMP or ICMPv6.
fn message(
    key: &FlowKey,
    ends: Ends,
    frame: &[u8],
    (ethertype, at): (u16, usize),
) -> Option<(Ends, Part)> {
    let message = frame.get(at..).filter(|message| message.len() >= ICMP)?;
    let echo = |is_from_first: bool| {
        let mut ends = ends;
        let identifier = u64::from(u16_at(message, 4));
        (ends.0[2], ends.0[5]) = (identifier, identifier);
        ends.0[WORDS - 1] |= if is_from_first { 0 } else { SECOND_ASKS };
        ends
    };
    match (ends.protocol(), message[0]) {
        (1, icmp::ECHO) | (58, 128) => Some((echo(key.is_from_first()), Part::Begins)),
        (1, icmp::ECHO_REPLY) | (58, 129) => Some((echo(!key.is_from_first()), Part::Answers)),
        (1, kind) if icmp::is_error(kind) => about(key, ethertype, &message[ICMP..]),
        (58, 1..=4) => about(key, ethertype, &message[ICMP..]),
        _ => None,
    }
}

/// The connection of the packet that an error quotes, if the error goes to that packet's sender.
fn about(error: &FlowKey, ethertype: u16, quoted: &[u8]) -> Option<(Ends, Part)> {
    let (mut frame, len) = ([0; PREFIX], quoted.len().min(PREFIX - ETHERNET_HEADER));
    frame[ETHERNET_HEADER - 2..ETHERNET_HEADER].copy_from_slice(&ethertype.to_be_bytes());
    frame[ETHERNET_HEADER..ETHERNET_HEADER + len].copy_from_slice(&quoted[..len]);
    let Packet { key, part, .. } = Packet::of(&frame[..ETHERNET_HEADER + len]);
    let (ends, part) = part?;
    let is_answer = part != Part::Quotes && key.five_tuple()?.src == error.five_tuple()?.dst;
    is_answer.then_some((ends, Part::Quotes))
}

#[cfg(test)]
mod tests {
    use super::super::{Firewall, Verdict};
    use super::*;
    use packet::build::{ethernet, icmp_error, ipv4};

    const RED: [u8; 4] = [10, 0, 1, 2];
    const BLUE: [u8; 4] = [10, 0, 2, 2];
    const ROUTER: [u8; 4] = [10, 0, 9, 1];
    /// What comes from red may go anywhere.
    const CONFIG: &str = include_str!("../../../../examples/nf/firewall.toml");
    const SYN: u8 = tcp_flag::SYN;
    const ACK: u8 = tcp_flag::ACK;

    fn v4(protocol: u8, src: [u8; 4], dst: [u8; 4], payload: &[u8]) -> Vec<u8> {
        ethernet([2; 6], [4; 6], 0x0800, &ipv4(protocol, src.into(), dst.into(), payload))
    }

    /// From the network of the last byte of each address.
    fn v6(protocol: u8, src: u8, dst: u8, payload: &[u8]) -> Vec<u8> {
        let address = |net: u8| [[0xfd, 0, 0, 0, 0, 0, 0, net], [0, 0, 0, 0, 0, 0, 0, 2]].concat();
        let len = u8::try_from(payload.len()).unwrap();
        let head = [0x60, 0, 0, 0, 0, len, protocol, 64];
        let packet = [&head[..], &address(src), &address(dst), payload].concat();
        ethernet([2; 6], [4; 6], 0x86dd, &packet)
    }

    fn echo(kind: u8, identifier: u8) -> [u8; 16] {
        [kind, 0, 0, 0, 0, identifier, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    fn ping(src: [u8; 4], dst: [u8; 4], identifier: u8) -> Vec<u8> {
        v4(1, src, dst, &echo(icmp::ECHO, identifier))
    }

    fn pong(src: [u8; 4], dst: [u8; 4], identifier: u8) -> Vec<u8> {
        v4(1, src, dst, &echo(icmp::ECHO_REPLY, identifier))
    }

    fn tcp(ports: [u16; 2], flags: u8) -> Vec<u8> {
        let [src, dst] = ports.map(u16::to_be_bytes);
        [&src[..], &dst, &[0; 8], &[0x50, flags, 0, 0, 0, 0, 0, 0]].concat()
    }

    struct Bench(Firewall);

    impl Bench {
        fn new(config: &str) -> Self {
            Self(Firewall::new(config).unwrap())
        }

        fn passes(&mut self, frame: &[u8]) -> bool {
            self.0.verdict(&Packet::of(frame)) == Verdict::Accept
        }

        fn wait(&mut self, seconds: u64) {
            self.0.now += Ms::from_secs(seconds);
        }
    }

    #[test]
    fn test_only_the_reply_answers_an_echo_request() {
        let mut bench = Bench::new(CONFIG);
        assert!(!bench.passes(&pong(BLUE, RED, 7)), "without a request");
        assert!(bench.passes(&ping(RED, BLUE, 7)));
        assert!(bench.passes(&pong(BLUE, RED, 7)));
        assert!(!bench.passes(&ping(BLUE, RED, 7)), "a question is no answer");
        assert!(!bench.passes(&pong(BLUE, RED, 8)), "without that request");
        assert!(!bench.passes(&pong(ROUTER, RED, 7)), "from another host");
        assert!(!bench.passes(&v4(1, BLUE, RED, &echo(13, 7))), "other messages");
        bench.wait(121);
        assert!(!bench.passes(&pong(BLUE, RED, 7)), "too late");
    }

    #[test]
    fn test_a_reply_that_a_rule_lets_through_opens_nothing() {
        let mut bench = Bench::new(CONFIG);
        assert!(bench.passes(&pong(RED, BLUE, 7)), "red may say anything");
        assert!(bench.passes(&v4(1, RED, BLUE, &echo(13, 7))));
        for kind in [icmp::ECHO, icmp::ECHO_REPLY, 13, 14] {
            assert!(!bench.passes(&v4(1, BLUE, RED, &echo(kind, 7))), "{kind}");
        }
        assert!(bench.0.known.is_empty());
    }

    #[test]
    fn test_both_ends_may_ask_with_one_identifier() {
        let may_ask = "[[rule]]\naction = \"accept\"\nsrc = \"10.0.2.2\"\nproto = \"icmp\"\n";
        let none = CONFIG.replace("10.0.1.0/24", "10.0.1.2");
        let mut bench = Bench::new(&(none + may_ask));
        assert!(bench.passes(&ping(RED, BLUE, 1)) && bench.passes(&ping(BLUE, RED, 1)));
        bench.0.rules.clear();
        assert!(bench.passes(&pong(BLUE, RED, 1)) && bench.passes(&pong(RED, BLUE, 1)));
    }

    #[test]
    fn test_icmpv6_is_tracked_likewise() {
        let mut bench = Bench::new(&CONFIG.replace("10.0.1.0/24", "fd00:0:0:1::/64"));
        let message = |src, dst, kind| v6(58, src, dst, &echo(kind, 7));
        assert!(!bench.passes(&message(2, 1, 129)));
        assert!(bench.passes(&message(1, 2, 128)));
        assert!(bench.passes(&message(2, 1, 129)));
        assert!(!bench.passes(&message(2, 1, 128)));
        let quoted =
            |src, dst| [&echo(1, 0)[..ICMP], &message(src, dst, 128)[ETHERNET_HEADER..]].concat();
        assert!(bench.passes(&v6(58, 3, 1, &quoted(1, 2))), "a router has no way to there");
        assert!(!bench.passes(&v6(58, 3, 1, &quoted(1, 4))), "red has sent no such thing");
        assert!(!bench.passes(&message(2, 1, 135)), "a neighbour's question is for rules");
        let hidden = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &echo(128, 7)].concat();
        assert!(!bench.passes(&v6(60, 2, 1, &hidden)), "a question behind options");
    }

    #[test]
    fn test_errors_count_only_about_packets_of_known_connections() {
        let mut bench = Bench::new(CONFIG);
        let segment = &v4(6, RED, BLUE, &tcp([5, 80], SYN))[ETHERNET_HEADER..];
        let error = |dst, about: &[u8]| v4(1, ROUTER, dst, &icmp_error(3, 1, about));
        assert!(!bench.passes(&error(RED, segment)), "red has sent nothing yet");
        assert!(bench.passes(&v4(6, RED, BLUE, &tcp([5, 80], SYN))));
        assert!(bench.passes(&ping(RED, BLUE, 7)));
        assert!(bench.passes(&error(RED, segment)));
        assert!(bench.passes(&error(RED, &ping(RED, BLUE, 7)[ETHERNET_HEADER..])));
        assert!(!bench.passes(&error([10, 0, 1, 3], segment)), "it is not for the sender of that");
        let other = &v4(6, RED, BLUE, &tcp([5, 81], SYN))[ETHERNET_HEADER..];
        assert!(!bench.passes(&error(RED, other)), "of another connection");
        assert!(
            !bench.passes(&error(RED, &error(RED, segment)[ETHERNET_HEADER..])),
            "errors quote none"
        );
        assert!(!bench.passes(&error(RED, &segment[..20])), "cut in front of its ports");
        assert!(!bench.passes(&v4(1, ROUTER, RED, &[3, 1, 0, 0])), "cut");
        bench.wait(119);
        assert!(bench.passes(&error(RED, segment)));
        bench.wait(2);
        assert!(!bench.passes(&error(RED, segment)), "an error keeps no connection alive");
    }

    #[test]
    fn test_who_answers_by_tcp_begins_nothing() {
        let mut bench = Bench::new(CONFIG);
        let there = |flags| v4(6, RED, BLUE, &tcp([5, 80], flags));
        let back = |flags| v4(6, BLUE, RED, &tcp([80, 5], flags));
        assert!(!bench.passes(&back(SYN)) && !bench.passes(&back(ACK)), "red has not begun");
        assert!(bench.passes(&there(SYN)));
        assert!(bench.passes(&back(SYN | ACK)) && bench.passes(&there(ACK)));
        assert!(bench.passes(&back(ACK)) && bench.passes(&back(tcp_flag::FIN | ACK)));
        assert!(!bench.passes(&back(SYN)), "without a connection");
        assert!(!bench.passes(&back(SYN | tcp_flag::FIN)));
        assert!(bench.passes(&there(SYN)), "red may, by the same ports");
        let cut = v4(6, BLUE, RED, &tcp([80, 5], ACK)[..12]);
        assert!(!bench.passes(&cut), "a packet with hidden flags counts as an opening one");
    }

    #[test]
    fn test_where_both_may_begin_the_last_who_did_has() {
        let rules = "[[rule]]\naction = \"accept\"\nproto = \"tcp\"\n";
        let mut bench = Bench::new(rules);
        let there = |flags| v4(6, RED, BLUE, &tcp([5, 80], flags));
        let back = |flags| v4(6, BLUE, RED, &tcp([80, 5], flags));
        assert!(bench.passes(&there(SYN)) && bench.passes(&back(SYN)));
        bench.0.rules.clear();
        assert!(bench.passes(&back(SYN)) && !bench.passes(&there(SYN)));
    }

    #[test]
    fn test_pieces_of_echo_requests_and_replies_open_nothing_and_are_for_rules() {
        let mut bench = Bench::new(CONFIG);
        let piece = |mut frame: Vec<u8>| {
            frame[ETHERNET_HEADER + 6] = 0x20;
            frame
        };
        assert!(bench.passes(&piece(ping(RED, BLUE, 7))), "by its rule");
        assert!(!bench.passes(&pong(BLUE, RED, 7)));
        assert!(bench.passes(&ping(RED, BLUE, 7)) && bench.passes(&pong(BLUE, RED, 7)));
        assert!(!bench.passes(&piece(pong(BLUE, RED, 7))));
    }
}

//! Packets on their way out and back, whole, in pieces and broken.

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use packet::build::{ethernet, icmp_error, ipv4};
use packet::checksum::checksum;
use packet::ipv4::tcp_flag;

const CONFIG: &str = "inside = [\"10.0.1.0/24\"]\noutside = [\"192.0.2.1\"]\n";
const FORWARD: &str = "[[forward]]\nproto = \"tcp\"\noutside = \"192.0.2.1:8080\"\n\
    inside = \"10.0.1.2:80\"\n";
const HOST: [u8; 4] = [10, 0, 1, 2];
const OTHER: [u8; 4] = [10, 0, 1, 3];
const OUTSIDE: [u8; 4] = [192, 0, 2, 1];
const REMOTE: [u8; 4] = [198, 51, 100, 7];

/// What becomes of a frame, and the frame after it.
fn see(nat: &mut Nat, frame: &[u8]) -> (Became, Vec<u8>) {
    see_by(nat, 0, frame)
}

/// What becomes of a packet in a chain.
fn see_by(nat: &mut Nat, mark: u64, bytes: &[u8]) -> (Became, Vec<u8>) {
    let before = nat.became;
    let mut buffer = bytes.to_vec();
    let mut frame = Frame::new(&mut buffer);
    frame.meta = Metadata::new(mark);
    let action = nat.frame(&mut frame, &mut Generated::default());
    let index = (0..BECAME.len()).find(|&index| nat.became[index] > before[index]).unwrap();
    let all = [
        Became::Out,
        Became::Back,
        Became::Hairpin,
        Became::Passed,
        Became::Broken,
        Became::Spoofed,
        Became::Protocol,
        Became::Unbound,
        Became::Piece,
        Became::Full,
        Became::HostFull,
        Became::NoPort,
    ];
    assert_eq!(action == Action::Next, index <= Became::Passed as usize, "{:?}", all[index]);
    (all[index], buffer)
}

fn made(builder: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut frame = Vec::new();
    builder(&mut frame);
    frame
}

fn udp((src, sport): ([u8; 4], u16), (dst, dport): ([u8; 4], u16)) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(src, dst, 64).udp(sport, dport);
    made(|frame| builder.write(frame, b"payload").unwrap())
}

fn tcp(flags: u8, (src, sport): ([u8; 4], u16), (dst, dport): ([u8; 4], u16)) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(src, dst, 64);
    let mut builder = builder.tcp(sport, dport, 1, 1000);
    builder = if flags & tcp_flag::SYN != 0 { builder.syn() } else { builder };
    builder = if flags & tcp_flag::ACK != 0 { builder.ack(7) } else { builder };
    builder = if flags & tcp_flag::FIN != 0 { builder.fin() } else { builder };
    builder = if flags & tcp_flag::RST != 0 { builder.rst() } else { builder };
    made(|frame| builder.write(frame, &[]).unwrap())
}

fn echo(is_request: bool, src: [u8; 4], dst: [u8; 4], id: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(src, dst, 64);
    let builder = if is_request {
        builder.icmpv4_echo_request(id, 1)
    } else {
        builder.icmpv4_echo_reply(id, 1)
    };
    made(|frame| builder.write(frame, b"odd").unwrap())
}

fn about(from: [u8; 4], to: [u8; 4], frame: &[u8]) -> Vec<u8> {
    let message = icmp_error(3, 3, &frame[14..]);
    ethernet([2; 6], [4; 6], 0x0800, &ipv4(1, from.into(), to.into(), &message))
}

/// A frame, cut into pieces of this many bytes of its packet's payload.
fn pieces(frame: &[u8], size: usize) -> Vec<Vec<u8>> {
    let (header, payload) = frame[14..].split_at(20);
    let count = payload.len().div_ceil(size);
    let piece = |(i, part): (usize, &[u8])| {
        let mut packet = [header, part].concat();
        let len = u16::try_from(packet.len()).unwrap().to_be_bytes();
        let more = if i + 1 < count { 0x2000 } else { 0 };
        let field = u16::try_from(i * size / 8).unwrap() | more;
        packet[2..4].copy_from_slice(&len);
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        packet[10..12].fill(0);
        let sum = checksum(&packet[..20]).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        [&frame[..14], &packet].concat()
    };
    payload.chunks(size).enumerate().map(piece).collect()
}

#[test]
fn test_packets_go_out_and_their_answers_come_back() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let out = see(&mut nat, &udp((HOST, 5000), (REMOTE, 53)));
    assert_eq!(out, (Became::Out, udp((OUTSIDE, 5000), (REMOTE, 53))));
    let back = see(&mut nat, &udp((REMOTE, 53), (OUTSIDE, 5000)));
    assert_eq!(back, (Became::Back, udp((REMOTE, 53), (HOST, 5000))));
    let out = see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), (REMOTE, 80)));
    assert_eq!(out, (Became::Out, tcp(tcp_flag::SYN, (OUTSIDE, 5000), (REMOTE, 80))));
    let out = see(&mut nat, &echo(true, HOST, REMOTE, 9));
    assert_eq!(out, (Became::Out, echo(true, OUTSIDE, REMOTE, 9)));
    let back = see(&mut nat, &echo(false, REMOTE, OUTSIDE, 9));
    assert_eq!(back, (Became::Back, echo(false, REMOTE, HOST, 9)));
    assert_eq!(see(&mut nat, &echo(true, REMOTE, OUTSIDE, 9)).0, Became::Unbound);
    assert!(nat.counts().contains(&("bindings".into(), 3)));
}

#[test]
fn test_two_hosts_with_one_port_get_two_and_strangers_none() {
    let mut nat = Nat::new(CONFIG).unwrap();
    see(&mut nat, &udp((HOST, 5000), (REMOTE, 53)));
    let (became, out) = see(&mut nat, &udp((OTHER, 5000), (REMOTE, 53)));
    let port = u16::from_be_bytes([out[34], out[35]]);
    assert_eq!((became, port % 2), (Became::Out, 0), "RFC 4787, REQ-4");
    assert_ne!(port, 5000);
    let back = see(&mut nat, &udp((REMOTE, 53), (OUTSIDE, port)));
    assert_eq!(back, (Became::Back, udp((REMOTE, 53), (OTHER, 5000))));
    // It is the same end outside whichever host it talks to (REQ-1), and any host may answer.
    let out = see(&mut nat, &udp((OTHER, 5000), ([203, 0, 113, 9], 1)));
    assert_eq!(out.1, udp((OUTSIDE, port), ([203, 0, 113, 9], 1)));
    for stranger in [udp((REMOTE, 53), (OUTSIDE, 4000)), tcp(2, (REMOTE, 53), (OUTSIDE, 5000))] {
        assert_eq!(see(&mut nat, &stranger), (Became::Unbound, stranger));
    }
}

#[test]
fn test_a_checksum_that_was_none_stays_none() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let mut frame = udp((HOST, 5000), (REMOTE, 53));
    frame[40..42].fill(0);
    assert_eq!(see(&mut nat, &frame).1[40..42], [0, 0]);
}

#[test]
fn test_what_is_silent_is_forgotten_when_its_sort_is() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let later = |nat: &mut Nat, seconds| nat.bindings.now += Ms::from_secs(seconds);
    let comes = |nat: &mut Nat| see(nat, &udp((REMOTE, 53), (OUTSIDE, 5000))).0;
    see(&mut nat, &udp((HOST, 5000), (REMOTE, 53)));
    later(&mut nat, 299);
    assert_eq!(comes(&mut nat), Became::Back);
    later(&mut nat, 1);
    assert_eq!(comes(&mut nat), Became::Unbound, "what comes in prolongs nothing");
    see(&mut nat, &udp((HOST, 5000), (REMOTE, 53)));
    see(&mut nat, &echo(true, HOST, REMOTE, 9));
    later(&mut nat, 60);
    assert_eq!(see(&mut nat, &echo(false, REMOTE, OUTSIDE, 9)).0, Became::Unbound);
    later(&mut nat, 240);
    nat.bindings.sweep(8);
    assert_eq!(nat.bindings.len(), 0);
}

/// Whether the binding of the host's port 5000 to the remote is still there after `seconds`.
fn lives(nat: &mut Nat, seconds: u64) -> bool {
    nat.bindings.now += Ms::from_secs(seconds);
    see(nat, &tcp(tcp_flag::ACK, (REMOTE, 80), (OUTSIDE, 5000))).0 == Became::Back
}

fn open(nat: &mut Nat) {
    see(nat, &tcp(tcp_flag::SYN, (HOST, 5000), (REMOTE, 80)));
    see(nat, &tcp(tcp_flag::SYN | tcp_flag::ACK, (REMOTE, 80), (OUTSIDE, 5000)));
    see(nat, &tcp(tcp_flag::ACK, (HOST, 5000), (REMOTE, 80)));
}

#[test]
fn test_tcp_is_kept_for_hours_while_open_and_minutes_otherwise() {
    let mut nat = Nat::new(CONFIG).unwrap();
    see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), (REMOTE, 80)));
    assert!(lives(&mut nat, 239) && !lives(&mut nat, 1), "it was never answered");
    open(&mut nat);
    assert!(lives(&mut nat, 7439) && !lives(&mut nat, 1));
    // One end is half a connection; two are none.
    open(&mut nat);
    see(&mut nat, &tcp(tcp_flag::FIN | tcp_flag::ACK, (HOST, 5000), (REMOTE, 80)));
    assert!(lives(&mut nat, 1000));
    see(&mut nat, &tcp(tcp_flag::FIN | tcp_flag::ACK, (REMOTE, 80), (OUTSIDE, 5000)));
    see(&mut nat, &tcp(tcp_flag::ACK, (HOST, 5000), (REMOTE, 80)));
    assert!(lives(&mut nat, 239) && !lives(&mut nat, 1));
    open(&mut nat);
    see(&mut nat, &tcp(tcp_flag::RST, ([203, 0, 113, 9], 80), (OUTSIDE, 5000)));
    assert!(lives(&mut nat, 1000), "another host's reset");
    open(&mut nat);
    see(&mut nat, &tcp(tcp_flag::RST, (REMOTE, 80), (OUTSIDE, 5000)));
    assert!(!lives(&mut nat, 240));
}

#[test]
fn test_a_binding_of_two_connections_outlives_the_end_of_one() {
    let mut nat = Nat::new(CONFIG).unwrap();
    open(&mut nat);
    see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), ([203, 0, 113, 9], 80)));
    see(&mut nat, &tcp(tcp_flag::RST, (REMOTE, 80), (OUTSIDE, 5000)));
    assert!(lives(&mut nat, 1000));
    // Both are over, and the port is used again.
    see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), (REMOTE, 81)));
    assert!(!lives(&mut nat, 240));
}

#[test]
fn test_forwards_are_always_open_and_stay() {
    let mut nat = Nat::new(&format!("{CONFIG}{FORWARD}")).unwrap();
    let come = tcp(tcp_flag::SYN, (REMOTE, 999), (OUTSIDE, 8080));
    let expected = (Became::Back, tcp(tcp_flag::SYN, (REMOTE, 999), (HOST, 80)));
    assert_eq!(see(&mut nat, &come), expected);
    let answer = tcp(tcp_flag::SYN | tcp_flag::ACK, (HOST, 80), (REMOTE, 999));
    let outside = tcp(tcp_flag::SYN | tcp_flag::ACK, (OUTSIDE, 8080), (REMOTE, 999));
    assert_eq!(see(&mut nat, &answer), (Became::Out, outside));
    nat.bindings.now += Ms::from_secs(100_000);
    nat.bindings.sweep(9);
    assert_eq!(see(&mut nat, &come), expected);
    let (_, out) = see(&mut nat, &tcp(tcp_flag::SYN, (OTHER, 8080), (REMOTE, 80)));
    assert_ne!(out[34..36], 8080u16.to_be_bytes(), "that port is given away");
}

#[test]
fn test_hosts_inside_meet_outside() {
    let mut nat = Nat::new(&format!("{CONFIG}{FORWARD}")).unwrap();
    let there = see(&mut nat, &tcp(tcp_flag::SYN, (OTHER, 1999), (OUTSIDE, 8080)));
    assert_eq!(there, (Became::Hairpin, tcp(tcp_flag::SYN, (OUTSIDE, 1999), (HOST, 80))));
    let both = tcp_flag::SYN | tcp_flag::ACK;
    let back = see(&mut nat, &tcp(both, (HOST, 80), (OUTSIDE, 1999)));
    assert_eq!(back, (Became::Hairpin, tcp(both, (OUTSIDE, 8080), (OTHER, 1999))));
    // The host has no such program, and says so.
    let error = see(&mut nat, &about(HOST, OUTSIDE, &there.1));
    let quoted = tcp(tcp_flag::SYN, (OTHER, 1999), (OUTSIDE, 8080));
    assert_eq!(error.0, Became::Hairpin);
    assert_eq!(error.1[..34], about(OUTSIDE, OTHER, &quoted)[..34]);
    assert_eq!(error.1[42..70], about(OUTSIDE, OTHER, &quoted)[42..70]);
}

#[test]
fn test_errors_find_whoever_sent_what_they_quote() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let router = [203, 0, 113, 1];
    for sent in [udp((HOST, 5000), (REMOTE, 53)), echo(true, HOST, REMOTE, 9)] {
        let (_, out) = see(&mut nat, &sent);
        let error = see(&mut nat, &about(router, OUTSIDE, &out));
        assert_eq!(error, (Became::Back, about(router, HOST, &sent)));
    }
    let (_, out) = see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), (REMOTE, 53)));
    let (became, error) = see(&mut nat, &about(router, OUTSIDE, &out));
    assert_eq!((became, checksum(&error[34..])), (Became::Back, 0));
    // The other way: a host refuses what was for it.
    let (_, come) = see(&mut nat, &udp((REMOTE, 53), (OUTSIDE, 5000)));
    let refused = see(&mut nat, &about(HOST, REMOTE, &come));
    let theirs = about(OUTSIDE, REMOTE, &udp((REMOTE, 53), (OUTSIDE, 5000)));
    assert_eq!(refused, (Became::Out, theirs));
    let unknown = about(router, OUTSIDE, &udp((OUTSIDE, 4444), (REMOTE, 53)));
    assert_eq!(see(&mut nat, &unknown).0, Became::Unbound);
}

#[test]
fn test_pieces_follow_their_first() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let whole = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(HOST, REMOTE, 64).udp(5000, 53);
    let whole = made(|frame| whole.write(frame, &[7; 100]).unwrap());
    let cut = pieces(&whole, 48);
    assert_eq!(see(&mut nat, &cut[1]).0, Became::Piece, "its first has not come");
    let out: Vec<Vec<u8>> = cut.iter().map(|piece| see(&mut nat, piece).1).collect();
    let expected = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(OUTSIDE, REMOTE, 64).udp(5000, 53);
    let expected = made(|frame| expected.write(frame, &[7; 100]).unwrap());
    assert_eq!(out, pieces(&expected, 48));
    nat.bindings.now += REASSEMBLY;
    assert_eq!(see(&mut nat, &cut[1]).0, Became::Piece);
}

#[test]
fn test_tags_are_seen_through_and_other_things_pass() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let plain = udp((HOST, 5000), (REMOTE, 53));
    let tagged = [&plain[..12], &[0x81, 0, 0, 7], &plain[12..]].concat();
    let out = udp((OUTSIDE, 5000), (REMOTE, 53));
    let expected = [&out[..12], &[0x81, 0, 0, 7], &out[12..]].concat();
    assert_eq!(see(&mut nat, &tagged), (Became::Out, expected));
    for passed in [
        udp((HOST, 1), (OTHER, 2)),
        udp((REMOTE, 1), ([203, 0, 113, 9], 2)),
        udp((HOST, 1), ([224, 0, 0, 251], 2)),
        ethernet([255; 6], [4; 6], 0x0806, &[0; 46]),
    ] {
        assert_eq!(see(&mut nat, &passed), (Became::Passed, passed));
    }
    let tunnel = ethernet([2; 6], [4; 6], 0x0800, &ipv4(47, HOST.into(), REMOTE.into(), &[0; 20]));
    assert_eq!(see(&mut nat, &tunnel).0, Became::Protocol);
}

#[test]
fn test_full_tables_are_said_and_last() {
    let mut nat = Nat::new(&format!("bindings = 2\nbindings_per_host = 2\n{CONFIG}")).unwrap();
    let out = |nat: &mut Nat, port: u16| see(nat, &udp((HOST, 2000 + port), (REMOTE, 53))).0;
    assert_eq!([1, 2, 3].map(|port| out(&mut nat, port)), [Became::Out, Became::Out, Became::Full]);
    let mut nat = Nat::new(&format!("ports = \"9000-9001\"\n{CONFIG}")).unwrap();
    let outs = [1, 2, 3].map(|port| out(&mut nat, port));
    assert_eq!(outs, [Became::Out, Became::Out, Became::NoPort]);
    nat.bindings.now += Ms::from_secs(300);
    nat.bindings.sweep(2);
    assert_eq!(out(&mut nat, 3), Became::Out);
}

#[test]
fn test_who_is_inside_is_told_by_the_chain_where_it_is_named() {
    let mut nat = Nat::new(&format!("from_inside = \"out\"\n{CONFIG}{FORWARD}")).unwrap();
    assert!(nat.asks_for_chains());
    let error = nat.know(&Names::default()).unwrap_err().to_string();
    assert!(error.starts_with("line 1: the switch has no chain \"out\""), "{error}");
    nat.know(&Names { services: vec![], chains: vec![("out".to_owned(), 3)] }).unwrap();
    let [inner, outer] = [1 << 63 | 3 << 44, 1 << 63 | 4 << 44];
    let bindings = |nat: &Nat| nat.bindings.len();
    for spoofed in [
        udp((HOST, 5000), (REMOTE, 53)),
        udp((HOST, 5000), (OUTSIDE, 8080)),
        udp((HOST, 5000), (OTHER, 53)),
        tcp(tcp_flag::RST, (HOST, 80), (REMOTE, 999)),
        echo(true, HOST, REMOTE, 9),
        pieces(&udp((HOST, 5000), (REMOTE, 53)), 8).remove(0),
    ] {
        assert_eq!(see_by(&mut nat, outer, &spoofed), (Became::Spoofed, spoofed.clone()));
        assert_eq!(see_by(&mut nat, 0, &spoofed).0, Became::Spoofed, "of no chain");
    }
    assert_eq!(bindings(&nat), 1, "the forward");
    assert_eq!(see_by(&mut nat, inner, &udp((HOST, 5000), (REMOTE, 53))).0, Became::Out);
    assert_eq!(see_by(&mut nat, outer, &udp((REMOTE, 53), (OUTSIDE, 5000))).0, Became::Back);
    let hairpin = tcp(tcp_flag::SYN, (OTHER, 1999), (OUTSIDE, 8080));
    assert_eq!(see_by(&mut nat, inner, &hairpin).0, Became::Hairpin);
    // Another file without it lets all hosts be inside again.
    nat.replace(Nat::new(CONFIG).unwrap());
    assert_eq!(see_by(&mut nat, outer, &udp((HOST, 5000), (REMOTE, 53))).0, Became::Out);
}

#[test]
fn test_a_host_has_its_share_of_the_bindings_and_no_more() {
    let mut nat = Nat::new(&format!("bindings = 8\n{CONFIG}")).unwrap();
    let out = |nat: &mut Nat, host, port: u16| see(nat, &udp((host, 2000 + port), (REMOTE, 53))).0;
    let outs = [1, 2, 3].map(|port| out(&mut nat, HOST, port));
    assert_eq!(outs, [Became::Out, Became::Out, Became::HostFull]);
    assert_eq!(out(&mut nat, OTHER, 1), Became::Out, "others have theirs");
    nat.replace(Nat::new(&format!("bindings = 8\n{CONFIG}")).unwrap());
    assert_eq!(out(&mut nat, HOST, 3), Became::HostFull);
    nat.bindings.now += Ms::from_secs(300);
    nat.bindings.sweep(8);
    assert_eq!(out(&mut nat, HOST, 3), Became::Out);
    let text = format!("bindings = 8\nbindings_per_host = 1\n{CONFIG}");
    let mut nat = Nat::new(&text).unwrap();
    assert_eq!([1, 2].map(|port| out(&mut nat, HOST, port)), [Became::Out, Became::HostFull]);
}

#[test]
fn test_what_nobody_answers_is_never_kept_for_hours() {
    let mut nat = Nat::new(CONFIG).unwrap();
    let elsewhere = ([203, 0, 113, 9], 80);
    for flags in [tcp_flag::SYN, tcp_flag::ACK] {
        see(&mut nat, &tcp(flags, (HOST, 5000), (REMOTE, 80)));
        see(&mut nat, &tcp(flags, (HOST, 5000), elsewhere));
    }
    assert!(lives(&mut nat, 239) && !lives(&mut nat, 1));
    // The second that is spoken to is the one that answers.
    see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), elsewhere));
    open(&mut nat);
    assert!(lives(&mut nat, 7439) && !lives(&mut nat, 1));
    // Of two, the end of the one leaves the other open.
    see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), elsewhere));
    see(&mut nat, &tcp(tcp_flag::SYN | tcp_flag::ACK, elsewhere, (OUTSIDE, 5000)));
    see(&mut nat, &tcp(tcp_flag::SYN, (HOST, 5000), (REMOTE, 80)));
    see(&mut nat, &tcp(tcp_flag::RST, elsewhere, (OUTSIDE, 5000)));
    open(&mut nat);
    assert!(lives(&mut nat, 1000));
}

#[test]
fn test_a_smaller_table_loses_no_port() {
    let mut nat = Nat::new(&format!("ports = \"9000-9003\"\nbindings = 16\n{CONFIG}")).unwrap();
    let out = |nat: &mut Nat, port: u16| see(nat, &udp((HOST, port), (REMOTE, 53))).0;
    assert!((0..4).all(|port| out(&mut nat, 9000 + port) == Became::Out));
    let small = "bindings = 1\nbindings_per_host = 1\nports = \"9000-9003\"\n";
    nat.replace(Nat::new(&format!("{small}{CONFIG}")).unwrap());
    nat.bindings.now += Ms::from_secs(300);
    nat.bindings.sweep(4);
    let had: Vec<Vec<u8>> = (0..4)
        .map(|port| {
            let frame = see(&mut nat, &udp((HOST, 9000 + port), (REMOTE, 53))).1;
            nat.bindings.now += Ms::from_secs(300);
            nat.bindings.sweep(4);
            frame[34..36].to_vec()
        })
        .collect();
    let all = (9000u16..9004).map(|port| port.to_be_bytes().to_vec());
    assert_eq!(had, all.collect::<Vec<_>>(), "each can be kept");
}

#[test]
fn test_first_pieces_without_end_keep_nobody_elses_from_passing() {
    let mut nat = Nat::new(CONFIG).unwrap();
    for id in 0..2000u16 {
        let mut first = pieces(&udp((HOST, 5000), (REMOTE, 53)), 8).remove(0);
        first[18..20].copy_from_slice(&id.to_be_bytes());
        assert_eq!(see(&mut nat, &first).0, Became::Out);
    }
    let cut = pieces(&udp((OTHER, 5000), (REMOTE, 53)), 8);
    assert_eq!([0, 1].map(|piece| see(&mut nat, &cut[piece]).0), [Became::Out, Became::Out]);
    assert!(nat.counts().contains(&("fragmented_forgotten".into(), 2001 - 1024)));
}

#[test]
fn test_a_new_file_keeps_who_talks() {
    let mut nat = Nat::new(CONFIG).unwrap();
    see(&mut nat, &udp((HOST, 5000), (REMOTE, 53)));
    see(&mut nat, &tcp(tcp_flag::SYN, (OTHER, 8080), (REMOTE, 53)));
    nat.replace(Nat::new(&format!("{CONFIG}{FORWARD}")).unwrap());
    assert_eq!(see(&mut nat, &udp((REMOTE, 53), (OUTSIDE, 5000))).0, Became::Back);
    let come = tcp(tcp_flag::SYN, (REMOTE, 999), (OUTSIDE, 8080));
    assert_eq!(see(&mut nat, &come).1, tcp(tcp_flag::SYN, (REMOTE, 999), (HOST, 80)));
    nat.replace(Nat::new(&CONFIG.replace("192.0.2.1", "192.0.2.2")).unwrap());
    assert_eq!(nat.bindings.len(), 0);
}

#[test]
fn test_nonsense_is_refused_and_said_where() {
    for (text, said) in [
        ("inside = [\"10.0.1\"]\noutside = [\"192.0.2.1\"]".to_owned(), "line 1"),
        ("inside = [\"10.0.1.0/24\"]\noutside = []".to_owned(), "outside: name"),
        ("inside = []\noutside = [\"192.0.2.1\"]".to_owned(), "inside: name"),
        (format!("{CONFIG}udp_s = 0"), "line 3"),
        (format!("{CONFIG}udp = 1"), "unknown key"),
        (format!("{CONFIG}ports = \"2-1\""), "line 3"),
        (format!("{CONFIG}{}", FORWARD.replace("192.0.2.1", "192.0.2.9")), "add it there"),
        (format!("{CONFIG}{}", FORWARD.replace("10.0.1.2", "10.0.2.2")), "add it there"),
        (format!("{CONFIG}{}", FORWARD.replace("tcp", "icmp")), "nor \"udp\""),
        (format!("{CONFIG}{FORWARD}{FORWARD}"), "forward 2"),
    ] {
        let error = format!("{:#}", Nat::new(&text).err().expect(&text));
        assert!(error.contains(said), "{error}");
    }
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let end = || (prop::sample::select(vec![HOST, OTHER, OUTSIDE, REMOTE]), 0u16..4);
    let plain = (end(), end(), 0u8..5, 0u8..32).prop_map(|(src, dst, kind, flags)| match kind {
        0 => udp(src, dst),
        1 => tcp(flags, src, dst),
        2 => echo(flags & 1 == 0, src.0, dst.0, src.1),
        3 => about(src.0, dst.0, &udp(dst, src)),
        _ => pieces(&udp(src, dst), 8).remove(usize::from(flags & 1)),
    });
    let changes = prop::collection::vec((0usize..90, any::<u8>()), 0..4);
    (plain, changes, 0usize..120).prop_map(|(mut frame, changes, cut)| {
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate(if cut < 30 { cut * 3 } else { frame.len() });
        frame
    })
}

proptest! {
    #[test]
    fn test_no_frame_is_too_strange(frames in prop::collection::vec(any_frame(), 1..40)) {
        let mut nat = Nat::new(&format!("bindings = 8\n{CONFIG}{FORWARD}")).unwrap();
        for frame in frames {
            let (became, after) = see(&mut nat, &frame);
            prop_assert_eq!(after.len(), frame.len());
            if became == Became::Passed {
                prop_assert_eq!(after, frame);
            }
        }
    }

    #[test]
    fn test_all_bytes_are_as_a_sender_outside_would_write_them(
        port in 1024u16..,
        remote: [u8; 4],
        dport: u16,
    ) {
        prop_assume!(remote[0] < 224 && remote[0] != 10 && remote != OUTSIDE);
        let mut nat = Nat::new(CONFIG).unwrap();
        let out = see(&mut nat, &udp((HOST, port), (remote, dport)));
        prop_assert_eq!(out, (Became::Out, udp((OUTSIDE, port), (remote, dport))));
        let back = see(&mut nat, &udp((remote, dport), (OUTSIDE, port)));
        prop_assert_eq!(back, (Became::Back, udp((remote, dport), (HOST, port))));
        let out = see(&mut nat, &tcp(tcp_flag::ACK, (HOST, port), (remote, dport)));
        prop_assert_eq!(out, (Became::Out, tcp(tcp_flag::ACK, (OUTSIDE, port), (remote, dport))));
    }
}

//! Clients, backends that come and go, and frames that make no sense.

use std::collections::HashMap;

use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::*;
use packet::build::{ethernet, icmp_error, ipv4};
use packet::checksum::checksum;

const OWN: ([u8; 4], u16) = ([10, 0, 1, 1], 80);

fn config(backends: &[(u8, u16)]) -> String {
    let backend = |(last, weight): &(u8, u16)| {
        format!("[[service.backend]]\naddress = \"10.0.2.{last}:8080\"\nweight = {weight}\n")
    };
    let backends: String = backends.iter().map(backend).collect();
    format!("[[service]]\naddress = \"10.0.1.1:80\"\n{backends}")
}

fn balancer(backends: &[(u8, u16)]) -> Balancer {
    Balancer::new(&config(backends)).unwrap()
}

fn tcp(flags: u8, (src, sport): ([u8; 4], u16), (dst, dport): ([u8; 4], u16)) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(src, dst, 64);
    let mut builder = builder.tcp(sport, dport, 1, 1000);
    builder = if flags & tcp_flag::SYN != 0 { builder.syn() } else { builder };
    builder = if flags & tcp_flag::ACK != 0 { builder.ack(7) } else { builder };
    builder = if flags & tcp_flag::RST != 0 { builder.rst() } else { builder };
    let mut frame = Vec::new();
    builder.write(&mut frame, b"payload").unwrap();
    frame
}

fn client(number: u16) -> ([u8; 4], u16) {
    ([10, 0, 9, 1], 1000 + number)
}

fn see(balancer: &mut Balancer, frame: &[u8]) -> (Option<Became>, Vec<u8>) {
    let before = balancer.became;
    let mut buffer = frame.to_vec();
    let action = balancer.frame(&mut Frame::new(&mut buffer), &mut Generated::default());
    let all = [Became::To, Became::From, Became::Passed];
    let index = (0..BECAME.len()).find(|&index| balancer.became[index] > before[index]).unwrap();
    assert_eq!(action == Action::Next, index < 3);
    (all.get(index).copied(), buffer)
}

/// The last byte of the backend that a client's packet goes to.
fn asks(balancer: &mut Balancer, number: u16, flags: u8) -> u8 {
    let (became, frame) = see(balancer, &tcp(flags, client(number), OWN));
    assert_eq!(became, Some(Became::To));
    let backend = [10, 0, 2, frame[33]];
    assert_eq!(frame, tcp(flags, client(number), (backend, 8080)), "all sums are right");
    frame[33]
}

#[test]
fn test_answers_come_from_the_address_that_was_asked() {
    let mut balancer = balancer(&[(2, 1), (3, 1)]);
    let backend = ([10, 0, 2, asks(&mut balancer, 1, tcp_flag::SYN)], 8080);
    let answer = see(&mut balancer, &tcp(tcp_flag::ACK, backend, client(1)));
    assert_eq!(answer, (Some(Became::From), tcp(tcp_flag::ACK, OWN, client(1))));
    let other = ([10, 0, 2, 5 - backend.0[3]], 8080);
    for passed in [
        tcp(tcp_flag::ACK, backend, client(2)),
        tcp(tcp_flag::ACK, other, client(1)),
        tcp(tcp_flag::SYN, client(1), (OWN.0, 81)),
        ethernet([255; 6], [4; 6], 0x0806, &[0; 46]),
    ] {
        assert_eq!(see(&mut balancer, &passed), (Some(Became::Passed), passed));
    }
}

#[test]
fn test_shares_are_those_of_the_weights_and_change_only_where_they_must() {
    let shares = |backends: &[(u8, u16)]| {
        let mut balancer = balancer(backends);
        let all: Vec<u8> =
            (0..6000).map(|number| asks(&mut balancer, number, tcp_flag::SYN)).collect();
        let mut count = HashMap::new();
        all.iter().for_each(|backend| *count.entry(*backend).or_insert(0) += 1);
        (all, count)
    };
    let (before, count) = shares(&[(2, 1), (3, 2), (4, 3)]);
    assert!((900..1100).contains(&count[&2]) && (2850..3150).contains(&count[&4]), "{count:?}");
    let (after, _) = shares(&[(2, 1), (4, 3)]);
    let stay = before.iter().zip(&after).filter(|(before, _)| **before != 3);
    assert!(stay.into_iter().all(|(before, after)| before == after));
    let (more, _) = shares(&[(2, 1), (3, 2), (4, 3), (5, 6)]);
    assert!(before.iter().zip(&more).all(|(before, more)| before == more || *more == 5));
}

#[test]
fn test_connections_stay_where_they_are_when_backends_change() {
    let mut balancer = balancer(&[(2, 1), (3, 1)]);
    let before: Vec<u8> =
        (0..100).map(|number| asks(&mut balancer, number, tcp_flag::SYN)).collect();
    balancer.replace(Balancer::new(&config(&[(2, 0), (3, 1), (4, 9)])).unwrap());
    let after: Vec<u8> =
        (0..100).map(|number| asks(&mut balancer, number, tcp_flag::ACK)).collect();
    assert_eq!(before, after);
    assert!(
        (100..200).all(|number| asks(&mut balancer, number, tcp_flag::SYN) != 2),
        "it finishes"
    );
    // One that is over may be elsewhere next time.
    let two = before.iter().position(|backend| *backend == 2).unwrap();
    let two = u16::try_from(two).unwrap();
    asks(&mut balancer, two, tcp_flag::RST);
    assert_ne!(asks(&mut balancer, two, tcp_flag::SYN), 2);
    balancer.replace(Balancer::new(&config(&[(3, 1), (4, 9)])).unwrap());
    assert!((0..100).all(|number| asks(&mut balancer, number, tcp_flag::ACK) != 2));
    assert!(balancer.forgotten > 0);
    balancer.replace(Balancer::new(&config(&[(3, 0)])).unwrap());
    assert_eq!(
        see(&mut balancer, &tcp(tcp_flag::SYN, client(999), OWN)).0,
        None,
        "no station is there"
    );
}

#[test]
fn test_what_is_not_remembered_goes_where_the_hash_says() {
    let text = format!("connections = 1\n{}", config(&[(2, 1), (3, 1)]));
    let mut balancer = Balancer::new(&text).unwrap();
    asks(&mut balancer, 0, tcp_flag::SYN);
    for number in 1..50 {
        let backend = ([10, 0, 2, asks(&mut balancer, number, tcp_flag::SYN)], 8080);
        assert_eq!(asks(&mut balancer, number, tcp_flag::ACK), backend.0[3]);
        let answer = see(&mut balancer, &tcp(tcp_flag::ACK, backend, client(number)));
        assert_eq!(answer, (Some(Became::From), tcp(tcp_flag::ACK, OWN, client(number))));
    }
    balancer.now += Duration::from_secs(900);
    assert!(
        balancer.connections.turn(|known| known.is_over(balancer.now, balancer.idle)).is_some()
    );
}

#[test]
fn test_answers_of_what_was_not_remembered_are_known_when_there_is_room_again() {
    let text = format!("connections = 1\n{}", config(&[(2, 1), (3, 1)]));
    let mut balancer = Balancer::new(&text).unwrap();
    asks(&mut balancer, 0, tcp_flag::SYN);
    balancer.now += Duration::from_secs(50);
    let backend = ([10, 0, 2, asks(&mut balancer, 1, tcp_flag::SYN)], 8080);
    // The first never said more than that it begins: it is over before others are.
    balancer.now += Duration::from_secs(10);
    let (now, idle) = (balancer.now, balancer.idle);
    assert!(balancer.connections.turn(|known| known.is_over(now, idle)).is_some());
    let answer = tcp(tcp_flag::ACK, backend, client(1));
    assert_eq!(see(&mut balancer, &answer).0, Some(Became::From));
    balancer.now += Duration::from_secs(900);
    assert_eq!(see(&mut balancer, &answer).0, Some(Became::Passed), "by then it is silent");
}

#[test]
fn test_one_client_has_its_share_of_the_table() {
    let text = format!("connections = 8\n{}", config(&[(2, 1), (3, 1)]));
    let mut balancer = Balancer::new(&text).unwrap();
    for number in 0..20 {
        let backend = asks(&mut balancer, number, tcp_flag::SYN);
        let answer = tcp(tcp_flag::ACK, ([10, 0, 2, backend], 8080), client(number));
        assert_eq!(see(&mut balancer, &answer).0, Some(Became::From), "connection {number}");
    }
    assert_eq!((balancer.connections.len(), balancer.source_full), (2, 18), "a quarter");
    for host in 2..5 {
        see(&mut balancer, &tcp(tcp_flag::SYN, ([10, 0, 9, host], 1000), OWN));
    }
    assert_eq!(balancer.connections.len(), 5, "others have theirs");
    balancer.replace(Balancer::new(&text).unwrap());
    asks(&mut balancer, 30, tcp_flag::SYN);
    assert_eq!((balancer.connections.len(), balancer.source_full), (5, 19));
    balancer.now += Duration::from_secs(900);
    balancer.sweep(8);
    assert!(balancer.connections.len() == 0 && balancer.clients.entries().is_empty());
    let text = format!("max_per_source = 9\n{text}");
    let error = format!("{:#}", Balancer::new(&text).err().unwrap());
    assert!(error.contains("line 1") && error.contains("raise connections"), "{error}");
}

#[test]
fn test_another_backend_neither_ends_nor_prolongs_a_connection() {
    let mut balancer = balancer(&[(2, 1), (3, 1)]);
    let last = asks(&mut balancer, 1, tcp_flag::SYN);
    asks(&mut balancer, 1, tcp_flag::ACK);
    let [own, other] = [last, 5 - last].map(|last| ([10, 0, 2, last], 8080));
    let comes = |balancer: &mut Balancer, flags, from| {
        see(balancer, &tcp(flags, from, client(1))).0.unwrap()
    };
    assert_eq!(comes(&mut balancer, tcp_flag::RST, other), Became::Passed);
    balancer.now += Duration::from_secs(800);
    assert_eq!(comes(&mut balancer, tcp_flag::ACK, other), Became::Passed);
    assert_eq!(comes(&mut balancer, tcp_flag::ACK, own), Became::From, "it is open");
    balancer.now += Duration::from_secs(800);
    comes(&mut balancer, tcp_flag::ACK, other);
    balancer.now += Duration::from_secs(100);
    assert_eq!(comes(&mut balancer, tcp_flag::ACK, own), Became::Passed, "it was silent");
}

#[test]
fn test_errors_about_answers_find_the_backend() {
    let mut balancer = balancer(&[(2, 1), (3, 1)]);
    let last = asks(&mut balancer, 1, tcp_flag::SYN);
    let about = |frame: &[u8]| icmp_error(3, 4, &frame[14..]);
    let packet = |to: [u8; 4], message: &[u8]| {
        ethernet([2; 6], [4; 6], 0x0800, &ipv4(1, [10, 0, 9, 254].into(), to.into(), message))
    };
    let answer = about(&tcp(tcp_flag::ACK, OWN, client(1)));
    let (became, frame) = see(&mut balancer, &packet(OWN.0, &answer));
    assert_eq!(
        (became, checksum(&frame[34..]), checksum(&frame[14..34])),
        (Some(Became::To), 0, 0)
    );
    assert_eq!(
        (frame[33], &frame[54..58], &frame[62..64]),
        (last, &[10, 0, 2, last][..], &[31, 144][..])
    );
}

#[test]
fn test_nonsense_is_refused() {
    let good = config(&[(2, 1)]);
    for (text, said) in [
        (format!("{good}[[service.backend]]\naddress = \"10.0.2.2:8080\"\n"), "already"),
        (format!("{good}[[service.backend]]\naddress = \"10.0.1.1:80\"\n"), "itself"),
        (format!("{good}{good}"), "service 2"),
        (good.replace("weight = 1", "weight = -1"), "line 5"),
        (good.replace("10.0.1.1:80", "10.0.1.1"), "line 2"),
        (good.replace("weight", "wait"), "unknown key"),
        (good.replace("[[service.backend]]", "proto = \"icmp\"\n[[service.backend]]"), "\"udp\""),
    ] {
        let error = format!("{:#}", Balancer::new(&text).err().expect(&text));
        assert!(error.contains(said), "{error}");
    }
}

proptest! {
    #[test]
    fn test_no_frame_is_too_strange(
        changes in prop::collection::vec((14usize..80, any::<u8>()), 0..5),
        cut in 0usize..100,
        back: bool,
    ) {
        let mut balancer = balancer(&[(2, 1)]);
        let backend = ([10, 0, 2, asks(&mut balancer, 1, tcp_flag::SYN)], 8080);
        let ends = if back { (backend, client(1)) } else { (client(1), OWN) };
        let quoted = icmp_error(3, 4, &tcp(0, OWN, client(1))[14..]);
        let error = ipv4(1, [10, 0, 9, 254].into(), OWN.0.into(), &quoted);
        for mut frame in [tcp(0, ends.0, ends.1), ethernet([2; 6], [4; 6], 0x0800, &error)] {
            for (at, byte) in &changes {
                frame.get_mut(*at).into_iter().for_each(|place| *place = *byte);
            }
            frame.truncate(if cut < 60 { cut } else { frame.len() });
            see(&mut balancer, &frame);
        }
    }
}

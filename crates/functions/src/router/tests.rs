//! What a router does with packets.

use super::neighbours::{FRESH, KEPT};
use super::*;

const CONFIG: &str = "[[interface]]\naddress = \"10.0.1.1/24\"\n[[interface]]\n\
    address = \"10.0.2.1/24\"\n[[route]]\nto = \"192.0.2.0/24\"\nvia = \"10.0.2.254\"\n\
    [[route]]\nto = \"192.0.2.128/25\"\nvia = \"10.0.1.254\"\n";
const A: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 0xa]);
const B: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 0xb]);

#[test]
fn test_nonsense_is_refused_and_said_where() {
    let interface = |address: &str| format!("{CONFIG}[[interface]]\naddress = {address:?}\n");
    let route = |to: &str, via: &str| format!("{CONFIG}[[route]]\nto = {to:?}\nvia = {via:?}\n");
    for (text, said) in [
        (String::new(), "interface"),
        ("interface = []".to_owned(), "has interfaces"),
        (format!("mac = \"01:00:00:00:00:01\"\n{CONFIG}"), "group"),
        (interface("10.0.3"), "interface 3: \"10.0.3\" is none like"),
        (interface("10.0.3.0/24"), "no host's"),
        (interface("10.0.3.255/24"), "no host's"),
        (interface("10.0.2.2/24"), "10.0.2.0/24 has an interface"),
        (route("10.0.9.0/24", "10.0.9.1"), "route 3: 10.0.9.1 is in no network"),
        (route("10.0.9.0/24", "10.0.1.1"), "our own"),
        (route("10.0.1.0/24", "10.0.2.9"), "a network of ours"),
        (route("192.0.2.0/24", "10.0.2.9"), "has a route by 10.0.2.254"),
    ] {
        let error = format!("{:#}", Router::new(&text).err().expect(&text));
        assert!(error.contains(said), "{error}");
    }
    assert!(Router::new(&interface("10.0.3.0/31")).is_ok());
}

/// What the router makes of a frame: the frame, if it goes on, and what it sends beside it.
fn route(router: &mut Router, frame: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut buffer, mut made) = (frame.to_vec(), Generated::default());
    let mut frame = Frame::new(&mut buffer);
    let action = router.frame(&mut frame, &mut made);
    let passed = (action == Action::Next).then(|| frame.bytes().to_vec());
    (passed, made.take())
}

/// Tells the router where a neighbour is; what it sends then.
fn neighbour(router: &mut Router, address: [u8; 4], mac: MacAddr, own: [u8; 4]) -> Vec<Vec<u8>> {
    let answer = arp(2, (mac, address.into()), (MAC, own.into()));
    let (passed, made) = route(router, &ethernet(MAC, mac, 0x0806, &answer));
    assert!(passed.is_none());
    made
}

fn packet(dst: [u8; 4]) -> Vec<u8> {
    ethernet(MAC, A, 0x0800, &ipv4(17, [10, 0, 1, 2].into(), dst.into(), b"payload!"))
}

#[test]
fn test_a_packet_goes_on_when_its_neighbour_has_answered() {
    let mut router = Router::new(CONFIG).unwrap();
    let (passed, made) = route(&mut router, &packet([10, 0, 2, 2]));
    assert_eq!((passed, made.len()), (None, 1), "it asks");
    assert_eq!(made[0][..6], MacAddr::BROADCAST.octets());
    assert_eq!(route(&mut router, &packet([10, 0, 2, 2])).1.len(), 0, "and not at once again");
    let held = neighbour(&mut router, [10, 0, 2, 2], B, [10, 0, 2, 1]);
    assert_eq!(held.len(), 2, "both have waited");
    router.batch(1, &mut Generated::default());
    let passed = route(&mut router, &packet([10, 0, 2, 2])).0.unwrap();
    assert_eq!((&passed[..6], &passed[6..12]), (&B.octets()[..], &MAC.octets()[..]));
    assert_eq!(passed[ETHERNET_HEADER + 8], 63);
    assert_eq!(checksum(&passed[ETHERNET_HEADER..ETHERNET_HEADER + IPV4_HEADER]), 0);
    assert_eq!(&passed[ETHERNET_HEADER + IPV4_HEADER..], b"payload!");
    assert!(held.iter().all(|held| *held == passed), "{held:x?}");
}

#[test]
fn test_what_was_found_for_a_destination_is_void_when_its_neighbour_moves_or_grows_old() {
    let mut router = Router::new(CONFIG).unwrap();
    let (host, own) = ([10, 0, 2, 2], [10, 0, 2, 1]);
    for station in [B, A, B] {
        neighbour(&mut router, host, station, own);
        for _ in 0..2 {
            let (passed, made) = route(&mut router, &packet(host));
            assert_eq!((passed.unwrap()[..6].to_vec(), made.len()), (station.octets().to_vec(), 0));
        }
    }
    router.begin(router.now + FRESH);
    for asks in [1, 0] {
        let (passed, made) = route(&mut router, &packet(host));
        assert_eq!((passed.is_some(), made.len()), (true, asks), "it asks once, and goes on");
    }
    let mut last = packet(host);
    last[ETHERNET_HEADER + 8] = 1;
    last[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].fill(0);
    let sum = checksum(&last[ETHERNET_HEADER..ETHERNET_HEADER + IPV4_HEADER]).to_be_bytes();
    last[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].copy_from_slice(&sum);
    assert_eq!(route(&mut router, &last).0, None, "it has gone too far");
}

#[test]
fn test_a_neighbour_that_says_nothing_any_more_is_unknown_again() {
    let mut router = Router::new(CONFIG).unwrap();
    neighbour(&mut router, [10, 0, 2, 2], B, [10, 0, 2, 1]);
    assert!(route(&mut router, &packet([10, 0, 2, 2])).0.is_some());
    router.begin(router.now + KEPT);
    let (passed, made) = route(&mut router, &packet([10, 0, 2, 2]));
    assert_eq!((passed, made.len()), (None, 1), "it waits, and the router asks");
    router.neighbours.sweep(1, router.now);
    assert_eq!(router.counts()[0].1, 0);
    assert_eq!(neighbour(&mut router, [10, 0, 2, 2], B, [10, 0, 2, 1]).len(), 1);
}

#[test]
fn test_a_station_that_claims_all_addresses_keeps_no_other_out() {
    let wide = "[[interface]]\naddress = \"10.0.1.1/24\"\n[[interface]]\n\
        address = \"10.2.0.1/16\"\n";
    let mut router = Router::new(wide).unwrap();
    let own = [10, 2, 0, 1];
    neighbour(&mut router, [10, 2, 0, 2], B, own);
    for host in 0x100..0x100 + 20_000_u32 {
        let [.., high, low] = host.to_be_bytes();
        // What the packet says is another one each time.
        let forged = (MacAddr::new([2, 9, 9, 9, high, low]), [10, 2, high, low].into());
        let question = arp(1, forged, (MacAddr::ZERO, own.into()));
        route(&mut router, &ethernet(MacAddr::BROADCAST, A, 0x0806, &question));
    }
    neighbour(&mut router, [10, 2, 0, 3], B, own);
    for known in [2, 3] {
        let passed = route(&mut router, &packet([10, 2, 0, known])).0;
        assert_eq!(passed.expect("it is known")[..6], B.octets());
    }
}

#[test]
fn test_a_neighbour_is_at_no_groups_address() {
    let mut router = Router::new(CONFIG).unwrap();
    let (host, own) = ([10, 0, 2, 2], [10, 0, 2, 1]);
    for group in [MacAddr::BROADCAST, MacAddr::new([1, 0, 0x5e, 0, 0, 1]), MacAddr::ZERO] {
        for operation in [1, 2] {
            let lie = arp(operation, (group, host.into()), (MAC, own.into()));
            assert_eq!(route(&mut router, &ethernet(MAC, B, 0x0806, &lie)), (None, vec![]));
        }
    }
    assert_eq!(router.counts()[0].1, 0);
    assert!(route(&mut router, &packet(host)).0.is_none());
    assert_eq!(neighbour(&mut router, host, B, own).len(), 1, "what has waited");
}

/// A packet for a neighbour, told from others by its payload.
fn numbered(host: u8, number: u8) -> Vec<u8> {
    let packet = ipv4(17, [10, 0, 1, 2].into(), [10, 0, 2, host].into(), &[number; 8]);
    ethernet(MAC, A, 0x0800, &packet)
}

#[test]
fn test_of_packets_that_wait_as_many_as_with_linux_go_on_in_order() {
    let mut router = Router::new(CONFIG).unwrap();
    for number in 0..104 {
        assert_eq!(route(&mut router, &numbered(2, number)).0, None);
    }
    let mut sent = neighbour(&mut router, [10, 0, 2, 2], B, [10, 0, 2, 1]);
    // What follows in the batch does not overtake them.
    let (passed, behind) = route(&mut router, &numbered(2, 104));
    assert_eq!(passed, None);
    sent.extend(behind);
    let numbers: Vec<u8> = sent.iter().map(|frame| frame[ETHERNET_HEADER + IPV4_HEADER]).collect();
    assert_eq!(numbers, (3..105).collect::<Vec<u8>>(), "101, and the one behind");
    assert_eq!(router.counts()[1..], named(["held", "unresolved"], [0, 3]));
}

#[test]
fn test_packets_that_wait_take_no_more_memory_than_with_linux() {
    let mut router = Router::new(CONFIG).unwrap();
    let payload = vec![0; 60_000];
    let packet = ipv4(17, [10, 0, 1, 2].into(), [10, 0, 2, 2].into(), &payload);
    let frame = ethernet(MAC, A, 0x0800, &packet);
    for _ in 0..9 {
        route(&mut router, &frame);
    }
    assert_eq!(router.counts()[1..], named(["held", "unresolved"], [3, 6]));
}

#[test]
fn test_packets_that_no_longer_wait_go_to_the_switch_as_drops() {
    let mut router = Router::new(CONFIG).unwrap();
    (0..103).for_each(|number| drop(route(&mut router, &numbered(2, number))));
    let dropped = |router: &mut Router| -> Vec<u8> {
        let mut made = Generated::default();
        router.batch(0, &mut made);
        made.take().iter().map(|packet| packet[ETHERNET_HEADER + IPV4_HEADER]).collect()
    };
    assert_eq!(dropped(&mut router), vec![0, 1]);
    let other = "[[interface]]\naddress = \"10.0.1.1/24\"\n";
    router.replace(Router::new(other).unwrap());
    assert_eq!(dropped(&mut router), (2..103).collect::<Vec<u8>>());
}

#[test]
fn test_neighbours_that_packets_wait_for_are_few_and_not_for_long() {
    let mut router = Router::new(CONFIG).unwrap();
    let hosts = u8::try_from(AWAITED).unwrap();
    for host in 0..hosts + 7 {
        route(&mut router, &numbered(100 + host, 0));
    }
    let held = hosts.into();
    assert_eq!(router.counts()[1..], named(["held", "unresolved"], [held, 7]));
    let mut made = Generated::default();
    router.now += PATIENCE;
    router.age_neighbours(&mut made);
    let asks = made.take();
    assert_eq!(asks.len(), AWAITED, "it asks again");
    assert!(asks.iter().all(|frame| u16_at(frame, 12) == 0x0806));
    router.now += HOLD;
    router.age_neighbours(&mut made);
    let said = made.take();
    assert!(
        said.iter().all(|frame| frame[ETHERNET_HEADER + IPV4_HEADER..][..2] == [3, 1]),
        "{said:x?}"
    );
    assert_eq!(said.len(), AWAITED, "no host there");
    assert_eq!(router.counts()[1..], named(["held", "unresolved"], [0, held + 7]));
}

#[test]
fn test_a_file_without_their_network_ends_packets_that_wait() {
    let mut router = Router::new(CONFIG).unwrap();
    route(&mut router, &numbered(2, 0));
    router.replace(Router::new(CONFIG).unwrap());
    assert_eq!(router.counts()[1..], named(["held", "unresolved"], [1, 0]));
    let other = "[[interface]]\naddress = \"10.0.1.1/24\"\n";
    router.replace(Router::new(other).unwrap());
    assert_eq!(router.counts()[1..], named(["held", "unresolved"], [0, 1]));
}

#[test]
fn test_instances_tell_each_other_where_neighbours_are() {
    let [mut one, mut other] = [(); 2].map(|()| Router::new(CONFIG).unwrap());
    for (router, board) in [&mut one, &mut other].into_iter().zip(Board::among(2)) {
        router.join(board);
    }
    assert!(!one.awaits_news() && route(&mut one, &numbered(2, 7)).0.is_none());
    assert!(one.awaits_news());
    one.replace(Router::new(CONFIG).unwrap());
    // The other one gets the answer.
    neighbour(&mut other, [10, 0, 2, 2], B, [10, 0, 2, 1]);
    let mut made = Generated::default();
    one.batch(0, &mut made);
    let sent = made.take();
    assert_eq!(sent.len(), 1);
    assert_eq!((&sent[0][..6], sent[0][ETHERNET_HEADER + IPV4_HEADER]), (&B.octets()[..], 7));
    assert!(!one.awaits_news());
    one.batch(1, &mut made);
    assert!(route(&mut one, &numbered(2, 8)).0.is_some() && made.take().is_empty());
}

#[test]
fn test_the_longest_prefix_says_where() {
    let mut router = Router::new(CONFIG).unwrap();
    neighbour(&mut router, [10, 0, 2, 254], B, [10, 0, 2, 1]);
    neighbour(&mut router, [10, 0, 1, 254], A, [10, 0, 1, 1]);
    assert_eq!(route(&mut router, &packet([192, 0, 2, 7])).0.unwrap()[..6], B.octets());
    assert_eq!(route(&mut router, &packet([192, 0, 2, 200])).0.unwrap()[..6], A.octets());
    let (passed, made) = route(&mut router, &packet([198, 51, 100, 1]));
    assert!(passed.is_none());
    assert_eq!(made[0][ETHERNET_HEADER + IPV4_HEADER..][..2], [3, 0], "no route: it says so");
}

#[test]
fn test_it_complains_only_where_it_may_and_not_too_often() {
    let mut router = Router::new(CONFIG).unwrap();
    let lost = |src: [u8; 4], dst: [u8; 4], piece: u8| {
        let mut packet = ipv4(17, src.into(), dst.into(), b"payload!");
        packet[7] = piece;
        packet[10..12].fill(0);
        let sum = checksum(&packet[..IPV4_HEADER]).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        ethernet(MAC, A, 0x0800, &packet)
    };
    let (src, dst) = ([10, 0, 1, 2], [198, 51, 100, 1]);
    for quiet in [
        lost(src, dst, 9),
        lost(src, [224, 0, 0, 9], 0),
        lost(src, [255; 4], 0),
        lost([0; 4], dst, 0),
        lost([224, 0, 0, 1], dst, 0),
    ] {
        assert_eq!(route(&mut router, &quiet), (None, vec![]));
    }
    let said = |router: &mut Router| route(router, &lost(src, dst, 0)).1.len();
    assert_eq!((0..COMPLAINTS + 5).map(|_| said(&mut router)).sum::<usize>(), 1000);
    router.now += Duration::from_secs(1);
    assert_eq!(said(&mut router), 1);
}

#[test]
fn test_it_answers_for_its_addresses_and_counts_down() {
    let mut router = Router::new(CONFIG).unwrap();
    let question = arp(1, (A, [10, 0, 1, 2].into()), (MacAddr::ZERO, [10, 0, 1, 1].into()));
    let (_, made) = route(&mut router, &ethernet(MacAddr::BROADCAST, A, 0x0806, &question));
    assert_eq!((&made[0][..6], mac_at(&made[0], 22)), (&A.octets()[..], MAC));
    let echo = [&[8, 0, 0xf7, 0xff, 0, 0, 0, 0][..], &[0; 8]].concat();
    let ping = ipv4(1, [10, 0, 1, 2].into(), [10, 0, 2, 1].into(), &echo);
    let answer = route(&mut router, &ethernet(MAC, A, 0x0800, &ping)).0.unwrap();
    assert_eq!(answer[ETHERNET_HEADER + IPV4_HEADER], 0);
    assert_eq!(ipv4_at(&answer, ETHERNET_HEADER + 16), Ipv4Addr::new(10, 0, 1, 2));
    assert_eq!(checksum(&answer[ETHERNET_HEADER + IPV4_HEADER..]), 0);
    let mut last = packet([10, 0, 2, 2]);
    last[ETHERNET_HEADER + 8] = 1;
    last[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].fill(0);
    let sum = checksum(&last[ETHERNET_HEADER..ETHERNET_HEADER + IPV4_HEADER]).to_be_bytes();
    last[ETHERNET_HEADER + 10..ETHERNET_HEADER + 12].copy_from_slice(&sum);
    let (_, made) = route(&mut router, &last);
    assert_eq!(made[0][ETHERNET_HEADER + IPV4_HEADER..][..2], [11, 0]);
}

#[test]
fn test_what_is_broken_or_for_others_is_dropped_whatever_its_length() {
    let mut router = Router::new(CONFIG).unwrap();
    let whole = packet([10, 0, 2, 2]);
    for len in 0..whole.len() {
        route(&mut router, &whole[..len]);
    }
    let mut broken = whole.clone();
    broken[ETHERNET_HEADER + 12] ^= 1;
    assert_eq!(route(&mut router, &broken), (None, vec![]));
    let mut others = whole;
    others[..6].copy_from_slice(&B.octets());
    assert_eq!(route(&mut router, &others), (None, vec![]));
}

//! Port security in turns: locked addresses, limits for floods, disabled ports.

use super::chain::{line, net};
use super::*;
use switch::chain::{Chain, Out, Plan};
use switch::{FloodClass, PortSecurity};

fn limited(class: FloodClass, limit: u32) -> PortConfig {
    let mut security = PortSecurity::default();
    security.flood_limits[class.index()] = Some(limit);
    PortConfig { security, ..PortConfig::default() }
}

fn locked(host: u8) -> PortConfig {
    let mac_lock = Some(packet::MacAddr::new(mac(host)).to_string().parse().expect("an address"));
    let security = PortSecurity { mac_lock, ..PortSecurity::default() };
    PortConfig { security, ..PortConfig::default() }
}

#[test]
fn a_flood_beyond_its_limit_is_dropped_by_class() {
    let group = [1, 0, 0x5e, 0, 0, 5];
    for (class, dst, reason) in [
        (FloodClass::Broadcast, ALL, DropReason::StormBroadcast),
        (FloodClass::Multicast, group, DropReason::StormMulticast),
        (FloodClass::Unicast, mac(9), DropReason::StormUnicast),
    ] {
        for on_full in [OnFull::Drop, OnFull::Wait] {
            let mut net = Net::new(SwitchConfig::default());
            net.add(limited(class, 5));
            (1..3).for_each(|_| net.add(PortConfig { on_full, ..PortConfig::default() }));
            net.introduce();
            net.now = Now::from_ms(10_000);
            let sent: Vec<_> = (0..8).map(|i| frame(dst, mac(0), 60, i)).collect();
            net.send(0, &sent);
            while net.turn(0).slots > 0 {}
            assert_eq!(
                (net.drops(0, reason), net.received(1)),
                (3, sent[..5].to_vec()),
                "{class:?}"
            );
            // What is no flood of this class passes, and so does what others send.
            net.send(0, &[frame(mac(1), mac(0), 60, 9)]);
            net.send(2, &sent.iter().map(|_| frame(dst, mac(2), 60, 1)).collect::<Vec<_>>());
            [0, 2].into_iter().for_each(|port| while net.turn(port).slots > 0 {});
            assert_eq!(net.received(1).len(), 9, "{class:?}");
            net.now = Now::from_ms(10_600);
            net.send(0, &sent);
            while net.turn(0).slots > 0 {}
            assert_eq!((net.drops(0, reason), net.received(1).len()), (3 + 5, 3), "{class:?}");
        }
    }
}

#[test]
fn a_locked_port_s_foreign_frames_are_dropped_run_by_run() {
    let mut net = Net::new(SwitchConfig::default());
    net.add(locked(0));
    net.add(PortConfig::default());
    net.introduce();
    let run = |src: u8| (0..10).map(move |i| frame(mac(1), mac(src), 60, i));
    net.send(0, &run(7).chain(run(0)).chain(run(8)).collect::<Vec<_>>());
    while net.turn(0).slots > 0 {}
    assert_eq!(net.received(1), run(0).collect::<Vec<_>>());
    assert_eq!(net.drops(0, DropReason::MacLock), 20);
    let (taken, gone) = net.balance();
    assert_eq!(taken, gone);
}

/// A wire's frames are not read, but for a lock. Functions may change addresses.
#[test]
fn a_lock_holds_where_frames_enter_a_chain_and_not_where_they_leave_it() {
    for out in [Out::Address, Out::Port(id(1))] {
        let mut net = net(1);
        net.enter(1, &[frame(ALL, mac(1), 60, 9)]);
        (0..3).for_each(|port| drop(net.received(port)));
        net.switch.set_port(id(0), PortConfig { learning: false, ..locked(0) });
        let chains = vec![Some(Chain { order: 0, services: vec![0], out })];
        net.steer(Plan { chains, ..line(&[0]) });
        net.enter(0, &[frame(mac(1), mac(7), 60, 1), frame(mac(1), mac(0), 60, 2)]);
        let rx = &mut net.clients[2].rx;
        assert_eq!(rx.refresh(), 1, "{out:?}");
        rx.buffer(0)[6..12].copy_from_slice(&mac(7));
        assert_eq!(net.pass(2, |mark| mark), 1);
        assert_eq!(net.received(1), [frame(mac(1), mac(7), 60, 2)], "{out:?}");
        assert_eq!(net.drops(0, DropReason::MacLock), 1);
    }
}

#[test]
fn floods_that_leave_chains_have_the_limit_of_the_port_that_they_entered_by() {
    let mut net = net(1);
    net.switch.set_port(id(0), limited(FloodClass::Broadcast, 5));
    net.steer(line(&[0]));
    net.now = Now::from_ms(10_000);
    let sent: Vec<_> = (0..8).map(|i| frame(ALL, mac(0), 60, i)).collect();
    net.enter(0, &sent);
    net.pass(2, |mark| mark);
    assert_eq!(net.received(1), sent[..5]);
    assert_eq!(net.drops(2, DropReason::StormBroadcast), 3);
    let (taken, gone) = net.balance();
    assert_eq!(taken, gone);
}

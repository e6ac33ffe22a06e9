//! What a switch believes of the functions of a chain: they are played by the test, and lie.

use super::chain::{flow, line, net, service};
use super::*;
use packet::fields::Fields;
use packet::metadata::Metadata;
use ring::abi::FIRST_BUFFER;
use ring::leaver::Leaver;
use switch::chain::rule::{Action, Rule};
use switch::chain::{Chain, Out, Plan};

#[test]
fn a_port_that_is_no_function_is_not_believed() {
    let mut net = net(2);
    net.steer(line(&[0, 1]));
    let forged = Metadata::entering(7, id(1), 0, 0).moved(1).word();
    net.send(0, &[flow(1, 1)]);
    // Before it is taken, as a client would.
    let mut other = self::net(2);
    other.steer(line(&[0, 1]));
    let tx = &mut other.clients[0].tx;
    tx.refresh();
    tx.frame(0, 60).copy_from_slice(&flow(1, 1));
    tx.set_metadata(0, forged);
    let _ = tx.submit(1);
    other.turn(0);
    net.turn(0);
    assert_eq!(other.marks(2), net.marks(2), "it begins at the beginning");
}

#[test]
fn any_mark_of_a_function_does_no_more_than_its_operator_lets_it() {
    let mut net = net(3);
    let mut plan = line(&[0, 1]);
    plan.chains.push(Some(Chain { order: 0, services: vec![2], out: Out::Port(id(1)) }));
    net.steer(plan);
    let mut state = 1u64;
    for _ in 0..2000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bits = state ^ state >> 29;
        net.enter(0, &[flow(1, 1)]);
        (2..5).for_each(|port| assert!(net.pass(port, |_| bits) < SLOTS as usize));
        (0..5).for_each(|port| drop(net.received(port)));
    }
    let (taken, gone) = net.balance();
    assert!(gone >= taken, "floods are more, nothing is lost uncounted: {taken} {gone}");
}

/// By a run of marks, and frame by frame.
#[test]
fn a_function_speaks_for_ports_that_send_into_chains_and_for_no_other() {
    for chained in [false, true] {
        let mut net = net(1);
        let inner = PortConfig {
            vlan: VlanMode::Access("7".parse().expect("a VLAN")),
            ..PortConfig::default()
        };
        (0..2).for_each(|_| net.add(inner.clone()));
        let mut plan = line(&[0]);
        plan.ingress.truncate(1);
        plan.ingress.extend(chained.then_some((id(3), 0)));
        net.steer(plan);
        let forged = Metadata::entering(0, id(3), 0, 0).word();
        net.enter(0, &[frame(ALL, mac(0), 60, 1), frame(mac(9), mac(0), 60, 2)]);
        net.pass(2, |_| forged);
        assert_eq!(net.received(4).len(), if chained { 2 } else { 0 }, "in another VLAN");
        assert_eq!(net.drops(2, DropReason::Ingress), if chained { 0 } else { 2 });
        // Its own port it may always name.
        net.enter(0, &[frame(ALL, mac(0), 60, 3)]);
        net.pass(2, |_| Metadata::entering(0, id(2), 0, 0).word());
        assert_eq!(net.received(1).len(), 1);
        // No function speaks for a port that is gone, nor for the next one with its number.
        assert!(net.switch.remove_port(id(0)).is_some());
        net.enter(1, &[frame(ALL, mac(1), 60, 4)]);
        net.enter(3, &[frame(ALL, mac(1), 60, 4)]);
        net.pass(2, |_| Metadata::entering(0, id(0), 0, 0).word());
        assert_eq!(net.received(1).len(), 0);
    }
}

#[test]
fn a_frame_that_comes_to_a_function_past_all_chains_says_nothing() {
    let mut net = net(1);
    net.steer(line(&[0]));
    for _ in 0..5 {
        net.enter(0, &vec![flow(1, 1); 8]);
        assert_eq!(net.received(2).len(), 8);
    }
    let fields = Fields { dst_ports: Some(80..=80), ..Fields::default() };
    let rules = vec![Rule { id: 1, priority: 0, fields, action: Action::Port(id(2)) }];
    net.steer(Plan { rules, ..line(&[0]) });
    net.enter(0, &[flow(1, 1)]);
    let rx = &mut net.clients[2].rx;
    assert_eq!((rx.refresh(), rx.metadata(0)), (1, 0), "the mark of an older frame");
}

/// The chain of a plan gets other services; frames of this many changes before are known.
fn change(plan: &mut Plan, services: &[u8]) {
    let was = plan.chains[0].take().expect("there is one");
    let order = was.order + 1;
    plan.past.push((0, was));
    plan.chains[0] = Some(Chain { order, services: services.to_vec(), out: Out::Address });
}

/// By a run of marks, and frame by frame, because one service has two instances.
#[test]
fn frames_that_a_function_holds_finish_by_the_order_that_they_came_by() {
    for second in [vec![3], vec![3, 5]] {
        let mut net = net(2 + second.len());
        let mut plan = line(&[0, 1, 2]);
        plan.services[1] = service(&second);
        net.steer(plan.clone());
        net.enter(0, &[flow(1, 1)]);
        // Without the first, the firewall would be at its place.
        change(&mut plan, &[1, 2]);
        net.steer_at_once(plan.clone());
        net.enter(0, &[flow(1, 2)]);
        assert_eq!(net.pass(2, |mark| mark), 1, "the one it held");
        let seen = |net: &mut Net| second.iter().map(|&port| net.marks(port).len()).sum::<usize>();
        assert_eq!(seen(&mut net), 2, "the old one is not past it");
        // In another order.
        change(&mut plan, &[2, 1]);
        net.steer_at_once(plan.clone());
        net.enter(0, &[flow(1, 3)]);
        assert_eq!(second.iter().map(|&port| net.pass(port, |mark| mark)).sum::<usize>(), 2);
        assert_eq!(net.pass(4, |mark| mark), 3);
        assert_eq!(net.received(1).len(), 2, "those that have been to all");
        assert_eq!(second.iter().map(|&port| net.pass(port, |mark| mark)).sum::<usize>(), 1);
        // The chain goes, and its frames go on.
        net.enter(0, &[flow(1, 4)]);
        plan.past.push((0, plan.chains[0].take().expect("there is one")));
        plan.ingress.clear();
        net.steer(plan);
        assert_eq!(net.pass(4, |mark| mark), 1);
        assert_eq!(second.iter().map(|&port| net.pass(port, |mark| mark)).sum::<usize>(), 1);
        assert_eq!(net.received(1).len(), 2);
        let (taken, gone) = net.balance();
        assert_eq!(taken, gone, "nothing is lost uncounted");
    }
}

#[test]
fn a_frame_whose_order_is_forgotten_or_whose_place_is_anothers_is_dropped() {
    let mut net = net(3);
    let mut plan = line(&[0, 1]);
    plan.services.push(service(&[4]));
    net.steer(plan.clone());
    net.enter(0, &[flow(1, 1), flow(1, 2), flow(1, 3)]);
    change(&mut plan, &[0, 1]);
    plan.past.clear();
    net.steer(plan.clone());
    assert_eq!(net.pass(2, |mark| mark), 3);
    assert_eq!((net.drops(2, DropReason::Stale), net.received(3).len()), (3, 0));
    // The first sends from the place of the second, which it may call in its own thread.
    net.enter(0, &[flow(1, 1)]);
    net.pass(2, |mark| mark & !(7 << 52) | 1 << 52);
    assert_eq!((net.drops(2, DropReason::Stale), net.received(1).len()), (3, 1));
    // There are no such places.
    for (frames, at) in [(4, 2), (5, 7)] {
        net.enter(0, &[flow(1, 1)]);
        net.pass(2, |mark| mark & !(7 << 52) | at << 52);
        assert_eq!(net.drops(2, DropReason::Stale), frames);
    }
    let report = net.switch.steering().expect("it steers");
    assert_eq!(report.chains[0].drops.get(DropReason::Stale), 5);
    // One that the chain does not know goes on where it was sent from.
    net.enter(0, &[flow(1, 1)]);
    net.pass(2, |mark| mark & !(0xfff << 32) | 4 << 32 | 3 << 60);
    assert_eq!((net.pass(4, |mark| mark), net.received(3).len(), net.received(1).len()), (1, 1, 0));
}

/// The port of a function becomes an ordinary one, and another function's.
#[test]
fn marks_of_a_port_that_changes_its_role_are_worth_nothing() {
    let mut net = net(3);
    let plan = line(&[0, 1, 2]);
    net.steer(plan.clone());
    net.enter(0, &[flow(1, 1), flow(1, 2)]);
    let mut plain = plan.clone();
    plain.services[0] = service(&[]);
    net.steer(plain);
    // It is in no chain any more: its frames go by their address, whatever stands beside them.
    assert_eq!(net.pass(2, |mark| mark), 2);
    assert_eq!((net.marks(3).len(), net.received(1).len()), (0, 2));
    // What it held as the first it does not send on as the last.
    net.steer(plan.clone());
    net.enter(0, &[flow(1, 3)]);
    let mut last = plan;
    (last.services[0], last.services[2]) = (service(&[4]), service(&[2]));
    net.steer(last);
    assert_eq!(net.pass(2, |mark| mark), 1);
    assert_eq!((net.drops(2, DropReason::Stale), net.received(1).len()), (1, 0));
}

/// The library marks all slots of a frame, and frames that are refused have marks, too.
#[test]
fn no_slot_comes_back_with_the_mark_of_an_older_frame() {
    let mut net = net(1);
    net.steer(line(&[0]));
    net.enter(0, &[flow(1, 1)]);
    let mark = net.clients[2].rx.refresh().checked_sub(1).map(|i| net.clients[2].rx.metadata(i));
    let tx = &mut net.clients[2].tx;
    assert!(tx.refresh() > 4);
    let more = slot_flag::MOREFRAG;
    for (i, (len, flags)) in [(3, 0), (60, more), (60, 0), (60, 0)].into_iter().enumerate() {
        let i = u32::try_from(i).expect("few");
        tx.frame(i, 60).copy_from_slice(&flow(1, 1));
        tx.set(i, len, flags);
        tx.set_metadata(i, mark.expect("one came"));
    }
    let _ = tx.submit(4);
    while net.turn(2).slots > 0 {}
    assert_eq!((net.drops(2, DropReason::TooShort), net.received(1).len()), (1, 2));
    let tx = &mut net.clients[2].tx;
    assert_eq!(tx.refresh(), SLOTS - 1);
    assert!((0..SLOTS - 1).all(|i| tx.metadata(i) == 0));
}

/// By a run and frame by frame, to a function and out.
#[test]
fn a_frame_that_a_function_sends_twice_or_out_of_anothers_buffer_is_dropped() {
    for (action, services) in [(0, &[0, 1][..]), (2, &[0, 1])] {
        let mut net = net(3);
        net.steer(line(services));
        net.enter(0, &[flow(1, 1), flow(1, 2), flow(1, 3)]);
        let others = net.clients[4].tx.buffer_index(0);
        let client = &mut net.clients[2];
        assert_eq!((client.rx.refresh(), client.tx.refresh() > 3), (3, true));
        let (first, mark) = (client.rx.buffer_index(0), client.rx.metadata(0));
        for (slot, buffer) in [(0, first), (1, first), (2, others)] {
            client.tx.set(slot, 60, 1 << 8);
            client.tx.set_buffer_index(slot, buffer);
            client.tx.set_metadata(slot, mark | action << 60);
        }
        let _ = client.tx.submit(3);
        while net.turn(2).slots > 0 {}
        assert_eq!(net.marks(3).len(), 1, "action {action}");
        assert_eq!(net.drops(2, DropReason::BadIndex), 2, "action {action}");
        let report = net.switch.steering().expect("it steers");
        assert_eq!(report.chains[0].drops.get(DropReason::BadIndex), 2, "action {action}");
    }
}

/// What a faulty function does to every third frame.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Sends the buffer in the next slot once more.
    Twice,
    /// Returns a receive slot that names the buffer that it sends.
    GivenBack,
    /// Sends any buffer.
    Any,
    /// Returns a receive slot that names any buffer.
    AnyGivenBack,
}

impl Net {
    /// The function on a port passes everything on, with a fault.
    fn pass_faulty(&mut self, port: usize, fault: Fault, random: &mut u32) {
        let buffers = self.clients[port].region.layout().buffers;
        let client = &mut self.clients[port];
        let (count, room) = (client.rx.refresh(), client.tx.refresh());
        let (mut at, mut taken) = (0, 0);
        while taken < count && at + 2 <= room {
            *random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (bits, any) = (*random >> 16, FIRST_BUFFER + (*random >> 8) % (buffers - 2));
            let (i, is_faulty) = (taken, bits % 3 == 0);
            taken += 1;
            let len = u16::try_from(client.rx.frame(i).len()).expect("short");
            if len == 0 {
                continue;
            }
            let (full, mark, spare) =
                (client.rx.buffer_index(i), client.rx.metadata(i), client.tx.buffer_index(at));
            let (send, back) = match (fault, is_faulty) {
                (Fault::GivenBack, true) => (full, full),
                (Fault::Any, true) => (any, spare),
                (Fault::AnyGivenBack, true) => (full, any),
                _ => (full, spare),
            };
            client.rx.set_buffer_index(i, back);
            for _ in 0..if is_faulty && matches!(fault, Fault::Twice) { 2 } else { 1 } {
                client.tx.set(at, len, slot_flag::BUF_CHANGED);
                client.tx.set_buffer_index(at, send);
                client.tx.set_metadata(at, mark);
                at += 1;
            }
        }
        let _ = (client.tx.submit(at), client.rx.release(taken));
        while self.turn(port).slots > 0 {}
    }

    /// The client of a port of a group goes, and another one comes.
    fn succeed(&mut self, port: usize) {
        let Some(Plug::Rings(host, _)) = self.switch.remove_port(id(port)) else { panic!("rings") };
        let (region, layout) = (host.region().clone(), *host.layout());
        drop(host);
        let leaver = Leaver::new(region.clone(), &layout);
        assert_eq!(self.switch.reconcile(&leaver, 0, &mut u32::MAX.clone()), None);
        leaver.release();
        let own = region.take(Owner::of(&layout), counts().buffers() as usize);
        assert_eq!(own.len(), counts().buffers() as usize, "none is lost");
        region.format_port("test", &layout, own, false).expect("memory");
        let client = self.clients[port].region.clone();
        let (tx, rx) = (TxRing::new(&client, &layout, 0), RxRing::new(&client, &layout, 0));
        self.clients[port] = Client { tx, rx, region: client };
        let host = Plug::rings_with(Krings::new(&region, &layout), NoDoorbell);
        self.switch.add_port(id(port), host, PortConfig::default());
    }

    /// How many buffers the member of a group on a port has.
    fn owned(&mut self, port: usize) -> usize {
        let Some(host) = self.switch.plug_mut(id(port)).and_then(Plug::rings) else { return 0 };
        host.region().owners().count(Owner::of(host.layout()))
    }
}

/// By runs, and frame by frame, because two services have two instances.
#[test]
fn a_function_that_spoils_slots_harms_itself_and_nobody_after_it_is_gone() {
    let faults = [Fault::Twice, Fault::GivenBack, Fault::Any, Fault::AnyGivenBack];
    for (fault, staged) in faults.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut net = net(if staged { 5 } else { 3 });
        let mut plan = line(&[0, 1, 2]);
        if staged {
            plan.services[1] = service(&[3, 5]);
            plan.services[2] = service(&[4, 6]);
        }
        net.steer(plan.clone());
        // In the order of the chain.
        let members = if staged { &[2, 3, 5, 4, 6][..] } else { &[2, 3, 4] };
        let mut random = 1;
        let frames: Vec<_> = (0..8).map(|i| flow(i, 1)).collect();
        for _ in 0..300 {
            net.enter(0, &frames);
            net.pass(2, |mark| mark);
            net.pass_faulty(3, fault, &mut random);
            members[2..].iter().for_each(|&port| assert!(net.pass(port, |mark| mark) < 32));
            drop(net.received(1));
        }
        let lost: Vec<_> =
            members.iter().map(|&port| net.drops(port, DropReason::BadIndex)).collect();
        assert!(lost[1] > 0 && lost.iter().sum::<u64>() == lost[1], "{fault:?}: {lost:?}");
        let mut without = plan.clone();
        without.services[1] = service(if staged { &[5] } else { &[] });
        net.steer(without);
        net.succeed(3);
        net.steer(plan);
        let counts = counts().buffers() as usize;
        assert!(members.iter().all(|&port| net.owned(port) == counts), "{fault:?}");
        for _ in 0..100 {
            net.enter(0, &frames);
            members.iter().for_each(|&port| assert!(net.pass(port, |mark| mark) < 32));
            assert_eq!(net.received(1).len(), 8, "{fault:?}");
        }
        assert!(members.iter().all(|&port| net.owned(port) == counts), "{fault:?}");
    }
}

//! Frames of a switch whose owner's program decides.

use program::{Looks, Program};
use switch::{TraceStep, UserFunction};

use super::program_code::*;
use super::random::Random;
use super::*;

impl Net {
    fn programmed(ports: usize, looks: Looks, code: &[Insn]) -> Self {
        let forwarding = Forwarding::Program;
        let mut net = Self::new(SwitchConfig { forwarding, ..Default::default() });
        (0..ports).for_each(|_| net.add(PortConfig::default()));
        net.load(looks, code);
        net
    }

    fn load(&mut self, looks: Looks, code: &[Insn]) {
        drop(self.switch.bridge_mut().set_function(Some(UserFunction::new(program(looks, code)))));
    }

    fn program(&self) -> &Program {
        self.switch.bridge().function().expect("it was loaded").program()
    }

    fn counter(&self) -> u64 {
        let value = self.program().get(0, &[0; 4]).expect("an entry");
        u64::from_le_bytes(value.try_into().expect("eight bytes"))
    }

    fn set_counter(&mut self, value: u64) {
        let program = self.switch.bridge_mut().program_mut().expect("it was loaded");
        program.set(0, &[0; 4], &value.to_le_bytes()).expect("an entry");
    }

    /// A port with so many transmit rings, which are returned.
    fn add_with_rings(&mut self, rings: u16) -> Vec<TxRing> {
        let counts = RingCounts { tx_rings: rings, ..counts() };
        let port = self.add_with(counts, PortConfig::default(), DEFAULT_STRIDE);
        let region = &self.clients[self.clients.len() - 1].region;
        (0..rings).map(|ring| TxRing::new(region, &port, ring)).collect()
    }

    /// Sends from port 0; what each port has got.
    fn send_all(&mut self, frames: &[Vec<u8>]) -> Vec<usize> {
        self.send(0, frames);
        assert_eq!(self.turn(0).slots as usize, frames.len());
        (0..self.clients.len()).map(|port| self.received(port).len()).collect()
    }
}

fn frames(count: u8) -> Vec<Vec<u8>> {
    (0..count).map(|fill| frame(mac(1), mac(0), 60, fill)).collect()
}

#[test]
fn a_program_sends_drops_floods_and_leaves_to_learning() {
    for (code, got) in [
        (result(TO + 2).to_vec(), [0, 0, 9, 0]),
        (result(0).to_vec(), [0; 4]),
        (result(2).to_vec(), [0, 9, 9, 9]),
        (result(LEARNING).to_vec(), [0, 9, 9, 9]),
        (to_set(&[3, 1, 3, 0]), [0, 9, 0, 9]),
        (to_set(&[2]), [0, 0, 9, 0]),
        (to_set(&[1, 9]), [0, 9, 0, 0]),
        (result(TO).to_vec(), [0; 4]),
        (result(TO + 77).to_vec(), [0; 4]),
        (vec![insn(0x79, 0, 0, 0, 0), EXIT], [0; 4]),
    ] {
        for looks in [Looks::Header, Looks::Packet] {
            let mut net = Net::programmed(4, looks, &code);
            assert_eq!(net.send_all(&frames(9)), got, "{code:?}");
            let (taken, _) = net.balance();
            assert_eq!(taken, 9);
            let dropped: u64 =
                (0..4).map(|at| net.switch.stats(id(at)).unwrap().drops.total()).sum();
            assert!(dropped == 0 || got == [0; 4] && dropped == 9, "{code:?}");
        }
    }
    let mut net = Net::programmed(2, Looks::Header, &result(0));
    net.send_all(&frames(3));
    net.load(Looks::Header, &[insn(0x05, 0, 0, -1, 0)]);
    net.send_all(&frames(2));
    let drops = [DropReason::Program, DropReason::ProgramFault].map(|reason| net.drops(0, reason));
    assert_eq!(drops, [3, 2]);
    assert_eq!(net.program().counts().faults, 1, "a run of frames is asked about once");
}

#[test]
fn a_switch_without_its_program_drops_and_counts() {
    let mut net = Net::programmed(2, Looks::Header, &result(LEARNING));
    drop(net.switch.bridge_mut().set_function(None));
    assert_eq!(net.send_all(&frames(2)), [0, 0]);
    assert_eq!(net.drops(0, DropReason::ProgramFault), 2);
}

#[test]
fn a_program_is_asked_once_for_frames_with_one_header() {
    let code = count_and(TO + 1);
    let mut net = Net::programmed(3, Looks::Header, &code);
    assert_eq!(net.send_all(&frames(9)), [0, 9, 0]);
    assert_eq!((net.counter(), net.program().counts().runs), (1, 1));
    // Another header, and that one again.
    for (dst, runs) in [(2, 2), (1, 3), (1, 4)] {
        net.send_all(&[frame(mac(dst), mac(0), 60, 0)]);
        assert_eq!(
            net.program().counts().runs,
            runs,
            "one that changes a map is asked in each turn"
        );
    }
    let mut net = Net::programmed(3, Looks::Header, &result(TO + 1));
    for (pause, runs) in [(0, 1), (0, 1), (99, 1), (1, 2)] {
        net.now = Now::from_ms(net.now.as_ms() + pause);
        net.send_all(&frames(1));
        assert_eq!(net.program().counts().runs, runs, "a verdict is kept for less than 100 ms");
    }
}

#[test]
fn headers_that_take_turns_are_asked_about_once_each() {
    let mut net = Net::programmed(4, Looks::Header, &by_byte(5));
    let mixed = |from: u8| -> Vec<_> {
        (0..12).map(|fill| frame(mac(1 + fill % 3), mac(from), 60, fill)).collect()
    };
    let got = [0, 4, 4, 4];
    assert_eq!((net.send_all(&mixed(0)), net.program().counts().runs), (got.to_vec(), 3));
    for (pause, runs) in [(99, 3), (1, 6), (0, 6)] {
        net.now = Now::from_ms(net.now.as_ms() + pause);
        assert_eq!(net.send_all(&mixed(0)), got);
        assert_eq!(net.program().counts().runs, runs, "a verdict is kept for less than 100 ms");
    }
    net.set_counter(1);
    assert_eq!(net.send_all(&mixed(0)), got);
    assert_eq!(net.program().counts().runs, 9, "a change of a map ends all verdicts");
    net.send(1, &mixed(9));
    net.turn(1);
    assert_eq!(net.program().counts().runs, 12, "a verdict is for frames of one port");
    (0..4).for_each(|port| drop(net.received(port)));
    net.load(Looks::Header, &result(TO + 2));
    assert_eq!(net.send_all(&mixed(0)), [0, 0, 12, 0], "another program has other verdicts");
}

#[test]
fn what_a_program_remembers_of_a_header_counts_for_its_next_frames() {
    // To port 1 while the map has 0, and then to port 2.
    let go_on = [
        insn(0x79, 6, 0, 0, 0),
        insn(0x7a, 0, 0, 0, 1),
        insn(0xbf, 0, 6, 0, 0),
        insn(0x07, 0, 0, 0, TO + 1),
        EXIT,
    ];
    let code = [&LOOK_UP[..], &go_on].concat();
    let mut net = Net::programmed(3, Looks::Header, &code);
    assert_eq!(net.send_all(&frames(3)), [0, 3, 0]);
    assert_eq!(net.send_all(&frames(3)), [0, 0, 3]);
}

#[test]
fn a_turn_ends_when_its_program_has_taken_its_time() {
    // Each frame takes all steps that it may, and a batch of 16 a quarter of a turn's.
    let mut net = Net::programmed(0, Looks::Packet, &[insn(0x05, 0, 0, -1, 0)]);
    let mut rings = net.add_with_rings(8);
    for tx in &mut rings {
        assert!(tx.refresh() >= u32::from(BATCH));
        for (slot, fill) in (0..u32::from(BATCH)).zip(0u8..) {
            tx.frame(slot, 60).copy_from_slice(&frame(mac(1), mac(0), 60, fill));
            tx.set(slot, 60, 0);
        }
        let _ = tx.submit(BATCH.into());
    }
    for turn in 1..=2 {
        net.turn(0);
        assert_eq!(net.program().counts().steps, turn * 4 * u64::from(BATCH) * 4096);
    }
    assert_eq!(net.drops(0, DropReason::ProgramFault), 8 * u64::from(BATCH), "all in two turns");
}

#[test]
fn a_change_of_a_map_counts_from_the_next_frame_on() {
    let to = |port: i32| u64::try_from(TO + port).expect("a port");
    let mut net = Net::programmed(4, Looks::Header, &ask_map());
    for port in [1, 2, 3] {
        net.set_counter(to(port));
        let got = net.send_all(&frames(2));
        assert_eq!(got.iter().position(|&count| count == 2), usize::try_from(port).ok());
    }
}

#[test]
fn a_program_is_replaced_between_two_frames_and_keeps_its_maps() {
    let count = |port| count_and(TO + port);
    let mut net = Net::programmed(3, Looks::Header, &count(1));
    let mut got = [0; 3];
    for round in 0..20 {
        let port = 1 + round % 2;
        net.load(Looks::Header, &count(port));
        net.send_all(&frames(5)).iter().zip(&mut got).for_each(|(more, sum)| *sum += more);
    }
    assert_eq!(got, [0, 50, 50]);
    assert_eq!(net.counter(), 20);
    assert_eq!(net.balance(), (100, 100));
}

#[test]
fn a_program_that_looks_into_packets_tells_equal_headers_apart() {
    let mut net = Net::programmed(4, Looks::Packet, &by_byte(40));
    let ports = [1u8, 1, 3, 2, 2, 1, 3];
    let sent: Vec<Vec<u8>> = ports.iter().map(|&port| frame(mac(9), mac(0), 60, port)).collect();
    net.send(0, &sent);
    net.turn(0);
    for port in 1..4u8 {
        let expected: Vec<_> = sent.iter().filter(|frame| frame[40] == port).cloned().collect();
        assert_eq!(net.received(port.into()), expected);
    }
    assert_eq!(net.program().counts().runs, 5, "once for equal packets that follow each other");
    // A program sees as much of a short frame as there is.
    assert_eq!(net.send_all(&[frame(mac(9), mac(0), 30, 2)]), [0; 4]);
    assert_eq!(net.drops(0, DropReason::SamePort), 1, "zeros: port 0");
}

#[test]
fn the_source_of_a_frame_is_learned_unless_the_program_drops_it() {
    let mut net = Net::programmed(3, Looks::Header, &result(TO + 1));
    net.send_all(&frames(1));
    assert_eq!(net.switch.bridge().fdb().count(), 1);
    net.load(Looks::Header, &result(0));
    net.send_all(&[frame(mac(1), mac(7), 60, 0)]);
    assert_eq!(net.switch.bridge().fdb().count(), 1);
    net.load(Looks::Header, &result(LEARNING));
    net.send(1, &[frame(mac(0), mac(1), 60, 0)]);
    net.turn(1);
    assert_eq!([net.received(0).len(), net.received(2).len()], [1, 0], "it goes back");
}

#[test]
fn a_program_does_not_pass_reserved_groups_or_isolation() {
    let mut net = Net::programmed(0, Looks::Header, &result(TO + 1));
    (0..2).for_each(|_| net.add(PortConfig { isolated: true, ..Default::default() }));
    assert_eq!(net.send_all(&frames(1)), [0, 0]);
    net.send_all(&[frame([1, 0x80, 0xc2, 0, 0, 0], mac(0), 60, 0)]);
    let drops = [DropReason::Isolated, DropReason::ReservedGroup].map(|it| net.drops(0, it));
    assert_eq!(drops, [1, 1]);
}

#[test]
fn storm_limits_hold_for_sets_and_not_for_one_port() {
    let config = || {
        let mut config = PortConfig::default();
        config.security.flood_limits = [Some(4), None, Some(2)];
        config
    };
    for (ports, got) in [(&[1, 2][..], [2, 9, 4]), (&[1], [9; 3])] {
        let mut net = Net::programmed(0, Looks::Header, &to_set(ports));
        net.add(config());
        (1..3).for_each(|_| net.add(PortConfig::default()));
        for (dst, got) in [ALL, [1, 0, 0x5e, 0, 0, 5], mac(1)].into_iter().zip(got) {
            let sent: Vec<_> = (0..9).map(|fill| frame(dst, mac(0), 60, fill)).collect();
            assert_eq!(net.send_all(&sent)[1], got, "{ports:?}, {dst:?}");
        }
        let reasons = [DropReason::StormBroadcast, DropReason::StormUnicast];
        let lost = reasons.map(|reason| usize::try_from(net.drops(0, reason)).expect("few"));
        assert_eq!(lost, [9 - got[0], 9 - got[2]]);
        let steps = net.switch.trace(id(0), &frame(ALL, mac(0), 60, 0), 60, net.now);
        let is_limited = steps.last() == Some(&TraceStep::Drop(id(0), DropReason::StormBroadcast));
        assert_eq!(is_limited, ports.len() > 1, "{steps:?}");
    }
}

#[test]
fn more_sets_than_are_known_at_once_are_sent_to_all_the_same() {
    // Two of sixteen ports, by a byte of the packet.
    let code: Vec<Insn> = [
        insn(0x71, 6, 1, 16 + 20, 0),
        insn(0xbf, 1, 6, 0, 0),
        insn(0x57, 1, 0, 0, 15),
        insn(0x85, 0, 0, 0, 1002),
        insn(0x77, 6, 0, 0, 4),
        insn(0xbf, 1, 6, 0, 0),
        insn(0x85, 0, 0, 0, 1002),
    ]
    .into_iter()
    .chain(result(3))
    .collect();
    let mut net = Net::programmed(16, Looks::Packet, &code);
    for fill in (1..=255u8).chain(1..=255) {
        let mut expected = [0; 16];
        [fill & 15, fill >> 4].iter().for_each(|&port| expected[usize::from(port)] = 1);
        expected[0] = 0;
        assert_eq!(net.send_all(&[frame(mac(1), mac(0), 60, fill)]), expected, "{fill}");
    }
}

#[test]
fn a_trace_foretells_what_a_program_does() {
    let codes: [Vec<Insn>; 6] = [
        result(LEARNING).to_vec(),
        result(2).to_vec(),
        to_set(&[1, 2, 5]),
        by_byte(5).to_vec(),
        count_and(TO + 1),
        vec![insn(0x79, 0, 0, 0, 0), EXIT],
    ];
    let mut ends = std::collections::BTreeSet::new();
    for (seed, code) in codes.iter().enumerate() {
        for looks in [Looks::Header, Looks::Packet] {
            let mut random = Random(u64::try_from(seed).expect("small") + 1);
            let mut net = Net::programmed(6, looks, code);
            for _ in 0..100 {
                let src = random.pick(&[0, 1, 2, 3]);
                let (from, to) = (random.pick(&[0, 1, 2, 3]), random.pick(&[0, 1, 2, 3, 4, 9]));
                let bytes = frame(mac(to), mac(from), 60, 0);
                let runs = net.program().counts().runs;
                let steps = net.check(src, &bytes, &format!("{code:?}"));
                assert_eq!(net.program().counts().runs, runs + 1, "a trace asks a copy");
                assert!(steps.contains(&TraceStep::Program), "{steps:?}");
                net.now = Now::from_ms(net.now.as_ms() + 100);
                ends.insert(match steps.last() {
                    Some(TraceStep::Drop(_, reason)) => reason.name(),
                    _ => "sent",
                });
            }
        }
    }
    assert!(
        ["sent", "program_fault", "same_port"].iter().all(|end| ends.contains(end)),
        "{ends:?}"
    );
}

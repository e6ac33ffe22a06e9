//! The forwarding database, case by case, and against a model.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const AGEING_MS: u64 = 1000;

fn fdb() -> Fdb {
    Fdb::new(1024, AGEING_MS, 42)
}

fn port(index: usize) -> PortId {
    PortId::new(index).unwrap()
}

fn vlan(number: u16) -> VlanId {
    VlanId::new(number).unwrap()
}

fn mac(number: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, number])
}

fn at(ms: u64) -> Now {
    Now::from_ms(ms)
}

fn learn(fdb: &mut Fdb, number: u8, on: usize, ms: u64) -> Learned {
    fdb.learn(VlanId::DEFAULT, mac(number), port(on), at(ms))
}

fn lookup(fdb: &Fdb, number: u8, ms: u64) -> Option<usize> {
    fdb.lookup(VlanId::DEFAULT, mac(number), at(ms)).map(PortId::index)
}

fn slots(fdb: &Fdb) -> usize {
    fdb.entries.with(|entries| entries.buckets().slots())
}

fn sweep(fdb: &Fdb) -> usize {
    fdb.entries.with(|entries| entries.sweep)
}

#[test]
fn test_learned_address_is_found_in_its_vlan_only() {
    let mut fdb = fdb();
    assert_eq!(learn(&mut fdb, 1, 3, 0), Learned::New);
    assert_eq!(lookup(&fdb, 1, 0), Some(3));
    assert_eq!(fdb.lookup(vlan(2), mac(1), at(0)), None);
}

#[test]
fn test_changes_are_kept_from_the_first_look_to_the_last_and_counted_beyond_a_limit() {
    let mut fdb = fdb();
    learn(&mut fdb, 1, 3, 0);
    assert_eq!(
        fdb.take_changes(Some(FdbChanges::with_room())),
        None,
        "what was there is no change"
    );
    learn(&mut fdb, 1, 3, 10);
    learn(&mut fdb, 1, 4, 20);
    learn(&mut fdb, 2, 4, 20);
    fdb.add_static(VlanId::DEFAULT, mac(2), port(4)).unwrap();
    fdb.age(at(AGEING_MS + 20), usize::MAX);
    fdb.remove(VlanId::DEFAULT, mac(2));
    let seen = fdb.take_changes(Some(FdbChanges::with_room())).expect("kept").changes;
    let seen: Vec<_> = seen
        .iter()
        .map(|it| {
            let [from, to] = [it.from, it.to].map(|port| port.map(PortId::index));
            (it.mac.octets()[5], from, to, it.is_static)
        })
        .collect();
    let expected = [
        (1, Some(3), Some(4), false),
        (2, None, Some(4), false),
        (2, Some(4), Some(4), true),
        (1, Some(4), None, false),
        (2, Some(4), None, true),
    ];
    assert_eq!(seen, expected);
    for number in 0..300u64 {
        let mac = MacAddr::from_u64(0x0200_0000_0000 + number);
        fdb.learn(VlanId::DEFAULT, mac, port(1), at(2000));
    }
    let changes = fdb.take_changes(None).expect("kept");
    assert_eq!((changes.changes.len(), changes.lost), (256, 44));
    learn(&mut fdb, 1, 3, 2000);
    assert_eq!(fdb.take_changes(None), None, "the listener is gone");
}

#[test]
fn test_an_address_that_makes_room_for_another_is_a_change() {
    let mut fdb = Fdb::new(1, AGEING_MS, 42);
    fdb.take_changes(Some(FdbChanges::with_room()));
    learn(&mut fdb, 1, 3, 0);
    learn(&mut fdb, 2, 3, 1);
    let seen = fdb.take_changes(Some(FdbChanges::with_room())).expect("kept").changes;
    let seen: Vec<_> = seen.iter().map(|it| (it.mac, it.to.is_some())).collect();
    assert_eq!(seen, [(mac(1), true), (mac(1), false), (mac(2), true)]);
}

#[test]
fn test_entry_expires_exactly_when_the_ageing_time_has_passed() {
    let mut fdb = fdb();
    learn(&mut fdb, 1, 3, 500);
    assert_eq!(lookup(&fdb, 1, 1499), Some(3));
    assert_eq!(lookup(&fdb, 1, 1500), None);
    assert_eq!(lookup(&fdb, 1, 100), Some(3), "a clock that steps back ages nothing");
}

#[test]
fn test_refresh_prolongs_life_and_keeps_the_generation() {
    let mut fdb = fdb();
    learn(&mut fdb, 1, 3, 0);
    let generation = fdb.generation();
    assert_eq!(learn(&mut fdb, 1, 3, 999), Learned::Refreshed);
    assert_eq!(fdb.generation(), generation);
    assert_eq!(lookup(&fdb, 1, 1998), Some(3));
}

#[test]
fn test_no_ageing_time_means_for_ever() {
    let mut fdb = Fdb::new(1024, 0, 42);
    learn(&mut fdb, 1, 3, 0);
    assert_eq!(lookup(&fdb, 1, u64::MAX >> 13), Some(3));
    assert_eq!(fdb.age(at(u64::MAX >> 13), usize::MAX), 0);
}

#[test]
fn test_moved_address_is_counted_and_changes_the_generation() {
    let mut fdb = fdb();
    learn(&mut fdb, 1, 3, 0);
    let generation = fdb.generation();
    assert_eq!(learn(&mut fdb, 1, 4, 1), Learned::Moved { from: port(3) });
    assert_ne!(fdb.generation(), generation);
    assert_eq!(lookup(&fdb, 1, 1), Some(4));
    assert_eq!((fdb.learned_on(port(3)), fdb.learned_on(port(4))), (0, 1));
    assert_eq!(fdb.stats().moved, 1);
}

#[test]
fn test_address_back_after_expiry_is_new_and_did_not_move() {
    let mut fdb = fdb();
    learn(&mut fdb, 1, 3, 0);
    let generation = fdb.generation();
    assert_eq!(learn(&mut fdb, 1, 4, 1000), Learned::New);
    assert_eq!(learn(&mut fdb, 1, 4, 2000), Learned::New);
    assert_ne!(fdb.generation(), generation);
    let stats = FdbStats { learned: 3, aged: 2, ..FdbStats::default() };
    assert_eq!((fdb.stats(), fdb.count()), (stats, 1));
}

#[test]
fn test_static_entry_neither_moves_nor_ages() {
    let mut fdb = fdb();
    fdb.add_static(VlanId::DEFAULT, mac(1), port(3)).unwrap();
    assert_eq!(learn(&mut fdb, 1, 4, 0), Learned::Static);
    assert_eq!(fdb.age(at(1 << 40), usize::MAX), 0);
    assert_eq!(fdb.flush(Flush::All), 0);
    assert_eq!(lookup(&fdb, 1, 1 << 40), Some(3));
}

#[test]
fn test_external_entry_does_not_age_but_follows_its_station() {
    let mut fdb = fdb();
    let add = |fdb: &mut Fdb, number, on| fdb.add_external(VlanId::DEFAULT, mac(number), port(on));
    assert_eq!(add(&mut fdb, 1, 3), Learned::New);
    assert_eq!(learn(&mut fdb, 1, 3, 5), Learned::Refreshed, "it stays external");
    assert_eq!((fdb.age(at(1 << 40), usize::MAX), fdb.flush(Flush::All)), (0, 0));
    assert_eq!(lookup(&fdb, 1, 1 << 40), Some(3));
    assert!(fdb.find(VlanId::DEFAULT, mac(1), at(9)).unwrap().is_external);
    assert_eq!(learn(&mut fdb, 1, 4, 10), Learned::Moved { from: port(3) });
    assert_eq!(lookup(&fdb, 1, 10 + AGEING_MS), None, "it is learned now");
    learn(&mut fdb, 1, 4, 5000);
    assert_eq!(add(&mut fdb, 1, 3), Learned::Moved { from: port(4) });
    assert_eq!((fdb.learned_on(port(3)), fdb.learned_on(port(4))), (1, 0));
    fdb.remove_external(VlanId::DEFAULT, mac(1), port(4));
    assert_eq!(lookup(&fdb, 1, 0), Some(3), "it is on another port");
    fdb.remove_external(VlanId::DEFAULT, mac(1), port(3));
    assert_eq!((lookup(&fdb, 1, 0), fdb.count()), (None, 0));
}

#[test]
fn test_external_entries_yield_to_static_ones_and_to_the_limit_of_the_port() {
    let mut fdb = fdb();
    fdb.add_static(VlanId::DEFAULT, mac(1), port(4)).unwrap();
    fdb.set_limit(port(3), Some(1), None);
    let added = [1, 2, 3].map(|number| fdb.add_external(VlanId::DEFAULT, mac(number), port(3)));
    assert_eq!(added, [Learned::Static, Learned::New, Learned::PortLimit]);
    fdb.remove_external(VlanId::DEFAULT, mac(1), port(4));
    assert_eq!(lookup(&fdb, 1, 0), Some(4));
    learn(&mut fdb, 5, 4, 0);
    assert_eq!(fdb.add_external(VlanId::DEFAULT, mac(5), port(3)), Learned::PortLimit);
    assert_eq!(lookup(&fdb, 5, 0), None, "it is not there any more");
}

#[test]
fn test_entry_turns_static_and_dynamic_again() {
    let mut fdb = fdb();
    learn(&mut fdb, 1, 3, 0);
    fdb.add_static(VlanId::DEFAULT, mac(1), port(4)).unwrap();
    assert_eq!((fdb.learned_on(port(3)), lookup(&fdb, 1, 0)), (0, Some(4)));
    assert!(fdb.remove(VlanId::DEFAULT, mac(1)));
    assert!(!fdb.remove(VlanId::DEFAULT, mac(1)));
    assert_eq!(learn(&mut fdb, 1, 3, 0), Learned::New);
    assert_eq!((fdb.learned_on(port(3)), fdb.count()), (1, 1));
}

#[test]
fn test_port_at_its_limit_learns_nothing_more() {
    let mut fdb = fdb();
    fdb.set_limit(port(3), Some(1), None);
    assert_eq!(learn(&mut fdb, 1, 3, 0), Learned::New);
    assert_eq!(learn(&mut fdb, 2, 3, 0), Learned::PortLimit);
    assert_eq!(learn(&mut fdb, 1, 3, 1), Learned::Refreshed);
    learn(&mut fdb, 4, 4, 1);
    assert_eq!(learn(&mut fdb, 4, 3, 1), Learned::PortLimit, "a move counts too");
    assert_eq!(lookup(&fdb, 4, 1), Some(4));
    assert_eq!(learn(&mut fdb, 1, 4, 1), Learned::Moved { from: port(3) });
    assert_eq!(learn(&mut fdb, 2, 3, 1), Learned::New);
    fdb.set_limit(port(3), None, None);
    assert_eq!(learn(&mut fdb, 5, 3, 1), Learned::New);
    assert_eq!(fdb.stats().refused_limit, 2);
}

#[test]
fn test_limit_of_zero_learns_nothing() {
    let mut fdb = fdb();
    fdb.set_limit(port(3), Some(0), None);
    assert_eq!(learn(&mut fdb, 1, 3, 0), Learned::PortLimit);
}

#[test]
fn test_sweep_keeps_its_budget_and_gets_round() {
    let mut fdb = fdb();
    (0..20).for_each(|number| assert_eq!(learn(&mut fdb, number, 3, 0), Learned::New));
    let slots = slots(&fdb);
    let calls = slots.div_ceil(10);
    let removed: usize = (0..calls).map(|_| fdb.age(at(1000), 10)).sum();
    assert_eq!((removed, fdb.count(), fdb.learned_on(port(3))), (20, 0, 0));
    assert_eq!(sweep(&fdb), 0);
    assert_eq!(fdb.stats().aged, 20);
}

#[test]
fn test_sweep_without_a_budget_ends_at_the_last_slot() {
    let mut fdb = fdb();
    fdb.age(at(0), 10);
    assert_eq!(sweep(&fdb), 10);
    fdb.age(at(0), usize::MAX);
    assert_eq!(sweep(&fdb), 0);
}

#[test]
fn test_what_one_worker_learns_another_finds_also_after_the_table_has_moved() {
    let mut fdb = Fdb::new(4096, AGEING_MS, 42).into_common();
    let mut other = fdb.handle();
    for number in 0..4096_u16 {
        let [a, b] = number.to_be_bytes();
        let mac = MacAddr::new([2, 0, 0, 0, a, b]);
        assert_eq!(fdb.learn(VlanId::DEFAULT, mac, port(1), at(0)), Learned::New);
        assert_eq!(other.lookup(VlanId::DEFAULT, mac, at(0)), Some(port(1)));
    }
    assert!(other.buckets.is_left());
    assert_eq!(learn(&mut other, 7, 1, 1), Learned::Refreshed);
    assert!(!other.buckets.is_left(), "it has looked where the entries are");
    assert_eq!((other.count(), other.learned_on(port(1))), (4096, 4096));
    assert_eq!(other.flush(Flush::All), 4096);
    assert_eq!(lookup(&fdb, 7, 1), None);
}

/// Each address belongs to one port, whatever else workers do at the same time.
#[test]
fn test_no_worker_finds_an_address_on_the_port_of_another() {
    let fdb = Fdb::new(64, AGEING_MS, 42).into_common();
    let address = |number: usize| mac(u8::try_from(number).unwrap());
    let churn = |mut fdb: Fdb, first: usize| {
        for round in 0..20_000 {
            let number = first + round % 100;
            fdb.learn(VlanId::DEFAULT, address(number), port(number), at(0));
            if round % 3 == 0 {
                fdb.remove(VlanId::DEFAULT, address(first + round % 77));
            }
            if round % 4096 == 0 {
                fdb.flush(Flush::All);
                fdb.age(at(0), usize::MAX);
            }
        }
    };
    std::thread::scope(|scope| {
        let churns = [0, 100].map(|first| (fdb.handle(), first));
        let churns = churns.map(|(fdb, first)| scope.spawn(move || churn(fdb, first)));
        let mut found = 0;
        while !churns.iter().all(std::thread::ScopedJoinHandle::is_finished) || found == 0 {
            for number in 0..200 {
                let on = fdb.lookup(VlanId::DEFAULT, address(number), at(0));
                assert!(on.is_none_or(|on| on == port(number)), "{number} on {on:?}");
                found += u32::from(on.is_some());
            }
        }
    });
}

#[test]
fn test_flushes_take_what_they_name() {
    let mut fdb = fdb();
    for number in 0..8 {
        fdb.learn(
            vlan(1 + u16::from(number % 2)),
            mac(number),
            port(usize::from(number / 4)),
            at(0),
        );
    }
    fdb.add_static(vlan(1), mac(100), port(0)).unwrap();
    let generation = fdb.generation();
    assert_eq!(fdb.flush(Flush::Port(port(9))), 0);
    assert_eq!(fdb.generation(), generation, "nothing went, nothing changed");
    assert_eq!(fdb.flush(Flush::Vlans(&[vlan(2)].into_iter().collect())), 4);
    assert_eq!(fdb.flush(Flush::Port(port(0))), 2);
    assert_eq!(fdb.flush_port_except(port(1), |vlan| vlan == VlanId::DEFAULT), 0);
    assert_eq!(fdb.flush_port_except(port(1), |_| false), 2);
    assert_eq!(fdb.count(), 1);
    assert_ne!(fdb.generation(), generation);
}

#[test]
fn test_removed_port_takes_its_static_entries_and_limit_along() {
    let mut fdb = fdb();
    fdb.set_limit(port(3), Some(1), None);
    learn(&mut fdb, 1, 3, 0);
    learn(&mut fdb, 2, 4, 0);
    fdb.add_static(VlanId::DEFAULT, mac(9), port(3)).unwrap();
    assert_eq!(fdb.remove_port(port(3)), 2);
    assert_eq!(fdb.remove_port(port(77)), 0);
    assert_eq!((lookup(&fdb, 1, 0), lookup(&fdb, 9, 0), lookup(&fdb, 2, 0)), (None, None, Some(4)));
    assert_eq!(learn(&mut fdb, 5, 3, 0), Learned::New);
    assert_eq!(learn(&mut fdb, 6, 3, 0), Learned::New);
}

#[test]
fn test_flood_of_addresses_evicts_the_silent_ones_and_keeps_the_count() {
    let mut fdb = Fdb::new(64, 0, 42);
    for number in 0..10_000_u16 {
        let [high, low] = number.to_be_bytes();
        let source = MacAddr::new([2, 0, 0, 1, high, low]);
        assert_eq!(fdb.learn(VlanId::DEFAULT, source, port(1), at(number.into())), Learned::New);
        let talker = learn(&mut fdb, 0xff, 2, number.into());
        assert!(number == 0 || talker == Learned::Refreshed, "a talking station was pushed out");
    }
    let stats = fdb.stats();
    assert_eq!(stats.learned - stats.evicted, u64::try_from(fdb.count()).unwrap());
    assert_eq!(usize::try_from(fdb.learned_on(port(1))).unwrap() + 1, fdb.count());
}

#[test]
fn test_smaller_capacity_begins_with_what_is_static() {
    let mut fdb = fdb();
    fdb.add_static(VlanId::DEFAULT, mac(100), port(3)).unwrap();
    (0..20).for_each(|number| assert_eq!(learn(&mut fdb, number, 3, 0), Learned::New));
    fdb.set_capacity(21);
    assert_eq!(fdb.count(), 21);
    fdb.set_capacity(20);
    assert_eq!((fdb.count(), lookup(&fdb, 100, 0)), (1, Some(3)));
    fdb.set_capacity(1);
    assert_eq!(learn(&mut fdb, 1, 3, 0), Learned::Full);
    assert_eq!(fdb.add_static(VlanId::DEFAULT, mac(101), port(3)), Err(FdbFull));
    assert_eq!(fdb.count(), 1);
}

#[test]
fn test_memory_comes_back_with_a_sweep_and_with_the_port() {
    for leave in [false, true] {
        let mut fdb = Fdb::new(65_536, AGEING_MS, 42);
        for number in 0..30_000_u32 {
            let [_, a, b, c] = number.to_be_bytes();
            fdb.learn(VlanId::DEFAULT, MacAddr::new([2, 0, 0, a, b, c]), port(1), at(0));
        }
        assert!(slots(&fdb) >= 60_000);
        if leave {
            fdb.remove_port(port(1));
        } else {
            while fdb.count() > 0 {
                fdb.age(at(AGEING_MS), 1000);
            }
        }
        assert!(slots(&fdb) <= 64, "{}", slots(&fdb));
    }
}

#[test]
fn test_pages_join_to_the_whole_list() {
    let mut fdb = fdb();
    (0..100).for_each(|number| assert_eq!(learn(&mut fdb, number, 3, 0), Learned::New));
    fdb.add_static(VlanId::DEFAULT, mac(200), port(4)).unwrap();
    let (mut cursor, mut seen) = (0, Vec::new());
    loop {
        let page: Vec<_> = fdb.entries(cursor, at(10)).take(7).collect();
        let Some((next, _)) = page.last() else { break };
        cursor = *next;
        seen.extend(page.into_iter().map(|(_, entry)| entry));
    }
    seen.sort_by_key(|entry| entry.mac);
    assert_eq!(seen.len(), 101);
    let first = FdbEntry {
        vlan: vlan(1),
        mac: mac(0),
        port: port(3),
        age_ms: Some(10),
        is_external: false,
    };
    assert_eq!((seen[0], seen[100].age_ms), (first, None));
    assert_eq!(fdb.entries(0, at(1000)).count(), 1, "expired entries are not listed");
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u16, u8, usize),
    Static(u16, u8, usize),
    Remove(u16, u8),
    RemovePort(usize),
    FlushPort(usize),
    FlushVlan(u16),
    Wait(u64),
    Sweep(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (vlan, mac, port) = (1..4_u16, 0..40_u8, 0..6_usize);
    prop_oneof![
        12 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| Step::Learn(v, m, p)),
        1 => (vlan.clone(), mac.clone(), port.clone()).prop_map(|(v, m, p)| Step::Static(v, m, p)),
        2 => (vlan.clone(), mac).prop_map(|(v, m)| Step::Remove(v, m)),
        1 => port.clone().prop_map(Step::RemovePort),
        1 => port.prop_map(Step::FlushPort),
        1 => vlan.prop_map(Step::FlushVlan),
        4 => (0..600_u64).prop_map(Step::Wait),
        2 => (1..40_usize).prop_map(Step::Sweep),
    ]
}

/// A model of the database, as simple as can be.
#[derive(Default)]
struct Model(HashMap<(u16, u8), (usize, Option<u64>)>);

impl Model {
    fn apply(&mut self, step: &Step, now: u64) {
        match *step {
            Step::Learn(v, m, p) => match self.0.get(&(v, m)) {
                Some((_, None)) => {}
                _ => drop(self.0.insert((v, m), (p, Some(now)))),
            },
            Step::Static(v, m, p) => drop(self.0.insert((v, m), (p, None))),
            Step::Remove(v, m) => drop(self.0.remove(&(v, m))),
            Step::RemovePort(p) => self.0.retain(|_, (port, _)| *port != p),
            Step::FlushPort(p) => self.0.retain(|_, (port, seen)| *port != p || seen.is_none()),
            Step::FlushVlan(v) => self.0.retain(|key, (_, seen)| key.0 != v || seen.is_none()),
            Step::Wait(_) | Step::Sweep(_) => {}
        }
    }

    fn lookup(&self, key: (u16, u8), now: u64) -> Option<usize> {
        let (port, seen) = *self.0.get(&key)?;
        seen.is_none_or(|seen| now - seen < AGEING_MS).then_some(port)
    }
}

fn apply(fdb: &mut Fdb, step: &Step, now: Now) {
    match *step {
        Step::Learn(v, m, p) => drop(fdb.learn(vlan(v), mac(m), port(p), now)),
        Step::Static(v, m, p) => fdb.add_static(vlan(v), mac(m), port(p)).unwrap(),
        Step::Remove(v, m) => drop(fdb.remove(vlan(v), mac(m))),
        Step::RemovePort(p) => drop(fdb.remove_port(port(p))),
        Step::FlushPort(p) => drop(fdb.flush(Flush::Port(port(p)))),
        Step::FlushVlan(v) => drop(fdb.flush(Flush::Vlans(&[vlan(v)].into_iter().collect()))),
        Step::Sweep(budget) => drop(fdb.age(now, budget)),
        Step::Wait(_) => {}
    }
}

fn every_key() -> impl Iterator<Item = (u16, u8)> {
    (1..4).flat_map(|v| (0..40).map(move |m| (v, m)))
}

proptest! {
    #[test]
    fn prop_fdb_answers_as_the_model(steps in prop::collection::vec(step(), 1..200), seed: u64) {
        let (mut fdb, mut model, mut now) = (Fdb::new(1024, AGEING_MS, seed), Model::default(), 0);
        for step in &steps {
            let answers = |fdb: &Fdb, now| {
                every_key().map(|(v, m)| fdb.lookup(vlan(v), mac(m), at(now))).collect::<Vec<_>>()
            };
            let (before, generation) = (answers(&fdb, now), fdb.generation());
            if let Step::Wait(ms) = step { now += ms; }
            let at_rest = matches!(step, Step::Wait(_));
            apply(&mut fdb, step, at(now));
            model.apply(step, now);
            for (key, answer) in every_key().zip(answers(&fdb, now)) {
                prop_assert_eq!(answer.map(PortId::index), model.lookup(key, now));
            }
            if !at_rest && answers(&fdb, now) != before {
                prop_assert_ne!(fdb.generation(), generation);
            }
            let by_port: u32 = (0..6).map(|p| fdb.learned_on(port(p))).sum();
            let fixed = model.0.values().filter(|(_, seen)| seen.is_none()).count();
            prop_assert_eq!(usize::try_from(by_port).unwrap() + fixed, fdb.count());
        }
    }
}

#[test]
fn a_user_with_many_ports_learns_a_quarter_of_the_table() {
    let mut fdb = Fdb::new(400, AGEING_MS, 42);
    for number in 0..=20 {
        let user = if number == 0 { 7 } else { 1000 };
        fdb.set_limit(port(number), None, Some(user));
    }
    let address = |number: u64| MacAddr::from_u64(0x0200_0000_0000 + number);
    for number in 0..300 {
        let on = port(1 + usize::try_from(number % 20).expect("few"));
        let learned = fdb.learn(VlanId::DEFAULT, address(number), on, at(0));
        let expected = if number < 100 { Learned::New } else { Learned::PortLimit };
        assert_eq!(learned, expected, "{number}");
    }
    let other = fdb.learn(VlanId::DEFAULT, address(1000), port(0), at(0));
    assert_eq!(other, Learned::New, "another user's");
    let moved = fdb.learn(VlanId::DEFAULT, address(21), port(5), at(0));
    assert_eq!(moved, Learned::Moved { from: port(2) }, "the user has no more by that");
    // What goes makes room.
    fdb.remove(VlanId::DEFAULT, address(0));
    assert_eq!(fdb.learn(VlanId::DEFAULT, address(500), port(1), at(0)), Learned::New);
    fdb.remove_port(port(2));
    assert_eq!(fdb.learn(VlanId::DEFAULT, address(501), port(1), at(0)), Learned::New);
    fdb.set_limit(port(3), None, None);
    fdb.flush(Flush::All);
    assert_eq!(fdb.learn(VlanId::DEFAULT, address(502), port(3), at(0)), Learned::New);
}

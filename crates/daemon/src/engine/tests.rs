//! Places in switches, and pages of their forwarding databases.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use packet::{MacAddr, VlanId};
use port::shm::{PortMemory, region_layout};
use port::sys::{ClosedElsewhere, Closer, Ringer, SlowCalls, prepare_kicks};
use protocol::name::PortName;
use ring::Region;
use ring::krings::Positions;
use ring::layout::{FIRST_BLOCK, PortLayout};
use ring::user::TxRing;
use switch::SwitchConfig;

use super::*;
use crate::control::datapath::fdb::Fdb;
use crate::control::datapath::hand_over::HandOver;
use crate::control::datapath::ports::Ports;
use crate::control::datapath::switches::Switches;
use crate::model::handed::{Copies, Inherited};
use crate::model::specs::RingSpec;

fn workers() -> Workers {
    let mut config = Config::default();
    config.workers.count = 1;
    let mut workers = Workers::start(&config).expect("a thread");
    workers.add_switch(SwitchKey(0), SwitchConfig::default(), None).expect("a worker");
    workers
}

fn add_null(workers: &mut Workers, key: u32) -> Result<(), DatapathError> {
    workers.add_null(PortKey(key), SwitchKey(0), PortConfig::default())
}

#[test]
fn pages_of_the_forwarding_database_lose_nothing() {
    let mut workers = workers();
    add_null(&mut workers, 7).expect("room");
    for host in 0..600u32 {
        let [_, _, c, d] = host.to_be_bytes();
        let mac = MacAddr::new([2, 0, 0, 0, c, d]);
        workers.fdb_add(PortKey(7), mac, VlanId::DEFAULT).expect("room");
    }
    let (mut seen, mut cursor) = (BTreeSet::new(), Some(0));
    while let Some(from) = cursor {
        let (rows, next) = workers.fdb_page(SwitchKey(0), from, 100);
        assert!(rows.len() <= 100);
        seen.extend(rows.iter().map(|row| row.mac));
        cursor = next;
    }
    assert_eq!(seen.len(), 600);
}

/// Workers with a switch that all of them run, and ports 0 to 5.
fn spread() -> Workers {
    let mut config = Config::default();
    config.workers.count = 3;
    let mut workers = Workers::start(&config).expect("threads");
    let of_all = SwitchConfig { is_spread: true, ..SwitchConfig::default() };
    workers.add_switch(SwitchKey(0), of_all, None).expect("workers");
    (0..6).for_each(|key| add_null(&mut workers, key).expect("room"));
    workers
}

/// Ports of the switch, as each worker knows them, and how many of them are its own.
fn known(workers: &Workers) -> Vec<(usize, usize)> {
    let number = |worker: usize| workers.workers[worker].ports.taken();
    let count = |switch: &mut switch::Switch| {
        (0..10).filter(|at| switch.stats(PortId::new(*at).expect("few")).is_some()).count()
    };
    let all = workers.on_replicas(SwitchKey(0), move |worker, at| count(worker.switch(at)));
    all.into_iter().enumerate().map(|(worker, ports)| (ports, number(worker))).collect()
}

#[test]
fn ports_of_a_switch_of_all_workers_are_spread_and_known_to_each() {
    let mut workers = spread();
    assert_eq!(known(&workers), [(6, 2); 3]);
    for key in [0, 3] {
        workers.detach(PortKey(key), &"vale0:x".parse().expect("a name"));
    }
    assert_eq!(known(&workers).iter().map(|it| it.0).collect::<Vec<_>>(), [4; 3]);
    add_null(&mut workers, 6).expect("room");
    add_null(&mut workers, 7).expect("room");
    assert_eq!(known(&workers), [(6, 2); 3], "new ports go where the fewest are");
    workers.del_switch(SwitchKey(0));
    workers.add_switch(SwitchKey(1), SwitchConfig::default(), None).expect("its place is free");
}

#[test]
fn counters_come_in_the_order_of_the_ports_from_the_workers_that_know_them() {
    let mut workers = spread();
    workers.add_switch(SwitchKey(1), SwitchConfig::default(), None).expect("a worker");
    workers.add_null(PortKey(6), SwitchKey(1), PortConfig::default()).expect("room");
    let counted = workers.counted([5, 99, 6, 0].into_iter().map(PortKey));
    assert_eq!(counted.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, true, true]);
    let names =
        ["vale0:f", "vale0:x", "vale1:g", "vale0:a"].map(|name| name.parse().expect("good"));
    let ports: Vec<_> = [5, 99, 6, 0].into_iter().map(PortKey).zip(&names).collect();
    let shown: Vec<PortName> = workers.stats(&ports).into_iter().map(|row| row.port).collect();
    assert_eq!(shown, names);
}

#[test]
fn settings_and_static_addresses_reach_every_worker() {
    let mut workers = spread();
    let mac = MacAddr::new([2, 0, 0, 0, 0, 1]);
    workers.fdb_add(PortKey(4), mac, VlanId::DEFAULT).expect("room");
    let looks = |worker: &mut Worker, at: usize| {
        let (now, bridge) = (worker.now(), worker.switch(at).bridge());
        let found = bridge.fdb().lookup(VlanId::DEFAULT, MacAddr::new([2, 0, 0, 0, 0, 1]), now);
        (found.map(PortId::index), bridge.config().ageing_ms)
    };
    let age = |ageing_ms| SwitchConfig { ageing_ms, is_spread: true, ..SwitchConfig::default() };
    workers.set_switch(SwitchKey(0), age(7000)).expect("it is there");
    assert_eq!(workers.on_replicas(SwitchKey(0), looks), [(Some(4), 7000); 3]);
    assert!(workers.fdb_del(SwitchKey(0), mac, VlanId::DEFAULT));
    assert_eq!(workers.on_replicas(SwitchKey(0), looks), [(None, 7000); 3]);
}

#[test]
fn a_switch_without_ports_changes_its_workers() {
    let mut workers = workers();
    let of_all = SwitchConfig { is_spread: true, ..SwitchConfig::default() };
    workers.set_switch(SwitchKey(0), of_all).expect("it is there");
    assert!(workers.place(SwitchKey(0)).is_spread);
    add_null(&mut workers, 1).expect("room");
    workers.detach(PortKey(1), &"vale0:x".parse().expect("a name"));
    workers.set_switch(SwitchKey(0), SwitchConfig::default()).expect("it is there");
    assert!(!workers.place(SwitchKey(0)).is_spread);
}

#[test]
fn groups_that_begin_with_an_interface_are_as_the_configuration_says() {
    let text = "[new_group]\nmemory = \"5MiB\"\n[group.nf]\nowner = 7\nmemory = \"3MiB\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).expect("it is right");
    let workers = Workers::start(&config).expect("threads");
    assert_eq!(workers.new_group.bytes, 5 << 20);
    let declared = workers.declared.find(&(7, "nf".to_owned()));
    assert_eq!(declared.map(|group| group.memory), Some(3 << 20));
}

#[test]
fn a_switch_has_4096_ports_and_no_more() {
    let mut workers = workers();
    (0..4096).for_each(|key| add_null(&mut workers, key).expect("room"));
    assert!(matches!(add_null(&mut workers, 4096), Err(DatapathError::Full(_))));
    workers.detach(PortKey(17), &"vale0:x".parse().expect("a name"));
    add_null(&mut workers, 4096).expect("the place of the one that left");
}

/// One worker with a port of a client, and the client's half of it.
struct Attended {
    workers: Workers,
    tx: TxRing,
    /// What the client kicks by, and what wakes it.
    doorbells: [OwnedFd; 2],
}

fn shm_spec() -> ShmSpec {
    let (name, rings) = ("vale0:a".parse().expect("a name"), Config::default().rings);
    let (switch, key) = (SwitchKey(0), PortKey(1));
    ShmSpec { key, name, switch, worker: None, rings, group: None, group_memory: 0 }
}

fn attended() -> Attended {
    let (mut workers, spec) = (workers(), shm_spec());
    workers.reserve_shm(&spec).expect("room")().expect("memory");
    let given = workers.attach_shm(PortKey(1), PortConfig::default()).expect("built");
    // The end of a daemon takes no memory from its clients.
    std::mem::forget(given.lease);
    let RingSpec { counts, extra_bufs, stride } = spec.rings;
    let layout = region_layout(counts, extra_bufs, stride).expect("legal");
    let region = Region::attach(given.region.as_fd(), layout).expect("sealed");
    let tx = TxRing::new(&region, &PortLayout::new(FIRST_BLOCK, counts), 0);
    Attended { workers, tx, doorbells: [given.kick, given.wake] }
}

/// What workers get of a port of others.
fn inherited(
    next: &Workers,
    memory: PortMemory,
    event: OwnedFd,
    wake: OwnedFd,
    at: Positions,
) -> ClosedElsewhere<Inherited> {
    let kick = |ringer: Ringer| {
        let slow = Arc::new(SlowCalls::unreported());
        ringer.kick(event.try_clone().expect("descriptors"), &Closer::in_place(), slow)
    };
    let mut kicks: Vec<_> = next.ringers().into_iter().map(kick).collect();
    prepare_kicks(&mut kicks).expect("an eventfd");
    ClosedElsewhere::new(Inherited { memory, kicks, wake, at }, &Closer::in_place())
}

/// Others take over.
fn replace(mut old: Workers) -> Workers {
    let copies = old.copies_of(PortKey(1)).expect("descriptors").expect("a port of its own");
    let Copies { rings: RingSpec { counts, extra_bufs, stride }, fds } = copies;
    let [region, kicks, wake] = fds;
    let memory = PortMemory::take_over("vale0:a", counts, extra_bufs, stride, region);
    let memory = memory.expect("the same sizes");
    old.halt();
    let (_, at) = old.positions(&[PortKey(1), PortKey(2)]).pop().expect("one of the two");
    let mut next = workers();
    next.wait();
    let inherited = inherited(&next, memory, kicks, wake, at);
    let lease = next.take_over(&shm_spec(), PortConfig::default(), inherited).expect("room");
    next.go_on();
    std::mem::forget(lease);
    next
}

#[test]
fn the_next_workers_go_on_where_the_old_ones_stopped() {
    let Attended { mut workers, mut tx, doorbells } = attended();
    for _ in 0..3 {
        workers = replace(workers);
        tx.refresh();
        (0..5).for_each(|i| tx.frame(i, 64).fill(0xff));
        let _ = tx.submit(5);
        rustix::io::write(&doorbells[0], &1_u64.to_ne_bytes()).expect("room");
        while !tx.is_drained() {
            std::thread::yield_now();
        }
        let stats = workers.stats(&[(PortKey(1), &"vale0:a".parse().expect("a name"))]).remove(0);
        assert_eq!((stats.tx.frames, stats.resyncs), (5, 0));
    }
    let name = "vale0:a".parse().expect("a name");
    workers.detach(PortKey(1), &name);
    drop(workers);
    let mut rings = [0; 8];
    let rung = rustix::io::read(&doorbells[1], &mut rings).expect("a doorbell");
    assert!(rung > 0, "the daemon before may have owed it a wake-up");
    assert_eq!(rustix::io::read(&doorbells[1], &mut rings), Ok(0), "the last copy is closed");
}

#[test]
fn a_port_goes_on_in_the_rings_that_it_has_only() {
    let Attended { workers, .. } = attended();
    let [region, kicks, wake] = workers.copies_of(PortKey(1)).expect("room").expect("one").fds;
    let RingSpec { counts, stride, .. } = Config::default().rings;
    let take = |fd: OwnedFd, stride| PortMemory::take_over("vale0:a", counts, 0, stride, fd);
    let copy = || region.try_clone().expect("descriptors");
    assert!(take(copy(), stride + 64).is_err());
    let memory = take(copy(), stride).expect("as it is");
    let mut at = workers.positions(&[PortKey(1)]).remove(0).1;
    at.rx[0].tail = counts.rx_slots.slots();
    let mut next = self::workers();
    let inherited = inherited(&next, memory, kicks, wake, at);
    let refused = next.take_over(&shm_spec(), PortConfig::default(), inherited);
    assert!(matches!(refused, Err(DatapathError::System(_))));
    assert!(next.ports.is_empty());
}

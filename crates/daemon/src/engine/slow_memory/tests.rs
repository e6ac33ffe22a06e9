//! The judge, the table of ports, and memory without delay. A client that holds its memory up is in
//! `tests/tests/slow_memory.rs`: that takes another process, and luck.

use std::sync::mpsc::Receiver;

use ring::cursor::RingSize;
use ring::layout::RingCounts;
use rustix::process::Pid;
use switch::{Heartbeat, PortConfig, SwitchConfig};

use super::*;
use crate::config::Config;
use crate::control::datapath::ports::Ports;
use crate::control::datapath::switches::Switches;
use crate::control::datapath::workers::WorkerWatch;
use crate::engine::watchdog::ThreadAccount;
use crate::model::keys::SwitchKey;
use crate::model::replies::Lease;
use crate::model::specs::{RingSpec, ShmSpec};

const MS: Duration = Duration::from_millis(1);

fn reading(took: u32, for_core: u32, waits: u64) -> Reading {
    Reading { took: took * MS, for_core: for_core * MS, waits, moved: false }
}

#[test]
fn a_reading_that_waits_for_its_memory_is_slow() {
    assert!(reading(20, 0, 1).is_slow() && reading(500, 10, 3).is_slow());
    assert!(!reading(19, 0, 5).is_slow());
}

#[test]
fn a_thread_that_works_or_has_no_core_blames_no_port() {
    assert!(!reading(300, 0, 0).is_slow());
    assert!(!reading(300, 281, 1).is_slow());
    assert!(!reading(300, 400, 1).is_slow());
}

#[test]
fn memory_that_the_daemon_moves_blames_no_port() {
    assert!(!Reading { moved: true, ..reading(500, 0, 1) }.is_slow());
}

#[test]
fn the_time_without_a_core_is_the_second_number() {
    assert_eq!(for_core(b"12345 59762 17\n"), Duration::from_nanos(59_762));
    for text in [&b""[..], b"1", b"a b c", b"1 \xff 2"] {
        assert_eq!(for_core(text), Duration::ZERO);
    }
}

#[test]
fn a_thread_that_sleeps_waits_however_busy_the_machine_is() {
    let waits = CoreWaits::of_this_thread();
    let before = waits.now();
    std::thread::sleep(30 * MS);
    let reading = Reading::between(before, waits.now(), false);
    assert!(reading.is_slow(), "{reading:?}");
}

/// A worker with two ports, and what keeps their memory.
fn workers() -> (Workers, Vec<Lease>) {
    let mut config = Config::default();
    config.workers.count = 1;
    let mut workers = Workers::start(&config).expect("threads");
    workers.add_switch(SwitchKey(0), SwitchConfig::default(), None).expect("a worker");
    let leases = [(1, "vale0:a"), (2, "vale0:b")].map(|(key, name)| {
        let slots = RingSize::new(64).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let rings = RingSpec { counts, extra_bufs: 0, stride: 2112 };
        let (name, switch) = (name.parse().expect("a name"), SwitchKey(0));
        let key = PortKey(key);
        let spec = ShmSpec { key, name, switch, worker: None, rings, group: None, group_memory: 0 };
        let build = workers.reserve_shm(&spec).expect("room");
        build().expect("memory");
        workers.attach_shm(spec.key, PortConfig::default()).expect("descriptors").lease
    });
    (workers, leases.into())
}

fn suspicion(workers: &Workers, switch: usize) -> Suspicion {
    suspicion_between(workers, switch, [1, 2], rustix::thread::gettid())
}

/// A thread waits between two ports, or for one.
fn suspicion_between(workers: &Workers, at: usize, keys: [u32; 2], thread: Pid) -> Suspicion {
    let [from, to] = keys.map(|key| workers.switch_of(PortKey(key)).expect("a port").1);
    let mut heartbeat = Heartbeat::default();
    heartbeat.enter(at);
    heartbeat.between(from, to);
    let heartbeat = heartbeat.reader();
    Suspicion {
        worker: 0,
        beat: heartbeat.read(),
        heartbeat,
        account: Arc::new(ThreadAccount::of(thread)),
        disk_reads: Usage::of_process().disk_reads,
        bell: workers.watchdog.ringer(),
    }
}

fn reader(workers: &Workers, reports: Sender<WorkerStall>) -> Reader {
    let places = workers.slow_memory.0.clone();
    Reader { places, waits: CoreWaits::of_this_thread(), reports }
}

fn reader_with_reports(workers: &Workers) -> (Reader, Receiver<WorkerStall>) {
    let (reports, received) = channel();
    (reader(workers, reports), received)
}

fn ports(reader: &Reader, suspicion: &Suspicion) -> Vec<PortKey> {
    reader.places_of(suspicion).iter().map(|place| place.port).collect()
}

#[test]
fn memory_is_known_by_the_place_of_its_port_while_the_port_is_there() {
    let (mut workers, _leases) = workers();
    let (reader, _) = reader_with_reports(&workers);
    let [here, elsewhere] = [0, 1].map(|switch| suspicion(&workers, switch));
    assert_eq!(ports(&reader, &here), [PortKey(1), PortKey(2)]);
    assert_eq!(ports(&reader, &elsewhere), []);
    workers.detach(PortKey(1), &"vale0:a".parse().expect("a name"));
    assert_eq!(ports(&reader, &here), [PortKey(2)]);
}

#[test]
fn memory_without_delay_blames_no_port() {
    let (workers, leases) = workers();
    let (reader, reports) = reader_with_reports(&workers);
    let suspicion = suspicion(&workers, 0);
    reader.look_into(&suspicion);
    assert!(reports.try_recv().is_err());
    let places = reader.places_of(&suspicion);
    for place in &places {
        let pages = place.region.upgrade().expect("it is leased").pages();
        let readings = (0..).step_by(PAGES).map_while(|first| reader.read_some(place, first));
        assert_eq!(readings.count(), pages.div_ceil(PAGES));
    }
    drop(leases);
    assert!(places.iter().all(|place| reader.read_some(place, 0).is_none()));
}

#[test]
fn control_hears_of_the_port_whose_memory_is_slow() {
    let (mut workers, _leases) = workers();
    let (reader, here) = (reader(&workers, workers.slow_reports.sender()), suspicion(&workers, 0));
    reader.report(&here, PortKey(2), 87 * MS);
    let expected = WorkerStall {
        worker: Some(0),
        port: Some(PortKey(2)),
        stage: StallStage::Memory,
        cause: StallCause::Blocked,
        lasted: 87 * MS,
        is_over: false,
    };
    assert_eq!(workers.take_stalls(), [expected]);
}

/// Two ports with rings, and two of guests.
fn workers_with_guests() -> (Workers, Vec<Lease>) {
    let (mut workers, leases) = workers();
    for key in [3, 4].map(PortKey) {
        workers.add_null(key, SwitchKey(0), PortConfig::default()).expect("a place");
        workers.note_guest(key);
    }
    (workers, leases)
}

/// What becomes of a suspicion while a thread sleeps.
fn blamed(workers: &Workers, ports: [u32; 2]) -> Option<PortKey> {
    let ((id, ids), (end, ended)) = (channel(), channel::<()>());
    let thread = std::thread::spawn(move || {
        id.send(rustix::thread::gettid()).expect("the test waits");
        let _ = ended.recv();
    });
    let suspicion = suspicion_between(workers, 0, ports, ids.recv().expect("it starts"));
    let (reader, reports) = reader_with_reports(workers);
    reader.look_into(&suspicion);
    drop(end);
    thread.join().expect("no panic");
    reports.try_recv().ok().and_then(|stall| stall.port)
}

#[test]
fn a_guest_is_to_blame_if_all_other_memory_of_the_step_is_there_at_once() {
    let (workers, _leases) = workers_with_guests();
    assert_eq!(blamed(&workers, [1, 3]), Some(PortKey(3)));
    assert_eq!(blamed(&workers, [4, 2]), Some(PortKey(4)));
    assert_eq!(blamed(&workers, [3, 3]), Some(PortKey(3)), "a look at its queues");
    assert_eq!(blamed(&workers, [3, 4]), None, "either may be the cause");
}

#[test]
fn a_guest_is_not_to_blame_beside_memory_that_is_not_read() {
    let (mut workers, _leases) = workers_with_guests();
    workers.add_null(PortKey(5), SwitchKey(0), PortConfig::default()).expect("a place");
    assert_eq!(blamed(&workers, [5, 3]), None, "a port without memory may wait in a call");
    // As a capture of that port.
    let mut places = workers.slow_memory.places();
    let capture = MemoryPlace { is_own: false, ..places.regions[&PortKey(1)].clone() };
    places.regions.insert(PortKey(1), capture);
    drop(places);
    assert_eq!(blamed(&workers, [1, 3]), None);
}

#[test]
fn a_guest_is_not_to_blame_while_the_worker_has_something_to_do() {
    let (workers, _leases) = workers_with_guests();
    let (reader, reports) = reader_with_reports(&workers);
    // This thread runs.
    reader.look_into(&suspicion_between(&workers, 0, [1, 3], rustix::thread::gettid()));
    assert!(reports.try_recv().is_err());
}

#[test]
fn one_wait_begins_the_exclusion_anew() {
    let mut exclusion = Exclusion::default();
    for pass in 0..3 * CLEAR {
        std::thread::sleep(SLOW / CLEAR);
        assert_eq!(exclusion.pass(pass % 5 > 0), None);
    }
    let lasted = (0..CLEAR).find_map(|_| {
        std::thread::sleep(SLOW / CLEAR);
        exclusion.pass(true)
    });
    assert!(lasted.is_some_and(|lasted| lasted >= SLOW), "{lasted:?}");
}

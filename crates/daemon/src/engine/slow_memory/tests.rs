//! The judge, the table of ports, and memory without delay. A client that holds its memory up is in
//! `tests/tests/slow_memory.rs`: that takes another process, and luck.

use std::sync::mpsc::Receiver;

use ring::cursor::RingSize;
use ring::layout::RingCounts;
use switch::{Beat, PortConfig, Stage, SwitchConfig};

use super::*;
use crate::config::Config;
use crate::control::datapath::ports::Ports;
use crate::control::datapath::switches::Switches;
use crate::control::datapath::workers::WorkerWatch;
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
    let [port, other] = [1, 2].map(|key| workers.switch_of(PortKey(key)).map(|(_, id)| id));
    let beat = Beat { steps: 7, stage: Stage::Forward, switch, port, other };
    let disk_reads = Usage::of_process().disk_reads;
    Suspicion { worker: 0, beat, disk_reads, bell: workers.watchdog.ringer() }
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

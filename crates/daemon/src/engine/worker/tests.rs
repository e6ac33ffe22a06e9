//! Workers whose ports flood or become mirror ports, and what calls of control cost them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use packet::MacAddr;
use packet::build::ethernet;
use port::null::NullPort;
use ring::intake::Intake;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, Drops, MirrorConfig, Notify, PortConfig, Sent, SwitchConfig};

use super::*;
use crate::config::Config;
use crate::control::datapath::ports::Ports;
use crate::control::datapath::switches::Switches;
use crate::cpu_time::{caused_time, thread_time};
use crate::engine::Workers;
use crate::model::keys::{PortKey, SwitchKey};

const HOSTILE: u32 = 1000;
const OTHER: u32 = 1001;
/// Turns of each hostile port.
const TURNS: usize = 5;

/// A port that floods all that a batch holds, or one frame a turn, and tells of its turns.
struct Flooding {
    user: u32,
    intake: Intake,
    frame: Vec<u8>,
    most: usize,
    turns: usize,
    may_send: Arc<AtomicBool>,
    told: Sender<u32>,
}

impl Adapter for Flooding {
    fn recv(&mut self, batch: &mut Batch, _: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        if self.turns == 0 || !self.may_send.load(Ordering::Relaxed) {
            return;
        }
        self.turns -= 1;
        for _ in 0..self.most {
            if !batch.has_room() || !self.intake.fits(self.frame.len()) {
                break;
            }
            let first = batch.frags().len();
            self.intake.push(&[&self.frame], batch.frags());
            batch.push_received(first, 60);
        }
        // The test may have ended.
        let _ = self.told.send(self.user);
    }

    fn send(&mut self, _: &Batch, list: &[Delivery]) -> Sent {
        Sent::each(list, |_| Ok(60))
    }
}

impl Notify for Flooding {}

/// A port that sends frames all the time, each from another station.
struct NewStations {
    intake: Intake,
    stations: u32,
}

impl Adapter for NewStations {
    fn recv(&mut self, batch: &mut Batch, _: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        while batch.has_room() && self.intake.fits(60) {
            self.stations = self.stations.wrapping_add(1);
            let [a, b, c, d] = self.stations.to_be_bytes();
            let station = MacAddr::new([2, 0, a, b, c, d]);
            let frame = ethernet(MacAddr::BROADCAST, station, 0x0800, &[0; 46]);
            let first = batch.frags().len();
            self.intake.push(&[&frame], batch.frags());
            batch.push_received(first, 60);
        }
    }

    fn send(&mut self, _: &Batch, list: &[Delivery]) -> Sent {
        Sent::each(list, |_| Ok(60))
    }
}

impl Notify for NewStations {}

fn start(count: u32) -> Workers {
    let mut config = Config::default();
    config.workers.count = count;
    Workers::start(&config).expect("threads")
}

/// The settings of a port of this user that is a mirror port.
fn mirror_of_user(user: u32) -> PortConfig {
    let from = vec!["x".to_owned()];
    let mirror = MirrorConfig { from, entering: true, leaving: true, rate: 0 };
    PortConfig { mirror: Some(mirror.into()), ..PortConfig::of_user(user) }
}

#[test]
fn a_user_with_a_hundred_flooding_ports_takes_few_turns_between_those_of_another() {
    let mut workers = start(1);
    let (may_send, (told, turns)) = (Arc::new(AtomicBool::new(false)), channel());
    for switch in 0..2 {
        let config = SwitchConfig::default();
        workers.add_switch(SwitchKey(switch), config, None).expect("a worker");
    }
    for number in 0..=100 {
        let (user, most, turns) = match number {
            0 => (OTHER, 1, usize::MAX),
            _ => (HOSTILE, usize::MAX, TURNS),
        };
        let frame =
            ethernet(MacAddr::BROADCAST, MacAddr::new([2, 0, 0, 0, 0, 1]), 0x0800, &[0; 46]);
        let intake = Intake::new(256, 60).expect("memory");
        let (may_send, told) = (may_send.clone(), told.clone());
        let port = Flooding { user, intake, frame, most, turns, may_send, told };
        let (id, switch) = (PortId::new(number).expect("few"), usize::from(number > 0));
        let (plug, number) = (Plug::adapter(Box::new(port)), u32::try_from(number).expect("few"));
        let plug = move |worker: &mut Worker| {
            worker.plug(number, switch, id, plug, PortConfig::of_user(user));
        };
        workers.workers[0].handle.call(plug);
    }
    may_send.store(true, Ordering::Relaxed);
    workers.workers[0].handle.call(|worker| (0..=100).for_each(|number| worker.serve(number)));
    let (mut of_hostile, mut in_a_row, mut most) = (0, 0, 0);
    while of_hostile < 100 * TURNS {
        match turns.recv().expect("the ports are there") {
            HOSTILE => (of_hostile, in_a_row) = (of_hostile + 1, in_a_row + 1),
            _ => (most, in_a_row) = (most.max(in_a_row), 0),
        }
    }
    // At the end of a round, and at the beginning of the next, each time two.
    assert!((1..=4).contains(&most), "{most} turns in a row");
}

#[test]
fn turns_of_a_mirror_port_count_for_its_user() {
    let mut workers = start(1);
    workers.add_switch(SwitchKey(0), SwitchConfig::default(), None).expect("a worker");
    let is_its_users = workers.workers[0].handle.call(|worker| {
        let (id, plug) = (PortId::new(0).expect("few"), Plug::adapter(Box::new(NullPort)));
        worker.plug(0, 0, id, plug, mirror_of_user(HOSTILE));
        let place = worker.ports[0].expect("plugged in just now").user;
        place == worker.shares.join(HOSTILE)
    });
    assert!(is_its_users);
}

/// Until the port's own worker hears of the change, it learns the stations behind the port.
#[test]
fn a_port_of_several_workers_becomes_a_mirror_port_while_it_sends_from_new_stations() {
    let mut workers = start(3);
    let (switch, port) = (SwitchKey(0), PortKey(0));
    let of_all = SwitchConfig { is_spread: true, fdb_capacity: 4096, ..SwitchConfig::default() };
    workers.add_switch(switch, of_all, None).expect("workers");
    let config = PortConfig { worker: Some(1), ..PortConfig::of_user(HOSTILE) };
    let place = workers.new_place(switch, &config).expect("room");
    let id = place.id;
    let stations = NewStations { intake: Intake::new(256, 60).expect("memory"), stations: 0 };
    workers.plug(port, place, Plug::adapter(Box::new(stations)), config.clone());
    let order = |is_mirror| workers.order_to_set(&workers.ports[&port], is_mirror);
    assert_eq!([true, false].map(order), [[1, 0, 2], [0, 2, 1]], "its own first, and last");
    let learned = move |workers: &Workers| {
        workers.on_switch(switch, move |it, at| it.switch(at).bridge().fdb().learned_on(id))
    };
    for round in 0..200 {
        while learned(&workers) == 0 {
            std::thread::yield_now();
        }
        workers.set_port(port, mirror_of_user(HOSTILE));
        assert_eq!(learned(&workers), 0, "round {round}");
        workers.set_port(port, config.clone());
    }
}

#[test]
fn a_call_costs_its_caller_what_its_job_takes_of_the_worker() {
    const BURNT: Duration = Duration::from_millis(30);
    let workers = start(1);
    let caused = |job: fn()| {
        let before = caused_time();
        workers.workers[0].handle.call(move |_| job());
        caused_time() - before
    };
    let burn = || {
        let begin = thread_time();
        while thread_time() - begin < BURNT {}
    };
    assert!(caused(burn) >= BURNT);
    let slept = caused(|| std::thread::sleep(3 * BURNT));
    assert!(slept < BURNT, "{slept:?} for a job that sleeps");
}

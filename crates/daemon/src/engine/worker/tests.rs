//! Rounds of a worker whose ports flood.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use packet::MacAddr;
use packet::build::ethernet;
use ring::intake::Intake;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, Drops, Notify, PortConfig, Sent, SwitchConfig};

use super::*;
use crate::config::Config;
use crate::control::datapath::switches::Switches;
use crate::engine::Workers;
use crate::model::keys::SwitchKey;

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

#[test]
fn a_user_with_a_hundred_flooding_ports_takes_few_turns_between_those_of_another() {
    let mut config = Config::default();
    config.workers.count = 1;
    let mut workers = Workers::start(&config).expect("a thread");
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

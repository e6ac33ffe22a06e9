//! Turns of one kind, again and again: what `cargo xtask counts` counts the instructions of.
//!
//! `turn_cost SCENARIO ROUNDS`: in a round, a client writes 256 frames of 60 bytes, the switch
//! takes them in one turn or in more, and clients read what arrives. There is no clock and nothing
//! random in it.

mod net;

use net::{BATCH, Net, frame, mac, port};
use program::Program;
use switch::{Forwarding, SwitchConfig, UserFunction};

/// A program that looks destinations up, as the scenarios `program-…` of `uvala bench` have it.
const STATIONS: &str = include_str!("../../bench/src/subject/stations.image");
/// The map of that program.
const MAP: usize = 0;
/// Stations that are sent to, where there are several.
const STATIONS_MAX: u8 = 8;

struct Scenario {
    name: &'static str,
    forwarding: Forwarding,
    /// Ports that receive.
    receivers: u8,
    /// All ports are in one region.
    shared: bool,
    /// Headers in turn; none: a broadcast.
    stations: u8,
    /// Frames of a turn.
    batch: u32,
}

const FRAMES: u32 = BATCH as u32;

const SCENARIOS: [Scenario; 8] = [
    of("run", Forwarding::Learning, 1, 1),
    Scenario { batch: 1, ..of("single", Forwarding::Learning, 1, 1) },
    of("unicast", Forwarding::Learning, STATIONS_MAX, STATIONS_MAX),
    of("many-stations", Forwarding::Learning, STATIONS_MAX, 200),
    of("flood", Forwarding::Learning, STATIONS_MAX, 0),
    Scenario { shared: true, ..of("group", Forwarding::Learning, 1, 1) },
    of("program", Forwarding::Program, STATIONS_MAX, STATIONS_MAX),
    of("program-many-stations", Forwarding::Program, STATIONS_MAX, 200),
];

const fn of(name: &'static str, forwarding: Forwarding, receivers: u8, stations: u8) -> Scenario {
    Scenario { name, forwarding, receivers, shared: false, stations, batch: FRAMES }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(rounds)) = (args.next(), args.next()) else {
        return SCENARIOS.iter().for_each(|scenario| println!("{}", scenario.name));
    };
    let scenario = SCENARIOS.iter().find(|it| it.name == name).expect("a scenario");
    let rounds: u32 = rounds.parse().expect("a number of rounds");
    let mut net = scenario.net();
    for _ in 0..rounds {
        scenario.round(&mut net);
    }
}

impl Scenario {
    fn net(&self) -> Net {
        let config = SwitchConfig { forwarding: self.forwarding, ..SwitchConfig::default() };
        let mut net = Net::new(config, self.receivers, self.shared);
        if self.forwarding == Forwarding::Program {
            let program = Program::new(&STATIONS.parse().expect("an image"), 7);
            let function = UserFunction::new(program.expect("a program"));
            let _ = net.switch.bridge_mut().set_function(Some(function));
        }
        for station in 0..self.stations {
            self.introduce(&mut net, station);
        }
        net
    }

    /// Tells the switch where a station is.
    fn introduce(&self, net: &mut Net, station: u8) {
        let at = usize::from(station % self.receivers) + 1;
        match net.switch.bridge_mut().program_mut() {
            Some(program) => {
                let value = port(at).number().to_le_bytes();
                program.set(MAP, &address(station), &value).expect("room");
            }
            None => {
                net.send(at, 1, |_| frame(mac(0), address(station), 0));
                net.turn(at);
                net.receive();
            }
        }
    }

    fn round(&self, net: &mut Net) {
        let copies = if self.stations == 0 { self.receivers.into() } else { 1 };
        for _ in 0..FRAMES / self.batch {
            let sent = net.send(0, self.batch, |slot| frame(self.destination(slot), mac(0), 0));
            assert_eq!((sent, net.turn(0).slots), (self.batch, self.batch), "all are taken");
            assert_eq!(net.receive(), self.batch * copies, "all arrive");
        }
    }

    fn destination(&self, slot: u32) -> [u8; 6] {
        match u32::from(self.stations) {
            0 => [0xff; 6],
            stations => address(u8::try_from(slot % stations).expect("few")),
        }
    }
}

fn address(station: u8) -> [u8; 6] {
    mac(station + 1)
}

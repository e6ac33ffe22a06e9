//! Hostile functions of a chain: their slots, their marks and their rings hold anything.
//!
//! ```text
//!   ports 0, 1    stations: what they send enters chains
//!   ports 2 to 4  functions, in one region whose bytes are written at will
//!   port 5        a bystander in another VLAN, which sends into no chain
//! ```
//!
//! Frames may go where the operator lets functions send them, or be dropped. Nothing may panic, the
//! stations see legal frames and rings in order, the bystander sees nothing, each frame that was
//! taken is counted once at least, and in the end all buffers come back.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use packet::fields::Fields;
use packet::{PortId, VlanMode};
use ring::Region;
use ring::abi::{NetmapRing, Slot};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use ring::krings::Krings;
use ring::layout::FIRST_BLOCK;
use ring::owners::Owner;
use ring::table::HugeTable;
use ring::user::{RxRing, TxRing};
use switch::chain::rule::{Action, Rule};
use switch::chain::service::Balance;
use switch::chain::{Chain, Out, Plan, Planner, ServicePlan};
use switch::{Forwarding, Now, Plug, PortConfig, Scratch, Switch, SwitchConfig, Wake};

use crate::Input;
use crate::rings::{SLOTS, STRIDE, Small, block, block_size, counts};

const FUNCTIONS: usize = 3;
const FIRST_FUNCTION: usize = 2;
const BYSTANDER: usize = FIRST_FUNCTION + FUNCTIONS;
/// A mark that counts.
const VALID: u64 = 1 << 63;

/// A function that writes arbitrary words loses its own frames, and no other port's.
pub fn chain(data: &[u8]) {
    run(data);
}

/// Returns how many frames the stations received.
fn run(data: &[u8]) -> u32 {
    let (mut world, mut input) = (World::new(), Input(data));
    while !input.is_empty() {
        world.step(&mut input);
    }
    world.check()
}

/// A port that behaves.
struct Station {
    tx: TxRing,
    rx: RxRing,
}

struct World {
    switch: Switch,
    planner: Planner,
    scratch: Scratch,
    stations: [Station; 2],
    bystander: Station,
    /// The functions' memory.
    hostile: File,
    region: Arc<Region>,
    now_ms: u64,
    received: u32,
}

struct NoDoorbell;

impl Wake for NoDoorbell {
    fn wake(&self) {}
}

impl World {
    fn new() -> Self {
        let config = SwitchConfig { forwarding: Forwarding::Chain, ..Default::default() };
        let mut switch = Switch::new(config, 7, HugeTable::new);
        let mut add = |port: usize, host: Krings, config| {
            switch.add_port(id(port), Plug::rings_with(host, NoDoorbell), config);
        };
        let mut station = |port, config| {
            let Small { mut ports, client, .. } = members(1);
            add(port, ports.remove(0), config);
            Station {
                tx: TxRing::new(&client, &block(0), 0),
                rx: RxRing::new(&client, &block(0), 0),
            }
        };
        let apart = VlanMode::Access("7".parse().expect("a VLAN"));
        let stations = [0, 1].map(|port| station(port, PortConfig::default()));
        let bystander = station(BYSTANDER, PortConfig { vlan: apart, ..PortConfig::default() });
        let Small { ports, file: hostile, region, .. } = members(FUNCTIONS);
        for (at, host) in ports.into_iter().enumerate() {
            add(FIRST_FUNCTION + at, host, PortConfig::default());
        }
        let scratch = Scratch::new(16, Intake::new(FRAMES, STANDARD_FRAME).expect("memory"));
        let (now_ms, received) = (1, 0);
        let planner = Planner::default();
        let mut this = Self {
            switch,
            planner,
            scratch,
            stations,
            bystander,
            hostile,
            region,
            now_ms,
            received,
        };
        this.steer(&mut Input(&[]));
        this
    }

    fn steer(&mut self, input: &mut Input<'_>) {
        let tables = self.planner.next(plan(input));
        let now = Now::from_ms(self.now_ms);
        drop(tables.map(|tables| self.switch.steer(tables, now)));
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0 => self.scribble(input),
            1..=4 => self.fill_slot(input),
            5..=7 => self.hand_over(input),
            8..=10 => self.send(input),
            11..=13 => self.turn(input.below(BYSTANDER + 1)),
            14 if input.u8().is_multiple_of(4) => self.steer(input),
            14 => {
                self.now_ms += u64::from(input.u16());
                drop(self.switch.housekeep(Now::from_ms(self.now_ms)));
            }
            _ => self.read(),
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.hostile.write_all_at(bytes, at as u64).expect("a memfd");
    }

    fn scribble(&self, input: &mut Input<'_>) {
        let at = usize::from(input.u16()) % (FUNCTIONS * block_size() - 8);
        let (count, bytes): (usize, [u8; 8]) = (input.below(8) + 1, input.bytes());
        self.write(FIRST_BLOCK + at, &bytes[..count]);
    }

    /// A slot that may well be legal, with a mark that may well count.
    fn fill_slot(&self, input: &mut Input<'_>) {
        let (port, slot) = (block(input.below(FUNCTIONS)), input.below(SLOTS as usize));
        let at = port.ring(input.below(2)) + size_of::<NetmapRing>() + slot * size_of::<Slot>();
        let flags: u16 = [0, 0, 0x20, 0x100, 0x220, 1, 0x8, 0xff21][input.below(8)];
        // Buffers of all members, and a few that there are not.
        let buffers = u32::try_from(FUNCTIONS).expect("few") * counts().buffers() + 4;
        let (buffer, len) = (u32::from(input.u8()) % buffers, u16::from(input.u8() % 136));
        let word = u64::from(buffer) | u64::from(len) << 32 | u64::from(flags) << 48;
        let mark = match input.below(4) {
            0 => u64::from_le_bytes(input.bytes()),
            // Ports, chains and positions that there are, and an action.
            _ => {
                let (port, chain) = (u64::from(input.u8() % 8), u64::from(input.u8() % 3));
                let (at, wish) = (u64::from(input.u8() % 4), u64::from(input.u8() % 8));
                let order = u64::from(input.u8() % 4);
                let place = order << 24 | port << 32 | chain << 44 | at << 52;
                VALID | place | wish << 60 | u64::from(input.u8())
            }
        };
        self.write(at, &word.to_le_bytes());
        self.write(at + 8, &mark.to_le_bytes());
    }

    fn hand_over(&self, input: &mut Input<'_>) {
        let port = block(input.below(FUNCTIONS));
        let head = u32::from(input.u8()) % (SLOTS + 1);
        self.write(port.atok(input.below(2)), &head.to_le_bytes());
    }

    /// Stations send to each other, and to unknown addresses.
    fn send(&mut self, input: &mut Input<'_>) {
        let from = input.below(2);
        let Station { tx, .. } = &mut self.stations[from];
        if tx.refresh() > 0 {
            let to = input.u8() % 3;
            let frame = tx.frame(0, 60);
            frame.fill(0);
            (frame[0], frame[5]) = (2, to);
            (frame[6], frame[11]) = (2, u8::from(from == 1));
            (frame[12], frame[14], frame[23]) = (8, 0x45, 17);
            frame[26..38].copy_from_slice(&input.bytes::<12>());
            let _ = tx.submit(1);
        }
        self.turn(from);
    }

    fn turn(&mut self, port: usize) {
        self.now_ms += 1;
        let now = Now::from_ms(self.now_ms);
        let moved = self.switch.turn(id(port), now, &mut self.scratch);
        assert!(moved.slots < 2 * SLOTS && moved.blocked_on.is_none(), "{moved:?}");
    }

    fn read(&mut self) {
        for Station { rx, .. } in &mut self.stations {
            let frames = rx.refresh();
            for i in 0..frames {
                let len = rx.frame(i).len();
                assert!(len > 0 && len <= STRIDE as usize, "{len} bytes");
            }
            let _ = rx.release(frames);
            self.received += frames;
        }
        assert_eq!(self.bystander.rx.refresh(), 0, "it is in another VLAN");
    }

    fn check(mut self) -> u32 {
        self.read();
        for Station { tx, rx } in self.stations.iter_mut().chain([&mut self.bystander]) {
            assert_eq!((tx.resyncs(), rx.resyncs()), (0, 0));
        }
        let report = self.switch.steering().expect("it steers");
        assert!(report.instances.iter().all(|it| it.waiting <= it.capacity), "{report:?}");
        let ports = (0..=BYSTANDER).filter_map(|port| self.switch.stats(id(port)));
        let (taken, gone) = ports.fold((0, 0), |(taken, gone), port| {
            let total = port.total();
            (taken + total.tx.frames, gone + total.rx.frames + port.drops.total())
        });
        assert!(taken <= gone, "{taken} frames were taken, {gone} are accounted for");
        let owners = self.region.owners();
        for function in 0..FUNCTIONS {
            assert!(self.switch.remove_port(id(FIRST_FUNCTION + function)).is_some());
            owners.pass_all(Owner::of(&block(function)), Owner::POOL);
        }
        assert_eq!(owners.count(Owner::POOL), self.region.layout().buffers as usize);
        self.received
    }
}

/// Chains of the three functions, with one or two instances of the second service.
fn plan(input: &mut Input<'_>) -> Plan {
    let mut instances = |ports: &[usize]| {
        let balance = if input.u8().is_multiple_of(2) { Balance::Hash } else { Balance::Least };
        let instances = (0..).zip(ports).map(|(number, port)| (id(*port), number)).collect();
        Some(ServicePlan { balance, instances })
    };
    let services = vec![instances(&[2]), instances(&[3, 4]), None, instances(&[])];
    let mut chain = || {
        let number = |at: usize| u8::try_from(at).expect("few");
        let services = (0..=input.below(8)).map(|at| number(at % 2 + input.below(2))).collect();
        let port = PortId::new(input.below(8));
        let out = [Out::Address, Out::Nowhere, port.map_or(Out::Address, Out::Port)];
        Chain { order: input.u8() % 3, services, out: out[input.below(3)] }
    };
    let chains = vec![Some(chain()), None, Some(chain())];
    let past = vec![(0, chain()), (1, chain()), (2, chain())];
    let action = [Action::Chain(2), Action::Drop, Action::Port(id(input.below(8)))];
    let fields = Fields { src_ports: Some(0..=100), ..Fields::default() };
    let rule = Rule { id: 1, priority: 0, fields, action: action[input.below(3)] };
    let rules = if input.u8().is_multiple_of(2) { Vec::new() } else { vec![rule] };
    Plan { services, chains, past, rules, ingress: vec![(id(0), 0), (id(1), 2)] }
}

/// A region whose ports own their buffers.
fn members(ports: usize) -> Small {
    let small = Small::new(ports);
    let each = counts().buffers() as usize;
    for (at, buffer) in small.region.buffers().enumerate() {
        let owner = Owner::of(&block(at / each));
        assert!(small.region.owners().pass(buffer, Owner::POOL, owner));
    }
    small
}

fn id(port: usize) -> PortId {
    PortId::new(port).expect("few ports")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body is worth nothing if no frame ever gets through.
    #[test]
    fn stations_receive_frames_out_of_chains() {
        let received = run(&crate::noise());
        assert!(received > 100, "{received} frames");
    }
}

//! The forwarding database against a model that is obviously right: a map.

use std::collections::HashMap;

use packet::{MacAddr, PortId, VlanId};
use switch::Now;
use switch::decide::fdb::{Fdb, Flush};

use crate::Input;

const AGEING_MS: u64 = 100;
const MACS: usize = 12;
const VLANS: usize = 3;
const PORTS: usize = 4;

type Key = (VlanId, MacAddr);

/// What the model knows of a station.
#[derive(Clone, Copy)]
struct Station {
    port: PortId,
    /// None for a static entry.
    seen_ms: Option<u64>,
}

/// The database under test and the map beside it. Nothing is evicted: the capacity is greater
/// than the number of addresses.
struct Pair {
    fdb: Fdb,
    model: HashMap<Key, Station>,
    now_ms: u64,
}

/// Any sequence of calls leaves the database answering as the map does.
pub fn fdb_ops(data: &[u8]) {
    let mut input = Input(data);
    let fdb = Fdb::new(1024, AGEING_MS, 7);
    let mut pair = Pair { fdb, model: HashMap::new(), now_ms: 0 };
    while !input.is_empty() {
        pair.step(&mut input);
        pair.compare();
    }
}

impl Pair {
    fn step(&mut self, input: &mut Input<'_>) {
        let op = input.below(9);
        let (vlan, mac, port) = (vlan(input), mac(input.below(MACS)), port(input));
        let now = Now::from_ms(self.now_ms);
        match op {
            0..=2 => {
                self.fdb.learn(vlan, mac, port, now);
                self.model_learn((vlan, mac), port);
            }
            3 => {
                self.fdb.add_static(vlan, mac, port).expect("there is room");
                self.model.insert((vlan, mac), Station { port, seen_ms: None });
            }
            4 => {
                // An expired entry may be there still; only a live one must be.
                let live = self.live((vlan, mac)).is_some();
                assert!(self.fdb.remove(vlan, mac) || !live);
                self.model.remove(&(vlan, mac));
            }
            5 => self.now_ms += u64::from(input.u8()),
            6 => {
                self.fdb.age(now, input.below(64));
            }
            7 => self.flush(input.below(3), vlan, port),
            _ => {
                self.fdb.remove_port(port);
                self.model.retain(|_, station| station.port != port);
            }
        }
    }

    fn model_learn(&mut self, key: Key, port: PortId) {
        let seen_ms = Some(self.now_ms);
        let station = self.model.entry(key).or_insert(Station { port, seen_ms });
        if station.seen_ms.is_some() {
            *station = Station { port, seen_ms };
        }
    }

    fn flush(&mut self, what: usize, vlan: VlanId, port: PortId) {
        let vlans = [vlan].into_iter().collect();
        let what = [Flush::All, Flush::Port(port), Flush::Vlans(&vlans)][what];
        self.fdb.flush(what);
        self.model.retain(|&(of, _), station| {
            let named = match what {
                Flush::All => true,
                Flush::Port(port) => station.port == port,
                Flush::Vlans(vlans) => vlans.contains(of),
            };
            station.seen_ms.is_none() || !named
        });
    }

    fn live(&self, key: Key) -> Option<PortId> {
        let station = self.model.get(&key)?;
        let fresh = |seen| self.now_ms - seen < AGEING_MS;
        station.seen_ms.is_none_or(fresh).then_some(station.port)
    }

    fn compare(&self) {
        let now = Now::from_ms(self.now_ms);
        let mut live = 0;
        for vlan in (0..VLANS).map(vlan_number) {
            for mac in (0..MACS).map(mac) {
                let wanted = self.live((vlan, mac));
                assert_eq!(self.fdb.lookup(vlan, mac, now), wanted, "{mac} in {vlan}");
                live += usize::from(wanted.is_some());
            }
        }
        assert_eq!(self.fdb.entries(0, now).count(), live);
        assert!(self.fdb.count() >= live);
    }
}

fn vlan(input: &mut Input<'_>) -> VlanId {
    vlan_number(input.below(VLANS))
}

fn vlan_number(index: usize) -> VlanId {
    u16::try_from(index + 1).ok().and_then(VlanId::new).expect("few VLANs")
}

fn mac(index: usize) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, u8::try_from(index).expect("few addresses")])
}

fn port(input: &mut Input<'_>) -> PortId {
    PortId::new(input.below(PORTS)).expect("few ports")
}

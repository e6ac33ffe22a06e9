//! Many hosts in one process, with a clock of their own: stations that move, and sides that fail.
//!
//! Each host has a [`Plan`], a switch that knows where stations are, and a BGP speaker whose table
//! gets the others' changes late. The order of everything comes from a seed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::MacAddr;

use crate::bgp::{Mobility, Route, Subject};
use crate::plan::{Announced, Limits, Plan, Station, Todo};

const TICK_MS: u64 = 50;
/// The longest time from an announcement to the table of another host.
const DELAY_MS: u64 = 400;
/// The longest time for which a host may send to the wrong one: the change is heard (a tick), read
/// (a tick), announced, delivered, read and done; and once more, where two changes cross.
const BLACKHOLE_MS: u64 = 2 * (DELAY_MS + 4 * TICK_MS);
const HOLD_MS: u64 = 5_000;

/// A key of a route: the host that announces it, and the station.
type Key = (IpAddr, Option<MacAddr>);

/// A generator of numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }
}

struct Host {
    ip: IpAddr,
    plan: Plan,
    /// What the switch knows: a station here, or behind a remote.
    known: BTreeMap<MacAddr, Option<IpAddr>>,
    remotes: Vec<IpAddr>,
    table: BTreeMap<Key, Route>,
    /// What this host has announced, at its own speaker.
    own: Announced,
    /// Something has changed since it was read.
    is_dirty: bool,
}

/// A change on its way: where to, and what.
#[derive(Clone, Copy)]
struct Update {
    to: usize,
    key: Key,
    route: Option<Route>,
}

struct World {
    random: Random,
    now: u64,
    hosts: Vec<Host>,
    /// Where each station is.
    places: BTreeMap<MacAddr, usize>,
    /// By the time at which they arrive.
    updates: BTreeMap<u64, Vec<Update>>,
    /// When the last one arrives from a host at another: a session is a stream.
    last: Vec<Vec<u64>>,
    /// Since when a host sends frames to a station wrongly.
    wrong: BTreeMap<(usize, MacAddr), u64>,
    worst_ms: u64,
}

fn limits() -> Limits {
    let (stations, neighbours) = (10_000, 0);
    Limits { remotes: 2000, stations, neighbours, announced: 10_000, hold_ms: HOLD_MS }
}

fn ip(index: usize) -> IpAddr {
    let [_, _, high, low] = u32::try_from(index + 1).unwrap().to_be_bytes();
    IpAddr::from([10, 0, high, low])
}

fn mac(index: usize) -> MacAddr {
    let [a, b, c, d] = u32::try_from(index).unwrap().to_be_bytes();
    MacAddr::new([2, 0, a, b, c, d])
}

impl World {
    fn new(seed: u64, hosts: usize, stations: usize) -> Self {
        let host = |index| Host {
            ip: ip(index),
            plan: Plan::new(ip(index), limits()),
            known: BTreeMap::new(),
            remotes: Vec::new(),
            table: BTreeMap::new(),
            own: Announced::default(),
            is_dirty: true,
        };
        let mut world = Self {
            random: Random(seed | 1),
            now: 0,
            hosts: (0..hosts).map(host).collect(),
            places: BTreeMap::new(),
            updates: BTreeMap::new(),
            last: vec![vec![0; hosts]; hosts],
            wrong: BTreeMap::new(),
            worst_ms: 0,
        };
        for index in 0..hosts {
            world.hosts[index].plan.find_port(&[], 0);
        }
        for index in 0..stations {
            let place = world.random.index(hosts);
            world.places.insert(mac(index), place);
            world.hosts[place].known.insert(mac(index), None);
        }
        world
    }

    /// A station runs elsewhere from now on, and says so there (RARP).
    fn migrate(&mut self) {
        let station = mac(self.random.index(self.places.len()));
        let place = self.random.index(self.hosts.len());
        self.places.insert(station, place);
        self.hear(station, place);
    }

    fn hear(&mut self, station: MacAddr, place: usize) {
        self.hosts[place].known.insert(station, None);
        self.hosts[place].is_dirty = true;
    }

    /// The process starts again and finds what the others have.
    fn restart_process(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.plan = Plan::new(host.ip, limits());
        host.plan.find_port(&host.remotes, self.now);
        host.is_dirty = true;
    }

    /// The switch starts again: it has its remotes, and has learned nothing. Stations are heard.
    fn restart_switch(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.known.clear();
        host.plan.lose_switch(self.now);
        host.plan.find_port(&host.remotes, self.now);
        let here = self.places.iter().filter(|(_, place)| **place == index);
        host.known.extend(here.map(|(mac, _)| (*mac, None)));
        host.is_dirty = true;
    }

    /// The speaker starts again: the others withdraw its routes, and send it theirs.
    fn restart_speaker(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        (host.own, host.table) = (Announced::default(), BTreeMap::new());
        host.plan.lose_bgp(self.now);
        let key = host.ip;
        for updates in self.updates.values_mut() {
            updates.retain(|update| update.to != index && update.key.0 != key);
        }
        for other in &mut self.hosts {
            other.table.retain(|(of, _), _| *of != key);
            other.is_dirty = true;
        }
        let at = self.now + DELAY_MS;
        for (from, other) in self.hosts.iter().enumerate().filter(|(from, _)| *from != index) {
            let routes = routes_of(other.ip, &other.own).into_iter();
            let update = |(key, route)| Update { to: index, key, route: Some(route) };
            self.updates.entry(at).or_default().extend(routes.map(update));
            self.last[from][index] = at;
        }
    }

    fn tick(&mut self) {
        self.now += TICK_MS;
        let now = self.now;
        let later = self.updates.split_off(&(now + 1));
        let arrived = std::mem::replace(&mut self.updates, later).into_values().flatten();
        for Update { to, key, route } in arrived {
            self.hosts[to].is_dirty = true;
            let table = &mut self.hosts[to].table;
            match route {
                Some(route) => table.insert(key, route),
                None => table.remove(&key),
            };
        }
        for index in 0..self.hosts.len() {
            let host = &mut self.hosts[index];
            let is_over = host.plan.next_end().is_some_and(|end| end <= now);
            if !std::mem::take(&mut host.is_dirty) && !is_over {
                continue;
            }
            let here = host.known.iter().filter(|(_, remote)| remote.is_none());
            let here: Vec<_> = here.map(|(&mac, _)| Station { mac, is_static: false }).collect();
            let routes: Vec<Route> = host.table.values().copied().collect();
            host.plan.see_stations(&here);
            host.plan.see_routes(&routes, host.own.clone(), now);
            let todo = host.plan.todo(now);
            host.change_switch(&todo);
            host.plan.did_port(&todo);
            host.plan.did_bgp(&todo);
            let updates = self.announce(index, &todo);
            self.deliver(index, &updates);
        }
        self.check();
    }

    /// Changes what a host has announced; returns the changes, for no host in particular.
    fn announce(&mut self, index: usize, todo: &Todo) -> Vec<Update> {
        let host = &mut self.hosts[index];
        let mut updates = Vec::new();
        host.is_dirty = todo.is_for_bgp() || todo.is_for_port();
        let changes = todo.withdraw.iter().map(|it| (*it, false));
        for (subject, is_there) in changes.chain(todo.announce.iter().map(|it| (*it, true))) {
            match is_there {
                true => host.own.insert(subject),
                false => host.own.remove(subject),
            }
            let station = match subject {
                Subject::Floods => None,
                Subject::Station(mac, _) => Some(mac),
                Subject::Neighbour(..) => unreachable!("no port of these answers"),
            };
            let route = is_there.then_some(Route { subject, host: host.ip });
            let key = (host.ip, station);
            updates.push(Update { to: index, key, route });
        }
        updates
    }

    /// Sends changes to all others.
    fn deliver(&mut self, index: usize, updates: &[Update]) {
        if updates.is_empty() {
            return;
        }
        for to in (0..self.hosts.len()).filter(|to| *to != index) {
            let at = self.last[index][to].max(self.now + self.random.below(DELAY_MS));
            self.last[index][to] = at;
            let sent = updates.iter().map(|update| Update { to, ..*update });
            self.updates.entry(at).or_default().extend(sent);
        }
    }

    /// Notes how long each host has been sending to where a station is not.
    fn check(&mut self) {
        for (index, host) in self.hosts.iter().enumerate() {
            for (&mac, &place) in &self.places {
                let goes = host.known.get(&mac);
                let is_right = match goes {
                    None => true, // flooded
                    Some(None) => place == index,
                    Some(Some(remote)) => *remote == ip(place),
                };
                if is_right {
                    self.wrong.remove(&(index, mac));
                    continue;
                }
                let since = *self.wrong.entry((index, mac)).or_insert(self.now);
                self.worst_ms = self.worst_ms.max(self.now - since);
            }
        }
    }

    /// Whether each host has an entry for every station, and the right one.
    fn is_settled(&self) -> bool {
        self.updates.values().all(Vec::is_empty)
            && self.hosts.iter().enumerate().all(|(index, host)| {
                self.places.iter().all(|(mac, place)| {
                    let right = (*place != index).then(|| ip(*place));
                    host.known.get(mac) == Some(&right)
                })
            })
    }

    fn reconcile(&mut self) {
        for _ in 0..(HOLD_MS + 4 * BLACKHOLE_MS) / TICK_MS {
            self.tick();
        }
        assert!(self.is_settled(), "{} wrong", self.wrong.len());
    }
}

impl Host {
    fn change_switch(&mut self, todo: &Todo) {
        self.remotes.extend(&todo.add_remotes);
        self.remotes.retain(|remote| !todo.del_remotes.contains(remote));
        for &(mac, remote) in &todo.add_stations {
            assert!(self.remotes.contains(&remote), "a station is behind a remote");
            self.known.insert(mac, Some(remote));
        }
        let remotes = &self.remotes;
        let is_gone = |mac: &MacAddr, remote: Option<IpAddr>| {
            remote.is_some_and(|it| todo.del_stations.contains(mac) || !remotes.contains(&it))
        };
        self.known.retain(|mac, remote| !is_gone(mac, *remote));
    }
}

fn routes_of(host: IpAddr, own: &Announced) -> Vec<(Key, Route)> {
    let stations = own.stations.iter().map(|(&mac, &mobility)| {
        ((host, Some(mac)), Route { subject: Subject::Station(mac, mobility), host })
    });
    let floods = own.floods.then_some(((host, None), Route { subject: Subject::Floods, host }));
    stations.chain(floods).collect()
}

#[test]
fn stations_that_move_are_found_in_time_by_all_hosts() {
    for seed in 1..=8 {
        let mut world = World::new(seed, 12, 60);
        world.reconcile();
        world.worst_ms = 0;
        for _ in 0..400 {
            // No station moves so often that it is a duplicate.
            if world.random.below(20) == 0 {
                world.migrate();
            }
            world.tick();
        }
        world.reconcile();
        assert!(world.worst_ms <= BLACKHOLE_MS, "seed {seed}: {} ms", world.worst_ms);
    }
}

#[test]
fn sides_that_fail_in_any_order_lose_no_station_and_leave_none_behind() {
    for seed in 1..=8 {
        let mut world = World::new(seed, 8, 40);
        world.reconcile();
        world.worst_ms = 0;
        for _ in 0..300 {
            let index = world.random.index(world.hosts.len());
            match world.random.below(60) {
                0 => world.restart_process(index),
                1 => world.restart_switch(index),
                2 => world.restart_speaker(index),
                3 => world.migrate(),
                _ => {}
            }
            world.tick();
        }
        world.reconcile();
        // What a speaker knew before it started again counts for the hold time.
        let bound = BLACKHOLE_MS + HOLD_MS;
        assert!(world.worst_ms <= bound, "seed {seed}: {} ms", world.worst_ms);
    }
}

#[test]
fn a_thousand_hosts_find_each_other_and_a_station_that_moves() {
    let mut world = World::new(7, 1000, 50);
    for _ in 0..(3 * BLACKHOLE_MS) / TICK_MS {
        world.tick();
    }
    assert!(world.is_settled());
    world.worst_ms = 0;
    world.migrate();
    for _ in 0..(2 * BLACKHOLE_MS) / TICK_MS {
        world.tick();
    }
    assert!(world.is_settled() && world.worst_ms <= BLACKHOLE_MS, "{} ms", world.worst_ms);
}

#[test]
fn a_sequence_number_grows_by_one_with_each_move() {
    let mut world = World::new(3, 2, 1);
    for moved in 0..4 {
        world.reconcile();
        let place = world.places[&mac(0)];
        let said = world.hosts[place].own.stations[&mac(0)];
        assert_eq!(said, Mobility { sequence: moved, is_sticky: false });
        assert!(world.hosts[1 - place].own.stations.is_empty(), "the other one withdraws");
        let to = 1 - place;
        world.places.insert(mac(0), to);
        world.hear(mac(0), to);
    }
}

#[test]
fn two_stations_with_one_address_do_not_chase_each_other_for_ever() {
    let mut world = World::new(5, 2, 1);
    world.reconcile();
    let (mut last, mut changes) = (0, 0);
    for _ in 0..400 {
        // Both send all the time.
        (0..2).for_each(|index| world.hear(mac(0), index));
        world.tick();
        let said = world.hosts.iter().filter_map(|host| host.own.stations.get(&mac(0)));
        let sequence = said.map(|it| it.sequence).max().unwrap_or(last);
        changes += u32::from(sequence != last);
        last = sequence;
    }
    assert!(changes <= 10, "{changes} moves");
    assert!(world.hosts.iter().any(|host| host.plan.duplicates().next().is_some()));
}

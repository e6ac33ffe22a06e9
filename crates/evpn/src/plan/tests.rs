//! What a plan makes of what the port and GoBGP say.

use super::addresses::ADDRESSES_MAX;
use super::*;

const LIMITS: Limits =
    Limits { remotes: 2, stations: 2, neighbours: 3, announced: 10, hold_ms: 90_000 };

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn mac(last: u8) -> MacAddr {
    MacAddr::new([2, 0, 0, 0, 0, last])
}

fn floods(host: u8) -> Route {
    Route { subject: Subject::Floods, host: ip(host) }
}

fn there(station: u8, host: u8, sequence: u32) -> Route {
    let mobility = Mobility { sequence, is_sticky: false };
    Route { subject: Subject::Station(mac(station), mobility), host: ip(host) }
}

fn here(station: u8) -> Station {
    Station { mac: mac(station), is_static: false }
}

/// Host 5, with its port.
fn plan() -> Plan {
    let mut plan = Plan::new(ip(5), LIMITS);
    plan.find_port(&[], 0);
    plan
}

/// Does what is to be done.
fn step(plan: &mut Plan, now: u64) -> Todo {
    let todo = plan.todo(now);
    plan.did_port(&todo);
    plan.did_bgp(&todo);
    assert_eq!(plan.todo(now), Todo::default(), "it is done");
    todo
}

/// Reads the routes of others, beside what this host has announced.
fn hear(plan: &mut Plan, routes: &[Route], now: u64) {
    let announced = plan.announced.clone();
    plan.see_routes(routes, announced, now);
}

#[test]
fn what_is_announced_becomes_remotes_and_stations_and_goes_with_them() {
    let mut plan = plan();
    plan.see_stations(&[here(1)]);
    hear(&mut plan, &[floods(2), there(7, 2, 0), there(8, 3, 0)], 0);
    let todo = step(&mut plan, 0);
    assert_eq!((todo.add_remotes, todo.add_stations), (vec![ip(2)], vec![(mac(7), ip(2))]));
    let first = Subject::Station(mac(1), Mobility::default());
    assert_eq!(todo.announce, [Subject::Floods, first]);
    // Host 3 gets no floods yet, so it is no remote.
    hear(&mut plan, &[floods(2), there(7, 2, 0), there(8, 3, 0), floods(3)], 0);
    assert_eq!(step(&mut plan, 0).add_stations, [(mac(8), ip(3))]);
    hear(&mut plan, &[floods(3), there(8, 3, 0)], 10);
    let todo = step(&mut plan, 10);
    assert_eq!((todo.del_stations, todo.del_remotes.len()), (vec![mac(7)], 0));
    assert_eq!(plan.next_end(), Some(10 + GRACE_MS));
    assert_eq!(step(&mut plan, 10 + GRACE_MS).del_remotes, [ip(2)]);
    plan.see_stations(&[]);
    assert_eq!(step(&mut plan, 20_000).withdraw, [first]);
}

#[test]
fn a_station_that_is_heard_here_is_claimed_and_given_up_for_a_higher_number() {
    let mut plan = plan();
    hear(&mut plan, &[floods(2), there(7, 2, 3)], 0);
    step(&mut plan, 0);
    plan.see_stations(&[here(7)]);
    let todo = step(&mut plan, 1);
    let claim = Subject::Station(mac(7), Mobility { sequence: 4, is_sticky: false });
    assert_eq!((todo.announce, todo.del_stations), (vec![claim], vec![mac(7)]));
    // The other one has not withdrawn yet: nothing changes.
    hear(&mut plan, &[floods(2), there(7, 2, 3)], 2);
    assert_eq!(step(&mut plan, 2), Todo::default());
    hear(&mut plan, &[floods(2), there(7, 2, 5)], 3);
    let todo = step(&mut plan, 3);
    assert_eq!((todo.withdraw, todo.add_stations), (vec![claim], vec![(mac(7), ip(2))]));
}

#[test]
fn nothing_is_claimed_before_the_routes_of_others_are_known() {
    let mut plan = plan();
    plan.see_stations(&[here(7)]);
    assert_eq!(plan.todo(0).announce, [Subject::Floods]);
    hear(&mut plan, &[floods(2), there(7, 2, 3)], 1);
    let claim = Subject::Station(mac(7), Mobility { sequence: 4, is_sticky: false });
    assert!(step(&mut plan, 1).announce.contains(&claim));
}

#[test]
fn of_two_hosts_that_begin_alike_the_lower_address_has_the_station() {
    for (other, keeps) in [(2, false), (9, true)] {
        let mut plan = plan();
        hear(&mut plan, &[], 0);
        plan.see_stations(&[here(7)]);
        step(&mut plan, 0);
        hear(&mut plan, &[floods(other), there(7, other, 0)], 1);
        assert_eq!(step(&mut plan, 1).withdraw.is_empty(), keeps);
    }
}

#[test]
fn a_static_station_is_not_given_away() {
    let mut plan = plan();
    hear(&mut plan, &[], 0);
    plan.see_stations(&[Station { mac: mac(7), is_static: true }]);
    let sticky = Mobility { sequence: 0, is_sticky: true };
    assert!(step(&mut plan, 0).announce.contains(&Subject::Station(mac(7), sticky)));
    for is_sticky in [false, true] {
        let subject = Subject::Station(mac(7), Mobility { sequence: 99, is_sticky });
        hear(&mut plan, &[floods(2), Route { subject, host: ip(2) }], 1);
        let todo = step(&mut plan, 1);
        assert_eq!((todo.withdraw, todo.add_stations), (vec![], vec![]));
    }
    // Nor is one taken that another host has so.
    let subject = Subject::Station(mac(8), Mobility { sequence: 0, is_sticky: true });
    hear(&mut plan, &[floods(2), Route { subject, host: ip(2) }], 2);
    plan.see_stations(&[Station { mac: mac(7), is_static: true }, here(8)]);
    let todo = step(&mut plan, 2);
    assert_eq!((todo.announce, todo.add_stations), (vec![], vec![(mac(8), ip(2))]));
    // The switch hears it here once more: it is put back.
    plan.see_stations(&[Station { mac: mac(7), is_static: true }, here(8)]);
    assert_eq!(step(&mut plan, 3).add_stations, [(mac(8), ip(2))]);
}

#[test]
fn what_came_first_stays_when_a_limit_is_reached() {
    let mut plan = plan();
    let first = [floods(8), floods(9), there(8, 8, 0), there(9, 9, 0)];
    hear(&mut plan, &first, 0);
    step(&mut plan, 0);
    let more = [floods(1), there(1, 9, 0), there(2, 9, 0)];
    hear(&mut plan, &[&more[..], &first].concat(), 1);
    let refused = Refused { remotes: 1, stations: 2 };
    assert_eq!((step(&mut plan, 1), plan.refused()), (Todo::default(), refused));
}

#[test]
fn a_side_that_is_lost_counts_until_its_hold_time_is_over() {
    let mut plan = plan();
    plan.see_stations(&[here(1)]);
    hear(&mut plan, &[floods(2), there(7, 2, 0)], 0);
    step(&mut plan, 0);
    plan.lose_bgp(1_000);
    // The next one has nothing yet, neither of others nor of this host.
    plan.see_routes(&[], Announced::default(), 2_000);
    let todo = step(&mut plan, 2_000);
    assert_eq!((todo.announce.len(), todo.is_for_port()), (2, false));
    plan.lose_switch(3_000);
    assert_eq!(step(&mut plan, 90_999), Todo::default());
    let todo = step(&mut plan, 91_000);
    assert_eq!((todo.del_remotes, todo.withdraw.len()), (vec![ip(2)], 0));
    assert!(plan.has_switch());
    assert_eq!(step(&mut plan, 93_000).withdraw.len(), 2, "the switch is gone");
    assert!(!plan.has_switch());
    plan.find_port(&[], 94_000);
    assert_eq!(step(&mut plan, 94_000).announce, [Subject::Floods]);
}

#[test]
fn a_process_that_follows_takes_over_what_it_finds() {
    let mut plan = plan();
    plan.find_port(&[ip(2), ip(3)], 0);
    plan.see_stations(&[here(1)]);
    let said = Mobility { sequence: 6, is_sticky: false };
    let stations = [(mac(1), said), (mac(4), said)].into();
    let announced = Announced { floods: true, stations, ..Announced::default() };
    plan.see_routes(&[floods(2)], announced, 0);
    let todo = step(&mut plan, 0);
    let gone = Subject::Station(mac(4), said);
    assert_eq!((todo.withdraw, todo.announce), (vec![gone], vec![]));
    assert!(step(&mut plan, GRACE_MS).del_remotes.is_empty(), "it may not have spoken yet");
    assert_eq!(step(&mut plan, LIMITS.hold_ms).del_remotes, [ip(3)]);
}

fn inner(last: u8) -> IpAddr {
    IpAddr::from([192, 168, 7, last])
}

fn neighbour(station: u8, last: u8) -> Neighbour {
    Neighbour { ip: inner(last), mac: mac(station), is_router: false }
}

fn there_with(station: u8, host: u8, last: u8) -> Route {
    let subject = Subject::Neighbour(neighbour(station, last), Mobility::default());
    Route { subject, host: ip(host) }
}

/// What the port answers for.
fn answered(plan: &Plan) -> Vec<Neighbour> {
    let has = plan.port_neighbours.iter().flatten();
    has.map(|(&ip, &(mac, is_router))| Neighbour { ip, mac, is_router }).collect()
}

#[test]
fn an_address_is_announced_with_its_station_and_named_to_the_port_with_one_elsewhere() {
    let mut plan = plan();
    plan.see_stations(&[here(1)]);
    plan.see_neighbours(Some((&[neighbour(1, 11), neighbour(4, 14)], &[])));
    hear(&mut plan, &[floods(2), there_with(7, 2, 17)], 0);
    let todo = step(&mut plan, 0);
    let route = Subject::Neighbour(neighbour(1, 11), Mobility::default());
    assert!(todo.announce.contains(&route), "{todo:?}");
    assert!(
        !todo.announce.iter().any(|it| matches!(it, Subject::Neighbour(n, _) if n.mac == mac(4)))
    );
    assert_eq!(
        (todo.add_stations, todo.add_neighbours),
        (vec![(mac(7), ip(2))], vec![neighbour(7, 17)])
    );
    // The port has lost it, as one that was made again.
    plan.see_neighbours(Some((&[neighbour(1, 11)], &[])));
    assert_eq!(step(&mut plan, 0).add_neighbours, [neighbour(7, 17)]);
    // The station has another address, and then moves away with that.
    plan.see_neighbours(Some((&[neighbour(1, 12)], &answered(&plan))));
    let todo = step(&mut plan, 0);
    assert_eq!((todo.withdraw.len(), todo.announce.len()), (1, 1));
    let moved = Mobility { sequence: 1, is_sticky: false };
    let elsewhere = Route { subject: Subject::Neighbour(neighbour(1, 12), moved), host: ip(2) };
    hear(&mut plan, &[floods(2), elsewhere], 1);
    let todo = step(&mut plan, 1);
    assert_eq!((todo.withdraw.len(), todo.add_neighbours), (2, vec![neighbour(1, 12)]));
    assert_eq!(todo.del_neighbours, [inner(17)]);
}

#[test]
fn what_an_earlier_process_has_named_is_named_again_and_not_taken_back_before() {
    let mut plan = plan();
    let named = [neighbour(7, 17), neighbour(8, 18)];
    plan.find_port(&[ip(2)], 0);
    plan.see_neighbours(Some((&[], &named)));
    assert!(plan.todo(0).del_neighbours.is_empty(), "no route was heard yet");
    // Old entries of the port go with the hold time, unless they are named again.
    hear(&mut plan, &[floods(2), there_with(7, 2, 17)], 1);
    let todo = step(&mut plan, 1);
    assert_eq!((todo.add_neighbours, todo.del_neighbours), (vec![named[0]], vec![]));
    plan.see_neighbours(Some((&[], &named)));
    assert!(!step(&mut plan, 2).is_for_port(), "it has named it");
    // A daemon that starts again has none.
    plan.find_port(&[ip(2)], 3);
    plan.see_neighbours(Some((&[], &[])));
    assert_eq!(step(&mut plan, 3).add_neighbours, [named[0]]);
}

#[test]
fn an_address_of_two_stations_is_named_to_no_port() {
    let mut plan = plan();
    plan.see_neighbours(Some((&[], &[])));
    hear(&mut plan, &[floods(2), floods(3), there_with(7, 2, 17)], 0);
    assert_eq!(step(&mut plan, 0).add_neighbours.len(), 1);
    hear(&mut plan, &[floods(2), floods(3), there_with(7, 2, 17), there_with(8, 3, 17)], 1);
    assert_eq!(step(&mut plan, 1).del_neighbours, [inner(17)]);
    hear(&mut plan, &[floods(2), floods(3), there_with(8, 3, 17)], 2);
    assert_eq!(step(&mut plan, 2).add_neighbours, [neighbour(8, 17)]);
    // A station here says that it has the address.
    plan.see_stations(&[here(1)]);
    plan.see_neighbours(Some((&[neighbour(1, 17)], &answered(&plan))));
    let todo = step(&mut plan, 3);
    assert_eq!((todo.del_neighbours, todo.announce.len()), (vec![inner(17)], 2));
}

#[test]
fn a_port_that_does_not_answer_is_told_nothing_and_nothing_is_announced_for_it() {
    let mut plan = plan();
    plan.see_stations(&[here(1)]);
    plan.see_neighbours(Some((&[neighbour(1, 11)], &[])));
    hear(&mut plan, &[floods(2), there_with(7, 2, 17)], 0);
    step(&mut plan, 0);
    plan.see_neighbours(None);
    let todo = step(&mut plan, 1);
    assert_eq!((todo.withdraw.len(), todo.is_for_port()), (1, false));
}

#[test]
fn addresses_of_other_hosts_are_bounded_for_each_station_and_for_all() {
    let mut plan = plan();
    plan.see_neighbours(Some((&[], &[])));
    let many: Vec<Route> = (1..=5).map(|last| there_with(7, 2, last)).collect();
    hear(&mut plan, &[&[floods(2)], &many[..]].concat(), 0);
    assert_eq!((step(&mut plan, 0).add_neighbours.len(), plan.refused().stations), (3, 2));
    plan.set_limits(Limits { neighbours: 1000, ..LIMITS });
    let many: Vec<Route> = (1..=70).map(|last| there_with(7, 2, last)).collect();
    hear(&mut plan, &[&[floods(2)], &many[..]].concat(), 0);
    step(&mut plan, 0);
    assert_eq!((answered(&plan).len(), plan.refused().stations), (ADDRESSES_MAX, 6));
    // What came first stays, also where others are listed before it.
    let before = answered(&plan);
    let others: Vec<Route> = (100..=200).map(|last| there_with(7, 2, last)).collect();
    hear(&mut plan, &[&[floods(2)], &others[..], &many[..]].concat(), 0);
    step(&mut plan, 0);
    assert_eq!(answered(&plan), before);
}

#[test]
fn a_farewell_withdraws_and_takes_back_addresses_too() {
    let mut plan = plan();
    plan.see_stations(&[here(1)]);
    plan.see_neighbours(Some((&[neighbour(1, 11)], &[])));
    hear(&mut plan, &[floods(2), there_with(7, 2, 17)], 0);
    step(&mut plan, 0);
    let todo = plan.farewell();
    assert_eq!((todo.withdraw.len(), todo.del_neighbours), (3, vec![inner(17)]));
}

#[test]
fn a_station_that_the_switch_has_lost_is_named_again() {
    let mut plan = plan();
    hear(&mut plan, &[floods(2), there(7, 2, 0)], 0);
    step(&mut plan, 0);
    plan.see_named(&[mac(7)].into());
    assert_eq!(step(&mut plan, 1), Todo::default());
    plan.see_named(&BTreeSet::new());
    assert_eq!(step(&mut plan, 2).add_stations, [(mac(7), ip(2))]);
    assert!(plan.has_remotes(&[ip(2)].into()) && !plan.has_remotes(&BTreeSet::new()));
}

#[test]
fn networks_of_a_port_share_its_limits_and_what_came_first_stays() {
    let mut plans = [(10, plan()), (20, plan())];
    let mut see = |routes: [&[Route]; 2], now: u64| {
        share(&mut plans, LIMITS, |vlan, plan| hear(plan, routes[usize::from(*vlan == 20)], now));
        plans.each_mut().map(|(_, plan)| (step(plan, now), plan.refused()))
    };
    let first = [floods(2), there(7, 2, 0)];
    let both = see([&first, &first], 0);
    assert!(both.iter().all(|(todo, _)| todo.add_stations == [(mac(7), ip(2))]), "{both:?}");
    let more = [floods(2), there(7, 2, 0), floods(3), there(8, 2, 0)];
    let [ten, twenty] = see([&more, &first], 1);
    let refused = Refused { remotes: 1, stations: 1 };
    assert_eq!((ten, twenty), ((Todo::default(), refused), <(Todo, Refused)>::default()));
    // What one network does not have any more, the other may have.
    let [_, twenty] = see([&more, &[floods(2)]], 2);
    assert_eq!(twenty.0.del_stations, [mac(7)]);
    let [ten, _] = see([&more, &[floods(2)]], 3);
    let refused = Refused { remotes: 1, stations: 0 };
    assert_eq!((ten.0.add_stations, ten.1), (vec![(mac(8), ip(2))], refused));
}

#[test]
fn a_host_takes_room_at_the_port_once_whatever_networks_it_is_in() {
    let mut ten = vec![floods(2), floods(3), there(7, 4, 0)];
    let mut twenty = vec![floods(3), floods(4)];
    assert_eq!(admit([ip(3)].into(), 2, [&mut ten, &mut twenty]), 1);
    assert_eq!((ten.len(), twenty), (3, vec![floods(3)]));
    let mut plan = plan();
    hear(&mut plan, &ten, 0);
    assert_eq!(plan.remotes(), BTreeSet::from([ip(2), ip(3)]));
}

#[test]
fn networks_of_a_port_share_the_ip_addresses_that_it_answers_for() {
    let mut plans = [(10, plan()), (20, plan())];
    plans.iter_mut().for_each(|(_, plan)| plan.see_neighbours(Some((&[], &[]))));
    share(&mut plans, LIMITS, |vlan, plan| {
        let station = if *vlan == 10 { 7 } else { 8 };
        let with = [11, 12].map(|last| there_with(station, 2, last));
        hear(plan, &[&[floods(2)], &with[..]].concat(), 0);
    });
    let [ten, twenty] = plans.each_mut().map(|(_, plan)| step(plan, 0).add_neighbours);
    assert_eq!((ten.len(), twenty), (2, vec![neighbour(8, 11)]));
    assert_eq!(plans[1].1.refused().stations, 1);
}

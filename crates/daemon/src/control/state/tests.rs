//! Steps as the handlers take them, in any order, with workers that never refuse.

use protocol::PortKind;

use super::*;
use crate::model::policy::Process;
use ::port::machine::quota::Limits;
use proptest::prelude::*;
use protocol::{ErrorCode, Mode};
use switch::PortConfig;

fn caller(uid: u32) -> Caller {
    let process = Process::Number(uid);
    Caller { pid: uid, process, uid, gid: uid, groups: Vec::new(), privileged: uid == 0 }
}

fn name(text: &str) -> PortName {
    text.parse().unwrap()
}

fn quota() -> Quota {
    let machines = Limits::NONE;
    let (addresses, rules, static_addresses) = (1 << 20, 8, 8);
    let (ports, memory, switches, connections) = (3, 100, 2, 8);
    Quota { ports, memory, switches, addresses, rules, static_addresses, connections, machines }
}

fn switch(key: u32, owner: u32, mode: u16, persistent: bool) -> Switch {
    let permissions = Permissions { owner, group: owner, mode: Mode::new(mode).unwrap() };
    let config = SwitchConfig::default();
    let new_ports = NewPorts::Any;
    let steering = Default::default();
    Switch {
        key: SwitchKey(key),
        persistent,
        permissions,
        new_ports,
        config,
        steering,
        program: None,
        refused_program: None,
        planner: None,
        listed: None,
    }
}

/// Attaches as the handlers do, with workers that never refuse.
fn attach(state: &mut State, uid: u32, conn: u64, wish: &Wish<'_>) -> Result<PortKey, Refusal> {
    state.check(&caller(uid), wish)?;
    if !state.has_switch(wish.port.switch()) {
        let key = state.new_key();
        state.add_switch(wish.port.switch().clone(), switch(key, uid, 0o600, false));
    }
    let peer = wish.port.peer().and_then(|peer| state.ports.get(&peer)?.pipe);
    let key = PortKey(state.new_key());
    let holder = Holder {
        conn: ConnKey(conn),
        pid: uid,
        process: Process::Number(uid),
        thread: None,
        uid,
        name: String::new(),
        memory: wish.memory,
        alone: wish.alone,
        ready: true,
        group: None,
        counts: Default::default(),
        gauges: Default::default(),
    };
    let kind = if wish.port.pipe().is_some() { PortKind::Pipe } else { PortKind::Shm };
    let pipe = wish.port.pipe().map(|_| peer.unwrap_or(PipeKey(key.0)));
    let port = Port { pipe, holder: Some(holder), ..Port::new(key, kind, uid) };
    state.hold(wish.port, port);
    Ok(key)
}

fn wish(port: &PortName) -> Wish<'_> {
    Wish { port, memory: 10, group: None, existing: false, alone: false }
}

fn code(result: Result<PortKey, Refusal>) -> ErrorCode {
    result.unwrap_err().code()
}

#[test]
fn test_first_attach_makes_switch_and_last_detach_removes_it() {
    let mut state = State::new(quota());
    let (a, b) = (name("vale0:a"), name("vale0:b"));
    let key_a = attach(&mut state, 1000, 1, &wish(&a)).unwrap();
    attach(&mut state, 1000, 2, &wish(&b)).unwrap();
    assert_eq!(state.counts(), (1, 2));
    assert_eq!(state.held_by(ConnKey(1)), std::slice::from_ref(&a));
    let gone = state.release(&a);
    assert_eq!((gone.port, gone.pipe, gone.switch), (Some(key_a), None, None));
    assert_eq!(gone.left.map(|left| left.owner), Some(1000));
    assert_eq!(state.release(&b).switch, Some(SwitchKey(1)));
    assert_eq!(state.counts(), (0, 0));
}

#[test]
fn test_held_port_is_taken_until_released() {
    let mut state = State::new(quota());
    let a = name("vale0:a");
    attach(&mut state, 1000, 1, &wish(&a)).unwrap();
    assert_eq!(code(attach(&mut state, 1000, 2, &wish(&a))), ErrorCode::InUse);
    assert_eq!(code(attach(&mut state, 1000, 1, &wish(&a))), ErrorCode::InUse);
    state.release(&a);
    attach(&mut state, 1000, 2, &wish(&a)).unwrap();
}

#[test]
fn test_persistent_port_outlives_its_holder() {
    let mut state = State::new(quota());
    let a = name("vale0:a");
    state.add_switch(a.switch().clone(), switch(9, 1000, 0o600, false));
    let config = PortConfig { isolated: true, ..PortConfig::default() };
    let port = Port::persistent(PortKey(7), PortKind::Shm, 1000, config);
    state.add_port(a.clone(), port);
    let key = attach(&mut state, 1000, 1, &wish(&a)).unwrap();
    assert_eq!(state.release(&a), Gone { port: Some(key), user: Some(1000), ..Gone::default() });
    let port = state.port(&caller(1000), &a, Access::Look).unwrap();
    assert!(port.holder.is_none() && port.config.isolated);
    assert_eq!(state.remove_port(&a).switch, Some(SwitchKey(9)));
}

#[test]
fn test_only_existing_ports_where_asked() {
    let mut state = State::new(quota());
    let a = name("vale0:a");
    let wish = Wish { existing: true, ..wish(&a) };
    assert_eq!(code(attach(&mut state, 1000, 1, &wish)), ErrorCode::NotFound);
    assert_eq!(state.counts(), (0, 0));
}

#[test]
fn test_strangers_are_kept_out() {
    let mut state = State::new(quota());
    let (a, b) = (name("vale0:a"), name("vale0:b"));
    attach(&mut state, 1000, 1, &wish(&a)).unwrap();
    assert_eq!(code(attach(&mut state, 1001, 2, &wish(&b))), ErrorCode::Permission);
    attach(&mut state, 0, 3, &wish(&b)).unwrap();
}

#[test]
fn test_quotas_count_ports_memory_and_switches() {
    let mut state = State::new(quota());
    let names: Vec<PortName> = (0..4).map(|i| name(&format!("vale0:p{i}"))).collect();
    let greedy = Wish { memory: 101, ..wish(&names[0]) };
    assert_eq!(code(attach(&mut state, 1000, 1, &greedy)), ErrorCode::Quota);
    for port in &names[..3] {
        attach(&mut state, 1000, 1, &wish(port)).unwrap();
    }
    let refusal = attach(&mut state, 1000, 1, &wish(&names[3])).unwrap_err();
    assert!(refusal.to_string().contains("has 3 ports, the limit for one user"), "{refusal}");
    attach(&mut state, 1001, 2, &wish(&name("vale1:a"))).unwrap();
    attach(&mut state, 1001, 2, &wish(&name("vale2:a"))).unwrap();
    assert_eq!(code(attach(&mut state, 1001, 2, &wish(&name("vale3:a")))), ErrorCode::Quota);
}

#[test]
fn test_pipe_lives_as_long_as_one_end() {
    let mut state = State::new(quota());
    let (master, slave) = (name("vale0:a{1"), name("vale0:a}1"));
    attach(&mut state, 1000, 1, &wish(&master)).unwrap();
    attach(&mut state, 1000, 2, &wish(&slave)).unwrap();
    assert_eq!(state.release(&master), Gone { user: Some(1000), ..Gone::default() });
    let gone = state.release(&slave);
    assert!(gone.pipe.is_some() && gone.switch.is_some() && gone.port.is_none());
}

#[test]
fn test_memory_is_shared_by_one_user_only() {
    let mut state = State::new(quota());
    let (master, slave) = (name("vale0:a{1"), name("vale0:a}1"));
    state.add_switch(master.switch().clone(), switch(9, 1000, 0o666, true));
    attach(&mut state, 1000, 1, &wish(&master)).unwrap();
    assert_eq!(code(attach(&mut state, 1001, 2, &wish(&slave))), ErrorCode::Permission);
    attach(&mut state, 1000, 2, &wish(&slave)).unwrap();
}

#[test]
fn test_memory_of_a_pipe_is_paid_for_until_its_last_end_goes() {
    let mut state = State::new(quota());
    let (master, slave) = (name("vale0:a{1"), name("vale0:a}1"));
    attach(&mut state, 1000, 1, &Wish { memory: 60, ..wish(&master) }).unwrap();
    attach(&mut state, 1000, 2, &Wish { memory: 0, ..wish(&slave) }).unwrap();
    state.release(&master);
    assert_eq!(state.usage(1000).memory, 60);
    let another = name("vale0:b{1");
    let refusal = attach(&mut state, 1000, 1, &Wish { memory: 60, ..wish(&another) });
    assert_eq!(code(refusal), ErrorCode::Quota);
    attach(&mut state, 1000, 1, &Wish { memory: 0, ..wish(&master) }).unwrap();
    state.release(&slave);
    assert_eq!(state.usage(1000).memory, 60);
    state.release(&master);
    assert_eq!(state.usage(1000).memory, 0);
}

#[test]
fn test_quota_says_what_was_asked_what_is_held_and_what_may_be() {
    const MIB: u64 = 1 << 20;
    let mut state = State::new(Quota { memory: 40 * MIB, ..quota() });
    let (a, b) = (name("vale0:a"), name("vale0:b"));
    attach(&mut state, 1000, 1, &Wish { memory: 30 * MIB, ..wish(&a) }).unwrap();
    let refused = |wish| attach(&mut state, 1000, 1, &wish).unwrap_err().to_string();
    let [more, most] = [11 * MIB, 41 * MIB].map(|memory| Wish { memory, ..wish(&b) });
    let texts = [more, most].map(refused);
    let user = protocol::users::user_name(1000);
    let over = format!("this takes 11.0 MiB, and {user} has 30.0 of 40.0 MiB");
    assert!(texts[0].starts_with(&over), "{texts:?}");
    assert!(texts[1].starts_with("this takes 41.0 MiB, more than one user"), "{texts:?}");
}

#[test]
fn test_switches_are_not_given_away() {
    let permissions = switch(1, 1000, 0o600, true).permissions;
    let ask = |owner, group| SwitchSettings { owner, group, ..Default::default() };
    let change = |uid, settings| change_permissions(permissions, &caller(uid), &settings);
    assert!(change(1000, ask(Some(1001), None)).is_err());
    assert!(change(1000, ask(None, Some(7))).is_err());
    assert!(change(1000, ask(Some(1000), Some(1000))).is_ok());
    assert_eq!(change(0, ask(Some(1001), Some(7))).unwrap().owner, 1001);
}

proptest! {
    /// Whatever happens in whatever order, nothing is left when all connections have closed.
    #[test]
    fn test_nothing_is_left_when_everybody_left(
        steps in proptest::collection::vec((0u64..3, 0usize..6, proptest::bool::ANY), 0..60),
    ) {
        let texts = ["vale0:a", "vale0:b", "vale1:a", "vale0:a{1", "vale0:a}1", "vale:p"];
        let mut state = State::new(quota());
        for (conn, port, leave) in steps {
            let port = name(texts[port]);
            if leave {
                for port in state.held_by(ConnKey(conn)) {
                    state.release(&port);
                }
            } else {
                let _ = attach(&mut state, 1000, conn, &wish(&port));
            }
            let usage = state.usage(1000);
            prop_assert!(usage.ports <= 3 && usage.memory <= 100);
            let holders = state.ports.values().filter(|port| port.holder.is_some());
            let listed: usize = state.held.values().map(BTreeSet::len).sum();
            prop_assert_eq!(holders.count(), listed);
            prop_assert_eq!(state.index.key_count(), state.ports.len());
            for (name, port) in &state.ports {
                prop_assert_eq!(state.port_with(port.key).map(|(known, _)| known), Some(name));
            }
        }
        for conn in 0..3 {
            for port in state.held_by(ConnKey(conn)) {
                state.release(&port);
            }
        }
        prop_assert_eq!(state.counts(), (0, 0));
        prop_assert_eq!(state.index.key_count(), 0);
    }
}

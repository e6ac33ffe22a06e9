//! The next daemon.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use packet::{MacAddr, VlanId};
use port::shm::PortMemory;
use port::sys::{ClosedElsewhere, Closer, Doorbell, new_event};
use protocol::{HandedOver, HandedPort, PageFrom};
use ring::krings::Positions;
use rustix::event::epoll::CreateFlags;

use super::*;
use crate::handed::{Handed, Successor};
use crate::model::handed::{Inherited, Parting};

#[test]
fn test_only_root_and_the_daemons_user_replace_it() {
    let mut bench = Bench::new();
    for call in [r#"{"hand_over":{}}"#, r#""end""#] {
        let (code, message) = bench.refused(1, 1000, call);
        assert_eq!(code, ErrorCode::Permission);
        assert!(message.contains("only root and the daemon's user"), "{message}");
    }
    let (code, message) = bench.refused(1, 0, r#"{"hand_over":{"from":"x"}}"#);
    assert!(code == ErrorCode::BadRequest && message.contains("from: "), "{message}");
    let none = HandedOver { name: None, next: None };
    assert_eq!(bench.ask(1, 0, r#"{"hand_over":{}}"#).unwrap(), Reply::HandedOver(none));
    assert!(bench.control.successor().is_none());
    bench.done(r#""end""#);
    assert!(bench.control.successor().is_some());
    assert!(!bench.control.leave(), "its workers go on to the end");
}

impl Bench {
    /// What the next daemon gets of all ports of clients.
    fn handed(&mut self) -> Vec<HandedPort> {
        let (mut all, mut from) = (Vec::new(), None);
        loop {
            let call = Request::Session(SessionRequest::HandOverPort(PageFrom { from }));
            let (reply, fds) = self.answer(9, 0, call).unwrap();
            let Reply::HandedPort(page) = reply else { panic!("{reply:?}") };
            assert_eq!(fds.len(), 3 * page.items.len());
            assert_eq!(self.control.take_handed().is_some(), !page.items.is_empty());
            all.extend(page.items);
            match page.next {
                Some(next) => from = Some(next),
                None => return all,
            }
        }
    }

    fn end(&mut self) -> Vec<OwnedFd> {
        let (reply, fds) = self.answer(9, 0, Request::Session(SessionRequest::End)).unwrap();
        assert_eq!(reply, Reply::Done);
        fds
    }
}

fn names(ports: &[HandedPort]) -> Vec<String> {
    ports.iter().map(|port| port.attach.port.to_string()).collect()
}

#[test]
fn test_ports_are_handed_over_that_are_all_that_a_connection_has() {
    let mut bench = Bench::new();
    bench.done(r#"{"port_add":{"port":"vale0:z"}}"#);
    for (conn, port) in [(1, "vale0:z"), (2, "vale0:a"), (3, "vale0:b"), (3, "vale0:c")] {
        bench.attach(conn, 0, port).unwrap();
    }
    bench.ask(4, 0, r#"{"attach":{"port":"vale0:d","group":"g"}}"#).unwrap();
    bench.attach(5, 0, "vale0:e").unwrap();
    bench.ask(5, 0, r#"{"events":{}}"#).unwrap();
    for (conn, port) in [(6, "vale0:f"), (7, "vale0:x{1")] {
        bench.attach(conn, 0, port).unwrap();
    }
    bench.done(r#"{"port_set":{"port":"vale0:f","settings":{"isolated":true}}}"#);
    let waits = bench.reserve(8, "vale0:g");
    let handed = bench.handed();
    assert_eq!(names(&handed), ["vale0:z", "vale0:a"], "in the order of their keys");
    let [first, _] = &handed[..] else { panic!("two") };
    assert_eq!((first.client.as_str(), first.stride), ("test 1", Config::default().rings.stride));
    assert_eq!(first.attach.tx_slots, Some(Config::default().rings.counts.tx_slots.slots()));
    let (code, _) = bench.refused(1, 1000, r#"{"hand_over_port":{}}"#);
    assert_eq!(code, ErrorCode::Permission);
    drop(waits);
}

#[test]
fn test_workers_stop_only_for_a_daemon_that_knows_what_to_do_with_ports() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    assert!(bench.end().is_empty() && !bench.control.datapath.is_halted);
    bench.handed();
    let said = bench.end().pop().unwrap();
    assert!(bench.control.datapath.is_halted && bench.control.leave());
    let Parting { watchdog_us, ports } = Parting::read(said).unwrap();
    assert_eq!(watchdog_us, 30_000_000, "the next one reports to systemd as often");
    let [port] = &ports[..] else { panic!("{ports:?}") };
    assert_eq!(port.positions().bell, port.key);
}

/// A port that another daemon has served.
fn successor(name: &str, bytes_of: &Bench) -> Successor {
    let rings = bytes_of.control.defaults.rings;
    let memory = PortMemory::reserve(name, rings.counts, 0, rings.stride).unwrap();
    let file = || memory.fd.as_fd().try_clone_to_owned().unwrap();
    let at = Positions { bell: 1, tx: Vec::new(), rx: Vec::new() };
    let (kicks, wake) = (Vec::new(), file());
    let attach = Attach::new(name.parse().unwrap());
    let inherited = Inherited { memory, kicks, wake, at };
    Successor {
        port: HandedPort { key: 1, client: "one".to_owned(), attach, stride: rings.stride },
        rings,
        inherited: ClosedElsewhere::new(inherited, &Closer::in_place()),
        stations: vec![(MacAddr::new([2, 0, 0, 0, 0, 1]), VlanId::DEFAULT)],
    }
}

#[test]
fn test_a_successor_holds_its_port_as_any_client_and_gives_it_back() {
    let mut bench = Bench::new();
    let one = successor("vale0:a", &bench);
    bench.control.succeed(&client(1, 1000), one).unwrap();
    let port = bench.control.state.find_port(&"vale0:a".parse().unwrap()).unwrap();
    assert_eq!((port.owner, port.config.user, port.is_live()), (1000, 1000, true));
    assert_eq!(bench.control.datapath.fdb.len(), 1);
    let two = successor("vale0:a", &bench);
    let refused = bench.control.succeed(&client(2, 1000), two).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InUse);
    bench.control.hang_up(ConnKey(1));
    assert!(bench.is_empty());
}

#[test]
fn test_a_successor_that_is_refused_leaves_nothing() {
    let mut bench = Bench::new();
    bench.control.datapath.out_of_memory = true;
    let one = successor("vale0:a", &bench);
    bench.control.succeed(&client(1, 1000), one).unwrap_err();
    assert!(bench.is_empty());
    // A function's port by now.
    bench.done(r#"{"switch_add":{"switch":"vale1","settings":{"forwarding":"chain"}}}"#);
    bench.done(r#"{"port_add":{"port":"vale1:f","settings":{"service":"s"}}}"#);
    let one = successor("vale1:f", &bench);
    let refused = bench.control.succeed(&client(1, 0), one).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::BadRequest);
}

#[test]
fn test_copies_that_are_no_port_are_refused() {
    let bench = Bench::new();
    let Successor { port, inherited, .. } = successor("vale0:a", &bench);
    let file = || inherited.get().memory.fd.try_clone().unwrap();
    let bell = Doorbell::new().unwrap();
    let (mut handed, ready) = (Handed::new(vec![bell.ringer()]), |_| Closer::in_place());
    let event = || new_event().unwrap();
    assert!(handed.add(port.clone(), vec![file(), file(), file()], ready).is_err());
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let socket = || OwnedFd::from(UnixStream::pair().unwrap().0);
    assert!(handed.add(port.clone(), vec![null(), event(), file(), socket()], ready).is_err());
    assert!(handed.add(port.clone(), vec![file(), event(), file(), file()], ready).is_err());
    let set = || rustix::event::epoll::create(CreateFlags::CLOEXEC).unwrap();
    for kick in [file(), set()] {
        let fds = vec![file(), kick, file(), socket()];
        assert!(handed.add(port.clone(), fds, ready).is_err(), "no eventfd");
    }
    let mut other = port.clone();
    other.attach.tx_slots = Some(64);
    assert!(handed.add(other, vec![file(), event(), file(), socket()], ready).is_err());
    handed.add(port, vec![file(), event(), file(), socket()], ready).unwrap();
    let said = Parting { watchdog_us: 7, ..Parting::default() };
    let left = handed.at_the_end(said.write().unwrap()).unwrap();
    assert!(left.clients.is_empty() && left.watchdog == Duration::from_micros(7));
}

/// A client has the same files, and may keep the thread that closes them.
#[test]
fn test_what_is_not_taken_over_is_closed_by_its_users_closer() {
    let bench = Bench::new();
    let Successor { port, inherited, .. } = successor("vale0:a", &bench);
    let region = || inherited.get().memory.fd.try_clone().unwrap();
    let (later, chores) = channel();
    let closer = |user| {
        let later = later.clone();
        Closer::new(move |closing| later.send((user, closing)).unwrap())
    };
    let bells = [(); 2].map(|()| Doorbell::new().unwrap());
    let mut handed = Handed::new(bells.iter().map(Doorbell::ringer).collect());
    let own = rustix::process::geteuid().as_raw();
    // All ends of the client's; what sees that one is closed.
    let files = || {
        let ((ours, theirs), (connection, client)) =
            (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let fds = vec![region(), new_event().unwrap(), ours.into(), connection.into()];
        (fds, [theirs, client])
    };
    let are_open = |ends: &[UnixStream; 2]| {
        ends.iter().all(|end| {
            end.set_nonblocking(true).unwrap();
            std::io::Read::read(&mut &*end, &mut [0]).is_err()
        })
    };
    let mut odd = port.clone();
    odd.attach.tx_slots = Some(3);
    let ((fds, ends), (mut few, few_ends)) = (files(), files());
    assert!(handed.add(odd, fds, closer).is_err() && are_open(&ends));
    few.swap_remove(0);
    assert!(handed.add(port.clone(), few, closer).is_err());
    handed.add(port, files().0, closer).unwrap();
    drop((handed, few_ends));
    let users: Vec<u32> = chores.try_iter().map(|(user, _)| user).collect();
    // What is refused at once; what was to be taken over: the connection, the rest, and then the
    // kick at each worker. The thread that maps memory has closed the few.
    assert_eq!(users, [own; 5]);
}

//! The socket against clients that do everything wrong.

use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use client::control::{Connection as Call, ControlError};
use protocol::{Attach, ErrorCode, PortRef, SessionRequest};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketType, recv, sendmsg, shutdown, socket_with,
};

use super::super::fake::Fake;
use super::*;
use crate::config::Config;
use crate::lockfile::CHILD;
use crate::start::Place;
use crate::{Daemon, Stopper};

/// A daemon in a thread of the test.
struct Running {
    dir: PathBuf,
    socket: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(connections: u32) -> Self {
        Self::after(connections, |_| ())
    }

    /// One whose server was changed before it ran.
    fn after(connections: u32, change: impl FnOnce(&mut Server<Fake>)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uvala-socket-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let mut config = Config { dir: Some(dir.clone()), ..Config::default() };
        config.quota.connections = connections;
        let mut daemon = Daemon::start(&config, Fake::default()).unwrap();
        change(&mut daemon.server);
        let socket = daemon.socket().to_path_buf();
        let stopper = daemon.stopper().unwrap();
        let thread = Some(std::thread::spawn(move || daemon.run().unwrap()));
        Self { dir, socket, stopper, thread }
    }

    fn call(&self) -> Call {
        Call::connect(&self.socket).unwrap()
    }

    /// A bare socket.
    fn raw(&self) -> OwnedFd {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        socket
    }

    /// Sends bytes and reads the answer; empty when the daemon closed without one.
    fn exchange(&self, socket: &OwnedFd, text: &[u8]) -> String {
        rustix::net::send(socket, text, SendFlags::NOSIGNAL).unwrap();
        read(socket)
    }

    fn ports(&self) -> u32 {
        self.call().hello("test").unwrap().ports
    }

    /// Waits until the daemon has heard of hang-ups, which it does at once but not at this instant.
    fn wait_for_ports(&self, count: u32) {
        for _ in 0..200 {
            if self.ports() == count {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{} ports instead of {count}", self.ports());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        std::fs::remove_dir_all(&self.dir).ok();
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn read(socket: &OwnedFd) -> String {
    let mut buffer = vec![0; MAX_MESSAGE];
    let (_, length) = recv(socket, &mut buffer[..], RecvFlags::empty()).unwrap_or_default();
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

/// Leaves the reply unread.
fn wait_for_reply(socket: &OwnedFd) {
    recv(socket, &mut [0; 1], RecvFlags::PEEK).unwrap();
}

fn attach(name: &str) -> Attach {
    Attach::new(name.parse().unwrap())
}

#[test]
fn test_ports_go_with_their_connection() {
    let daemon = Running::new(8);
    let call = daemon.call();
    let (attached, _fds) = call.attach(attach("vale0:a")).unwrap();
    assert_eq!(attached.port.to_string(), "vale0:a");
    call.attach(attach("vale0:b")).unwrap();
    assert_eq!(daemon.ports(), 2);
    drop(call);
    daemon.wait_for_ports(0);
}

#[test]
fn test_calls_of_a_user_that_has_used_up_its_allowance_wait_and_are_answered() {
    let (uid, mut charged) = (rustix::process::geteuid().as_raw(), None);
    let daemon = Running::after(8, |server| {
        let now = *charged.insert(Instant::now());
        server.allowance.charge(uid, Duration::from_millis(1050), now);
    });
    daemon.call().hello("test").unwrap();
    let waited = charged.expect("it was changed").elapsed();
    assert!(waited >= Duration::from_millis(500), "{waited:?}: ten times 50 ms");
    daemon.call().hello("test").unwrap();
}

/// The thread sleeps while a worker does what a call asks for.
#[test]
fn test_what_workers_take_for_a_call_is_charged_to_its_user() {
    let _running = Running::after(8, |server| {
        for (uid, privileged) in [(1000, false), (1001, true)] {
            let took = Duration::from_secs(2);
            server.charged(Payer { uid, privileged }, |_| crate::cpu_time::add_caused(took));
            let waits = server.allowance.wait(uid, Instant::now());
            assert_eq!(waits > Duration::from_secs(5), !privileged, "{waits:?}: ten times 1 s");
        }
    });
}

/// A client that hangs up, and then asks over another connection, has already hung up.
#[test]
fn test_a_hang_up_is_heard_before_a_request_that_came_after_it() {
    let _none_begins = CHILD.lock().unwrap();
    let daemon = Running::new(8);
    let other = daemon.call();
    let detach =
        Request::Session(SessionRequest::Detach(PortRef { port: "vale0:a".parse().unwrap() }));
    for turn in 0..2000 {
        let call = daemon.call();
        let (_, fds) = call.attach(attach("vale0:a")).unwrap();
        other.hello("other").unwrap();
        drop((call, fds));
        other.attach(attach("vale0:a")).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        other.call(detach.clone()).unwrap();
    }
}

/// Calls that come together are answered one by one, also those that wait for the disk.
#[test]
fn test_calls_that_are_sent_together_are_answered_in_order() {
    let daemon = Running::new(8);
    let sockets = [daemon.raw(), daemon.raw(), daemon.raw()];
    for round in 0..50 {
        for (number, socket) in sockets.iter().enumerate() {
            let port = format!("vale{number}:p{round}");
            for call in [
                format!(r#"{{"v":1,"call":{{"port_add":{{"port":"{port}"}}}}}}"#),
                format!(r#"{{"v":1,"call":{{"port_show":{{"port":"{port}"}}}}}}"#),
                format!(r#"{{"v":1,"call":{{"port_add":{{"port":"{port}"}}}}}}"#),
            ] {
                rustix::net::send(socket, call.as_bytes(), SendFlags::NOSIGNAL).unwrap();
            }
        }
        for socket in &sockets {
            for expected in ["done", "settings", "exists"] {
                let answer = read(socket);
                assert!(answer.contains(expected), "{answer}");
            }
        }
    }
    assert_eq!(daemon.ports(), 150);
}

/// What was answered before the end, and what was asked for, is there afterwards.
#[test]
fn test_changes_are_there_after_the_end() {
    let daemon = Running::new(8);
    let sockets = [daemon.raw(), daemon.raw()];
    for (number, socket) in sockets.iter().enumerate() {
        let call = format!(r#"{{"v":1,"call":{{"switch_add":{{"switch":"vale{number}"}}}}}}"#);
        rustix::net::send(socket, call.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }
    daemon.call().hello("test").unwrap();
    daemon.call().hello("test").unwrap();
    daemon.stopper.stop();
    for socket in &sockets {
        assert!(read(socket).contains("done"));
    }
    for switch in ["vale0", "vale1"] {
        assert!(daemon.dir.join("state").join(format!("{switch}.json")).exists());
    }
}

#[test]
fn test_half_closed_connection_is_closed() {
    let daemon = Running::new(8);
    let socket = daemon.raw();
    let text = br#"{"v":1,"call":{"attach":{"port":"vale0:a"}}}"#;
    assert!(daemon.exchange(&socket, text).contains("attached"));
    shutdown(&socket, Shutdown::Write).unwrap();
    daemon.wait_for_ports(0);
    assert_eq!(read(&socket), "");
}

#[test]
fn test_nonsense_gets_an_answer_and_then_nothing() {
    let daemon = Running::new(64);
    let oversized = vec![b' '; MAX_MESSAGE + 1];
    let nested = vec![b'['; MAX_MESSAGE];
    for text in [&b"hello"[..], b"\xff\x00\xfe", b"{}", b"{\"v\":1}", &oversized, &nested] {
        let socket = daemon.raw();
        let answer = daemon.exchange(&socket, text);
        assert!(answer.contains("bad_request"), "{answer}");
        assert_eq!(read(&socket), "");
    }
    for text in [
        r#"{"v":1,"call":{"attach":{"port":"eth0"}}}"#,
        r#"{"v":1,"call":{"switch_show":{"switch":"vale-0"}}}"#,
    ] {
        let answer = daemon.exchange(&daemon.raw(), text.as_bytes());
        assert!(answer.contains("bad_name"), "{answer}");
    }
    let answer = daemon.exchange(&daemon.raw(), br#"{"v":2,"call":{"new":1}}"#);
    assert!(answer.contains("speaks protocol 1, not 2"), "{answer}");
    let empty = daemon.raw();
    assert_eq!(daemon.exchange(&empty, b""), "");
    // A call of another release leaves the connection open.
    let other = daemon.raw();
    for _ in 0..2 {
        let answer = daemon.exchange(&other, br#"{"v":1,"call":{"hop":{"list":"vale0:a"}}}"#);
        assert!(answer.contains("there is no call `hop`"), "{answer}");
    }
    assert_eq!(daemon.ports(), 0);
}

#[test]
fn test_random_bytes_do_no_harm() {
    let daemon = Running::new(64);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::new();
    for length in 1..200 {
        bytes.clear();
        bytes.extend((0..length).map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_le_bytes()[0]
        }));
        let answer = daemon.exchange(&daemon.raw(), &bytes);
        assert!(answer.contains("bad_request"), "{answer}");
    }
    assert_eq!(daemon.ports(), 0);
}

#[test]
fn test_descriptors_sent_to_the_daemon_are_closed() {
    let daemon = Running::new(8);
    let socket = daemon.raw();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let text = br#"{"v":1,"call":{"hello":{"client":"stuffer"}}}"#;
    assert!(daemon.exchange(&socket, text).contains("daemon"));
    for _ in 0..100 {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [writer.as_fd(); 200];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        let parts = [IoSlice::new(text)];
        sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL).unwrap();
        assert!(read(&socket).contains("daemon"));
    }
    // Were one copy of the writing end left anywhere in this process, there would be no end.
    drop(writer);
    let mut byte = [0];
    assert_eq!(rustix::io::read(&reader, &mut byte), Ok(0), "fd {}", reader.as_raw_fd());
}

#[test]
fn test_client_that_reads_no_replies_is_closed() {
    let daemon = Running::new(8);
    let socket = daemon.raw();
    let text = br#"{"v":1,"call":{"hello":{"client":"deaf"}}}"#;
    let closed =
        (0..100_000).any(|_| rustix::net::send(&socket, text, SendFlags::NOSIGNAL).is_err());
    assert!(closed);
    assert_eq!(daemon.ports(), 0);
}

#[test]
fn test_connections_of_one_user_are_bounded() {
    let daemon = Running::new(3);
    let held: Vec<Call> = (0..3).map(|_| daemon.call()).collect();
    for call in &held {
        call.hello("test").unwrap();
    }
    let fourth = daemon.call().hello("test");
    let Err(ControlError::Refused(failure)) = fourth else { panic!("{fourth:?}") };
    assert_eq!(failure.code, ErrorCode::Quota);
    assert!(failure.message.contains("has 3 connections"), "{}", failure.message);
    drop(held);
    let hear = || daemon.call().hello("test").is_ok();
    assert!((0..200).any(|_| hear() || {
        std::thread::yield_now();
        false
    }));
}

#[test]
fn test_stopped_daemon_is_reported_as_gone() {
    let daemon = Running::new(3);
    let call = daemon.call();
    call.hello("test").unwrap();
    let socket = daemon.socket.clone();
    drop(daemon);
    assert!(matches!(call.hello("test"), Err(ControlError::Lost(_))));
    assert!(matches!(Call::connect(&socket), Err(ControlError::NoDaemon(_))));
}

/// A server of which each user may leave 32 replies with descriptors unread.
struct Stingy {
    dir: PathBuf,
    socket: PathBuf,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Stingy {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("uvala-{name}-{}", std::process::id()));
        let config = Config { dir: Some(dir.clone()), ..Config::default() };
        let (place, listener) = Place::take(&dir, &config.socket).unwrap();
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let control = Control::new(&config, Fake::default());
        let mut server = Server::new(listener, stopped.as_fd(), control, 64).unwrap();
        server.unread = Unread::new(Some(0));
        let socket = place.socket().to_path_buf();
        let body = move || {
            server.run().0.unwrap();
            drop((place, stopped));
        };
        Self { dir, socket, stop: Some(stop), thread: Some(std::thread::spawn(body)) }
    }

    fn connect(&self) -> OwnedFd {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        socket
    }

    fn ask(&self, socket: &OwnedFd, port: usize) {
        let call = format!(r#"{{"v":1,"call":{{"attach":{{"port":"vale0:p{port}"}}}}}}"#);
        rustix::net::send(socket, call.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }

    /// Waits until there are this many ports, and nothing more is under way.
    fn wait_for_ports(&self, count: u32) {
        let ports = || Call::connect(&self.socket).unwrap().hello("test").unwrap().ports;
        let is_it = |_| {
            std::thread::sleep(Duration::from_millis(10));
            ports() == count
        };
        assert!((0..1000).any(is_it), "{} ports instead of {count}", ports());
    }
}

impl Drop for Stingy {
    fn drop(&mut self) {
        drop(self.stop.take());
        let ended = self.thread.take().map(JoinHandle::join);
        std::fs::remove_dir_all(&self.dir).ok();
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

#[test]
fn test_a_connection_has_one_reply_with_descriptors_until_it_reads_it() {
    let daemon = Stingy::new("deaf");
    let socket = daemon.connect();
    (0..5).for_each(|port| daemon.ask(&socket, port));
    daemon.wait_for_ports(1);
    std::thread::sleep(Duration::from_millis(50));
    daemon.wait_for_ports(1);
    for port in 0..5 {
        let answer = read(&socket);
        assert!(answer.contains(&format!("vale0:p{port}")), "{answer}");
    }
    daemon.wait_for_ports(5);
}

#[test]
fn test_a_user_that_reads_no_replies_is_refused_more_descriptors_and_loses_no_port() {
    let daemon = Stingy::new("deaf-user");
    let deaf: Vec<OwnedFd> = (0..32).map(|_| daemon.connect()).collect();
    deaf.iter().enumerate().for_each(|(port, socket)| daemon.ask(socket, port));
    // A port is there before the reply that hands it over.
    deaf.iter().for_each(wait_for_reply);
    daemon.wait_for_ports(32);
    let more = daemon.connect();
    let try_more = || {
        daemon.ask(&more, 99);
        read(&more)
    };
    let refused = try_more();
    assert!(refused.contains("quota") && refused.contains("32 replies"), "{refused}");
    daemon.wait_for_ports(32);
    // Half a close takes the port, but the descriptors are still in the socket.
    shutdown(&deaf[0], Shutdown::Write).unwrap();
    daemon.wait_for_ports(31);
    assert!(try_more().contains("32 replies"));
    assert!(read(&deaf[0]).contains("vale0:p0"));
    let is_served = |_| {
        std::thread::sleep(Duration::from_millis(10));
        try_more().contains("attached")
    };
    assert!((0..1000).any(is_served));
    daemon.wait_for_ports(32);
}

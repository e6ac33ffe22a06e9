//! Network namespaces of a test, and what is sent and heard in them.
//!
//! A namespace belongs to a process that sleeps; when that is killed, the namespace dies. Nothing
//! here touches an interface of the system that the tests run on.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::Owned;
use crate::{Random, wait};

/// A network namespace with its loopback up and nothing else.
#[derive(Debug)]
pub struct Namespace(Owned);

impl Namespace {
    /// A new one; `None` where we may not make one, which is said.
    ///
    /// # Panics
    /// Where there are neither `unshare` nor `ip`.
    #[must_use]
    pub fn new() -> Option<Self> {
        let args = ["--net", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"];
        let mut command = Command::new("unshare");
        let mut process = Owned::spawn(command.args(args).stdout(Stdio::piped()));
        match process.stdout().read(&mut [0]) {
            Ok(1) => Some(Self(process)),
            _ => {
                crate::skip("network namespaces need root; also: unshare -Urn");
                None
            }
        }
    }

    /// How it is named: by the process that has it.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.pid().to_string()
    }

    /// Runs `job` on a thread that is in it; so are the processes that it starts.
    ///
    /// # Panics
    /// As `job` does.
    pub fn within<R: Send>(&self, job: impl FnOnce() -> R + Send) -> R {
        let file = File::open(format!("/proc/{}/ns/net", self.0.pid())).expect("our own process");
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(file.as_fd(), network).expect("we made it");
                job()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `job` on this thread, which is in it meanwhile. Processes that `job` starts live as
    /// long as this thread; those of [`within`](Self::within) end with `job`.
    ///
    /// # Panics
    /// As `job` does, and then the thread stays there.
    pub fn visit<R>(&self, job: impl FnOnce() -> R) -> R {
        let network = Some(LinkNameSpaceType::Network);
        let here = File::open("/proc/thread-self/ns/net").expect("our own thread");
        let there = File::open(format!("/proc/{}/ns/net", self.0.pid())).expect("our own process");
        move_into_link_name_space(there.as_fd(), network).expect("we made it");
        let result = job();
        move_into_link_name_space(here.as_fd(), network).expect("we were there");
        result
    }

    /// Runs `ip` with these words in it.
    ///
    /// # Panics
    /// If that fails.
    pub fn ip(&self, words: &str) {
        self.within(|| ip(words));
    }

    /// Ends it with all that is in it.
    pub fn die(self) {}

    /// What `ip` shows inside.
    ///
    /// # Panics
    /// If there is no such program.
    #[must_use]
    pub fn seen(&self, words: &str) -> String {
        self.within(|| {
            let output = Command::new("ip").args(words.split(' ')).output().expect("iproute2");
            String::from_utf8(output.stdout).expect("UTF-8")
        })
    }
}

/// Runs `ip` with these words, here.
///
/// # Panics
/// If that fails.
pub fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output().expect("iproute2");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {words}: {text}");
}

/// Whether there is an interface of this name in this thread's namespace. (`/sys` shows those of
/// the namespace in which it was mounted.)
///
/// # Panics
/// If there is no `ip`.
#[must_use]
pub fn is_there(interface: &str) -> bool {
    let output = Command::new("ip").args(["link", "show", "dev", interface]).output();
    output.expect("iproute2").status.success()
}

/// Sends `bytes` bytes over TCP from one namespace to an address in another, and checks each.
///
/// # Panics
/// If they do not arrive.
pub fn tcp(from: &Namespace, to: &Namespace, address: &str, bytes: usize) {
    let address: IpAddr = address.parse().expect("an address");
    let listener = to.within(|| {
        // The address may have to be settled first.
        wait::find("an address to listen on", || TcpListener::bind((address, 0)).ok())
    });
    let port = listener.local_addr().expect("bound").port();
    let data = pattern(bytes);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            stream.set_read_timeout(Some(wait::PATIENCE)).expect("ours");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).map(|_| all).expect("all of it")
        });
        from.within(|| {
            let mut stream = wait::find("a connection", || {
                let to = SocketAddr::new(address, port);
                TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok()
            });
            stream.set_write_timeout(Some(wait::PATIENCE)).expect("ours");
            stream.write_all(&data).expect("taken");
            stream.shutdown(Shutdown::Write).expect("open");
        });
        assert!(receiver.join().expect("no panic") == data, "other bytes have arrived");
    });
}

/// Sends datagrams of this length from here until one arrives at a socket of another namespace.
///
/// # Panics
/// If none does.
pub fn udp(to: &Namespace, address: &str, bytes: usize) {
    let address: IpAddr = address.parse().expect("an address");
    let there =
        to.within(|| wait::find("an address to listen on", || UdpSocket::bind((address, 0)).ok()));
    there.set_read_timeout(Some(Duration::from_millis(100))).expect("ours");
    let data = pattern(bytes);
    let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let here = UdpSocket::bind(local).expect("any port");
    let mut buffer = vec![0; bytes + 1];
    wait::until("a datagram", || {
        // Before the other side is known, a datagram can be refused or lost.
        let _ = here.send_to(&data, there.local_addr().expect("bound"));
        there.recv(&mut buffer).is_ok_and(|len| buffer[..len] == data)
    });
}

fn pattern(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(bytes as u64);
    let mut data: Vec<u8> =
        (0..bytes.div_ceil(8)).flat_map(|_| random.any().to_le_bytes()).collect();
    data.truncate(bytes);
    data
}

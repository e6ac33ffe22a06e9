//! A daemon among namespaces, and its ports of network interfaces.

use std::os::fd::{AsFd, OwnedFd};

use client::control::{Connection, ControlError};
use protocol::ErrorCode;
use protocol::{
    HostIf, HostIfInfo, LinkState, PortAdd, PortKind, PortRef, PortRequest, PortSettings, Request,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::daemon::Daemon;
use crate::net::{Namespace, ip};
use crate::{skip, wait};

/// A namespace for a daemon, and others to connect.
#[derive(Debug)]
pub struct Lab {
    /// Where the daemon is.
    pub home: Namespace,
    /// The others.
    pub guests: Vec<Namespace>,
}

impl Lab {
    /// With this many others; `None` where namespaces cannot be made, which is said.
    #[must_use]
    pub fn new(guests: usize) -> Option<Self> {
        let guests = (0..guests).map(|_| Namespace::new()).collect::<Option<_>>()?;
        Some(Self { home: Namespace::new()?, guests })
    }

    /// Runs a story with a daemon in the home namespace.
    pub fn tell(self, story: impl FnOnce(&Daemon, &Self) + Send) {
        self.home.within(|| story(&Daemon::start(), &self));
    }
}

/// Adds a port with an interface.
///
/// # Errors
/// What the daemon says.
///
/// # Panics
/// If it says nothing.
pub fn add(daemon: &Daemon, port: &str, kind: PortKind, host: HostIf) -> Result<(), ControlError> {
    let port = port.parse().expect("a name");
    let settings = PortSettings::default();
    let add = PortAdd { port, kind, settings, host: Some(host), machine: None, vxlan: None };
    daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).map(drop)
}

/// Adds a port of a TAP that is open, with its queues.
///
/// # Errors
/// What the daemon says.
///
/// # Panics
/// If the port has no valid name, or the daemon does not answer.
pub fn give_taps(daemon: &Daemon, port: &str, taps: &[OwnedFd]) -> Result<(), ControlError> {
    let (port, settings) = (port.parse().expect("a name"), PortSettings::default());
    let fds = u8::try_from(taps.len()).expect("few");
    let host = Some(HostIf { fds, ..HostIf::default() });
    let add = PortAdd { port, kind: PortKind::Tap, settings, host, machine: None, vxlan: None };
    let taps: Vec<_> = taps.iter().map(AsFd::as_fd).collect();
    let connection = Connection::open(Some(&daemon.dir())).expect("a daemon");
    connection.call_giving(Request::Port(PortRequest::Add(Box::new(add))), &taps).map(drop)
}

/// Deletes a port.
///
/// # Panics
/// If the daemon refuses.
pub fn delete(daemon: &Daemon, port: &str) {
    let port = PortRef { port: port.parse().expect("a name") };
    daemon.call(Request::Port(PortRequest::Del(port))).expect("it is there");
}

/// What the daemon said when it refused.
///
/// # Panics
/// If it did not.
#[must_use]
pub fn refusal(result: Result<(), ControlError>) -> (ErrorCode, String) {
    match result {
        Err(ControlError::Refused(failure)) => (failure.code, failure.message),
        other => panic!("{other:?}"),
    }
}

/// A TAP `eth0` in a namespace, with an address there.
///
/// # Panics
/// If that is none.
#[must_use]
pub fn inside(guest: &Namespace, address: &str) -> HostIf {
    HostIf {
        ifname: Some("eth0".to_owned()),
        netns: Some(guest.name()),
        address: Some(address.parse().expect("an address")),
        ..HostIf::default()
    }
}

/// A veth pair: `name` here, `eth0` with an address in a namespace; `more` words for both ends.
pub fn veth(guest: &Namespace, name: &str, address: &str, more: &str) {
    ip(&format!("link add {name} {more} type veth peer name eth0 netns {} {more}", guest.name()));
    ip(&format!("link set {name} up"));
    guest.ip("link set eth0 up");
    guest.ip(&format!("addr add {address} dev eth0 nodad"));
}

/// What there is to say of a port's interface.
///
/// # Panics
/// If it has none.
#[must_use]
pub fn host(daemon: &Daemon, port: &str) -> HostIfInfo {
    *daemon.port(port).expect("a port").host.expect("an interface")
}

/// Waits until the interface of a port is in this state.
pub fn becomes(daemon: &Daemon, port: &str, state: LinkState) {
    wait::until("the state of a link", || host(daemon, port).state == state);
}

/// How often something has an interface take in frames for others, and whether a program is on it.
///
/// # Panics
/// Without iproute2.
#[must_use]
pub fn touched(ifname: &str) -> (String, bool) {
    let args = ["-d", "link", "show", ifname];
    let output = std::process::Command::new("ip").args(args).output().expect("iproute2");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, rest) = text.split_once("promiscuity ").expect("iproute2 says it");
    let often = rest.split(' ').next().expect("a number").to_owned();
    (often, text.contains("xdp"))
}

/// What processes that are started may lock of memory, again as it was when this is dropped.
#[derive(Debug)]
pub struct Locks(Rlimit);

impl Locks {
    /// Enough for an interface with one queue, not for one with four.
    ///
    /// # Panics
    /// Where it is less.
    #[must_use]
    pub fn little() -> Self {
        let was = getrlimit(Resource::Memlock);
        let little = Rlimit { current: Some(8 << 20), maximum: was.maximum };
        setrlimit(Resource::Memlock, little).expect("less is for everybody");
        Self(was)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        let _ = setrlimit(Resource::Memlock, self.0);
    }
}

/// Whether AF_XDP can be had here, by what became of a port that wants it.
///
/// # Panics
/// If it was refused for another reason.
#[must_use]
pub fn has_xdp(result: Result<(), ControlError>) -> bool {
    match result {
        Ok(()) => true,
        Err(ControlError::Refused(failure))
            if matches!(failure.code, ErrorCode::Permission | ErrorCode::Unsupported) =>
        {
            skip(&format!("root with AF_XDP is needed: {}", failure.message));
            false
        }
        other => panic!("{other:?}"),
    }
}

//! `uvala-helper`: opens one network interface for the process at its standard input, and ends.
//!
//! If it has changed the interface, it waits for the confirmation that the port was made. Without
//! one, or if the daemon dies, it reverts the changes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use helper::policy::{self, Named, Policy};
use helper::wire::{Kind, Reply, Request, receive_request, send_message, wait_for_confirmation};
use hostif::netlink::Interface;
use hostif::sys::steer;
use hostif::tap::TapSpec;
use hostif::xdp::XdpSpec;
use hostif::{HostError, Undo, mac, namespace, packet, tap, xdp};
use protocol::Queues;
use protocol::peer::Peer;
use rustix::net::{SocketType, sockopt};
use rustix::thread::{CapabilitySet, capabilities, no_new_privs};

/// The time within which the daemon must confirm; less than the helper's unit lets it run.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open interface.
struct OpenInterface {
    /// The XDP program runs in the driver.
    native: bool,
    interface: Interface,
    fds: Vec<OwnedFd>,
    undo: Option<Box<dyn Undo>>,
}

fn main() -> ExitCode {
    let socket = io::stdin();
    let socket = socket.as_fd();
    let answer = serve(socket);
    let (reply, fds) = match &answer {
        Ok((reply, opened)) => (reply.clone(), &opened.fds[..]),
        Err(why) => (Reply::Refused(why.clone()), &[][..]),
    };
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    match (send_message(socket, &reply, &fds), answer) {
        (Ok(()), Ok((_, opened))) => {
            let OpenInterface { fds, undo, .. } = opened;
            // The daemon has copies, and closes them when the port is deleted.
            drop(fds);
            if let Some(mut undo) = undo
                && wait_for_confirmation(socket, PATIENCE)
            {
                // If this fails, the changes stay, which is what was asked.
                let _ = undo.keep();
            }
            ExitCode::SUCCESS
        }
        (Ok(()), Err(_)) => ExitCode::FAILURE,
        (Err(_), _) => {
            eprintln!("uvala-helper: the uvala daemon starts this; see docs/host.md");
            ExitCode::from(64)
        }
    }
}

fn serve(socket: BorrowedFd<'_>) -> Result<(Reply, OpenInterface), String> {
    let uid = caller(socket)?;
    let request = receive_request(socket).map_err(|error| {
        format!(
            "uvala-helper: cannot read the request: \
             {error}"
        )
    })?;
    let policy = Policy::load().map_err(|error| error.to_string())?;
    let named = policy.judge(uid, &request).map_err(|error| error.to_string())?;
    let namespace = namespace::own().map_err(|error| format!("uvala-helper: /proc: {error}"))?;
    mac::init(&uid.to_le_bytes());
    let opened = open(&request, uid, named).map_err(|error| explain(&error))?;
    let interface = opened.interface.clone();
    // The kernel also finds an interface by its alternative names, which a rule could match by
    // chance.
    if interface.name != request.ifname {
        return Err(format!(
            "{} is another name of interface {1}, and the policy applies to {1}: use ifname {1}",
            request.ifname, interface.name
        ));
    }
    let (native, changed) = (opened.native, opened.undo.is_some());
    Ok((Reply::Opened { native, changed, namespace, interface }, opened))
}

/// The user that asks: the peer of the socket, if root started the helper, as a service manager
/// does. Otherwise the peer must be the user that started it: the socket may come from anywhere.
fn caller(socket: BorrowedFd<'_>) -> Result<u32, String> {
    let odd = |error| format!("uvala-helper: standard input is no socket: {error}");
    if sockopt::socket_type(socket).map_err(odd)? != SocketType::SEQPACKET {
        return Err("uvala-helper: standard input is no socket for messages".to_owned());
    }
    let peer = Peer::of(socket).map_err(odd)?.uid;
    let own = rustix::process::getuid().as_raw();
    if own != 0 && peer != own {
        return Err(format!("uvala-helper: started by user {own} for user {peer}"));
    }
    Ok(peer)
}

fn open(request: &Request, uid: u32, named: Named) -> Result<OpenInterface, HostError> {
    let (native, undo) = (false, None);
    match request.kind {
        Kind::Tap => {
            let (mac, address) = (request.mac, request.ip());
            let name = request.ifname.clone();
            let queues = request.queues.as_ref().and_then(Queues::count);
            let (mtu, existing, strict) = (request.mtu, request.existing, true);
            let namespace = None;
            let spec = TapSpec { name, mtu, mac, address, queues, namespace, existing, strict };
            // An existing TAP is opened without changes, so there is nothing to revert.
            let may_open = |there: &Interface| {
                let checked = policy::check_existing(uid, named, request, there);
                checked.map_err(|error| HostError::Helper(error.to_string()))
            };
            let tap::Handles { queues, interface, .. } = tap::open_if(&spec, None, may_open)?;
            Ok(OpenInterface { native, interface, fds: queues, undo })
        }
        Kind::Packet => {
            let packet::Handles { socket, interface, .. } = packet::open(&request.ifname, false)?;
            Ok(OpenInterface { native, interface, fds: vec![socket], undo })
        }
        Kind::Xdp => {
            let name = request.ifname.clone();
            let filter = request.filter.clone().unwrap_or_default();
            let queues = request.queues.as_ref().map(Queues::numbers);
            let spec = XdpSpec { name, namespace: None, queues, filter };
            let xdp::Handles { sockets, steering, interface, undo, .. } = xdp::open(&spec)?;
            let sockets = sockets.into_iter().map(|(_, socket)| socket);
            let steer::Steering { map, link, membership, native } = steering;
            let fds = [map, link, membership].into_iter().chain(sockets);
            Ok(OpenInterface { native, interface, fds: fds.collect(), undo })
        }
    }
}

/// The error that the daemon gets. If the helper itself lacks capabilities, it says how to give
/// them.
fn explain(error: &HostError) -> String {
    use HostError::{MayNotPacket, MayNotTap, MayNotXdp};
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if has.contains(RIGHTS) || !matches!(error, MayNotTap(..) | MayNotPacket | MayNotXdp(_)) {
        return error.to_string();
    }
    let cure = if no_new_privs().unwrap_or(false) && !rustix::process::getuid().is_root() {
        "the daemon runs with NoNewPrivileges=yes: let systemd start it, with helper = \
         \"/run/uvala-helper.sock\" (docs/host.md)"
            .to_owned()
    } else if rustix::process::getuid().is_root() {
        "let its unit, or the container, leave it CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF".to_owned()
    } else {
        let place = std::env::current_exe().unwrap_or_else(|_| "uvala-helper".into());
        format!(
            "as root, where the file system is not mounted nosuid: setcap \
             cap_net_admin,cap_net_raw,cap_bpf+ep {}",
            place.display()
        )
    };
    format!("uvala-helper has no capabilities; {cure}")
}

/// The capabilities of the helper.
const RIGHTS: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::BPF);

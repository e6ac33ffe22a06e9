//! `uvala-helper`: opens one network interface for who asks on standard input, and ends.
//!
//! Where it has changed something of the interface, it waits to hear that the port is made, and
//! puts it back otherwise: also when who asked dies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::Duration;

use helper::policy::Policy;
use helper::wire::{Ask, Kind, Told, hear, hear_made, tell};
use hostif::netlink::Interface;
use hostif::sys::steer;
use hostif::tap::TapSpec;
use hostif::xdp::XdpSpec;
use hostif::{HostError, Undo, namespace, packet, tap, xdp};
use protocol::Queues;
use rustix::net::{SocketType, sockopt};
use rustix::thread::{CapabilitySet, capabilities, no_new_privs};

/// How long a port may take to be made of what was opened; less than its unit lets it run.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was opened.
struct Found {
    /// By an XDP program in the driver.
    native: bool,
    interface: Interface,
    fds: Vec<OwnedFd>,
    undo: Option<Box<dyn Undo>>,
}

fn main() -> ExitCode {
    let socket = io::stdin();
    let socket = socket.as_fd();
    let answer = serve(socket);
    let (told, fds) = match &answer {
        Ok((told, found)) => (told.clone(), &found.fds[..]),
        Err(why) => (Told::Refused(why.clone()), &[][..]),
    };
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    match (tell(socket, &told, &fds), answer) {
        (Ok(()), Ok((_, found))) => {
            let Found { fds, undo, .. } = found;
            // They are the daemon's now, and closed when it closes them.
            drop(fds);
            if let Some(mut undo) = undo
                && hear_made(socket, PATIENCE)
            {
                // What is ours to put back can be left.
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

fn serve(socket: BorrowedFd<'_>) -> Result<(Told, Found), String> {
    let uid = caller(socket)?;
    let ask = hear(socket).map_err(|error| format!("uvala-helper: no question: {error}"))?;
    let policy = Policy::load().map_err(|error| error.to_string())?;
    policy.judge(uid, &ask).map_err(|error| error.to_string())?;
    let namespace = namespace::own().map_err(|error| format!("uvala-helper: /proc: {error}"))?;
    let found = open(&ask).map_err(|error| explain(&error))?;
    let interface = found.interface.clone();
    // The kernel also finds it by names that were added to it, which a rule may fit by chance.
    if interface.name != ask.ifname {
        return Err(format!(
            "{} is another name of interface {}, and the policy goes by that: choose it as ifname",
            ask.ifname, interface.name
        ));
    }
    let (native, changed) = (found.native, found.undo.is_some());
    Ok((Told::Opened { native, changed, namespace, interface }, found))
}

/// Who asks: who connected, if root started this for them, as a service manager does; otherwise it
/// must be who started it, who may have got that socket anywhere.
fn caller(socket: BorrowedFd<'_>) -> Result<u32, String> {
    let odd = |error| format!("uvala-helper: standard input is no socket: {error}");
    if sockopt::socket_type(socket).map_err(odd)? != SocketType::SEQPACKET {
        return Err("uvala-helper: standard input is no socket for messages".to_owned());
    }
    let peer = sockopt::socket_peercred(socket).map_err(odd)?.uid.as_raw();
    let own = rustix::process::getuid().as_raw();
    if own != 0 && peer != own {
        return Err(format!("uvala-helper: started by user {own} for user {peer}"));
    }
    Ok(peer)
}

fn open(ask: &Ask) -> Result<Found, HostError> {
    let (native, undo) = (false, None);
    match ask.kind {
        Kind::Tap => {
            let sets = ask.mtu.is_some() || ask.mac.is_some() || ask.address.is_some();
            if sets && hostif::exists(&ask.ifname) {
                return Err(HostError::Helper(format!(
                    "interface {} was there before, and the helper changes only those that it \
                     makes: leave mtu, mac and address out, or delete it",
                    ask.ifname
                )));
            }
            let (mac, address) = (ask.mac.map(|mac| mac.0), ask.ip());
            let name = ask.ifname.clone();
            let queues = ask.queues.as_ref().and_then(Queues::count);
            let (mtu, existing, strict) = (ask.mtu, ask.existing, true);
            let namespace = None;
            let spec = TapSpec { name, mtu, mac, address, queues, namespace, existing, strict };
            // An existing TAP is opened without changes, so there is nothing to revert.
            let tap::Handles { queues, interface, .. } = tap::open(&spec, None)?;
            Ok(Found { native, interface, fds: queues, undo })
        }
        Kind::Packet => {
            let packet::Handles { socket, interface, .. } = packet::open(&ask.ifname, false)?;
            Ok(Found { native, interface, fds: vec![socket], undo })
        }
        Kind::Xdp => {
            let name = ask.ifname.clone();
            let filter = ask.filter.clone().unwrap_or_default();
            let queues = ask.queues.as_ref().map(Queues::numbers);
            let spec = XdpSpec { name, namespace: None, queues, filter };
            let xdp::Handles { sockets, steering, interface, undo, .. } = xdp::open(&spec)?;
            let sockets = sockets.into_iter().map(|(_, socket)| socket);
            let steer::Steering { map, link, membership, native } = steering;
            let fds = [map, link, membership].into_iter().chain(sockets);
            Ok(Found { native, interface, fds: fds.collect(), undo })
        }
    }
}

/// What the kernel refuses, as the daemon is told. It is this program that is to have the rights:
/// where it has not all of them, how it gets them.
fn explain(error: &HostError) -> String {
    use HostError::{MayNotPacket, MayNotTap, MayNotXdp};
    let has = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if has.contains(RIGHTS) || !matches!(error, MayNotTap(..) | MayNotPacket | MayNotXdp(_)) {
        return error.to_string();
    }
    let cure = if no_new_privs().unwrap_or(false) && !rustix::process::getuid().is_root() {
        "who starts it has NoNewPrivileges=yes: let systemd start it, with helper = \
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
    format!("uvala-helper has no rights to hand out; {cure}")
}

/// What it is to have.
const RIGHTS: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::BPF);

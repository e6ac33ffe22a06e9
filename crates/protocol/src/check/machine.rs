//! Ports of virtual machines: which options fit which kind.

use packet::shown::is_shown;

use super::named;
use crate::{COALESCE_USECS_MAX, Machine, PAIRS_MAX, PortKind, PortOption};

/// The options that the request sets, for a message.
fn said(machine: &Machine) -> String {
    named(&[
        ("socket", machine.socket.is_some()),
        ("connect", machine.connect),
        ("queues", machine.queues.is_some()),
        ("coalesce_usecs", machine.coalesce_usecs.is_some()),
        ("coalesce_frames", machine.coalesce_frames.is_some()),
        ("peer", machine.peer.is_some()),
        ("held", machine.held),
    ])
}

/// Checks the socket of a port of this kind; `None` for kinds that have none.
///
/// # Errors
/// What does not go together, and what does.
pub fn machine(kind: PortKind, machine: Option<&Machine>) -> Result<Option<Machine>, String> {
    if !kind.is_machine() {
        return match machine {
            None => Ok(None),
            Some(machine) => Err(format!(
                "{}: not for kind {}; see: uvala port add --help",
                said(machine),
                kind.name()
            )),
        };
    }
    let machine = machine.cloned().unwrap_or_default();
    check_queues(kind, &machine)?;
    check_sockets(kind, &machine)?;
    Ok(Some(machine))
}

/// Refuses an option that ports of this kind do not take.
fn check_option(kind: PortKind, name: &str, option: PortOption) -> Result<(), String> {
    match kind.takes(option) {
        true => Ok(()),
        false => Err(format!("{name}: for kind {}", PortKind::names_with(option))),
    }
}

fn check_queues(kind: PortKind, machine: &Machine) -> Result<(), String> {
    if let Some(n) = machine.queues {
        check_option(kind, "queues", PortOption::QueuePairs)?;
        if !(1..=PAIRS_MAX).contains(&n) {
            return Err(format!("queues = {n} is out of range, 1 to {PAIRS_MAX}"));
        }
    }
    match (machine.coalesce_usecs, machine.coalesce_frames) {
        (None, None) => Ok(()),
        _ if !kind.takes(PortOption::Coalesce) => {
            check_option(kind, "coalesce_…", PortOption::Coalesce)
        }
        (None, Some(_)) => {
            Err("coalesce_frames needs coalesce_usecs, the longest time that fewer frames \
                 wait"
                .to_owned())
        }
        (Some(usecs), _) if usecs > COALESCE_USECS_MAX => {
            Err(format!("coalesce_usecs = {usecs} is out of range, 0 to {COALESCE_USECS_MAX}"))
        }
        _ => Ok(()),
    }
}

fn check_sockets(kind: PortKind, machine: &Machine) -> Result<(), String> {
    if machine.peer.is_some() {
        check_option(kind, "peer", PortOption::PeerSocket)?;
    }
    if machine.connect && !kind.takes(PortOption::Connect) {
        return Err("connect: not for kind dgram, where both sides have a socket; set peer".into());
    }
    for path in [&machine.socket, &machine.peer].into_iter().flatten() {
        if !path.starts_with('/') {
            return Err(format!("socket {path:?} is no absolute path"));
        }
        // Listings and commands to paste name it.
        if !path.chars().all(is_shown) {
            return Err(format!("socket {path:?} has characters that no terminal shows"));
        }
    }
    if machine.connect && machine.socket.is_none() {
        return Err("connect needs socket, the path at which the VMM listens".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_for_machines_and_must_make_sense() {
        let of = |kind, socket: Option<&Machine>| machine(kind, socket);
        assert_eq!(of(PortKind::Shm, None), Ok(None));
        assert_eq!(of(PortKind::VhostUser, None), Ok(Some(Machine::default())));
        let good = Machine { socket: Some("/run/vm.sock".to_owned()), ..Machine::default() };
        assert!(
            of(PortKind::Shm, Some(&good)).is_err() && of(PortKind::VhostUser, Some(&good)).is_ok()
        );
        for bad in [
            Machine { socket: Some("vm.sock".to_owned()), ..Machine::default() },
            Machine { socket: Some("/run/\u{1b}[2Jvm".to_owned()), ..Machine::default() },
            Machine { connect: true, ..Machine::default() },
            Machine { coalesce_frames: Some(8), ..Machine::default() },
            Machine { coalesce_usecs: Some(COALESCE_USECS_MAX + 1), ..Machine::default() },
            Machine { queues: Some(0), ..Machine::default() },
            Machine { queues: Some(PAIRS_MAX + 1), ..Machine::default() },
        ] {
            assert!(of(PortKind::VhostUser, Some(&bad)).is_err(), "{bad:?}");
        }
        let peer = Machine { peer: Some("/run/vm.peer".to_owned()), ..Machine::default() };
        let queues = Machine { queues: Some(2), ..Machine::default() };
        let connect = Machine { connect: true, ..good };
        for (kind, machine, fits) in [
            (PortKind::Dgram, &peer, true),
            (PortKind::Stream, &peer, false),
            (PortKind::Stream, &queues, false),
            (PortKind::Stream, &connect, true),
            (PortKind::Dgram, &connect, false),
        ] {
            assert_eq!(of(kind, Some(machine)).is_ok(), fits, "{kind:?} {machine:?}");
        }
    }
}

//! Interfaces that outlive a daemon.
//!
//! # Theory of operation
//!
//! The kernel deletes a TAP when its last descriptor is closed, and with it its addresses and
//! routes. So another process keeps copies while no daemon runs, and passes them to the next one:
//! the service manager, which has them soon after the port is made ([`FdStore`]), or the
//! next daemon itself, which asks the running one for them before that ends.
//!
//! ```text
//!   daemon ── FDSTORE=1, name, copies ──► systemd ── LISTEN_FDS, LISTEN_FDNAMES ──► next daemon
//!   daemon ◄── hand_over ── next daemon (--replace): the copies, port by port
//! ```
//!
//! The name has the port and a hash of what was asked for ([`name_of`]). A descriptor whose name no
//! port of the next daemon has is closed: the port is gone, or is to have another interface. What
//! was changed by other means than the daemon's (`ip link set`) is no part of the name, and stays.
//! Before a port gets the descriptors, they are asked what they are ([`hostif::tap::resume`]).
//!
//! Only the service manager and the daemon's own user can give descriptors to a daemon.

mod fd_store;
mod listen;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use packet::hash::fnv1a;
use protocol::HostIf;
use protocol::name::PortName;

pub use fd_store::{FdStore, Queues};

/// What names of TAPs begin with.
const TAP: &str = "tap/";

/// The name of a port's interface, in the characters that systemd takes: `tap/vale0/web/` and a
/// hash of the request. It is the same from version to version.
#[must_use]
pub fn name_of(port: &PortName, wanted: &HostIf) -> String {
    let text = serde_json::to_vec(wanted).expect("plain data");
    format!("{TAP}{}/{}/{:016x}", port.switch().as_str(), port.port(), fnv1a(text))
}

/// Interfaces that the daemon before this one had: the descriptors of each, by its name.
#[derive(Debug, Default)]
pub struct Kept(BTreeMap<String, Vec<OwnedFd>>);

impl Kept {
    /// Takes the descriptors that the service manager has passed, once.
    #[must_use]
    pub fn of_service_manager() -> Self {
        let mut kept = Self::default();
        for (name, fd) in listen::take() {
            kept.add(name, [fd]);
        }
        kept
    }

    /// Adds descriptors of an interface. What has another name is closed.
    pub fn add(&mut self, name: String, fds: impl IntoIterator<Item = OwnedFd>) {
        if name.starts_with(TAP) {
            self.0.entry(name).or_default().extend(fds);
        }
    }

    /// The names of all.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Whether there is one of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Takes the one of this name.
    pub fn take(&mut self, name: &str) -> Option<Vec<OwnedFd>> {
        self.0.remove(name)
    }

    /// Takes all that no port has taken.
    pub fn take_rest(&mut self) -> BTreeMap<String, Vec<OwnedFd>> {
        std::mem::take(&mut self.0)
    }
}

impl FromIterator<(String, Vec<OwnedFd>)> for Kept {
    fn from_iter<T: IntoIterator<Item = (String, Vec<OwnedFd>)>>(all: T) -> Self {
        let mut kept = Self::default();
        all.into_iter().for_each(|(name, fds)| kept.add(name, fds));
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_port_and_request_and_stays_from_version_to_version() {
        let port: PortName = "vale0:web".parse().expect("a name");
        let wanted = HostIf { ifname: Some("eth0".into()), ..HostIf::default() };
        let name = name_of(&port, &wanted);
        assert_eq!(name, "tap/vale0/web/8a1701b4696697d6");
        assert_ne!(name_of(&port, &HostIf { mtu: Some(1400), ..wanted.clone() }), name);
        assert_ne!(name_of(&"vale1:web".parse().expect("a name"), &wanted), name);
        let good = |c: char| c.is_ascii_graphic() && c != ':';
        assert!(name.len() < 255 && name.chars().all(good), "as systemd wants it");
    }

    #[test]
    fn what_is_no_interface_is_not_kept() {
        let mut kept = Kept::default();
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").expect("there is one"));
        kept.add("stored".to_owned(), [file()]);
        kept.add("tap/vale0/a/0".to_owned(), [file()]);
        kept.add("tap/vale0/a/0".to_owned(), [file()]);
        assert!(!kept.has("stored") && kept.has("tap/vale0/a/0"));
        assert_eq!(kept.take("tap/vale0/a/0").map(|fds| fds.len()), Some(2));
        assert!(kept.take_rest().is_empty());
    }
}

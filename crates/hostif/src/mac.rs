//! MAC addresses of TAPs that this process creates.
//!
//! The kernel gives each new TAP a random address, and it deletes a TAP with the process that
//! created it: neighbours of the next one would send to the old address until they ask again. So a
//! TAP whose address the operator leaves open gets one that derives from the host's
//! `/etc/machine-id`, the owner, and namespace and name of the TAP. It is the same for the same
//! TAP, also after a restart of the host.

use std::fs::read_to_string;
use std::sync::OnceLock;

use packet::MacAddr;
use packet::hash::{fnv1a, folded_multiply};

use crate::namespace;

/// Host and owner, as a number; `None` if the host has no identity. [`init`] writes it before the
/// process has threads, and those that open TAPs read it.
static SEED: OnceLock<Option<u64>> = OnceLock::new();

/// Reads the identity of the host. Without this call, the kernel chooses all addresses. A confined
/// process may not read the files, so the caller does this before. `owner` distinguishes programs
/// that have TAPs of one name in several namespaces.
pub fn init(owner: &[u8]) {
    SEED.get_or_init(|| {
        let [machine, host] =
            ["/etc/machine-id", "/proc/sys/kernel/hostname"].map(|path| read_to_string(path).ok());
        seed(machine.as_deref(), host.as_deref(), owner)
    });
}

/// The address for a new TAP, if the host has an identity.
pub(crate) fn derived(namespace: Option<&str>, name: &str) -> Option<MacAddr> {
    let seed = SEED.get().copied().flatten()?;
    let namespace = namespace.and_then(|namespace| namespace::path_of(namespace).ok());
    Some(address(seed, &namespace.unwrap_or_default(), name))
}

/// Changing this or [`address`] changes the addresses of all TAPs at the next restart.
fn seed(machine: Option<&str>, host: Option<&str>, owner: &[u8]) -> Option<u64> {
    let (machine, host) = (machine.map(str::trim), host.map(str::trim));
    // On an image that was never started, the file is empty or has the word "uninitialized".
    let machine = machine.filter(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    // Two hosts of these names could be on one network.
    let host = host.filter(|name| !["", "(none)", "localhost"].contains(name));
    let of = machine.or(host)?;
    Some(fnv1a(of.bytes().chain([0]).chain(owner.iter().copied())))
}

/// A locally administered address of one station.
fn address(seed: u64, namespace: &str, name: &str) -> MacAddr {
    const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
    let of = seed.to_le_bytes().into_iter().chain(namespace.bytes()).chain([0]).chain(name.bytes());
    let [a, b, c, d, e, f, ..] = folded_multiply(fnv1a(of), MIX).to_le_bytes();
    MacAddr::new([a & !1 | 2, b, c, d, e, f])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const MACHINE: &str = "0123456789abcdef0123456789abcdef\n";

    #[test]
    fn an_address_stays_from_version_to_version() {
        let seed = seed(Some(MACHINE), None, b"/run/uvala/state").expect("an identity");
        assert_eq!(address(seed, "", "tap0").to_string(), "2a:9a:fe:5e:52:0e");
    }

    #[test]
    fn each_interface_has_an_address_of_its_own_that_is_local_and_of_a_station() {
        let seeds = [&b"a"[..], b"b"].map(|owner| seed(Some(MACHINE), None, owner).unwrap());
        let mut all = BTreeSet::new();
        for seed in seeds {
            for namespace in ["", "/run/netns/red", "/proc/7/ns/net"] {
                for number in 0..1000 {
                    let mac = address(seed, namespace, &format!("tap{number}"));
                    let [first, ..] = mac.octets();
                    assert_eq!(first & 3, 2, "{mac}");
                    all.insert(mac.as_u64());
                }
            }
        }
        assert_eq!(all.len(), 2 * 3 * 1000);
    }

    #[test]
    fn an_identity_is_that_of_the_machine_or_else_the_name_of_the_host() {
        let of = |machine, host| seed(machine, host, b"");
        let machine = of(Some(MACHINE), None);
        assert!(machine.is_some());
        assert_eq!(of(Some(MACHINE), Some("red\n")), machine);
        let red = of(None, Some("red\n"));
        assert!(red.is_some() && red != machine && red != of(None, Some("blue\n")));
        for fresh in ["", "uninitialized\n", "0123\n"] {
            assert_eq!(of(Some(fresh), Some("red\n")), red, "{fresh:?}");
        }
        for common in ["", "(none)\n", "localhost\n"] {
            assert_eq!(of(None, Some(common)), None, "{common:?}");
        }
    }
}

//! Interfaces by name: valid names, lookups, identity.

use rustix::io::Errno;

use crate::HostError;
use crate::namespace::{self, Home};
use crate::netlink::{Interface, Netlink};
use crate::sys::packet::is_interface;

/// Checks that `name` can be the name of an interface.
///
/// # Errors
/// [`HostError::Name`].
pub fn check_name(name: &str) -> Result<(), HostError> {
    let good = protocol::check::is_interface_name(name);
    if good { Ok(()) } else { Err(HostError::Name(name.to_owned())) }
}

/// Whether the daemon's namespace has an interface of this name. The lookup does not wait for the
/// kernel's lock on interface changes, so the control thread may call it.
#[must_use]
pub fn exists(name: &str) -> bool {
    check_name(name).is_ok()
        && match is_interface(name) {
            Ok(()) => true,
            Err(Errno::NODEV) => false,
            // Before Linux 5.7 the call needs CAP_NET_RAW.
            Err(_) => find(name).is_ok(),
        }
}

/// Finds the interface of this name in the namespace of the thread.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn find(name: &str) -> Result<Interface, HostError> {
    check_name(name)?;
    let netlink = Netlink::open().map_err(HostError::system("open netlink for", name))?;
    let found = netlink.find(name).map_err(HostError::system("look up", name))?;
    found.ok_or_else(|| HostError::Missing(name.to_owned()))
}

/// Finds the interface of this name in `namespace`, or in the daemon's own if that is `None`, and
/// says which namespace that is.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn look(name: &str, namespace: Option<&str>) -> Result<(Home, Interface), HostError> {
    let target = namespace.map(namespace::open).transpose()?;
    let found = namespace::within(namespace.zip(target.as_ref()), || find(name))?;
    Ok((Home::of(target.as_ref()), found))
}

/// Whether two descriptions are of one interface. Where the namespace of a TAP that a client passed
/// is unknown, name and MAC address decide.
#[must_use]
pub fn is_same(one: (Home, &Interface), other: (Home, &Interface)) -> bool {
    let by = |(_, interface): (_, &Interface)| (interface.name.clone(), interface.mac);
    match (one.0.number(), other.0.number()) {
        (Some(here), Some(there)) => here == there && one.1.index == other.1.index,
        _ => by(one) == by(other),
    }
}

#[cfg(test)]
mod tests {
    use packet::MacAddr;

    use super::*;

    #[test]
    fn names_that_no_interface_can_have_are_refused() {
        for good in ["eth0", "tap-1.2", "ä", "a23456789012345"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "a:1", "tap%d", "a234567890123456", "a\n"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_exists_is_told_from_what_does_not() {
        assert!(exists("lo"));
        for none in ["no-such-link", "", "lo/", "lo\0"] {
            assert!(!exists(none), "{none:?}");
        }
    }

    #[test]
    fn an_interface_is_known_by_its_number_where_that_can_be_had() {
        let with =
            |index, name: &str| Interface { index, name: name.into(), ..Interface::default() };
        let (a, b) = (with(7, "a"), with(7, "b"));
        assert!(is_same((Home::Ours, &a), (Home::Ours, &b)), "it was renamed");
        assert!(!is_same((Home::Ours, &a), (Home::Other(1), &a)));
        let ours = Home::Other(namespace::own().expect("/proc"));
        assert!(is_same((Home::Ours, &a), (ours, &a)), "named by a process of ours");
        assert!(!is_same((Home::Ours, &a), (ours, &with(8, "a"))));
        assert!(is_same((Home::Unknown, &with(0, "a")), (Home::Other(1), &a)));
        let other = Interface { mac: MacAddr::new([2; 6]), ..with(0, "a") };
        assert!(!is_same((Home::Unknown, &other), (Home::Unknown, &a)));
    }
}

//! TAPs that outlive a daemon, because another process keeps their descriptors meanwhile.
//!
//! The descriptors tell which TAP it is, and in which namespace. So a TAP is found again though its
//! namespace was named by a process that is gone. What was changed with `ip link` stays.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{about, elsewhere, here};
use crate::namespace::{self, Home, within};
use crate::netlink::Interface;
use crate::sys::tun::{self, About};
use crate::{HostError, find};

/// Identifies a TAP that the daemon before this one had, for a port whose TAP has `count` queues
/// and is in `wanted`, or in the daemon's own namespace.
///
/// # Errors
/// [`HostError`]: the TAP is gone, or is not the one of the port.
pub fn resume(
    queues: &[OwnedFd],
    wanted: Option<&str>,
    count: u16,
) -> Result<(Home, Interface), HostError> {
    let about = about(queues).map_err(|_| HostError::NotResumed("is gone"))?;
    let refuse = |why| Err(HostError::NotResumed(why));
    if queues.len() != usize::from(count) {
        return refuse("has another number of queues");
    }
    let Whereabouts { home: is, interface, .. } = Whereabouts::of(&queues[0], &about)?;
    let home = match wanted {
        None if is == Home::Ours => is,
        None => return refuse("is in another network namespace"),
        Some(name) if is_another(name, is) => return refuse("is in an older network namespace"),
        // A process in the daemon's namespace may have named that one.
        Some(_) => is.number().map_or(is, Home::Other),
    };
    Ok((home, interface))
}

/// Whether the namespace that `ip netns` has by this name now is not the one that `is`.
fn is_another(name: &str, is: Home) -> bool {
    let now = || Home::of(Some(&namespace::open(name).ok()?)).number();
    namespace::is_lasting(name) && is.number().is_some_and(|is| now().is_some_and(|now| now != is))
}

/// Where a TAP is.
#[derive(Debug)]
struct Whereabouts {
    home: Home,
    /// To be entered for looking the TAP up; `None` for the process's own.
    namespace: Option<OwnedFd>,
    interface: Interface,
}

impl Whereabouts {
    fn of(tap: &OwnedFd, about: &About) -> Result<Self, HostError> {
        let Ok(namespace) = tun::namespace(tap) else {
            // Without the right to ask, its name and its address must do.
            let here = here(about)?;
            let home = if here.is_some() { Home::Ours } else { Home::Unknown };
            let interface = here.unwrap_or_else(|| elsewhere(about));
            return Ok(Self { home, namespace: None, interface });
        };
        let home = Home::of(Some(&namespace));
        if home.number() == Home::Ours.number() {
            let (home, interface) = (Home::Ours, find(&about.name)?);
            return Ok(Self { home, namespace: None, interface });
        }
        let found = within(Some((&about.name, &namespace)), || find(&about.name));
        let interface = found.unwrap_or_else(|_| elsewhere(about));
        Ok(Self { home, namespace: Some(namespace), interface })
    }
}

/// A TAP that the kernel deletes when its last descriptor is closed.
#[derive(Debug)]
pub struct Ending {
    namespace: Option<OwnedFd>,
    interface: Interface,
}

impl Ending {
    /// The TAP of these queues; `None`, if it stays, or cannot be looked up.
    #[must_use]
    pub fn of(queues: &[OwnedFd]) -> Option<Self> {
        let look = |queue| Some((queue, tun::look(queue).ok()?));
        let (queue, about) = queues.iter().find_map(look)?;
        if about.persistent {
            return None;
        }
        let found = Whereabouts::of(queue, &about).ok()?;
        let Whereabouts { namespace, interface, .. } = found;
        (interface.index != 0).then_some(Self { namespace, interface })
    }

    /// Waits until it is gone, for at most `most`: the process that kept its descriptors closes
    /// them when it comes to that.
    pub fn wait(&self, most: Duration) {
        const RETRY: Duration = Duration::from_millis(1);
        let (name, deadline) = (self.interface.name.as_str(), Instant::now() + most);
        let is_there = || find(name).is_ok_and(|now| now.index == self.interface.index);
        let _ = within(self.namespace.as_ref().map(|namespace| (name, namespace)), || {
            while is_there() && Instant::now() < deadline {
                std::thread::sleep(RETRY);
            }
            Ok(())
        });
    }
}

//! Opens interfaces, with the daemon's own rights or by the helper.
//!
//! The kernel changes one interface at a time, so opening one waits for all others. Nothing here
//! runs on the control thread, except if no thread can be started, or if an interface cannot be cut
//! off from the host and is opened again without that.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use helper::ask::{Answer, ask};
use helper::wire::{Kind, Reply, Request};
use hostif::namespace::{self, Home};
use hostif::netlink::Interface;
use hostif::sys::ethtool::{Tags, tags};
use hostif::sys::steer;
use hostif::{HostError, Undo};
use port::group::Share;
use port::host::{OpenWith, Opened, packet, tap, xdp};
use port::sys::Waker;
use protocol::{HostIf, PortKind, Queues};
use switch::Plug;

use super::duplicates::Others;
use super::interfaces::stored::{Given, Stored, discard};
use crate::kept::FdStore;
use crate::model::opening::Build;

/// An interface whose port is gone, to be closed by another thread: the kernel takes its time.
pub(super) struct Closing {
    plug: Option<Plug>,
    /// The copies at the service manager.
    stored: Option<Stored>,
}

impl Closing {
    pub fn new(plug: Plug, stored: Option<Stored>) -> Self {
        Self { plug: Some(plug), stored }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let plug = self.plug.take();
        match self.stored.take() {
            Some(stored) => stored.delete(|| drop(plug)),
            None => drop(plug),
        }
    }
}

impl fmt::Debug for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closing")
    }
}

/// What closes these, if there are any.
pub(super) fn close(closing: Vec<Closing>) -> Option<Build> {
    if closing.is_empty() {
        return None;
    }
    Some(Box::new(move || {
        drop(closing);
        Ok(())
    }))
}

/// Where an interface is opened to.
pub(super) struct Means<'a> {
    /// Rung when the state of the interface changes.
    pub bell: &'a Arc<Waker>,
    /// The helper, which opens what the daemon may not.
    pub helper: Option<&'a Path>,
    /// The interface's share of its trust group's memory, if it is in one.
    pub share: Option<Arc<Share>>,
    /// Interfaces that the switch has already.
    pub others: Others,
    /// The interface was there before: the daemon opens a TAP of the name and creates none.
    pub existing: bool,
    /// Keeps descriptors for the next daemon.
    pub fd_store: &'a FdStore,
}

/// Opens the interface of a port.
pub(super) fn open(
    kind: PortKind,
    requested: &HostIf,
    given: Given,
    means: &Means<'_>,
) -> Result<Opened, HostError> {
    let Means { bell, helper, others, existing, .. } = means;
    others.admit_wanted(kind, requested, given.fds())?;
    if requested.fds > 0 {
        return match given {
            Given::ByClient(queues) if queues.get().len() == usize::from(requested.fds) => {
                tap::with_client_queues(queues, bell)
            }
            _ => Err(HostError::NotGiven(requested.ifname.clone().unwrap_or_default())),
        };
    }
    if let Given::Kept(name, queues) = given {
        let is_of_process = requested.netns.as_deref().is_some_and(namespace::is_of_process);
        match resume(name, queues, requested, means) {
            // Another process may have that number by now.
            Err(why @ HostError::NotResumed(_)) if !is_of_process => {
                let ifname = requested.ifname.as_deref().unwrap_or_default();
                tracing::warn!("interface {ifname}: {why}; the port gets a new one");
            }
            resumed => return resumed,
        }
    }
    let with = OpenWith { bell, share: means.share.as_ref(), existing: *existing };
    match port::host::open(kind, requested, &with) {
        Err(error) if error.is_right() => match (helper, question(kind, requested)) {
            (None, _) => Err(error),
            (Some(helper), Ok(question)) => {
                let question = Request { existing: *existing, ..question };
                open_there(helper, &question, means)
            }
            (Some(_), Err(why)) => Err(HostError::Helper(why)),
        },
        opened => opened,
    }
}

/// How often the daemon looks again what a TAP is if the kernel does not say, and the time between.
const LOOKS: u32 = 5;
const REST: Duration = Duration::from_millis(100);

/// Uses the TAP that the daemon before this one left; deletes it if it is not what is requested.
fn resume(
    name: String,
    queues: Vec<OwnedFd>,
    requested: &HostIf,
    means: &Means<'_>,
) -> Result<Opened, HostError> {
    let count = requested.queues.as_ref().and_then(Queues::count).unwrap_or(1);
    let look = || hostif::tap::resume(&queues, requested.netns.as_deref(), count);
    // The kernel may lack memory or descriptors for a moment.
    let passes = |found: &Result<_, _>| !matches!(found, Ok(_) | Err(HostError::NotResumed(_)));
    let mut found = look();
    for _ in 0..LOOKS {
        if passes(&found) {
            std::thread::sleep(REST);
            found = look();
        }
    }
    match found {
        Ok((home, interface)) => {
            tracing::info!("interface {} goes on as it was", interface.name);
            tap::with_queues(queues, interface, home, means.bell)
        }
        Err(why) => {
            discard(means.fd_store, name, queues);
            Err(why)
        }
    }
}

/// What to ask the helper; otherwise, why it cannot be asked that.
fn question(kind: PortKind, requested: &HostIf) -> Result<Request, String> {
    let ifname = requested.ifname.clone().unwrap_or_default();
    if let Some(netns) = &requested.netns {
        return Err(format!(
            "no permission in network namespace {netns}, and the helper opens nothing in others \
             than the daemon's; give the daemon CAP_SYS_ADMIN and CAP_NET_ADMIN, or hand over an \
             open TAP: --fd (docs/host.md)"
        ));
    }
    let kind = match kind {
        PortKind::Tap => Kind::Tap,
        PortKind::Packet if !requested.alone => Kind::Packet,
        PortKind::Xdp => Kind::Xdp,
        PortKind::Packet | PortKind::Stack => {
            return Err(format!(
                "no permission to cut the host off from {ifname}, and the helper does not do \
                 that; give the daemon CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, or choose --kind \
                 packet without --alone"
            ));
        }
        other => {
            return Err(format!(
                "no permission to open {ifname}, and the helper opens no interface of kind {}",
                other.name()
            ));
        }
    };
    Ok(Request {
        kind,
        ifname,
        mtu: requested.mtu,
        mac: requested.mac,
        address: requested.address,
        existing: false,
        queues: requested.queues.clone(),
        filter: requested.filter.clone(),
    })
}

/// What the helper says of what it has opened.
#[derive(Debug, PartialEq, Eq)]
struct Granted {
    native: bool,
    changed: bool,
    interface: Interface,
}

/// What the helper has opened. From another namespace it is none of ours: netlink would tell of
/// others, and the numbers of interfaces mean others here.
fn granted(reply: Reply) -> Result<Granted, HostError> {
    match reply {
        Reply::Refused(why) => Err(HostError::Helper(why)),
        Reply::Opened { namespace, .. } if namespace::own().ok() != Some(namespace) => {
            let why = "the helper is in another network namespace than the daemon; \
                       PrivateNetwork=no in the daemon's unit, see docs/host.md";
            Err(HostError::Helper(why.to_owned()))
        }
        Reply::Opened { native, changed, interface, .. } => {
            Ok(Granted { native, changed, interface })
        }
    }
}

fn open_there(
    helper: &Path,
    question: &Request,
    Means { bell, share, .. }: &Means<'_>,
) -> Result<Opened, HostError> {
    let Answer { reply, fds, listener } = ask(helper, question).map_err(|why| {
        let (helper, ifname) = (helper.display(), &question.ifname);
        HostError::Helper(format!("no permission to open {ifname}, and helper {helper} {why}"))
    })?;
    let Granted { native, changed, interface } = granted(reply)?;
    let few = || HostError::Helper("the helper gave fewer descriptors than it should".to_owned());
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(few);
    match question.kind {
        Kind::Tap => {
            let taps = std::iter::once(next()?).chain(fds).collect();
            tap::with_queues(taps, interface, Home::Ours, bell)
        }
        Kind::Packet => {
            let (socket, programs) = (next()?, Vec::new());
            let handles = hostif::packet::Handles { socket, programs, interface };
            packet::with_handles(handles, false, Home::Ours, bell)
        }
        Kind::Xdp => {
            let (map, link, membership) = (next()?, next()?, next()?);
            let steering = steer::Steering { map, link, membership, native };
            // It has opened those of the question, or all.
            let numbers = question.queues.as_ref().map(Queues::numbers);
            let numbers = numbers.unwrap_or_else(|| (0..hostif::xdp::QUEUES_MAX).collect());
            let sockets = numbers.into_iter().zip(std::iter::once(next()?).chain(fds)).collect();
            // If it had to be told, the helper has done it.
            let tags = if changed { Tags::KeptNow } else { tags(&interface.name) };
            let undo = changed.then(|| Box::new(listener) as Box<dyn Undo>);
            let handles = hostif::xdp::Handles { sockets, steering, interface, tags, undo };
            xdp::with_handles(handles, Home::Ours, bell, share.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_another_namespace_is_refused() {
        let ours = namespace::own().expect("/proc");
        let interface = Interface { index: 7, ..Interface::default() };
        let (native, changed) = (true, false);
        let told =
            |namespace| Reply::Opened { native, changed, namespace, interface: interface.clone() };
        let ours_is = Granted { native, changed, interface: interface.clone() };
        assert_eq!(granted(told(ours)).expect("it is ours"), ours_is);
        let refusal = granted(told(ours + 1)).expect_err("it is not").to_string();
        assert!(refusal.contains("PrivateNetwork=no"), "{refusal}");
    }
}

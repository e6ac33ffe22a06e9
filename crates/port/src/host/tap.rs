//! TAPs as ports: the host's stack, a namespace's, or a program's that wants one.
//!
//! [`hostif::tap`] opens them, or a client does and passes the descriptors. Frames come and go
//! behind a virtio-net header, with partial checksums and segments of up to 64 KiB as the host's
//! stack sends and takes them (`adapter`). A frame is sent by the queue that its flow's hash
//! selects, so the frames of a flow stay in order.

mod adapter;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hostif::HostError;
use hostif::namespace::{self, Home};
use hostif::netlink::Interface;
use hostif::tap::{Handles, TapSpec, identify};
use rustix::io::ReadWriteFlags;

pub(super) use adapter::Tap;

use super::{Link, Opened, TapQueues};
use crate::sys::{Closer, Waker};

/// Opens the TAP of `spec`, or creates it, and makes a port of it.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &TapSpec, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let Handles { queues, interface, undo } = hostif::tap::open(spec, target.as_ref())?;
    let opened = with_queues(queues, interface, Home::of(target.as_ref()), bell)?;
    Ok(Opened { undo: Some(undo), ..opened })
}

/// Makes a port of the queues of an open TAP in namespace `home`.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn with_queues(
    queues: Vec<OwnedFd>,
    interface: Interface,
    home: Home,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    // Whoever waits for the end of the port waits for that of the interface.
    let queues = TapQueues::new(queues, &Closer::in_place());
    make(queues, interface, home, ReadWriteFlags::empty(), bell)
}

/// Makes a port of the queues of a TAP that a client opened, and may still have open: it can make
/// the end of the last descriptor take long.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn with_client_queues(queues: TapQueues, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let (home, interface) = identify(queues.get())?;
    // The client may change their blocking mode at any time.
    make(queues, interface, home, ReadWriteFlags::NOWAIT, bell)
}

fn make(
    queues: TapQueues,
    interface: Interface,
    home: Home,
    flags: ReadWriteFlags,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let link = Link::new(&interface, home.is_foreign(), bell);
    let adapter = Tap::new(queues, flags, Vec::new(), link.clone(), &interface.name)?;
    let _ = link.queues.set(adapter.queues());
    Ok(Opened { adapter: Box::new(adapter), link, interface, home, undo: None })
}

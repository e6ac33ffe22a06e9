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

pub(super) use adapter::{IoOptions, Tap};

use super::{Link, Opened};
use crate::sys::Waker;

/// Opens the TAP of `spec`, or creates it, and makes a port of it. `uring` selects `io_uring`; by
/// default it is used where the kernel has it.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &TapSpec, uring: Option<bool>, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let Handles { queues, interface, undo } = hostif::tap::open(spec, target.as_ref())?;
    let opened = with_queues(queues, interface, Home::of(target.as_ref()), uring, bell)?;
    Ok(Opened { undo: Some(undo), ..opened })
}

/// Makes a port of the queues of an open TAP in namespace `home`; `uring` as in [`open`].
///
/// # Errors
/// [`HostError`], with what to do.
pub fn with_queues(
    queues: Vec<OwnedFd>,
    interface: Interface,
    home: Home,
    uring: Option<bool>,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    make(queues, interface, home, IoOptions { uring, shared: false }, bell)
}

/// Makes a port of the queues of a TAP that a client opened, and may still have open; `uring` as in
/// [`open`].
///
/// # Errors
/// [`HostError`], with what to do.
pub fn with_client_queues(
    queues: Vec<OwnedFd>,
    uring: Option<bool>,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let (home, interface) = identify(&queues)?;
    make(queues, interface, home, IoOptions { uring, shared: true }, bell)
}

fn make(
    queues: Vec<OwnedFd>,
    interface: Interface,
    home: Home,
    options: IoOptions,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let link = Link::new(&interface, home.is_foreign(), bell);
    let adapter = Tap::new(queues, options, Vec::new(), link.clone(), &interface.name)?;
    let _ = link.queues.set(adapter.queues());
    Ok(Opened { adapter: Box::new(adapter), link, interface, home, undo: None })
}

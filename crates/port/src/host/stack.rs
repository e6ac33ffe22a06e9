//! The host stack's side of an interface as a port: netmap's host rings.
//!
//! [`hostif::stack`] opens a relay TAP and the programs that redirect frames between it and the
//! interface. The port reads and writes the relay as it would any TAP.

use std::sync::Arc;

use hostif::namespace::{self, Home};
use hostif::stack::Handles;
use hostif::{HostError, check_name};
use rustix::io::ReadWriteFlags;

use super::tap::Tap;
use super::{Link, Opened, TapQueues};
use crate::sys::{Closer, Waker};

/// Opens the stack's side of the interface `name` of `namespace`, or of the daemon's own.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(name: &str, namespace: Option<&str>, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    check_name(name)?;
    let target = namespace.map(namespace::open).transpose()?;
    let open = || hostif::stack::open(name);
    let Handles { relay, programs, interface } =
        namespace::within(namespace.zip(target.as_ref()), open)?;
    let home = Home::of(target.as_ref());
    let link = Link::new(&interface, home.is_foreign(), bell);
    let flags = ReadWriteFlags::empty();
    let queues = TapQueues::new(vec![relay], &Closer::in_place());
    let tap = Tap::new(queues, flags, programs, link.clone(), name)?;
    Ok(Opened { adapter: Box::new(tap), link, interface, home, undo: None })
}

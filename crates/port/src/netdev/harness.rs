//! Ports whose connector has no thread: the caller gives them their peers, and learns why they
//! disconnect them.
//!
//! Fuzz targets open such a port for each input, which costs microseconds: it has no thread, and no
//! socket with a path. Its adapter is the one that workers call.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use switch::Adapter;

use super::connector::{self, Connector, PeerChannel, Source};
use super::{DESCRIPTORS, End, PeerCalls, dgram, stream};
use crate::machine::quota::{Limits, Quota, Resource};
use crate::machine::socket::{Beside, Listener};
use crate::machine::{Access, Spec, Status};
use crate::sys::Waker;

/// The connector of such a port.
pub struct Harness(Connector);

/// Opens a port for a byte stream.
///
/// # Errors
/// No memory, or no descriptors left.
pub fn open_stream() -> io::Result<(Box<dyn Adapter>, Harness)> {
    let nowhere = Listener::Remote(PathBuf::new(), Beside::Nothing);
    let (connector, channel) = open(Source::Accept, nowhere)?;
    let adapter = stream::Stream::new(channel, PeerCalls::unlimited())?;
    Ok((Box::new(adapter), Harness(connector)))
}

/// Opens a port for datagrams that receives by `socket`. A peer is a socket to send to.
///
/// # Errors
/// No memory, or no descriptors left.
pub fn open_dgram(socket: OwnedFd) -> io::Result<(Box<dyn Adapter>, Harness)> {
    // No file has an empty path, so none is removed when the listener is dropped.
    let own = Listener::Bound(socket, PathBuf::new(), (0, 0));
    let (connector, channel) = open(Source::Datagrams(PathBuf::new()), own)?;
    let adapter = dgram::Datagrams::new(channel, PeerCalls::unlimited())?;
    Ok((Box::new(adapter), Harness(connector)))
}

fn open(source: Source, listener: Listener) -> io::Result<(Connector, PeerChannel)> {
    let quota = Quota::new(0, Limits::NONE);
    let charge = quota.take(Resource::Descriptors, DESCRIPTORS).expect("there is no limit");
    let (name, path, access) = ("harness".to_owned(), PathBuf::new(), Access::default());
    let (connects, pairs, coalesce, peer) = (false, 1, None, None);
    let spec = Spec { name, path, connects, pairs, coalesce, peer, access, quota };
    let (_, bell) = Waker::of_daemon()?;
    connector::pair(&spec, charge, source, listener, Status::new(&Arc::new(bell)))
}

impl Harness {
    /// Gives the port a peer, which has to have none.
    pub fn give(&self, peer: OwnedFd) {
        self.0.give(peer);
    }

    /// Closes what the port has left; returns why it disconnected its peer, if it did.
    pub fn end(&self) -> Option<End> {
        self.0.close_leftovers()
    }
}

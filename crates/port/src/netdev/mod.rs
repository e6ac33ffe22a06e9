//! Network cards of QEMU that have no vhost-user: its backends `stream` and `dgram`, by UNIX
//! sockets.
//!
//! ```text
//!   VMM (QEMU, …)               connector, one thread for each port        worker
//!  ┌──────────────────┐        ┌──────────────────────────┐ socket  ┌─────────┐
//!  │ e1000, rtl8139 … │ ─────► │ accepts, or connects     │ ──────► │ adapter │
//!  └────────┬─────────┘        │ again and again; logs    │ ◄────── └────┬────┘
//!           │                  └──────────────────────────┘  its end     │
//!           └──────────────── frames, read and written by the worker ────┘
//! ```
//!
//! * `stream`: a length of four bytes, most significant first, then a frame, and so on, in both
//!   directions. One peer has the port at a time.
//! * `dgram`: a frame in each datagram. Each side has a socket with a path: the port's, to which
//!   any process with write permission can send, and the peer's. The port notices that a peer has
//!   gone when it sends to it.
//!
//! The worker never waits for a peer. But the kernel calls all that watch the peer's socket in the
//! call that sends to it or takes from it, so the time of these calls is taken ([`PeerCalls`]), and
//! those of a turn end when they are slow. The connector closes what came from a peer
//! ([`sys::descriptors`](crate::sys::descriptors)). What the peer does not take at once waits in
//! bounded memory, and the port drops and counts what finds no room there. The port disconnects a
//! peer that breaks the protocol, with a line in the log; it may connect again. Other programs
//! speak these protocols, too (passt, gvproxy, …).

mod connector;
mod dgram;
pub mod harness;
mod stream;

use std::sync::Arc;

use switch::Adapter;

use crate::machine::quota::Resource;
use crate::machine::socket::{Beside, Listener, bind_datagrams, failed};
use crate::machine::{MachinePort, SocketError, Spec, Status};
use crate::sys::{SlowCalls, Waker};
use connector::{Connector, Source};

/// The most bytes that wait for a peer.
pub const WAITING: usize = 256 << 10;
/// The descriptors of a port: its socket, the connection, a connection that waits, and three for
/// control, connector and worker to signal each other.
const DESCRIPTORS: u64 = 6;

/// Takes the time of calls for a peer, by what they do: that is what a stall is named after.
#[derive(Debug)]
pub struct PeerCalls {
    /// Calls that send to the peer.
    pub sends: SlowCalls,
    /// Calls that receive from the peer.
    pub receives: SlowCalls,
}

impl PeerCalls {
    /// Finds no call slow.
    fn unlimited() -> Self {
        Self { sends: SlowCalls::unlimited(), receives: SlowCalls::unlimited() }
    }
}

/// Opens a port for a byte stream; returns its adapter for the worker, and the rest. The port rings
/// `bell` when its state changes, and reports calls that are slow by `slow`.
///
/// # Errors
/// [`SocketError`], with what to do.
pub fn open_stream(
    spec: &Spec,
    slow: PeerCalls,
    bell: &Arc<Waker>,
) -> Result<(Box<dyn Adapter>, MachinePort), SocketError> {
    let charge = spec.quota.take(Resource::Descriptors, DESCRIPTORS)?;
    let system = failed(&spec.path);
    let listener = Listener::of(spec, Beside::Nothing)?;
    let (connector, channel) =
        connector::pair(spec, charge, Source::Accept, listener, Status::new(bell))
            .map_err(&system)?;
    let adapter = stream::Stream::new(channel, slow).map_err(&system)?;
    Ok((Box::new(adapter), start(connector).map_err(&system)?))
}

/// Opens a port for datagrams, as [`open_stream`] does for a byte stream.
///
/// # Errors
/// [`SocketError`], with what to do.
pub fn open_dgram(
    spec: &Spec,
    slow: PeerCalls,
    bell: &Arc<Waker>,
) -> Result<(Box<dyn Adapter>, MachinePort), SocketError> {
    let charge = spec.quota.take(Resource::Descriptors, DESCRIPTORS)?;
    let system = failed(&spec.path);
    let listener = bind_datagrams(&spec.path, spec.access)?;
    let source = Source::Datagrams(spec.peer.clone().expect("every such port has one"));
    let (connector, channel) =
        connector::pair(spec, charge, source, listener, Status::new(bell)).map_err(&system)?;
    let adapter = dgram::Datagrams::new(channel, slow).map_err(&system)?;
    Ok((Box::new(adapter), start(connector).map_err(&system)?))
}

fn start(connector: Connector) -> std::io::Result<MachinePort> {
    let port = connector.port();
    let body = move || {
        confine::narrow(confine::Thread::Machine);
        connector.run();
    };
    std::thread::Builder::new().name("netdev".to_owned()).spawn(body)?;
    Ok(port)
}

/// Why the port disconnects a peer.
#[derive(Debug, thiserror::Error)]
pub enum End {
    /// The peer has closed the connection.
    #[error("it disconnected")]
    Gone,
    /// The control thread wants the peer out, and says why itself.
    #[error("it was evicted")]
    Evicted,
    /// The peer sent descriptors, which only kernels before Linux 6.16 deliver.
    #[error("it sent descriptors beside its frames")]
    Descriptors,
    /// The peer does not send frames behind their length.
    #[error("it announced a frame of {0} bytes; is it a -netdev stream?")]
    TooLong(u32),
    /// A system call failed.
    #[error("{0}")]
    System(#[from] rustix::io::Errno),
}

/// Ports that the tests of both kinds open and watch.
#[cfg(test)]
mod fixture {
    use super::*;
    use crate::machine::quota::{Limits, Quota};
    use crate::machine::{Access, State};
    use packet::VlanId;
    use ring::frame::FRAME_MAX;
    use std::path::Path;
    use std::time::{Duration, Instant};
    use switch::decide::bridge::TagAction;
    use switch::receive::batch::{Batch, Delivery};
    use switch::{Drops, Sent};

    pub(super) fn spec(dir: &Path, connects: bool) -> Spec {
        let (path, peer) = (dir.join("vm.sock"), Some(dir.join("vm.peer")));
        let (name, access) = ("vale0:vm".to_owned(), Access::default());
        let quota = Quota::new(0, Limits::NONE);
        Spec { name, path, connects, pairs: 1, coalesce: None, peer, access, quota }
    }

    pub(super) fn bell() -> Arc<Waker> {
        Arc::new(Waker::of_daemon().expect("descriptors").1)
    }

    pub(super) fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn soon_in(port: &MachinePort, state: State) {
        soon("another state", || port.status().state() == state);
    }

    /// Receives one turn; returns the frames, and the number of drops.
    pub(super) fn turn(adapter: &mut dyn Adapter) -> (Vec<Vec<u8>>, u64) {
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        adapter.recv(&mut batch, &mut drops);
        let frames = (0..batch.frames().len()).map(|frame| {
            let mut bytes = Vec::new();
            let frame = u16::try_from(frame).expect("few");
            batch.append(Delivery { frame, tag: TagAction::Keep }, &mut bytes);
            bytes
        });
        (frames.collect(), drops.iter().map(|(_, count)| count).sum())
    }

    /// Sends copies of a frame; returns how many were taken.
    pub(super) fn send(adapter: &mut dyn Adapter, frame: &[u8], copies: u16) -> u64 {
        let mut intake = ring::intake::Intake::new(1, 9018).expect("memory");
        let mut batch = Batch::new(256);
        batch.restart(intake.region());
        intake.push(&[frame], batch.frags());
        batch.push_received(0, u32::try_from(frame.len()).expect("short"));
        let list = vec![Delivery { frame: 0, tag: TagAction::Keep }; copies.into()];
        let sent = adapter.send(&batch, &list);
        adapter.flush();
        sent.delivered.frames
    }

    /// Sends the longest frame three times: as it is, with a tag, and as it is.
    pub(super) fn send_longest_and_tagged(adapter: &mut dyn Adapter) -> Sent {
        let mut intake = ring::intake::Intake::new(1, FRAME_MAX).expect("memory");
        let mut batch = Batch::new(256);
        batch.restart(intake.region());
        intake.push(&[&vec![7; FRAME_MAX as usize]], batch.frags());
        batch.push_received(0, FRAME_MAX);
        let tag = TagAction::Insert(VlanId::new(7).expect("one of them"));
        let list = [TagAction::Keep, tag, TagAction::Keep].map(|tag| Delivery { frame: 0, tag });
        let sent = adapter.send(&batch, &list);
        adapter.flush();
        sent
    }
}

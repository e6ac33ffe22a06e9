//! A host's stack in the place of a program's or a machine's: a TAP in a namespace, and a thread
//! that carries frames between it and a port.
//!
//! So a port without a kernel speaks TCP and looks at checksums as a kernel does. What a machine
//! says in front of its frames is what the TAP has said, and the other way round; a process gets
//! finished frames, and the TAP of one hands out no others.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::machine::{HEADER, Machine};
use crate::net::Namespace;
use crate::tap;

/// Most bytes that a TAP hands out.
const READ: usize = HEADER + 65_536 + 64;

/// Where frames go to and come from.
pub trait Wire: Send + 'static {
    /// Whether frames may leave checksums and segmentation to the receiver.
    const UNFINISHED: bool;
    /// Sends a frame behind its header.
    fn send(&mut self, bytes: &[u8]);
    /// A frame that has arrived, behind its header.
    fn receive(&mut self) -> Option<Vec<u8>>;
}

impl Wire for client::Port {
    const UNFINISHED: bool = false;

    fn send(&mut self, bytes: &[u8]) {
        // What finds no room is lost, as on any wire.
        self.try_send(&bytes[HEADER..]).expect("a port");
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut frame = Vec::new();
        let found = self.try_recv(&mut frame).expect("a port");
        found.then(|| [&[0; HEADER], &frame[..]].concat())
    }
}

impl Wire for Machine {
    const UNFINISHED: bool = true;

    fn send(&mut self, bytes: &[u8]) {
        let (header, frame) = bytes.split_first_chunk().expect("a header");
        self.send_behind(*header, frame);
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        self.try_receive_whole()
    }
}

/// A stack that runs. It ends when dropped.
#[derive(Debug)]
pub struct Stack {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stack {
    /// One in a namespace, where it is the interface `eth0`.
    ///
    /// # Panics
    /// Without the rights to make a TAP.
    #[must_use]
    pub fn new<W: Wire>(namespace: &Namespace, mut wire: W) -> Self {
        let header = i32::try_from(HEADER).expect("a small number");
        let tap = namespace.within(|| tap::make("eth0", header, W::UNFINISHED));
        namespace.ip("link set eth0 up");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                if !carry(&tap, &mut wire) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

/// Carries a frame in each direction, if there is one.
fn carry(tap: &OwnedFd, wire: &mut impl Wire) -> bool {
    let mut bytes = vec![0; READ];
    let read = rustix::io::read(tap, &mut bytes[..]).ok();
    if let Some(len) = read {
        wire.send(&bytes[..len]);
    }
    let received = wire.receive();
    if let Some(bytes) = &received {
        // What makes no sense is refused, as a driver would.
        let _ = rustix::io::write(tap, bytes);
    }
    read.is_some() || received.is_some()
}

impl Drop for Stack {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

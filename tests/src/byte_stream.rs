//! A peer of a `stream` port, as a virtual machine's VMM is one: frames behind their lengths.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use protocol::MachineState;

use crate::daemon::Daemon;
use crate::{Random, wait};

/// The path of the socket of a machine's port.
///
/// # Panics
/// If the port is none.
#[must_use]
pub fn socket_of(daemon: &Daemon, port: &str) -> PathBuf {
    daemon.port(port).expect("a port").machine.expect("of a machine").socket.into()
}

/// Waits until a machine's port has a peer.
///
/// # Panics
/// If it gets none.
pub fn is_up(daemon: &Daemon, port: &str) {
    let state = || daemon.port(port).expect("a port").machine.expect("of a machine").state;
    wait::until("a peer", || state() == MachineState::Up);
}

/// A peer by a byte stream.
#[derive(Debug)]
pub struct StreamPeer(pub UnixStream);

impl StreamPeer {
    /// The peer of a port, which knows it.
    ///
    /// # Panics
    /// If the port takes none.
    #[must_use]
    pub fn connect(daemon: &Daemon, port: &str) -> Self {
        let stream = UnixStream::connect(socket_of(daemon, port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        is_up(daemon, port);
        Self(stream)
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// If the port has hung up.
    pub fn send(&mut self, frame: &[u8]) {
        self.0.write_all(&Self::bytes(frame)).expect("the port listens");
    }

    /// Sends a frame that is cut anywhere.
    ///
    /// # Panics
    /// If the port has hung up.
    pub fn send_cut(&mut self, frame: &[u8], random: &mut Random) {
        let bytes = Self::bytes(frame);
        let at = random.below(bytes.len() as u64).try_into().expect("a short frame");
        let (first, second) = bytes.split_at(at);
        for part in [first, second] {
            self.0.write_all(part).expect("the port listens");
        }
    }

    fn bytes(frame: &[u8]) -> Vec<u8> {
        let length = u32::try_from(frame.len()).expect("a short frame").to_be_bytes();
        [&length, frame].concat()
    }

    /// The next frame.
    ///
    /// # Panics
    /// If none comes.
    pub fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).expect("a length");
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).expect("a frame");
        frame
    }
}

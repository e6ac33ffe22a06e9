//! A station's passt: a process, and two threads that carry frames to it and from it.
//!
//! passt gets a socket as its standard input, and ends when the other end closes: with the process
//! that has it, however that ends, or with the station. Frames for a passt that reads too slowly
//! wait in a bounded queue; what finds no room there is dropped, as on a cable.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use packet::MacAddr;
use packet::ethernet::ETHERNET_HEADER;
use terminal::say;

/// Bytes of the length in front of each frame.
const LENGTH: usize = 4;
/// The longest frame: 64 KiB of IP behind an Ethernet header.
const FRAME_MAX: usize = ETHERNET_HEADER + (1 << 16);
/// Frames that wait for a passt.
const WAITING: usize = 256;
/// A passt that ran for so long was no failure to start.
const STEADY: Duration = Duration::from_secs(10);
/// After failures in a row, a passt starts again after twice as long each time.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const DOUBLINGS_MAX: u32 = 8;

/// The connection to the switch, which all stations write to. While there is none, frames are
/// dropped.
#[derive(Debug, Default)]
pub struct Switch(Mutex<Option<UnixStream>>);

impl Switch {
    /// Sends to this connection from now on.
    pub fn connect(&self, stream: Option<UnixStream>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    /// Sends a message: a frame behind its length.
    fn send(&self, message: &[u8]) {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.as_mut().is_some_and(|stream| stream.write_all(message).is_err()) {
            *stream = None;
        }
    }
}

/// Reads a message: a frame behind its length. False: the peer has hung up.
pub fn receive(from: &mut impl Read, message: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; LENGTH];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let bytes = usize::try_from(u32::from_be_bytes(length)).expect("64 bits");
    if !(ETHERNET_HEADER..=FRAME_MAX).contains(&bytes) {
        return Err(io::Error::other(format!("a frame of {bytes} bytes")));
    }
    message.resize(LENGTH + bytes, 0);
    message[..LENGTH].copy_from_slice(&length);
    from.read_exact(&mut message[LENGTH..])?;
    Ok(true)
}

/// The frame of a message.
pub fn frame(message: &[u8]) -> &[u8] {
    &message[LENGTH..]
}

/// A station, and the passt that serves it.
#[derive(Debug)]
pub struct Station {
    /// The station's address.
    pub address: Ipv4Addr,
    /// When the station was last heard.
    pub heard: Instant,
    running: Running,
    /// Starts in a row of a passt that did not run for long.
    failures: u32,
}

#[derive(Debug)]
struct Running {
    socket: UnixStream,
    messages: SyncSender<Vec<u8>>,
    /// Ends when passt has ended.
    reader: JoinHandle<()>,
    since: Instant,
}

impl Station {
    /// Starts a station's passt, by this command.
    pub fn start(
        command: &mut Command,
        (mac, address): (MacAddr, Ipv4Addr),
        switch: &Arc<Switch>,
    ) -> io::Result<Self> {
        let running = Running::start(command, mac, switch)?;
        Ok(Self { address, heard: Instant::now(), running, failures: 0 })
    }

    /// Whether its passt has ended, and it is time for another one.
    pub fn is_due(&self) -> bool {
        let delay = FIRST_DELAY * 2_u32.pow(self.failures.min(DOUBLINGS_MAX));
        self.running.reader.is_finished() && self.running.since.elapsed() >= delay
    }

    /// Starts a passt in the place of one that has ended.
    pub fn restart(
        &mut self,
        command: &mut Command,
        mac: MacAddr,
        switch: &Arc<Switch>,
    ) -> io::Result<()> {
        let was_steady = self.running.since.elapsed() >= STEADY;
        self.failures = if was_steady { 0 } else { self.failures + 1 };
        self.running = Running::start(command, mac, switch)?;
        Ok(())
    }

    /// Hands a message to passt, if that has room for it.
    pub fn send(&mut self, message: Vec<u8>) {
        self.heard = Instant::now();
        // A passt that has ended takes none.
        let _ = self.running.messages.try_send(message);
    }
}

impl Running {
    fn start(command: &mut Command, mac: MacAddr, switch: &Arc<Switch>) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        // Ctrl-C on the terminal is for us: passt ends with us.
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).process_group(0);
        let passt = command.spawn();
        // Until it is replaced, the command has the end of the socket that is passt's.
        command.stdin(Stdio::null());
        let passt = passt?;
        let (messages, queue) = sync_channel(WAITING);
        let (to, from, switch) = (socket.try_clone()?, socket.try_clone()?, Arc::clone(switch));
        let name = |what| Builder::new().name(format!("{what} {mac}"));
        name("to").spawn(move || write(to, &queue))?;
        let reader = name("from").spawn(move || read(from, passt, mac, &switch))?;
        Ok(Self { socket, messages, reader, since: Instant::now() })
    }
}

impl Drop for Running {
    /// passt ends when the socket does.
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn write(mut to: UnixStream, queue: &Receiver<Vec<u8>>) {
    while let Ok(message) = queue.recv()
        && to.write_all(&message).is_ok()
    {}
}

/// Carries what passt sends, until it ends.
fn read(from: UnixStream, mut passt: Child, mac: MacAddr, switch: &Switch) {
    let (mut from, mut message) = (BufReader::new(from), Vec::new());
    let ended = loop {
        match receive(&mut from, &mut message) {
            Ok(true) => switch.send(&message),
            Ok(false) => break Ok(()),
            // It has ended, and left something unread.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let _ = from.get_ref().shutdown(Shutdown::Both);
    let status = passt.wait();
    let why = match (ended, status) {
        (Err(error), _) | (_, Err(error)) => error.to_string(),
        (_, Ok(status)) if status.success() => return,
        (_, Ok(status)) => status.to_string(),
    };
    say::remark(format_args!(
        "uvala: passt of {mac} ended ({why}); the next frame of that station starts another"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_messages_are_frames_behind_their_length_within_limits() {
        let mut message = Vec::new();
        let mut bytes = [&[0, 0, 0, 14][..], &[7; 14], &[0, 0, 0, 14, 1]].concat();
        let mut from = &bytes[..];
        assert!(receive(&mut from, &mut message).unwrap());
        assert_eq!((frame(&message), message.len()), (&[7; 14][..], 18));
        assert!(receive(&mut from, &mut message).is_err(), "cut short");
        assert!(!receive(&mut &[][..], &mut message).unwrap(), "the end");
        for length in [13_u32, 65_551, u32::MAX] {
            bytes[..4].copy_from_slice(&length.to_be_bytes());
            let error = receive(&mut &bytes[..], &mut message).unwrap_err();
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
    }
}

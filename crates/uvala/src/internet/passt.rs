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
/// After failures in a row, a passt starts again after twice as long each time; also one that
/// cannot be started at all.
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
    /// None before the first start, and after one that failed.
    running: Option<Running>,
    /// The last start, whether it succeeded or not.
    tried: Option<Instant>,
    /// Starts in a row that failed, or of a passt that did not run for long.
    failures: u32,
}

#[derive(Debug)]
struct Running {
    socket: UnixStream,
    messages: SyncSender<Vec<u8>>,
    /// Ends when passt has ended, and says when that was.
    reader: Option<JoinHandle<Instant>>,
}

impl Station {
    /// A station of this address, without a passt.
    pub fn new(address: Ipv4Addr) -> Self {
        Self { address, heard: Instant::now(), running: None, tried: None, failures: 0 }
    }

    /// Whether it has no passt that runs, and it is time for another one.
    pub fn is_due(&self, now: Instant) -> bool {
        let delay = FIRST_DELAY * 2_u32.pow(self.failures.min(DOUBLINGS_MAX));
        let is_time = self.tried.is_none_or(|tried| now.duration_since(tried) >= delay);
        is_time && self.running.as_ref().is_none_or(Running::has_ended)
    }

    /// Starts a passt by this command, in the place of one that has ended.
    pub fn start(
        &mut self,
        command: &mut Command,
        mac: MacAddr,
        switch: &Arc<Switch>,
        now: Instant,
    ) -> io::Result<()> {
        // The descriptors of the old passt go before there are others.
        let ended = self.running.take().and_then(Running::ended);
        if let Some(tried) = self.tried.replace(now) {
            let lasted = ended.map(|ended| ended.saturating_duration_since(tried));
            let was_steady = lasted.is_some_and(|lasted| lasted >= STEADY);
            self.failures = if was_steady { 0 } else { self.failures.saturating_add(1) };
        }
        self.running = Some(Running::start(command, mac, switch)?);
        Ok(())
    }

    /// Hands a message to passt, if that has room for it.
    pub fn send(&mut self, message: Vec<u8>) {
        self.heard = Instant::now();
        if let Some(running) = &self.running {
            // A passt that has ended takes none.
            let _ = running.messages.try_send(message);
        }
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
        let passt = Passt(passt?);
        let (messages, queue) = sync_channel(WAITING);
        let (to, from, switch) = (socket.try_clone()?, socket.try_clone()?, Arc::clone(switch));
        let name = |what| Builder::new().name(format!("{what} {mac}"));
        name("to").spawn(move || write(to, &queue))?;
        let reader = name("from").spawn(move || read(from, passt, mac, &switch))?;
        Ok(Self { socket, messages, reader: Some(reader) })
    }

    fn has_ended(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// When a passt ended that has ended.
    fn ended(mut self) -> Option<Instant> {
        self.reader.take()?.join().ok()
    }
}

impl Drop for Running {
    /// passt ends when the socket does.
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

/// The process. It is ended and waited for when it is used no more, wherever that is: a process
/// that is not waited for stays in the system's table.
#[derive(Debug)]
struct Passt(Child);

impl Drop for Passt {
    fn drop(&mut self) {
        // The process may have ended, and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write(mut to: UnixStream, queue: &Receiver<Vec<u8>>) {
    while let Ok(message) = queue.recv()
        && to.write_all(&message).is_ok()
    {}
}

/// Carries what passt sends, until it ends. Returns when that was.
fn read(from: UnixStream, mut passt: Passt, mac: MacAddr, switch: &Switch) -> Instant {
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
    let status = passt.0.wait();
    let why = match (ended, status) {
        (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
        (_, Ok(status)) => (!status.success()).then(|| status.to_string()),
    };
    if let Some(why) = why {
        say::remark(format_args!(
            "uvala: passt of {mac} ended ({why}); a later frame of that station starts another"
        ));
    }
    Instant::now()
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

    const MAC: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);

    #[test]
    fn test_a_passt_that_ended_at_once_was_not_steady_however_late_the_next_one_starts() {
        let mut station = Station::new(Ipv4Addr::LOCALHOST);
        let mut now = Instant::now();
        for _ in 0..3 {
            now += 2 * STEADY;
            station.start(&mut Command::new("false"), MAC, &Arc::default(), now).unwrap();
            while !station.is_due(now + 2 * STEADY) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let after = |ms| station.is_due(now + Duration::from_millis(ms));
        assert!(!after(399) && after(400));
    }

    #[test]
    fn test_a_passt_that_cannot_be_started_is_tried_again_at_growing_intervals() {
        let mut station = Station::new(Ipv4Addr::LOCALHOST);
        let (begin, mut times) = (Instant::now(), Vec::new());
        for ms in 0..200_000 {
            let now = begin + Duration::from_millis(ms);
            if station.is_due(now) {
                let mut command = Command::new("/no/such/passt");
                station.start(&mut command, MAC, &Arc::default(), now).unwrap_err();
                times.push(ms);
            }
        }
        let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses[..9], [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600]);
        assert!(pauses[9..].iter().all(|pause| *pause == 25600), "{pauses:?}");
    }

    #[test]
    fn test_a_process_that_is_used_no_more_is_ended_and_waited_for() {
        let passt = Passt(Command::new("sleep").arg("1000").spawn().unwrap());
        let place = std::path::PathBuf::from(format!("/proc/{}", passt.0.id()));
        assert!(place.exists());
        drop(passt);
        assert!(!place.exists());
    }
}

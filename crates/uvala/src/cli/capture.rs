//! `uvala capture`

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use client::capture::{Capture, Captured};
use client::control::Connection;
use client::filter::Filter;
use client::{Error, Stop};
use packet::PortId;
use packet::dropped::Dropped;
use protocol::name::{PortName, SwitchName};
use protocol::parse;
use protocol::{CaptureOf, DropReasonName, DropsOf, PortInfo};

use super::{Global, port, takeover, time_slice};
use crate::pcap::files::{Files, Rotation};
use crate::pcap::{Lost, Seen, decode, write::Interface};
use terminal::Usage;
use terminal::say;

/// KiB of a slot's buffer, if the daemon's configuration does not say otherwise.
const SLOT_KIB: u32 = 2;
/// KiB of the ring into which the switch copies frames: 16 ms of a million frames in a second. This
/// process waits for a core meanwhile, and for the disk. A ring has no more slots.
const KIB_MAX: u32 = 32_768;
/// A few of the longest frames.
const KIB_MIN: u32 = 256;
/// How long this process rests while frames come. Were it ready for each frame, the switch would
/// wake it for each batch, and the time for that is the port's.
const REST: Duration = Duration::from_millis(1);
/// How long frames may wait in the buffer of a file, and how long a wait may take.
const PAUSE: Duration = Duration::from_millis(250);
/// How often the switch is asked how many frames it had no room for.
const ASK: Duration = Duration::from_secs(1);

/// Capture the frames of a port of a switch, or those that a switch drops
///
/// Prints a line for each frame, or writes pcapng with -w. The user that has the port, users that
/// its owner lets attach to it, the owner of the switch and root may capture. The port does not
/// wait for the capture: frames that the capture is too slow for are counted as missed at the end.
/// At a permanent port the capture waits for a client, and goes on with the next one. Pipes, whose
/// frames pass no switch, and ports with --vnet-header cannot be captured.
///
/// With --drops, captures the frames that a switch drops, with the reason, the port that counts the
/// drop and the port that the frame came from; for the owner of the switch and root. In pcapng each
/// port is an interface, and the reason is a comment of the frame. What is no frame (bad_slot,
/// bad_fragments), and what an interface or a virtual machine gives that the switch does not take
/// in, is counted only.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port, such as vale0:vm1; with --drops a switch, such as vale0
    #[arg(value_name = "PORT|SWITCH")]
    name: String,
    /// Capture frames that match this expression of tcpdump's filter language only; see
    /// pcap-filter(7)
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
    /// Write pcapng to a file, or to stdout (-)
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Write at most this many bytes of each frame
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144,
          value_parser = parse::positive32)]
    snap: u32,
    /// Have the switch copy frames into a ring of this many KiB, 256 to 32768 (a slot has 2); a
    /// shorter one takes less of the quota, and holds a shorter burst
    #[arg(short = 'B', long, value_name = "KIB", default_value_t = KIB_MAX,
          value_parser = buffer_size)]
    buffer_size: u32,
    /// Stop after this many frames
    #[arg(short, long, value_name = "N", value_parser = parse::positive)]
    count: Option<u64>,
    /// Frames that enter the switch by the port (in), that leave by it (out), or both
    #[arg(long, value_name = "DIRECTION", default_value = "both", conflicts_with = "drops",
          value_parser = ["in", "out", "both"])]
    direction: String,
    /// Capture what the switch drops, for this reason or for any [reasons: uvala stats --explain]
    #[arg(long, value_name = "REASON", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "the option may have a value")]
    drops: Option<Option<DropReasonName>>,
    /// Begin another file after this many million bytes; FILE gets a number
    #[arg(short = 'C', value_name = "MB", requires = "write",
          value_parser = parse::positive)]
    file_mb: Option<u64>,
    /// Begin another file after this many seconds
    #[arg(short = 'G', value_name = "SECS", requires = "write",
          value_parser = parse::positive)]
    file_s: Option<u64>,
    /// Write at most this many files, then overwrite the oldest
    #[arg(short = 'W', value_name = "N", requires = "write",
          value_parser = parse::positive32)]
    files: Option<u32>,
}

/// What is captured.
enum Source {
    Port(PortName, CaptureOf),
    Drops(SwitchName, DropsOf),
}

impl Source {
    /// The capture, and the names of ports that drops need.
    fn open(
        &self,
        global: &Global,
        slots: u32,
        stop: &Stop,
    ) -> Result<(Capture, Option<PortNames>)> {
        let dir = global.dir.as_deref();
        Ok(match self {
            Self::Port(port, of) => (Capture::open(dir, port.clone(), *of, slots, stop)?, None),
            Self::Drops(switch, of) => {
                let capture = Capture::of_drops(dir, switch, *of, slots, stop)?;
                (capture, Some(PortNames::of(global.connect()?, switch.clone())))
            }
        })
    }
}

impl Display for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port, _) => port.fmt(f),
            Self::Drops(switch, _) => write!(f, "drops of {switch}"),
        }
    }
}

/// Where frames go.
enum Sink {
    Text,
    Files(Box<Files>),
}

/// A capture, and what became of its frames.
struct Session {
    sink: Sink,
    filter: Option<Filter>,
    /// Names of ports, for drops.
    names: Option<PortNames>,
    /// Slots that the ring may have at a look if the next one is to come after a [`REST`].
    few: u32,
    /// Frames still wanted.
    left: u64,
    captured: u64,
    /// Memory for frames that lie in several slots.
    long: Vec<u8>,
    /// Frames that the switch had no room for, and when it said so.
    missed: (u64, Instant),
    /// Frames that daemons before this one had no room for.
    missed_before: u64,
    /// When the sink was written out.
    flushed: Instant,
}

/// Runs `uvala capture`.
pub fn run(global: &Global, args: &Args) -> Result<()> {
    let (stop, source, slots) = (stop_by_signals()?, args.source()?, args.slots());
    let open = || source.open(global, slots, &stop);
    let (mut capture, names) = open()?;
    // A file that is there is kept where there is nothing to capture.
    let mut session = Session { names, ..args.session()? };
    time_slice::shorten();
    say::remark(format_args!("uvala: capturing {source}; Ctrl-C ends it"));
    let ended = loop {
        let why = match session.capture(&mut capture, &stop) {
            Err(why) if takeover::is_loss(&why) => why,
            ended => break ended,
        };
        match takeover::again(why, open) {
            Ok((next, names)) => {
                (capture, session.names) = (next, names);
                session.missed_before = session.missed.0;
                say::remark("uvala: another daemon has taken over; the capture goes on");
            }
            Err(why) => break Err(why),
        }
    };
    // Once the port is gone, the switch knows no more than it said before.
    let Session { sink, captured, missed: (before, _), missed_before, .. } = session;
    let missed = (missed_before + capture.missed().unwrap_or(0)).max(before);
    if let Sink::Files(mut files) = sink {
        files.end(missed).or_else(unread).context("cannot write the capture")?;
    }
    let frames = if captured == 1 { "frame" } else { "frames" };
    say::remark(format_args!("uvala: {captured} {frames} captured, {missed} missed"));
    ended
}

impl Args {
    /// A capture of a port into a FIFO.
    pub fn into_fifo(port: &str, filter: Option<String>, fifo: &Path, direction: &str) -> Self {
        Self {
            name: port.to_owned(),
            filter: filter.into_iter().collect(),
            write: Some(fifo.to_owned()),
            snap: 262_144,
            buffer_size: KIB_MAX,
            count: None,
            direction: direction.to_owned(),
            drops: None,
            file_mb: None,
            file_s: None,
            files: None,
        }
    }

    /// Slots of the ring.
    fn slots(&self) -> u32 {
        self.buffer_size / SLOT_KIB
    }

    fn source(&self) -> Result<Source> {
        let Some(reason) = self.drops else {
            let (entering, leaving) = (self.direction != "out", self.direction != "in");
            return Ok(Source::Port(self.name.parse()?, CaptureOf { entering, leaving }));
        };
        let name = &self.name;
        let wrong = || match name.split_once(':') {
            Some((switch, _)) => Usage(format!("--drops is for a switch, such as {switch}")),
            None => Usage(format!(
                "{name:?} is neither a switch nor a reason that uvala stats --explain lists"
            )),
        };
        Ok(Source::Drops(name.parse().map_err(|_| wrong())?, DropsOf { reason }))
    }

    fn session(&self) -> Result<Session> {
        if self.files.is_some() && self.file_mb.is_none() && self.file_s.is_none() {
            return Err(Usage("-W is for -C or -G".to_owned()).into());
        }
        let expression = self.filter.join(" ");
        let filter = match expression.is_empty() {
            true => None,
            false => Some(Filter::compile(&expression).map_err(Usage)?),
        };
        let sink = match &self.write {
            None => Sink::Text,
            Some(path) => Sink::Files(self.files(path.clone())?.into()),
        };
        let left = self.count.unwrap_or(u64::MAX);
        let (few, long, flushed) = (self.slots() / 8, Vec::new(), Instant::now());
        let missed = (0, flushed);
        let (captured, missed_before) = (0, 0);
        Ok(Session {
            sink,
            filter,
            names: None,
            few,
            left,
            captured,
            long,
            missed,
            missed_before,
            flushed,
        })
    }

    fn files(&self, path: PathBuf) -> Result<Files> {
        let rotation = Rotation {
            bytes: self.file_mb.map(|mb| mb.saturating_mul(1_000_000)),
            age: self.file_s.map(Duration::from_secs),
            files: self.files,
        };
        let path = Some(path).filter(|path| path.as_os_str() != "-");
        if path.is_none() && (rotation.bytes.is_some() || rotation.age.is_some()) {
            return Err(Usage("-C and -G are for files, not for stdout".to_owned()).into());
        }
        let interface = Interface { name: self.name.clone(), snap: self.snap };
        Files::begin(path, rotation, interface).context("cannot write the capture")
    }
}

impl Session {
    /// Captures until the frames that are wanted have come, or a signal has.
    fn capture(&mut self, capture: &mut Capture, stop: &Stop) -> Result<()> {
        while self.left > 0 && !stop.is_said() {
            if self.missed.1.elapsed() >= ASK {
                self.missed = (self.missed_before + capture.missed()?, Instant::now());
            }
            let Some(taken) = self.take(capture)? else { break };
            if taken == 0 || self.flushed.elapsed() >= PAUSE {
                self.flush().or_else(unread).context("cannot write the capture")?;
                self.flushed = Instant::now();
            }
            match taken {
                0 => match capture.wait(Some(PAUSE)) {
                    Ok(_) | Err(Error::Stopped) => {}
                    Err(error) => return Err(error.into()),
                },
                taken if taken <= self.few => std::thread::sleep(REST),
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps what the ring has. Returns the number of slots; `None`: nothing reads them any more.
    fn take(&mut self, capture: &mut Capture) -> Result<Option<u32>> {
        let (mut failed, mut long) = (Ok(()), std::mem::take(&mut self.long));
        let mut slots = 0;
        let taken = capture.take(|Captured { frame, time_ns, is_entering }| {
            slots += frame.slots();
            let bytes = match frame.as_slice() {
                Some(bytes) => bytes,
                None => {
                    long.clear();
                    frame.parts().for_each(|part| long.extend_from_slice(part));
                    &long
                }
            };
            failed = self.keep(Seen { bytes, time_ns, is_entering, lost: None });
            failed.is_ok() && self.left > 0
        });
        self.long = long;
        match failed {
            Ok(()) => taken.map(|_| Some(slots)).map_err(Into::into),
            Err(error) => {
                unread(error).context("cannot write the capture")?;
                Ok(None)
            }
        }
    }

    /// Writes the frame, if it matches.
    fn keep(&mut self, seen: Seen<'_>) -> io::Result<()> {
        let drop = self.names.as_mut().and_then(|names| names.split(seen.bytes));
        let seen = match &drop {
            None => seen,
            Some((reason, [at, from], frame)) => {
                let lost = Some(Lost { reason, at, from });
                Seen { bytes: frame, is_entering: at == from, lost, ..seen }
            }
        };
        if self.filter.as_ref().is_some_and(|filter| !filter.passes(seen.bytes)) {
            return Ok(());
        }
        self.left -= 1;
        self.captured += 1;
        match &mut self.sink {
            Sink::Files(files) => files.write(seen, self.missed.0),
            Sink::Text => io::stdout().lock().write_all(decode::line(seen).as_bytes()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Files(files) => files.flush(),
            Sink::Text => io::stdout().lock().flush(),
        }
    }
}

/// Names of the ports of a switch by their numbers, which are all that is known of a drop.
struct PortNames {
    connection: Connection,
    switch: SwitchName,
    names: HashMap<PortId, String>,
    /// When the daemon was asked for them.
    asked: Instant,
}

impl PortNames {
    fn of(connection: Connection, switch: SwitchName) -> Self {
        let mut names = Self { connection, switch, names: HashMap::new(), asked: Instant::now() };
        names.ask();
        names
    }

    /// Asks for all names. A port of before has its number no more.
    fn ask(&mut self) {
        self.asked = Instant::now();
        // Without an answer the names stay: a switch that is gone ends the capture.
        let Ok(ports) = port::list(&self.connection, Some(&self.switch)) else { return };
        let numbered =
            |info: PortInfo| Some((PortId::new(info.number?.into())?, info.port.to_string()));
        self.names = ports.into_iter().filter_map(numbered).collect();
    }

    /// The name now, or the number.
    fn name(&mut self, port: PortId) -> String {
        if !self.names.contains_key(&port) && self.asked.elapsed() >= PAUSE
            || self.asked.elapsed() >= ASK
        {
            self.ask();
        }
        let unknown = || format!("{}:#{port}", self.switch);
        self.names.get(&port).cloned().unwrap_or_else(unknown)
    }

    /// The reason, the names of the ports that count the drop and that the frame came from, and the
    /// frame.
    fn split<'a>(&mut self, bytes: &'a [u8]) -> Option<(&'a str, [String; 2], &'a [u8])> {
        let (Dropped { reason, at, from }, frame) = Dropped::split(bytes)?;
        Some((reason, [at, from].map(|port| self.name(port)), frame))
    }
}

/// The option `--buffer-size`: KiB.
fn buffer_size(text: &str) -> Result<u32, String> {
    let size = parse::number32(text)?;
    match (KIB_MIN..=KIB_MAX).contains(&size) {
        true => Ok(size),
        false => Err(format!("{text} KiB are out of range, {KIB_MIN} to {KIB_MAX}")),
    }
}

/// A reader that has seen enough is no failure.
fn unread(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

/// Said by the first SIGINT, SIGTERM or SIGHUP.
fn stop_by_signals() -> Result<Stop> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let stop = Stop::new().context("cannot make an eventfd")?;
    let said = stop.clone();
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
        .context("cannot catch signals")?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            said.stop();
        }
    });
    Ok(stop)
}

const EXAMPLES: &str = "\
Examples:
  uvala capture vale0:vm1                         a line for each frame
  uvala capture vale0:vm1 udp port 53             only DNS
  uvala capture vale0:vm1 -w vm1.pcapng -c 1000   1000 frames into a file
  uvala capture vale0:vm1 -w - | tcpdump -r -
  uvala capture vale0:vm1 -w - | wireshark -k -i -
  uvala capture vale0:vm1 -w day -G 3600 -W 24    a file for each of 24 hours
  uvala capture --drops vale0                     what vale0 drops, and why
  uvala capture --drops no_room vale0 -w lost.pcapng";

//! `uvala gen`: frames made, counted, checked and timed, as netmap's pkt-gen does.
//!
//! | module | holds |
//! |---|---|
//! | [`values`] | ranges of addresses on the command line |
//! | [`frame`] | what a frame looks like, and whether it still does |
//! | [`sequence`] | lost, late and duplicate frames |
//! | [`session`] | a port in use: its end, its losses of the daemon |
//! | `send`, `receive`, `echo` | the functions |
//! | [`report`], [`terminal::units`] | figures |

mod echo;
pub mod frame;
pub mod latency;
pub(crate) mod pace;
mod receive;
pub mod report;
mod send;
pub mod sequence;
pub mod session;
pub mod values;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use packet::MacAddr;
use protocol::name::PortName;
use protocol::parse;
use rustix::process::Signal;

use frame::{Builder, LONGEST, Plan, SHORTEST};
use pace::Pace;
use report::Summary;
use session::{PortArgs, Session, clock_ns};
use terminal::Usage;
use terminal::{process, say};
use values::{Endpoints, MacRange};

/// Send, receive, or time frames
///
/// Frames are UDP over IPv4, with a sequence number and a timestamp. The sender writes every byte;
/// the receiver checks it, and reports lost, reordered, duplicate and corrupt frames. Rates go to
/// stderr once a second, a summary goes to stdout. SIGINT and SIGTERM end the run. Options follow
/// netmap's pkt-gen. Numbers take the suffixes k, M and G.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port; a missing port or switch is created
    #[arg(short = 'i', long, value_name = "NAME")]
    port: String,

    /// Function
    #[arg(short, long, value_enum)]
    function: Function,

    /// Frame length in bytes, 60 to 65549; long frames take several slots [default: 60, tagged 64]
    #[arg(short, long, value_name = "BYTES", value_parser = length)]
    length: Option<usize>,

    /// End after N frames [default: no limit]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse::positive)]
    count: Option<u64>,

    /// End after SECONDS [default: no limit]
    #[arg(short = 'T', long, value_name = "SECONDS", value_parser = parse::seconds)]
    time: Option<Duration>,

    /// Rate of tx and ping in frames per second [default: unlimited]
    #[arg(short = 'R', long, value_name = "PPS", value_parser = parse::positive)]
    rate: Option<u64>,

    /// Frames per batch
    #[arg(short, long, value_name = "N", default_value = "256", value_parser = parse::positive32)]
    burst: u32,

    /// Seconds to wait before the first frame
    #[arg(short = 'w', long, value_name = "SECONDS", value_parser = parse::seconds)]
    delay: Option<Duration>,

    /// Do not write or read the payload: measure the rate of slots only, as pkt-gen does
    ///
    /// A sender writes each slot twice, and after that only its length. A receiver counts frames
    /// and does not read them.
    #[arg(long)]
    untouched: bool,

    /// rx: exit with status 1 if a frame was lost, reordered, duplicate or corrupt
    #[arg(long)]
    check: bool,

    /// rx: end after N numbered frames; exit with status 1 if fewer arrive, or if --check would
    #[arg(long, value_name = "N", value_parser = parse::positive)]
    expect: Option<u64>,

    /// Print rates even if stderr is not a terminal
    #[arg(long)]
    report: bool,

    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,

    /// Destination MAC address, or a range A-B
    #[arg(
        short = 'D',
        long,
        value_name = "MAC",
        default_value = "ff:ff:ff:ff:ff:ff",
        help_heading = "Addresses"
    )]
    dst_mac: MacRange,

    /// Source MAC address, or a range A-B [default: derived from the port's name]
    #[arg(short = 'S', long, value_name = "MAC", help_heading = "Addresses")]
    src_mac: Option<MacRange>,

    /// Destination IP[:PORT], or a range A-B
    #[arg(
        short,
        long,
        value_name = "IP",
        default_value = "10.1.0.1:1234",
        help_heading = "Addresses"
    )]
    dst: Endpoints,

    /// Source IP[:PORT], or a range A-B; ranges take turns, one step a frame
    #[arg(
        short,
        long,
        value_name = "IP",
        default_value = "10.0.0.1:1234",
        help_heading = "Addresses"
    )]
    src: Endpoints,

    /// Send frames with this VLAN tag, and accept only such frames
    #[arg(long, value_name = "ID", value_parser = parse::vlan, help_heading = "Addresses")]
    vlan: Option<u16>,

    #[command(flatten)]
    port_args: PortArgs,

    /// End with this process
    #[arg(long, hide = true, value_name = "PID")]
    with_parent: Option<i32>,
}

/// What to do with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Function {
    /// Send
    Tx,
    /// Receive, count and check
    Rx,
    /// Send one, wait for its answer, and measure the time
    Ping,
    /// Send every frame back
    Pong,
}

/// Runs the subcommand.
pub fn run(dir: Option<&Path>, args: &Args) -> Result<()> {
    if let Some(parent) = args.with_parent {
        process::end_with(parent, Signal::KILL)?;
    }
    args.check()?;
    let name: PortName = args.port.parse()?;
    let mut session = Session::open(&name, dir, &args.port_args, args.report)?;
    let mut summary = match args.function {
        Function::Tx => send::run(&mut session, args)?,
        Function::Rx => receive::run(&mut session, args)?,
        Function::Ping => echo::ping(&mut session, args)?,
        Function::Pong => echo::pong(&mut session, args)?,
    };
    summary.drops = session.drops();
    summary.reconnects = session.reconnects;
    let said = if args.json { say::json(&summary) } else { say::out(summary.table()) };
    verdict(args, &summary).and(said)
}

/// The run must have come to something, and what was asked to be checked must be right.
fn verdict(args: &Args, summary: &Summary) -> Result<()> {
    if let Some(failure) = &summary.failure {
        bail!("{failure}");
    }
    let Some(checked) = summary.checked else { return Ok(()) };
    let numbered = summary.frames - checked.foreign - checked.corrupted;
    if let Some(expected) = args.expect {
        ensure!(numbered >= expected, "{numbered} of {expected} expected frames came");
    }
    if (args.check || args.expect.is_some()) && !checked.is_clean() {
        let tally = checked.tally;
        bail!(
            "{} frames lost, {} reordered, {} duplicate, {} late or duplicate, {} corrupt",
            tally.lost,
            tally.reordered,
            tally.duplicates,
            tally.late_or_twice,
            checked.corrupted
        );
    }
    Ok(())
}

impl Args {
    /// An option that would do nothing was meant to do something.
    fn check(&self) -> Result<(), Usage> {
        use Function::{Ping, Rx, Tx};
        for (is_given, option, functions) in [
            (self.check, "--check", &[Rx][..]),
            (self.expect.is_some(), "--expect", &[Rx]),
            (self.rate.is_some(), "--rate", &[Tx, Ping]),
            (self.untouched, "--untouched", &[Tx, Rx]),
        ] {
            if is_given && !functions.contains(&self.function) {
                let names: Vec<String> =
                    functions.iter().map(|f| format!("-f {f:?}").to_lowercase()).collect();
                return Err(Usage(format!("{option} is for {} only", names.join(" and "))));
            }
        }
        let shortest = SHORTEST + self.tag();
        if self.length() < shortest {
            return Err(Usage(format!("tagged frames have at least {shortest} bytes")));
        }
        Ok(())
    }

    fn length(&self) -> usize {
        self.length.unwrap_or(SHORTEST + self.tag())
    }

    fn tag(&self) -> usize {
        if self.vlan.is_some() { frame::TAG } else { 0 }
    }

    fn builder(&self) -> Builder {
        let plan = Plan {
            to: self.dst_mac,
            from: self.src_mac.unwrap_or_else(|| MacRange::one(mac_of(&self.port))),
            source: self.src,
            destination: self.dst,
            length: self.length(),
            vlan: self.vlan,
        };
        Builder::new(plan, new_stream())
    }

    fn pace(&self) -> Pace {
        Pace::new(self.rate)
    }

    /// The frame with which a receiver says where its address is.
    fn announcement(&self) -> Vec<u8> {
        let mut frame = vec![0; self.length()];
        self.builder().write(&mut frame, 0, clock_ns());
        frame
    }
}

/// An address that is always the same for a port, and locally administered.
fn mac_of(port: &str) -> MacAddr {
    let mut hasher = DefaultHasher::new();
    port.hash(&mut hasher);
    let [a, b, c, d, e, ..] = hasher.finish().to_be_bytes();
    MacAddr::new([2, a, b, c, d, e])
}

/// A number that no other run of these minutes has.
fn new_stream() -> u16 {
    let mut hasher = DefaultHasher::new();
    (std::process::id(), clock_ns()).hash(&mut hasher);
    let [a, b, ..] = hasher.finish().to_be_bytes();
    u16::from_be_bytes([a, b])
}

fn length(text: &str) -> Result<usize, String> {
    let length = usize::try_from(parse::number(text)?).unwrap_or(usize::MAX);
    if (SHORTEST..=LONGEST).contains(&length) {
        return Ok(length);
    }
    Err(format!("frames have {SHORTEST} to {LONGEST} bytes"))
}

const EXAMPLES: &str = "\
Examples (with `uvala daemon` running):
  uvala gen -i vale0:b -f rx                       count and check what arrives, until Ctrl-C
  uvala gen -i vale0:a -f tx                       send 60-byte broadcasts as fast as possible
  uvala gen -i vale0:a -f tx -l 1514 -R 10k -T 5   10,000 frames of 1514 bytes a second, for 5 s
  uvala gen -i vale0:a -f tx -n 1M -D 02:00:00:00:00:02 -s 10.0.0.1:2000-10.0.0.9:2009
  uvala gen -i vale0:b -f rx --expect 1M -T 10     exit status 1 unless a million arrive intact
  uvala gen -i vale0:a -f tx -l 9000               jumbo frames, chains of slots
  uvala gen -i vale0:a -f tx --vlan 10             tagged; rx --vlan 10 at the other end
  uvala gen -i vale0:b -f pong                     answer every frame
  uvala gen -i vale0:a -f ping -n 10k --json       round trips: percentiles, histogram
  uvala gen -i 'vale0:p{1' -f rx                   one end of a pipe; the other is 'vale0:p}1'
Exit status 1: a ping without an answer; an rx or pong that received nothing within -T; a tx whose
last frames were not taken; a receiver whose --check or --expect failed.";

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::report::Checked;
    use super::sequence::Tally;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = ["gen", "-i", "vale0:a"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.args)
    }

    #[test]
    fn test_options_are_those_of_pkt_gen() {
        let line = "-f tx -l 1514 -n 1M -R 10k -b 32 -d 10.1.0.1:9-10.1.0.9 -s 10.0.0.1 -T 2.5 \
                    -D 02:00:00:00:00:02 -S 02:00:00:00:00:01 -w 1 -c 0";
        let args = parse(line).unwrap();
        assert_eq!((args.length(), args.count, args.rate), (1514, Some(1_000_000), Some(10_000)));
        assert_eq!(args.time, Some(Duration::from_millis(2500)));
        for bad in ["", "-f up", "-f tx -l 59", "-f tx -l 70k", "-f tx -n 0", "-f tx -R 0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn test_options_that_would_do_nothing_are_refused() {
        let refused = |line| parse(line).unwrap().check().unwrap_err().0;
        assert_eq!(refused("-f tx --check"), "--check is for -f rx only");
        assert_eq!(refused("-f pong --expect 5"), "--expect is for -f rx only");
        assert_eq!(refused("-f rx -R 10"), "--rate is for -f tx and -f ping only");
        assert_eq!(refused("-f ping --untouched"), "--untouched is for -f tx and -f rx only");
        assert_eq!(refused("-f tx --vlan 7 -l 60"), "tagged frames have at least 64 bytes");
        assert!(parse("-f tx --vlan 7 -R 10").unwrap().check().is_ok());
        assert_eq!(parse("-f tx --vlan 7").unwrap().length(), 64);
        assert_eq!(parse("-f tx -b 2k").unwrap().burst, 2000);
        for bad in ["-f tx --vlan 0", "-f tx --vlan 4095", "-f tx -b 10G", "-f tx -b 0"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn test_address_of_a_port_is_its_own_and_unicast() {
        let (a, b) = (mac_of("vale0:a"), mac_of("vale0:b"));
        assert_eq!(a, mac_of("vale0:a"));
        assert_ne!(a, b);
        assert_eq!(a.octets()[0] & 3, 2);
    }

    #[test]
    fn test_verdict_is_about_what_was_asked() {
        let checked = |lost, foreign| {
            let tally = Tally { lost, ..Tally::default() };
            Summary {
                frames: 10,
                checked: Some(Checked { tally, foreign, ..Checked::default() }),
                ..Summary::default()
            }
        };
        let args = |line| parse(line).unwrap();
        assert!(verdict(&args("-f rx"), &checked(5, 0)).is_ok());
        assert!(verdict(&args("-f rx --check"), &checked(5, 0)).is_err());
        assert!(verdict(&args("-f rx --check"), &checked(0, 3)).is_ok());
        assert!(verdict(&args("-f rx --expect 10"), &checked(0, 0)).is_ok());
        assert!(verdict(&args("-f rx --expect 10"), &checked(0, 1)).is_err());
        let failed = Summary { failure: Some("why".to_owned()), ..checked(0, 0) };
        assert_eq!(verdict(&args("-f rx"), &failed).unwrap_err().to_string(), "why");
    }
}

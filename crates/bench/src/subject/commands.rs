//! `uvala gen` and `uvala capture`, as a user starts them: nothing is pinned, and whatever may be
//! left out is.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use terminal::process;

use super::ends::lost_percent;
use crate::daemon::Daemon;
use crate::programs::Killed;
use crate::role;
use crate::traffic::report::Summary;

/// Frames that are sent.
const FRAMES: u64 = 1_000_000;

/// The receiver's port. One that is there before its client can be captured from the first frame.
const PORT: &str = "[switch.vale0.port.r0]\n";

/// Percent of a burst that a receiver loses, which sleeps until the first frame comes.
pub fn lost_by_receiver(kpps: Option<u16>) -> Result<f64> {
    let daemon = Daemon::with(PORT)?;
    let (sent, received) = burst(daemon.dir(), kpps)?;
    check_rate(&sent, kpps)?;
    Ok(lost_percent(FRAMES, received.frames))
}

/// Million frames that arrive in a second, of those that are sent at a rate: what is sent more
/// slowly, because a capture takes the sender's time, is lost, too.
pub fn rate_at_receiver(kpps: u16, is_captured: bool) -> Result<f64> {
    let daemon = Daemon::with(PORT)?;
    let _capture = is_captured.then(|| Capture::start(daemon.dir())).transpose()?;
    let (_, received) = burst(daemon.dir(), Some(kpps))?;
    Ok(received.mpps)
}

/// Percent of a burst that a capture of the receiver's port loses.
pub fn lost_by_capture(kpps: Option<u16>) -> Result<f64> {
    let daemon = Daemon::with(PORT)?;
    let capture = Capture::start(daemon.dir())?;
    let (sent, received) = burst(daemon.dir(), kpps)?;
    check_rate(&sent, kpps)?;
    let [captured, missed] = capture.end()?;
    // What the capture has not read by its end, it has lost, too.
    Ok(lost_percent(received.frames.max(captured + missed), captured))
}

/// Sends the frames, at a rate in thousand frames a second or at once. Returns what the sender and
/// the receiver say.
fn burst(dir: &Path, kpps: Option<u16>) -> Result<(Summary, Summary)> {
    let receiver = generate(dir, "-i vale0:r0 -f rx")?;
    let rate = kpps.map_or_else(String::new, |kpps| format!(" -R {kpps}k"));
    // The receiver falls asleep meanwhile.
    let sender = generate(dir, &format!("-i vale0:s -f tx -n 1M -w 0.5{rate}"))?;
    let sent: Summary = role::result(sender)?;
    interrupt(&receiver)?;
    let received: Summary = role::result(receiver)?;
    ensure!(sent.frames == FRAMES, "{} of {FRAMES} frames were sent", sent.frames);
    Ok((sent, received))
}

/// What is sent more slowly is another work.
fn check_rate(sent: &Summary, kpps: Option<u16>) -> Result<()> {
    let (reached, wanted) = (sent.mpps * 1e3, kpps.map_or(0.0, f64::from));
    ensure!(reached > 0.9 * wanted, "{reached:.0} kpps were sent instead of {wanted}");
    Ok(())
}

/// A command of this program, for the daemon in a directory. It ends with this process.
pub fn command(dir: &Path) -> Result<Command> {
    let mut command = process::dependent(&process::exe()?)?;
    command.arg("--dir").arg(dir).stdin(Stdio::null());
    Ok(command)
}

/// Starts a generator or a receiver of frames.
fn generate(dir: &Path, words: &str) -> Result<Child> {
    let mut command = command(dir)?;
    command.arg("gen").args(words.split(' ')).args(["--json", "--no-reconnect"]);
    command.stdout(Stdio::piped()).spawn().context("cannot start uvala gen")
}

/// Ends a command as Ctrl-C does.
fn interrupt(child: &Child) -> Result<()> {
    Ok(kill_process(Pid::from_child(child), Signal::INT)?)
}

/// A capture of the receiver's port into `/dev/null`.
pub struct Capture {
    process: Killed,
    remarks: BufReader<ChildStderr>,
}

impl Capture {
    /// Starts it, and waits until it captures.
    pub fn start(dir: &Path) -> Result<Capture> {
        let mut command = command(dir)?;
        command.args(["capture", "vale0:r0", "-w", "/dev/null"]).stderr(Stdio::piped());
        let mut process = Killed(command.spawn().context("cannot start uvala capture")?);
        let remarks = process.0.stderr.take().context("uvala capture has no stderr")?;
        let mut capture = Capture { process, remarks: BufReader::new(remarks) };
        let line = capture.line()?;
        ensure!(line.contains("capturing"), "uvala capture says: {line}");
        Ok(capture)
    }

    /// Ends it. Returns how many frames it has captured, and how many it has missed.
    fn end(mut self) -> Result<[u64; 2]> {
        interrupt(&self.process.0)?;
        let line = self.line()?;
        counts(&line).with_context(|| format!("uvala capture says: {line}"))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.remarks.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

/// The first two numbers of a remark.
fn counts(remark: &str) -> Option<[u64; 2]> {
    let mut numbers = remark.split_whitespace().filter_map(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_what_a_capture_says_at_its_end_is_read() {
        assert_eq!(counts("uvala: 1000001 frames captured, 17 missed"), Some([1_000_001, 17]));
        assert_eq!(counts("uvala: the daemon has stopped"), None);
    }
}

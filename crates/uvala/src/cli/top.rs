//! `uvala top`: what ports, functions and workers do now, on the whole terminal.
//!
//! ```text
//!  keys ────┐
//!  signals ─┼──► updates ──► state ──► draw ──► screen
//!  samples ─┘
//! ```
//!
//! Three threads wait, for keys, for signals and for the daemon; the main thread has the state and
//! the screen, and draws when something has changed.

mod draw;
mod rows;
mod sample;
mod sampler;
mod screen;
mod state;
mod text;
mod trail;

#[cfg(test)]
mod tests;

use std::io::stdout;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use client::control::Connection;
use protocol::StatsQuery;
use protocol::name::{PortName, SwitchName};
use ratatui::crossterm::event::{self, Event, KeyEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::termios::isatty;

use super::{Global, stats};
use sample::Sample;
use sampler::Sampler;
use screen::Screen;
use state::{Action, Choices, Link, Sort, State};
use terminal::{Usage, say};

/// Watch ports, drops, functions and workers
///
/// Shows rates of all ports on the whole terminal, the busiest first, with their recent past; the
/// reasons for drops and what to do about them; chains and their functions; and how busy each
/// worker is. Enter shows a port alone, h lists all keys, q ends. When the daemon ends, the program
/// says so and waits for the next one. SIGTERM ends it with status 0.
///
/// TX counts frames that the port's program sends, RX frames that it receives. For plain text again
/// and again, see: uvala stats --watch.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Switch (vale0) or port (vale0:vm1) [default: all that you may see]
    name: Option<String>,
    /// Seconds between two samples, 0.1 to 3600
    #[arg(short = 'd', long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Sort by this column, the largest first; names from a to z
    #[arg(short, long, value_name = "COLUMN", default_value = "total")]
    sort: Sort,
    /// Reverse the order: the smallest first, names from z to a
    #[arg(short, long)]
    reverse: bool,
    /// Hide ports that sent, received and dropped nothing since the last sample
    #[arg(short = 'i', long)]
    hide_idle: bool,
    /// Show ports with all of these words in their name, kind or program
    #[arg(short, long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Print the rates of one interval as text, and exit; needs no terminal
    #[arg(long)]
    once: bool,
}

/// What a sample takes at most of a daemon that is well.
const SILENCE: Duration = Duration::from_secs(2);

/// What the main thread waits for.
enum Update {
    Sample(Box<Sample>),
    /// The first of another daemon.
    First(Box<Sample>),
    Lost(Link),
    /// No more samples come.
    Failed(anyhow::Error),
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// The process had been stopped.
    Continued,
    /// A signal ends the program, or the terminal has gone.
    Stop,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.1 to 3600".to_owned())
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> Result<()> {
    let (only, port) = args.names()?;
    if !args.once {
        check_terminal()?;
    }
    let sampler = Sampler { global: global.clone(), only, interval: args.interval };
    let connection = global.connect()?;
    if let Some(port) = &port {
        // The daemon says what is wrong with one that is not there.
        let query = StatsQuery { port: Some(port.clone()), ..StatsQuery::default() };
        stats::snapshot(&connection, &query)?;
    }
    let first = sampler.take(&connection)?;
    let choices = Choices {
        sort: args.sort,
        reversed: args.reverse,
        hide_idle: args.hide_idle,
        filter: args.filter.clone(),
    };
    let mut state = State::new(choices, port, first);
    if args.once {
        sleep(args.interval);
        state.take(sampler.take(&connection)?);
        return say::out(text::of(&state));
    }
    watch(state, sampler, connection)
}

impl Args {
    /// The switch whose ports are shown, and the port that is shown alone.
    fn names(&self) -> Result<(Option<SwitchName>, Option<PortName>)> {
        match &self.name {
            None => Ok((None, None)),
            Some(name) if name.contains(':') => {
                let port: PortName = name.parse()?;
                Ok((Some(port.switch().clone()), Some(port)))
            }
            Some(name) => Ok((Some(name.parse()?), None)),
        }
    }
}

fn check_terminal() -> Result<(), Usage> {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let what = match isatty(stdout()) {
        true if !is_dumb => return Ok(()),
        true => "a terminal that can move its cursor, and TERM is dumb",
        false => "a terminal on stdout",
    };
    Err(Usage(format!(
        "`uvala top` needs {what}; elsewhere there are `uvala stats --watch` and `uvala top --once`"
    )))
}

/// Shows what happens until a key or a signal ends it.
fn watch(mut state: State, sampler: Sampler, connection: Connection) -> Result<()> {
    let ((updates, received), (ask, asked)) = (channel(), channel());
    catch_signals(updates.clone())?;
    let mut screen = Screen::enter().context("cannot use the terminal")?;
    let samples = updates.clone();
    let patience = sampler.interval + SILENCE;
    thread::spawn(move || sampler.run(connection, &asked, &samples));
    let keys = updates.clone();
    thread::spawn(move || read_keys(&keys));
    thread::spawn(move || watch_terminal(&updates));
    let ended = show(&mut state, &mut screen, &received, patience, &ask);
    drop(screen);
    ended
}

fn show(
    state: &mut State,
    screen: &mut Screen,
    received: &Receiver<Update>,
    patience: Duration,
    ask: &Sender<()>,
) -> Result<()> {
    let mut heard = Instant::now();
    loop {
        screen.draw(state).context("cannot draw")?;
        let left = (*state.link() == Link::Up).then(|| patience.saturating_sub(heard.elapsed()));
        let first = match left.map(|left| received.recv_timeout(left)) {
            None => received.recv().ok(),
            Some(Err(RecvTimeoutError::Timeout)) => {
                state.lose(Link::Silent);
                continue;
            }
            Some(update) => update.ok(),
        };
        // What has come meanwhile is drawn at once.
        for update in first.into_iter().chain(received.try_iter()) {
            if matches!(update, Update::Sample(_) | Update::First(_)) {
                heard = Instant::now();
            }
            match update {
                Update::Sample(sample) => state.take(*sample),
                Update::First(sample) => state.begin(*sample),
                Update::Lost(link) => state.lose(link),
                Update::Failed(error) => return Err(error),
                Update::Resized => {}
                Update::Continued => screen.resume()?,
                Update::Stop => return Ok(()),
                Update::Key(key) => match state.key(key) {
                    Action::Draw => {}
                    // The sampler waits for a daemon, or has failed and said so.
                    Action::Sample => {
                        let _ = ask.send(());
                    }
                    Action::Suspend => screen.suspend()?,
                    Action::Quit => return Ok(()),
                },
            }
        }
    }
}

fn read_keys(to: &Sender<Update>) {
    loop {
        let update = match event::read() {
            Ok(Event::Key(key)) if key.is_press() => Update::Key(key),
            Ok(Event::Resize(..)) => Update::Resized,
            Ok(_) => continue,
            Err(error) => Update::Failed(anyhow::Error::new(error).context("cannot read keys")),
        };
        let is_over = matches!(update, Update::Failed(_));
        if to.send(update).is_err() || is_over {
            return;
        }
    }
}

/// Ends the program when its terminal goes. Reading keys does not tell, and SIGHUP is for the
/// session that has the terminal.
fn watch_terminal(to: &Sender<Update>) {
    let out = stdout();
    // No event asked for: what remains is the hang-up.
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    if retry_on_intr(|| poll(&mut fds, None)).is_ok() {
        let _ = to.send(Update::Stop);
    }
}

fn catch_signals(to: Sender<Update>) -> Result<()> {
    use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let all = [SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    let mut signals = signal_hook::iterator::Signals::new(all).context("cannot catch signals")?;
    thread::spawn(move || {
        for signal in signals.forever() {
            let update = if signal == SIGCONT { Update::Continued } else { Update::Stop };
            if to.send(update).is_err() {
                return;
            }
        }
    });
    Ok(())
}

const EXAMPLES: &str = "\
Examples:
  uvala top                       all ports, the busiest first
  uvala top vale0 -i              ports of a switch, without those that are idle
  uvala top --sort drops -d 5     what drops most, every five seconds
  uvala top -f 'vhost web'        ports of virtual machines with web in the name
  uvala top vale0:vm1             one port
  uvala top --once | head -20     once, as text";

//! The terminal while it is the program's: in raw mode, on its alternate screen.
//!
//! ```text
//!  return, error, SIGTERM ──► drop ─────────┐
//!  panic ──► hook ──► message, abort        ├──► the terminal as it was
//!  Ctrl-Z ──► suspend ──► fg ──► resume ────┘
//! ```
//!
//! A panic runs no destructors in release builds, so the hook gives the terminal back, before the
//! message of the panic. It then aborts in every build: with one thread less the program would
//! stand still.

use std::io::{self, Stdout};
use std::panic;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::process::{Signal, getpid, kill_process};

use super::draw::draw;
use super::state::State;

/// The terminal. As it was when this is dropped.
pub struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal that stdout is.
    pub fn enter() -> io::Result<Self> {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            hook(info);
            std::process::abort();
        }));
        let screen = Self(whole_terminal()?);
        take_over()?;
        Ok(screen)
    }

    /// Draws the state.
    pub fn draw(&mut self, state: &State) -> io::Result<()> {
        self.0.draw(|frame| draw(frame, state)).map(drop)
    }

    /// Stops the process as a job of the shell. Returns when it goes on.
    pub fn suspend(&mut self) -> io::Result<()> {
        give_back();
        kill_process(getpid(), Signal::TSTP)?;
        self.resume()
    }

    /// Takes the terminal again, after others have used it.
    pub fn resume(&mut self) -> io::Result<()> {
        give_back();
        take_over()?;
        // Not `clear`, which asks the terminal for its cursor: the thread that reads keys would get
        // the answer.
        self.0 = whole_terminal()?;
        execute!(io::stdout(), Clear(ClearType::All), Hide)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// The terminal, on which nothing has been drawn.
fn whole_terminal() -> io::Result<Terminal<CrosstermBackend<Stdout>>> {
    Terminal::new(CrosstermBackend::new(io::stdout()))
}

fn take_over() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// Also where it was not taken, or not all of it.
fn give_back() {
    // A terminal that is gone needs nothing.
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// Set for the process that panics.
    const PANICS: &str = "UVALA_TEST_SCREEN_PANICS";
    const NAME: &str = "cli::top::screen::tests::test_a_panic_gives_the_terminal_back";

    #[test]
    fn test_a_panic_gives_the_terminal_back() {
        if std::env::var_os(PANICS).is_some() {
            let _screen = Screen::enter().unwrap();
            panic!("as asked");
        }
        let pty: OwnedFd =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let path = ptsname(&pty, Vec::new()).unwrap();
        let open = || File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        let terminal = open();
        let before = tcgetattr(&terminal).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(PANICS, "1");
        command.stdin(open()).stdout(open()).stderr(Stdio::from(open()));
        let status = command.status().unwrap();
        assert!(!status.success());
        let after = tcgetattr(&terminal).unwrap();
        assert!(after.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
        assert_eq!(after.local_modes, before.local_modes);
        drop((command, terminal));
        let (mut text, mut bytes) = (Vec::new(), [0; 4096]);
        let mut pty = File::from(pty);
        // A terminal whose last user is gone ends with an error.
        while let Ok(count @ 1..) = pty.read(&mut bytes) {
            text.extend_from_slice(&bytes[..count]);
        }
        let text = String::from_utf8_lossy(&text);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part:?} in {text:?}"));
        assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l"), "{text:?}");
        assert!(
            at("\u{1b}[?25h") < at("as asked"),
            "the message stands on the old screen: {text:?}"
        );
    }
}

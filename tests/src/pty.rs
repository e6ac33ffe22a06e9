//! A program on a terminal of its own, and what stands on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::process::Owned;
use crate::wait;

/// A program, and the terminal that it runs on.
#[derive(Debug)]
pub struct OnTerminal {
    process: Owned,
    /// The side of the terminal that a person has: keys go in.
    keys: Option<File>,
    /// The side of the program.
    path: PathBuf,
    screen: Arc<Mutex<Screen>>,
    /// The thread that reads the screen, and what ends it.
    reader: Option<(JoinHandle<()>, OwnedFd)>,
}

/// A screen that reads what a program writes.
struct Screen(vt100::Parser);

impl std::fmt::Debug for Screen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.screen().contents())
    }
}

impl OnTerminal {
    /// Starts a program on a terminal of so many columns and rows, as the leader of its session.
    ///
    /// # Panics
    /// If there is no terminal or no program.
    #[must_use]
    pub fn start(program: &Command, size: [u16; 2]) -> Self {
        Self::start_with(program, size, &["--ctty"])
    }

    /// Starts a program on a terminal that is not its session's: no signal tells it of the end.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_elsewhere(program: &Command, size: [u16; 2]) -> Self {
        Self::start_with(program, size, &[])
    }

    fn start_with(program: &Command, [columns, rows]: [u16; 2], session: &[&str]) -> Self {
        let pty: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&pty).and_then(|()| unlockpt(&pty)).expect("ours");
        let path = ptsname(&pty, Vec::new()).expect("a name").into_string().expect("UTF-8");
        let path = PathBuf::from(path);
        let screen = Arc::new(Mutex::new(Screen(vt100::Parser::new(rows, columns, 0))));
        resize(&pty, [columns, rows]);
        let side = || Stdio::from(File::options().read(true).write(true).open(&path).expect("it"));
        let mut command = Command::new("setsid");
        command.args(session).arg(program.get_program()).args(program.get_args());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let process = Owned::spawn(command.stdin(side()).stdout(side()).stderr(side()));
        let keys = File::from(pty);
        let (output, end) = (keys.try_clone().expect("a descriptor"), new_event());
        let reader = std::thread::spawn({
            let (on_screen, end) = (screen.clone(), end.try_clone().expect("a descriptor"));
            move || show(output, &end, &on_screen)
        });
        Self { process, keys: Some(keys), path, screen, reader: Some((reader, end)) }
    }

    /// Types text, in which `\x1b` is Esc.
    ///
    /// # Panics
    /// If the terminal takes none.
    pub fn press(&mut self, keys: &str) {
        let mut terminal = self.keys.as_ref().expect("not hung up");
        terminal.write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Closes the terminal, as a window is closed.
    ///
    /// # Panics
    /// If the thread that reads it has.
    pub fn hang_up(&mut self) {
        let (reader, end) = self.reader.take().expect("once");
        rustix::io::write(&end, &1_u64.to_ne_bytes()).expect("an eventfd");
        reader.join().expect("it reads only");
        self.keys = None;
    }

    /// Gives the terminal another size.
    ///
    /// # Panics
    /// If it has none.
    pub fn resize(&mut self, size: [u16; 2]) {
        self.screen
            .lock()
            .expect("no thread panics with it")
            .0
            .screen_mut()
            .set_size(size[1], size[0]);
        resize(self.keys.as_ref().expect("not hung up"), size);
    }

    /// What stands on the screen now.
    ///
    /// # Panics
    /// If the thread that reads it has.
    #[must_use]
    pub fn text(&self) -> String {
        self.screen.lock().expect("no thread panics with it").0.screen().contents()
    }

    /// Waits until the screen shows what `look` wants to see.
    ///
    /// # Panics
    /// When that takes too long, with the screen.
    pub fn until(&self, what: &str, look: impl Fn(&str) -> bool) -> String {
        let deadline = std::time::Instant::now() + wait::PATIENCE;
        loop {
            let text = self.text();
            if look(&text) {
                return text;
            }
            assert!(std::time::Instant::now() < deadline, "in vain for {what}:\n{text}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits until the screen shows a text.
    ///
    /// # Panics
    /// As [`until`](Self::until).
    pub fn until_shown(&self, part: &str) -> String {
        self.until(part, |text| text.contains(part))
    }

    /// The program.
    pub fn process(&mut self) -> &mut Owned {
        &mut self.process
    }

    /// Whether the program has given the terminal back: it shows the old screen and a cursor, and
    /// lines and echoes what is typed.
    ///
    /// # Panics
    /// If the terminal is gone.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        let side = File::options().read(true).write(true).open(&self.path).expect("a terminal");
        let modes = tcgetattr(side).expect("a terminal").local_modes;
        let screen = self.screen.lock().expect("no thread panics with it");
        let screen = screen.0.screen();
        let is_old = !screen.alternate_screen() && !screen.hide_cursor();
        is_old && modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }
}

fn new_event() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("a descriptor")
}

/// Shows what the program writes until it has no terminal any more, or `end` is written.
fn show(mut output: File, end: &OwnedFd, screen: &Mutex<Screen>) {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut bytes = [0; 4096];
    loop {
        let mut fds = [PollFd::new(&output, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        if poll(&mut fds, None).is_err() || !fds[1].revents().is_empty() {
            return;
        }
        // A terminal that no program has ends with an error.
        let Ok(count @ 1..) = output.read(&mut bytes) else { return };
        screen.lock().expect("no thread panics with it").0.process(&bytes[..count]);
    }
}

fn resize(terminal: impl std::os::fd::AsFd, [columns, rows]: [u16; 2]) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal");
}

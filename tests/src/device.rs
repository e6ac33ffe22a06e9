//! `uvala-device`: an emulated network card on a port.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::daemon::Daemon;
use crate::process::{Owned, uvala_path};
use crate::wait;

/// The name of its port.
pub const PORT: &str = "vale0:nic";

/// Counters by their names.
pub type Counts = BTreeMap<String, u64>;

/// A `uvala-device` of a daemon.
#[derive(Debug)]
pub struct Device {
    /// The process.
    pub process: Owned,
    /// Where its VMM connects to.
    pub socket: PathBuf,
    log: PathBuf,
}

impl Device {
    /// Starts an e1000, and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(daemon: &Daemon) -> Self {
        Self::model(daemon, "e1000")
    }

    /// Starts a card of a model, likewise.
    ///
    /// # Panics
    /// If it does not listen.
    #[must_use]
    pub fn model(daemon: &Daemon, model: &str) -> Self {
        Self::with(daemon, model, &[])
    }

    /// Starts a card of a model with more options, likewise.
    ///
    /// # Panics
    /// If it does not listen.
    #[must_use]
    pub fn with(daemon: &Daemon, model: &str, more: &[&str]) -> Self {
        let socket = daemon.dir().join(format!("{PORT}.vfio"));
        let log = daemon.dir().join("device.log");
        let mut command = Command::new(uvala_path().with_file_name("uvala-device"));
        command.args(["--nic", model, "--port", PORT, "--dir"]).arg(daemon.dir()).args(more);
        let errors = File::options().create(true).append(true).open(&log).expect("room");
        let mut process = Owned::spawn(command.stdout(Stdio::piped()).stderr(errors));
        let mut line = String::new();
        BufReader::new(process.stdout()).read_line(&mut line).expect("text");
        assert!(line.contains(" listens on "), "{line:?}: {:?}", std::fs::read_to_string(&log));
        Self { process, socket, log }
    }

    /// What it has counted, as its port shows it once no frame passes any more. A guest's driver
    /// reads registers all the time.
    ///
    /// # Panics
    /// If its port is not there.
    #[must_use]
    pub fn counts(daemon: &Daemon) -> Counts {
        let now = || daemon.port(PORT).expect("its port").counts;
        let mut before = now();
        // It tells them once a second.
        wait::find("counters that stay", || {
            std::thread::sleep(Duration::from_millis(2500));
            let last = std::mem::replace(&mut before, now());
            let frames = |it: &Counts| ["tx_frames", "rx_frames"].map(|name| it.get(name).copied());
            (!last.is_empty() && frames(&last) == frames(&before)).then(|| before.clone())
        })
    }

    /// What it has said on stderr.
    ///
    /// # Panics
    /// If there is no log.
    #[must_use]
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Mappings of guests' memory, and descriptors.
    ///
    /// # Panics
    /// If it has ended.
    #[must_use]
    pub fn holdings(&self) -> (usize, usize) {
        let place = PathBuf::from(format!("/proc/{}", self.process.pid()));
        let maps = std::fs::read_to_string(place.join("maps")).expect("it lives");
        let guests = ["memfd:guest", "memfd:memory-backend"];
        let maps = maps.lines().filter(|line| guests.iter().any(|name| line.contains(name)));
        (maps.count(), std::fs::read_dir(place.join("fd")).expect("it lives").count())
    }
}

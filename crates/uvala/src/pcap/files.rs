//! Where captured frames are written: a file, stdout, or files in turn.
//!
//! ```text
//!  -w F            F
//!  -w F -C or -G   F, F1, F2, …          the next one when F is large, or old, enough
//!        … -W 3    F0, F1, F2, F0, …     at most 3 files, the oldest is overwritten
//! ```
//!
//! Errors name the file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::write::{self, Interface};
use super::{Lost, Seen};

/// When another file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rotation {
    /// Bytes of a file.
    pub bytes: Option<u64>,
    /// How long a file is written.
    pub age: Option<Duration>,
    /// The number of files.
    pub files: Option<u32>,
}

/// The file that is being written.
pub struct Files {
    path: Option<PathBuf>,
    rotation: Rotation,
    interface: Interface,
    number: u32,
    to: Counted,
    opened: Instant,
    /// Ports that drop, in the order of their interfaces in this file: after the first one.
    ports: Vec<String>,
    /// Frames of this file, and the time of the last one.
    frames: u64,
    last_ns: u64,
    /// Frames that the capture had missed when this file began.
    missed_before: u64,
}

/// Bytes that are written at once. A system call for each few frames would take longer than they.
const BLOCK: usize = 256 * 1024;

/// Counts what is written.
struct Counted {
    to: BufWriter<Box<dyn Write>>,
    bytes: u64,
}

impl Write for Counted {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Files {
    /// Begins the first file; `None`: stdout.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(
        path: Option<PathBuf>,
        rotation: Rotation,
        interface: Interface,
    ) -> io::Result<Self> {
        let to = Counted { to: BufWriter::new(Box::new(io::sink())), bytes: 0 };
        let (opened, number) = (Instant::now(), 0);
        let mut files = Self {
            path,
            rotation,
            interface,
            number,
            to,
            opened,
            ports: Vec::new(),
            frames: 0,
            last_ns: 0,
            missed_before: 0,
        };
        files.open()?;
        Ok(files)
    }

    /// Writes a frame, into a new file if it is time for one. The capture has missed so many frames
    /// until now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, seen: Seen<'_>, missed: u64) -> io::Result<()> {
        let is_full = self.rotation.bytes.is_some_and(|bytes| self.to.bytes >= bytes);
        let is_old = self.rotation.age.is_some_and(|age| self.opened.elapsed() >= age);
        if (is_full || is_old) && self.frames > 0 {
            self.end(missed)?;
            self.number += 1;
            self.open()?;
        }
        self.frames += 1;
        self.last_ns = seen.time_ns;
        let interface = self.interface_of(seen).map_err(|error| self.named(error))?;
        write::frame(&mut self.to, interface, self.interface.snap, seen)
            .map_err(|error| self.named(error))
    }

    /// The number of the interface of a frame: a port that drops its first one gets one.
    fn interface_of(&mut self, seen: Seen<'_>) -> io::Result<u32> {
        let Some(Lost { at: name, .. }) = seen.lost else { return Ok(0) };
        let known = self.ports.iter().position(|port| port == name);
        let at = match known {
            Some(at) => at,
            None => {
                write::interface(&mut self.to, name, self.interface.snap)?;
                self.ports.push(name.to_owned());
                self.ports.len() - 1
            }
        };
        u32::try_from(at + 1).map_err(io::Error::other)
    }

    /// Writes out what is in the buffer.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush().map_err(|error| self.named(error))
    }

    /// Ends the file with its counters; the capture has missed so many frames.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(&mut self, missed: u64) -> io::Result<()> {
        let of_this_file = missed.saturating_sub(self.missed_before);
        write::end(&mut self.to, self.last_ns, self.frames + of_this_file, of_this_file)
            .map_err(|error| self.named(error))?;
        self.missed_before = missed;
        self.flush()
    }

    fn open(&mut self) -> io::Result<()> {
        let to: Box<dyn Write> = match self.file_name() {
            Some(path) => Box::new(File::create(path).map_err(|error| self.named(error))?),
            None => Box::new(io::stdout()),
        };
        self.to = Counted { to: BufWriter::with_capacity(BLOCK, to), bytes: 0 };
        (self.opened, self.frames) = (Instant::now(), 0);
        self.ports.clear();
        write::begin(&mut self.to, &self.interface).map_err(|error| self.named(error))?;
        self.flush()
    }

    /// What is wrong with which file.
    fn named(&self, error: io::Error) -> io::Error {
        let name = self.file_name().unwrap_or_else(|| "stdout".into());
        io::Error::new(error.kind(), format!("{}: {error}", name.display()))
    }

    fn file_name(&self) -> Option<PathBuf> {
        let mut name = self.path.clone()?.into_os_string();
        match self.rotation.files {
            Some(files) => {
                let width = (files.max(1) - 1).to_string().len();
                name.push(format!("{:0width$}", self.number % files.max(1)));
            }
            None if self.number > 0 => name.push(self.number.to_string()),
            None => {}
        }
        Some(name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_follow_each_other_and_the_oldest_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let interface = Interface { name: "vale0:a".to_owned(), snap: 1000 };
        let rotation = Rotation { bytes: Some(1), age: None, files: Some(3) };
        let mut files = Files::begin(Some(path), rotation, interface).unwrap();
        for fill in 0..7 {
            let seen = Seen { bytes: &[fill; 60], time_ns: 0, is_entering: false, lost: None };
            files.write(seen, 0).unwrap();
        }
        files.end(0).unwrap();
        let first = |name: &str| {
            let file = File::open(dir.path().join(name)).unwrap();
            crate::pcap::read::frame(file, 1).unwrap()[0]
        };
        assert_eq!(["f0", "f1", "f2"].map(first), [6, 4, 5]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}

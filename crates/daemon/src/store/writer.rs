//! A thread that writes saved state. Only the clients that made a change wait for the disk.
//!
//! ```text
//!  control thread                                        writer
//!    change of vale0 ──────────────────────────────────► applied, file replaced, synced
//!    change of vale0 ┐                                       │
//!    change of vale0 ┴ pending                               │
//!                      ◄─────────────────────────────────────┘ written
//!    both in one ──────────────────────────────────────► applied, file replaced, synced
//! ```
//!
//! The control thread sends what changed, and the writer has the text of every port: so a change of
//! one port costs the control thread the same in a small switch and in a large one. The writer
//! always writes the whole file of a switch ([`Store::replace`]); `docs/design/0021-state-files.md`
//! has what that takes. A file that it cannot write it tries again with the next change of that
//! switch, every `RETRY`, and at the end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::name::{PortName, SwitchName};
use rustix::pipe::{PipeFlags, pipe_with};
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

use super::Store;
use super::record::{PortRecord, SwitchChange, SwitchRecord};

/// What changed of a switch.
#[derive(Debug)]
pub struct Change {
    /// Name of the switch.
    pub switch: SwitchName,
    /// The change; `None`: nothing of the switch is to be saved any more.
    pub record: Option<SwitchChange>,
    /// The change names all ports of the switch. The first change of a switch does, and the first
    /// one after `None`.
    pub whole: bool,
}

/// The result of a change.
#[derive(Debug)]
pub struct Written {
    /// Name of the switch.
    pub switch: SwitchName,
    /// Whether the change is on the disk.
    pub result: Result<(), NotWritten>,
}

/// Why a change does not outlive the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {why}", .path.display())]
pub struct NotWritten {
    /// The file that the daemon could not write.
    pub path: PathBuf,
    /// The system's reason.
    pub why: String,
}

/// A handle of the thread. Dropping it waits until the thread has written everything.
#[derive(Debug)]
pub struct Writer {
    changes: Option<Sender<Change>>,
    results: Receiver<Written>,
    /// The read end of a pipe, readable when there is a result.
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
    unsaved: Unsaved,
}

/// Switches whose file could not be written, with the reason. The thread writes it, and the control
/// thread reads it for those that ask how the daemon does.
type Unsaved = Arc<Mutex<BTreeMap<SwitchName, NotWritten>>>;

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No threads or descriptors left.
    pub fn start(store: Store) -> io::Result<Self> {
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (changes, tasks) = channel();
        let (report, results) = channel();
        let unsaved = Unsaved::default();
        let files = Files { store, all: BTreeMap::new(), unsaved: unsaved.clone() };
        let body = move || {
            confine::narrow(confine::Thread::Disk);
            files.run(&tasks, &report, &ringer);
        };
        let thread = std::thread::Builder::new().name("state-writer".to_owned()).spawn(body)?;
        Ok(Self { changes: Some(changes), results, bell, thread: Some(thread), unsaved })
    }

    /// Has a change written. The thread writes changes of a switch in order.
    pub fn write(&self, change: Change) {
        let changes = self.changes.as_ref().expect("open until it is dropped");
        changes.send(change).expect("the thread ends with its handle");
    }

    /// Switches whose file could not be written, and is not yet.
    pub fn unsaved(&self) -> BTreeMap<SwitchName, NotWritten> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the results since the last call.
    pub fn written(&mut self) -> Vec<Written> {
        // The list counts, whatever the pipe says.
        let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        self.results.try_iter().collect()
    }

    /// Waits for the next result.
    pub fn wait(&mut self) -> Written {
        self.results.recv().expect("the thread ends with its handle")
    }

    /// Waits until the thread has tried everything again. Returns what it could not write.
    pub fn end(mut self) -> BTreeMap<SwitchName, NotWritten> {
        self.join();
        self.unsaved()
    }

    fn join(&mut self) {
        self.changes = None;
        // A thread that panicked has said so itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.join();
    }
}

impl AsFd for Writer {
    /// Readable when there is a result.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The files of all switches.
struct Files {
    store: Store,
    all: BTreeMap<SwitchName, SavedSwitch>,
    unsaved: Unsaved,
}

/// A record whose ports are texts already.
type Text = SwitchRecord<Box<RawValue>>;

/// The state of one switch.
#[derive(Default)]
struct SavedSwitch {
    /// What the file has to say; `None`: there is to be no file.
    record: Option<Text>,
    /// The file says so.
    is_written: bool,
}

impl Files {
    fn run(mut self, tasks: &Receiver<Change>, report: &Sender<Written>, ringer: &OwnedFd) {
        let mut next_try = Instant::now() + RETRY;
        loop {
            match tasks.recv_timeout(next_try.saturating_duration_since(Instant::now())) {
                Ok(change) => {
                    let switch = change.switch.clone();
                    let result = self.apply(change);
                    // Without a receiver no client waits any more; a full pipe is readable already.
                    let _ = report.send(Written { switch, result });
                    let _ = rustix::io::write(ringer, b"x");
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.retry(),
            }
            if next_try <= Instant::now() {
                self.retry();
                next_try = Instant::now() + RETRY;
            }
        }
    }

    /// Applies a change and writes the file, unless that says the same already.
    fn apply(&mut self, change: Change) -> Result<(), NotWritten> {
        let Change { switch, record, whole } = change;
        let saved = self.all.entry(switch.clone()).or_default();
        let is_same = match (record, &mut saved.record) {
            (Some(change), Some(before)) if !whole => merge(before, change),
            (record, before) => {
                assert!(whole || record.is_none(), "the first change of a switch is whole");
                *before = record.map(|record| record.with_ports(all_texts));
                false
            }
        };
        saved.is_written &= is_same;
        self.write(&switch)
    }

    /// Tries again to write files that could not be written.
    fn retry(&mut self) {
        let due = self.all.iter().filter(|(_, saved)| !saved.is_written);
        let due: Vec<SwitchName> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            // The failure of the change itself is in the log already.
            if self.try_write(&name).is_ok() {
                tracing::info!("{name}: state saved");
            }
        }
    }

    /// Writes the file of a switch, or removes it, where that is due; logs a failure.
    fn write(&mut self, switch: &SwitchName) -> Result<(), NotWritten> {
        self.try_write(switch).map_err(|error| {
            let path = self.store.path(switch);
            tracing::error!("{switch}: cannot save its state: {}: {error}", path.display());
            NotWritten { path, why: error.to_string() }
        })
    }

    fn try_write(&mut self, switch: &SwitchName) -> io::Result<()> {
        let saved = self.all.get_mut(switch).expect("the caller has looked");
        let written = match &saved.record {
            _ if saved.is_written => Ok(()),
            Some(record) => self.store.replace(switch, &record.to_text()),
            None => self.store.remove(switch),
        };
        saved.is_written = written.is_ok();
        let mut unsaved = self.unsaved.lock().unwrap_or_else(PoisonError::into_inner);
        match &written {
            Ok(()) => drop(unsaved.remove(switch)),
            Err(error) => {
                let not = NotWritten { path: self.store.path(switch), why: error.to_string() };
                unsaved.insert(switch.clone(), not);
            }
        }
        drop(unsaved);
        if saved.is_written && saved.record.is_none() {
            self.all.remove(switch);
        }
        written
    }
}

/// Puts a change into a record. Returns whether the record says the same as before.
fn merge(record: &mut Text, change: SwitchChange) -> bool {
    let mut is_same = change.says_of_the_switch_what(record);
    let mut ports = std::mem::take(&mut record.ports);
    *record = change.with_ports(|changed| {
        for (name, port) in changed {
            let (before, text) = (ports.remove(&name), port.as_ref().map(port_text));
            is_same &= before.as_ref().map(|it| it.get()) == text.as_ref().map(|it| it.get());
            ports.extend(text.map(|text| (name, text)));
        }
        ports
    });
    is_same
}

fn all_texts(ports: BTreeMap<PortName, Option<PortRecord>>) -> BTreeMap<PortName, Box<RawValue>> {
    let text = |(name, port): (PortName, Option<PortRecord>)| Some((name, port_text(&port?)));
    ports.into_iter().filter_map(text).collect()
}

fn port_text(port: &PortRecord) -> Box<RawValue> {
    to_raw_value(port).expect("records are plain data")
}

/// Time between two tries to write what could not be written.
const RETRY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::record::VERSION;

    fn switch() -> SwitchName {
        "vale0".parse().unwrap()
    }

    /// A change of a switch with these ports; `None`: gone.
    fn change(persistent: bool, ports: &[(&str, Option<u32>)], whole: bool) -> Change {
        let port = |owner| {
            let text = format!(r#"{{"owner":{owner},"now":{{"kind":"shm","settings":{{}}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let ports = ports.iter().map(|(name, owner)| (name.parse().unwrap(), owner.map(port)));
        let record = SwitchChange {
            version: VERSION,
            switch: switch(),
            persistent,
            settings: Default::default(),
            configured: None,
            ports: ports.collect(),
        };
        Change { switch: switch(), record: Some(record), whole }
    }

    struct Bench {
        dir: PathBuf,
        files: Files,
    }

    impl Bench {
        fn new(name: &str) -> Self {
            let name = format!("uvala-writer-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let files = Files {
                store: Store::open(dir.clone()).unwrap(),
                all: BTreeMap::new(),
                unsaved: Unsaved::default(),
            };
            Self { dir, files }
        }

        fn file(&self) -> PathBuf {
            self.dir.join("vale0.json")
        }

        /// The ports in the file, with their owners.
        fn read(&self) -> Vec<(String, u32)> {
            let text = std::fs::read(self.file()).unwrap();
            let record = SwitchRecord::read(&text).unwrap();
            record.ports.iter().map(|(name, port)| (name.to_string(), port.owner)).collect()
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.dir).ok();
        }
    }

    #[test]
    fn test_each_change_replaces_the_whole_file() {
        let mut bench = Bench::new("whole");
        bench.files.apply(change(true, &[("vale0:a", Some(0))], true)).unwrap();
        for owner in 1..50 {
            let ports = [("vale0:a", Some(owner)), ("vale0:b", (owner % 2 == 0).then_some(7))];
            bench.files.apply(change(true, &ports, false)).unwrap();
            let text = std::fs::read(bench.file()).unwrap();
            let _: SwitchRecord =
                serde_json::from_slice(&text).expect("one record, nothing behind");
            let mut expected = vec![("vale0:a".to_owned(), owner)];
            expected.extend((owner % 2 == 0).then(|| ("vale0:b".to_owned(), 7)));
            assert_eq!(bench.read(), expected);
        }
        let names = std::fs::read_dir(&bench.dir).unwrap();
        assert_eq!(names.count(), 2, "the file and the lock");
    }

    #[test]
    fn test_what_changes_nothing_is_not_written() {
        let mut bench = Bench::new("same");
        bench.files.apply(change(true, &[("vale0:a", Some(1))], true)).unwrap();
        let before = std::fs::read(bench.file()).unwrap();
        bench.files.apply(change(true, &[("vale0:a", Some(1)), ("vale0:x", None)], false)).unwrap();
        assert_eq!(std::fs::read(bench.file()).unwrap(), before);
    }

    #[test]
    fn test_file_goes_when_there_is_nothing_to_keep_and_comes_back() {
        let mut bench = Bench::new("gone");
        for _ in 0..2 {
            bench
                .files
                .apply(change(false, &[("vale0:a", Some(1)), ("vale0:x", None)], true))
                .unwrap();
            assert_eq!(bench.read(), [("vale0:a".to_owned(), 1)]);
            bench.files.apply(Change { switch: switch(), record: None, whole: true }).unwrap();
            assert!(!bench.file().exists() && bench.files.all.is_empty());
        }
    }

    #[test]
    fn test_what_cannot_be_written_is_said_and_tried_again() {
        let mut bench = Bench::new("failed");
        bench.files.apply(change(true, &[("vale0:a", Some(1))], true)).unwrap();
        let away = bench.dir.with_extension("away");
        std::fs::rename(&bench.dir, &away).unwrap();
        std::fs::write(&bench.dir, "in the way").unwrap();
        let error = bench.files.apply(change(true, &[("vale0:b", Some(2))], false)).unwrap_err();
        assert_eq!(error.path, bench.file());
        bench.files.retry();
        assert!(!bench.files.all[&switch()].is_written);
        std::fs::remove_file(&bench.dir).unwrap();
        std::fs::rename(&away, &bench.dir).unwrap();
        bench.files.retry();
        assert_eq!(bench.read(), [("vale0:a".to_owned(), 1), ("vale0:b".to_owned(), 2)]);
    }

    #[test]
    fn test_what_is_owed_is_written_before_the_end() {
        let mut bench = Bench::new("end");
        let other = Bench::new("other");
        let elsewhere = Store::open(other.dir.join("state")).unwrap();
        let store = std::mem::replace(&mut bench.files.store, elsewhere);
        let writer = Writer::start(store).unwrap();
        writer.write(change(true, &[("vale0:a", Some(1))], true));
        writer.write(change(true, &[("vale0:b", Some(2))], false));
        assert!(writer.end().is_empty());
        assert_eq!(bench.read().len(), 2);
    }

    #[test]
    fn test_the_end_tells_what_could_not_be_written() {
        let place = Bench::new("lost");
        let store = Store::open(place.dir.join("state")).unwrap();
        std::fs::remove_dir_all(place.dir.join("state")).unwrap();
        let writer = Writer::start(store).unwrap();
        writer.write(change(true, &[("vale0:a", Some(1))], true));
        let lost = writer.end();
        assert_eq!(lost[&switch()].path, place.dir.join("state/vale0.json"));
    }
}

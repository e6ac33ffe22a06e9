//! A thread that writes records, so that nobody waits for a disk but those whose change it is.
//!
//! ```text
//!  control thread                                        keeper
//!    change of vale0 ──────────────────────────────────► entered, written, synced
//!    change of vale0 ┐                                       │
//!    change of vale0 ┴ noted                                 │
//!                      ◄─────────────────────────────────────┘ kept
//!    both at once ─────────────────────────────────────► entered, written, synced
//! ```
//!
//! It is given what changed, not what there is: it has the text of every port itself, so a change
//! costs the control thread what it is long, however large its switch. What could not be written is
//! owed: it is tried again with the next change of that switch, every `PAUSE`, and at the end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::name::SwitchName;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use thiserror::Error;

use super::Store;
use super::record::{SwitchChange, SwitchRecord};

/// What a switch is now.
#[derive(Debug)]
pub struct Change {
    /// Its name.
    pub switch: SwitchName,
    /// What changed; `None`: there is nothing to be kept any more.
    pub record: Option<SwitchChange>,
    /// It names all ports that there are. The first change of a switch does, and the first after
    /// there was nothing to be kept.
    pub whole: bool,
}

/// A change is on the disk, or cannot be brought there.
#[derive(Debug)]
pub struct Written {
    /// Of this switch.
    pub switch: SwitchName,
    /// How it went.
    pub result: Result<(), NotWritten>,
}

/// Why a change does not outlive the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {why}", .path.display())]
pub struct NotWritten {
    /// What could not be written.
    pub path: PathBuf,
    /// What the system said.
    pub why: String,
}

/// The thread's handle. Dropped, it waits until everything is written.
#[derive(Debug)]
pub struct Writer {
    changes: Option<Sender<Change>>,
    kept: Receiver<Written>,
    /// Readable when something is kept.
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts it.
    ///
    /// # Errors
    /// No threads or descriptors left.
    pub fn start(store: Store) -> io::Result<Self> {
        let (bell, ringer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (changes, tasks) = channel();
        let (report, kept) = channel();
        let books = Books { store, sheets: BTreeMap::new() };
        let body = move || books.keep(&tasks, &report, &ringer);
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(body)?;
        Ok(Self { changes: Some(changes), kept, bell, thread: Some(thread) })
    }

    /// Writes a change, sooner or later: changes of a switch in order.
    pub fn write(&self, change: Change) {
        let changes = self.changes.as_ref().expect("open until it is dropped");
        changes.send(change).expect("the thread ends with its handle");
    }

    /// What was written since the last time.
    pub fn written(&mut self) -> Vec<Written> {
        // Whatever it says, the list is looked at.
        let _ = rustix::io::read(&self.bell, &mut [0; 256]);
        self.kept.try_iter().collect()
    }

    /// Waits until something is written.
    pub fn wait(&mut self) -> Written {
        self.kept.recv().expect("the thread ends with its handle")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.changes = None;
        // Its panic has been told by itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Readable when something is kept.
impl AsFd for Writer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// All records, as text.
struct Books {
    store: Store,
    sheets: BTreeMap<SwitchName, Sheet>,
}

/// A record whose ports are texts already.
type Text = SwitchRecord<Box<RawValue>>;
type TextChange = SwitchRecord<Option<Box<RawValue>>>;

/// The record of a switch.
#[derive(Default)]
struct Sheet {
    /// What its file is to say; `None`: there is to be no file.
    record: Option<Text>,
    /// Bytes in the file that were written at once. `None`: what is there is not known, and to be
    /// replaced.
    base: Option<usize>,
    /// Bytes that were put behind them.
    tail: usize,
}

impl Books {
    fn keep(mut self, tasks: &Receiver<Change>, report: &Sender<Written>, ringer: &OwnedFd) {
        let mut next_try = Instant::now() + PAUSE;
        loop {
            match tasks.recv_timeout(next_try.saturating_duration_since(Instant::now())) {
                Ok(change) => {
                    let switch = change.switch.clone();
                    let result = self.enter(change);
                    // Without a receiver nobody waits any more; a full pipe has rung already.
                    let _ = report.send(Written { switch, result });
                    let _ = rustix::io::write(ringer, b"x");
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.settle(),
            }
            if next_try <= Instant::now() {
                self.settle();
                next_try = Instant::now() + PAUSE;
            }
        }
    }

    /// Enters a change and writes it.
    fn enter(&mut self, change: Change) -> Result<(), NotWritten> {
        let Change { switch, record, whole } = change;
        let sheet = self.sheets.entry(switch.clone()).or_default();
        let written = match (record.map(in_text), sheet.record.take()) {
            (Some(later), Some(before)) if !whole => {
                let line = sheet.change(before, later);
                sheet.append(&mut self.store, &switch, &line)
            }
            (record, _) => {
                assert!(whole || record.is_none(), "the first change of a switch is whole");
                let there = |(name, text)| Some((name, Option::<_>::clone(&text)?));
                let all = |ports: BTreeMap<_, _>| ports.into_iter().filter_map(there).collect();
                sheet.record = record.map(|record| record.with_ports(all));
                sheet.write(&mut self.store, &switch)
            }
        };
        self.note(&switch, written)
    }

    /// Tries again what could not be written.
    fn settle(&mut self) {
        let owed =
            |(name, sheet): (&SwitchName, &Sheet)| sheet.base.is_none().then(|| name.clone());
        let owed: Vec<SwitchName> = self.sheets.iter().filter_map(owed).collect();
        for name in owed {
            let sheet = self.sheets.get_mut(&name).expect("it was there just now");
            if sheet.write(&mut self.store, &name).is_ok() {
                tracing::info!("{name}: kept for the next daemon after all");
                let _ = self.note(&name, Ok(()));
            }
        }
    }

    /// Notes how writing went: a switch of which nothing is kept is forgotten with its file.
    fn note(&mut self, switch: &SwitchName, written: io::Result<()>) -> Result<(), NotWritten> {
        let sheet = &self.sheets[switch];
        if sheet.record.is_none() && written.is_ok() {
            self.sheets.remove(switch);
        }
        written.map_err(|error| {
            let path = self.store.path(switch);
            tracing::error!("{switch}: not kept for the next daemon: {}: {error}", path.display());
            NotWritten { path, why: error.to_string() }
        })
    }
}

impl Sheet {
    /// Enters a change. Returns what to put behind what was written before: nothing, if that says
    /// the same.
    fn change(&mut self, mut before: Text, mut later: TextChange) -> Vec<u8> {
        later.ports.retain(|name, text| {
            before.ports.get(name).map(|text| text.get()) != text.as_ref().map(|text| text.get())
        });
        let same = later.ports.is_empty() && later.says_of_the_switch_what(&before);
        let line = if same { Vec::new() } else { line(&later) };
        for (name, text) in &later.ports {
            match text {
                Some(text) => drop(before.ports.insert(name.clone(), text.clone())),
                None => drop(before.ports.remove(name)),
            }
        }
        self.record = Some(later.with_ports(|_| before.ports));
        line
    }

    /// Puts a line behind what was written before, or writes all of it anew.
    fn append(&mut self, store: &mut Store, switch: &SwitchName, line: &[u8]) -> io::Result<()> {
        let Some(base) = self.base else { return self.write(store, switch) };
        if line.is_empty() {
            return Ok(());
        }
        if self.tail + line.len() <= base.max(LONG) && store.append(switch, line).is_ok() {
            self.tail += line.len();
            return Ok(());
        }
        self.write(store, switch)
    }

    /// Writes all of it.
    fn write(&mut self, store: &mut Store, switch: &SwitchName) -> io::Result<()> {
        (self.base, self.tail) = (None, 0);
        match &self.record {
            Some(record) => {
                let text = line(record);
                store.replace(switch, &text)?;
                self.base = Some(text.len());
            }
            None => store.remove(switch)?,
        }
        Ok(())
    }
}

/// The ports of a change as texts.
fn in_text(change: SwitchChange) -> TextChange {
    let text = |port| to_raw_value(&port).expect("records are plain data");
    change
        .with_ports(|ports| ports.into_iter().map(|(name, port)| (name, port.map(text))).collect())
}

fn line(record: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(record).expect("records are plain data");
    text.push(b'\n');
    text
}

/// Between two tries to write what could not be written.
const PAUSE: Duration = Duration::from_secs(5);
/// Bytes behind a record that are not worth writing it anew, however short it is.
const LONG: usize = 64 << 10;

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
        books: Books,
    }

    impl Bench {
        fn new(name: &str) -> Self {
            let name = format!("uvala-keeper-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let books = Books { store: Store::open(dir.clone()).unwrap(), sheets: BTreeMap::new() };
            Self { dir, books }
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
    fn test_changes_are_put_behind_what_is_there_and_the_file_stays_in_proportion() {
        let mut bench = Bench::new("behind");
        bench.books.enter(change(true, &[("vale0:a", Some(0))], true)).unwrap();
        let (mut longest, mut written) = (0, 0);
        for owner in 1..2000 {
            let before = bench.books.sheets[&switch()].tail;
            let ports = [("vale0:a", Some(owner)), ("vale0:b", (owner % 2 == 0).then_some(7))];
            bench.books.enter(change(true, &ports, false)).unwrap();
            let sheet = &bench.books.sheets[&switch()];
            written += sheet.tail.checked_sub(before).unwrap_or(sheet.base.unwrap());
            longest = longest.max(sheet.base.unwrap() + sheet.tail);
        }
        assert_eq!(bench.read(), [("vale0:a".to_owned(), 1999)]);
        assert!(longest < 2 * LONG && written < 2000 * 400, "{longest} {written}");
    }

    #[test]
    fn test_what_changes_nothing_is_not_written() {
        let mut bench = Bench::new("same");
        bench.books.enter(change(true, &[("vale0:a", Some(1))], true)).unwrap();
        let before = std::fs::read(bench.file()).unwrap();
        bench.books.enter(change(true, &[("vale0:a", Some(1)), ("vale0:x", None)], false)).unwrap();
        assert_eq!(std::fs::read(bench.file()).unwrap(), before);
    }

    #[test]
    fn test_file_goes_when_there_is_nothing_to_keep_and_comes_back() {
        let mut bench = Bench::new("gone");
        for _ in 0..2 {
            bench
                .books
                .enter(change(false, &[("vale0:a", Some(1)), ("vale0:x", None)], true))
                .unwrap();
            assert_eq!(bench.read(), [("vale0:a".to_owned(), 1)]);
            bench.books.enter(Change { switch: switch(), record: None, whole: true }).unwrap();
            assert!(!bench.file().exists() && bench.books.sheets.is_empty());
        }
    }

    #[test]
    fn test_what_cannot_be_written_is_said_and_tried_again() {
        let mut bench = Bench::new("failed");
        bench.books.enter(change(true, &[("vale0:a", Some(1))], true)).unwrap();
        let away = bench.dir.with_extension("away");
        std::fs::rename(&bench.dir, &away).unwrap();
        std::fs::write(&bench.dir, "in the way").unwrap();
        let error = bench.books.enter(change(true, &[("vale0:b", Some(2))], false)).unwrap_err();
        assert_eq!(error.path, bench.file());
        bench.books.settle();
        assert!(bench.books.sheets[&switch()].base.is_none());
        std::fs::remove_file(&bench.dir).unwrap();
        std::fs::rename(&away, &bench.dir).unwrap();
        bench.books.settle();
        assert_eq!(bench.read(), [("vale0:a".to_owned(), 1), ("vale0:b".to_owned(), 2)]);
    }

    #[test]
    fn test_what_is_owed_is_written_before_the_end() {
        let mut bench = Bench::new("end");
        let other = Bench::new("other");
        let elsewhere = Store::open(other.dir.join("state")).unwrap();
        let store = std::mem::replace(&mut bench.books.store, elsewhere);
        let keeper = Writer::start(store).unwrap();
        keeper.write(change(true, &[("vale0:a", Some(1))], true));
        keeper.write(change(true, &[("vale0:b", Some(2))], false));
        drop(keeper);
        assert_eq!(bench.read().len(), 2);
    }
}

//! The saved state: a directory of the daemon's own, with one file for each switch.
//!
//! ```text
//! state/vale0.json    {"version":2,"switch":"vale0",…,"ports":{"vale0:a":{…},"vale0:b":{…}}}
//! state/.vale0.json   the next content, while the writer writes it
//! state/.lock         locked by the daemon that uses the directory
//! ```
//!
//! The daemon replaces a file as a whole: it writes the new content beside it under another name,
//! syncs that, renames it, and syncs the directory. So whatever ends the daemon or the machine, and
//! at whatever moment, the next daemon finds the content before or the content after a change, and
//! the one after if a client was told that the change is done.
//!
//! Older daemons put changes behind a record, a line each. Such a file is read, and replaced at
//! once by one in the present format.
//!
//! The lock keeps a second daemon out. A daemon that cannot take it because it cannot write there
//! (the disk is full or read-only) tries again before each write, and reads what there is
//! meanwhile. Only the daemon's user may write to the directory; the daemon checks what it reads
//! nevertheless.

pub mod record;
mod unique;
pub mod writer;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use protocol::name::SwitchName;
use thiserror::Error;

use crate::lockfile::{self, LockError};
use record::{Checked, SwitchRecord};
use rustix::io::Errno;

/// Longest file; one of a switch with all its ports and addresses has a tenth of that.
const MAX_BYTES: u64 = 32 << 20;
const EXTENSION: &str = ".json";
const LOCK_NAME: &str = ".lock";

/// Why a daemon cannot read its saved state, in one line that says what to do.
#[derive(Debug, Error)]
pub enum StoreError {
    /// A file is damaged or not the daemon's.
    #[error("state {}: {why}; repair or remove it, or start with --forget", .path.display())]
    Broken {
        /// A file, or the directory.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// The process has no descriptors left to read it.
    #[error(
        "state {}: no descriptors left; raise the limit: ulimit -n in the shell, LimitNOFILE= in \
         the unit",
        .path.display()
    )]
    NoDescriptors {
        /// A file, or the directory.
        path: PathBuf,
    },
    /// Another daemon uses the directory.
    #[error(
        "another daemon{} keeps its state in {}; stop it, or choose another --state",
        .pid, .dir.display()
    )]
    Shared {
        /// The directory.
        dir: PathBuf,
        /// " (process N)", if the lock says so.
        pid: String,
    },
}

/// Whether this process, or the system, has no descriptors left.
#[must_use]
pub fn lacks_descriptors(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|it| error.raw_os_error() == Some(it.raw_os_error()))
}

impl StoreError {
    /// Why a file or the directory cannot be read.
    fn of(path: &Path, error: &io::Error) -> Self {
        let path = path.to_path_buf();
        match lacks_descriptors(error) {
            true => Self::NoDescriptors { path },
            false => Self::Broken { path, why: error.to_string() },
        }
    }
}

/// Checks that a daemon can start with the state in a directory, which another one may use
/// meanwhile. Changes nothing.
pub fn check(dir: &Path) -> Result<(), StoreError> {
    Store { dir: dir.to_path_buf(), lock: None }.read_all().map(drop)
}

/// A file of the state.
struct Loaded {
    switch: SwitchName,
    /// The content in the present format, if it has another one.
    newer: Option<Vec<u8>>,
    record: Checked,
}

/// The directory of the saved state.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// The lock file; `None` while the daemon cannot write there.
    lock: Option<File>,
}

impl Store {
    /// Makes the directory if there is none, and locks it.
    pub fn open(dir: PathBuf) -> Result<Self, StoreError> {
        let mut store = Self { dir, lock: None };
        match store.own() {
            Ok(()) => {}
            Err(LockError::Held(pid)) => return Err(StoreError::Shared { dir: store.dir, pid }),
            Err(LockError::Io(error)) => tracing::warn!(
                "state {}: {error}; until that is repaired, a restart undoes the changes that \
                 commands make",
                store.dir.display()
            ),
        }
        Ok(store)
    }

    /// Locks the directory, unless that is done already.
    fn own(&mut self) -> Result<(), LockError> {
        if self.lock.is_none() {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            check_dir(&self.dir)?;
            self.lock = Some(lockfile::take(&self.dir.join(LOCK_NAME))?);
        }
        Ok(())
    }

    /// Path of the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the file of a switch.
    #[must_use]
    pub fn path(&self, switch: &SwitchName) -> PathBuf {
        self.dir.join(file_name(switch))
    }

    /// Reads all files, and replaces those that say it in an older format.
    pub fn load(&mut self) -> Result<BTreeMap<SwitchName, Checked>, StoreError> {
        let mut records = BTreeMap::new();
        for Loaded { switch, newer, record } in self.read_all()? {
            if let Some(newer) = newer {
                self.convert(&switch, &newer);
            }
            records.insert(switch, record);
        }
        Ok(records)
    }

    /// Reads and checks all files.
    fn read_all(&self) -> Result<Vec<Loaded>, StoreError> {
        if let Err(error) = check_dir(&self.dir) {
            return match error.kind() {
                ErrorKind::NotFound => Ok(Vec::new()),
                _ => Err(StoreError::of(&self.dir, &error)),
            };
        }
        let names = self.names().map_err(|error| StoreError::of(&self.dir, &error))?;
        let load = |name: String| {
            let path = self.dir.join(&name);
            let text = read(&path).map_err(|error| StoreError::of(&path, &error))?;
            let found = SwitchRecord::read(&text).and_then(|record| {
                if file_name(&record.switch) != name {
                    return Err(format!("it is of switch {}", record.switch));
                }
                let (switch, now) = (record.switch.clone(), record.to_text());
                let newer = (now != text).then_some(now);
                Ok(Loaded { switch, newer, record: record.check()? })
            });
            found.map_err(|why| StoreError::Broken { path, why })
        };
        names.into_iter().map(load).collect()
    }

    /// Replaces a file of an older daemon.
    fn convert(&mut self, switch: &SwitchName, text: &[u8]) {
        let path = self.path(switch);
        match self.replace(switch, text) {
            Ok(()) => tracing::info!("state {}: converted to the current format", path.display()),
            // It is as good as it was.
            Err(error) => tracing::warn!("state {}: not converted: {error}", path.display()),
        }
    }

    /// Removes all files.
    pub fn forget(&self) -> Result<(), StoreError> {
        let forget = || {
            for name in self.names()? {
                std::fs::remove_file(self.dir.join(name))?;
            }
            sync(&self.dir)
        };
        match forget() {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StoreError::Broken { path: self.dir.clone(), why: error.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Replaces the file of a switch.
    pub fn replace(&mut self, switch: &SwitchName, text: &[u8]) -> io::Result<()> {
        self.own().map_err(io::Error::other)?;
        let draft = self.dir.join(format!(".{}", file_name(switch)));
        let path = self.path(switch);
        let written = write(&draft, text).and_then(|()| std::fs::rename(&draft, path));
        if written.is_err() {
            // A rest of it does no harm: it has another name.
            let _ = std::fs::remove_file(&draft);
        }
        written?;
        sync(&self.dir)
    }

    /// Removes the file of a switch.
    pub fn remove(&mut self, switch: &SwitchName) -> io::Result<()> {
        let path = self.path(switch);
        match std::fs::symlink_metadata(&path) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(());
            }
            _ => self.own().map_err(io::Error::other)?,
        }
        std::fs::remove_file(&path)?;
        sync(&self.dir)
    }

    /// Names of the files of switches, in order.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if name.ends_with(EXTENSION) && !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

fn file_name(switch: &SwitchName) -> String {
    format!("{switch}{EXTENSION}")
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let refuse = |why| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if !meta.is_file() {
        return refuse("not a regular file");
    }
    check_owner(&meta)?;
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES { refuse("too long") } else { Ok(text) }
}

fn check_dir(dir: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(dir)?;
    if !meta.is_dir() {
        return Err(io::Error::new(ErrorKind::NotADirectory, "not a directory"));
    }
    check_owner(&meta)
}

fn check_owner(meta: &std::fs::Metadata) -> io::Result<()> {
    let refuse = |why| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    let uid = rustix::process::geteuid().as_raw();
    if meta.uid() != uid && meta.uid() != 0 {
        return refuse("owned by another user");
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("other users can write to it");
    }
    Ok(())
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let name = format!("uvala-store-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn store(&self) -> Store {
            Store::open(self.0.join("state")).unwrap()
        }

        fn file(&self) -> PathBuf {
            self.0.join("state").join("vale0.json")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    fn switch() -> SwitchName {
        "vale0".parse().unwrap()
    }

    const RECORD: &[u8] =
        br#"{"version":2,"switch":"vale0","persistent":true,"settings":{},"ports":{}}"#;

    #[test]
    fn test_records_come_back_until_they_are_removed() {
        let dir = Dir::new("back");
        let mut store = dir.store();
        assert!(store.load().unwrap().is_empty());
        store.remove(&switch()).unwrap();
        for _ in 0..2 {
            store.replace(&switch(), RECORD).unwrap();
        }
        let meta = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((meta(&dir.file()), meta(&dir.0.join("state"))), (0o600, 0o700));
        let files = std::fs::read_dir(dir.0.join("state")).unwrap();
        assert_eq!(files.count(), 2, "it and the lock; no draft is left");
        assert_eq!(store.load().unwrap().len(), 1);
        store.remove(&switch()).unwrap();
        assert!(store.load().unwrap().is_empty());
    }

    #[test]
    fn test_second_daemon_is_refused_and_told_who_has_it() {
        let dir = Dir::new("second");
        let mut store = dir.store();
        store.replace(&switch(), RECORD).unwrap();
        let error = Store::open(dir.0.join("state")).unwrap_err().to_string();
        let pid = std::process::id();
        assert!(error.starts_with(&format!("another daemon (process {pid}) keeps")), "{error}");
        drop(store);
        assert_eq!(dir.store().load().unwrap().len(), 1);
    }

    #[test]
    fn test_directory_that_cannot_be_had_is_tried_again_with_each_write() {
        let dir = Dir::new("late");
        std::fs::write(&dir.0, "in the way").unwrap();
        let mut store = dir.store();
        assert!(store.replace(&switch(), RECORD).is_err());
        std::fs::remove_file(&dir.0).unwrap();
        store.replace(&switch(), RECORD).unwrap();
        let error = Store::open(dir.0.join("state")).unwrap_err();
        assert!(matches!(error, StoreError::Shared { .. }));
    }

    #[test]
    fn test_draft_of_a_daemon_that_died_is_no_record() {
        let dir = Dir::new("draft");
        let mut store = dir.store();
        store.replace(&switch(), RECORD).unwrap();
        std::fs::write(dir.0.join("state").join(".vale0.json"), "{\"ver").unwrap();
        assert_eq!(store.load().unwrap().len(), 1);
        store.replace(&switch(), RECORD).unwrap();
    }

    #[test]
    fn test_file_of_an_older_daemon_is_loaded_once_and_replaced() {
        let dir = Dir::new("older");
        let mut store = dir.store();
        store.replace(&switch(), RECORD).unwrap();
        // A record, a change behind it, and another one that the end of the daemon cut off.
        let record = String::from_utf8(RECORD.to_vec()).unwrap();
        let change = record.replace("\"settings\":{}", "\"settings\":{\"age_s\":7}");
        let older = format!("{record}\n{change}\n{}", &change[..30]).replace(":2,", ":1,");
        std::fs::write(dir.file(), older).unwrap();
        let load = |store: &mut Store| {
            assert_eq!(store.load().unwrap().len(), 1);
            std::fs::read_to_string(dir.file()).unwrap()
        };
        let newer = load(&mut store);
        assert_eq!(newer, format!("{change}\n"));
        assert_eq!(load(&mut store), newer);
    }

    #[test]
    fn test_broken_and_foreign_files_are_refused_in_one_line_until_forgotten() {
        let dir = Dir::new("broken");
        let mut store = dir.store();
        store.replace(&switch(), RECORD).unwrap();
        let good = std::fs::read_to_string(dir.file()).unwrap();
        let other = good.replace("vale0", "vale1");
        for text in ["", "\0\0\0", &good[..good.len() / 2], &other] {
            std::fs::write(dir.file(), text).unwrap();
            let error = store.load().unwrap_err().to_string();
            assert!(error.contains("vale0.json: ") && error.contains("--forget"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        std::fs::write(dir.file(), &good).unwrap();
        std::fs::set_permissions(dir.file(), Permissions::from_mode(0o666)).unwrap();
        assert!(store.load().unwrap_err().to_string().contains("other users can write"));
        std::fs::remove_file(dir.file()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.file()).unwrap();
        assert!(store.load().is_err());
        store.forget().unwrap();
        assert!(store.load().unwrap().is_empty());
    }
}

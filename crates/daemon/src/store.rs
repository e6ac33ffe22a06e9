//! Where records are kept: a directory of the daemon's own, with one file for each switch.
//!
//! A file is replaced at once: written beside under another name, synced, renamed, and the
//! directory synced. So whatever ends the daemon, or the machine, there is the old record or the
//! new one. Nobody but the daemon's user may write there; what is read is checked nevertheless.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use client::name::SwitchName;
use thiserror::Error;

use crate::records::{Checked, SwitchRecord};

/// Longest file: a switch with all its ports and addresses takes a tenth.
const MAX_BYTES: u64 = 32 << 20;
const EXTENSION: &str = ".json";

/// Why a daemon cannot know what it was told before. One line that says what to do.
#[derive(Debug, Error)]
#[error("state {}: {why}; mend or remove it, or start with --forget", .path.display())]
pub struct StoreError {
    path: PathBuf,
    why: String,
}

/// The directory.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// In this directory, which is made when there is something to keep.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Reads all records.
    pub fn load(&self) -> Result<BTreeMap<SwitchName, Checked>, StoreError> {
        let wrong = |path: &Path, why: String| StoreError { path: path.to_path_buf(), why };
        if let Err(error) = check_dir(&self.dir) {
            return match error.kind() {
                ErrorKind::NotFound => Ok(BTreeMap::new()),
                _ => Err(wrong(&self.dir, error.to_string())),
            };
        }
        let names = self.names().map_err(|error| wrong(&self.dir, error.to_string()))?;
        let mut records = BTreeMap::new();
        for name in names {
            let path = self.dir.join(&name);
            let record = read(&path).map_err(|error| error.to_string()).and_then(|text| {
                let record: SwitchRecord =
                    serde_json::from_slice(&text).map_err(|error| error.to_string())?;
                if file_name(&record.switch) != name {
                    return Err(format!("it is of switch {}", record.switch));
                }
                Ok((record.switch.clone(), record.check()?))
            });
            let (name, record) = record.map_err(|why| wrong(&path, why))?;
            records.insert(name, record);
        }
        Ok(records)
    }

    /// Removes all records.
    pub fn forget(&self) -> Result<(), StoreError> {
        let forget = || {
            for name in self.names()? {
                std::fs::remove_file(self.dir.join(name))?;
            }
            sync(&self.dir)
        };
        match forget() {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StoreError { path: self.dir.clone(), why: error.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Keeps the record of a switch, or no record.
    pub fn save(&self, switch: &SwitchName, record: Option<&SwitchRecord>) -> io::Result<()> {
        let path = self.dir.join(file_name(switch));
        let Some(record) = record else {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(()) => sync(&self.dir),
            };
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        check_dir(&self.dir)?;
        let draft = self.dir.join(format!(".{}", file_name(switch)));
        let written = write(&draft, record).and_then(|()| std::fs::rename(&draft, &path));
        if written.is_err() {
            // What is left of it does no harm.
            let _ = std::fs::remove_file(&draft);
        }
        written?;
        sync(&self.dir)
    }

    /// The files of records, in order.
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

fn write(path: &Path, record: &SwitchRecord) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(record)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&text)?;
    file.write_all(b"\n")?;
    file.sync_all()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    let refuse = |why| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    if !meta.is_file() {
        return refuse("it is no file");
    }
    check_owner(&meta)?;
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES { refuse("it is too long") } else { Ok(text) }
}

fn check_dir(dir: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(dir)?;
    if !meta.is_dir() {
        return Err(io::Error::new(ErrorKind::NotADirectory, "it is no directory"));
    }
    check_owner(&meta)
}

fn check_owner(meta: &std::fs::Metadata) -> io::Result<()> {
    let refuse = |why| Err(io::Error::new(ErrorKind::PermissionDenied, why));
    let uid = rustix::process::geteuid().as_raw();
    if meta.uid() != uid && meta.uid() != 0 {
        return refuse("it belongs to another user");
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("others may write to it");
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
            Store::new(self.0.join("state"))
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

    fn record() -> SwitchRecord {
        SwitchRecord {
            version: crate::records::VERSION,
            switch: "vale0".parse().unwrap(),
            persistent: true,
            settings: Default::default(),
            configured: None,
            ports: BTreeMap::new(),
        }
    }

    #[test]
    fn test_records_come_back_until_they_are_removed() {
        let dir = Dir::new("back");
        let (store, record) = (dir.store(), record());
        assert!(store.load().unwrap().is_empty());
        store.save(&record.switch, None).unwrap();
        for _ in 0..2 {
            store.save(&record.switch, Some(&record)).unwrap();
        }
        let meta = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((meta(&dir.file()), meta(&dir.0.join("state"))), (0o600, 0o700));
        assert_eq!(std::fs::read_dir(dir.0.join("state")).unwrap().count(), 1, "no draft is left");
        assert_eq!(store.load().unwrap().len(), 1);
        store.save(&record.switch, None).unwrap();
        assert!(store.load().unwrap().is_empty());
    }

    #[test]
    fn test_draft_of_a_daemon_that_died_is_no_record() {
        let dir = Dir::new("draft");
        let (store, record) = (dir.store(), record());
        store.save(&record.switch, Some(&record)).unwrap();
        std::fs::write(dir.0.join("state").join(".vale0.json"), "{\"ver").unwrap();
        assert_eq!(store.load().unwrap().len(), 1);
        store.save(&record.switch, Some(&record)).unwrap();
    }

    #[test]
    fn test_broken_and_foreign_files_are_refused_in_one_line_until_forgotten() {
        let dir = Dir::new("broken");
        let (store, record) = (dir.store(), record());
        store.save(&record.switch, Some(&record)).unwrap();
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
        assert!(store.load().unwrap_err().to_string().contains("others may write"));
        std::fs::remove_file(dir.file()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.file()).unwrap();
        assert!(store.load().is_err());
        store.forget().unwrap();
        assert!(store.load().unwrap().is_empty());
    }
}

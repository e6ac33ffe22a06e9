//! A directory for this user alone.

use std::fs::{DirBuilder, remove_dir_all};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A directory among those for temporary files, gone when dropped.
#[derive(Debug)]
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    /// Makes one.
    pub fn new() -> Result<Self> {
        // Another user that could tell the name would make a directory of that name first.
        let number = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("uvala-{number:016x}"));
        // One that is there already belongs to another process.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        // A leftover in the temporary directory does no harm.
        let _ = remove_dir_all(&self.0);
    }
}

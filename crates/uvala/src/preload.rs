//! The library that gives programs `/dev/netmap`: where it is, and how a program gets it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use terminal::process;

/// File name of the library.
const LIBRARY: &str = "libuvala_netmap.so";
/// Names another file.
const LIBRARY_VARIABLE: &str = "UVALA_NETMAP_LIB";

/// The library's file.
pub fn library() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from) {
        ensure!(path.is_file(), "{LIBRARY_VARIABLE}: there is no file {}", path.display());
        return std::path::absolute(&path).context("no current directory");
    }
    let exe = process::exe()?;
    let dir = exe.parent().context("this program has no directory")?;
    let places = [dir.join(LIBRARY), dir.join("../lib").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    let found = found.with_context(|| {
        format!(
            "no {LIBRARY} beside {} and none in ../lib; say where it is: {LIBRARY_VARIABLE}=FILE",
            exe.display()
        )
    })?;
    found.canonicalize().with_context(|| format!("cannot find {}", found.display()))
}

/// `LD_PRELOAD` with the library before all others.
pub fn variable(library: &Path) -> Result<OsString> {
    let is_bad = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    ensure!(
        !library.as_os_str().as_encoded_bytes().iter().any(is_bad),
        "a colon or space in {} keeps the loader from it; move it, or set {LIBRARY_VARIABLE}",
        library.display()
    );
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_library_that_the_loader_cannot_name_is_refused() {
        assert!(variable(Path::new("/a b/lib.so")).is_err());
        assert!(variable(Path::new("/a:b/lib.so")).is_err());
        let value = variable(Path::new("/lib.so")).unwrap();
        assert!(value.to_str().unwrap().starts_with("/lib.so"));
    }
}

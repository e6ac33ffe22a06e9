//! Which programs a library can be preloaded into, as far as their files tell.
//!
//! The dynamic loader preloads; a program without one (linked statically) never meets it, and the
//! loader of another C library or machine does not take our library. A script is as good as its
//! interpreter.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// A program that can be run with the library.
#[derive(Debug)]
pub struct Program {
    /// File of the program.
    pub path: PathBuf,
    /// Why it may still not see the library.
    pub warning: Option<String>,
}

/// Interpreters of interpreters that Linux follows.
const SCRIPTS: u32 = 4;

/// Finds `name` as a shell would.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let found = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| {
        let access = rustix::fs::Access::EXEC_OK;
        file.is_file() && rustix::fs::access(file, access).is_ok()
    });
    found.with_context(|| format!("no program {} in PATH", Path::new(name).display()))
}

/// Whether the program `path` has no dynamic loader.
pub fn is_static(path: &Path) -> bool {
    let elf = File::open(path).and_then(|file| read_elf(&file));
    elf.is_ok_and(|elf| elf.loader.is_none())
}

/// Looks at the file `path`.
pub fn check(path: &Path) -> Result<Program> {
    let mut at = path.to_path_buf();
    for _ in 0..=SCRIPTS {
        let file = File::open(&at).with_context(|| format!("cannot read {}", at.display()))?;
        let mut head = [0; 256];
        let count = file.read_at(&mut head, 0)?;
        match interpreter(&head[..count]) {
            Some(next) => at = next,
            None => {
                let warning = check_elf(&at, &file, &head[..count])?;
                return Ok(Program { path: path.to_path_buf(), warning });
            }
        }
    }
    bail!("{} is a script with too many levels of interpreters", path.display())
}

/// The interpreter of a script.
fn interpreter(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(word.to_vec())))
}

/// What of a program's file decides.
#[derive(Debug, Default, PartialEq, Eq)]
struct Elf {
    /// The dynamic loader.
    loader: Option<String>,
    /// Go's mark.
    is_go: bool,
}

fn check_elf(path: &Path, file: &File, head: &[u8]) -> Result<Option<String>> {
    let shown = path.display();
    ensure!(head.starts_with(b"\x7fELF"), "{shown} is no program that Linux runs");
    let ours = [2, 1];
    ensure!(head.get(4..6) == Some(&ours[..]), "{shown} is no 64-bit program of this machine");
    let elf = read_elf(file).with_context(|| format!("cannot read the headers of {shown}"))?;
    let Some(loader) = elf.loader else {
        bail!(
            "{shown} is linked statically: nothing can be preloaded into it; \
             link it dynamically, or use libuvala"
        );
    };
    ensure!(
        !loader.contains("musl"),
        "{shown} uses the C library musl, and libuvala_netmap.so is for glibc"
    );
    let metadata = file.metadata()?;
    if metadata.mode() & 0o6000 != 0 {
        return Ok(Some(format!("{shown} is set-user-ID: the loader preloads nothing into it")));
    }
    Ok(elf.is_go.then(|| {
        format!("{shown} is a Go program: only what it does through C can see /dev/netmap")
    }))
}

/// Reads the program headers.
fn read_elf(file: &File) -> io::Result<Elf> {
    // PT_INTERP and PT_NOTE.
    let (loader, note) = (3, 4);
    let mut elf = Elf::default();
    let (table, size, count) = (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?);
    for i in 0..count {
        let header = table.wrapping_add(i * size);
        let kind = number(file, header, 4)?;
        if kind != loader && kind != note {
            continue;
        }
        let (offset, length) = (number(file, header + 8, 8)?, number(file, header + 32, 8)?);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0).min(4096)];
        let count = file.read_at(&mut bytes, offset)?;
        let bytes = &bytes[..count];
        if kind == loader {
            elf.loader = Some(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned());
        } else {
            elf.is_go |= bytes.windows(4).any(|word| word == b"Go\0\0");
        }
    }
    Ok(elf)
}

/// A number of the file.
fn number(file: &File, at: u64, size: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes[..size], at)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("uvala-elf-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn complaint(path: &Path) -> String {
        let text = format!("{:#}", check(path).unwrap_err());
        let _ = std::fs::remove_file(path);
        assert!(!text.contains('\n'), "{text}");
        text
    }

    #[test]
    fn test_this_very_program_is_fine() {
        let program = check(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(program.warning, None);
        assert!(find(OsStr::new("sh")).unwrap().is_file());
        assert!(find(OsStr::new("no-such-program-anywhere")).is_err());
    }

    #[test]
    fn test_a_script_is_as_good_as_its_interpreter() {
        let good = written("good", b"#! /bin/sh -e\nexit\n");
        check(&good).unwrap();
        let _ = std::fs::remove_file(&good);
        assert!(complaint(&written("bad", b"#!/no/such/thing\n")).contains("/no/such/thing"));
        assert!(complaint(&written("text", b"hello")).contains("no program"));
    }

    #[test]
    fn test_a_static_program_is_told_so() {
        // A header without program headers: there is nothing to load.
        let mut header = vec![0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(complaint(&written("static", &header)).contains("linked statically"));
        header[4] = 1;
        assert!(complaint(&written("old", &header)).contains("64-bit"));
    }
}

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
use rustix::process::{getgid, getuid};

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
    if let Some(has) = Privileges::of(file)?.gained_by(getuid().as_raw(), getgid().as_raw()) {
        return Ok(Some(format!(
            "{shown} {has}: the loader preloads nothing into it, and it does not see /dev/netmap; \
             run it as root, or run a copy, which has no privileges (cp)"
        )));
    }
    Ok(elf.is_go.then(|| {
        format!("{shown} is a Go program: only what it does through C can see /dev/netmap")
    }))
}

/// Why the loader runs a program in its secure mode.
struct Privileges {
    set_user: Option<u32>,
    set_group: Option<u32>,
    has_capabilities: bool,
}

impl Privileges {
    fn of(file: &File) -> Result<Self> {
        let metadata = file.metadata()?;
        let has = |bit, id| Some(id).filter(|_| metadata.mode() & bit != 0);
        let mut value = [0; 64];
        let capabilities = rustix::fs::fgetxattr(file, "security.capability", &mut value);
        Ok(Self {
            set_user: has(0o4000, metadata.uid()),
            set_group: has(0o2000, metadata.gid()),
            has_capabilities: capabilities.is_ok(),
        })
    }

    /// What this user gains by the program.
    fn gained_by(&self, uid: u32, gid: u32) -> Option<&'static str> {
        let others = |id: Option<u32>, own| id.is_some_and(|id| id != own);
        match self {
            it if others(it.set_user, uid) => Some("is set-user-ID"),
            it if others(it.set_group, gid) => Some("is set-group-ID"),
            it if it.has_capabilities && uid != 0 => Some("has file capabilities"),
            _ => None,
        }
    }
}

/// Why a program does not hand on to the next one what it would see the library by.
#[must_use]
pub fn forgets(name: &OsStr, arguments: &[OsString]) -> Option<String> {
    let is_env = Path::new(name).file_name() == Some(OsStr::new("env"));
    let mut options = arguments.iter().take_while(|word| word.as_bytes().starts_with(b"-"));
    let clears = |word: &OsString| match word.as_bytes() {
        b"-" => true,
        long @ [b'-', b'-', ..] => long == b"--ignore-environment",
        short => short.contains(&b'i'),
    };
    (is_env && options.any(clears)).then(|| {
        "env -i takes the library from its program, which does not see /dev/netmap; write \
         env -i before uvala run"
            .to_owned()
    })
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
    fn test_the_loader_trusts_root_and_owners_with_their_own_programs() {
        let plain = Privileges { set_user: None, set_group: None, has_capabilities: false };
        assert_eq!(plain.gained_by(1000, 1000), None);
        let capable = Privileges { has_capabilities: true, ..plain };
        assert_eq!(capable.gained_by(1000, 1000), Some("has file capabilities"));
        assert_eq!(capable.gained_by(0, 0), None);
        let set = Privileges { set_user: Some(0), set_group: Some(5), has_capabilities: false };
        assert_eq!(set.gained_by(1000, 5), Some("is set-user-ID"));
        assert_eq!(set.gained_by(0, 7), Some("is set-group-ID"));
        assert_eq!(set.gained_by(0, 5), None);
    }

    #[test]
    fn test_env_without_an_environment_forgets_the_library() {
        let forgets = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            forgets(&words[0], &words[1..]).is_some()
        };
        assert!(forgets(&["env", "-i", "tcpdump"]) && forgets(&["/usr/bin/env", "-", "tcpdump"]));
        assert!(forgets(&["env", "-vi", "x"]) && forgets(&["env", "--ignore-environment", "x"]));
        assert!(!forgets(&["env", "A=1", "tcpdump", "-i", "vale0:a"]));
        assert!(!forgets(&["env", "--chdir=/i", "x"]) && !forgets(&["grep", "-i", "x"]));
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

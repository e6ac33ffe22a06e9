//! Start and end of the daemon: its directory, its lock, its socket.
//!
//! The lock file keeps a second daemon out of a directory. The kernel releases the lock with the
//! process, in whatever way that ends, so a socket in a directory whose lock is free is stale.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{Error, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use protocol::exit;
use protocol::paths::{LOCK_NAME, SOCKET_NAME, UNREADY_SOCKET_NAME};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::SocketConfig;
use crate::control::refusal::Refusal;
use crate::lockfile::{self, LockError};
use crate::store::{StoreError, lacks_descriptors};

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon uses the directory.
    #[error(
        "another daemon{} runs in {}; stop it, replace it (--replace), or choose another --dir",
        .pid, .dir.display()
    )]
    Running {
        /// The directory.
        dir: PathBuf,
        /// " (process N)", if the lock file says so.
        pid: String,
    },
    /// Other users could replace what is in the directory.
    #[error("{} is not safe: {why}; choose another --dir", .dir.display())]
    UnsafeDir {
        /// The directory.
        dir: PathBuf,
        /// The fault.
        why: &'static str,
    },
    /// A system call failed.
    #[error("{} {}: {error}{}", .doing, .path.display(), descriptor_hint(.error))]
    Io {
        /// What the daemon tried.
        doing: &'static str,
        /// The file of the call.
        path: PathBuf,
        /// The system's reason.
        error: Error,
    },
    /// A worker cannot be bound to a CPU.
    #[error(
        "CPU {cpu} of --cpu (workers.cpus) is not available; the daemon may use CPUs {available}"
    )]
    Cpu {
        /// Number of the CPU.
        cpu: u32,
        /// The CPUs that this process may run on.
        available: String,
    },
    /// Too few threads or descriptors for the workers.
    #[error(
        "cannot start {count} workers: {error}; raise the limits (ulimit -n, ulimit -u, \
         LimitNOFILE), or lower --workers"
    )]
    Workers {
        /// Number of workers that the operator asked for.
        count: u32,
        /// The system's reason.
        error: Error,
    },
    /// The saved state cannot be read, or belongs to another daemon.
    #[error(transparent)]
    State(#[from] StoreError),
    /// A switch of the configuration cannot be made.
    #[error("config: switch {name}: {refusal}")]
    Switch {
        /// Name of the switch.
        name: String,
        /// The reason.
        refusal: Box<Refusal>,
    },
}

impl StartError {
    /// Exit status for this reason.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Running { .. } => exit::EXISTS,
            Self::UnsafeDir { .. } => exit::PERMISSION,
            Self::Io { error, .. } if error.kind() == ErrorKind::PermissionDenied => {
                exit::PERMISSION
            }
            Self::Io { error, .. } if lacks_descriptors(error) => exit::NO_MEMORY,
            Self::Io { .. } => exit::FAILURE,
            Self::Workers { .. } | Self::State(StoreError::NoDescriptors { .. }) => exit::NO_MEMORY,
            Self::State(StoreError::Shared { .. }) => exit::EXISTS,
            Self::State(_) | Self::Cpu { .. } | Self::Switch { .. } => exit::BAD_CONFIG,
        }
    }
}

/// The cure, if that is the reason.
fn descriptor_hint(error: &Error) -> &'static str {
    match lacks_descriptors(error) {
        true => "; raise the limit: ulimit -n in the shell, LimitNOFILE= in the unit",
        false => "",
    }
}

/// The directory and socket of a running daemon. Dropping it removes the socket.
#[derive(Debug)]
pub struct Place {
    socket: PathBuf,
    /// Keeps the lock.
    _lock: File,
}

impl Place {
    /// Locks a directory and listens in it.
    pub fn take(dir: &Path, config: &SocketConfig) -> Result<(Self, OwnedFd), StartError> {
        make_dir(dir, config)?;
        let lock = lock(dir)?;
        let socket = dir.join(SOCKET_NAME);
        let listener = listen_at(&socket, config)?;
        if let Some(why) = shut_out(dir, config) {
            tracing::warn!("{why}");
        }
        Ok((Self { socket, _lock: lock }, listener))
    }

    /// The path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The directory may be gone already.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Raises the limit of descriptors to what the system allows: a port takes several.
pub fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("descriptor limit stays as it is: {error}; raise it with ulimit -n");
    }
}

/// Makes the directory, closed to other users unless the socket is open to them; checks one that
/// exists.
pub fn make_dir(dir: &Path, config: &SocketConfig) -> Result<(), StartError> {
    let io = |error| StartError::Io { doing: "make directory", path: dir.to_path_buf(), error };
    let private = config.mode.bits() & 0o077 == 0;
    let mode = if private { 0o700 } else { 0o755 };
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(io)?;
    let meta = std::fs::symlink_metadata(dir).map_err(io)?;
    let refuse = |why| Err(StartError::UnsafeDir { dir: dir.to_path_buf(), why });
    let uid = rustix::process::geteuid().as_raw();
    if meta.is_symlink() {
        return refuse("a symbolic link: name the directory itself");
    }
    if !meta.is_dir() {
        return refuse("not a directory");
    }
    if meta.uid() != uid && meta.uid() != 0 {
        return refuse("owned by another user");
    }
    let sticky = meta.mode() & 0o1000 != 0;
    if meta.mode() & 0o002 != 0 && !sticky {
        return refuse("all users can write to it (chmod o-w)");
    }
    if meta.mode() & 0o020 != 0 && !sticky {
        return refuse("its group can write to it (chmod g-w)");
    }
    Ok(())
}

/// Why users that may use the socket do not reach it or do not trust it, where that is so.
fn shut_out(dir: &Path, config: &SocketConfig) -> Option<String> {
    let (mode, dir) = (config.mode.bits(), dir.canonicalize().ok()?);
    if mode & 0o022 == 0 {
        return None;
    }
    let group = config.group.unwrap_or_else(|| rustix::process::getegid().as_raw());
    let of_group = |meta: &Metadata| mode & 0o002 == 0 && meta.gid() == group;
    let is_closed = |meta: &Metadata| match of_group(meta) {
        true => meta.mode() & 0o011 == 0,
        false => meta.mode() & 0o001 == 0,
    };
    let above = || dir.ancestors().filter_map(|dir| Some((dir, std::fs::metadata(dir).ok()?)));
    if let Some((closed, meta)) = above().find(|(_, meta)| is_closed(meta)) {
        let (dir, cure) = (closed.display(), if of_group(&meta) { "g+x" } else { "o+x" });
        return Some(format!(
            "socket.mode is {mode:o}, but users that may use the socket cannot reach it: {dir} is \
             closed to them; chmod {cure} {dir}, or choose another --dir"
        ));
    }
    let is_open = above().any(|(_, meta)| meta.mode() & 0o002 != 0);
    let owner = std::fs::metadata(&dir).ok()?.uid();
    (is_open && owner != 0).then(|| {
        format!(
            "socket.mode is {mode:o}, but clients of other users do not trust a daemon in {}: all \
             users can write to a directory above it; choose another --dir",
            dir.display()
        )
    })
}

fn lock(dir: &Path) -> Result<File, StartError> {
    let path = dir.join(LOCK_NAME);
    lockfile::take(&path).map_err(|error| match error {
        LockError::Held(pid) => StartError::Running { dir: dir.to_path_buf(), pid },
        LockError::Io(error) => StartError::Io { doing: "lock", path, error },
    })
}

/// Makes the socket under a name that no client knows, and renames it when its owner, group and
/// mode are set and the daemon listens.
fn listen_at(path: &Path, config: &SocketConfig) -> Result<OwnedFd, StartError> {
    let unready = path.with_file_name(UNREADY_SOCKET_NAME);
    let made = bind_at(&unready, config).and_then(|socket| {
        std::fs::rename(&unready, path).map_err(|error| ("listen at", error))?;
        Ok(socket)
    });
    made.map_err(|(doing, error)| {
        // If this fails, the next start removes it.
        let _ = std::fs::remove_file(&unready);
        StartError::Io { doing, path: path.to_path_buf(), error }
    })
}

fn bind_at(path: &Path, config: &SocketConfig) -> Result<OwnedFd, (&'static str, Error)> {
    let io = |error| ("listen at", error);
    let system = |error: Errno| io(error.into());
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    let address = SocketAddrUnix::new(path).map_err(system)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, flags, None).map_err(system)?;
    fchmod(&socket, Mode::empty()).map_err(system)?;
    bind(&socket, &address).map_err(system)?;
    if config.owner.is_some() {
        let hint = "only root may do that; leave it out, or name a group";
        chown(path, config.owner, None).map_err(|e| ("set socket.owner of", with(e, hint)))?;
    }
    if config.group.is_some() {
        let hint = "only root and members of the group may do that: put the daemon into it (in a \
                    systemd unit, SupplementaryGroups=)";
        chown(path, None, config.group).map_err(|e| ("set socket.group of", with(e, hint)))?;
    }
    let mode = Permissions::from_mode(u32::from(config.mode.bits()));
    std::fs::set_permissions(path, mode).map_err(io)?;
    listen(&socket, BACKLOG).map_err(system)?;
    Ok(socket)
}

/// An error with its cure.
fn with(error: Error, hint: &str) -> Error {
    Error::new(error.kind(), format!("{error}; {hint}"))
}

/// Clients that wait to be accepted.
const BACKLOG: i32 = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A directory that goes with the test.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let name = format!("uvala-start-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn test_second_daemon_is_refused_and_told_who_runs() {
        let dir = Dir::new("second");
        let config = Config::default().socket;
        let (place, _listener) = Place::take(&dir.0, &config).unwrap();
        let error = Place::take(&dir.0, &config).unwrap_err();
        let pid = std::process::id();
        assert!(error.to_string().starts_with(&format!("another daemon (process {pid}) runs in")));
        assert_eq!(error.exit_code(), exit::EXISTS);
        assert!(place.socket().exists());
        drop(place);
        assert!(!dir.0.join(SOCKET_NAME).exists());
        Place::take(&dir.0, &config).unwrap();
    }

    #[test]
    fn test_stale_socket_is_replaced_and_modes_are_as_configured() {
        let dir = Dir::new("stale");
        let config = Config::default().socket;
        std::fs::create_dir(&dir.0).unwrap();
        std::fs::write(dir.0.join(SOCKET_NAME), "stale").unwrap();
        let (place, _listener) = Place::take(&dir.0, &config).unwrap();
        let mode = std::fs::metadata(place.socket()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    /// A client that connects as soon as there is a file must get through.
    #[test]
    fn test_socket_is_never_found_before_it_is_ready() {
        let dir = Dir::new("race");
        std::fs::create_dir(&dir.0).unwrap();
        let config = Config::default().socket;
        let path = dir.0.join(SOCKET_NAME);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut modes = BTreeSet::new();
                while !over.load(Ordering::Relaxed) {
                    modes.extend(std::fs::metadata(&path).map(|meta| meta.mode() & 0o777));
                }
                modes
            });
            for _ in 0..300 {
                drop(Place::take(&dir.0, &config).unwrap());
            }
            over.store(true, Ordering::Relaxed);
            let modes = client.join().unwrap();
            assert!(modes.iter().all(|&mode| mode == 0o600), "{modes:?}");
        });
    }

    #[test]
    fn test_owner_that_cannot_be_set_is_named_as_a_setting() {
        if rustix::process::geteuid().is_root() {
            return;
        }
        let dir = Dir::new("owner");
        let config = SocketConfig { owner: Some(0), ..Config::default().socket };
        let error = Place::take(&dir.0, &config).unwrap_err();
        assert!(error.to_string().starts_with("set socket.owner of"), "{error}");
    }

    #[test]
    fn test_who_may_connect_and_cannot_is_told_of() {
        let dir = Dir::new("closed");
        std::fs::create_dir(&dir.0).unwrap();
        let config = |mode: &str| {
            let mode = String::from(mode).try_into().expect("a mode");
            SocketConfig { mode, ..Config::default().socket }
        };
        let chmod = |mode| std::fs::set_permissions(&dir.0, Permissions::from_mode(mode)).unwrap();
        let said = |mode: &str| shut_out(&dir.0, &config(mode)).unwrap_or_default();
        for (dir_mode, mode, cure) in [
            (0o700, "666", "chmod o+x"),
            (0o750, "666", "chmod o+x"),
            (0o700, "660", "chmod g+x"),
            (0o700, "600", ""),
        ] {
            chmod(dir_mode);
            let said = said(mode);
            assert!(said.contains(cure) && said.is_empty() == cure.is_empty(), "{said}");
        }
        for (dir_mode, mode) in [(0o711, "666"), (0o710, "660"), (0o755, "666")] {
            chmod(dir_mode);
            let (said, below_tmp) = (said(mode), !rustix::process::geteuid().is_root());
            assert_eq!(said.contains("do not trust"), below_tmp, "{said}");
            assert!(!said.contains("closed"), "{said}");
        }
    }

    #[test]
    fn test_directory_open_to_everybody_is_refused() {
        let dir = Dir::new("open");
        std::fs::create_dir(&dir.0).unwrap();
        std::fs::set_permissions(&dir.0, Permissions::from_mode(0o777)).unwrap();
        let error = Place::take(&dir.0, &Config::default().socket).unwrap_err();
        assert!(error.to_string().contains("chmod o-w"), "{error}");
    }

    /// A user that may write to the directory can put another socket in the daemon's place.
    #[test]
    fn test_directory_that_a_group_may_write_to_is_refused() {
        let dir = Dir::new("group");
        std::fs::create_dir(&dir.0).unwrap();
        let chmod = |mode| std::fs::set_permissions(&dir.0, Permissions::from_mode(mode)).unwrap();
        chmod(0o770);
        let error = Place::take(&dir.0, &Config::default().socket).unwrap_err();
        assert!(error.to_string().contains("chmod g-w"), "{error}");
        assert_eq!(error.exit_code(), exit::PERMISSION);
        chmod(0o1770);
        Place::take(&dir.0, &Config::default().socket).unwrap();
    }

    #[test]
    fn test_link_in_place_of_the_directory_is_refused() {
        let (dir, link) = (Dir::new("target"), Dir::new("link"));
        std::fs::create_dir(&dir.0).unwrap();
        std::os::unix::fs::symlink(&dir.0, &link.0).unwrap();
        let error = Place::take(&link.0, &Config::default().socket).unwrap_err();
        std::fs::remove_file(&link.0).unwrap();
        assert_eq!(error.exit_code(), exit::PERMISSION);
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
}

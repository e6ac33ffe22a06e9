//! What the daemon keeps when it is confined: the directories of its socket, its state and its VM
//! sockets, TAPs, and what it asks `/proc`.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use confine::{Access, Files, Mode, Thread};
use hostif::broker;
use protocol::paths;
use rustix::thread::{CapabilitySet, capabilities};

use crate::config::Config;
use crate::start::{StartError, make_dir};

/// Reads what a confined daemon may not, then confines the daemon. To be called while the process
/// has one thread: threads that it starts afterwards are confined, too.
pub fn enter(config: &Config) -> Result<(), StartError> {
    let dir = paths::daemon_dir(config.dir.as_deref());
    let state = config.saved_state(&dir);
    let owner = std::path::absolute(&state).unwrap_or_else(|_| state.clone());
    hostif::mac::init(owner.as_os_str().as_encoded_bytes());
    let mode = config.confine;
    if mode == Mode::Off {
        tracing::debug!("not confined");
        return Ok(());
    }
    // Landlock's rules name what is there.
    make_dir(&dir, &config.socket)?;
    // The store says so if it cannot use the directory.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&state);
    let files = files(config, &dir, &state);
    let entered = start_broker(config.helper.as_deref())
        .and_then(|()| confine::enter(mode, Thread::Control, &files));
    let report = entered.map_err(|error| StartError::Io {
        doing: "confine the daemon in",
        path: dir,
        error,
    })?;
    match (mode, report.is_whole()) {
        (Mode::Log, _) => tracing::warn!("confinement only logs: {report}"),
        (_, true) => tracing::info!("confined: {report}"),
        (_, false) => tracing::warn!("confined in part: {report}; see: uvala doctor"),
    }
    Ok(())
}

/// Starts the broker, if the daemon may enter namespaces or has a helper that is a program.
fn start_broker(helper: Option<&Path>) -> io::Result<()> {
    let is_socket = |path: &Path| path.metadata().is_ok_and(|file| file.file_type().is_socket());
    let program = helper.filter(|path| !is_socket(path)).map(Path::to_owned);
    let sets = capabilities(None);
    let enters = sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if program.is_some() || enters { broker::start(program) } else { Ok(()) }
}

fn files(config: &Config, dir: &Path, state: &Path) -> Files {
    let files = Files::none()
        .and(dir, Access::Own)
        .and(state, Access::Own)
        .and("/dev/net/tun", Access::Device)
        .and("/dev/null", Access::Write)
        .and("/dev/urandom", Access::Read)
        .and("/proc", Access::Read)
        // A TAP's router advertisements, an interface's IPv6.
        .and("/proc/sys/net", Access::Write)
        // Names in messages.
        .and("/etc/passwd", Access::Read)
        .and("/etc/group", Access::Read)
        // The C library counts cores; limits of the control group.
        .and("/sys/devices/system/cpu", Access::Read)
        .and("/sys/fs/cgroup", Access::Read);
    // A service manager that listens on an abstract socket.
    let notified = std::env::var_os("NOTIFY_SOCKET");
    let by_name = notified.is_some_and(|name| name.as_encoded_bytes().starts_with(b"@"));
    let sockets = socket_dirs(config, state).into_iter();
    sockets.fold(files, |files, dir| files.and(dir, Access::Sockets)).and_abstract_sockets(by_name)
}

/// Directories of sockets of virtual machines: those that the configuration lists, and those of
/// ports that are configured or saved.
fn socket_dirs(config: &Config, state: &Path) -> Vec<PathBuf> {
    let machines = config.switches.iter().flat_map(|plan| &plan.ports);
    let configured = machines.filter_map(|port| port.machine.as_ref()?.socket.clone());
    let saved = saved_sockets(state);
    let parent = |path: String| Path::new(&path).parent().map(Path::to_owned);
    let of_ports = configured.chain(saved).filter_map(parent);
    let usual = ["/tmp", "/var/tmp"].map(PathBuf::from);
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    config.vm_sockets.iter().cloned().chain(of_ports).chain(usual).chain(own).collect()
}

/// Sockets that saved state names. The store reads and checks the files later; this only looks.
fn saved_sockets(state: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(state).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let text = is_file.then(|| std::fs::read(entry.path()).ok()).flatten().unwrap_or_default();
        if let Ok(value) = serde_json::from_slice(&text) {
            collect_sockets(&value, &mut found);
        }
    }
    found
}

fn collect_sockets(value: &serde_json::Value, found: &mut Vec<String>) {
    use serde_json::Value;
    match value {
        Value::Array(all) => all.iter().for_each(|value| collect_sockets(value, found)),
        Value::Object(all) => {
            for (key, value) in all {
                match value.as_str().filter(|_| key == "socket") {
                    Some(path) => found.push(path.to_owned()),
                    None => collect_sockets(value, found),
                }
            }
        }
        _ => {}
    }
}

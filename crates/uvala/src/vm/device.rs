//! Network cards that `uvala-device` emulates: how a VMM reaches one, and how one is started.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use protocol::name::PortName;
use protocol::{PortInfo, PortKind, exit, paths};
use terminal::{process, remover};

use super::memory::Memory;
use super::qemu::Qemu;
use super::{Impossible, impossible};
use crate::cli::program;
use crate::private_dir::PrivateDir;

/// The program.
const PROGRAM: &str = "uvala-device";
/// What the clients of its ports are called, and the models of the cards.
const MODELS: [(&str, &str); 2] = [(PROGRAM, "e1000"), ("uvala-device-ptnet", "ptnet")];
/// The QEMU that knows vfio-user first.
const KNOWS_VFIO_USER: (u32, u32) = (10, 1);

/// The model of the card, if such a process has the port.
pub fn model(info: &PortInfo) -> Option<&'static str> {
    let client = info.client.as_ref().filter(|_| info.kind == PortKind::Shm)?;
    let named = MODELS.into_iter().find(|(name, _)| client.name == *name);
    named.map(|(_, model)| model)
}

/// Where the device of a port listens if nothing else is said. The VMM may run elsewhere, so the
/// path is absolute.
pub fn socket(dir: Option<&Path>, port: &PortName) -> PathBuf {
    let path = paths::daemon_dir(dir).join(format!("{port}.vfio"));
    std::path::absolute(&path).unwrap_or(path)
}

/// QEMU's options for a device at this socket. They have no blanks, so that a shell takes them as
/// they are.
pub fn qemu(
    qemu: Qemu,
    socket: &Path,
    memory: Memory,
) -> Result<Vec<(&'static str, String)>, Impossible> {
    if qemu.version < KNOWS_VFIO_USER {
        let (major, minor) = qemu.version;
        return impossible(&format!(
            "QEMU {major}.{minor} has no vfio-user-pci; name one of 10.1 or newer with --qemu, or \
             take QEMU's own card on a port of --kind stream"
        ));
    }
    let Some(path) = socket.to_str() else {
        return impossible("QEMU reads the path of a socket as UTF-8: choose another --socket");
    };
    let socket = serde_json::json!({ "path": path, "type": "unix" });
    let device = serde_json::json!({ "driver": "vfio-user-pci", "socket": socket });
    // A blank in a path, as JSON has it.
    let device = device.to_string().replace(' ', "\\u0020");
    Ok(vec![
        ("-m", memory.to_string()),
        ("-object", format!("memory-backend-memfd,id=uvala-memory,size={memory},share=on")),
        ("-numa", "node,memdev=uvala-memory".to_owned()),
        ("-device", device),
    ])
}

/// Cloud Hypervisor's options.
pub fn cloud_hypervisor(socket: &Path, memory: Memory) -> String {
    format!("--memory size={memory},shared=on\n--user-device socket={}\n", socket.display())
}

/// A process that runs for this one, and ends with it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Where its VMM connects to.
    pub socket: PathBuf,
    /// The socket's directory. In a shared one another user could connect first, or take its name.
    _dir: PrivateDir,
    /// The other end removes the directory, also when this process is killed.
    _remover: ChildStdin,
}

/// Where the program is.
pub fn program() -> Result<PathBuf> {
    let beside = process::exe()?.with_file_name(PROGRAM);
    let program = if beside.exists() { Ok(beside) } else { program::find(PROGRAM.as_ref()) };
    program.context("no uvala-device beside uvala; install it: make install")
}

/// Starts a device and waits until it listens. `None`: another program has the port.
pub fn start(
    dir: Option<&Path>,
    port: &PortName,
    nic: &str,
    options: &[String],
) -> Result<Option<Running>> {
    let (program, place) = (program()?, PrivateDir::new()?);
    let remover = remover::start_for(place.path());
    let remover = remover.context("cannot start the process that removes a directory")?;
    let socket = place.path().join(format!("{port}.vfio"));
    let mut command = process::dependent(&program)?;
    command.args(["--nic", nic, "--port", &port.to_string()]).arg("--socket").arg(&socket);
    command.args(options);
    if let Some(dir) = dir {
        command.arg("--dir").arg(dir);
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).context("cannot read what uvala-device says")?;
    if !line.is_empty() {
        return Ok(Some(Running { child, socket, _dir: place, _remover: remover }));
    }
    let status = child.wait().context("cannot wait for uvala-device")?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(exit::IN_USE) => Ok(None),
        _ => bail!("uvala-device does not start"),
    }
}

impl Drop for Running {
    /// Ends the process, and its port with it. A VMM can hold the process up for ever, so it gets
    /// some time and no more.
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(3);
        let pid = rustix::process::Pid::from_child(&self.child);
        // The process may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Qemu = Qemu { version: (11, 1), kvm: false };

    #[test]
    fn test_qemu_gets_shared_memory_and_a_device_in_words_that_a_shell_leaves_alone() {
        let args = qemu(NEW, Path::new("/run/uvala/a, \"b.vfio"), Memory::default()).unwrap();
        let [_, object, _, (option, device)] = &args[..] else { panic!("{args:?}") };
        assert!(object.1.ends_with("share=on"), "{object:?}");
        let socket = r#""socket":{"path":"/run/uvala/a,\u0020\"b.vfio","type":"unix"}"#;
        let expected = format!(r#"{{"driver":"vfio-user-pci",{socket}}}"#);
        assert_eq!((*option, device), ("-device", &expected));
        assert!(args.iter().all(|(_, value)| !value.contains(' ')));
        let old = Qemu { version: (10, 0), kvm: true };
        let why = qemu(old, Path::new("s"), Memory::default()).unwrap_err();
        assert!(why.to_string().contains("10.1"), "{why}");
        let cloud = cloud_hypervisor(Path::new("/s"), Memory::default());
        assert!(cloud.contains("shared=on\n--user-device socket=/s\n"), "{cloud}");
    }
}

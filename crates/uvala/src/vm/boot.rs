//! A machine that boots a kernel: where the files it needs are, and QEMU's arguments for it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use protocol::name::PortName;
use protocol::paths;
use protocol::{MachineInfo, MachineState};

use super::qemu::{PROGRAM, Qemu};
use crate::cli::program;

/// What a machine boots.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// A Linux kernel.
    pub kernel: &'a Path,
    /// Initramfs of the kernel.
    pub initrd: &'a Path,
    /// Processors.
    pub cpus: u16,
    /// More words for the kernel's command line.
    pub append: &'a str,
}

impl Boot<'_> {
    /// QEMU's arguments, those of its network card included.
    pub fn words(&self, qemu: Qemu, card: Vec<(&'static str, String)>) -> Vec<String> {
        let (accelerator, cpu) = if qemu.kvm { ("kvm", "host") } else { ("tcg", "max") };
        let fixed = "-nodefaults -no-user-config -display none -no-reboot -M q35 -serial mon:stdio";
        let mut words: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
        let mut option = |option: &str, value: String| words.extend([option.to_owned(), value]);
        option("-accel", accelerator.to_owned());
        option("-cpu", cpu.to_owned());
        option("-smp", self.cpus.to_string());
        for (name, value) in card {
            option(name, value);
        }
        option("-kernel", self.kernel.display().to_string());
        option("-initrd", self.initrd.display().to_string());
        // Guards against other guests cost an emulated processor most of its time, and on a busy
        // host the kernel's look at its timer fails now and then, which is a panic.
        let emulated = if qemu.kvm { "" } else { " mitigations=off no_timer_check" };
        let append = format!("console=ttyS0 quiet panic=-1{emulated} {}", self.append);
        option("-append", append.trim_end().to_owned());
        words
    }
}

/// The QEMU that was given, or that in the search path; whether there is KVM is asked where that is
/// not `told`.
pub fn find_qemu(given: Option<&Path>, told: Option<bool>) -> Result<(PathBuf, Qemu)> {
    let program = program::find(given.unwrap_or(PROGRAM.as_ref()).as_os_str());
    let program = program.context(
        "no QEMU; install it (Debian: qemu-system-x86, Fedora: qemu-system-x86-core, Alpine: \
         qemu-system-x86_64), or say where it is (--qemu)",
    )?;
    let kvm = told.unwrap_or_else(|| Qemu::can_use_kvm(&program));
    let qemu = Qemu::ask(&program, Some(kvm));
    let qemu =
        qemu.with_context(|| format!("{} does not run, or is not QEMU", program.display()))?;
    Ok((program, qemu))
}

/// A busybox that runs in a guest, where no libraries are.
pub fn find_busybox() -> Result<PathBuf> {
    let names = ["busybox", "busybox.static", "busybox-static"];
    let mut found = names.iter().filter_map(|name| program::find(name.as_ref()).ok());
    found.find(|path| program::is_static(path)).context(
        "no static busybox in PATH for the guest; install it (Debian: busybox-static, Fedora: \
         busybox), or give --initrd",
    )
}

/// A file in memory that a child finds by its number.
pub fn held(bytes: &[u8]) -> Result<File> {
    let file = rustix::fs::memfd_create("initrd", rustix::fs::MemfdFlags::empty());
    let mut file = File::from(file.context("no memory for the guest's files")?);
    file.write_all(bytes).context("no memory for the guest's files")?;
    Ok(file)
}

/// Where a child finds that.
pub fn in_child(file: &File) -> PathBuf {
    format!("/dev/fd/{}", file.as_raw_fd()).into()
}

/// The machine of a port with every default.
pub fn new_machine(dir: Option<&Path>, port: &PortName) -> Result<MachineInfo> {
    let socket = paths::client_socket(dir).with_file_name(format!("{port}.sock"));
    let socket = std::path::absolute(socket).context("no current directory")?;
    Ok(MachineInfo {
        socket: socket.display().to_string(),
        connect: false,
        queues: 1,
        coalesce_usecs: None,
        coalesce_frames: None,
        peer: None,
        state: MachineState::Waiting,
        pid: None,
        complaint: None,
        rejected_peer: None,
        place: None,
    })
}

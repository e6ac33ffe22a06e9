//! A real guest: Debian's kernel under QEMU without KVM, with an initial file system made here.
//!
//! What is needed is found where `.ci/guests` puts it: QEMU (or `$QEMU`) and a static busybox in
//! the search path, a kernel below `$UVALA_VM_DIR` (`target/vm`). The guest follows a script of the
//! test's and says on its serial line what came of it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Owned, Scratch};

/// Booting without KVM on a busy machine, and the tests behind it, take their time.
const PATIENCE: Duration = Duration::from_secs(180);
/// Drivers; what is built in is not there.
const DRIVERS: [&str; 8] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
];
const MEMORY: &str = "160M";

/// What guests are made of.
#[derive(Debug)]
pub struct Kit {
    qemu: PathBuf,
    /// QEMU 7.2 crashes with more than one interrupt and without KVM.
    is_old: bool,
    kernel: PathBuf,
    drivers: Vec<PathBuf>,
    busybox: PathBuf,
}

impl Kit {
    /// What there is here. None: something is missing, and that was said.
    #[must_use]
    pub fn find() -> Option<Self> {
        let kit = Self::look();
        if kit.is_none() {
            crate::skip("no QEMU, busybox or kernel for real guests; run .ci/guests as root");
        }
        kit
    }

    /// Is it a QEMU that crashes with more than one interrupt?
    #[must_use]
    pub fn is_old(&self) -> bool {
        self.is_old
    }

    fn look() -> Option<Self> {
        let qemu = std::env::var_os("QEMU").map(PathBuf::from);
        let qemu = qemu.or_else(|| in_path("qemu-system-x86_64"))?;
        let version = Command::new(&qemu).arg("--version").output().ok()?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let is_old =
            ["5.", "6.", "7."].iter().any(|old| version.contains(&format!("version {old}")));
        let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/vm");
        let root = std::env::var_os("UVALA_VM_DIR").map_or(default, PathBuf::from).join("kernel");
        let boot = std::fs::read_dir(root.join("boot")).ok()?;
        let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz-");
        let kernel = boot.filter_map(|file| Some(file.ok()?.path())).find(is_kernel)?;
        let mut found = Vec::new();
        list(&root.join("lib/modules"), &mut found);
        let drivers = DRIVERS.iter().filter_map(|driver| {
            let name = format!("{driver}.ko");
            found.iter().find(|path| path.file_name().is_some_and(|file| *file == *name))
        });
        let drivers = drivers.cloned().collect();
        Some(Self { qemu, is_old, kernel, drivers, busybox: in_path("busybox")? })
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.exists())
}

/// All files below a directory.
fn list(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.filter_map(Result::ok) {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), found),
            Ok(_) => found.push(entry.path()),
            Err(_) => {}
        }
    }
}

/// A guest that runs. Killed when dropped.
#[derive(Debug)]
pub struct Guest {
    process: Owned,
    place: Scratch,
}

impl Guest {
    /// Boots one with a device on this socket, which follows a script of busybox's shell once its
    /// device is there as `eth0`.
    ///
    /// # Panics
    /// If there is no room for its files.
    #[must_use]
    pub fn boot(kit: &Kit, socket: &Path, number: u8, queues: u16, script: &str) -> Self {
        let place = Scratch::new("guest");
        let initrd = place.path().join("initrd");
        std::fs::write(&initrd, file_system(kit, script)).expect("room");
        let reconnect = if kit.is_old { "reconnect=1" } else { "reconnect-ms=100" };
        let vectors = if kit.is_old { 0 } else { 2 * queues + 2 };
        let log = File::create(place.path().join("errors")).expect("room");
        let mut command = Command::new(&kit.qemu);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args(["-M", "q35", "-accel", "tcg", "-cpu", "max", "-smp", &queues.to_string()])
            .args(["-m", MEMORY, "-numa", "node,memdev=memory", "-object"])
            .arg(format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"))
            .arg("-kernel")
            .arg(&kit.kernel)
            .arg("-initrd")
            .arg(&initrd)
            .args(["-append", "console=ttyS0 quiet mitigations=off nokaslr panic=-1"])
            .arg("-serial")
            .arg(format!("file:{}", place.path().join("console").display()))
            .arg("-chardev")
            .arg(format!("socket,id=socket,path={},{reconnect}", socket.display()))
            .args(["-netdev", &format!("vhost-user,id=net,chardev=socket,queues={queues}")])
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=net,mac=52:54:00:00:00:{number:02x},mq={},vectors={vectors}",
                if queues > 1 { "on" } else { "off" }
            ))
            .stdin(Stdio::null())
            .stderr(log);
        Self { process: Owned::spawn(&mut command), place }
    }

    /// What it has said so far.
    #[must_use]
    pub fn said(&self) -> String {
        let bytes = std::fs::read(self.place.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// Waits until it says something; returns what follows in that line.
    ///
    /// # Panics
    /// If it does not, with all that it said.
    pub fn hear(&mut self, word: &str) -> String {
        self.hear_times(word, 1)
    }

    /// The same for the `times`-th time.
    ///
    /// # Panics
    /// As [`Guest::hear`].
    pub fn hear_times(&mut self, word: &str, times: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.said();
            // The last line may be half a line.
            let whole = &said[..said.rfind('\n').unwrap_or(0)];
            let mut lines = whole.lines().filter_map(|line| line.split_once(word));
            if let Some((_, rest)) = lines.nth(times - 1) {
                return rest.trim().to_owned();
            }
            let errors = || std::fs::read_to_string(self.place.path().join("errors"));
            assert!(!self.process.has_ended(), "QEMU has ended: {:?}\n{said}", errors());
            assert!(Instant::now() < deadline, "no {word:?}: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The initial file system, as the kernel reads it: an archive in cpio's "newc" format.
fn file_system(kit: &Kit, script: &str) -> Vec<u8> {
    const DIR: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    let read = |path: &Path| std::fs::read(path).expect("it was found");
    let mut init =
        "#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin\nexec 2>/dev/null\n\
                    mount -t proc none /proc\n"
            .to_owned();
    let mut archive = Archive::default();
    ["bin", "proc", "dev", "drivers"].iter().for_each(|dir| archive.add(dir, DIR, &[]));
    archive.add("bin/busybox", PROGRAM, &read(&kit.busybox));
    for (i, driver) in kit.drivers.iter().enumerate() {
        archive.add(&format!("drivers/{i}.ko"), PROGRAM, &read(driver));
    }
    // In as many rounds as one may need another.
    init += "for round in 1 2 3 4; do for driver in /drivers/*; do insmod $driver; done; done\n";
    init += "mount -t devtmpfs none /dev\nexec >/dev/ttyS0 2>&1 </dev/null\n";
    init += "until ip link set eth0 up 2>/dev/null; do sleep 0.1; done\necho BOOTED\n";
    init += script;
    init += "\necho DONE\nwhile :; do sleep 1; done\n";
    archive.add("init", PROGRAM, init.as_bytes());
    archive.add("TRAILER!!!", 0, &[]);
    archive.0
}

#[derive(Default)]
struct Archive(Vec<u8>);

impl Archive {
    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        let number = self.0.len();
        let fields =
            [number, mode as usize, 0, 0, 1, 0, bytes.len(), 0, 0, 0, 0, name.len() + 1, 0];
        self.0.extend(b"070701");
        fields.iter().for_each(|field| self.0.extend(format!("{field:08x}").bytes()));
        self.0.extend(name.bytes());
        self.0.push(0);
        self.pad();
        self.0.extend(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

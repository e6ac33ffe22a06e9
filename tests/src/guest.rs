//! A real guest: Debian's kernel under QEMU without KVM, with an initial file system made here.
//!
//! What is needed is found where `.ci/guests` puts it: QEMU (first `$QEMU`, last the system's) and
//! kernels below `$UVALA_VM_DIR` (`target/vm`), programs in the search path. Its card is what
//! `uvala vm-args` says. The guest's first process takes commands from the serial line, one in each
//! line, and says there what came of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::process::{Owned, Scratch};
use crate::wait;

/// Booting without KVM on a busy machine, and the tests behind it, take their time.
const PATIENCE: Duration = Duration::from_secs(180);
/// Drivers; what is built in is not there.
const DRIVERS: [&str; 19] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "failover",
    "net_failover",
    "virtio_net",
    "mii",
    "e1000",
    "8139cp",
    "vmxnet3",
    "llc",
    "stp",
    "garp",
    "mrp",
    "8021q",
    "af_packet",
    "pktgen",
];
/// Programs, with the libraries that they need.
const PROGRAMS: [&str; 2] = ["iperf3", "ethtool"];
/// What `uvala vm-args` is told.
const MEMORY: &str = "192M";
/// And if the guest has programs of ours, which are large.
const MUCH_MEMORY: &str = "768M";
/// Parameters of the kernel. Without KVM on a busy machine, its look at the timer fails now and
/// then.
const KERNEL: &str = "console=ttyS0 quiet mitigations=off nokaslr panic=-1 no_timer_check";
/// A driver of our own, as a guest finds it.
pub const DRIVER: &str = "/driver.ko";
/// What a guest says when it takes commands.
const READY: &str = "READY#";

/// What guests are made of.
#[derive(Debug)]
pub struct Kit {
    qemu: PathBuf,
    /// QEMU 7.2 crashes with more than one interrupt and without KVM.
    is_old: bool,
    place: PathBuf,
    busybox: PathBuf,
    programs: Vec<PathBuf>,
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

    /// What there is for cards of `uvala-device`, likewise.
    #[must_use]
    pub fn with_vfio_user() -> Option<Self> {
        let kit = Self::find()?;
        if kit.is_old() {
            crate::skip("vfio-user wants QEMU 10.1 or newer");
            return None;
        }
        Some(kit)
    }

    /// Whether this QEMU crashes with more than one interrupt, and lacks newer options.
    #[must_use]
    pub fn is_old(&self) -> bool {
        self.is_old
    }

    fn look() -> Option<Self> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let place = std::env::var_os("UVALA_VM_DIR").map(PathBuf::from);
        let place = place.unwrap_or_else(|| source.join("target/vm"));
        let unpacked = || {
            let is_there = place.join("qemu11/usr/bin/qemu-system-x86_64").exists();
            is_there.then(|| source.join(".ci/qemu"))
        };
        let qemu = std::env::var_os("QEMU").map(PathBuf::from).or_else(unpacked);
        let qemu = qemu.or_else(|| in_path("qemu-system-x86_64"))?;
        let version = Command::new(&qemu).arg("--version").output().ok()?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let is_old =
            ["5.", "6.", "7."].iter().any(|old| version.contains(&format!("version {old}")));
        let programs = PROGRAMS.iter().map(|program| in_path(program)).collect::<Option<_>>()?;
        let kit = Self { qemu, is_old, place, busybox: in_path("busybox")?, programs };
        kit.kernel("kernel").and(kit.kernel("kernel-generic")).is_some().then_some(kit)
    }

    /// The QEMU binary that runs the guests.
    #[must_use]
    pub fn qemu(&self) -> &Path {
        &self.qemu
    }

    /// iPXE for an e1000, as it comes with this QEMU.
    #[must_use]
    pub fn firmware(&self) -> Option<PathBuf> {
        let places = [self.place.join("qemu11/usr/share/qemu"), "/usr/lib/ipxe/qemu".into()];
        places.map(|place| place.join("pxe-e1000.rom")).into_iter().find(|file| file.exists())
    }

    /// Where `.ci/guests` has put it.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// A kernel of it.
    #[must_use]
    pub fn kernel(&self, flavour: &str) -> Option<PathBuf> {
        let boot = std::fs::read_dir(self.place.join(flavour).join("boot")).ok()?;
        let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz-");
        boot.filter_map(|file| Some(file.ok()?.path())).find(is_kernel)
    }

    /// A driver of ours that `.ci/guests` has built for the kernel for clouds. None: it is missing,
    /// and that was said.
    #[must_use]
    pub fn driver(&self, file: &str) -> Option<PathBuf> {
        let path = self.place.join(file);
        if !path.exists() {
            crate::skip(&format!("no {}; run .ci/guests as root", path.display()));
            return None;
        }
        Some(path)
    }

    fn drivers(&self, flavour: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        list(&self.place.join(flavour).join("lib/modules"), &mut found);
        let drivers = DRIVERS.iter().filter_map(|driver| {
            let name = format!("{driver}.ko");
            found.iter().find(|path| path.file_name().is_some_and(|file| *file == *name))
        });
        drivers.cloned().collect()
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let dirs = std::env::split_paths(&path).chain(sbin);
    dirs.map(|dir| dir.join(program)).find(|file| file.exists())
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

/// What a guest is to be.
#[derive(Clone, Debug, Default)]
pub struct Boot {
    /// The port that the guest is connected to.
    pub port: &'static str,
    /// The model of the network device; `None`: virtio-net.
    pub nic: Option<&'static str>,
    /// A driver of our own, for the kernel for clouds; in the guest it is [`DRIVER`], too.
    pub driver: Option<PathBuf>,
    /// What is said of that behind what `uvala vm-args` says, commas in front.
    pub more: String,
    /// Processors, 1 at least.
    pub cpus: u16,
    /// More programs, or libraries of such, for `/bin`.
    pub programs: Vec<PathBuf>,
    /// The socket on which QEMU waits for an incoming migration.
    pub incoming: Option<PathBuf>,
    /// A directory with the files of a boot server: an emulated e1000 loads kernel and file system
    /// from there, by iPXE.
    pub network: Option<PathBuf>,
}

/// A process with a guest's console on its standard input and output. Ended when dropped.
#[derive(Debug)]
pub struct Console {
    process: Owned,
    keyboard: ChildStdin,
    said: Arc<Mutex<String>>,
    /// How much of it has been heard.
    heard: usize,
}

impl Console {
    /// Starts one.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        let mut process = Owned::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (keyboard, mut screen) = (process.stdin(), process.stdout());
        let said = Arc::new(Mutex::new(String::new()));
        let told = said.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).replace('\r', "");
                told.lock().expect("no thread panics with it").push_str(&text);
            }
        });
        Self { process, keyboard, said, heard: 0 }
    }

    /// Types a line.
    ///
    /// # Panics
    /// If QEMU has ended.
    pub fn enter(&mut self, line: &str) {
        writeln!(self.keyboard, "{line}").expect("QEMU reads");
    }

    /// Waits until it says something; returns what it has said before that since it was heard last.
    ///
    /// # Panics
    /// If it does not, with all that it said.
    pub fn hear(&mut self, word: &str) -> String {
        self.hear_or(word, String::new)
    }

    /// Waits like [`hear`](Self::hear); if QEMU has ended, the panic shows `why`, too.
    fn hear_or(&mut self, word: &str, why: impl Fn() -> String) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.said.lock().expect("no thread panics with it").clone();
            if let Some(at) = said[self.heard..].find(word) {
                let before = said[self.heard..self.heard + at].to_owned();
                self.heard += at + word.len();
                return before;
            }
            assert!(!self.process.has_ended(), "QEMU has ended: {}\n{said}", why());
            assert!(Instant::now() < deadline, "no {word:?}: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The QEMU process.
    pub fn process(&mut self) -> &mut Owned {
        &mut self.process
    }
}

/// A guest that runs. Ended when dropped.
#[derive(Debug)]
pub struct Guest {
    console: Console,
    place: Scratch,
}

impl Guest {
    /// Starts one.
    ///
    /// # Panics
    /// If there is no room for its files, or the port is none.
    #[must_use]
    pub fn start(kit: &Kit, daemon: &Daemon, boot: &Boot) -> Self {
        let is_cloud = matches!(boot.nic, None | Some("ptnet")) || boot.driver.is_some();
        let flavour = if is_cloud { "kernel" } else { "kernel-generic" };
        let place = Scratch::new("guest");
        let initrd = place.path().join("initrd");
        std::fs::write(&initrd, file_system(kit, flavour, boot)).expect("room");
        let qemu = kit.qemu.to_str().expect("UTF-8");
        let nic = boot.nic.map(|nic| vec!["--nic", nic]).unwrap_or_default();
        let memory = if boot.programs.is_empty() { MEMORY } else { MUCH_MEMORY };
        let args = ["vm-args", boot.port, "--qemu", qemu, "--memory", memory];
        let said = daemon.uvala(&[&args[..], &nic].concat());
        let card = String::from_utf8(said.stdout).expect("UTF-8");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let mut card = format!("{}{}", card.trim_end(), boot.more);
        let kernel = kit.kernel(flavour).expect("it was found");
        if let Some(files) = &boot.network {
            std::fs::copy(&kernel, files.join("kernel")).expect("room");
            std::fs::copy(&initrd, files.join("initrd")).expect("room");
            let script = format!("#!ipxe\nkernel kernel {KERNEL}\ninitrd initrd\nboot\n");
            std::fs::write(files.join("boot.ipxe"), script).expect("room");
            let firmware = kit.firmware().expect("it was looked for");
            let device = r#"{"driver":"vfio-user-pci","#;
            let with = format!(r#"{device}"bootindex":1,"romfile":"{}","#, firmware.display());
            card = card.replace(device, &with);
        }
        let log = File::create(place.path().join("errors")).expect("room");
        let mut command = Command::new(&kit.qemu);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-M", "q35"])
            .args(["-accel", "tcg", "-cpu", "max", "-smp", &boot.cpus.max(1).to_string()])
            .args(card.split_whitespace())
            .args(["-serial", "stdio", "-monitor"])
            .arg(format!("unix:{},server=on,wait=off", place.path().join("monitor").display()))
            .stderr(log);
        if boot.network.is_none() {
            let (kernel, initrd) = (kernel.as_os_str(), initrd.as_os_str());
            command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd).args(["-append", KERNEL]);
        }
        if let Some(from) = &boot.incoming {
            command.arg("-incoming").arg(format!("unix:{}", from.display()));
        }
        Self { console: Console::start(&mut command), place }
    }

    fn hear(&mut self, word: &str) -> String {
        let errors = self.place.path().join("errors");
        self.console.hear_or(word, || format!("{:?}", std::fs::read_to_string(&errors)))
    }

    /// Waits until it takes commands.
    pub fn ready(&mut self) {
        self.hear(READY);
    }

    /// Runs commands in it, one line of its shell; returns what they say, and their status.
    ///
    /// # Panics
    /// If they do not end.
    pub fn try_run(&mut self, line: &str) -> (String, bool) {
        self.console.enter(line);
        let text = self.hear("#END");
        let (text, status) = text.rsplit_once("RC=").expect("its status");
        (text.trim().to_owned(), status == "0")
    }

    /// Runs it and requires success.
    ///
    /// # Panics
    /// If it is not.
    pub fn run(&mut self, line: &str) -> String {
        let (text, well) = self.try_run(line);
        assert!(well, "{line}: {text}");
        text
    }

    /// Waits until it has reached an address; returns how long that took.
    ///
    /// # Panics
    /// If it never does.
    pub fn reach(&mut self, address: &str) -> Duration {
        let start = Instant::now();
        let ping = format!("ping -c 1 -W 1 {address} >/dev/null");
        self.run(&format!("n=0; until {ping}; do n=$((n+1)); [ $n -lt 60 ] || exit 1; done"));
        start.elapsed()
    }

    /// Runs iperf3 against a server, which does not listen as it begins, nor between two tests;
    /// returns what it says.
    ///
    /// # Panics
    /// If it fails.
    pub fn iperf3(&mut self, server: &str, how: &str) -> String {
        let line = format!("iperf3 -c {server} {how}");
        wait::find("a server that listens", || {
            let (text, well) = self.try_run(&line);
            assert!(well || text.contains("refused") || text.contains("busy"), "{line}: {text}");
            well.then_some(text)
        })
    }

    /// Sends three megabytes to another guest, and requires that they arrive as they are.
    ///
    /// # Panics
    /// If they do not.
    pub fn send_file(&mut self, to: &mut Self, address: &str) {
        self.run("yes uvala | head -c 3000000 > /tmp/data");
        to.run("(sleep 300 | nc -l -p 7 > /tmp/got) &");
        to.run("until grep -q ':0007 ' /proc/net/tcp*; do sleep 0.1; done");
        self.run(&format!("nc {address} 7 < /tmp/data & sleep 0.5"));
        let sum = self.run("md5sum < /tmp/data");
        wait::until("all that was sent", || to.run("md5sum < /tmp/got") == sum);
        for guest in [self, to] {
            guest.run("killall nc sleep; true");
        }
    }

    /// What its stack has found wrong with what it received.
    pub fn checksum_errors(&mut self) -> u64 {
        let field = |name: &str, field: &str| {
            format!(
                "awk '/^{name}:/ {{ if (n) print $n; else for (i = 1; i <= NF; i++) \
                 if ($i == \"{field}\") n = i }}' /proc/net/snmp"
            )
        };
        let wanted = [("Tcp", "InErrs"), ("Tcp", "InCsumErrors"), ("Udp", "InCsumErrors")];
        let numbers = wanted.map(|(name, what)| self.run(&field(name, what)));
        let words = numbers.iter().flat_map(|text| text.split_whitespace());
        words.map(|word| word.parse().unwrap_or(0)).sum()
    }

    /// Gives its card an address, by which it is told from others, and an MTU.
    pub fn configure(&mut self, number: u8, mtu: u16) {
        self.run("n=0; until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done");
        self.run(&format!(
            "ip link set eth0 mtu {mtu} up && ip addr add 10.0.0.{number}/24 dev eth0"
        ));
    }

    /// Tells its monitor something.
    ///
    /// # Panics
    /// If that does not listen.
    pub fn monitor(&mut self, line: &str) -> String {
        let path = self.place.path().join("monitor");
        let mut monitor = wait::find("its monitor", || UnixStream::connect(&path).ok());
        monitor.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
        writeln!(monitor, "{line}").expect("it reads");
        let mut said = Vec::new();
        // It says no word of its end.
        let _ = monitor.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Kills it as by `kill -9`.
    pub fn kill(mut self) {
        self.console.process.kill();
    }
}

/// What a program needs, as the system's loader finds it.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let Ok(said) = Command::new("ldd").arg(program).output() else { return Vec::new() };
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let words = said.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).collect()
}

const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
exec 2>/dev/null
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for round in 1 2 3 4; do for driver in /drivers/*; do insmod $driver; done; done
ip link set lo up
exec >/dev/ttyS0 2>&1 </dev/ttyS0
stty -echo
echo 'READY#'
while read -r line; do ( eval \"$line\" ) </dev/null 2>&1; echo \"RC=$?#END\"; done
";

/// The initial file system, as the kernel reads it: an archive in cpio's "newc" format.
fn file_system(kit: &Kit, flavour: &str, boot: &Boot) -> Vec<u8> {
    const DIR: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    let read = |path: &Path| std::fs::read(path).expect("it was found");
    let mut archive = Archive::default();
    ["bin", "proc", "sys", "dev", "tmp", "drivers"].iter().for_each(|dir| {
        archive.add(dir, DIR, &[]);
    });
    archive.add("bin/busybox", PROGRAM, &read(&kit.busybox));
    // In as many rounds as one may need another.
    for (i, driver) in kit.drivers(flavour).iter().enumerate() {
        archive.add(&format!("drivers/{i:02}.ko"), PROGRAM, &read(driver));
    }
    if let Some(driver) = boot.driver.as_deref().map(read) {
        archive.add("drivers/own.ko", PROGRAM, &driver);
        archive.add(DRIVER.trim_start_matches('/'), PROGRAM, &driver);
    }
    let mut files = BTreeSet::new();
    let mut dirs = BTreeSet::new();
    for program in kit.programs.iter().chain(&boot.programs) {
        let name = program.file_name().expect("a file").to_string_lossy();
        archive.add(&format!("bin/{name}"), PROGRAM, &read(program));
        files.extend(libraries(program));
    }
    for file in &files {
        let all: Vec<_> = file.ancestors().skip(1).collect();
        for dir in all.iter().rev().map(|dir| dir.to_string_lossy()) {
            let dir = dir.trim_start_matches('/').to_owned();
            if !dir.is_empty() && dirs.insert(dir.clone()) {
                archive.add(&dir, DIR, &[]);
            }
        }
        archive.add(file.to_string_lossy().trim_start_matches('/'), PROGRAM, &read(file));
    }
    archive.add("init", PROGRAM, INIT.as_bytes());
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

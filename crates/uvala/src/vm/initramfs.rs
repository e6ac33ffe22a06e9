//! The files of a demonstration guest: busybox, the drivers of its network card, what the user
//! adds, and a first process that gives the card an address and the terminal a shell.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use protocol::name::PortName;

use super::kernel;
use crate::cli::program;

const DIR: usize = 0o040_755;
const PROGRAM: usize = 0o100_755;

/// What a guest gets.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    /// A static busybox.
    pub busybox: &'a Path,
    /// Modules of its kernel, by their names.
    pub drivers: &'a [&'a str],
    /// Other modules, and programs.
    pub more: &'a [PathBuf],
}

/// Makes the archive that a kernel unpacks. The guest's address is 10.0.0.`number`, or comes by
/// DHCP.
pub fn build(
    kernel: &Path,
    files: &Files<'_>,
    port: &PortName,
    number: Option<u8>,
) -> Result<Vec<u8>> {
    let Files { busybox, drivers, more } = *files;
    let (modules, programs): (Vec<_>, Vec<_>) =
        more.iter().cloned().partition(|path| kernel::is_module(path));
    let mut archive = Archive::default();
    for dir in ["bin", "proc", "sys", "dev", "tmp", "modules"] {
        archive.add(dir, DIR, &[]);
    }
    archive.add("bin/busybox", PROGRAM, &read(busybox)?);
    for (i, module) in kernel::modules(kernel, busybox, drivers, &modules)?.iter().enumerate() {
        archive.add(&format!("modules/{i:02}.ko"), PROGRAM, module);
    }
    archive.add_programs(&programs)?;
    archive.add("lease", PROGRAM, LEASE.as_bytes());
    archive.add("init", PROGRAM, init(port, number).as_bytes());
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The libraries of a program, and its loader, as that finds them.
fn libraries(path: &Path) -> Result<Vec<PathBuf>> {
    if program::is_static(path) {
        return Ok(Vec::new());
    }
    let said = Command::new("ldd").arg(path).stdin(Stdio::null()).output();
    let said = said.context("no ldd, which finds the libraries of a program")?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    if !said.status.success() || text.contains("not found") {
        bail!("{} lacks libraries, or is no program of this machine", path.display());
    }
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// The number of a port's guest: that at the end of its name, or one made of the name.
pub fn number_of(port: &PortName) -> u8 {
    let text = port.to_string();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    match text[digits..].parse() {
        Ok(number @ 1..=254) => number,
        _ => text.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)) % 254 + 1,
    }
}

/// What the guest does with an address that it gets by DHCP.
const LEASE: &str = "#!/bin/sh
[ \"$1\" = bound ] || exit 0
ip addr add $ip/$mask dev $interface
ip route add default via $router
mkdir -p /etc && for server in $dns; do echo nameserver $server; done > /etc/resolv.conf
echo $ip > /tmp/address
";

/// The first process of the guest. A shell has jobs and Ctrl-C if its terminal is its own: of its
/// session.
fn init(port: &PortName, number: Option<u8>) -> String {
    let name = port.to_string();
    let name = name.rsplit(':').next().unwrap_or_default();
    let address = match number {
        Some(number) => format!(
            "ip addr add 10.0.0.{number}/24 dev eth0 && echo 10.0.0.{number} > /tmp/address"
        ),
        None => "udhcpc -i eth0 -s /lease -q -n -t 30 -T 1 > /dev/null 2>&1".to_owned(),
    };
    format!(
        "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/ TERM=linux PS1='{name}# '
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
for module in /modules/*; do insmod $module; done
hostname {name}
n=0
until [ -e /sys/class/net/eth0 ] || [ $n = 50 ]; do sleep 0.1; n=$((n+1)); done
ip link set lo up
echo without an address > /tmp/address
ip link set eth0 up && {address}
echo
echo \"This is $(cat /tmp/address), on port {port}. It ends with: exit (or Ctrl-A x)\"
setsid sh -c 'exec sh </dev/ttyS0 >/dev/ttyS0 2>&1'
poweroff -f
"
    )
}

/// An absolute path as an archive has it.
fn relative(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

/// An archive in the format that cpio calls "newc".
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    count: usize,
}

impl Archive {
    fn add(&mut self, name: &str, mode: usize, bytes: &[u8]) {
        self.count += 1;
        let number = self.count;
        let fields = [number, mode, 0, 0, 1, 0, bytes.len(), 0, 0, 0, 0, name.len() + 1, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(bytes);
        self.pad();
    }

    /// Adds programs in /bin, and their libraries where they are here.
    fn add_programs(&mut self, programs: &[PathBuf]) -> Result<()> {
        let mut files = BTreeSet::new();
        for path in programs {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.add(&format!("bin/{name}"), PROGRAM, &read(path)?);
            files.extend(libraries(path)?);
        }
        // In order, a directory comes before what is in it.
        let dirs: BTreeSet<_> = files.iter().flat_map(|file| file.ancestors().skip(1)).collect();
        for dir in dirs.into_iter().filter(|dir| dir.parent().is_some()) {
            self.add(&relative(dir), DIR, &[]);
        }
        files.iter().try_for_each(|file| {
            self.add(&relative(file), PROGRAM, &read(file)?);
            Ok(())
        })
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_an_archive_is_headers_names_and_bytes_in_words() {
        let mut archive = Archive::default();
        archive.add("init", PROGRAM, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn test_programs_come_with_their_libraries_behind_the_directories_of_these() {
        let sh = std::fs::canonicalize("/bin/sh").unwrap();
        let mut archive = Archive::default();
        archive.add_programs(std::slice::from_ref(&sh)).unwrap();
        let bytes = archive.finish();
        let at = |name: &str| {
            // Behind a header, whose last field is 0: a program has the name of its loader, too.
            let name = format!("00000000{name}\0").into_bytes();
            bytes.windows(name.len()).position(|it| *it == *name)
        };
        assert!(at(&format!("bin/{}", sh.file_name().unwrap().to_string_lossy())).is_some());
        for library in libraries(&sh).unwrap() {
            let (dir, file) = (relative(library.parent().unwrap()), relative(&library));
            assert!(at(&dir).unwrap() < at(&file).unwrap(), "{file}");
        }
        let error = libraries(Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(error.contains("no program of this machine"), "{error}");
        let error = Archive::default().add_programs(&["/no/such/file".into()]).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /no/such/file");
    }

    #[test]
    fn test_guests_are_numbered_by_their_ports() {
        let number = |name: &str| number_of(&name.parse().unwrap());
        assert_eq!((number("vale0:vm1"), number("vale0:vm254")), (1, 254));
        assert_ne!(number("vale0:web"), number("vale0:db"));
        assert!((1..=254).contains(&number("vale0:vm999")));
        let port = "vale0:vm7".parse().unwrap();
        let fixed = init(&port, Some(7));
        assert!(fixed.starts_with("#!/bin/busybox sh\n") && fixed.contains("hostname vm7\n"));
        assert!(fixed.contains("10.0.0.7/24") && !fixed.contains("udhcpc"), "{fixed}");
        let by_dhcp = init(&port, None);
        assert!(by_dhcp.contains("udhcpc -i eth0 -s /lease") && !by_dhcp.contains("10.0.0"));
    }
}

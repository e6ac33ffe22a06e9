//! The files of a demonstration guest: busybox, the drivers of its network card, and a first
//! process that gives the card an address and the terminal a shell.

use std::path::Path;

use anyhow::{Context, Result};
use protocol::name::PortName;

use super::kernel;

const DIR: usize = 0o040_755;
const PROGRAM: usize = 0o100_755;

/// Makes the archive that a kernel unpacks. The guest's address is 10.0.0.`number`, or comes by
/// DHCP; for that and its network card it needs these `drivers`.
pub fn build(
    kernel: &Path,
    busybox: &Path,
    drivers: &[&str],
    port: &PortName,
    number: Option<u8>,
) -> Result<Vec<u8>> {
    let program = std::fs::read(busybox);
    let program = program.with_context(|| format!("cannot read {}", busybox.display()))?;
    let mut archive = Archive::default();
    for dir in ["bin", "proc", "sys", "dev", "tmp", "modules"] {
        archive.add(dir, DIR, &[]);
    }
    archive.add("bin/busybox", PROGRAM, &program);
    for (i, module) in kernel::modules(kernel, busybox, drivers)?.iter().enumerate() {
        archive.add(&format!("modules/{i:02}.ko"), PROGRAM, module);
    }
    archive.add("lease", PROGRAM, LEASE.as_bytes());
    archive.add("init", PROGRAM, init(port, number).as_bytes());
    Ok(archive.finish())
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

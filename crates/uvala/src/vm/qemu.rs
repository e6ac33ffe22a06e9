//! What the QEMU that is there understands: its options have changed over the years.

use std::path::Path;
use std::process::Command;

use terminal::process;

use super::kvm;

/// What it is called.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// The first version that needs no KVM for interrupts by messages.
const CRASHES_NO_MORE: (u32, u32) = (8, 0);

/// A QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qemu {
    /// Version of the program, major and minor.
    pub version: (u32, u32),
    /// Whether QEMU runs the guest with KVM.
    pub kvm: bool,
}

impl Qemu {
    /// One that knows all of what we say, with KVM.
    pub const NEWEST: Self = Self { version: (u32::MAX, 0), kvm: true };

    /// Asks a program for its version, and whether it can use KVM unless `told` says so. None: the
    /// program is missing, or is not QEMU.
    pub fn ask(program: &Path, told: Option<bool>) -> Option<Self> {
        let asked = process::ask(Command::new(program).arg("--version")).ok()?;
        let version = version(&String::from_utf8_lossy(&asked.stdout))?;
        let kvm = told.unwrap_or_else(|| version >= CRASHES_NO_MORE || kvm::is_usable());
        Some(Self { version, kvm })
    }

    /// Whether the program can use KVM: it was built with it, and `/dev/kvm` is usable.
    pub fn can_use_kvm(program: &Path) -> bool {
        let ask = || process::ask(Command::new(program).args(["-accel", "help"]));
        kvm::is_usable() && ask().is_ok_and(|said| has_kvm(&said.stdout))
    }

    /// What makes a socket be connected to again.
    pub fn reconnect(self) -> &'static str {
        if self.version >= (9, 2) { "reconnect-ms=100" } else { "reconnect=1" }
    }

    /// Options for a network backend that connects and reconnects; none where QEMU cannot.
    pub fn netdev_reconnect(self) -> Option<&'static str> {
        match self.version {
            (9, 2..) | (10.., _) => Some("server=off,reconnect-ms=100"),
            (8.., _) => Some("server=off,reconnect=1"),
            _ => None,
        }
    }

    /// Whether this QEMU has -netdev stream and dgram.
    pub fn knows_netdevs(self) -> bool {
        self.version >= (7, 2)
    }

    /// Interrupts by messages are what it crashes with, where the device is not its own and there
    /// is no KVM.
    pub fn crashes_with_vectors(self) -> bool {
        self.version < CRASHES_NO_MORE && !self.kvm
    }
}

/// Whether QEMU lists `kvm` among its accelerators, one a line.
fn has_kvm(said: &[u8]) -> bool {
    String::from_utf8_lossy(said).lines().any(|line| line.trim() == "kvm")
}

fn version(text: &str) -> Option<(u32, u32)> {
    let numbers = text.split_once("version ")?.1;
    let mut numbers = numbers.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_versions_are_read_from_what_they_say() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright (c) 2003";
        assert_eq!(version(debian), Some((7, 2)));
        assert_eq!(version("QEMU emulator version 11.1.3 (x)"), Some((11, 1)));
        assert_eq!(version("bash 5"), None);
        assert!(has_kvm(b"Accelerators supported in QEMU binary:\ntcg\nkvm\n"));
        assert!(!has_kvm(b"Accelerators supported in QEMU binary:\ntcg\n"));
        assert_eq!(Qemu::ask(Path::new("/no/such/qemu"), None), None);
    }
}

//! One TCP stream between two guests: Linux under QEMU, which emulates the processor (TCG).
//!
//! Both are the demonstration guests of `uvala vm run`, with nothing but busybox in them: `dd`
//! writes zeros to a socket in one and reads them in the other, 64 KiB a call. What comes first is
//! not counted. Time is the host's, for an emulated clock is nobody's judge: from a line on the
//! receiver's serial console to another.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use protocol::PortKind;
use protocol::name::PortName;

use super::lab::{bridge, ip};
use super::{Contender, Meter};
use crate::bench::peers::console::Console;
use crate::bench::sample::Reading;
use crate::bench::subject::Daemon;
use crate::vm::boot::{self, Boot};
use crate::vm::memory::Memory;
use crate::vm::qemu::Qemu;
use crate::vm::{Card, address_of, initramfs, remains};

/// The guests' ports.
const PORTS: [&str; 2] = ["vale0:vm1", "vale0:vm2"];
/// Of each guest.
const MEMORY: Memory = Memory::of_mib(256);
/// Booting takes seconds, on a busy machine many.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a call.
const RECORD: u32 = 64 << 10;
/// Records that are not counted.
const WARM_UP: u32 = 512;
/// Records that are.
const COUNTED: u32 = 4096;

/// Gbit/s that the receiver gets.
pub fn tcp(contender: Contender) -> Result<Reading> {
    let kit = Kit::find()?;
    let ports = PORTS.map(|port| port.parse::<PortName>().expect("a name"));
    let (daemon, taps) = match contender {
        Contender::Uvala => (Some(switch()?), None),
        Contender::BridgeTap => (None, Some(taps()?)),
        other => bail!("{other:?} has no guests"),
    };
    let boot = |i: usize| {
        let port: &PortName = &ports[i];
        let card = match (&daemon, taps) {
            (Some(daemon), _) => vhost_card(kit.qemu, daemon, port)?,
            (None, taps) => tap_card(taps.context("neither switch nor bridge")?[i], port),
        };
        kit.boot(port, card)
    };
    let (mut receiver, mut sender) = (boot(0)?, boot(1)?);
    for guest in [&mut receiver, &mut sender] {
        guest.expect("It ends with: exit", PATIENCE)?;
    }
    stream(&mut receiver, &mut sender)
}

/// What guests are made of.
struct Kit {
    program: PathBuf,
    qemu: Qemu,
    busybox: PathBuf,
    kernel: PathBuf,
}

impl Kit {
    fn find() -> Result<Kit> {
        let given = std::env::var_os("QEMU").map(PathBuf::from);
        // The same on every machine, whatever its processor could do.
        let (program, qemu) = boot::find_qemu(given.as_deref(), Some(false)).map_err(|_| {
            anyhow!("no QEMU that runs: apt install qemu-system-x86, or say QEMU=PROGRAM")
        })?;
        let busybox = boot::find_busybox()
            .map_err(|_| anyhow!("no static busybox: apt install busybox-static"))?;
        let unpacked = std::env::var_os("UVALA_VM_DIR").unwrap_or_else(|| "target/vm".into());
        let kernel = find_kernel(&[&Path::new(&unpacked).join("kernel/boot"), "/boot".as_ref()])?;
        Ok(Kit { program, qemu, busybox, kernel })
    }

    /// Starts the guest of a port.
    fn boot(&self, port: &PortName, card: Vec<(&'static str, String)>) -> Result<Console> {
        let number = initramfs::number_of(port);
        let files = initramfs::build(&self.kernel, &self.busybox, port, number)?;
        let files: File = boot::held(&files)?;
        let initrd = boot::in_child(&files);
        let boot = Boot { kernel: &self.kernel, initrd: &initrd, cpus: 1, append: "" };
        let mut command = remains::dependent(&self.program)?;
        command.args(boot.words(self.qemu, card)).stderr(Stdio::inherit());
        Console::start(&format!("the guest at {port}"), &mut command)
    }
}

/// The newest kernel in the first directory that has one.
fn find_kernel(dirs: &[&Path]) -> Result<PathBuf> {
    let newest = |dir: &&Path| {
        let files = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let is_kernel = |file: &PathBuf| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        };
        files.map(|file| file.path()).filter(is_kernel).max()
    };
    dirs.iter().find_map(newest).context(
        "no kernel for the guests: run .ci/guests as root, or apt install linux-image-cloud-amd64",
    )
}

/// Our switch, with their ports.
fn switch() -> Result<Daemon> {
    let port = |name: &str| {
        let name = name.trim_start_matches("vale0:");
        format!("[switch.vale0.port.{name}]\nkind = \"vhost-user\"\n")
    };
    Daemon::with(&format!("[switch.vale0]\n{}", PORTS.map(port).concat()))
}

fn vhost_card(qemu: Qemu, daemon: &Daemon, port: &PortName) -> Result<Vec<(&'static str, String)>> {
    let machine = boot::new_machine(Some(daemon.dir()), port)?;
    let (kind, mac) = (PortKind::VhostUser, address_of(port));
    Ok(Card { kind, machine: &machine, memory: Some(MEMORY), mac, model: None }.qemu(qemu)?)
}

/// TAPs in a bridge of the kernel's.
fn taps() -> Result<[&'static str; 2]> {
    let taps = ["port0", "port1"];
    for tap in taps {
        ip(&format!("tuntap add dev {tap} mode tap"))?;
    }
    bridge(&taps)?;
    Ok(taps)
}

/// A card that differs from ours in nothing but what is behind it.
fn tap_card(tap: &str, port: &PortName) -> Vec<(&'static str, String)> {
    let netdev = format!("tap,id=uvala,ifname={tap},script=no,downscript=no,vhost=off");
    let device = format!("virtio-net-pci,netdev=uvala,mac={}", address_of(port));
    vec![("-m", MEMORY.to_string()), ("-netdev", netdev), ("-device", device)]
}

fn stream(receiver: &mut Console, sender: &mut Console) -> Result<Reading> {
    // The guests' terminals repeat what is typed: what is waited for is written in another way.
    let take = |count: u32| format!("dd of=/dev/null bs={RECORD} iflag=fullblock count={count}");
    receiver.tell(&format!(
        "nc -l -p 7 -e sh -c '{} 2>/dev/null; echo WA\"\"RM >&2; {}' &",
        take(WARM_UP),
        take(COUNTED)
    ))?;
    // A socket that listens.
    receiver.tell("until grep -q ' 0A ' /proc/net/tcp*; do sleep 0.1; done; echo LIS''TENS")?;
    receiver.expect("LISTENS", PATIENCE)?;
    sender.tell(&format!("nc 10.0.0.1 7 -e dd if=/dev/zero bs={RECORD}"))?;
    receiver.expect("WARM", PATIENCE)?;
    let (meter, start) = (Meter::start()?, Instant::now());
    let said = receiver.expect(" records in", PATIENCE)?;
    let (elapsed, percent) = (start.elapsed(), meter.percent()?);
    let records = records_of(&said);
    ensure!(records == Some(COUNTED), "the stream ended before its time: {}", said.trim());
    let gbit = f64::from(RECORD) * f64::from(COUNTED) * 8.0 / elapsed.as_secs_f64() / 1e9;
    Ok(Reading { cpu_per_gbit: Some(percent / gbit), ..gbit.into() })
}

/// How many whole records `dd` says it has read.
fn records_of(said: &str) -> Option<u32> {
    let (whole, _) = said.split_once(" records in")?.0.split_once('+')?;
    whole.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_records_are_what_dd_says() {
        assert_eq!(records_of("4096+0 records in\r"), Some(4096));
        // The shell asks a terminal where its cursor is.
        assert_eq!(records_of("vm1# \u{1b}[6n12+1 records in"), Some(12));
        assert_eq!(records_of("0+3 records in"), Some(0));
        assert_eq!(records_of("+0 records in"), None);
        assert_eq!(records_of("4096+0 records out"), None);
    }

    #[test]
    fn test_the_newest_kernel_is_found_or_what_to_install() {
        let dir = std::env::temp_dir().join(format!("uvala-kernels-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for name in ["vmlinuz-6.1.0-1", "vmlinuz-6.1.0-2", "System.map-6.1.0-3"] {
            std::fs::write(dir.join(name), "").unwrap();
        }
        let found = find_kernel(&["/no/such/place".as_ref(), &dir]).unwrap();
        assert!(found.ends_with("vmlinuz-6.1.0-2"), "{}", found.display());
        std::fs::remove_dir_all(&dir).unwrap();
        let error = find_kernel(&[&dir]).unwrap_err().to_string();
        assert!(error.contains("apt install") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn test_cards_have_one_address_whatever_is_behind_them() {
        let port: PortName = "vale0:vm1".parse().unwrap();
        let card = tap_card("port0", &port);
        let mac = format!("virtio-net-pci,netdev=uvala,mac={}", address_of(&port));
        assert_eq!(card.last(), Some(&("-device", mac)));
    }
}

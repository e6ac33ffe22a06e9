//! One TCP stream between two guests: Linux under QEMU, which emulates the processor (TCG).
//!
//! Both are the demonstration guests of `uvala vm run`, with nothing but busybox in them: `dd`
//! writes zeros to a socket in one and reads them in the other, 64 KiB a call. What comes first is
//! not counted. Time is the host's, since an emulated clock does not count: from a line on the
//! receiver's serial console to another.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use terminal::process;

use super::{Contender, Meter};
use crate::daemon::Daemon;
use crate::programs::console::Console;
use crate::programs::find;
use crate::programs::ip::{bridge, ip};
use crate::sample::Reading;

/// The guests' ports.
const PORTS: [&str; 2] = ["vale0:vm1", "vale0:vm2"];
/// The memory of each guest.
const MEMORY: &str = "256M";
/// Booting takes seconds, on a busy machine many.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a call.
const RECORD: u32 = 64 << 10;
/// Records that are not counted.
const WARM_UP: u32 = 512;
/// Records that are counted.
const COUNTED: u32 = 4096;

/// Gbit/s that the receiver gets.
pub fn tcp(contender: Contender) -> Result<Reading> {
    let kit = Kit::find()?;
    let (daemon, taps) = match contender {
        Contender::Uvala => (Some(switch()?), None),
        Contender::BridgeTap => (None, Some(taps()?)),
        other => bail!("{other:?} has no guests"),
    };
    let boot = |i: usize| {
        let mut command = kit.command(PORTS[i])?;
        match (&daemon, taps) {
            (Some(daemon), _) => command.arg("--dir").arg(daemon.dir()),
            (None, taps) => command.args(["--tap", taps.context("neither switch nor bridge")?[i]]),
        };
        Console::start(&format!("the guest at {}", PORTS[i]), &mut command)
    };
    let (mut receiver, mut sender) = (boot(0)?, boot(1)?);
    for guest in [&mut receiver, &mut sender] {
        guest.expect("It ends with: exit", PATIENCE)?;
    }
    stream(&mut receiver, &mut sender)
}

/// What guests are made of, beside the static busybox that `uvala vm run` looks for.
struct Kit {
    qemu: PathBuf,
    kernel: PathBuf,
}

impl Kit {
    fn find() -> Result<Kit> {
        let given = std::env::var_os("QEMU").map(PathBuf::from);
        let qemu = given.map_or_else(|| find("qemu-system-x86_64", "qemu-system-x86"), Ok)?;
        let unpacked = std::env::var_os("UVALA_VM_DIR").unwrap_or_else(|| "target/vm".into());
        let kernel = find_kernel(&[&Path::new(&unpacked).join("kernel/boot"), "/boot".as_ref()])?;
        Ok(Kit { qemu, kernel })
    }

    /// Boots the guest of a port. QEMU emulates the processor: the same on every machine, whatever
    /// its processor could do.
    fn command(&self, port: &str) -> Result<Command> {
        let mut command = Command::new(process::exe()?);
        command.args(["vm", "run"]).arg(&self.kernel).arg("--qemu").arg(&self.qemu);
        command.args(["--accel", "tcg", "--memory", MEMORY, "--name", port]);
        command.stderr(Stdio::inherit());
        Ok(command)
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

/// TAPs in a bridge of the kernel's.
fn taps() -> Result<[&'static str; 2]> {
    let taps = ["port0", "port1"];
    for tap in taps {
        ip(&format!("tuntap add dev {tap} mode tap"))?;
    }
    bridge(&taps)?;
    Ok(taps)
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
}

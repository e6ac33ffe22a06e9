//! Two guests: Linux under QEMU, which emulates the processor (TCG).
//!
//! Both are the demonstration guests of `uvala vm run`, told what to do on their consoles.
//!
//! - *A stream*: `dd` writes zeros to a socket in one and reads them in the other, 64 KiB a call.
//!   What comes first is not counted. Time is the host's, from a line on the receiver's console to
//!   another.
//! - *Datagrams*: iperf3 sends 18 bytes in each, as fast as it can; what it has received counts.
//! - *Echoes*: `ping`, whose times count.

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
use crate::sample::{self, Reading};
use crate::work::{Card, Exchange};

/// The guests' ports.
const PORTS: [&str; 2] = ["vale0:vm1", "vale0:vm2"];
/// The address of the receiver, which is at the first.
const RECEIVER: &str = "10.0.0.1";
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
/// Bytes of a datagram in the shortest frame: 64 with headers and checksum.
const DATAGRAM: u32 = 18;
/// Between two echo requests.
const INTERVAL: Duration = Duration::from_millis(5);

/// Measures once, in the unit of the exchange.
pub fn measure(
    contender: Contender,
    card: Card,
    exchange: Exchange,
    time: Duration,
) -> Result<Reading> {
    let kit = Kit::find(card, exchange)?;
    let (daemon, taps) = match contender {
        Contender::Uvala => (Some(switch(card)?), None),
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
    // The link of a card may come up seconds after its driver.
    sender.tell(&format!(
        "until ping -c 1 -W 1 {RECEIVER} >/dev/null 2>&1; do sleep 0.1; done; echo REA''CHES"
    ))?;
    sender.expect("REACHES", PATIENCE)?;
    match exchange {
        Exchange::Stream => stream(&mut receiver, &mut sender),
        Exchange::Datagrams => datagrams(&mut receiver, &mut sender, 3 * time),
        Exchange::Echo => echoes(&mut sender, 2 * time),
    }
}

/// What guests are made of, beside the static busybox that `uvala vm run` looks for.
struct Kit {
    qemu: PathBuf,
    kernel: PathBuf,
    nic: &'static str,
    /// Modules and programs.
    more: Vec<PathBuf>,
}

impl Kit {
    fn find(card: Card, exchange: Exchange) -> Result<Kit> {
        let given = std::env::var_os("QEMU").map(PathBuf::from);
        let qemu = given.map_or_else(|| find("qemu-system-x86_64", "qemu-system-x86"), Ok)?;
        let unpacked = std::env::var_os("UVALA_VM_DIR").unwrap_or_else(|| "target/vm".into());
        let unpacked = Path::new(&unpacked);
        let (nic, kernel, module) = match card {
            Card::Virtio => ("virtio", "kernel", None),
            // The kernel for clouds has no driver for it.
            Card::E1000 => ("e1000", "kernel-generic", None),
            Card::E1000Csb => ("e1000", "kernel", Some("e1000/e1000.ko")),
            Card::Ptnet => ("ptnet", "kernel", Some("ptnet/uvala_ptnet.ko")),
        };
        let kernel = find_kernel(&[&unpacked.join(kernel).join("boot"), "/boot".as_ref()])?;
        let mut more = Vec::new();
        if let Some(module) = module {
            let path = unpacked.join(module);
            ensure!(path.exists(), "no {}: run .ci/guests as root", path.display());
            more.push(path);
        }
        if exchange == Exchange::Datagrams {
            more.push(find("iperf3", "iperf3")?);
        }
        Ok(Kit { qemu, kernel, nic, more })
    }

    /// Boots the guest of a port. QEMU emulates the processor: the same on every machine, whatever
    /// its processor could do.
    fn command(&self, port: &str) -> Result<Command> {
        let mut command = process::dependent(&process::exe()?)?;
        command.args(["vm", "run"]).arg(&self.kernel).arg("--qemu").arg(&self.qemu);
        command.args(["--accel", "tcg", "--memory", MEMORY, "--name", port, "--nic", self.nic]);
        for file in &self.more {
            command.arg("--add").arg(file);
        }
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

/// Our switch. Ports of machines are there before these; a device makes its own.
fn switch(card: Card) -> Result<Daemon> {
    let port = |name: &str| {
        let name = name.trim_start_matches("vale0:");
        format!("[switch.vale0.port.{name}]\nkind = \"vhost-user\"\n")
    };
    let ports = if card == Card::Virtio { PORTS.map(port).concat() } else { String::new() };
    Daemon::with(&format!("[switch.vale0]\n{ports}"))
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

/// Waits until a server listens in a guest. The guests' terminals repeat what is typed: what is
/// waited for is written in another way.
fn await_server(guest: &mut Console) -> Result<()> {
    guest.tell("until grep -q ' 0A ' /proc/net/tcp*; do sleep 0.1; done; echo LIS''TENS")?;
    guest.expect("LISTENS", PATIENCE)?;
    Ok(())
}

/// What a command in a guest says, in one line.
fn ask(guest: &mut Console, command: &str, patience: Duration) -> Result<String> {
    guest.tell(&format!("echo SA''YS $({command})"))?;
    let line = guest.expect("SAYS", patience)?;
    Ok(line.rsplit("SAYS").next().unwrap_or_default().trim().to_owned())
}

fn stream(receiver: &mut Console, sender: &mut Console) -> Result<Reading> {
    let take = |count: u32| format!("dd of=/dev/null bs={RECORD} iflag=fullblock count={count}");
    receiver.tell(&format!(
        "nc -l -p 7 -e sh -c '{} 2>/dev/null; echo WA\"\"RM >&2; {}' &",
        take(WARM_UP),
        take(COUNTED)
    ))?;
    await_server(receiver)?;
    sender.tell(&format!("nc {RECEIVER} 7 -e dd if=/dev/zero bs={RECORD}"))?;
    receiver.expect("WARM", PATIENCE)?;
    let (meter, start) = (Meter::start()?, Instant::now());
    let said = receiver.expect(" records in", PATIENCE)?;
    let (elapsed, percent) = (start.elapsed(), meter.percent()?);
    let records = records_of(&said);
    ensure!(records == Some(COUNTED), "the stream ended before its time: {}", said.trim());
    let gbit = f64::from(RECORD) * f64::from(COUNTED) * 8.0 / elapsed.as_secs_f64() / 1e9;
    Ok(Reading { cpu_per_gbit: Some(percent / gbit), ..gbit.into() })
}

fn datagrams(receiver: &mut Console, sender: &mut Console, time: Duration) -> Result<Reading> {
    receiver.tell("iperf3 -s -1 >/dev/null 2>&1 &")?;
    await_server(receiver)?;
    let seconds = time.as_secs().max(1);
    let command = format!(
        "iperf3 -c {RECEIVER} -u -b 0 -l {DATAGRAM} -t {seconds} 2>&1 | grep -e receiver -e error"
    );
    let said = ask(sender, &command, time + PATIENCE)?;
    received(&said).with_context(|| format!("iperf3 in the guest says: {said}"))
}

fn echoes(sender: &mut Console, time: Duration) -> Result<Reading> {
    let count = u32::try_from(time.as_millis() / INTERVAL.as_millis())?.max(1);
    let command = format!(
        "ping -c {count} -i {} {RECEIVER} >/tmp/said; sed -n 's/.*time=\\([0-9.]*\\) ms/\\1/p' \
         /tmp/said",
        INTERVAL.as_secs_f64()
    );
    let said = ask(sender, &command, time + PATIENCE)?;
    let times: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
    let mut times = times.with_context(|| format!("ping in the guest says: {said}"))?;
    let median = sample::median(&mut times).context("no echo request was answered")?;
    let answered = f64::from(u32::try_from(times.len())?);
    let lost = 100.0 * (1.0 - answered / f64::from(count));
    Ok(Reading { lost_percent: Some(lost), ..(1e3 * median).into() })
}

/// Thousand datagrams a second, and the share that was lost, by iperf3's line about the receiver:
/// `0.00-3.04 sec 1.51 MBytes 4.22 Mbits/sec 0.013 ms 5621/93482 (6%) receiver`.
fn received(said: &str) -> Option<Reading> {
    let words = || said.split_whitespace();
    let pair = |word: &str, by| {
        let (a, b) = word.split_once(by)?;
        Some((a.parse::<f64>().ok()?, b.parse::<f64>().ok()?))
    };
    let (from, to) = words().find_map(|word| pair(word, '-'))?;
    let (lost, all) = words().find_map(|word| pair(word, '/'))?;
    let reading = Reading::from((all - lost) / (to - from) / 1e3);
    (all > 0.0 && to > from)
        .then_some(Reading { lost_percent: Some(100.0 * lost / all), ..reading })
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
    fn test_datagrams_are_those_of_the_receiver() {
        let said = "[ 5] 0.00-2.50 sec 1.51 MBytes 4.22 Mbits/sec 0.013 ms 500/10500 (4.8%) \
                    receiver";
        let reading = received(said).unwrap();
        assert_eq!(reading.value, 4.0);
        assert!((reading.lost_percent.unwrap() - 100.0 / 21.0).abs() < 1e-9);
        assert_eq!(received("iperf3: error - unable to connect to server"), None);
        assert_eq!(received("[ 5] 0.00-2.50 sec 0.00 Bytes 0.00 bits/sec receiver"), None);
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

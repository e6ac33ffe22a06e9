//! One `dpdk-testpmd` process and the conversation with it.
//!
//! testpmd takes commands on its input and prints to its output, line buffered by `stdbuf`: a memif
//! receiver may crash when its sender ends, and what it counted would be lost. Nothing here waits a
//! fixed time where testpmd says that it is ready.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::console::Console;
use super::dpdk::Pages;
use super::find;

/// How long testpmd may take for a command.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running testpmd.
pub struct Testpmd {
    console: Console,
    // After the process, in this order.
    _runtime: RuntimeDirectory,
}

/// How to start one.
pub struct Options<'a> {
    /// Tells apart the processes of one benchmark.
    pub name: &'a str,
    /// The CPU that forwards. The CPU that listens to commands sleeps.
    pub cpu: usize,
    /// The other CPU.
    pub main_cpu: usize,
    /// Memory in megabytes.
    pub megabytes: u32,
    /// Devices, as `--vdev` takes them.
    pub devices: &'a [String],
    /// Further options of the environment layer.
    pub eal: &'a [&'a str],
    /// Further options of testpmd itself.
    pub app: &'a [String],
    /// Frames per turn.
    pub burst: u16,
}

impl Testpmd {
    /// Starts testpmd. Commands wait in its input until it is up, and it is up when its links are,
    /// or after nine seconds: start both ends before talking to either.
    pub fn start(pages: &Pages, options: &Options<'_>) -> Result<Testpmd> {
        let program = find("dpdk-testpmd", "dpdk-dev")?;
        let stdbuf = find("stdbuf", "coreutils")?;
        let mut command = Command::new(stdbuf);
        command.arg("-oL").arg(program).args(pages.options(options.megabytes));
        command.args(["-l", &format!("{},{}", options.main_cpu, options.cpu)]);
        command.args(["--main-lcore", &options.main_cpu.to_string()]);
        command.args(["--no-pci", "--no-telemetry"]);
        let prefix = format!("uvala-{}-{}", options.name, std::process::id());
        command.arg(format!("--file-prefix={prefix}")).args(options.eal);
        command.args(options.devices.iter().map(|device| format!("--vdev={device}")));
        command.args(["--", "-i", "--total-num-mbufs=16384", "--rxd=1024", "--txd=1024"]);
        command.arg("--no-lsc-interrupt").arg(format!("--burst={}", options.burst));
        command.args(options.app);
        command.stderr(Stdio::null());
        let console = Console::start(&format!("testpmd {}", options.name), &mut command)?;
        let runtime = RuntimeDirectory::of(&prefix);
        Ok(Testpmd { console, _runtime: runtime })
    }

    /// Gives a command.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        self.console.tell(command)
    }

    /// Waits for a line that contains `text`.
    pub fn expect(&mut self, text: &str) -> Result<String> {
        self.console.expect(text, PATIENCE)
    }

    /// Chooses a forwarding mode and starts it.
    pub fn forward(&mut self, mode: &str) -> Result<()> {
        self.tell(&format!("set fwd {mode}"))?;
        self.expect("packet forwarding mode")?;
        Ok(())
    }

    /// How many packets its ports have received, one by one.
    pub fn received(&mut self, ports: usize) -> Result<Vec<u64>> {
        self.counts("RX-packets:", ports)
    }

    /// How many they have sent.
    pub fn sent(&mut self, ports: usize) -> Result<Vec<u64>> {
        self.counts("TX-packets:", ports)
    }

    fn counts(&mut self, name: &str, ports: usize) -> Result<Vec<u64>> {
        self.tell("show port stats all")?;
        let mut counts = Vec::new();
        for _ in 0..ports {
            let line = self.expect(name)?;
            let count = count_in(&line, name);
            counts.push(count.with_context(|| format!("no packet count in: {line}"))?);
        }
        Ok(counts)
    }

    /// Million packets a second that its ports receive together.
    pub fn receive_rate(&mut self, ports: usize, time: Duration) -> Result<f64> {
        let before: u64 = self.received(ports)?.iter().sum();
        let start = Instant::now();
        std::thread::sleep(time);
        let after: u64 = self.received(ports)?.iter().sum();
        let elapsed = start.elapsed();
        let count = u32::try_from(after.saturating_sub(before)).unwrap_or(u32::MAX);
        if count == 0 {
            bail!("{} received nothing", self.console.name());
        }
        Ok(f64::from(count) / elapsed.as_secs_f64() / 1e6)
    }

    /// Whether the links of this many ports are up.
    pub fn links_are_up(&mut self, ports: u32) -> Result<bool> {
        let mut up = true;
        for port in 0..ports {
            self.tell(&format!("show port info {port}"))?;
            up &= self.expect("Link status:")?.contains("up");
        }
        Ok(up)
    }

    /// Waits until a port has received something: its link is up and packets flow.
    pub fn await_traffic(&mut self, ports: usize) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.received(ports)?.contains(&0) {
            if Instant::now() > end {
                bail!("{} received nothing", self.console.name());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it in good order.
    pub fn quit(mut self) {
        // A testpmd that crashed on the way out has counted already.
        let _ = self.tell("stop");
        let _ = self.tell("quit");
        let _ = self.expect("Bye");
    }
}

/// Where DPDK keeps names of sockets and memory, by file prefix; gone when dropped.
struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    fn of(prefix: &str) -> RuntimeDirectory {
        let base = if rustix::process::geteuid().is_root() {
            "/var/run".into()
        } else {
            std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| "/tmp".into(), PathBuf::from)
        };
        RuntimeDirectory(base.join("dpdk").join(prefix))
    }
}

impl Drop for RuntimeDirectory {
    fn drop(&mut self) {
        // Empty names: leaving them behind would be untidy, not wrong.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The number after a name.
fn count_in(line: &str, name: &str) -> Option<u64> {
    line.split(name).nth(1)?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_count_in_a_line_of_statistics() {
        let line = "  RX-packets: 5007104    RX-missed: 0          RX-bytes:  300426240";
        assert_eq!(count_in(line, "RX-packets:"), Some(5_007_104));
        assert_eq!(count_in("  RX-errors: 0", "RX-packets:"), None);
    }
}

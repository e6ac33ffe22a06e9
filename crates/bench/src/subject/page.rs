//! What a viewer of the web page costs the host: the processor time of `uvala-http` and of the
//! daemon while one stream of counters runs, which brings the page up to date each second.
//!
//! The ports are of kind `null`, and have got a few frames, so that their counters are not all
//! zero. The time in which the server keeps the last hour is in it, as it is without a viewer. The
//! browser is not in it, and nothing is forwarded meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use client::Options;

use super::driver::connect;
use super::ends::PATIENCE;
use super::scrape::configuration;
use crate::daemon::{Daemon, cpu_time};
use crate::programs::Killed;
use crate::stamp::{self, BROADCAST, address, header};
use terminal::process;

/// Updates that are measured, at least: the server looks at counters for the last hour once in ten
/// seconds.
const UPDATES: u64 = 10;
/// Updates before these: the first ones find memory and caches as no others do.
const WARM_UP: u64 = 2;
/// Frames that each port gets.
const FRAMES: u64 = 1000;

/// Percent of one core of daemon and server together.
pub fn run(ports: u16, time: Duration) -> Result<f64> {
    let daemon = Daemon::with(&configuration(ports))?;
    broadcast(daemon.dir())?;
    let server = serve(daemon.dir())?;
    let spent = || anyhow::Ok(daemon.cpu_time()? + cpu_time(server.0.id())?);
    let mut updates = Updates::listen(daemon.dir(), ports)?;
    for _ in 0..WARM_UP {
        updates.next()?;
    }
    let (before, begin) = (spent()?, Instant::now());
    for _ in 0..UPDATES.max(time.as_secs()) {
        updates.next()?;
    }
    let used = spent()?.saturating_sub(before);
    Ok(used.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0)
}

/// Sends frames to all ports; the port that does is gone then.
fn broadcast(dir: &Path) -> Result<()> {
    let mut port = Options::new().dir(dir).open("vale0:sender")?;
    let (mut frame, header) = ([0; 60], header(BROADCAST, address(1)));
    for sequence in 0..FRAMES {
        stamp::write(&mut frame, &header, sequence);
        port.send(&frame)?;
    }
    Ok(())
}

/// Starts `uvala-http`, which stands beside this program.
fn serve(dir: &Path) -> Result<Killed> {
    let program = process::exe()?.with_file_name("uvala-http");
    ensure!(program.exists(), "{} is missing: build it first", program.display());
    let mut server = process::dependent(&program)?;
    server.arg("--dir").arg(dir);
    Ok(Killed(server.spawn().context("cannot start uvala-http")?))
}

/// The stream that the page listens to.
struct Updates {
    stream: BufReader<UnixStream>,
    ports: u16,
}

impl Updates {
    fn listen(dir: &Path, ports: u16) -> Result<Self> {
        let mut stream = connect(&dir.join("http.sock"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /v1/stats/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        Ok(Self { stream: BufReader::new(stream), ports })
    }

    /// Waits for the next message.
    fn next(&mut self) -> Result<()> {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.stream.read_line(&mut line).context("the stream says nothing")?;
            ensure!(read > 0, "the stream has ended");
            if let Some(data) = line.strip_prefix("data:") {
                return check(data, self.ports);
            }
            if line.starts_with("event: problem") {
                bail!("the stream has a problem");
            }
        }
    }
}

/// Checks that a message has all ports, and that these have counted.
fn check(data: &str, ports: u16) -> Result<()> {
    let message: serde_json::Value = serde_json::from_str(data).context("a message of counters")?;
    let items = message["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let frames = items.iter().map(|item| item["rx"]["frames"].as_u64());
    let counted = frames.filter(|frames| *frames >= Some(FRAMES)).count();
    let all = items.len();
    ensure!(
        counted == usize::from(ports),
        "{counted} of {ports} ports have counted ({all} are there)"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_message_has_all_ports_with_what_they_counted() {
        let port = |frames| serde_json::json!({ "port": "vale0:n0", "rx": { "frames": frames } });
        let data = serde_json::json!({ "items": [port(1000), port(1001)] }).to_string();
        assert!(check(&data, 2).is_ok());
        let data = serde_json::json!({ "items": [port(1000), port(0)] }).to_string();
        let error = check(&data, 2).unwrap_err().to_string();
        assert_eq!(error, "1 of 2 ports have counted (2 are there)");
        assert!(check("{", 0).is_err());
    }
}

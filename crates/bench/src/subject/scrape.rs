//! A scrape of the metrics of a daemon with many ports, as a client of `uvala metrics --listen`
//! sees it.
//!
//! The ports are of kind `null`: they have all counters, and no memory or program. So what is
//! measured is the daemon, which says what it has, and the server, which writes it down.

use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::commands::command;
use super::driver::connect;
use super::ends::PATIENCE;
use crate::daemon::Daemon;
use crate::programs::Killed;
use crate::role::{median_us, nanoseconds};

/// For a little less time the server gives the same answer again.
const FRESH: Duration = Duration::from_millis(300);

/// Milliseconds from a client's connect to the end of the answer.
pub fn run(ports: u16, time: Duration) -> Result<f64> {
    let daemon = Daemon::with(&configuration(ports))?;
    let socket = daemon.dir().join("metrics.sock");
    let mut server = command(daemon.dir())?;
    server.arg("metrics").arg(format!("--listen=unix:{}", socket.display()));
    let _server = Killed(server.spawn().context("cannot start uvala metrics")?);
    // The first one finds memory and caches as no other does.
    check(&scrape(&socket)?, ports)?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || begin.elapsed() < time {
        std::thread::sleep(FRESH);
        let start = Instant::now();
        let answer = scrape(&socket)?;
        times.push(nanoseconds(start.elapsed()));
        check(&answer, ports)?;
    }
    Ok(median_us(&mut times)? / 1e3)
}

/// A switch with this many ports.
pub fn configuration(ports: u16) -> String {
    let port = |number| format!("[switch.vale0.port.n{number}]\nkind = \"null\"\n");
    (0..ports).map(port).collect()
}

fn scrape(socket: &Path) -> Result<String> {
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("no whole answer to a scrape")?;
    Ok(answer)
}

/// Checks that an answer has all ports.
fn check(answer: &str, ports: u16) -> Result<()> {
    let status = answer.lines().next().unwrap_or_default();
    let count = answer.lines().filter(|line| line.starts_with("uvala_port_info{")).count();
    ensure!(count == usize::from(ports), "a scrape has {count} of {ports} ports ({status})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_an_answer_has_all_ports_of_the_configuration() {
        let ports = configuration(2);
        assert_eq!(ports.matches("kind = \"null\"").count(), 2, "{ports}");
        let answer = "HTTP/1.1 200 OK\r\n\r\nuvala_up 1\nuvala_port_info{port=\"n0\"} 1\n";
        assert!(check(answer, 1).is_ok());
        let error = check(answer, 2).unwrap_err().to_string();
        assert_eq!(error, "a scrape has 1 of 2 ports (HTTP/1.1 200 OK)");
    }
}

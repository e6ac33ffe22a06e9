//! A user that always has calls waiting, on many connections, and another caller among them.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use client::Error;
use client::control::Connection;
use harness::role::{Flood, Report};
use harness::socket;
use rustix::net::{RecvFlags, SendFlags, recv, send};

const HELLO: &[u8] = br#"{"v":1,"call":{"hello":{"client":"flood"}}}"#;

/// Keeps all connections full of calls until stdin ends; says how long a call of one connection
/// more usually waits meanwhile.
pub fn run(flood: &Flood) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let sockets: Vec<OwnedFd> =
        (0..flood.connections).map(|_| socket::connect(&flood.dir)).collect();
    let connection = Connection::open(Some(&flood.dir))?;
    sockets.iter().for_each(refill);
    super::say(&Report::Ready);
    let mut waits = Vec::new();
    std::thread::scope(|scope| {
        let pouring = scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                sockets.iter().for_each(refill);
                // The daemon has enough to do until then.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        // One call at least: stdin may end at once.
        loop {
            let asked = Instant::now();
            let _ = connection.hello("one of many");
            waits.push(asked.elapsed());
            if ended.load(Ordering::Relaxed) {
                break;
            }
        }
        pouring.join().expect("it has no reason to end");
    });
    let usual = harness::measure::median(waits.iter().map(Duration::as_secs_f64));
    let usual = Duration::from_secs_f64(usual);
    Ok(Report::Waited { us: u64::try_from(usual.as_micros()).unwrap_or(u64::MAX) })
}

/// Calls until there is no room for more; the answers are taken, or the daemon would hang up.
fn refill(socket: &OwnedFd) {
    while recv(socket, &mut [0; 4096], RecvFlags::DONTWAIT).is_ok_and(|(_, length)| length > 0) {}
    while send(socket, HELLO, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_ok() {}
}

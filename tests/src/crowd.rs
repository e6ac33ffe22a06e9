//! A user that sends by very many ports at once.

use std::sync::atomic::Ordering;

use client::{Error, Options, Port};
use harness::frames::{BROADCAST, mac};
use harness::role::{Crowd, Report};

/// Bytes of each frame.
const LENGTH: usize = 1514;
/// Slots of each port: its user's share of memory is for many.
const SLOTS: u32 = 64;

/// Opens as many ports as the daemon lets it, up to a number, and keeps them full of frames for all
/// others until stdin ends.
pub fn run(crowd: &Crowd) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    let open = |number| {
        let name = format!("{}:crowd{number}", crowd.switch);
        Options::new().dir(&crowd.dir).slots(SLOTS).open(&name)
    };
    let first = open(0)?;
    super::say(&Report::Ready);
    let others = (1..crowd.ports).take_while(|_| !ended.load(Ordering::Relaxed));
    let others = others.map_while(|number| open(number).ok());
    let mut ports: Vec<Port> = [first].into_iter().chain(others).collect();
    let (mut frame, mut sent) = ([0; LENGTH], 0);
    frame[..6].copy_from_slice(&BROADCAST);
    frame[6..12].copy_from_slice(&mac(crowd.station));
    // Once at least: stdin may have ended.
    loop {
        for port in &mut ports {
            while port.try_send(&frame)? {
                sent += 1;
            }
        }
        if ended.load(Ordering::Relaxed) {
            return Ok(Report::Attacked(sent));
        }
    }
}

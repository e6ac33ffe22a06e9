//! A client with many ports that asks for a wake-up of each of them all the time. Each takes the
//! switch some time, but is not slow: few processes watch what the port is woken by.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client::Error;
use client::control::Connection;
use harness::frames::{BROADCAST, mac};
use harness::role::{At, Report, WakeCrowd};
use packet::build::ethernet;
use protocol::Attach;
use rustix::event::epoll;
use rustix::net::{RecvFlags, recv};

use super::wake_ups::{OTHER, STATION, Woken};

/// Slots of each ring: the user's share of memory is for many ports.
const SLOTS: u32 = 64;
/// Watches of a port in each epoll set: what it is woken by, and a copy. The sets are for all
/// ports, so a process has few descriptors.
const IN_A_SET: u32 = 2;
/// Time between two broadcasts.
const PERIOD: Duration = Duration::from_micros(3333);
/// How often it looks for frames.
const LOOK: Duration = Duration::from_millis(1);

/// A port that is woken.
struct Member {
    woken: Woken,
    /// What it is woken by, and a copy.
    wake: [OwnedFd; 2],
    _connection: Connection,
}

impl Member {
    fn attach(at: &At, port: &str) -> Result<Self, Error> {
        let connection = Connection::open(Some(&at.dir))?;
        let (tx_slots, rx_slots) = (Some(SLOTS), Some(SLOTS));
        let attach = Attach { tx_slots, rx_slots, ..Attach::new(port.parse()?) };
        let (attached, fds) = connection.attach(attach)?;
        let woken = Woken::new(&attached, &fds);
        let copy = fds.wake.try_clone().expect("descriptors");
        Ok(Self { woken, wake: [fds.wake, copy], _connection: connection })
    }

    /// Gives all frames back, and asks to be woken for the next, by a socket that has room.
    fn sleep(&mut self) {
        self.woken.ask();
        let _ = recv(&self.wake[0], &mut [0; 64], RecvFlags::DONTWAIT);
    }
}

/// Attaches and attacks until stdin ends, or its time is over.
pub fn run(crowd: &WakeCrowd) -> Result<Report, Error> {
    let ended = super::end_of_stdin();
    super::end_after(crowd.seconds);
    let name = |number| match number {
        0 => crowd.at.port.clone(),
        _ => format!("{}{number}", crowd.at.port),
    };
    let ports = (0..crowd.ports).map(|number| Member::attach(&crowd.at, &name(number)));
    let mut ports = ports.collect::<Result<Vec<_>, _>>()?;
    let sets = watch_all(&ports, crowd.watches / IN_A_SET);
    broadcast(&crowd.at)?;
    super::say(&Report::Ready);
    while !ended.load(Ordering::Relaxed) {
        ports.iter_mut().for_each(Member::sleep);
        std::thread::sleep(LOOK);
    }
    drop(sets);
    Ok(Report::Ready)
}

/// So many epoll sets that watch what all of these ports are woken by.
fn watch_all(ports: &[Member], sets: u32) -> Vec<OwnedFd> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    let set_of_all = |_| {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("descriptors");
        for fd in ports.iter().flat_map(|port| &port.wake) {
            epoll::add(&set, fd, epoll::EventData::new_u64(0), flags).expect("watches");
        }
        set
    };
    (0..sets).map(set_of_all).collect()
}

/// Another port of this process sends to all.
fn broadcast(at: &At) -> Result<(), Error> {
    let mut feeder = at.options().open("vale0:feeder")?;
    std::thread::spawn(move || {
        let frame = ethernet(BROADCAST, mac(STATION), OTHER, &[0; 46]);
        while feeder.send_timeout(&frame, Some(Duration::from_secs(1))).is_ok() {
            std::thread::sleep(PERIOD);
        }
    });
    Ok(())
}

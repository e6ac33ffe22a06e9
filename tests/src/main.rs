//! `uvala-peer ROLE`: a client process of a test; see `harness::role`.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::control::{Connection, PortFds};
use client::{Error, Port};
use harness::frames::{Tally, announcement, fill};
use harness::role::{At, Become, Receive, Report, Role, Send};
use protocol::{Attach, Attached};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

mod closings;
mod crowd;
mod doorbells;
mod flood;
mod futex_bucket;
mod hoard;
mod hostile_client;
mod hostile_guest;
mod hostile_peer;
mod interrupts;
mod listen_fds;
mod nested_sets;
mod odd_files;
mod peer_netmap;
mod scribble;
mod slow_memory;
mod sockets;
mod wake_crowd;
mod wake_ups;

fn main() -> ExitCode {
    set_parent_process_death_signal(Some(Signal::KILL)).expect("every Linux can");
    let role = std::env::args().nth(1).expect("a role");
    let role: Role = serde_json::from_str(&role).expect("a role");
    let result = match role {
        Role::Become(program) => exec(&program),
        Role::Send(send) => send_stream(&send),
        Role::Receive(receive) => receive_streams(&receive),
        Role::Hold(at) => hold(&at),
        Role::Crowd(crowd) => crowd::run(&crowd),
        Role::Doorbells(attack) => doorbells::run(&attack),
        Role::Flood(flood) => flood::run(&flood),
        Role::Hoard(hoard) => hoard::run(&hoard),
        Role::HostileClient(role) => Ok(hostile_client::run(&role)),
        Role::HostileGuest(role) => Ok(hostile_guest::run(&role)),
        Role::HostilePeer(role) => Ok(hostile_peer::run(&role)),
        Role::WakeUps(attack) => wake_ups::run(&attack),
        Role::Returns(attack) => wake_ups::come_again(&attack),
        Role::WakeCrowd(crowd) => wake_crowd::run(&crowd),
        Role::Closings(attack) => closings::run(&attack),
        Role::GivenTap(attack) => closings::give_tap(&attack),
        Role::NestedSets(attack) => nested_sets::run(&attack),
        Role::Interrupts(attack) => Ok(interrupts::run(&attack)),
        Role::Sockets(attack) => Ok(sockets::run(&attack)),
        Role::Memory(attack) => slow_memory::run(&attack),
        Role::NetmapSend(send) => peer_netmap::send(&send),
        Role::NetmapReceive(receive) => peer_netmap::receive(&receive),
        Role::NetmapResume(resume) => peer_netmap::resume(&resume),
        Role::Scribble(scribble) => scribble::run(&scribble),
    };
    match result {
        Ok(last) => say(&last),
        Err(error) => {
            let exit = error.exit_code();
            say(&Report::Failed { exit, message: error.to_string() });
            return ExitCode::from(exit);
        }
    }
    ExitCode::SUCCESS
}

fn say(report: &Report) {
    println!("{}", serde_json::to_string(report).expect("plain data"));
}

/// Set when stdin ends: the test has seen enough, or is gone.
fn end_of_stdin() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let setter = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        setter.store(true, Ordering::Relaxed);
    });
    ended
}

/// The limit that leaves a program this many descriptors, three of them open, whatever else this
/// process was given by the process that started the tests.
fn limit_for(descriptors: u64) -> u64 {
    let is_free =
        |number: &u64| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_err();
    let index = usize::try_from(descriptors.saturating_sub(3)).expect("few");
    (3..).filter(is_free).nth(index).expect("there is no last number")
}

fn exec(program: &Become) -> Result<Report, Error> {
    let limit = |resource, most: Option<u64>| {
        if most.is_some() {
            setrlimit(resource, Rlimit { current: most, maximum: most }).expect("lower limits");
        }
    };
    limit(Resource::Nofile, program.descriptors.map(limit_for));
    limit(Resource::As, program.address_space);
    let mut command = Command::new(&program.command[0]);
    if let Some(dir) = &program.service {
        listen_fds::prepare(&mut command, dir);
    }
    let error = command.args(&program.command[1..]).exec();
    panic!("{:?}: {error}", program.command);
}

fn open(at: &At) -> Result<Port, Error> {
    at.options().open(&at.port)
}

/// Attaches to a port, for a process that ends after this many seconds.
fn attach_for(at: &At, seconds: u64) -> Result<(Connection, Attached, PortFds), Error> {
    let connection = Connection::open(Some(&at.dir))?;
    let (attached, fds) = connection.attach(Attach::new(at.port.parse()?))?;
    end_after(seconds);
    Ok((connection, attached, fds))
}

/// Ends the process after this many seconds: a test that waits for the daemon must not wait for
/// ever.
fn end_after(seconds: u64) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds));
        std::process::exit(0);
    });
}

fn send_stream(send: &Send) -> Result<Report, Error> {
    let ended = end_of_stdin();
    let mut port = open(&send.at)?;
    say(&Report::Ready);
    let (mut seq, mut batch) = (0, vec![Vec::new(); send.batch.max(1)]);
    let end = send.count.unwrap_or(u64::MAX);
    while seq < end && !ended.load(Ordering::Relaxed) {
        let left = usize::try_from(end - seq).unwrap_or(usize::MAX);
        let size = batch.len().min(left);
        for frame in &mut batch[..size] {
            let turn = usize::try_from(seq % send.lens.len() as u64).unwrap_or(0);
            fill(frame, send.to, send.stream, seq, send.lens[turn]);
            seq += 1;
        }
        if size == 1 {
            port.send(&batch[0])?;
        } else {
            port.send_all(&batch[..size])?;
        }
    }
    port.drain(None)?;
    Ok(Report::Sent(seq))
}

fn receive_streams(receive: &Receive) -> Result<Report, Error> {
    /// How long nothing more has to come at the end.
    const QUIET: Duration = Duration::from_millis(50);
    let ended = end_of_stdin();
    let mut port = open(&receive.at)?;
    if let Some(station) = receive.station {
        port.send(&announcement(station))?;
        port.drain(None)?;
    }
    say(&Report::Ready);
    let (mut tally, mut frame, mut scratch) = (Tally::default(), Vec::new(), Vec::new());
    while receive.count.is_none_or(|count| tally.frames() < count) {
        if port.recv_timeout(&mut frame, Some(QUIET))? {
            let ours = tally.count(&frame, &mut scratch).is_some();
            if ours && receive.echo {
                port.send(&frame)?;
            }
        } else if ended.load(Ordering::Relaxed) {
            break;
        }
    }
    port.drain(None)?;
    Ok(Report::Received(tally))
}

fn hold(at: &At) -> Result<Report, Error> {
    let port = open(at)?;
    say(&Report::Ready);
    let _ = std::io::stdin().read(&mut [0]);
    drop(port);
    Ok(Report::Sent(0))
}

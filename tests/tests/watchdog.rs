//! A worker that stands still is noticed and named, and systemd hears of it.

use std::fs;
use std::time::Duration;

use harness::daemon::{Daemon, Setup};
use harness::frames::BROADCAST;
use harness::process::Peer;
use harness::ptrace::StoppedThread;
use harness::role::{Role, Send};
use harness::service::{ServiceManager, WATCHDOG};
use harness::wait;

/// Numbers of the daemon's threads with this name.
fn threads(daemon: &Daemon, name: &str) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("it runs");
    let is_it = |id: &u32| {
        let path = format!("/proc/{}/task/{id}/comm", daemon.pid());
        fs::read_to_string(path).is_ok_and(|text| text.trim() == name)
    };
    let ids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(is_it).collect()
}

/// A program that keeps the worker busy, and the worker's number.
fn busy_worker(daemon: &Daemon) -> (Peer, u32) {
    let (at, lens) = (daemon.at("vale0:a"), vec![60]);
    let sender = Peer::start(&Role::Send(Send {
        at,
        stream: 1,
        to: BROADCAST,
        count: None,
        lens,
        batch: 64,
    }));
    wait::until("frames pass", || daemon.stats("vale0:a").tx.frames > 0);
    let [worker] = threads(daemon, "worker0")[..] else { panic!("one worker") };
    (sender, worker)
}

#[test]
fn a_worker_that_stands_still_is_named_by_log_listing_and_doctor() {
    let daemon = Daemon::start();
    let _receiver = daemon.open("vale0:b");
    let (_sender, worker) = busy_worker(&daemon);
    // A step between two looks of the watchdog may be one in which the worker sleeps.
    wait::until("the stall is logged", || {
        drop((StoppedThread::stop(worker), std::thread::sleep(Duration::from_millis(300))));
        daemon.log().contains("worker 0 stood still for ")
    });
    let listed = daemon.uvala(&["worker", "list", "--json"]);
    let workers: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert!(workers[0]["stalls"].as_u64() > Some(0), "{workers}");
    assert!(workers[0]["last_stall"]["lasted_ms"].as_u64() >= Some(50), "{workers}");
    assert!(workers[0]["turns_ns_log2"].as_array().is_some_and(|buckets| buckets.len() == 32));
    let doctor = daemon.uvala(&["doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(text.contains("worker 0 stood still "), "{text}");
    let table = daemon.uvala(&["worker", "list"]);
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(text.starts_with("WORKER") && text.contains("worker 0 stood still "), "{text}");
}

/// systemd restarts a daemon of which nothing comes for all of `WatchdogSec=`.
#[test]
fn systemd_gets_reports_except_while_a_worker_stands_still() {
    let manager = ServiceManager::start();
    let daemon = Setup::default().service(&manager).start();
    let _receiver = daemon.open("vale0:b");
    let (_sender, worker) = busy_worker(&daemon);
    let goes_on = || {
        let before = manager.reports();
        wait::until("reports", || manager.reports() >= before + 3);
    };
    goes_on();
    let long_stalls = || daemon.log().matches("worker 0 has stood still for over a second").count();
    // As above, it may be stopped in its sleep.
    let stopped = wait::find("a long stall", || {
        let before = long_stalls();
        let stopped = StoppedThread::stop(worker);
        std::thread::sleep(2 * WATCHDOG);
        (long_stalls() > before).then_some(stopped)
    });
    let before = manager.reports();
    std::thread::sleep(2 * WATCHDOG);
    assert_eq!(manager.reports(), before, "a worker stands still");
    drop(stopped);
    goes_on();
}

/// The machine may take the worker's core away meanwhile; the watchdog says so, rightly.
#[test]
fn idle_workers_are_no_stalls() {
    let daemon = Daemon::start();
    let _port = daemon.open("vale0:a");
    std::thread::sleep(Duration::from_secs(3));
    let log = daemon.log();
    let stalls = log.lines().filter(|line| line.contains("stood still"));
    let of_its_own: Vec<_> = stalls.filter(|line| !line.contains(OTHERS_RAN)).collect();
    assert!(of_its_own.is_empty(), "{log}");
}

const OTHERS_RAN: &str = "other programs held its CPU";

//! The watchdog beside a thread that plays a worker.

use super::*;
use std::sync::mpsc::sync_channel;

use packet::PortId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switch::Heartbeat;

/// Begins a step for a port, stays in it until it is told to end, and is a watched worker.
struct Standing {
    watchdog: Watchdog,
    suspicions: Receiver<Suspicion>,
    _end: Sender<()>,
}

fn port(index: usize) -> PortId {
    PortId::new(index).expect("a port's number")
}

/// A watchdog of one worker, and its queue.
fn watchdog(watched: Watched, alarm: &Alarm) -> (Watchdog, Receiver<Suspicion>) {
    let (queue, suspicions) = sync_channel(8);
    (Watchdog::start(vec![watched], alarm, queue).expect("a thread"), suspicions)
}

impl Standing {
    fn in_step(stage: Stage, computes: bool) -> Self {
        Self::after(computes, move |heartbeat| heartbeat.beat(stage, port(9)))
    }

    fn after(computes: bool, begin: impl FnOnce(&mut Heartbeat) + Send + 'static) -> Self {
        let mut heartbeat = Heartbeat::default();
        let (reader, (ids, id)) = (heartbeat.reader(), channel());
        let (end, ended) = channel::<()>();
        std::thread::spawn(move || {
            heartbeat.enter(3);
            begin(&mut heartbeat);
            let _ = ids.send(rustix::thread::gettid());
            while computes && ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                std::hint::spin_loop();
            }
            let _ = ended.recv();
        });
        let thread = id.recv().expect("it starts");
        let watched = Watched { heartbeat: reader, thread, name: "worker 0".to_owned() };
        let (watchdog, suspicions) = watchdog(watched, &Alarm::default());
        Self { watchdog, suspicions, _end: end }
    }

    fn rings_within(&self, seconds: i64) -> bool {
        let bell = self.watchdog.bell();
        let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        let left = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut fds, Some(&left)) == Ok(1)
    }
}

#[test]
fn a_worker_that_waits_in_a_step_is_reported_once_with_its_port() {
    let standing = Standing::in_step(Stage::Send, false);
    assert!(standing.rings_within(60));
    let stalls = standing.watchdog.take();
    let [(0, Stall { beat, cause, .. })] = stalls[..] else { panic!("{stalls:?}") };
    assert_eq!((beat.stage, beat.switch), (Stage::Send, 3));
    assert_eq!(beat.port.map(PortId::index), Some(9));
    assert_eq!(cause, Cause::Blocked);
    assert!(!standing.rings_within(1));
    assert!(standing.suspicions.try_recv().is_err(), "what it waits for is that port's alone");
}

/// The watchdog suspects no port while the process reads from a disk, so this tries again.
#[test]
fn a_worker_that_waits_between_two_ports_suspects_both() {
    let end = Instant::now() + Duration::from_secs(60);
    let found = loop {
        let standing = Standing::after(false, |heartbeat| heartbeat.between(port(4), port(9)));
        assert!(standing.rings_within(60));
        match standing.suspicions.recv_timeout(Duration::from_secs(1)) {
            Ok(found) => break found,
            Err(_) => assert!(Instant::now() < end, "no suspicion"),
        }
    };
    let Suspicion { worker, beat, .. } = found;
    assert_eq!((worker, beat.stage, beat.switch), (0, Stage::Forward, 3));
    assert_eq!([beat.port, beat.other], [Some(port(9)), Some(port(4))]);
}

#[test]
fn a_worker_that_computes_between_two_ports_suspects_neither() {
    let standing = Standing::after(true, |heartbeat| heartbeat.between(port(4), port(9)));
    assert!(standing.rings_within(60));
    assert_eq!(standing.watchdog.take().len(), 1);
    assert!(standing.suspicions.try_recv().is_err());
}

#[test]
fn what_was_read_from_disks_counts_from_before_the_step() {
    let step = |steps| Beat { steps, stage: Stage::Send, switch: 0, port: None, other: None };
    let mut reads = DiskReads::new(step(0), 100);
    let seen = [(0, 105), (0, 110), (1, 120), (1, 130), (1, 130), (2, 130), (2, 140)];
    let before = seen.map(|(steps, now)| reads.before(step(steps), now));
    assert_eq!(before, [100, 100, 110, 110, 110, 130, 130]);
}

#[test]
fn long_stalls_do_not_fill_the_log() {
    const MS: Duration = Duration::from_millis(1);
    let mut heartbeat = Heartbeat::default();
    let watched = Watched {
        heartbeat: heartbeat.reader(),
        thread: rustix::thread::gettid(),
        name: "worker 0".to_owned(),
    };
    let (mut worker, begin) = (Worker::new(&watched), Instant::now());
    let lines = Budget::default();
    for stall in 0..50 {
        heartbeat.beat(Stage::Send, port(9));
        for ms in [0, 500, 1050] {
            worker.look(begin + (1100 * stall + ms) * MS, 0, &lines);
        }
    }
    assert_eq!(lines.suppressed(), 10, "50 lines in less than a minute");
}

#[test]
fn a_worker_that_computes_in_a_step_is_not_called_blocked() {
    let standing = Standing::in_step(Stage::Receive, true);
    assert!(standing.rings_within(60));
    let stalls = standing.watchdog.take();
    assert!(matches!(stalls[..], [(0, Stall { cause, .. })] if cause != Cause::Blocked));
}

#[test]
fn a_sleeping_worker_is_not_reported() {
    let mut heartbeat = Heartbeat::default();
    heartbeat.rest(Stage::Asleep);
    let watched = Watched {
        heartbeat: heartbeat.reader(),
        thread: rustix::thread::gettid(),
        name: "worker 0".to_owned(),
    };
    let (watchdog, _suspicions) = watchdog(watched, &Alarm::default());
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(watchdog.take(), []);
}

#[test]
fn a_sleeping_watchdog_is_woken_by_a_worker() {
    let mut heartbeat = Heartbeat::default();
    heartbeat.rest(Stage::Asleep);
    let watched = Watched {
        heartbeat: heartbeat.reader(),
        thread: rustix::thread::gettid(),
        name: "worker 0".to_owned(),
    };
    let alarm = Alarm::default();
    let (watchdog, _suspicions) = watchdog(watched, &alarm);
    let begin = Instant::now();
    while !alarm.0.sleeps.load(Ordering::Relaxed) {
        assert!(begin.elapsed() < Duration::from_secs(60), "all workers sleep");
        std::thread::yield_now();
    }
    heartbeat.rest(Stage::Control);
    alarm.raise();
    let mut fds = [PollFd::from_borrowed_fd(watchdog.bell(), PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1));
}

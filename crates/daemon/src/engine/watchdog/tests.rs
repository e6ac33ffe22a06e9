//! The watchdog beside a thread that plays a worker.

use super::*;
use packet::PortId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switch::Heartbeat;

/// Begins a step for a port, stays in it until it is told to end, and is a watched worker.
struct Standing {
    watchdog: Watchdog,
    _end: Sender<()>,
}

impl Standing {
    fn in_step(stage: Stage, computes: bool) -> Self {
        let mut heartbeat = Heartbeat::default();
        let (reader, (ids, id)) = (heartbeat.reader(), channel());
        let (end, ended) = channel::<()>();
        std::thread::spawn(move || {
            heartbeat.enter(3);
            heartbeat.beat(stage, PortId::new(9).expect("a port's number"));
            let _ = ids.send(rustix::thread::gettid());
            while computes && ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                std::hint::spin_loop();
            }
            let _ = ended.recv();
        });
        let thread = id.recv().expect("it starts");
        let watched = Watched { heartbeat: reader, thread };
        Self {
            watchdog: Watchdog::start(vec![watched], &Alarm::default()).expect("a thread"),
            _end: end,
        }
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
    assert_eq!(cause, judge::Cause::Blocked);
    assert!(!standing.rings_within(1));
}

#[test]
fn a_worker_that_computes_in_a_step_is_not_called_blocked() {
    let standing = Standing::in_step(Stage::Receive, true);
    assert!(standing.rings_within(60));
    let stalls = standing.watchdog.take();
    assert!(matches!(stalls[..], [(0, Stall { cause, .. })] if cause != judge::Cause::Blocked));
}

#[test]
fn a_sleeping_worker_is_not_reported() {
    let mut heartbeat = Heartbeat::default();
    heartbeat.rest(Stage::Asleep);
    let watched = Watched { heartbeat: heartbeat.reader(), thread: rustix::thread::gettid() };
    let watchdog = Watchdog::start(vec![watched], &Alarm::default()).expect("a thread");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(watchdog.take(), []);
}

#[test]
fn a_sleeping_watchdog_is_woken_by_a_worker() {
    let mut heartbeat = Heartbeat::default();
    heartbeat.rest(Stage::Asleep);
    let watched = Watched { heartbeat: heartbeat.reader(), thread: rustix::thread::gettid() };
    let alarm = Alarm::default();
    let watchdog = Watchdog::start(vec![watched], &alarm).expect("a thread");
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

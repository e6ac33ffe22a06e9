//! Functions of one thread that follow each other in a chain: one calls the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::nf::{self, Action, Frame, Generated};
use client::{Options, Port};
use harness::chain::{
    audit, await_empty, command, configuration, dropped, drops, flows, full_load, function,
    functions, receive,
};
use harness::daemon::{Daemon, Setup, open_when_free};
use harness::frames::{Tally, announcement, fill, mac};
use harness::process::Owned;
use harness::wait;

/// Frames that a ring holds at most.
const RING: u64 = 1023;
/// Frames that a function handles at once.
const BATCH: u64 = 128;
const SHORT: Option<Duration> = Some(Duration::from_millis(5));

/// Two ports beside the chain: frames go in at the first and come out at the second.
fn ends(daemon: &Daemon) -> (Port, Port) {
    let options = daemon.options().rings(1).group("nf");
    let [a, mut b] = ["valenf:a", "valenf:b"].map(|name| open_when_free(&options, name));
    b.send(&announcement(9)).unwrap();
    (a, b)
}

/// Ends the receiver when it is dropped, also by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends frames of one stream, `rounds` times as many as no ring can overflow from, while `change`
/// happens before each round; returns what came out and how many went in.
fn stream(daemon: &Daemon, rounds: u64, mut change: impl FnMut(u64)) -> (Tally, u64) {
    const ROUND: u64 = 100;
    let ((mut a, mut b), got, over) = (ends(daemon), AtomicU64::new(0), AtomicBool::new(false));
    let tally = std::thread::scope(|scope| {
        let ended = Ended(&over);
        let receiver = scope.spawn(|| receive(&mut b, &got, &over));
        let mut frame = Vec::new();
        for round in 0..rounds {
            change(round);
            for number in round * ROUND..(round + 1) * ROUND {
                fill(&mut frame, mac(9), 1, number, 60);
                a.send(&frame).unwrap();
            }
            let enough = round * ROUND;
            wait::until("frames", || got.load(Ordering::Relaxed) >= enough);
        }
        wait::until("all frames", || got.load(Ordering::Relaxed) >= rounds * ROUND);
        drop(ended);
        receiver.join().unwrap()
    });
    (tally, rounds * ROUND)
}

fn next(_: &mut Frame<'_>, _: &mut Generated) -> Action {
    Action::Next
}

/// Functions at these ports, in one thread of this process, as long as `meanwhile` goes on.
fn together(options: &Options, numbers: &[usize], meanwhile: impl FnOnce()) {
    let options = options.clone().group("nf").reconnect(true);
    let open = |n: &usize| options.clone().open(&format!("valenf:f{n}")).unwrap();
    let mut ports: Vec<_> = numbers.iter().map(open).collect();
    let mut handlers = vec![next; ports.len()];
    let step = || nf::step_all(&mut ports, &mut handlers, SHORT).unwrap();
    again_and_again(step, meanwhile);
}

/// Makes a call in a thread of its own, as long as `meanwhile` goes on.
fn again_and_again<T>(mut call: impl FnMut() -> T + Send, meanwhile: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = Ended(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                call();
            }
        });
        meanwhile();
    });
}

/// Frames that functions got by calls and passed on of these; and no buffer is where it should not
/// be.
fn called(daemon: &Daemon) -> Vec<(u64, u64)> {
    let group = audit(daemon).remove(0);
    assert!(group.members.iter().all(|m| m.wrong + m.kept == 0), "{group:?}");
    functions(daemon).iter().map(|f| (f.called_in, f.called_out)).collect()
}

#[test]
fn functions_of_one_thread_hand_frames_on_by_calls() {
    let daemon = Setup::new(&configuration(3)).start();
    together(&daemon.options(), &[0, 1, 2], || {
        let (tally, sent) = stream(&daemon, 50, |_| {});
        tally.assert_whole(1, sent);
        assert_eq!(called(&daemon), [(0, 0), (sent, sent), (sent, sent)]);
        let all = functions(&daemon);
        assert!(all.iter().all(|f| f.frames_in == sent && f.frames_out == sent), "{all:?}");
        assert_eq!(daemon.stats("valenf:f1").rx.frames, 0, "the switch has given it none");
        // They leave by the ring of the first.
        assert_eq!(daemon.stats("valenf:f0").tx.frames, sent);
        assert_eq!(daemon.stats("valenf:f2").tx.frames, 0);
    });
    wait::until("all to go", || audit(&daemon).is_empty());
}

#[test]
fn calls_that_begin_and_end_keep_frames_and_order() {
    let daemon = Setup::new(&configuration(3)).start();
    let options = daemon.options().group("nf");
    let mut ports =
        ["f2", "f0", "f1"].map(|name| options.clone().open(&format!("valenf:{name}")).unwrap());
    let mut turns = 0;
    let step = || {
        turns += 1;
        if turns / 32 % 2 == 0 {
            nf::step_all(&mut ports, &mut [next; 3], SHORT).unwrap();
        } else {
            // Each alone: the switch has the frames.
            for port in &mut ports {
                nf::step(port, &mut next, Some(Duration::ZERO)).unwrap();
            }
        }
    };
    again_and_again(step, || {
        let (tally, sent) = stream(&daemon, 400, |_| {});
        tally.assert_whole(1, sent);
        let (by_call, by_switch) = (called(&daemon)[1].0, daemon.stats("valenf:f1").rx.frames);
        assert_eq!(by_call + by_switch, sent);
        assert!(by_call > 0 && by_switch > 0, "both ways: {by_call} {by_switch}");
    });
}

#[test]
fn a_chain_that_gets_other_functions_in_one_thread_loses_no_frame() {
    let daemon = Setup::new(&configuration(3)).start();
    let orders = ["s0,s2", "s2,s0,s1", "s1,s2", "s0,s1,s2"];
    together(&daemon.options(), &[0, 1, 2], || {
        let (tally, sent) = stream(&daemon, 200, |round| {
            if round % 5 == 4 {
                let order = orders[usize::try_from(round / 5).unwrap() % orders.len()];
                let done = daemon.uvala(&["chain", "add", "valenf", "c", order]);
                assert!(done.status.success());
            }
        });
        // Those that were in it finish their way.
        tally.assert_intact();
        assert_eq!(tally.frames(), sent);
        let stale: u64 = functions(&daemon).iter().filter_map(|f| f.drops.get("stale")).sum();
        assert_eq!(stale, 0);
        assert!(called(&daemon).iter().any(|(frames, _)| *frames > 0));
    });
}

#[test]
fn what_a_called_function_drops_or_holds_is_counted() {
    let daemon = Setup::new(&configuration(2)).start();
    let options = daemon.options().group("nf");
    let mut ports =
        ["f0", "f1"].map(|name| options.clone().open(&format!("valenf:{name}")).unwrap());
    let mut number = 0;
    let pass: &mut dyn FnMut(&mut Frame<'_>) -> Action = &mut |_| Action::Next;
    let some: &mut dyn FnMut(&mut Frame<'_>) -> Action = &mut |_| {
        number += 1;
        [Action::Next, Action::Drop, Action::Hold][number % 3]
    };
    let mut handlers =
        [pass, some].map(|decide| move |frame: &mut Frame<'_>, _: &mut Generated| decide(frame));
    let (mut a, _b) = ends(&daemon);
    let mut frame = Vec::new();
    for number in 0..300 {
        fill(&mut frame, mac(9), 1, number, 60);
        a.send(&frame).unwrap();
    }
    wait::until("all frames", || {
        nf::step_all(&mut ports, &mut handlers, SHORT).unwrap();
        functions(&daemon)[1].frames_in == 300
    });
    let taken = || daemon.stats("valenf:f0").tx.frames == 200;
    wait::until("the switch to have them", taken);
    let [first, second] = &functions(&daemon)[..] else { panic!("two") };
    assert_eq!((first.frames_out, second.frames_out), (300, 100), "passed on, not dropped or held");
    assert_eq!((first.called_in, first.called_out), (0, 200), "its ring saw no others to the end");
    assert_eq!((second.called_in, second.called_out), (300, 100));
    assert_eq!((first.dropped, second.dropped), (100, 0), "the ring's port has them");
}

/// A function that counts how often it was told that nothing has come.
struct Idle<'a>(&'a AtomicU64);

impl nf::Handler for Idle<'_> {
    fn frame(&mut self, _: &mut Frame<'_>, _: &mut Generated) -> Action {
        Action::Next
    }

    fn batch(&mut self, frames: u32, _: &mut Generated) {
        self.0.fetch_add(u64::from(frames == 0), Ordering::Relaxed);
    }
}

#[test]
fn a_function_with_nothing_to_do_is_told_so_while_another_of_its_thread_is_busy() {
    let text = configuration(1) + "[switch.valenf.port.f1]\nservice = \"s1\"\n";
    let daemon = Setup::new(&text).start();
    let mut ports = [daemon.open("valenf:f0"), daemon.open("valenf:f1")];
    let told = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut handlers = told.each_ref().map(Idle);
    let step = || nf::step_all(&mut ports, &mut handlers, SHORT).unwrap();
    again_and_again(step, || {
        let (mut a, mut frame) = (daemon.open("valenf:a"), Vec::new());
        fill(&mut frame, mac(9), 1, 0, 60);
        wait::until("it to be told", || {
            (0..200).for_each(|_| a.send(&frame).unwrap());
            // Both are, when nothing comes for a while.
            let [busy, idle] = told.each_ref().map(|told| told.load(Ordering::Relaxed));
            idle > busy + 20
        });
    });
}

#[test]
fn a_function_of_another_process_may_stand_between_two_of_one_thread() {
    let daemon = Setup::new(&configuration(4)).start();
    let _others = [function(&daemon, 1), function(&daemon, 3)];
    together(&daemon.options(), &[0, 2], || {
        let (tally, sent) = stream(&daemon, 100, |_| {});
        tally.assert_whole(1, sent);
        // All rings are full, and none waits for one that waits for it.
        let (mut a, _b) = ends(&daemon);
        let mut frame = Vec::new();
        for number in 0..50_000 {
            fill(&mut frame, mac(9), 1, number, 60);
            a.send(&frame).unwrap();
        }
        await_empty(&daemon);
        let all = functions(&daemon);
        assert!(all.iter().all(|f| f.frames_in == f.frames_out), "{all:?}");
        assert!(called(&daemon).iter().all(|frames| *frames == (0, 0)));
    });
}

#[test]
fn functions_of_one_thread_go_on_after_a_restart_of_the_daemon() {
    let mut daemon = Setup::new(&configuration(2)).start();
    together(&daemon.options(), &[0, 1], || {
        for _ in 0..3 {
            let both = || functions(&daemon).iter().filter(|f| f.pid.is_some()).count() == 2;
            wait::until("both", both);
            // Until both are there again, the frames of the first go by the switch.
            wait::until("calls", || {
                let (tally, sent) = stream(&daemon, 20, |_| {});
                tally.assert_whole(1, sent);
                called(&daemon)[1].0 >= sent
            });
            daemon.restart();
        }
    });
}

#[test]
fn functions_of_two_groups_in_one_thread_are_joined_by_the_switch() {
    let daemon = Setup::new(&configuration(2)).start();
    let open = |name: &str, group| daemon.options().group(group).open(name).unwrap();
    let mut ports = [open("valenf:f0", "nf"), open("valenf:f1", "other")];
    let step = || nf::step_all(&mut ports, &mut [next, next], SHORT).unwrap();
    again_and_again(step, || {
        let (tally, sent) = stream(&daemon, 20, |_| {});
        tally.assert_whole(1, sent);
        assert_eq!(daemon.stats("valenf:f1").rx.frames, sent);
        assert!(functions(&daemon).iter().all(|f| f.called_in == 0));
    });
}

/// Three functions in one thread of a process.
fn three_in_one(daemon: &Daemon) -> Owned {
    let words = "nf run bypass valenf:f0 --with bypass valenf:f1 - --with bypass valenf:f2 -";
    let process = Owned::spawn(&mut command(daemon, words));
    let there = |f: &protocol::FunctionInfo| f.pid.is_some();
    wait::until("all three", || functions(daemon).iter().all(there));
    process
}

#[test]
fn kill_9_of_functions_that_share_a_thread_loses_what_they_held_and_no_buffer() {
    let daemon = Setup::new(&configuration(3)).start();
    let mut process = three_in_one(&daemon);
    let [mut sender, mut receiver] = full_load(&daemon);
    let kills = 5;
    for round in 0..kills {
        flows(&daemon, 500 + 777 * round);
        process.kill();
        wait::until("the ports to be free", || functions(&daemon).iter().all(|f| f.pid.is_none()));
        assert_eq!(audit(&daemon)[0].members.len(), 2, "a dead process has nothing");
        process = three_in_one(&daemon);
    }
    flows(&daemon, 1000);
    sender.finish();
    await_empty(&daemon);
    receiver.finish();
    let (sent, tally) = (sender.sent(), receiver.received());
    tally.assert_intact();
    let shed = drops(&daemon.stats("valenf:a")) + dropped(&daemon.stats("valenf:b"), "no_room");
    let first = dropped(&daemon.stats("valenf:f0"), "no_room");
    let lost = sent - tally.stream(1).frames - shed - first;
    // The ring of the first, that to the switch of the last, and a batch in between.
    assert!(lost <= kills * (2 * RING + BATCH), "{lost}");
    assert!(called(&daemon)[2].0 > 0);
    drop(process);
    wait::until("all to go", || audit(&daemon).is_empty());
}

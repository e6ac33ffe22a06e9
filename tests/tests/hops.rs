//! Direct hops: frames that go from function to function without the switch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::nf::{self, Action, Frame, Made};
use client::{Interest, Options, Port};
use harness::chain::{
    audit, await_empty, chain, command, configuration, dropped, drops, flows, full_load, function,
    functions, one_dies, open_hops, receive,
};
use harness::daemon::{Daemon, Setup};
use harness::frames::{Tally, announcement, fill, mac};
use harness::process::Owned;
use harness::{is_soak, wait};

/// Frames that a ring, and a hop, hold at most.
const RING: u64 = 1023;
/// Frames that a function handles at once.
const BATCH: u64 = 128;

fn direct(functions: usize) -> String {
    configuration(functions) + "direct = true\n"
}

/// A chain of so many functions, joined directly.
fn joined(text: &str, functions: usize) -> (Daemon, Vec<Owned>) {
    let daemon = Setup::new(text).start();
    let all = (0..functions).map(|n| function(&daemon, n)).collect();
    wait::until("hops", || open_hops(&daemon) == functions - 1);
    (daemon, all)
}

/// Two ports beside the chain: frames go in at the first and come out at the second.
fn ends(daemon: &Daemon) -> (Port, Port) {
    let open = |name: &str| daemon.options().rings(1).group("nf").open(name).unwrap();
    let (a, mut b) = (open("valenf:a"), open("valenf:b"));
    b.send(&announcement(9)).unwrap();
    (a, b)
}

/// Ends the receiver when it goes, also because of a panic.
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

#[test]
fn frames_go_from_function_to_function_without_the_switch() {
    let (daemon, all) = joined(&direct(3), 3);
    let (tally, sent) = stream(&daemon, 50, |_| {});
    tally.assert_whole(1, sent);
    let functions = functions(&daemon);
    let direct: Vec<_> = functions.iter().map(|f| (f.direct_in, f.direct_out)).collect();
    assert_eq!(direct, [(0, sent), (sent, sent), (sent, 0)]);
    assert!(functions.iter().all(|f| f.frames_in == sent && f.frames_out == sent));
    assert_eq!(daemon.stats("valenf:f1").rx.frames, 0, "the switch has given it none");
    let listed = daemon.uvala(&["chain", "list", "valenf"]);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = format!("direct in c: valenf:f0 to valenf:f1, {sent} frames, 0 wait\n");
    assert!(text.contains(&line), "{text}");
    assert!(chain(&daemon).hops.iter().all(|hop| hop.frames == sent && hop.open));
    let group = audit(&daemon).remove(0);
    assert!(group.members.iter().all(|m| m.wrong + m.kept == 0 && m.given == m.owned), "{group:?}");
    drop(all);
    wait::until("everybody to go", || audit(&daemon).is_empty());
}

#[test]
fn a_chain_that_becomes_direct_and_back_loses_no_frame_and_no_order() {
    let (daemon, _all) = joined(&direct(3), 3);
    let services = ["chain", "add", "valenf", "c", "s0,s1,s2", "--direct"];
    let (tally, sent) = stream(&daemon, 400, |round| {
        if round % 4 == 3 {
            let count = services.len() - usize::from(round % 8 == 3);
            assert!(daemon.uvala(&services[..count]).status.success());
        }
    });
    tally.assert_whole(1, sent);
    let middle = functions(&daemon).remove(1);
    let by_switch = daemon.stats("valenf:f1").rx.frames;
    assert_eq!(middle.direct_in + by_switch, sent);
    assert!(middle.direct_in > 0 && by_switch > 0, "both ways: {middle:?}");
    let group = audit(&daemon).remove(0);
    assert!(group.members.iter().all(|m| m.wrong + m.kept == 0), "{group:?}");
}

#[test]
fn a_direct_chain_that_gets_other_functions_loses_no_frame() {
    let (daemon, _all) = joined(&direct(3), 3);
    let orders = ["s0,s2", "s2,s0,s1", "s1,s2", "s0,s1,s2"];
    let (tally, sent) = stream(&daemon, 200, |round| {
        if round % 5 == 4 {
            let order = orders[usize::try_from(round / 5).unwrap() % orders.len()];
            let done = daemon.uvala(&["chain", "add", "valenf", "c", order, "--direct"]);
            assert!(done.status.success());
        }
    });
    // Those that were in it finish their way, and others may come before them.
    tally.assert_intact();
    assert_eq!(tally.frames(), sent);
    let stale: u64 = functions(&daemon).iter().filter_map(|f| f.drops.get("stale")).sum();
    assert_eq!(stale, 0);
    let group = audit(&daemon).remove(0);
    assert!(group.members.iter().all(|m| m.wrong + m.kept == 0), "{group:?}");
}

#[test]
fn a_second_instance_ends_a_hop_and_its_end_makes_it_again() {
    let text = direct(2) + "[switch.valenf.port.f2]\nservice = \"s1\"\ninstance = 1\n";
    let (daemon, all) = joined(&text, 2);
    let second = function(&daemon, 2);
    wait::until("the hop to be closed", || chain(&daemon).hops.is_empty());
    let (tally, sent) = stream(&daemon, 20, |_| {});
    tally.assert_whole(1, sent);
    drop(second);
    wait::until("the hop", || open_hops(&daemon) == 1);
    let (tally, sent) = stream(&daemon, 20, |_| {});
    tally.assert_whole(1, sent);
    let to = functions(&daemon).remove(1);
    assert_eq!((to.direct_in, to.direct_lost), (sent, 0));
    drop(all);
    wait::until("everybody to go", || audit(&daemon).is_empty());
}

/// Two functions, the second in a thread, which handles a batch so; they are joined by the switch.
fn joined_by_the_switch(group: &str, step: impl Fn(&mut Port) + Sync) {
    let daemon = Setup::new(&direct(2)).start();
    let _one = function(&daemon, 0);
    let mut port = daemon.options().group(group).open("valenf:f1").unwrap();
    let call = || step(&mut port);
    again_and_again(call, || {
        let (tally, sent) = stream(&daemon, 20, |_| {});
        tally.assert_whole(1, sent);
    });
    assert!(chain(&daemon).hops.is_empty());
    assert_eq!(daemon.stats("valenf:f1").rx.frames, 2000);
}

fn next(_: &mut Frame<'_>, _: &mut Made) -> Action {
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

/// All that went by hops, by functions; and nothing is where it should not be.
fn carried(daemon: &Daemon) -> Vec<(u64, u64)> {
    let group = audit(daemon).remove(0);
    assert!(group.members.iter().all(|m| m.wrong + m.kept == 0), "{group:?}");
    functions(daemon).iter().map(|f| (f.direct_in, f.direct_out)).collect()
}

#[test]
fn functions_of_one_thread_hand_frames_on_by_calls() {
    let daemon = Setup::new(&direct(3)).start();
    together(&daemon.options(), &[0, 1, 2], || {
        wait::until("hops", || open_hops(&daemon) == 2);
        let (tally, sent) = stream(&daemon, 50, |_| {});
        tally.assert_whole(1, sent);
        assert_eq!(carried(&daemon), [(0, sent), (sent, sent), (sent, 0)]);
        assert_eq!(daemon.stats("valenf:f1").rx.frames, 0, "the switch has given it none");
        // Whoever sends them is whose they are counted as.
        assert_eq!(daemon.stats("valenf:f2").tx.frames, sent);
        assert_eq!(daemon.stats("valenf:f0").tx.frames, 0);
    });
    wait::until("everybody to go", || audit(&daemon).is_empty());
}

#[test]
fn a_chain_that_becomes_direct_and_back_within_a_thread_keeps_frames_and_order() {
    let daemon = Setup::new(&direct(3)).start();
    let services = ["chain", "add", "valenf", "c", "s0,s1,s2", "--direct"];
    together(&daemon.options(), &[2, 0, 1], || {
        wait::until("hops", || open_hops(&daemon) == 2);
        let (tally, sent) = stream(&daemon, 400, |round| {
            if round % 4 == 3 {
                let count = services.len() - usize::from(round % 8 == 3);
                assert!(daemon.uvala(&services[..count]).status.success());
            }
        });
        tally.assert_whole(1, sent);
        let (by_hop, by_switch) = (carried(&daemon)[1].0, daemon.stats("valenf:f1").rx.frames);
        assert_eq!(by_hop + by_switch, sent);
        assert!(by_hop > 0 && by_switch > 0, "both ways");
    });
}

#[test]
fn a_function_that_is_called_may_have_shorter_rings() {
    let daemon = Setup::new(&direct(2)).start();
    let open = |name: &str, slots| daemon.options().group("nf").slots(slots).open(name).unwrap();
    let mut ports = [open("valenf:f0", 1024), open("valenf:f1", 64)];
    let step = || nf::step_all(&mut ports, &mut [next, next], SHORT).unwrap();
    again_and_again(step, || {
        wait::until("the hop", || open_hops(&daemon) == 1);
        let (tally, sent) = stream(&daemon, 50, |_| {});
        tally.assert_whole(1, sent);
    });
}

/// A function that counts how often it was told that nothing has come.
struct Idle<'a>(&'a AtomicU64);

impl nf::Handler for Idle<'_> {
    fn frame(&mut self, _: &mut Frame<'_>, _: &mut Made) -> Action {
        Action::Next
    }

    fn batch(&mut self, frames: u32, _: &mut Made) {
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
    let daemon = Setup::new(&direct(4)).start();
    let _others = [function(&daemon, 1), function(&daemon, 3)];
    together(&daemon.options(), &[0, 2], || {
        wait::until("hops", || open_hops(&daemon) == 3);
        let (tally, sent) = stream(&daemon, 100, |_| {});
        tally.assert_whole(1, sent);
        // Everybody's rings full, and nobody waits for somebody who waits for him.
        let (mut a, _b) = ends(&daemon);
        let mut frame = Vec::new();
        for number in 0..50_000 {
            fill(&mut frame, mac(9), 1, number, 60);
            a.send(&frame).unwrap();
        }
        await_empty(&daemon);
        let all = functions(&daemon);
        assert!(all.iter().all(|f| f.frames_in == f.frames_out), "{all:?}");
        carried(&daemon);
    });
}

#[test]
fn functions_of_one_thread_go_on_after_a_restart_of_the_daemon() {
    let mut daemon = Setup::new(&direct(2)).start();
    together(&daemon.options(), &[0, 1], || {
        for _ in 0..3 {
            wait::until("the hop", || open_hops(&daemon) == 1);
            let (tally, sent) = stream(&daemon, 20, |_| {});
            tally.assert_whole(1, sent);
            assert_eq!(carried(&daemon)[1].0, sent);
            daemon.restart();
        }
    });
}

const SHORT: Option<Duration> = Some(Duration::from_millis(5));

#[test]
fn functions_of_two_groups_are_joined_by_the_switch() {
    joined_by_the_switch("other", |port| {
        nf::step(port, &mut next, SHORT).unwrap();
    });
}

#[test]
fn one_that_waits_in_an_event_loop_of_its_own_is_joined_by_the_switch() {
    joined_by_the_switch("nf", |port| {
        if nf::step(port, &mut next, Some(Duration::ZERO)).unwrap() == 0 {
            port.wait(Interest::Rx, SHORT).unwrap();
        }
    });
}

#[test]
fn kill_9_of_either_end_loses_what_it_held_and_no_buffer() {
    for seed in 0..if is_soak() { 20 } else { 3 } {
        for count in [2, 3, 5] {
            let (daemon, all) = joined(&direct(count), count);
            let account = |kills: &[u64], sent, tally: &_| {
                account(&daemon, kills.iter().sum(), sent, tally);
            };
            one_dies(&daemon, all, (4, seed), account);
        }
    }
}

/// Three functions in one thread of a process.
fn three_in_one(daemon: &Daemon) -> Owned {
    let words = "nf run bypass valenf:f0 --with bypass valenf:f1 - --with bypass valenf:f2 -";
    let process = Owned::spawn(&mut command(daemon, words));
    wait::until("hops", || open_hops(daemon) == 2);
    process
}

#[test]
fn kill_9_of_functions_that_share_a_thread_loses_what_they_held_and_no_buffer() {
    let daemon = Setup::new(&direct(3)).start();
    let mut process = three_in_one(&daemon);
    let [mut sender, mut receiver] = full_load(&daemon);
    let kills = if is_soak() { 40 } else { 5 };
    for round in 0..kills {
        flows(&daemon, 500 + 777 * round);
        process.kill();
        wait::until("the ports to be free", || functions(&daemon).iter().all(|f| f.pid.is_none()));
        assert_eq!(audit(&daemon)[0].members.len(), 2, "who is dead has nothing");
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
    carried(&daemon);
    drop(process);
    wait::until("everybody to go", || audit(&daemon).is_empty());
}

/// Every frame arrived, was dropped and counted, was lost with a hop and counted, or was in the
/// hands, or the rings, of one that died.
fn account(daemon: &Daemon, kills: u64, sent: u64, tally: &Tally) {
    tally.assert_intact();
    let first = daemon.stats("valenf:a");
    assert_eq!(first.tx.frames, sent, "all that was sent was taken");
    let mut left = sent - drops(&first);
    let mut held = 0;
    for info in functions(daemon) {
        let stats = daemon.stats(&info.port.to_string());
        let full = dropped(&stats, "no_room");
        // A hop's frames are counted when they are sent.
        assert_eq!(left, info.frames_in + full, "in front of {info:?}");
        // What one sends on just before it dies it has not given back yet.
        let lost = info.frames_in - info.frames_out;
        assert!(lost + kills * BATCH >= info.direct_lost, "{info:?}");
        held += lost - lost.min(info.direct_lost);
        left = info.frames_out - (drops(&stats) - full);
    }
    assert!(held <= kills * 2 * RING, "{held} were held by those that died");
    let last = daemon.stats("valenf:b");
    assert_eq!(tally.stream(1).frames, left - dropped(&last, "no_room"), "{last:?}");
}

//! Chains that change under load: no frame is overtaken by a newer one of its flow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::nf::{self, Action, Frame, Generated};
use harness::chain::{chain, configuration, function, receive};
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::wait;
use protocol::{
    ChainAdd, ChainRequest, ChainSpec, Request, RuleAdd, RuleDel, RuleRequest, RuleSpec,
};

/// Ends all threads when it goes, also because of a panic.
struct Ended<'a>([&'a AtomicBool; 2]);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|over| over.store(true, Ordering::Relaxed));
    }
}

/// Frames of four flows go through while `change` happens, none is lost; two functions take their
/// time, so that there are always some in front of them. How many came behind newer ones of their
/// flow; `None`, if functions did not keep up, so that newer ones were let in.
fn disorder(daemon: &Daemon, change: impl FnOnce(&dyn Fn())) -> Option<u64> {
    let open = |name: &str| {
        let open = || daemon.options().rings(1).group("nf").open(name).ok();
        wait::find("the port to be free", open)
    };
    let (mut a, mut b) = (open("valenf:a"), open("valenf:b"));
    let slow = [open("valenf:f0"), open("valenf:f1")];
    b.send(&announcement(9)).unwrap();
    let early = chain(daemon).early;
    let (got, [stop, over]) = (AtomicU64::new(0), [const { AtomicBool::new(false) }; 2]);
    let tally = std::thread::scope(|scope| {
        let _ended = Ended([&stop, &over]);
        let receiver = scope.spawn(|| receive(&mut b, &got, &over));
        for mut port in slow {
            let over = &over;
            scope.spawn(move || {
                let mut next = |_: &mut Frame<'_>, _: &mut Generated| Action::Next;
                while !over.load(Ordering::Relaxed) {
                    nf::step(&mut port, &mut next, Some(Duration::from_millis(5))).unwrap();
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
        let sender = scope.spawn(|| {
            let (mut sent, mut frame) = (0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                // Fewer than make the chain shed.
                wait::spin("frames to arrive", || got.load(Ordering::Relaxed) + 256 >= sent);
                for stream in 1..=4 {
                    fill(&mut frame, mac(9), stream, sent / 4, 60);
                    a.send(&frame).unwrap();
                }
                sent += 4;
            }
            wait::until("all frames", || got.load(Ordering::Relaxed) == sent);
        });
        change(&|| {
            let more = got.load(Ordering::Relaxed) + 1000;
            wait::until("frames", || got.load(Ordering::Relaxed) >= more);
        });
        stop.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        over.store(true, Ordering::Relaxed);
        receiver.join().unwrap()
    });
    assert_eq!(tally.corrupt, 0);
    let disorder = tally.streams.values().map(|stream| stream.disorder).sum();
    eprintln!("{disorder} of {} frames came behind newer ones", tally.frames());
    (chain(daemon).early == early).then_some(disorder)
}

/// Also by a worker that never looks twice before it sleeps: while frames wait, it hears functions.
#[test]
fn no_frame_is_overtaken_when_chains_and_rules_change() {
    ["yield", "block"].into_iter().for_each(chains_and_rules_change);
}

fn chains_and_rules_change(wait: &str) {
    const ORDERS: [&[&str]; 4] = [&["s2"], &["s1", "s2"], &["s2", "s0"], &["s0", "s1", "s2"]];
    let text = format!("[workers]\nwait = \"{wait}\"\n{}", configuration(3));
    let daemon = Setup::new(&text).start();
    let _third = function(&daemon, 2);
    let switch = || "valenf".parse().unwrap();
    let call = |request| drop(daemon.call(request).unwrap());
    let order = |services: &[&str]| {
        let services = services.iter().map(|&service| service.to_owned()).collect();
        let chain = ChainSpec { name: "c".to_owned(), services, out: None };
        call(Request::Chain(ChainRequest::Add(ChainAdd { switch: switch(), chain })));
    };
    let past_all = || {
        let rule = RuleSpec { id: Some(1), action: "forward".to_owned(), ..RuleSpec::default() };
        call(Request::Rule(RuleRequest::Add(RuleAdd { switch: switch(), rules: vec![rule] })));
    };
    let through_all =
        || call(Request::Rule(RuleRequest::Del(RuleDel { switch: switch(), rules: vec![1] })));
    in_order(4, || {
        disorder(&daemon, |flow| {
            for services in ORDERS {
                for change in [&past_all as &dyn Fn(), &through_all, &|| order(services)] {
                    flow();
                    change();
                }
            }
        })
    });
}

#[test]
fn no_frame_is_overtaken_when_a_service_gets_its_second_instance() {
    let text = configuration(3) + "[switch.valenf.port.f3]\nservice = \"s1\"\ninstance = 1\n";
    in_order(3, || {
        let daemon = Setup::new(&text).start();
        let mut others = vec![function(&daemon, 2)];
        disorder(&daemon, |flow| {
            flow();
            others.push(function(&daemon, 3));
            flow();
        })
    });
}

/// Where functions keep up, no frame comes behind newer ones. So often they do, if the machine has
/// time for them at all.
fn in_order(times: usize, mut disorder: impl FnMut() -> Option<u64>) {
    let (end, mut seen) = (Instant::now() + wait::PATIENCE, 0);
    while seen < times && Instant::now() < end {
        if let Some(disorder) = disorder() {
            assert_eq!(disorder, 0);
            seen += 1;
        }
    }
    assert!(seen > 0, "functions did not keep up once");
}

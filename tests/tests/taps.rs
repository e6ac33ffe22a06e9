//! TAPs with several queues, and TAPs that another process has opened.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Command, Output};
use std::time::Duration;

use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, fill};
use harness::lab::{Lab, add, becomes, delete, give_taps, host, inside, refusal};
use harness::measure::holdings;
use harness::net::{Namespace, ip, is_there, tcp};
use harness::process::{Peer, uvala};
use harness::role::{Become, GivenTap, Report, Role};
use harness::{is_root, skip, tap, wait};
use protocol::{ErrorCode, HostIf, LinkState, PortKind, Queues};
use rustix::process::Signal;

const MEGABYTE: usize = 1 << 20;
const NOBODY: u32 = 65534;

fn queues(text: &str) -> Option<Queues> {
    Some(text.parse().unwrap())
}

#[test]
fn many_conversations_go_by_several_queues_in_order() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        let four = HostIf { queues: queues("4"), ..inside(red, "10.0.0.1/24") };
        add(daemon, "vale0:red", PortKind::Tap, four).unwrap();
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        assert_eq!(host(daemon, "vale0:red").how.unwrap(), "4 queues");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| tcp(red, blue, "10.0.0.2", 2 * MEGABYTE));
                scope.spawn(|| tcp(blue, red, "10.0.0.1", 2 * MEGABYTE));
            }
        });
        // Datagrams of a conversation stay in order, whichever queues others use.
        let there = blue.within(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        there.set_read_timeout(Some(wait::PATIENCE)).unwrap();
        let sockets: Vec<UdpSocket> =
            red.within(|| (0..8).map(|_| UdpSocket::bind("10.0.0.1:0").unwrap()).collect());
        let mut seen = [0u8; 8];
        for number in 1..=100u8 {
            for (which, socket) in (0..).zip(&sockets) {
                socket.send_to(&[which, number], there.local_addr().unwrap()).unwrap();
            }
            for _ in &sockets {
                let mut datagram = [0; 2];
                assert_eq!(there.recv(&mut datagram).unwrap(), 2);
                let [which, number] = datagram;
                assert_eq!(seen[usize::from(which)] + 1, number);
                seen[usize::from(which)] = number;
            }
        }
        delete(daemon, "vale0:red");
    });
}

/// The Ethernet address of an interface, by the kernel and by the daemon.
fn address_of(daemon: &Daemon, port: &str, ifname: &str) -> String {
    let output = Command::new("ip").args(["-o", "link", "show", ifname]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, rest) = text.split_once("link/ether ").unwrap_or_else(|| panic!("{text:?}"));
    let address = rest.split(' ').next().unwrap().to_owned();
    assert_eq!(host(daemon, port).mac.to_string(), address);
    address
}

#[test]
fn a_tap_has_its_address_again_after_the_daemon_ends_in_whatever_way() {
    const CHOSEN: &str = "02:00:00:00:00:07";
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        let mut daemon = Setup::new("confine = \"on\"\n").start();
        let named = |ifname: &str| HostIf { ifname: Some(ifname.into()), ..HostIf::default() };
        let chosen = HostIf { mac: Some(CHOSEN.parse().unwrap()), ..named("tap2") };
        for (port, tap) in [("vale0:a", named("tap0")), ("vale0:b", named("tap1"))] {
            add(&daemon, port, PortKind::Tap, tap).unwrap();
        }
        add(&daemon, "vale0:c", PortKind::Tap, chosen).unwrap();
        let all = |daemon: &Daemon| {
            let taps = [("vale0:a", "tap0"), ("vale0:b", "tap1"), ("vale0:c", "tap2")];
            taps.map(|(port, ifname)| address_of(daemon, port, ifname))
        };
        let before = all(&daemon);
        let [a, b, c] = &before;
        assert!(a != b && c == CHOSEN, "{before:?}");
        daemon.kill();
        wait::until("the TAPs to go", || !is_there("tap0"));
        daemon.restart();
        assert_eq!(all(&daemon), before);
        daemon.terminate();
        wait::until("the end", || daemon.process().has_ended());
        wait::until("the TAPs to go", || !is_there("tap0"));
        daemon.restart();
        assert_eq!(all(&daemon), before);
        let other = Daemon::start();
        delete(&daemon, "vale0:a");
        wait::until("the TAP to go", || !is_there("tap0"));
        add(&other, "vale0:a", PortKind::Tap, named("tap0")).unwrap();
        assert_ne!(&address_of(&other, "vale0:a", "tap0"), a, "of another daemon");
    });
}

#[test]
fn a_tap_of_before_keeps_its_address() {
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        ip("tuntap add dev tap0 mode tap");
        ip("link set tap0 address 02:00:00:00:00:09");
        let mut daemon = Daemon::start();
        let mine = HostIf { ifname: Some("tap0".into()), ..HostIf::default() };
        add(&daemon, "vale0:mine", PortKind::Tap, mine).unwrap();
        assert_eq!(address_of(&daemon, "vale0:mine", "tap0"), "02:00:00:00:00:09");
        daemon.kill();
        daemon.restart();
        assert_eq!(address_of(&daemon, "vale0:mine", "tap0"), "02:00:00:00:00:09");
    });
}

#[test]
fn a_namespace_that_dies_under_traffic_harms_nobody_else() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let stays = &lab.guests[0];
        let Some(dying) = Namespace::new() else { return };
        add(daemon, "vale0:dying", PortKind::Tap, inside(&dying, "10.0.0.1/24")).unwrap();
        add(daemon, "vale0:stays", PortKind::Tap, inside(stays, "10.0.0.2/24")).unwrap();
        tcp(&dying, stays, "10.0.0.2", MEGABYTE);
        let mut process = daemon.open("vale0:process");
        let socket = stays.within(|| UdpSocket::bind("10.0.0.2:0").unwrap());
        let frames = || daemon.stats("vale0:dying").rx.frames;
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let mut frame = Vec::new();
                wait::until("its end", || {
                    for number in 0..100 {
                        fill(&mut frame, BROADCAST, 1, number, 1400);
                        process.send(&frame).unwrap();
                        let _ = socket.send_to(&[7; 1400], "10.0.0.1:9");
                    }
                    host(daemon, "vale0:dying").state == LinkState::Gone
                });
            });
            let before = frames();
            wait::until("traffic", || frames() > before + 1000);
            dying.die();
            flood.join().unwrap();
        });
        delete(daemon, "vale0:dying");
        let address = Some("10.0.0.3/24".parse().unwrap());
        add(daemon, "vale0:lan", PortKind::Tap, HostIf { address, ..HostIf::default() }).unwrap();
        tcp(&lab.home, stays, "10.0.0.2", MEGABYTE);
        delete(daemon, "vale0:lan");
        wait::until("it to go", || !is_there("lan"));
        delete(daemon, "vale0:stays");
    });
}

/// The queue by which each source port talks to each destination: the kernel answers by the queue
/// that the daemon used last, and the test reads the answers while the daemon is stopped.
fn queues_of(
    daemon: &Daemon,
    kept: &[OwnedFd],
    host: &UdpSocket,
    guests: &[UdpSocket],
) -> BTreeMap<u16, usize> {
    const HEADER: usize = 12;
    const TO: std::ops::Range<usize> = HEADER + 36..HEADER + 38;
    let all: BTreeSet<SocketAddr> =
        guests.iter().map(|guest| guest.local_addr().unwrap()).collect();
    let mut heard = BTreeSet::new();
    wait::until("each of them", || {
        for guest in guests {
            guest.send_to(b"?", host.local_addr().unwrap()).unwrap();
        }
        while let Ok((_, from)) = host.recv_from(&mut [0; 9]) {
            heard.insert(from);
        }
        heard == all
    });
    daemon.signal(Signal::STOP);
    // One that is stopped while it reads has read.
    wait::until("the daemon to stop", || stands(daemon.pid()));
    let mut found = BTreeMap::new();
    for guest in &all {
        host.send_to(b"!", guest).unwrap();
    }
    for (queue, kept) in kept.iter().enumerate() {
        let mut frame = [0; 2000];
        while rustix::io::read(kept, &mut frame[..]).is_ok() {
            if frame[HEADER + 12..HEADER + 14] == [8, 0] {
                let port = u16::from_be_bytes(frame[TO].try_into().unwrap());
                assert_eq!(found.insert(port, queue), None, "by one queue, once");
            }
        }
    }
    daemon.signal(Signal::CONT);
    found
}

/// Whether all threads of a process are stopped.
fn stands(pid: u32) -> bool {
    let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.all(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.starts_with(" T")
    })
}

#[test]
fn conversations_spread_over_the_queues_and_keep_theirs() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let blue = &lab.guests[0];
        let given = tap::make_queues("lan0", 4);
        let kept: Vec<OwnedFd> = given.iter().map(|fd| fd.try_clone().unwrap()).collect();
        ip("link set lan0 up");
        ip("addr add 10.0.0.1/24 dev lan0");
        give_taps(daemon, "vale0:lan", &given).unwrap();
        drop(given);
        assert_eq!(host(daemon, "vale0:lan").how.unwrap(), "4 queues");
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        let host = UdpSocket::bind("10.0.0.1:0").unwrap();
        host.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let guests: Vec<UdpSocket> =
            blue.within(|| (0..64).map(|_| UdpSocket::bind("10.0.0.2:0").unwrap()).collect());
        let queues = queues_of(daemon, &kept, &host, &guests);
        assert_eq!(queues.len(), guests.len());
        let used: BTreeSet<usize> = queues.values().copied().collect();
        assert_eq!(used, (0..4).collect(), "{queues:?}");
        assert_eq!(queues_of(daemon, &kept, &host, &guests), queues, "each keeps its queue");
    });
}

#[test]
fn queues_that_cannot_be_are_refused_and_an_interface_that_goes_is_noticed() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        let with = |ifname: &str, text| HostIf {
            ifname: Some(ifname.to_owned()),
            queues: queues(text),
            ..HostIf::default()
        };
        let refused = |wanted| refusal(add(daemon, "vale0:x", PortKind::Tap, wanted));
        for bad in ["0", "17"] {
            let (code, text) = refused(with("x", bad));
            assert!(code == ErrorCode::BadRequest && text.contains("1 to 16"), "{text}");
        }
        let (code, text) = refused(with("x", "0-3"));
        assert!(code == ErrorCode::BadRequest && text.contains("a number"), "{text}");
        ip("tuntap add dev one mode tap");
        let (code, text) = refused(with("one", "2"));
        assert!(code == ErrorCode::BadRequest && text.contains("multi_queue"), "{text}");
        // One that was made with several has as many as are asked for, and stays.
        ip("tuntap add dev many mode tap multi_queue");
        add(daemon, "vale0:x", PortKind::Tap, with("many", "3")).unwrap();
        assert_eq!(host(daemon, "vale0:x").how.unwrap(), "3 queues");
        ip("link set many up");
        becomes(daemon, "vale0:x", LinkState::Up);
        ip("link del many");
        becomes(daemon, "vale0:x", LinkState::Gone);
        ip("tuntap add dev many mode tap multi_queue");
        wait::until("it is taken again", || host(daemon, "vale0:x").state != LinkState::Gone);
    });
}

/// `uvala port add vale0:lan --kind tap --fd 0` by the user `nobody`, with this standard input.
fn hand_over(daemon: &Daemon, fd: OwnedFd) -> Output {
    let dir = daemon.dir();
    let words =
        ["port", "add", "vale0:lan", "--kind", "tap", "--fd", "0", "--dir", dir.to_str().unwrap()];
    uvala(Become::default(), &words, Some(NOBODY)).stdin(fd).output().unwrap()
}

/// The kernel takes a file out of all epoll sets where the last descriptor is closed, and waits for
/// the lock of each. The program that gave the TAP may keep such a lock.
#[test]
fn a_giver_who_keeps_a_tap_from_being_closed_holds_up_nobody() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        let attack = GivenTap { at: daemon.at("vale0:given"), seconds: 60 };
        let mut giver = Peer::launch(&Role::GivenTap(attack), None);
        assert_eq!(giver.report(), Report::Ready);
        let pid = daemon.pid();
        let before = holdings(pid).descriptors;
        delete(daemon, "vale0:given");
        // Whatever the same user has made or closed by now goes by the thread that is held up.
        for own in ["own0", "own1", "own2", "own3", "own4"] {
            let own = HostIf { ifname: Some(own.to_owned()), ..HostIf::default() };
            add(daemon, "vale0:own", PortKind::Tap, own).unwrap();
            delete(daemon, "vale0:own");
        }
        for port in ["vale0:a", "vale0:b"] {
            drop(daemon.open(port));
        }
        assert!(is_there("given0") && holdings(pid).descriptors >= before, "it is held up");
        giver.process().kill();
        wait::until("the TAP to go", || !is_there("given0"));
    });
}

fn nobody(story: impl FnOnce(&Daemon, &Namespace) + Send) {
    if !is_root() {
        return skip("a daemon of another user needs root");
    }
    let Some(home) = Namespace::new() else { return };
    home.within(|| story(&Setup::default().user(NOBODY).start(), &home));
}

#[test]
fn an_ordinary_users_daemon_takes_a_tap_that_was_opened_for_it() {
    nobody(|daemon, home| {
        let own = HostIf { ifname: Some("own".to_owned()), ..HostIf::default() };
        let (code, _) = refusal(add(daemon, "vale0:own", PortKind::Tap, own));
        assert_eq!(code, ErrorCode::Permission, "it has no right of its own");
        let given = tap::make("lan0", 10, false);
        ip("link set lan0 up mtu 4000");
        ip("addr add 10.0.0.1/24 dev lan0");
        let output = hand_over(daemon, given);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        becomes(daemon, "vale0:lan", LinkState::Up);
        let info = host(daemon, "vale0:lan");
        assert_eq!((info.ifname.as_str(), info.mtu), ("lan0", 4000));
        // The other one is elsewhere: of what is there we know nothing but what comes.
        let Some(red) = Namespace::new() else { return };
        let far = red.within(|| tap::make("eth0", 10, false));
        red.ip("link set eth0 up mtu 4000");
        red.ip("addr add 10.0.0.2/24 dev eth0");
        let bare = HostIf { fds: 1, ..HostIf::default() };
        let (_, text) = refusal(add(daemon, "vale0:red", PortKind::Tap, bare));
        assert!(text.contains("--fd"), "{text}");
        give_taps(daemon, "vale0:red", &[far]).unwrap();
        tcp(home, &red, "10.0.0.2", 4 * MEGABYTE);
        tcp(&red, home, "10.0.0.1", 4 * MEGABYTE);
        // The TAP goes with its port: no other process has it open.
        delete(daemon, "vale0:lan");
        wait::until("the TAP to go", || !is_there("lan0"));
        red.ip("link del eth0");
        becomes(daemon, "vale0:red", LinkState::Gone);
    });
}

#[test]
fn a_giver_who_keeps_its_descriptor_holds_up_nobody() {
    nobody(|daemon, home| {
        let given = tap::make("lan0", 10, false);
        let kept = given.try_clone().unwrap();
        ip("link set lan0 up");
        ip("addr add 10.0.0.1/24 dev lan0");
        assert!(hand_over(daemon, given).status.success());
        becomes(daemon, "vale0:lan", LinkState::Up);
        // As a program does that restores what it has inherited.
        rustix::fs::fcntl_setfl(&kept, rustix::fs::OFlags::RDWR).unwrap();
        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        socket.set_broadcast(true).unwrap();
        let said = |frames: u64| {
            socket.send_to(b"who is there?", "10.0.0.255:9").unwrap();
            daemon.stats("vale0:lan").tx.frames >= frames
        };
        wait::until("frames, with the daemon answering", || said(5));
        home.ip("link del lan0");
        becomes(daemon, "vale0:lan", LinkState::Gone);
        wait::until("the workers to rest", || rests(daemon.pid()));
        delete(daemon, "vale0:lan");
        wait::until("the workers to rest without it", || rests(daemon.pid()));
        drop(kept);
    });
}

/// What a giver can still do with its descriptor costs its own port.
#[test]
fn a_giver_who_turns_hostile_harms_its_own_port_only() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        add(daemon, "vale0:red", PortKind::Tap, inside(red, "10.0.0.1/24")).unwrap();
        add(daemon, "vale0:blue", PortKind::Tap, inside(blue, "10.0.0.2/24")).unwrap();
        let mut process = daemon.open("vale0:process");
        for (name, trick) in tap::TRICKS {
            eprintln!("{name}");
            let given = tap::make_queues("bad0", 2);
            let kept: Vec<OwnedFd> = given.iter().map(|fd| fd.try_clone().unwrap()).collect();
            ip("link set bad0 up");
            ip("addr add 10.9.0.1/24 dev bad0");
            give_taps(daemon, "vale0:bad", &given).unwrap();
            drop(given);
            becomes(daemon, "vale0:bad", LinkState::Up);
            let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
            socket.set_broadcast(true).unwrap();
            let both_ways = || {
                for length in [1, 100, 1400] {
                    let _ = socket.send_to(&vec![7; length], "10.9.0.255:9");
                }
            };
            both_ways();
            kept.iter().for_each(trick);
            for length in [14, 60, 1514, 1514, 60] {
                let mut frame = Vec::new();
                fill(&mut frame, BROADCAST, 1, 0, length.max(60));
                frame.truncate(length);
                process.send(&frame).unwrap();
                both_ways();
            }
            tcp(red, blue, "10.0.0.2", MEGABYTE / 4);
            drop(socket);
            ip("link set bad0 down");
            wait::until("the workers to rest", || rests(daemon.pid()));
            delete(daemon, "vale0:bad");
            drop(kept);
            wait::until("it to go", || !is_there("bad0"));
        }
        tcp(blue, red, "10.0.0.1", MEGABYTE / 4);
    });
}

/// Whether all threads of a process sleep, at every look.
fn rests(pid: u32) -> bool {
    let sleeps = |task: std::path::PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.starts_with(" S")
    };
    (0..50).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.all(|task| sleeps(task.unwrap().path()))
    })
}

#[test]
fn who_may_not_give_descriptors_hears_why() {
    if !is_root() {
        return skip("programs of other users need root");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    let give = |user| {
        let dir = daemon.dir();
        let words = ["port", "add", "vale0:x", "--kind", "tap", "--fd", "0", "--dir"];
        let words: Vec<&str> = words.into_iter().chain(dir.to_str()).collect();
        let file = std::fs::File::open("/dev/null").unwrap();
        let output = uvala(Become::default(), &words, user).stdin(file).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = give(Some(NOBODY));
    assert!(text.contains("root"), "{text}");
    // Root may, with its first call already.
    assert!(give(None).contains("not an open TAP"));
    let null = std::fs::File::open("/dev/null").unwrap();
    let (_, text) = refusal(give_taps(&daemon, "vale0:x", &[null.into()]));
    assert!(text.contains("not an open TAP"), "{text}");
}

/// Every frame of it would be four bytes off.
#[test]
fn a_tap_with_information_in_front_of_frames_is_not_taken() {
    nobody(|daemon, _| {
        let Some(red) = Namespace::new() else { return };
        let elsewhere = red.within(|| tap::make_with_information("eth0"));
        for given in [tap::make_with_information("lan0"), elsewhere] {
            let (code, text) = refusal(give_taps(daemon, "vale0:lan", &[given]));
            assert_eq!(code, ErrorCode::BadRequest, "{text}");
            assert!(text.contains("IFF_NO_PI and IFF_VNET_HDR"), "{text}");
        }
        assert!(daemon.ports().is_empty());
    });
}

#[test]
fn what_is_no_tap_is_not_taken() {
    nobody(|daemon, _| {
        let file = |path: &str| {
            let mut options = std::fs::OpenOptions::new();
            OwnedFd::from(options.read(true).write(true).open(path).unwrap())
        };
        for path in ["/dev/null", "/dev/net/tun"] {
            let output = hand_over(daemon, file(path));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains("not an open TAP"), "{path}: {text}");
        }
        let words = ["port", "add", "vale0:lan", "--kind", "tap", "--fd", "77"];
        let output = daemon.uvala(&words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("--fd 77: no such descriptor"), "{text}");
        let words = ["port", "add", "vale0:lan", "--kind", "tap", "--fd", "0", "--mtu", "1500"];
        let output = daemon.uvala(&words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("leave them out"), "{text}");
        assert!(daemon.ports().is_empty());
    });
}

//! Interfaces that outlive the daemon, with their addresses and routes.

use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::control::Connection;
use harness::daemon::{Daemon, Setup};
use harness::lab::{Lab, add, becomes, delete, give_taps, host};
use harness::net::{Namespace, ip, is_there, tcp};
use harness::process::{Scratch, USER};
use harness::service::ServiceManager;
use harness::{is_root, tap, unprivileged, wait};
use protocol::{
    HandedOver, HostIf, LinkState, PageFrom, PortKind, Reply, Request, SessionRequest, exit,
};

const KILOBYTES: usize = 64 << 10;

fn done(daemon: &Daemon, words: &str) {
    let args: Vec<&str> = words.split(' ').collect();
    let output = daemon.uvala(&args);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What `ip` shows here.
fn shown(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().expect("iproute2");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Number, name, addresses and routes of the interfaces in a namespace.
fn network(of: &Namespace) -> String {
    // An address that is settled stays, and the time that it took does not matter.
    let words = ["-o link show", "-o addr show", "route show", "-6 route show"];
    let all = of.within(|| words.map(shown).concat());
    all.replace("tentative ", "")
}

/// Waits until a service manager keeps this many descriptors.
fn keeps(manager: &ServiceManager, count: usize) {
    wait::until("descriptors to be kept", || manager.names().len() == count);
}

fn end(daemon: &mut Daemon, by_kill: bool) {
    match by_kill {
        true => daemon.kill(),
        false => {
            daemon.terminate();
            wait::until("its end", || daemon.process().has_ended());
        }
    }
}

fn named(ifname: &str) -> HostIf {
    HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() }
}

#[test]
fn containers_keep_their_network_when_the_daemon_is_killed_or_ends() {
    let Some(lab) = Lab::new(2) else { return };
    lab.home.within(|| {
        let manager = ServiceManager::start();
        let mut daemon = Setup::new("confine = \"on\"\n").service(&manager).start();
        let [red, blue] = &lab.guests[..] else { panic!() };
        let gateway = "--address 10.0.0.1/24 --address fd00::1/64 --gateway 10.0.0.254";
        done(&daemon, &format!("ns attach {} vale0:red {gateway}", red.name()));
        // A path means the same.
        let path = format!("/proc/{}/ns/net", blue.name());
        done(&daemon, &format!("ns attach {path} vale0:blue --address 10.0.0.2/24"));
        red.ip("addr add 10.9.0.1/24 dev eth0");
        red.ip("route add 10.8.0.0/16 via 10.0.0.2");
        red.ip("link set eth0 mtu 1400");
        tcp(red, blue, "10.0.0.2", KILOBYTES);
        keeps(&manager, 2);
        let before = [network(red), network(blue)];
        assert!(before[0].contains("10.9.0.1/24") && before[0].contains("10.8.0.0/16 via"));
        for by_kill in [true, false, true] {
            end(&mut daemon, by_kill);
            assert_eq!([network(red), network(blue)], before, "while there is no daemon");
            daemon.restart();
            assert_eq!([network(red), network(blue)], before);
            for port in ["vale0:red", "vale0:blue"] {
                assert_eq!(host(&daemon, port).state, LinkState::Up, "{}", daemon.log());
            }
            tcp(red, blue, "10.0.0.2", KILOBYTES);
            tcp(blue, red, "10.0.0.1", KILOBYTES);
            keeps(&manager, 2);
        }
        assert_eq!(host(&daemon, "vale0:red").mtu, 1400);
        // A port that is deleted takes its interface along, though a copy was kept.
        done(&daemon, "ns detach vale0:red");
        assert!(!network(red).contains("eth0"), "gone when the command returns");
        keeps(&manager, 1);
        done(&daemon, &format!("ns attach {} vale0:red --address 10.0.0.1/24", red.name()));
        tcp(red, blue, "10.0.0.2", KILOBYTES);
        keeps(&manager, 2);
        // The service is stopped for good.
        end(&mut daemon, false);
        manager.clear();
        wait::until("all to go", || !network(red).contains("eth0"));
        daemon.restart();
        assert_eq!(
            daemon.ports(),
            [""; 0],
            "no namespace is looked for by the number of a process"
        );
    });
}

#[test]
fn an_interface_that_no_port_wants_as_it_is_goes() {
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        let manager = ServiceManager::start();
        let port = |name: &str, more: &str| {
            format!("[switch.vale0.port.{name}]\nkind = \"tap\"\n{more}\n")
        };
        let all = [port("a", "mtu = 1400"), port("b", ""), port("c", ""), port("e", "")];
        let mut daemon = Setup::new(&all.concat()).service(&manager).start();
        done(&daemon, "port add vale0:d --kind tap --address 10.0.0.1/24");
        keeps(&manager, 5);
        let index = |name: &str| {
            shown(&format!("-o link show {name}")).split(':').next().map(str::to_owned)
        };
        let before = ["b", "d"].map(index);
        let (old, mtu) = (index("a"), |name| shown(&format!("link show {name}")));
        daemon.kill();
        let other = port("e", "").replace("tap", "packet");
        let edited = [port("a", "mtu = 1300"), port("b", "isolated = true"), other];
        daemon.reconfigure(&edited.concat());
        daemon.restart();
        // A setting of the port changes nothing of its interface.
        assert_eq!(["b", "d"].map(index), before, "{}", daemon.log());
        assert!(shown("addr show d").contains("10.0.0.1/24"));
        wait::until("another one", || index("a") != old && mtu("a").contains("mtu 1300"));
        wait::until("the others to go", || !is_there("c") && !is_there("e"));
        for name in ["a", "b", "d"] {
            assert_eq!(host(&daemon, &format!("vale0:{name}")).state, LinkState::Up);
        }
        keeps(&manager, 3);
    });
}

#[test]
fn queues_and_interfaces_that_a_program_opened_are_kept_as_well() {
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        let manager = ServiceManager::start();
        let mut daemon = Setup::default().service(&manager).start();
        done(&daemon, "port add vale0:many --kind tap --queues 4");
        give_taps(&daemon, "vale0:given", &[tap::make("given0", 12, true)]).unwrap();
        ip("link set given0 up");
        keeps(&manager, 5);
        let links = || shown("-o link show");
        wait::until("both to be up", || links().matches("LOWER_UP").count() >= 2);
        let before = links();
        daemon.kill();
        daemon.restart();
        assert_eq!(links(), before);
        for port in ["vale0:many", "vale0:given"] {
            assert_eq!(host(&daemon, port).state, LinkState::Up, "{}", daemon.log());
        }
        let how = host(&daemon, "vale0:many").how.unwrap_or_default();
        assert!(how.starts_with("4 queues"), "{how}");
        keeps(&manager, 5);
        delete(&daemon, "vale0:given");
        wait::until("the TAP to go", || !is_there("given0"));
        keeps(&manager, 4);
    });
}

#[test]
fn an_interface_that_goes_meanwhile_is_made_anew_or_missed() {
    let Some(mut lab) = Lab::new(2) else { return };
    let (red, blue) = (lab.guests.remove(0), lab.guests.remove(0));
    lab.home.within(|| {
        let manager = ServiceManager::start();
        let mut daemon = Setup::default().service(&manager).start();
        for (guest, port) in [(&red, "red"), (&blue, "blue")] {
            done(&daemon, &format!("ns attach {} vale0:{port}", guest.name()));
        }
        done(&daemon, "port add vale0:lan --kind tap");
        keeps(&manager, 3);
        let before = network(&blue);
        daemon.kill();
        red.die();
        ip("link del lan");
        daemon.restart();
        assert_eq!(network(&blue), before);
        wait::until("a new one", || host(&daemon, "vale0:lan").state == LinkState::Up);
        assert_eq!(host(&daemon, "vale0:blue").state, LinkState::Up);
        // systemd itself closes what has gone; until then, the port says so.
        becomes(&daemon, "vale0:red", LinkState::Gone);
        done(&daemon, "ns detach vale0:red");
    });
}

#[test]
fn what_is_kept_and_is_no_such_interface_harms_nothing() {
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        let null = || OwnedFd::from(std::fs::File::open("/dev/null").expect("there is one"));
        let unattached = || OwnedFd::from(std::fs::File::open("/dev/net/tun").expect("root may"));
        let manager = ServiceManager::start();
        let mut daemon = Setup::default().service(&manager).start();
        add(&daemon, "vale0:lan", PortKind::Tap, named("lan")).unwrap();
        let makes: [&dyn Fn() -> OwnedFd; 2] = [&null, &unattached];
        for make in makes {
            keeps(&manager, 1);
            daemon.kill();
            manager.replace_all(make);
            manager.add("another", make());
            manager.add("tap/vale9/x/0", make());
            daemon.restart();
            wait::until("a new one", || host(&daemon, "vale0:lan").state == LinkState::Up);
            wait::until("it to be kept", || {
                manager.names().iter().filter(|name| name.starts_with("tap/")).count() == 1
            });
            manager.clear();
            daemon.kill();
            daemon.restart();
        }
        // One queue more than the port has.
        keeps(&manager, 1);
        daemon.kill();
        let name = manager.names().remove(0);
        manager.add(&name, null());
        daemon.restart();
        wait::until("a new one", || host(&daemon, "vale0:lan").state == LinkState::Up);
        keeps(&manager, 1);
    });
}

/// Datagrams from one namespace to another, a thousand in a second, while `story` happens.
/// Returns how many were sent, how many arrived, and the longest time between two that arrived.
fn with_traffic(from: &Namespace, to: (&Namespace, &str), story: impl FnOnce()) -> String {
    const PACE: Duration = Duration::from_millis(1);
    const REST: Duration = Duration::from_millis(300);
    let receiver = to.0.within(|| UdpSocket::bind((to.1, 0)).expect("an address"));
    receiver.set_read_timeout(Some(REST)).expect("ours");
    let sender = from.within(|| UdpSocket::bind("0.0.0.0:0").expect("any port"));
    sender.connect(receiver.local_addr().expect("bound")).expect("a route");
    let (over, sent, arrived) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                sent.fetch_add(u64::from(sender.send(&[7; 100]).is_ok()), Ordering::Relaxed);
                std::thread::sleep(PACE);
            }
        });
        let gaps = scope.spawn(|| {
            let (mut last, mut longest) = (None, Duration::ZERO);
            loop {
                let got = receiver.recv(&mut [0; 200]).is_ok();
                let now = Instant::now();
                match got {
                    true => {
                        arrived.fetch_add(1, Ordering::Relaxed);
                        longest = longest.max(last.map_or(Duration::ZERO, |last| now - last));
                        last = Some(now);
                    }
                    false if over.load(Ordering::Relaxed) => return longest,
                    false => {}
                }
            }
        });
        let flows = || {
            let before = arrived.load(Ordering::Relaxed);
            wait::until("datagrams", || arrived.load(Ordering::Relaxed) > before + 100);
        };
        flows();
        story();
        flows();
        over.store(true, Ordering::Relaxed);
        longest = gaps.join().expect("no panic");
    });
    let (sent, arrived) = (sent.into_inner(), arrived.into_inner());
    format!(
        "{sent} datagrams sent, {} lost, longest pause {longest:?}",
        sent.saturating_sub(arrived)
    )
}

#[test]
fn a_daemon_that_is_replaced_hands_its_interfaces_over() {
    let Some(lab) = Lab::new(2) else { return };
    lab.home.within(|| {
        let mut daemon = Setup::new("confine = \"on\"\n").start();
        let [red, blue] = &lab.guests[..] else { panic!() };
        done(&daemon, &format!("ns attach {} vale0:red --address 10.0.0.1/24", red.name()));
        done(&daemon, &format!("ns attach {} vale0:blue --address 10.0.0.2/24", blue.name()));
        done(&daemon, "port add vale0:many --kind tap --queues 16");
        red.ip("route add 10.8.0.0/16 via 10.0.0.2");
        tcp(red, blue, "10.0.0.2", KILOBYTES);
        let before = [network(red), network(blue), shown("-o link show many")];
        let old = daemon.pid();
        let figures = with_traffic(red, (blue, "10.0.0.2"), || daemon.replace());
        println!("replaced: {figures}");
        assert_ne!(daemon.pid(), old);
        assert_eq!([network(red), network(blue), shown("-o link show many")], before);
        tcp(blue, red, "10.0.0.1", KILOBYTES);
        // Without a service manager, a killed daemon takes them along.
        daemon.kill();
        wait::until("all to go", || !network(red).contains("eth0"));
        daemon.restart();
        assert_eq!(daemon.ports(), ["vale0:many"]);
        assert!(daemon.log().contains("podman network reload"), "{}", daemon.log());
    });
}

#[test]
fn a_service_that_is_replaced_or_killed_goes_on() {
    let Some(lab) = Lab::new(2) else { return };
    lab.home.within(|| {
        let manager = ServiceManager::start();
        let mut daemon = Setup::default().service(&manager).start();
        let [red, blue] = &lab.guests[..] else { panic!() };
        done(&daemon, &format!("ns attach {} vale0:red --address 10.0.0.1/24", red.name()));
        done(&daemon, &format!("ns attach {} vale0:blue --address 10.0.0.2/24", blue.name()));
        keeps(&manager, 2);
        let before = [network(red), network(blue)];
        let figures = with_traffic(red, (blue, "10.0.0.2"), || {
            daemon.kill();
            daemon.restart();
        });
        println!("killed, and started at once: {figures}");
        daemon.replace();
        keeps(&manager, 2);
        daemon.kill();
        daemon.restart();
        assert_eq!([network(red), network(blue)], before);
        tcp(red, blue, "10.0.0.2", KILOBYTES);
        daemon.replace();
        done(&daemon, "ns detach vale0:red");
        assert!(!network(red).contains("eth0"), "the daemon has no other copy");
    });
}

#[test]
fn a_next_daemon_that_ends_on_its_way_changes_nothing() {
    let Some(lab) = Lab::new(2) else { return };
    lab.home.within(|| {
        let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
        let [red, blue] = &lab.guests[..] else { panic!() };
        done(&daemon, &format!("ns attach {} vale0:red --address 10.0.0.1/24", red.name()));
        done(&daemon, &format!("ns attach {} vale0:blue --address 10.0.0.2/24", blue.name()));
        // One that has its copies.
        let connection = Connection::open(Some(&daemon.dir())).unwrap();
        let (mut names, mut from, mut copies) = (Vec::new(), None, Vec::new());
        loop {
            let call = Request::Session(SessionRequest::HandOver(PageFrom { from }));
            let (reply, fds) = connection.call_with_fds(call).unwrap();
            let Reply::HandedOver(HandedOver { name, next }) = reply else { panic!("{reply:?}") };
            names.extend(name.clone());
            copies.extend(fds);
            from = next;
            if name.is_none() {
                break;
            }
        }
        assert_eq!((names.len(), copies.len()), (2, 2), "{names:?}");
        tcp(red, blue, "10.0.0.2", KILOBYTES);
        drop((connection, copies));
        // One that cannot start.
        for args in [["--cpu", "9999"], ["--log-file", "/no/such/place"]] {
            let output = daemon.uvala(&[&["daemon", "--replace"][..], &args].concat());
            assert!(!output.status.success(), "{args:?}");
            tcp(red, blue, "10.0.0.2", KILOBYTES);
        }
        let broken = daemon.dir().join("state/vale9.json");
        std::fs::write(&broken, "{").unwrap();
        let output = daemon.uvala(&["daemon", "--replace"]);
        assert_eq!(output.status.code(), Some(exit::BAD_CONFIG.into()), "{output:?}");
        std::fs::remove_file(broken).unwrap();
        tcp(red, blue, "10.0.0.2", KILOBYTES);
        // One of another user.
        if is_root() {
            let output = daemon.uvala_as(&["daemon", "--replace"], Some(USER));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains("only a daemon of root"), "{text}");
            tcp(red, blue, "10.0.0.2", KILOBYTES);
        }
        // Without the word, a second one is refused, and says how.
        let output = daemon.uvala(&["daemon"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(exit::EXISTS.into()), "{text}");
        assert!(text.contains("--replace"), "{text}");
        // None runs: it is a start as any other.
        let place = Scratch::new("replaced");
        let dir = place.path().join("run");
        let mut first = harness::daemon::launch(
            &dir,
            &["--replace"],
            harness::role::Become::default(),
            std::process::Stdio::null(),
        );
        wait::until("an answer", || {
            Connection::open(Some(&dir)).is_ok_and(|daemon| daemon.hello("test").is_ok())
        });
        first.kill();
    });
}

/// What is typed there: the namespace has a route that no setting knows.
const UPGRADE: &str = "
    $within ip route add 10.8.0.0/16 via 10.0.0.254
    before=$($within ip -o link; $within ip route; ip -o link show host)
    old=$(cat $UVALA_DIR/uvala.lock)
    $UVALA upgrade > /dev/null
    test $old != $(cat $UVALA_DIR/uvala.lock)
    test \"$before\" = \"$($within ip -o link; $within ip route; ip -o link show host)\"
";

#[test]
fn an_ordinary_users_daemon_is_upgraded_as_well() {
    unprivileged::run(UPGRADE);
}

//! Interfaces that go, come and change: what is said of them, and what is heard where much happens.

use std::io::Write;
use std::process::{Command, Stdio};

use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::lab::{Lab, add, becomes, delete, host, refusal, veth};
use harness::net::{Namespace, ip};
use harness::process::USER;
use harness::{is_root, skip, wait};
use protocol::{HostIf, LinkState, PortKind};
use rustix::process::Signal;

fn said(daemon: &Daemon, words: &[&str]) -> String {
    String::from_utf8(daemon.uvala(words).stdout).unwrap()
}

fn inside(ifname: &str, guest: &Namespace) -> HostIf {
    let (ifname, netns) = (Some(ifname.to_owned()), Some(guest.name()));
    HostIf { ifname, netns, ..HostIf::default() }
}

#[test]
fn an_interface_that_carries_nothing_says_why_and_what_helps_wherever_one_looks() {
    let Some(mut lab) = Lab::new(2) else { return };
    let dying = lab.guests.remove(0);
    lab.home.within(|| {
        let red = &lab.guests[0];
        for name in ["idle", "bare", "left"] {
            veth(red, name, "10.0.0.1/24", "");
            red.ip(&format!("link set eth0 name {name}"));
        }
        let port = |name: &str| {
            format!("[switch.vale0.port.{name}]\nkind = \"packet\"\nifname = \"{name}\"\n")
        };
        let all = ["idle", "bare", "left", "missing"].map(port).concat();
        let daemon = Setup::new(&format!("helper = \"/no/such/helper\"\n{all}")).start();
        add(&daemon, "vale0:far", PortKind::Tap, inside("far", &dying)).unwrap();
        for port in ["vale0:idle", "vale0:bare", "vale0:left", "vale0:far"] {
            becomes(&daemon, port, LinkState::Up);
        }
        let troubles = || said(&daemon, &["port", "list"]).matches(": interface ").count();
        assert_eq!(troubles(), 0);
        ip("link set idle down");
        red.ip("link set bare down");
        ip("link del left");
        let far = dying.name();
        dying.die();
        becomes(&daemon, "vale0:far", LinkState::Gone);
        wait::until("the process to be gone", || {
            !std::path::Path::new(&format!("/proc/{far}/ns/net")).exists()
        });
        let far = format!("network namespace {far} is gone, and interface far with it");
        for (port, what, cure) in [
            ("vale0:idle", "interface idle is down", "set it up: ip link set idle up"),
            ("vale0:bare", "interface bare has no carrier", "look at its cable"),
            // It may have been looked for once more, in vain.
            ("vale0:left", "interface left", "ip link"),
            ("vale0:missing", "no interface missing", "see: ip link"),
            ("vale0:far", far.as_str(), "uvala port del vale0:far"),
        ] {
            wait::until("the reason", || {
                host(&daemon, port).trouble.is_some_and(|said| said.contains(what))
            });
            let tells = |text: &str| text.contains(what) && text.contains(cure);
            let shown = said(&daemon, &["port", "show", port]);
            assert!(tells(&shown) && !shown.contains("mtu 0"), "{shown}");
            let listed = said(&daemon, &["port", "list"]);
            assert!(listed.lines().any(|line| line.starts_with(port) && tells(line)), "{listed}");
            let json = said(&daemon, &["port", "list", "--json"]);
            assert!(tells(&json), "{json}");
            let found = said(&daemon, &["doctor"]);
            let problem = format!("PROBLEM  {port}: ");
            let (_, about) = found.split_once(&problem).expect(&found);
            let about: Vec<_> = about.lines().take(2).collect();
            assert!(tells(&about.join("; ")), "{found}");
        }
        assert_eq!(daemon.uvala(&["doctor"]).status.code(), Some(1));
        ip("link set idle up");
        becomes(&daemon, "vale0:idle", LinkState::Up);
        assert_eq!(host(&daemon, "vale0:idle").trouble, None);
    });
}

#[test]
fn a_tap_that_was_there_before_is_what_it_was_where_its_port_is_not_made() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        ip("tuntap add dev keep mode tap");
        let show = || {
            let output = Command::new("ip").args(["addr", "show", "dev", "keep"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let before = show();
        let mac = before.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap();
        let is_as_before = || {
            let now = show();
            now.contains("mtu 1500")
                && now.contains(mac)
                && !now.contains("UP")
                && !now.contains("inet")
        };
        assert!(is_as_before(), "{before}");
        let changed = |mtu, address: &str| HostIf {
            ifname: Some("keep".to_owned()),
            mac: Some("02:00:00:00:00:07".parse().unwrap()),
            mtu: Some(mtu),
            address: Some(address.parse().unwrap()),
            ..HostIf::default()
        };
        std::fs::write("/proc/sys/net/ipv6/conf/keep/disable_ipv6", "1").unwrap();
        // The last is refused when all else is done.
        for (mtu, address) in [(65_535, "10.0.0.1/24"), (1400, "fd00::1/64")] {
            let (_, text) = refusal(add(daemon, "vale0:a", PortKind::Tap, changed(mtu, address)));
            assert!(text.contains("keep"), "{text}");
            wait::until("it to be what it was", is_as_before);
        }
        add(daemon, "vale0:a", PortKind::Tap, changed(1400, "10.0.0.1/24")).unwrap();
        let after = show();
        let all = ["mtu 1400", "02:00:00:00:00:07", "10.0.0.1/24", "UP"];
        assert!(all.iter().all(|what| after.contains(what)), "{after}");
    });
}

#[test]
fn an_interface_that_appears_by_another_name_of_its_own_is_taken() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        veth(&lab.guests[0], "red", "10.0.0.1/24", "");
        ip("link property add dev red altname enp9s0");
        let wanted = HostIf { ifname: Some("enp9s0".to_owned()), ..HostIf::default() };
        add(daemon, "vale0:a", PortKind::Packet, wanted).unwrap();
        ip("link del red");
        becomes(daemon, "vale0:a", LinkState::Gone);
        // udev names it after it has come.
        veth(&lab.guests[0], "blue", "10.0.0.1/24", "");
        ip("link property add dev blue altname enp9s0");
        becomes(daemon, "vale0:a", LinkState::Up);
        assert_eq!(host(daemon, "vale0:a").ifname, "blue");
        delete(daemon, "vale0:a");
    });
}

/// Changes an interface more often than the kernel tells a daemon that does not listen.
fn much_happens(daemon: &Daemon, then: &str) {
    daemon.signal(Signal::STOP);
    let mut batch = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines: String =
        (0..2000).map(|i| format!("link set noise mtu {}\n", 1000 + i)).collect();
    lines.push_str(then);
    batch.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(batch.wait().unwrap().success());
    daemon.signal(Signal::CONT);
}

#[test]
fn what_happens_while_too_much_happens_is_looked_up() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        ip("link add noise type veth peer name quiet");
        for name in ["red", "blue"] {
            veth(red, name, "10.0.0.1/24", "");
            red.ip(&format!("link set eth0 name {name}"));
            add(daemon, &format!("vale0:{name}"), PortKind::Packet, HostIf::default()).unwrap();
        }
        much_happens(daemon, "link set red name other\nlink set blue mtu 1400\n");
        wait::until("the name", || host(daemon, "vale0:red").ifname == "other");
        wait::until("the MTU", || host(daemon, "vale0:blue").mtu == 1400);
        assert_eq!(host(daemon, "vale0:red").state, LinkState::Up, "it is there all the time");
        much_happens(daemon, "link del other\nlink set blue down\n");
        becomes(daemon, "vale0:red", LinkState::Gone);
        becomes(daemon, "vale0:blue", LinkState::Down);
        much_happens(daemon, "link add red type veth peer name back\nlink del blue\n");
        wait::until("it to be taken", || host(daemon, "vale0:red").state == LinkState::Down);
        becomes(daemon, "vale0:blue", LinkState::Gone);
    });
}

#[test]
fn an_mtu_that_is_changed_in_another_namespace_is_that_of_the_port() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        for (guest, port) in lab.guests.iter().zip(["vale0:a", "vale0:b"]) {
            add(daemon, port, PortKind::Tap, inside("eth0", guest)).expect("a TAP");
            guest.ip("link set eth0 mtu 9000");
            let shown = said(daemon, &["port", "show", port]);
            assert!(shown.contains(", mtu 9000, "), "{shown}");
        }
        let listed = said(daemon, &["port", "list", "--json"]);
        assert_eq!(listed.matches("\"mtu\":9000").count(), 2, "{listed}");
        let mut client = daemon.open("vale0:c");
        client.send(&announcement(3)).expect("room");
        let mut frame = Vec::new();
        fill(&mut frame, mac(9), 3, 0, 9014);
        let sent = daemon.stats("vale0:a").rx.frames;
        (0..10).for_each(|_| client.send(&frame).expect("room"));
        wait::until("the frames", || {
            let stats = daemon.stats("vale0:a");
            assert_eq!(stats.drops.get("too_long").copied().unwrap_or(0), 0, "{stats:?}");
            stats.rx.frames >= sent + 10
        });
        let found = said(daemon, &["doctor"]);
        assert!(!found.contains("differ in MTU"), "{found}");
        lab.guests[1].ip("link set eth0 mtu 1500");
        let found = said(daemon, &["doctor"]);
        assert!(found.contains("differ in MTU: vale0:b has 1500, vale0:a has 9000"), "{found}");
        assert!(found.contains("ip -n NAME link set"), "{found}");
    });
}

#[test]
fn an_mtu_in_a_namespace_that_this_user_may_not_enter_is_noted_as_unknown() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let Some(lab) = Lab::new(1) else { return };
    lab.home.within(|| {
        let all = "[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n";
        let daemon = Setup::new(all).start();
        add(&daemon, "vale0:a", PortKind::Tap, inside("eth0", &lab.guests[0])).expect("a TAP");
        let found = |user| {
            let output = daemon.uvala_as(&["doctor"], user);
            String::from_utf8(output.stdout).unwrap()
        };
        let (theirs, roots) = (found(Some(USER)), found(None));
        assert!(theirs.contains("note     vale0: the MTU of vale0:a is unknown"), "{theirs}");
        assert!(!roots.contains("is unknown"), "{roots}");
    });
}

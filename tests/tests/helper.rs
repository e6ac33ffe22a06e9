//! A daemon without rights, and the helper that opens interfaces for it: what it does and what it
//! refuses. The policy lies in a mount namespace of the test.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use harness::daemon::{Daemon, Setup};
use harness::lab::{Locks, add, becomes, delete, host, refusal, touched, veth};
use harness::net::{Namespace, ip, is_there, tcp};
use harness::process::{Scratch, uvala_path};
use harness::{is_root, skip, wait};
use protocol::{ErrorCode, HostIf, LinkState, PortKind};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recv, send, socket_with,
};
use rustix::process::{Resource, getrlimit};

const NOBODY: u32 = 65534;
const POLICY: &str = "/etc/uvala/helper.toml";

fn run(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).status().is_ok_and(|status| status.success())
}

/// The helper beside the daemon's binary, copied to where every user gets at it, with rights.
fn helper(place: &Path) -> Option<PathBuf> {
    let uvala = uvala_path();
    let built = uvala.with_file_name("uvala-helper");
    if !built.exists() {
        skip("uvala-helper is not built: cargo build -p uvala-helper");
        return None;
    }
    let copy = place.join("uvala-helper");
    std::fs::copy(built, &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    let rights = "cap_net_admin,cap_net_raw,cap_bpf+ep";
    if !run("setcap", &[rights, copy.to_str().unwrap()]) {
        skip("file capabilities need root and setcap (libcap2-bin)");
        return None;
    }
    Some(copy)
}

/// Runs a story in namespaces of its own, with an unprivileged daemon that has the helper.
fn tell(name: &str, policy: &str, story: impl FnOnce(&Daemon, &Namespace) + Send) {
    tell_with(name, policy, Path::to_owned, |daemon, home, _| story(daemon, home));
}

/// Runs a story like [`tell`]; the daemon's configuration names what `reach` makes of the helper.
fn tell_with(
    name: &str,
    policy: &str,
    reach: impl FnOnce(&Path) -> PathBuf + Send,
    story: impl FnOnce(&Daemon, &Namespace, &Path) + Send,
) {
    if !is_root() {
        return skip("a daemon of another user needs root");
    }
    let Some(home) = Namespace::new() else { return };
    let place = Scratch::new(name);
    home.within(|| {
        let Some(helper) = helper(place.path()) else { return };
        harness::mounts::empty_etc();
        std::fs::create_dir("/etc/uvala").unwrap();
        std::fs::write(POLICY, policy).unwrap();
        let at = reach(&helper);
        let config = format!("helper = {:?}\n", at.to_str().unwrap());
        let daemon = Setup::new(&config).user(NOBODY).start();
        story(&daemon, &home, &at);
    });
}

const ALLOWED: &str = "[[allow]]\nuser = 65534\nkinds = [\"tap\", \"packet\", \"xdp\"]\n\
                       interfaces = [\"red\", \"ours*\"]\n\
                       addresses = [\"10.0.0.0/24\"]\n";

/// What a user may lock of memory is enough for one AF_XDP port at a time.
static LOCKED: Mutex<()> = Mutex::new(());

#[test]
fn a_daemon_without_rights_has_what_the_policy_allows() {
    let Some(red) = Namespace::new() else { return };
    let _locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    tell("helper", ALLOWED, |daemon, home| {
        veth(&red, "red", "10.0.0.1/24", "");
        let address = Some("10.0.0.2/24".parse().unwrap());
        let lan = HostIf { ifname: Some("ours0".to_owned()), address, ..HostIf::default() };
        add(daemon, "vale0:lan", PortKind::Tap, lan).unwrap();
        becomes(daemon, "vale0:lan", LinkState::Up);
        for kind in [PortKind::Packet, PortKind::Xdp] {
            match add(daemon, "vale0:red", kind, HostIf::default()) {
                Err(error) if kind == PortKind::Xdp && error.to_string().contains("AF_XDP") => {
                    return skip(&format!("root with AF_XDP is needed: {error}"));
                }
                added => added.unwrap(),
            }
            tcp(home, &red, "10.0.0.1", 1 << 20);
            tcp(&red, home, "10.0.0.2", 1 << 20);
            delete(daemon, "vale0:red");
        }
        receive_into_a_group(daemon, home, &red);
        delete(daemon, "vale0:lan");
        wait::until("the TAP to go", || !is_there("ours0"));
    });
}

#[test]
fn a_tap_by_the_helper_has_its_address_again() {
    tell("helper-again", ALLOWED, |daemon, _| {
        let named = |ifname: &str| HostIf { ifname: Some(ifname.into()), ..HostIf::default() };
        let [first, other, again] = ["ours0", "ours1", "ours0"].map(|ifname| {
            add(daemon, "vale0:lan", PortKind::Tap, named(ifname)).unwrap();
            let mac = host(daemon, "vale0:lan").mac;
            delete(daemon, "vale0:lan");
            wait::until("the TAP to go", || !is_there(ifname));
            mac
        });
        assert_eq!(first, again);
        assert_ne!(first, other);
    });
}

/// What the kernel believes of what it hears by an interface.
fn believes(ifname: &str, setting: &str) -> Option<String> {
    let path = format!("/proc/sys/net/ipv6/conf/{ifname}/{setting}");
    std::fs::read_to_string(path).ok().map(|value| value.trim().to_owned())
}

/// Otherwise a station behind a TAP could give the host a default route by one router
/// advertisement.
#[test]
fn the_host_takes_no_routes_from_who_is_on_the_switch() {
    tell("routers", ALLOWED, |daemon, _| {
        if believes("default", "accept_ra").is_none() {
            return skip("this kernel has no IPv6");
        }
        std::fs::write("/proc/sys/net/ipv6/conf/default/accept_ra", "2").unwrap();
        let address = Some("10.0.0.2/24".parse().unwrap());
        let bare = HostIf { ifname: Some("ours0".to_owned()), ..HostIf::default() };
        let queues = Some("2".parse().unwrap());
        let full =
            HostIf { ifname: Some("ours1".to_owned()), address, queues, ..HostIf::default() };
        for (port, wanted) in [("vale0:bare", bare), ("vale0:full", full)] {
            let ifname = wanted.ifname.clone().unwrap();
            add(daemon, port, PortKind::Tap, wanted).unwrap();
            becomes(daemon, port, LinkState::Up);
            for setting in ["accept_ra", "accept_redirects", "autoconf"] {
                assert_eq!(believes(&ifname, setting).as_deref(), Some("0"), "{ifname} {setting}");
            }
        }
    });
}

/// What systemd does with `uvala-helper.socket` and `uvala-helper@.service`: listens, and starts
/// the helper for each who connects, with as few rights as the unit says. Returns the place.
fn activated(helper: &Path) -> PathBuf {
    let place = helper.with_file_name("helper.sock");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&place).unwrap()).unwrap();
    listen(&socket, 16).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o666)).unwrap();
    let plain = helper.with_file_name("plain");
    std::fs::copy(helper, &plain).unwrap();
    let serve = move || {
        // Until the socket is gone; the last caller gets no answer.
        while let Ok(connection) = accept(&socket) {
            let mut setpriv = Command::new("setpriv");
            let few = "--bounding-set=-all,+net_admin,+net_raw,+bpf";
            let spawned = setpriv.args(["--no-new-privs", few]).arg(&plain).stdin(connection);
            let mut helper = spawned.spawn().expect("util-linux");
            std::thread::spawn(move || helper.wait());
        }
    };
    std::thread::spawn(serve);
    place
}

#[test]
fn a_helper_that_the_system_starts_serves_who_may_connect_however_many_keep_silent() {
    let Some(red) = Namespace::new() else { return };
    let _locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    tell_with("activated", ALLOWED, activated, |daemon, home, place| {
        // They ask nothing, nonsense, or too much, and hang on.
        let ask = |question: &[u8]| {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            connect(&socket, &SocketAddrUnix::new(place).unwrap()).unwrap();
            if !question.is_empty() {
                send(&socket, question, SendFlags::NOSIGNAL).unwrap();
            }
            socket
        };
        let others: Vec<_> = [&[][..], b"{", &[b' '; 5000], &[0xff; 4096]]
            .into_iter()
            .cycle()
            .take(40)
            .map(ask)
            .collect();
        veth(&red, "red", "10.0.0.1/24", "");
        let address = Some("10.0.0.2/24".parse().unwrap());
        let lan = HostIf { ifname: Some("ours0".to_owned()), address, ..HostIf::default() };
        add(daemon, "vale0:lan", PortKind::Tap, lan).unwrap();
        add(daemon, "vale0:red", PortKind::Packet, HostIf::default()).unwrap();
        tcp(home, &red, "10.0.0.1", 1 << 20);
        delete(daemon, "vale0:red");
        match add(daemon, "vale0:red", PortKind::Xdp, HostIf::default()) {
            Err(error) if error.to_string().contains("AF_XDP") => {
                skip(&format!("root with AF_XDP is needed: {error}"));
            }
            added => {
                added.unwrap();
                tcp(home, &red, "10.0.0.1", 1 << 20);
            }
        }
        // The caller is the user that connects: root started it, and may not have this either.
        let question = br#"{"kind":"tap","ifname":"theirs"}"#;
        let mut answer = [0; 4096];
        let root = ask(question);
        let (_, length) = recv(&root, &mut answer[..], RecvFlags::empty()).unwrap();
        let text = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert!(text.contains("user 0 may not have a port of kind tap"), "{text}");
        // Each of the others is told off, and let go.
        for other in &others {
            let (_, length) = recv(other, &mut answer[..], RecvFlags::empty()).unwrap();
            let text = String::from_utf8_lossy(&answer[..length]).into_owned();
            assert!(text.contains("cannot read the request"), "{text}");
            assert_eq!(recv(other, &mut answer[..], RecvFlags::empty()).unwrap().1, 0);
        }
    });
}

/// The interface of a port that is not made is what it was before, as the next one finds it.
#[test]
fn what_was_changed_for_a_port_that_is_not_made_is_put_back() {
    let _locked = LOCKED.lock().unwrap_or_else(PoisonError::into_inner);
    let _little = Locks::little();
    tell("undo", ALLOWED, |daemon, _| {
        ip("link add red numrxqueues 4 numtxqueues 4 type veth peer name blue");
        let xdp = |queues: &str| {
            let queues = Some(queues.parse().unwrap());
            add(daemon, "vale0:red", PortKind::Xdp, HostIf { queues, ..HostIf::default() })
        };
        let (code, text) = refusal(xdp("4"));
        if text.contains("AF_XDP") {
            return skip(&format!("root with AF_XDP is needed: {text}"));
        }
        assert!(code == ErrorCode::NoMemory && text.contains("LimitMEMLOCK"), "{text}");
        wait::until("it to be put back", || touched("red") == ("0".to_owned(), false));
        xdp("1").unwrap();
        let how = || host(daemon, "vale0:red").how.unwrap();
        assert!(how().contains("rxvlan is off now"), "it was on before: {}", how());
        delete(daemon, "vale0:red");
        wait::until("its memory to be free", || xdp("1").is_ok());
        assert!(!how().contains("rxvlan"), "what was a port stays: {}", how());
    });
}

#[test]
fn what_was_changed_for_a_daemon_that_dies_is_put_back() {
    const ROOTS: &str = "[[allow]]\nuser = 0\nkinds = [\"xdp\"]\ninterfaces = [\"red\"]\n";
    tell_with("dies", ROOTS, activated, |_, _, place| {
        ip("link add red type veth peer name blue");
        // Without room for descriptors, those that come are closed.
        let ask = || {
            let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            connect(&socket, &SocketAddrUnix::new(place).unwrap()).unwrap();
            send(&socket, br#"{"kind":"xdp","ifname":"red"}"#, SendFlags::NOSIGNAL).unwrap();
            let mut answer = [0; 4096];
            let (_, length) = recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap();
            (socket, String::from_utf8_lossy(&answer[..length]).into_owned())
        };
        let (first, text) = ask();
        if !text.contains("opened") {
            return skip(&format!("root with AF_XDP is needed: {text}"));
        }
        let changes = |text: &str| match () {
            () if text.contains(r#""changed":true"#) => Some(true),
            () if text.contains(r#""changed":false"#) => Some(false),
            () => None,
        };
        assert_eq!(changes(&text), Some(true), "{text}");
        // As long as it waits, there is nothing to change for another one.
        let second = wait::find("the program to go", || changes(&ask().1));
        assert!(!second);
        drop(first);
        let (third, _) = wait::find("it to be put back", || {
            let asked = ask();
            (changes(&asked.1) == Some(true)).then_some(asked)
        });
        send(&third, br#""made""#, SendFlags::NOSIGNAL).unwrap();
        assert_eq!(recv(&third, &mut [0; 9], RecvFlags::empty()).unwrap().1, 0, "its end");
        assert!(!wait::find("the program to go", || changes(&ask().1)));
    });
}

/// udev gives every card such names; a rule for some must not fit another by them.
#[test]
fn an_interface_is_allowed_by_its_own_name_only() {
    tell("names", ALLOWED, |daemon, _| {
        ip("link add blue type veth peer name green");
        ip("link property add dev blue altname ours7");
        for kind in [PortKind::Packet, PortKind::Xdp] {
            let wanted = HostIf { ifname: Some("ours7".to_owned()), ..HostIf::default() };
            let (code, text) = refusal(add(daemon, "vale0:x", kind, wanted));
            assert_eq!(code, ErrorCode::Permission);
            assert!(
                text.contains("another name of interface blue") || text.contains("AF_XDP"),
                "{text}"
            );
        }
        // What was allowed once is so under its new name, where that is allowed.
        ip("link property del dev blue altname ours7");
        ip("link set blue name ours7");
        let wanted = || HostIf { ifname: Some("ours7".to_owned()), ..HostIf::default() };
        add(daemon, "vale0:x", PortKind::Packet, wanted()).unwrap();
        ip("link set ours7 name theirs");
        wait::until("its name", || host(daemon, "vale0:x").ifname == "theirs");
        delete(daemon, "vale0:x");
        let (code, text) = refusal(add(daemon, "vale0:x", PortKind::Packet, wanted()));
        assert!(code == ErrorCode::NotFound && text.contains("no interface ours7"), "{text}");
        let wanted = HostIf { ifname: Some("theirs".to_owned()), ..HostIf::default() };
        let (_, text) = refusal(add(daemon, "vale0:x", PortKind::Packet, wanted));
        assert!(text.contains("may not have a port of kind packet on interface theirs"), "{text}");
    });
}

/// Memory is the daemon's affair, and may be more than it may lock.
fn receive_into_a_group(daemon: &Daemon, home: &Namespace, red: &Namespace) {
    let grouped = HostIf { trust_group: Some("nf".to_owned()), ..HostIf::default() };
    let added = add(daemon, "vale0:red", PortKind::Xdp, grouped);
    let limit = getrlimit(Resource::Memlock).current;
    if limit.is_some_and(|bytes| bytes < 33 << 20) {
        let (code, text) = refusal(added);
        let cure = text.contains("33 MiB of trust group nf") && text.contains("LimitMEMLOCK");
        assert!(code == ErrorCode::NoMemory && cure, "{text}");
        return;
    }
    added.unwrap();
    assert!(host(daemon, "vale0:red").how.unwrap().contains("in the memory of trust group nf"));
    tcp(home, red, "10.0.0.1", 1 << 20);
    tcp(red, home, "10.0.0.2", 1 << 20);
    delete(daemon, "vale0:red");
}

#[test]
fn what_the_policy_does_not_allow_is_refused() {
    tell("refusals", ALLOWED, |daemon, _| {
        ip("link add blue type veth peer name green");
        for (kind, ifname) in [
            (PortKind::Packet, "blue"),
            (PortKind::Xdp, "blue"),
            (PortKind::Tap, "theirs"),
            (PortKind::Tap, "our"),
        ] {
            let wanted = HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() };
            let (code, text) = refusal(add(daemon, "vale0:x", kind, wanted));
            assert_eq!(code, ErrorCode::Permission);
            let names = text.contains("user 65534 may not") && text.contains(POLICY);
            assert!(names && text.contains(ifname), "{text}");
        }
        // Addresses of other networks, and changes of what was there before.
        let with = |ifname: &str, address: &str| {
            let address = Some(address.parse().unwrap());
            let wanted = HostIf { ifname: Some(ifname.to_owned()), address, ..HostIf::default() };
            refusal(add(daemon, "vale0:x", PortKind::Tap, wanted)).1
        };
        assert!(
            with("ours3", "128.0.0.1/1").contains("user 65534 may not have address 128.0.0.1/1")
        );
        // Every user may open a TAP without an owner.
        ip("tuntap add dev ours4 mode tap user 0");
        assert!(with("ours4", "10.0.0.2/24").contains("ours4 was there before"));
        a_prefix_opens_no_tap_of_others(daemon);
        // What it does not know how to do is not asked for, and said.
        let alone = HostIf { ifname: Some("blue".to_owned()), alone: true, ..HostIf::default() };
        let (code, text) = refusal(add(daemon, "vale0:x", PortKind::Packet, alone));
        assert_eq!(code, ErrorCode::Permission);
        assert!(text.contains("cut the host off from blue, and the helper does not"), "{text}");
        let netns = Some("/proc/self/ns/net".to_owned());
        for kind in [PortKind::Tap, PortKind::Packet] {
            let ifname = Some(if kind == PortKind::Tap { "ours1" } else { "blue" }.to_owned());
            let inside = HostIf { ifname, netns: netns.clone(), ..HostIf::default() };
            let (code, text) = refusal(add(daemon, "vale0:x", kind, inside));
            assert_eq!(code, ErrorCode::Permission);
            assert!(text.contains("helper opens nothing") && text.contains("--fd"), "{text}");
        }
        // A policy that others could have written counts for nothing.
        let wanted = || HostIf { ifname: Some("ours2".to_owned()), ..HostIf::default() };
        let refused = |daemon| refusal(add(daemon, "vale0:x", PortKind::Tap, wanted())).1;
        std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(refused(daemon).contains("only root may write it"));
        std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o644)).unwrap();
        chown(POLICY, Some(NOBODY), None).unwrap();
        assert!(refused(daemon).contains("must belong to root"));
        chown(POLICY, Some(0), None).unwrap();
        std::fs::rename(POLICY, "/etc/uvala/other").unwrap();
        std::os::unix::fs::symlink("other", POLICY).unwrap();
        assert!(refused(daemon).contains("cannot read"));
        std::fs::remove_file(POLICY).unwrap();
        assert!(refused(daemon).contains("cannot read"));
        std::fs::write(POLICY, "everyone = true\n").unwrap();
        assert!(refused(daemon).contains("unknown field"));
        std::fs::remove_file(POLICY).unwrap();
        std::fs::rename("/etc/uvala/other", POLICY).unwrap();
        std::fs::set_permissions("/etc/uvala", std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refused(daemon).contains("/etc/uvala must belong to root"));
        std::fs::set_permissions("/etc/uvala", std::fs::Permissions::from_mode(0o755)).unwrap();
        add(daemon, "vale0:x", PortKind::Tap, wanted()).unwrap();
        assert_eq!(host(daemon, "vale0:x").ifname, "ours2");
    });
}

/// The kernel keeps the daemon out of each of them, and lets the helper in.
fn a_prefix_opens_no_tap_of_others(daemon: &Daemon) {
    ip("tuntap add dev ours5 mode tap group 1 multi_queue");
    ip("tuntap add dev red mode tap user 0");
    let open = |ifname: &str| {
        let wanted = HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() };
        add(daemon, "vale0:there", PortKind::Tap, wanted)
    };
    for ifname in ["ours4", "ours5"] {
        let (code, text) = refusal(open(ifname));
        let says = text.contains("was there before") && text.contains("user 65534");
        assert!(code == ErrorCode::Permission && says, "{text}");
    }
    // The policy has the whole name of this TAP.
    open("red").unwrap();
    delete(daemon, "vale0:there");
}

/// A helper without capabilities, as it was built.
fn without_rights(helper: &Path) -> PathBuf {
    let plain = helper.with_file_name("plain");
    std::fs::copy(helper, &plain).unwrap();
    plain
}

#[test]
fn a_helper_that_was_given_no_rights_says_how_to_give_them() {
    tell_with("rightless", ALLOWED, without_rights, |daemon, _, plain| {
        ip("link add red type veth peer name green");
        for (kind, ifname) in [(PortKind::Tap, "ours0"), (PortKind::Packet, "red")] {
            let wanted = HostIf { ifname: Some(ifname.to_owned()), ..HostIf::default() };
            let (code, text) = refusal(add(daemon, "vale0:x", kind, wanted));
            let cure = format!("setcap cap_net_admin,cap_net_raw,cap_bpf+ep {}", plain.display());
            assert!(code == ErrorCode::Permission && text.contains(&cure), "{text}");
        }
    });
}

#[test]
fn a_helper_that_is_none_is_named() {
    for (name, what) in [
        ("/bin/true", "ended without an answer"),
        ("/no/such/helper", "is not there"),
        ("/etc", "is closed to user 65534"),
    ] {
        tell_with(
            "none",
            ALLOWED,
            |_| PathBuf::from(name),
            |daemon, _, _| {
                let wanted = HostIf { ifname: Some("ours0".to_owned()), ..HostIf::default() };
                let (code, text) = refusal(add(daemon, "vale0:x", PortKind::Tap, wanted));
                assert_eq!(code, ErrorCode::Permission, "{text}");
                assert!(text.contains(&format!("helper {name} {what}")), "{text}");
            },
        );
    }
}

/// A socket where only the test itself answers.
fn silent(helper: &Path) -> (PathBuf, OwnedFd) {
    let place = helper.with_file_name("silent.sock");
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&place).unwrap()).unwrap();
    listen(&socket, 16).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o666)).unwrap();
    (place, socket)
}

#[test]
fn while_a_helper_hangs_others_are_served_and_who_waits_is_told_of_it() {
    let listener = Mutex::new(None);
    let reach = |helper: &Path| {
        let (place, socket) = silent(helper);
        *listener.lock().unwrap() = Some(socket);
        place
    };
    tell_with("silent", ALLOWED, reach, |daemon, _, _| {
        let listener = listener.lock().unwrap().take().unwrap();
        let type_it = || {
            let mut command = Command::new(uvala_path());
            command.arg("--dir").arg(daemon.dir());
            let words = "port add vale0:x --kind tap --ifname ours0";
            command.args(words.split(' ')).stderr(Stdio::piped()).spawn().expect("built")
        };
        let said = |typed: std::process::Child| {
            let output = typed.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(4), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
            text
        };
        let adding = type_it();
        let asked = accept(&listener).unwrap();
        assert!(recv(&asked, &mut [0; 4096][..], RecvFlags::empty()).unwrap().1 > 0);
        assert_eq!(daemon.ports(), [""; 0], "a caller of something else is answered");
        send(&asked, br#"{"refused":"not today"}"#, SendFlags::NOSIGNAL).unwrap();
        assert!(said(adding).contains("not today"), "it was still waited for");
        let adding = type_it();
        let _asked = accept(&listener).unwrap();
        let text = said(adding);
        assert!(text.contains("silent.sock did not answer within"), "{text}");
    });
}

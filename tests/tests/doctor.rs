//! What the doctor says of situations that are made for real. docs/doctor.md lists all of them;
//! some are in the tests of their subject: interfaces, virtual machines, port security.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::chain::{configuration, function};
use harness::daemon::{Daemon, Setup, launch};
use harness::fabric::{FABRIC, Underlay};
use harness::lab::Lab;
use harness::net::ip;
use harness::process::{Owned, Scratch, USER, uvala, uvala_path};
use harness::role::Become;
use harness::{is_root, mounts, skip, wait};
use rustix::process::Signal;
use serde_json::Value;

/// What it prints, and its exit status.
fn doctor(daemon: &Daemon) -> (Option<i32>, String) {
    let output = daemon.uvala(&["doctor"]);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

/// The cure that follows what it found.
fn cure<'a>(said: &'a str, what: &str) -> &'a str {
    let (_, rest) = said.split_once(what).unwrap_or_else(|| panic!("{what}: {said}"));
    let line = rest.lines().nth(1).expect("a cure");
    line.trim().strip_prefix("cure: ").expect("a cure")
}

/// Checks that the doctor finds that, and that this helps.
fn finds(daemon: &Daemon, what: &str, helps: &str) {
    let (status, said) = doctor(daemon);
    assert!(cure(&said, what).contains(helps), "{said}");
    assert_eq!(status, Some(i32::from(said.contains("PROBLEM"))), "{said}");
}

/// Whether the doctor finds no problem but a machine that is too busy for a worker.
fn is_well(daemon: &Daemon) -> bool {
    let said = doctor(daemon).1;
    let mut problems = said.lines().filter(|line| line.starts_with("PROBLEM"));
    problems.all(|line| line.contains("stood still"))
}

/// `uvala doctor` with this environment and no more.
fn doctor_with(dir: Option<&Path>, user: Option<u32>) -> (Option<i32>, String) {
    let mut command = uvala(Become::default(), &["doctor"], user);
    command.env_remove("UVALA_DIR").env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
    if let Some(dir) = dir {
        command.env("UVALA_DIR", dir);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_daemon_that_is_well_has_no_problem() {
    let daemon = Daemon::start();
    let (status, said) = doctor(&daemon);
    let is_busy = said.contains("stood still");
    assert!(is_busy || status == Some(0) && said.contains("no problems found"), "{said}");
    assert!(!said.contains("/dev/kvm"), "without machines it does not matter: {said}");
}

#[test]
fn where_no_daemon_was_it_says_how_to_start_one() {
    let place = Scratch::new("doctor-none");
    let (status, said) = doctor_with(Some(place.path()), None);
    assert_eq!(status, Some(1));
    // The directory is in the environment already.
    assert_eq!(cure(&said, "no daemon at"), "start one with: uvala daemon");
}

/// A daemon in `/run/uvala`, with a socket of this mode.
fn daemon_of_the_system(mode: &str) -> Owned {
    let place = Scratch::new("doctor-run");
    let file = place.path().join("uvala.toml");
    std::fs::write(&file, format!("[socket]\nmode = \"{mode}\"\n")).unwrap();
    let (dir, config) = (Path::new("/run/uvala"), ["-c", file.to_str().unwrap()]);
    let daemon = launch(dir, &config, Become::default(), Stdio::null());
    wait::until("a daemon", || dir.join("uvala.sock").exists());
    daemon
}

#[test]
fn a_daemon_that_was_killed_is_to_be_started_and_no_other_is_named() {
    if !is_root() {
        return skip("only root has a daemon in /run/uvala");
    }
    std::thread::spawn(|| {
        mounts::empty_run();
        let _other = daemon_of_the_system("666");
        let mut daemon = Daemon::start();
        let pid = daemon.pid();
        daemon.kill();
        let (status, said) = doctor_with(Some(&daemon.dir()), None);
        assert_eq!(status, Some(1));
        let what = format!("process {pid} was the daemon, and was killed or has crashed");
        let helps = cure(&said, &what);
        assert!(helps.starts_with("start one with: uvala daemon; its log"), "{said}");
        assert!(!said.contains("one runs in"), "{said}");
    })
    .join()
    .unwrap();
}

#[test]
fn another_daemon_is_named_where_this_user_may_use_it_and_not_elsewhere() {
    if !is_root() {
        return skip("only root has a daemon in /run/uvala");
    }
    std::thread::spawn(|| {
        mounts::empty_run();
        let place = Scratch::new("doctor-closed");
        // A socket that is left behind where this user's daemon would be: so it is asked there.
        let own = place.path().join("uvala");
        std::fs::create_dir(&own).unwrap();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
        drop(std::os::unix::net::UnixListener::bind(own.join("uvala.sock")).unwrap());
        std::os::unix::fs::chown(own.join("uvala.sock"), Some(USER), Some(USER)).unwrap();
        let ask = || {
            let mut command = uvala(Become::default(), &["doctor"], Some(USER));
            command.env_remove("UVALA_DIR").env("XDG_RUNTIME_DIR", place.path());
            String::from_utf8(command.stdin(Stdio::null()).output().unwrap().stdout).unwrap()
        };
        let mut closed = daemon_of_the_system("600");
        let said = ask();
        assert!(!said.contains("one runs in /run/uvala"), "{said}");
        assert!(cure(&said, "no daemon at").starts_with("start one with"), "{said}");
        closed.kill();
        // Its directory is closed, too.
        std::fs::remove_dir_all("/run/uvala").unwrap();
        let _open = daemon_of_the_system("666");
        let said = ask();
        assert!(cure(&said, "no daemon at").contains("one runs in /run/uvala"), "{said}");
    })
    .join()
    .unwrap();
}

#[test]
fn a_daemon_whose_socket_was_deleted_still_runs() {
    let daemon = Daemon::start();
    std::fs::remove_file(daemon.dir().join("uvala.sock")).unwrap();
    let pid = daemon.pid();
    let what = format!("its socket is gone, but the daemon still runs (process {pid})");
    finds(&daemon, &what, &format!("kill {pid}, then uvala daemon"));
}

#[test]
fn a_daemon_that_is_stopped_is_to_be_continued() {
    let daemon = Daemon::start();
    daemon.signal(Signal::STOP);
    let pid = daemon.pid();
    wait::until("the stop", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    });
    finds(&daemon, &format!("it is stopped (process {pid})"), &format!("kill -CONT {pid}"));
    // Other commands say so at once, and wait.
    let mut list = Command::new(uvala_path());
    list.arg("--dir").arg(daemon.dir()).args(["port", "list"]);
    let mut list = Owned::spawn(list.stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut said = String::new();
    BufReader::new(list.stderr()).read_line(&mut said).unwrap();
    assert!(said.contains(&format!("it is stopped (process {pid}); kill -CONT {pid}")), "{said}");
    daemon.signal(Signal::CONT);
    assert!(list.wait().success());
    wait::until("an answer", || is_well(&daemon));
}

#[test]
fn a_daemon_that_is_stopped_is_not_replaced_and_the_command_says_what_helps() {
    let daemon = Daemon::start();
    daemon.signal(Signal::STOP);
    for more in [&[][..], &["--background"]] {
        let output = daemon.uvala(&[&["daemon", "--replace"], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let helps = format!("kill -CONT {0}) or end it (kill -KILL {0})", daemon.pid());
        assert!(!output.status.success() && said.contains(&helps), "{more:?}: {said}");
    }
    daemon.signal(Signal::CONT);
    wait::until("an answer", || is_well(&daemon));
}

#[test]
fn a_full_disk_of_the_state_is_named_until_there_is_room() {
    if !is_root() {
        return skip("only root mounts a small disk");
    }
    std::thread::spawn(|| {
        mounts::empty_run();
        std::fs::create_dir("/run/state").unwrap();
        let options = ["-t", "tmpfs", "-o", "size=256k,mode=700", "small", "/run/state"];
        assert!(Command::new("mount").args(options).status().unwrap().success());
        let mut daemon = Setup::new("state_dir = \"/run/state\"\n").start();
        assert!(is_well(&daemon));
        let hog = "/run/state/hog";
        let _ = std::fs::write(hog, vec![0; 1 << 20]);
        for number in 0..20 {
            let added = daemon.uvala(&["port", "add", &format!("vale{number}:a")]);
            assert_eq!(added.status.code(), Some(15), "done, and not kept: {added:?}");
        }
        finds(&daemon, "it cannot save its state: /run/state/vale0.json: No space", "make room");
        finds(&daemon, " and 19 more; a restart would undo changes", "make room");
        let next = daemon.uvala(&["daemon", "--replace"]);
        let said = String::from_utf8(next.stderr).unwrap();
        assert!(said.contains("goes on: it has changes that it could not save"), "{said}");
        assert!(next.status.code() == Some(6) && daemon.ports().len() == 20, "{said}");
        let metrics = String::from_utf8(daemon.uvala(&["metrics"]).stdout).unwrap();
        assert!(metrics.contains("uvala_daemon_unsaved_switches 20\n"), "{metrics}");
        std::fs::remove_file(hog).unwrap();
        wait::until("the next try", || is_well(&daemon));
        daemon.kill();
    })
    .join()
    .unwrap();
}

#[test]
fn a_chain_whose_function_does_not_run_is_a_problem_of_its_switch() {
    let daemon = Setup::new(&configuration(2)).start();
    let _b = daemon.open("valenf:b");
    let _first = function(&daemon, 0);
    finds(&daemon, "valenf: no frame passes chain c: no process runs s1", "uvala nf run");
    let second = function(&daemon, 1);
    wait::until("both", || is_well(&daemon));
    drop(second);
    wait::until("its end", || doctor(&daemon).1.contains("no process runs s1"));
}

#[test]
fn a_chain_that_leaves_by_a_port_without_a_client_is_a_problem() {
    let text = configuration(1).replace("services = [\"s0\"]", "services = [\"s0\"]\nout = \"b\"");
    let daemon = Setup::new(&text).start();
    let _function = function(&daemon, 0);
    finds(&daemon, "no frame passes chain c: no client holds port b", "uvala nf list valenf");
    let _b = daemon.open("valenf:b");
    wait::until("a client", || is_well(&daemon));
}

#[test]
fn tunnels_that_carry_less_than_they_should_are_named() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(mut one), Some(two)) = (underlay.host(1, &[]), underlay.host(2, &[1])) else {
        return;
    };
    let Some(station) = two.station("192.168.7.2/24", None) else { return };
    finds(&one.daemon, "vale0:fabric: the tunnel has no remote", "uvala-evpn vale0:fabric");
    let speaks = |reason: &str| {
        wait::until(reason, || {
            station.ip("neigh flush dev eth0");
            let mut ping = Command::new("ping");
            let ping = ping.args(["-c", "1", "-W", "1", "192.168.7.1"]).stdout(Stdio::null());
            station.within(|| ping.status().unwrap());
            one.dropped(reason) > 0
        });
    };
    speaks("vxlan_remote");
    let cure = "uvala port set vale0:fabric --add-remote";
    finds(&one.daemon, "from hosts that are no remotes (vxlan_remote)", cure);
    one.done(&["port", "set", FABRIC, "--add-remote", "10.0.0.2"]);
    two.done(&["port", "del", FABRIC]);
    let tunnel = ["port", "add", FABRIC, "--kind=vxlan", "--local=10.0.0.2", "--remote=10.0.0.1"];
    two.done(&[&tunnel[..], &["--vni=7"]].concat());
    speaks("vxlan_vni");
    finds(&one.daemon, "datagrams of another virtual network (vxlan_vni)", "one --vni");
    let long = ["port", "add", "vale1:long", "--kind=vxlan", "--local=10.0.0.1", "--vni=1"];
    let more = ["--dst-port=4790", "--remote=10.0.0.2", "--mtu=9000"];
    one.done(&[&long[..], &more].concat());
    finds(
        &one.daemon,
        "vale1:long: takes frames of 9000 bytes (--mtu), and the routes leave 1450",
        "--mtu",
    );
    one.home.ip("link set eth0 down");
    for port in [FABRIC, "vale1:long"] {
        let what = format!("{port}: no remote of the tunnel has a route");
        finds(&one.daemon, &what, "ip route get 10.0.0.2 from 10.0.0.1");
    }
    one.home.ip("link set eth0 up");
    // Another program has its port while the daemon starts.
    one.daemon.kill();
    let _taken = one.home.within(|| UdpSocket::bind("10.0.0.1:4789").unwrap());
    one.home.visit(|| one.daemon.restart());
    finds(&one.daemon, "vale0:fabric: ", "delete it and add it again");
}

#[test]
fn a_start_with_too_few_descriptors_is_refused_with_the_limit_to_raise() {
    for count in 6..40 {
        let place = Scratch::new("doctor-few");
        let dir = place.path().join("run");
        let limits = Become { descriptors: Some(count), ..Become::default() };
        let mut daemon = launch(&dir, &[], limits, Stdio::piped());
        let mut said = String::new();
        let stderr = daemon.stderr();
        let started = || Path::new(&dir).join("uvala.sock").exists();
        wait::until("its end, or its start", || daemon.has_ended() || started());
        if !daemon.has_ended() {
            daemon.kill();
            continue;
        }
        std::io::Read::read_to_string(&mut { stderr }, &mut said).unwrap();
        assert_eq!(daemon.wait().code(), Some(8), "{count} descriptors: {said}");
        let cure = ["raise the limit", "ulimit -n"];
        assert!(cure.iter().all(|it| said.contains(it)), "{count} descriptors: {said}");
    }
}

#[test]
fn interfaces_of_one_switch_with_different_mtus_are_a_problem() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        for (port, mtu) in [("a", "1500"), ("b", "9000")] {
            let port = format!("vale0:{port}");
            let words = ["port", "add", &port, "--kind", "tap", "--mtu", mtu];
            let added = daemon.uvala(&words);
            assert!(added.status.success(), "{added:?}");
        }
        ip("link set dev a up");
        ip("link set dev b up");
        finds(daemon, "its interfaces differ in MTU: vale0:a has 1500, vale0:b has 9000", "--mtu");
    });
}

#[test]
fn a_container_whose_addresses_went_with_a_killed_daemon_is_noted() {
    if !is_root() {
        return skip("mounts of a test's own need root");
    }
    let Some(lab) = Lab::new(0) else { return };
    lab.home.within(|| {
        mounts::empty_run();
        let mut daemon = Daemon::start();
        ip("netns add red");
        let attached = daemon.uvala(&["ns", "attach", "red", "vale0:red"]);
        assert!(attached.status.success(), "{attached:?}");
        // As a CNI plugin does it: the daemon does not know the address.
        ip("-n red addr add 10.0.0.2/24 dev eth0");
        let bare = "interface eth0 in namespace red has no address";
        assert!(!doctor(&daemon).1.contains(bare));
        daemon.kill();
        daemon.restart();
        wait::until("the next interface", || doctor(&daemon).1.contains(bare));
        finds(&daemon, bare, "podman network reload");
        daemon.kill();
        ip("netns del red");
    });
}

#[test]
fn a_container_that_was_forgotten_after_a_kill_is_named_until_it_is_attached_again() {
    let Some(lab) = Lab::new(1) else { return };
    lab.home.within(|| {
        let mut daemon = Daemon::start();
        // The process of a container: the next daemon cannot know whether it is the same one.
        let attach = ["ns", "attach", &lab.guests[0].name(), "vale0:red"];
        assert!(daemon.uvala(&attach).status.success());
        daemon.kill();
        daemon.restart();
        finds(
            &daemon,
            "vale0:red: it was forgotten, because its interface ended",
            "network reload",
        );
        assert!(daemon.uvala(&attach).status.success());
        assert!(!doctor(&daemon).1.contains("forgotten"));
    });
}

#[test]
fn a_daemon_that_has_ended_in_order_was_not_killed() {
    let mut daemon = Daemon::start();
    daemon.terminate();
    wait::until("its end", || daemon.process().has_ended());
    let (status, said) = doctor_with(Some(&daemon.dir()), None);
    assert_eq!(status, Some(1));
    assert!(said.contains("no daemon at") && !said.contains("killed"), "{said}");
}

#[test]
fn a_socket_of_a_port_that_is_gone_is_noted() {
    let daemon = Daemon::start();
    let path = daemon.dir().join("vale0:old.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    finds(&daemon, "is a socket that no process has open", &format!("rm {}", path.display()));
}

#[test]
fn little_room_in_dev_shm_is_noted() {
    if !is_root() {
        return skip("only root mounts a small /dev/shm");
    }
    std::thread::spawn(|| {
        mounts::empty_run();
        let options = ["-t", "tmpfs", "-o", "size=64m", "small", "/dev/shm"];
        assert!(Command::new("mount").args(options).status().unwrap().success());
        let daemon = Daemon::start();
        finds(&daemon, "/dev/shm has 64 MiB", "--shm-size");
    })
    .join()
    .unwrap();
}

#[test]
fn a_device_that_is_no_kvm_is_noted_where_there_are_machines() {
    if !is_root() || !Path::new("/dev/kvm").exists() {
        return skip("only root hides /dev/kvm, where there is one");
    }
    std::thread::spawn(|| {
        mounts::hide_kvm();
        let daemon = Daemon::start();
        assert!(!doctor(&daemon).1.contains("/dev/kvm"));
        let add = ["port", "add", "vale0:vm", "--kind", "vhost-user"];
        assert!(daemon.uvala(&add).status.success());
        finds(&daemon, "/dev/kvm opens, and does not answer as KVM does", "API version 12");
    })
    .join()
    .unwrap();
}

#[test]
fn queues_of_a_machine_that_do_not_fit_its_port_are_named() {
    let daemon = Daemon::start();
    let add = ["port", "add", "vale0:vm", "--kind", "vhost-user", "--queues", "2"];
    assert!(daemon.uvala(&add).status.success());
    let memory = "-object memory-backend-memfd,id=m,size=1G,share=on -numa node,memdev=m";
    let card = "-chardev socket,id=c,path=DIR/vale0:vm.sock";
    for (netdev, device, what) in [
        ("queues=4", "mq=on", "QEMU has 4 queue pairs, and the port 2"),
        ("queues=2", "x=y", "QEMU has 2 queue pairs, but no mq=on, so it uses one"),
        ("queues=2", "mq=on,vectors=3", "fewer vectors than the 6 that 2 pairs need"),
        ("x=y", "x=y", "the port has 2 queue pairs; QEMU uses 1"),
    ] {
        let words = format!(
            "{memory} {card} -netdev vhost-user,id=n,chardev=c,{netdev} \
             -device virtio-net-pci,netdev=n,{device}"
        );
        let _monitor = daemon.monitor(&words);
        wait::until(what, || doctor(&daemon).1.contains(what));
        finds(&daemon, what, "uvala vm-args vale0:vm");
    }
}

#[test]
fn memory_of_a_machine_that_is_not_shared_is_named() {
    let daemon = Daemon::start();
    assert!(daemon.uvala(&["port", "add", "vale0:vm", "--kind", "vhost-user"]).status.success());
    let card = "-chardev socket,id=c,path=DIR/vale0:vm.sock -netdev vhost-user,id=n,chardev=c";
    let _monitor = daemon.monitor(&format!("-m 1G {card}"));
    let what = "the memory of its machine is not shared: no frame arrives";
    wait::until(what, || doctor(&daemon).1.contains(what));
    finds(&daemon, what, "share=on");
}

#[test]
fn a_hostile_command_line_controls_no_terminal_and_gives_no_words_to_a_shell() {
    let daemon = Daemon::start();
    let device = r#"{"driver":"vfio-user-pci","socket":{"path":"DIR/x\u001b[2J;reboot"}}"#;
    let words = format!("-device {device} -netdev $(reboot),addr.path=DIR/vale0:a.sock");
    let _monitor = daemon.monitor(&words);
    let quoted = format!(r"--socket '{}/x\u{{1b}}[2J;reboot', and", daemon.dir().display());
    wait::until(&quoted, || doctor(&daemon).1.contains(&quoted));
    let (_, said) = doctor(&daemon);
    assert!(said.contains("uvala port add vale0:a --kind vhost-user\n"), "{said}");
    assert!(!said.contains('\x1b') && !said.contains("$(reboot)"), "{said}");
}

#[test]
fn a_monitor_that_may_not_connect_is_told_how_it_may() {
    if !is_root() {
        return skip("only root starts a monitor of another user");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    assert!(daemon.uvala(&["port", "add", "vale0:vm", "--kind", "stream"]).status.success());
    let words = format!("-netdev stream,id=n,addr.path={}/vale0:vm.sock", daemon.dir().display());
    let mut command = Command::new("setpriv");
    let user = USER.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["sh", "-c", "read never", "qemu-system-x86_64"]).args(words.split(' '));
    let _monitor = Owned::spawn(command.stdin(Stdio::piped()));
    let what = format!("of {USER}, cannot connect to");
    wait::until(&what, || doctor(&daemon).1.contains(&what));
    finds(&daemon, &what, "--socket in a directory that both may search");
}

#[test]
fn a_machine_that_listens_where_the_port_connects_is_missed() {
    let daemon = Daemon::start();
    let place = Scratch::new("doctor-connect");
    let socket = place.path().join("vm.sock");
    let socket = socket.to_str().unwrap();
    let add = ["port", "add", "vale0:vm", "--kind", "vhost-user", "--socket", socket, "--connect"];
    let added = daemon.uvala(&add);
    assert!(added.status.success(), "{added:?}");
    finds(&daemon, "no VMM listens at", "server=on");
}

/// Findings about a configuration.
fn check(text: &str) -> (Option<i32>, Value) {
    let place = Scratch::new("doctor-config");
    let file = place.path().join("uvala.toml");
    std::fs::write(&file, text).unwrap();
    check_file(&file)
}

fn check_file(file: &Path) -> (Option<i32>, Value) {
    let words = ["doctor", "--json", file.to_str().unwrap()];
    let output = uvala(Become::default(), &words, None).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    assert_eq!(check("[switch.vale0.port.a]\n"), (Some(0), Value::Array(Vec::new())));
    for (text, level, wanted) in [
        ("[swich.vale0]\n", "problem", "swich"),
        ("log = \"loud\"\n", "problem", "error, warn"),
        ("[workers]\ncpus = [1023]\n", "problem", "CPU 1023"),
        ("helper = \"/no/such/helper\"\n", "problem", "helper /no/such/helper does not exist"),
        ("vm_sockets = [\"/no/such/dir\"]\n", "problem", "/no/such/dir, which is no directory"),
        (
            "[switch.vale0.port.a]\nkind = \"packet\"\nifname = \"nosuch0\"\n",
            "note",
            "there is no interface nosuch0",
        ),
        (
            "[switch.vale0.port.a]\nkind = \"tap\"\nnetns = \"nosuchns\"\n",
            "note",
            "there is no network namespace nosuchns",
        ),
        (
            "[switch.vale0.port.a]\nkind = \"tap\"\nnetns = \"/run/netns/nosuchns\"\n",
            "note",
            "there is no network namespace at /run/netns/nosuchns",
        ),
        (
            "[switch.vale0.port.a]\nkind = \"stream\"\nsocket = \"/no/dir/a.sock\"\n",
            "problem",
            "there is no directory for socket /no/dir/a.sock",
        ),
    ] {
        let (status, found) = check(text);
        assert_eq!(status, Some(i32::from(level == "problem")), "{text}: {found}");
        let [finding] = &found.as_array().unwrap()[..] else { panic!("{text}: {found}") };
        assert!(finding["what"].as_str().unwrap().contains(wanted), "{text}: {found}");
        assert_eq!(finding["level"], level, "{text}");
        assert!(!finding["cure"].as_str().unwrap().is_empty());
    }
    let (status, found) = check_file(uvala_path());
    let cure = found[0]["cure"].as_str().unwrap();
    assert!(status == Some(1) && cure == "name a configuration file, which is text", "{found}");
    let (status, found) = check_file(Path::new("/no/such.toml"));
    let what = found[0]["what"].as_str().unwrap();
    assert!(status == Some(1) && what.starts_with("/no/such.toml: No such file"), "{found}");
}

//! `uvala internet`: stations that have no way out but passt.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::daemon::Daemon;
use harness::guest::{Console, Kit};
use harness::lab::{self, Lab};
use harness::net::{Namespace, ip, tcp};
use harness::process::{Owned, Scratch, uvala_path};
use harness::{skip, wait};
use rustix::process::{Pid, Signal, kill_process};

/// The address of the world, beyond the host's only interface.
const WORLD: &str = "192.0.2.1";
const HOST: &str = "192.0.2.5";
const HELLO: &str = "hello from the world";

/// Namespaces for so many stations, and a world, which is the last one.
fn lab(stations: usize) -> Option<Lab> {
    for program in ["passt", "busybox"] {
        if Command::new(program).arg("--help").output().is_err() {
            skip(&format!("no {program}: run .ci/prepare and .ci/guests as root"));
            return None;
        }
    }
    Lab::new(stations + 1)
}

/// Runs a story with a daemon where the world is one hop away, and has a page.
fn with_world(lab: &Lab, story: impl FnOnce(&mut Daemon) + Send) {
    lab.home.within(|| {
        let world = lab.guests.last().unwrap();
        lab::veth(world, "out", &format!("{WORLD}/24"), "");
        ip(&format!("addr add {HOST}/24 dev out"));
        ip(&format!("route add default via {WORLD}"));
        let server = world.within(|| TcpListener::bind((WORLD, 80)).unwrap());
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let _ = answer(stream.unwrap());
            }
        });
        story(&mut Daemon::start());
    });
}

/// Answers whatever is asked by HTTP.
fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{HELLO}", HELLO.len())
}

fn fetch(address: &str, port: u16) -> std::io::Result<String> {
    let address = format!("{address}:{port}").parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page).map(|_| page)
}

/// `uvala internet`, once it has its port.
fn internet(daemon: &Daemon, words: &str) -> Owned {
    let mut command = Command::new(uvala_path());
    command.arg("--dir").arg(daemon.dir()).arg("internet").args(words.split_whitespace());
    let mut process = Owned::spawn(command.stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(process.stdout()).read_line(&mut line).unwrap();
    assert!(line.contains(":internet: 10.0.2.0/24, router 10.0.2.2"), "{line}");
    process
}

/// Gives a namespace an interface on a switch, and that an address by DHCP.
fn join(daemon: &Daemon, guest: &Namespace, port: &str, place: &Scratch) -> String {
    let output = daemon.uvala(&["ns", "attach", &guest.name(), port]);
    assert!(output.status.success(), "{output:?}");
    lease(guest, place)
}

fn lease(guest: &Namespace, place: &Scratch) -> String {
    let (script, said) = (place.path().join("lease"), place.path().join("said"));
    let text = format!(
        "#!/bin/sh\n[ $1 = bound ] || exit 0\nip addr add $ip/$mask dev $interface\n\
         ip route add default via $router\necho $ip $dns > {}\n",
        said.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = ["udhcpc", "-i", "eth0", "-q", "-n", "-t", "30", "-T", "1", "-s"];
    let output =
        guest.within(|| Command::new("busybox").args(words).arg(&script).output().unwrap());
    assert!(output.status.success(), "{output:?}");
    let said = std::fs::read_to_string(said).unwrap();
    let (address, dns) = said.trim().split_once(' ').unwrap();
    assert_eq!(dns, "10.0.2.3");
    address.to_owned()
}

/// The processes of passt that a process has.
fn passts(pid: u32) -> Vec<i32> {
    let all = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    all.unwrap_or_default().split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn stations_get_addresses_and_pages_and_a_passt_that_dies_is_started_again() {
    let Some(lab) = lab(2) else { return };
    with_world(&lab, |daemon| {
        let place = Scratch::new("internet");
        let mut internet = internet(daemon, "");
        let [red, blue, _] = &lab.guests[..] else { panic!() };
        let red_is = join(daemon, red, "vale0:red", &place);
        let blue_is = join(daemon, blue, "vale0:blue", &place);
        assert_ne!(red_is, blue_is);
        for station in [red, blue] {
            let page = station.within(|| fetch(WORLD, 80)).unwrap();
            assert!(page.contains(HELLO), "{page}");
        }
        // Between each other, passt is not in the way.
        tcp(red, blue, &blue_is, 1 << 20);
        // Above those that are given, addresses are free.
        blue.ip("addr flush dev eth0");
        blue.ip("addr add 10.0.2.240/24 dev eth0");
        blue.ip("route add default via 10.0.2.2");
        blue.within(|| wait::find("a page", || fetch(WORLD, 80).ok()));
        let old = passts(internet.pid());
        assert_eq!(old.len(), 2);
        for passt in &old {
            kill_process(Pid::from_raw(*passt).unwrap(), Signal::KILL).unwrap();
        }
        let page = red.within(|| wait::find("a page by another passt", || fetch(WORLD, 80).ok()));
        assert!(page.contains(HELLO), "{page}");
        assert_eq!(lease(red, &place), red_is, "the address stays");
        let now = passts(internet.pid());
        internet.signal(Signal::TERM);
        internet.wait();
        wait::until("the end of all", || !now.iter().any(|pid| lives(*pid)));
        wait::until("the end of its port", || daemon.port("vale0:internet").is_none());
    });
}

#[test]
fn a_port_of_the_host_is_a_station_s_and_so_is_it_after_a_restart_of_the_daemon() {
    let Some(lab) = lab(1) else { return };
    with_world(&lab, |daemon| {
        let place = Scratch::new("internet-forward");
        let mut internet = internet(daemon, "vale0 -t 8080:80 --mtu 1400");
        let [red, world] = &lab.guests[..] else { panic!() };
        let red_is = join(daemon, red, "vale0:red", &place);
        let server = red.within(|| TcpListener::bind((&red_is[..], 80)).unwrap());
        std::thread::spawn(move || {
            for stream in server.incoming() {
                let _ = answer(stream.unwrap());
            }
        });
        let fetch = || world.within(|| wait::find("a page", || fetch(HOST, 8080).ok()));
        assert!(fetch().contains(HELLO));
        daemon.kill();
        daemon.restart();
        // Whatever the daemon has restored of it.
        let _ = daemon.uvala(&["ns", "detach", "vale0:red"]);
        assert_eq!(join(daemon, red, "vale0:red", &place), red_is);
        assert!(fetch().contains(HELLO));
        // The operator takes the port away, and the command ends.
        let output = daemon.uvala(&["port", "del", "vale0:internet"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(internet.wait().code(), Some(1));
        assert!(daemon.port("vale0:internet").is_none());
    });
}

#[test]
fn what_is_missing_or_there_already_is_said() {
    let daemon = Daemon::start();
    let run = |words: &[&str], path: &str| {
        let mut command = Command::new(uvala_path());
        command.arg("--dir").arg(daemon.dir()).arg("internet").args(words);
        let output = command.env("PATH", path).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run(&[], "/nowhere");
    assert!(code == Some(1) && text.contains("apt install passt"), "{text}");
    for passt in ["/nowhere/passt", "/etc/passwd", "/bin/false"] {
        let (code, text) = run(&["--passt", passt], "/bin");
        let says = text.contains(passt) && text.contains("say where passt is (--passt)");
        assert!(code == Some(1) && says, "{text}");
    }
    let place = Scratch::new("hangs");
    let hangs = place.path().join("passt");
    std::fs::write(&hangs, "#!/bin/sh\nsleep 30\nexit 1\n").unwrap();
    std::fs::set_permissions(&hangs, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, text) = run(&["--passt", hangs.to_str().unwrap()], "/bin");
    assert!(code == Some(1) && text.contains("no answer within 10 s; say where"), "{text}");
    let output = daemon.uvala(&["port", "add", "vale0:internet"]);
    assert!(output.status.success());
    let (code, text) = run(&["--passt", "/bin/true"], "/bin");
    assert!(code == Some(11) && text.contains("vale0:internet"), "{text}");
    let (code, text) = run(&["--network", "10.0.0.0/8"], "/bin");
    assert!(code == Some(2) && text.contains("10.0.2.0/24"), "{text}");
}

/// Two machines, as they are typed into two terminals.
#[test]
fn two_machines_get_a_page_each_with_one_option() {
    let (Some(kit), Some(lab)) = (Kit::find(), lab(0)) else { return };
    with_world(&lab, |daemon| {
        let kernel = kit.kernel("kernel").expect("it was found");
        let machine = || {
            let mut command = Command::new(uvala_path());
            command.arg("--dir").arg(daemon.dir()).args(["vm", "run", "--internet"]);
            command.args(["--memory", "128M", "--accel", "tcg", "--qemu"]).arg(kit.qemu());
            // Without KVM on a busy machine, the kernel's look at the timer fails now and then.
            command.args(["--append", "no_timer_check"]);
            Console::start(command.arg(&kernel))
        };
        let mut machines = [machine(), machine()];
        for machine in &mut machines {
            machine.hear("This is 10.0.2.");
            machine.hear("# ");
        }
        // The internet goes on when the first machine, whose command brought it, has ended.
        for machine in &mut machines {
            machine.enter(&format!("wget -q -O - http://{WORLD}/"));
            machine.hear(HELLO);
            machine.enter("exit");
            assert!(machine.process().wait().success());
        }
        wait::until("the end of all ports", || daemon.ports().is_empty());
    });
}

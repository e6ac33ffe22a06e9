//! Functions in the box, each between namespaces, with the example files that people copy.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use client::Port;
use harness::chain::functions;
use harness::daemon::Daemon;
use harness::lab::Lab;
use harness::net::{Namespace, tcp};
use harness::process::{Owned, Scratch, uvala};
use harness::role::Become;
use harness::{skip, wait};
use rustix::net::{AddressFamily, RecvFlags, SendFlags};
use rustix::process::Signal;

/// The example of this name.
fn example(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join("examples/nf").join(name)).unwrap()
}

/// What `uvala` prints.
fn says(daemon: &Daemon, words: &str) -> String {
    let output = daemon.uvala(&words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A daemon, and files for its functions.
struct Box<'a> {
    daemon: &'a Daemon,
    place: Scratch,
}

impl<'a> Box<'a> {
    fn new(daemon: &'a Daemon) -> Self {
        Self { daemon, place: Scratch::new("functions_box") }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.place.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Applies an example for two namespaces, in which it calls them red and blue.
    fn apply(&self, text: &str, lab: &Lab) {
        let mut text = text.to_owned();
        for (guest, colour) in lab.guests.iter().zip(["red", "blue"]) {
            let namespace = format!("netns = \"{}\"", guest.name());
            text = text.replace(&format!("netns = \"{colour}\""), &namespace);
        }
        says(self.daemon, &format!("apply {}", self.write("apply.toml", &text)));
    }

    /// Runs a function on the port of its service's name.
    fn run(&self, function: &str, port: &str, text: &str) -> Owned {
        let file = self.write(&format!("{port}.toml"), text);
        let port = format!("valenf:{port}");
        let mut command =
            uvala(Become::default(), &["nf", "run", function, &port, "-c", &file], None);
        command.env("UVALA_DIR", self.daemon.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
        let process = Owned::spawn(&mut command);
        wait::until("an instance", || {
            let list = says(self.daemon, "nf list valenf");
            list.lines().any(|line| line.contains(&format!("{port} ")) && line.contains(" up "))
        });
        process
    }
}

/// A chain of these services from `valenf:a` to `valenf:b`, which are opened.
fn chain(daemon: &Daemon, services: &[&str]) -> (Port, Port) {
    says(daemon, "switch add valenf --forwarding chain");
    for service in services {
        says(daemon, &format!("port add valenf:{service} --service {service}"));
    }
    says(daemon, &format!("chain add valenf all {}", services.join(",")));
    says(daemon, "port add valenf:a --chain all");
    says(daemon, "port add valenf:b");
    (daemon.open("valenf:a"), daemon.open("valenf:b"))
}

/// A UDP packet with this in it.
fn datagram(payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let len = u16::try_from(28 + payload.len()).unwrap();
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet.extend([0, 7, 0, 53]);
    packet.extend((len - 20).to_be_bytes());
    packet.extend([0, 0]);
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 0], &packet, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// Frames that come, until one is `last`.
fn until(port: &mut Port, last: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let mut frame = Vec::new();
        assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap(), "it never came");
        if frame == last {
            return all;
        }
        all.push(frame);
    }
}

/// A frame that no function is for.
fn unconcerned() -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[0; 46]].concat()
}

/// Ends a function, and reads what it says that it counted.
fn counted<const N: usize>(mut function: Owned, names: [&str; N]) -> [u64; N] {
    function.signal(Signal::TERM);
    let mut said = String::new();
    function.stdout().read_to_string(&mut said).unwrap();
    assert!(function.wait().success(), "{said}");
    let words: Vec<&str> = said.split([' ', ',', '\n']).collect();
    names.map(|name| {
        let at = words.iter().position(|word| *word == name).expect(&said);
        words[at + 1].parse().unwrap()
    })
}

/// Gives both namespaces their addresses, and red a route by the router.
fn addresses(lab: &Lab, guests: &[(usize, &str)]) {
    for (guest, address) in guests {
        lab.guests[*guest].ip("link set eth0 up");
        lab.guests[*guest].ip(&format!("addr add {address} dev eth0"));
    }
}

/// The address from which a server there sees a connection from here.
fn seen(from: &Namespace, to: &Namespace, listen: &str, connect: &str) -> IpAddr {
    let listen: SocketAddr = listen.parse().unwrap();
    let listener = to.within(|| TcpListener::bind(listen).unwrap());
    let port = listener.local_addr().unwrap().port();
    let mut connect: SocketAddr = connect.parse().unwrap();
    connect.set_port(if connect.port() == 0 { port } else { connect.port() });
    let mut stream = from.within(|| {
        wait::find("a connection", || {
            TcpStream::connect_timeout(&connect, Duration::from_secs(5)).ok()
        })
    });
    stream.write_all(b"hello").unwrap();
    let (mut accepted, peer) = listener.accept().unwrap();
    let mut said = [0; 5];
    accepted.read_exact(&mut said).unwrap();
    accepted.write_all(b"there").unwrap();
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"there");
    peer.ip()
}

#[test]
fn a_nat_shows_its_own_address_and_forwards_to_a_server_inside() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        let all = Box::new(daemon);
        all.apply(&example("home.toml"), lab);
        red.ip("route add default via 10.0.1.1");
        let _firewall = all.run("firewall", "fw", &example("firewall-forward.toml"));
        let nat = all.run("nat", "nat", &example("nat.toml"));
        let _router = all.run("router", "r", &example("router.toml"));
        let own = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));
        assert_eq!(seen(red, blue, "10.0.2.2:0", "10.0.2.2:0"), own);
        tcp(red, blue, "10.0.2.2", 1 << 20);
        // Blue has no route to red, and needs none.
        let stranger = seen(blue, red, "10.0.1.2:80", "10.0.2.1:8080");
        assert_eq!(stranger, IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2)));
        // By its address outside, red reaches itself.
        assert_eq!(seen(red, red, "10.0.1.2:80", "10.0.2.1:8080"), own);
        nat.signal(Signal::HUP);
        assert_eq!(seen(red, blue, "10.0.2.2:0", "10.0.2.2:0"), own);
        assert!(counted(nat, ["hairpin"])[0] > 0);
    });
}

/// Tells each client that connects its address, for as long as the test runs.
fn serve(at: &Namespace, address: &str) {
    let listener = at.within(|| TcpListener::bind(address).unwrap());
    let name = address.as_bytes()[7];
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(&[name]));
        }
    });
}

/// Which server answers, if the balancer is asked.
fn asked(from: &Namespace) -> u8 {
    from.within(|| {
        let mut answer = [0];
        wait::find("an answer", || {
            let to = "10.0.1.1:80".parse().unwrap();
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            stream.read_exact(&mut answer).ok()
        });
        answer[0]
    })
}

#[test]
fn a_balancer_shares_connections_out_and_lets_a_server_finish() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        let all = Box::new(daemon);
        let web = example("two-namespaces.toml");
        let web =
            web.replace("port.fw]\nservice = \"firewall\"", "port.lb]\nservice = \"balancer\"");
        all.apply(&web.replace("[\"firewall\", \"router\"]", "[\"balancer\", \"router\"]"), lab);
        addresses(lab, &[(1, "10.0.2.3/24")]);
        red.ip("route add default via 10.0.1.1");
        blue.ip("route add default via 10.0.2.1");
        serve(blue, "10.0.2.2:8080");
        serve(blue, "10.0.2.3:8080");
        let balancer = all.run("balancer", "lb", &example("balancer.toml"));
        let _router = all.run("router", "r", &example("router.toml"));
        let answers: Vec<u8> = (0..40).map(|_| asked(red)).collect();
        assert!(answers.contains(&b'2') && answers.contains(&b'3'), "{answers:?}");
        let finishes = example("balancer.toml").replace("weight = 1", "weight = 0");
        all.write("lb.toml", &finishes);
        balancer.signal(Signal::HUP);
        let mut last = Vec::new();
        wait::until("a server that is asked no more", || {
            last.push(asked(red));
            last.ends_with(&[b'2'; 20])
        });
        assert_eq!(counted(balancer, ["no_backend", "forgotten"]), [0, 0]);
    });
}

/// Adds up words as IP does, and inverts that.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    let folded = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from(folded & 0xffff).unwrap()).to_be_bytes()
}

/// An echo request (8) or reply (0).
fn echo(kind: u8, id: u16) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &id.to_be_bytes(), &[0, 1]].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// A segment from blue to red.
fn segment([from, to]: [u16; 2], flags: u8) -> Vec<u8> {
    let mut segment = [from.to_be_bytes(), to.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    let pseudo = [10, 0, 2, 2, 10, 0, 1, 2, 0, 6, 0, 20];
    let sum = checksum(&[&pseudo[..], &segment].concat());
    segment[16..18].copy_from_slice(&sum);
    segment
}

/// A socket for all packets of a protocol, their headers made by the kernel.
struct Raw(OwnedFd);

impl Raw {
    fn new(at: &Namespace, protocol: rustix::net::Protocol) -> Self {
        let kind = rustix::net::SocketType::RAW;
        let open = || rustix::net::socket(AddressFamily::INET, kind, Some(protocol));
        Self(at.within(open).unwrap())
    }

    fn send(&self, to: &str, message: &[u8]) {
        let to: SocketAddr = format!("{to}:0").parse().unwrap();
        let sent = rustix::net::sendto(&self.0, message, SendFlags::empty(), &to);
        assert_eq!(sent, Ok(message.len()));
    }

    /// The messages since the last call, without IP headers.
    fn got(&self) -> Vec<Vec<u8>> {
        let (mut packet, mut all) = ([0; 2048], Vec::new());
        while let Ok((len, _)) = rustix::net::recv(&self.0, &mut packet[..], RecvFlags::DONTWAIT) {
            all.push(packet[20..len].to_vec());
        }
        all
    }
}

/// What the firewall has counted by its three rules, as a listing shows it.
fn by_rule(daemon: &Daemon) -> [u64; 3] {
    let list: serde_json::Value =
        serde_json::from_str(&says(daemon, "nf list valenf --json")).unwrap();
    let rows = list.as_array().unwrap();
    let firewall = rows.iter().find(|row| row["service"] == "firewall").unwrap();
    [1, 2, 3].map(|n| firewall["counts"][format!("rule_{n}")].as_u64().unwrap_or(0))
}

#[test]
fn a_firewall_lets_answers_in_and_nothing_that_nobody_asked_for() {
    const RULES: &str = "[[rule]]\naction = \"accept\"\nsrc = \"10.0.1.0/24\"\n\
        [[rule]]\naction = \"drop\"\nproto = \"icmp\"\n\
        [[rule]]\naction = \"drop\"\nproto = \"tcp\"\n";
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        let all = Box::new(daemon);
        all.apply(&example("two-namespaces.toml"), lab);
        red.ip("route add default via 10.0.1.1");
        blue.ip("route add default via 10.0.2.1");
        let firewall = all.run("firewall", "fw", RULES);
        let _router = all.run("router", "r", &example("router.toml"));
        let icmp = [red, blue].map(|at| Raw::new(at, rustix::net::ipproto::ICMP));
        let ping = |id| {
            wait::until("an answer to a ping", || {
                icmp[0].send("10.0.2.2", &echo(8, id));
                icmp[0].got().contains(&echo(0, id))
            });
        };
        ping(7);
        tcp(red, blue, "10.0.2.2", 1 << 20);
        let listener = blue.within(|| TcpListener::bind("10.0.2.2:0").unwrap());
        let known = red.within(|| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let ends = [listener.local_addr().unwrap().port(), known.local_addr().unwrap().port()];
        let segments = [red, blue].map(|at| Raw::new(at, rustix::net::ipproto::TCP));
        // An answer without a ping, and a ping by the other end.
        let messages = [echo(0, 9), echo(8, 7)];
        messages.iter().for_each(|message| icmp[1].send("10.0.1.2", message));
        // Of a connection that there is not, and the beginning of one that there is.
        let unsolicited = [segment([80, 9999], ACK), segment(ends, SYN)];
        unsolicited.iter().for_each(|segment| segments[1].send("10.0.1.2", segment));
        let opened = wait::find("drops by rule", || {
            let [opened, of_icmp, of_tcp] = by_rule(daemon);
            (of_icmp >= 2 && of_tcp >= 2).then_some(opened)
        });
        assert!(icmp[0].got().iter().all(|message| !messages.contains(message)));
        assert!(segments[0].got().iter().all(|segment| !unsolicited.contains(segment)));
        ping(8);
        tcp(red, blue, "10.0.2.2", 1 << 20);
        wait::until("more connections", || by_rule(daemon)[0] >= opened + 2);
        assert_eq!(by_rule(daemon)[1..], [2, 2], "answers are not counted there");
        // It was the firewall that kept them out.
        all.write("fw.toml", "default = \"accept\"\n");
        firewall.signal(Signal::HUP);
        wait::until("what no caller asked for", || {
            icmp[1].send("10.0.1.2", &echo(0, 9));
            icmp[0].got().contains(&echo(0, 9))
        });
    });
}

#[test]
fn a_limiter_passes_a_burst_and_its_rate() {
    let daemon = Daemon::start();
    let (mut a, mut b) = chain(&daemon, &["limiter"]);
    let all = Box::new(&daemon);
    let text = "[[limit]]\nmatch = { proto = \"udp\" }\nframes_per_s = 1\nburst_s = 10\n";
    let begin = Instant::now();
    let limiter = all.run("limiter", "limiter", text);
    (0..200).for_each(|_| a.send(&datagram(b"much")).unwrap());
    a.send(&unconcerned()).unwrap();
    let came = until(&mut b, &unconcerned()).len() as u64;
    // One more for each second that this took, however slow the machine is.
    assert!((10..=11 + begin.elapsed().as_secs()).contains(&came), "{came}");
    let [passed, dropped] = counted(limiter, ["limit_1_passed", "limit_1_dropped"]);
    assert_eq!((passed, dropped), (came, 200 - came));
}

#[test]
fn a_matcher_drops_and_sends_elsewhere_by_what_is_in_packets() {
    let daemon = Daemon::start();
    let (mut a, mut b) = chain(&daemon, &["matcher"]);
    let all = Box::new(&daemon);
    let text = "[[pattern]]\ntext = \"evil\"\naction = \"drop\"\n[[pattern]]\ntext = \"odd\"\n\
        action = { service = \"scanner\" }\n";
    let file = all.write("refused.toml", text);
    let refused = daemon.uvala(&["nf", "run", "matcher", "valenf:matcher", "-c", &file]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("--service scanner"), "{said}");
    says(&daemon, "port add valenf:scanner --service scanner");
    let matcher = all.run("matcher", "matcher", text);
    let _scanner = all.run("bypass", "scanner", "");
    for payload in ["good", "evil", "very odd", "good", "evil and odd", "odd"] {
        a.send(&datagram(payload.as_bytes())).unwrap();
    }
    let came: Vec<Vec<u8>> = (0..4)
        .map(|_| {
            let mut frame = Vec::new();
            assert!(b.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap());
            frame
        })
        .collect();
    assert!(!came.contains(&datagram(b"evil")) && came.contains(&datagram(b"very odd")));
    let list: serde_json::Value =
        serde_json::from_str(&says(&daemon, "nf list valenf --json")).unwrap();
    let scanner = list.as_array().unwrap().iter().find(|row| row["service"] == "scanner").unwrap();
    assert_eq!(scanner["frames_in"], 2, "{list}");
    assert_eq!(counted(matcher, ["pattern_1", "pattern_2", "looked_into"]), [2, 3, 6]);
}

#[test]
fn an_exporter_reports_flows_to_a_collector() {
    let daemon = Daemon::start();
    let (mut a, mut b) = chain(&daemon, &["exporter"]);
    let all = Box::new(&daemon);
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(wait::PATIENCE)).unwrap();
    let text = format!("collector = \"{}\"\n", collector.local_addr().unwrap());
    let exporter = all.run("exporter", "exporter", &text);
    (0..5).for_each(|_| a.send(&datagram(b"hello")).unwrap());
    a.send(&unconcerned()).unwrap();
    assert_eq!(until(&mut b, &unconcerned()), vec![datagram(b"hello"); 5]);
    assert_eq!(counted(exporter, ["packets", "not_ip", "records"]), [5, 1, 1]);
    let mut message = [0; 2000];
    let len = collector.recv(&mut message).unwrap();
    // Header, both templates, the head of a set: the record begins with octets and packets.
    let number = |at: usize| u64::from_be_bytes(message[at..at + 8].try_into().unwrap());
    assert_eq!((message[1], len, number(112), number(120)), (10, 112 + 46, 5 * 33, 5));
}

#[test]
fn a_tunnel_ends_at_a_vxlan_device_of_linux() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        let all = Box::new(daemon);
        all.apply(&example("tunnel-switch.toml"), lab);
        addresses(lab, &[(0, "10.9.0.1/24"), (1, "192.0.2.2/24")]);
        red.ip("link set eth0 mtu 1450");
        let vxlan = "link add vx0 mtu 1450 type vxlan id 42 remote 192.0.2.1 dstport 4789";
        let words: Vec<&str> = vxlan.split(' ').collect();
        if !blue.within(|| Command::new("ip").args(words).status().unwrap().success()) {
            return skip("this kernel has no vxlan");
        }
        blue.ip("link set vx0 up");
        blue.ip("addr add 10.9.0.2/24 dev vx0");
        let tunnel = all.run("tunnel", "tunnel", &example("tunnel.toml"));
        tcp(red, blue, "10.9.0.2", 1 << 20);
        tcp(blue, red, "10.9.0.1", 1 << 20);
        // Too long for a packet, if red does not know.
        red.ip("link set eth0 mtu 1500");
        red.within(|| {
            let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
            socket.send_to(&[1; 1472], "10.9.0.2:9").unwrap();
            wait::until("a frame that is too long", || {
                socket.send_to(&[1; 1472], "10.9.0.2:9").unwrap();
                dropped(daemon) > 0
            });
        });
        let [wrapped, unwrapped, long] = counted(tunnel, ["wrapped", "unwrapped", "too_long"]);
        assert!(wrapped > 700 && unwrapped > 700 && long > 0, "{wrapped} {unwrapped} {long}");
    });
}

#[test]
fn packets_for_a_neighbour_that_does_not_answer_are_drops_of_the_router() {
    let daemon = Daemon::start();
    let (mut a, _b) = chain(&daemon, &["router"]);
    let text = "[[interface]]\naddress = \"10.0.0.254/24\"\n";
    let _router = Box::new(&daemon).run("router", "router", text);
    let mut frame = datagram(b"hello");
    frame[..6].copy_from_slice(&[2, 0x75, 0x76, 0x61, 0x6c, 1]);
    let sum = packet::checksum::checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    (0..47).for_each(|_| a.send(&frame).unwrap());
    wait::until("all to be given up", || dropped(&daemon) == 47);
    // The function says once a second what it has counted itself.
    let told = || functions(&daemon)[0].counts.get("unresolved") == Some(&47);
    wait::until("its own count", told);
    let router = &functions(&daemon)[0];
    assert_eq!(router.frames_in, 47);
    // What it sent on are questions for the neighbour, and an ICMP message for each packet.
    assert!((48..=57).contains(&router.frames_out), "{router:?}");
}

/// Frames that functions wanted dropped.
fn dropped(daemon: &Daemon) -> u64 {
    let list: serde_json::Value =
        serde_json::from_str(&says(daemon, "nf list valenf --json")).unwrap();
    list.as_array().unwrap().iter().map(|row| row["dropped"].as_u64().unwrap()).sum()
}

#[test]
fn functions_go_on_with_the_next_daemon() {
    let mut daemon = Daemon::start();
    drop(chain(&daemon, &["bypass"]));
    let mut function = Box::new(&daemon).run("bypass", "bypass", "");
    for _ in 0..2 {
        daemon.restart();
        wait::until("the function", || says(&daemon, "nf list valenf").contains(" up "));
        let (mut a, mut b) = (daemon.open("valenf:a"), daemon.open("valenf:b"));
        a.send(&datagram(b"again")).unwrap();
        a.send(&unconcerned()).unwrap();
        assert_eq!(until(&mut b, &unconcerned()), [datagram(b"again")]);
    }
    assert!(!function.has_ended());
}

#[test]
fn numbers_that_do_not_change_are_told_to_the_next_daemon() {
    let mut daemon = Daemon::start();
    drop(chain(&daemon, &["firewall"]));
    let rules = "[[rule]]\naction = \"drop\"\nproto = \"icmp\"\n";
    let _function = Box::new(&daemon).run("firewall", "firewall", rules);
    for _ in 0..2 {
        wait::until("its numbers", || says(&daemon, "nf list valenf").contains("rule_1 0"));
        let metrics = says(&daemon, "metrics");
        let own = r#"{switch="valenf",service="firewall",service_instance="0",port="firewall""#;
        for sample in [
            format!("uvala_function_events_total{own},name=\"rule_1\"}} 0"),
            format!("uvala_function_values{own},name=\"connections\"}} 0"),
        ] {
            assert!(metrics.lines().any(|line| line == sample), "{metrics}");
        }
        daemon.restart();
    }
}

#[test]
fn the_busiest_function_is_on_top() {
    let daemon = Daemon::start();
    let (mut a, mut b) = chain(&daemon, &["first", "bypass"]);
    let all = Box::new(&daemon);
    let _first = all.run("bypass", "first", "");
    let _second = all.run("bypass", "bypass", "");
    says(&daemon, "port add valenf:lazy --service lazy");
    let mut command = uvala(Become::default(), &["nf", "top", "--json"], None);
    command.env("UVALA_DIR", daemon.dir()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut top = Owned::spawn(&mut command);
    let mut lines = BufReader::new(top.stdout()).lines().map_while(Result::ok);
    wait::until("a rate", || {
        a.send(&unconcerned()).unwrap();
        until(&mut b, &unconcerned());
        let rows: serde_json::Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        let busy = rows[0]["frames_in_per_s"].as_f64().unwrap();
        assert_eq!((rows.as_array().unwrap().len(), &rows[2]["service"]), (3, &"lazy".into()));
        busy > 0.0 && rows[0]["cpu_percent"].is_number()
    });
}

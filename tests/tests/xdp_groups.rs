//! Interfaces in a trust group: frames between the wire and the group's members are not copied.

use std::collections::BTreeSet;
use std::time::Duration;

use client::{Port, slot_flag};
use harness::chain::audit;
use harness::daemon::{Daemon, Setup};
use harness::frames::{Tally, announcement, fill, mac};
use harness::lab::{Lab, add, becomes, delete, has_xdp, host, refusal, veth};
use harness::net::{Namespace, ip, tcp, udp};
use harness::process::{Owned, Peer, uvala};
use harness::role::{Become, Role, Scribble};
use harness::{skip, wait};
use protocol::{ErrorCode, HostIf, LinkState, PortKind};

const MEGABYTE: usize = 1 << 20;
/// Chunks of a port with one queue.
const STOCK: u32 = 2048 + 1024;

fn grouped() -> HostIf {
    HostIf { trust_group: Some("nf".to_owned()), ..HostIf::default() }
}

/// Adds an interface to the group; `false`: AF_XDP cannot be had here.
fn xdp(daemon: &Daemon, port: &str) -> bool {
    has_xdp(add(daemon, port, PortKind::Xdp, grouped()))
}

/// Without what stacks say of their own accord.
fn quiet(lab: &Lab) {
    let quiet = || drop(std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"));
    lab.home.within(quiet);
    lab.guests.iter().for_each(|guest| guest.within(quiet));
}

/// The other end of a veth pair as a port of a second switch.
fn wire(daemon: &Daemon, guest: &Namespace) -> Port {
    let eth0 =
        HostIf { ifname: Some("eth0".to_owned()), netns: Some(guest.name()), ..HostIf::default() };
    add(daemon, "vale1:wire", PortKind::Packet, eth0).unwrap();
    daemon.open("vale1:far")
}

/// Buffers that a port of the group was given, and has.
fn buffers(daemon: &Daemon, port: &str) -> Option<(u32, u32)> {
    let groups = audit(daemon);
    let mut members = groups.iter().flat_map(|group| &group.members);
    let member = members.find(|member| member.port.to_string() == port)?;
    Some((member.given, member.owned))
}

/// A stream of frames of many lengths from one port to another, which looks at each with its
/// slot's flags.
struct Stream<'a> {
    from: &'a mut Port,
    to: &'a mut Port,
    number: u32,
    station: u32,
}

impl Stream<'_> {
    const FRAMES: u64 = 6000;

    fn run(self, mut look: impl FnMut(u16)) {
        let (mut tally, mut frame, mut scratch) = (Tally::default(), Vec::new(), Vec::new());
        let (mut sent, mut seen) = (0, 0);
        self.to.send(&announcement(self.station)).unwrap();
        // When the frame arrives at the other end, the forwarding member has seen it.
        wait::until("the announcement", || {
            let rx = self.from.rx(0);
            rx.wait(Some(Duration::from_millis(10))).unwrap();
            let there = (0..rx.available()).any(|i| rx.frame(i)[6..12] == mac(self.station));
            let count = rx.available();
            rx.release(count).unwrap();
            there
        });
        while seen < Self::FRAMES {
            for _ in 0..50.min(Self::FRAMES - sent) {
                let len = 60 + usize::try_from(sent * 97 % 1455).unwrap();
                fill(&mut frame, mac(self.station), self.number, sent, len);
                self.from.send(&frame).unwrap();
                sent += 1;
            }
            wait::until("frames", || {
                let rx = self.to.rx(0);
                rx.wait(Some(Duration::from_millis(10))).unwrap();
                let count = rx.available();
                for i in 0..count {
                    if tally.count(rx.frame(i), &mut scratch).is_some() {
                        look(rx.flags(i));
                        seen += 1;
                    }
                }
                rx.release(count).unwrap();
                seen >= sent
            });
        }
        tally.assert_whole(self.number, Self::FRAMES);
    }
}

/// Addresses of all buffers of a port's transmit ring.
fn addresses(port: &mut Port) -> BTreeSet<usize> {
    let tx = port.tx(0);
    let all = tx.space();
    (0..all).map(|i| tx.buffer(i).as_ptr().addr()).collect()
}

#[test]
fn members_get_the_buffers_that_the_kernel_has_filled_and_others_get_copies() {
    let Some(lab) = Lab::new(1) else { return };
    quiet(&lab);
    lab.tell(|daemon, lab| {
        veth(&lab.guests[0], "red", "10.0.0.1/24", "");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        let how = host(daemon, "vale0:red").how.unwrap();
        assert!(how.contains("in the memory of trust group nf, 33 MiB of it locked"), "{how}");
        let shown = daemon.uvala(&["port", "show", "vale0:red"]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains(&how) && shown.contains("trust group      nf"), "{shown}");
        let mut far = wire(daemon, &lab.guests[0]);
        let mut member = daemon.options().group("nf").open("vale0:nf").unwrap();
        let mut stranger = daemon.open("vale0:out");
        let exchanged = |flags: u16| flags & slot_flag::BUF_CHANGED != 0;
        let to_member = Stream { from: &mut far, to: &mut member, number: 1, station: 11 };
        to_member.run(|flags| assert!(exchanged(flags), "a copy"));
        let to_other = Stream { from: &mut far, to: &mut stranger, number: 2, station: 12 };
        to_other.run(|flags| assert!(!exchanged(flags), "a buffer has left its group"));
        let (own, others) = (addresses(&mut member), addresses(&mut stranger));
        Stream { from: &mut member, to: &mut far, number: 3, station: 13 }.run(|_| {});
        Stream { from: &mut stranger, to: &mut far, number: 4, station: 14 }.run(|_| {});
        // What came back from the kernel is left with the next frames: some are all who moved.
        let moved = |before: &BTreeSet<usize>, port| before.difference(&addresses(port)).count();
        assert!(moved(&own, &mut member) > 20, "frames were copied from their buffers");
        assert!(moved(&others, &mut stranger) <= 1, "a buffer has left its group");
        assert_eq!(buffers(daemon, "vale0:red"), Some((STOCK, STOCK)));
        let group = audit(daemon);
        let all = group[0].members.iter().map(|member| member.owned).sum::<u32>();
        assert_eq!(all + group[0].free, group[0].buffers);
    });
}

#[test]
fn two_interfaces_of_a_group_exchange_buffers_and_long_frames_take_several() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "mtu 9000");
        veth(blue, "blue", "10.0.0.2/24", "mtu 9000");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        assert!(xdp(daemon, "vale0:blue"));
        tcp(red, blue, "10.0.0.2", 8 * MEGABYTE);
        tcp(blue, red, "10.0.0.1", 8 * MEGABYTE);
        red.within(|| udp(blue, "10.0.0.2", 8900));
        for guest in [red, blue] {
            guest.ip("link set eth0 mtu 1500");
        }
        tcp(red, blue, "10.0.0.2", 8 * MEGABYTE);
        tcp(blue, red, "10.0.0.1", 8 * MEGABYTE);
        for port in ["vale0:red", "vale0:blue"] {
            assert_eq!(buffers(daemon, port), Some((STOCK, STOCK)));
        }
    });
}

fn function(daemon: &Daemon) -> Owned {
    let words = ["nf", "run", "bypass", "vale0:f", "--group", "nf"];
    let mut command = uvala(Become::default(), &words, None);
    command.env("UVALA_DIR", daemon.dir());
    Owned::spawn(&mut command)
}

fn runs(daemon: &Daemon) -> bool {
    daemon.port("vale0:f").is_some_and(|port| port.client.is_some())
}

const CHAIN: &str = "[switch.vale0]\nforwarding = \"chain\"\n\
    [[switch.vale0.chain]]\nname = \"all\"\nservices = [\"pass\"]\n\
    [switch.vale0.port.f]\nservice = \"pass\"\n\
    [switch.vale0.port.red]\nkind = \"xdp\"\ntrust_group = \"nf\"\nchain = \"all\"\n\
    [switch.vale0.port.blue]\nkind = \"xdp\"\ntrust_group = \"nf\"\nchain = \"all\"\n";

#[test]
fn no_buffer_is_lost_when_a_function_dies_or_an_interface_goes() {
    let Some(lab) = Lab::new(2) else { return };
    lab.home.within(|| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "");
        veth(blue, "blue", "10.0.0.2/24", "");
        let daemon = Setup::new(CHAIN).start();
        if host(&daemon, "vale0:red").state != LinkState::Up {
            return skip("root with AF_XDP is needed");
        }
        let whole = |what: &str| {
            for port in ["vale0:red", "vale0:blue"] {
                assert_eq!(buffers(&daemon, port), Some((STOCK, STOCK)), "{port}: {what}");
            }
        };
        for round in 0..3 {
            let mut function = function(&daemon);
            wait::until("the function", || runs(&daemon));
            tcp(red, blue, "10.0.0.2", 2 * MEGABYTE);
            std::thread::scope(|scope| {
                let flood = || {
                    let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
                    (0..20_000).for_each(|_| drop(socket.send_to(&[1; 1000], "10.0.0.2:9")));
                };
                scope.spawn(move || red.within(flood));
                let taken = daemon.stats("vale0:f").rx.frames;
                wait::until("load", || daemon.stats("vale0:f").rx.frames > taken + 500);
                function.kill();
            });
            wait::until("the function's end", || !runs(&daemon));
            whole("its function was killed");
            if round == 0 {
                continue;
            }
            ip("link del red");
            becomes(&daemon, "vale0:red", LinkState::Gone);
            whole("its interface is gone");
            veth(red, "red", "10.0.0.1/24", "");
            becomes(&daemon, "vale0:red", LinkState::Up);
            red.ip("neigh flush all");
            blue.ip("neigh flush all");
        }
        delete(&daemon, "vale0:red");
        assert_eq!(buffers(&daemon, "vale0:red"), None);
        assert_eq!(buffers(&daemon, "vale0:blue"), Some((STOCK, STOCK)));
        delete(&daemon, "vale0:blue");
        wait::until("the group to go", || audit(&daemon).is_empty());
    });
}

#[test]
fn random_bytes_all_over_the_group_take_no_buffer_from_an_interface() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "");
        veth(blue, "blue", "10.0.0.2/24", "");
        if !xdp(daemon, "vale0:red") {
            return;
        }
        assert!(xdp(daemon, "vale0:blue"));
        let mut at = daemon.at("vale0:hostile");
        at.group = Some("nf".to_owned());
        let mut hostile = Peer::start(&Role::Scribble(Scribble { at, seed: 5, fill: false }));
        let flood = || {
            let socket = std::net::UdpSocket::bind("10.0.0.1:0").unwrap();
            socket.set_broadcast(true).unwrap();
            (0..20_000).for_each(|i| {
                let to = if i % 2 == 0 { "10.0.0.2:9" } else { "10.0.0.77:9" };
                drop(socket.send_to(&[1; 1000], to));
            });
        };
        // The second address is unknown until the hostile port claims it.
        red.ip("neigh add 10.0.0.77 lladdr 02:00:00:00:00:77 dev eth0");
        red.within(flood);
        let seen = daemon.stats("vale0:hostile");
        eprintln!("the daemon says of the hostile one: {seen:?}");
        assert!(seen.resyncs > 0, "{seen:?}");
        hostile.finish();
        wait::until("its end", || daemon.port("vale0:hostile").is_none());
        for port in ["vale0:red", "vale0:blue"] {
            assert_eq!(buffers(daemon, port), Some((STOCK, STOCK)), "{port}");
        }
        for guest in [red, blue] {
            guest.ip("neigh flush all");
        }
        red.within(|| udp(blue, "10.0.0.2", 100));
        tcp(red, blue, "10.0.0.2", 2 * MEGABYTE);
        tcp(blue, red, "10.0.0.1", 2 * MEGABYTE);
    });
}

#[test]
fn what_a_group_cannot_hold_has_memory_of_its_own_and_says_so() {
    let Some(lab) = Lab::new(2) else { return };
    lab.home.within(|| {
        let daemon = Setup::new("[rings]\nbuffer_stride = 1024\n").start();
        let [red, blue] = &lab.guests[..] else { panic!() };
        veth(red, "red", "10.0.0.1/24", "");
        veth(blue, "blue", "10.0.0.2/24", "");
        if !xdp(&daemon, "vale0:red") {
            return;
        }
        assert!(xdp(&daemon, "vale0:blue"));
        let how = host(&daemon, "vale0:red").how.unwrap();
        let why = "to and from trust group nf are copied: its buffers are too small";
        assert!(how.contains(why) && daemon.log().contains(why), "{how}");
        tcp(red, blue, "10.0.0.2", 2 * MEGABYTE);
        wait::until("no group without members", || audit(&daemon).is_empty());
        for (kind, group, words) in [
            (PortKind::Packet, "nf", "trust_group: only for kind xdp"),
            (PortKind::Xdp, "n/f", "as in nf"),
            (PortKind::Xdp, "", "as in nf"),
        ] {
            let host = HostIf { trust_group: Some(group.to_owned()), ..HostIf::default() };
            let (code, text) = refusal(add(&daemon, "vale0:x", kind, host));
            assert!(code == ErrorCode::BadRequest && text.contains(words), "{text}");
        }
    });
}

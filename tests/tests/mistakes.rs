//! What an operator can get wrong with interfaces: each mistake is one line that names the cure,
//! and the exit status of its kind.

use std::process::{Command, Stdio};

use harness::daemon::Daemon;
use harness::lab::{Lab, veth};
use harness::net::ip;
use harness::process::uvala_path;

/// What is typed, its exit status, and what the line says.
type Mistake = (&'static str, i32, &'static str);

/// Behind `port add vale0:x --kind`.
const ADDED: &[Mistake] = &[
    ("tun", 2, "expected"),
    ("tap --mac 02:00", 2, "expected a MAC address such as"),
    ("tap --mac 01:00:00:00:00:01", 13, "multicast address"),
    ("tap --mac ff:ff:ff:ff:ff:ff", 13, "02:00:00:00:00:01"),
    ("tap --mac 00:00:00:00:00:00", 13, "not the address of a station"),
    ("tap --mtu 67", 13, "68 to 65521"),
    ("tap --mtu 0", 13, "68 to 65521"),
    ("tap --mtu 65522", 13, "68 to 65521"),
    ("tap --mtu 4294967295", 13, "68 to 65521"),
    ("tap --mtu big", 2, "big"),
    ("tap --mtu 1000 --address fd00::1/64", 13, "1280"),
    ("tap --address 10.0.0.1", 2, "10.0.0.1/24"),
    ("tap --address 10.0.0.300/24", 2, "'10.0.0.300': not an IP address"),
    ("tap --address 10.0.0.1/33", 2, "'33': write 0 to 32"),
    ("tap --address 224.0.0.1/24", 13, "no host can have it"),
    ("tap --address ff02::1/64", 13, "no host can have it"),
    ("tap --address 0.0.0.0/0", 13, "no host can have it"),
    ("tap --ifname abcdefghijklmnop", 13, "1 to 15 letters"),
    ("tap --ifname a/b", 13, "1 to 15 letters"),
    ("tap --ifname tap%d", 13, "'%'"),
    ("tap --ifname ..", 13, "1 to 15 letters"),
    ("tap --ifname=", 13, "1 to 15 letters"),
    ("tap --ifname lo", 11, "is not a TAP"),
    ("tap --ifname red", 11, "choose another ifname"),
    ("tap --ifname tun0", 11, "is a TUN"),
    ("tap --ifname tap0 --queues 2", 13, "multi_queue"),
    ("tap --queues 17", 13, "1 to 16 queues"),
    ("tap --queues 0", 13, "1 to 16 queues"),
    ("tap --queues 0-1", 13, "a number"),
    ("tap --fd 99", 2, "no such descriptor is open"),
    ("tap --fd 0", 13, "/dev/net/tun"),
    ("tap --fd 0 --ifname x", 13, "leave them out"),
    ("tap --netns nowhere", 5, "ip netns add nowhere"),
    ("tap --netns 4194305", 5, "of a process 4194305"),
    ("tap --netns 99999999999999999999", 5, "of a process"),
    ("tap --netns /etc/passwd", 5, "at /etc/passwd; those of ip netns are in /run/netns"),
    ("tap --netns /proc/self/ns/mnt", 5, "at /proc/self/ns/mnt"),
    ("tap --netns /no/such", 5, "at /no/such"),
    ("tap --netns /", 5, "at /;"),
    ("tap --netns=", 5, "at \"\""),
    ("tap --netns ../x", 5, "at \"../x\""),
    ("tap --alone", 13, "only for kind packet"),
    ("tap --filter vlan=1", 13, "only for kind xdp"),
    ("tap --trust-group nf", 13, "only for kind xdp"),
    ("tap --socket /tmp/x", 13, "socket"),
    ("packet", 5, "no interface x; see: ip link"),
    ("packet --ifname lo", 12, "no Ethernet frames"),
    ("packet --ifname tun0", 12, "no Ethernet frames"),
    ("packet --ifname a/b", 13, "1 to 15 letters"),
    ("packet --ifname red --mtu 9000", 13, "ip link"),
    ("packet --ifname red --address 10.0.0.1/24", 13, "only for kind tap"),
    ("packet --ifname red --queues 2", 13, "only for kinds tap, xdp"),
    ("packet --ifname red --netns /etc/passwd", 5, "at /etc/passwd"),
    ("packet --ifname red --fd 0", 13, "only for kind tap"),
    ("xdp --ifname lo", 12, "no Ethernet frames"),
    ("xdp --ifname red --netns /etc/passwd", 5, "at /etc/passwd"),
    ("xdp --ifname red --queues 0-64", 2, "up to 64"),
    ("xdp --ifname red --filter port=1", 2, "write mac="),
    ("xdp --ifname red --trust-group a-b", 13, "only letters"),
    ("stack --ifname nosuch", 5, "no interface nosuch"),
    ("stack --ifname lo", 12, "no Ethernet frames"),
    ("stack --ifname red --alone", 13, "only for kind packet"),
    ("shm --ifname red", 13, "only for tap, packet, xdp and stack"),
    ("null --netns red", 13, "only for tap, packet, xdp and stack"),
];

/// Behind `ns`.
const ATTACHED: &[Mistake] = &[
    ("attach nowhere vale0:x", 5, "ip netns add nowhere"),
    ("attach 4194305 vale0:x", 5, "of a process 4194305"),
    ("attach 0 vale0:x", 5, "of a process 0"),
    ("attach /etc/passwd vale0:x", 5, "at /etc/passwd"),
    ("attach ../x vale0:x", 5, "at \"../x\""),
    ("attach GUEST eth0", 10, "vale0:vm1"),
    ("attach GUEST vale0:x --ifname a/b", 13, "1 to 15 letters"),
    ("attach GUEST vale0:x --ifname lo", 11, "choose another ifname"),
    ("attach GUEST vale0:x --mac 03:00:00:00:00:01", 13, "multicast address"),
    ("attach GUEST vale0:x --ifname net0 --mtu 1", 13, "68 to 65521"),
    ("attach GUEST vale0:x --mtu 1000 --address 10.0.0.2/24 --address fd00::1/64", 2, "1280"),
    ("attach GUEST vale0:x --vlan access:0", 2, "1 to 4094"),
    ("attach GUEST vale0:x --gateway 10.0.0.1", 2, "in no network of an --address"),
    ("attach GUEST vale0:x --address 10.0.0.2/24 --gateway 10.0.1.1", 2, "in no network"),
    (
        "attach GUEST vale0:x --address 10.0.0.2/24 --gateway 10.0.0.2",
        2,
        "the interface's own address",
    ),
    ("attach GUEST vale0:x --address 10.0.0.2/24 --gateway fd00::1", 2, "in no network"),
    ("attach GUEST vale0:x --gateway 10.0.0.300", 2, "not an IP address; write one such as"),
    ("attach GUEST vale0:x --address 239.0.0.2/24", 2, "no host can have it"),
    ("attach GUEST vale0:x --address 10.0.0.2", 2, "10.0.0.1/24"),
    ("detach vale0:x", 5, "uvala port list"),
    ("detach x", 10, "vale0:vm1"),
];

fn makes(daemon: &Daemon, words: &str, (_, code, what): &Mistake) {
    let mut command = Command::new(uvala_path());
    command.arg("--dir").arg(daemon.dir()).args(words.split(' ')).stdin(Stdio::null());
    let output = command.output().expect("built");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(*code), "{words}: {text}");
    assert!(text.contains(what), "{words}: {text}");
    // What the command line itself refuses comes with its usage.
    assert!(text.lines().count() == 1 || text.contains("For more information"), "{text}");
    assert!(!text.contains("os error"), "{words}: {text}");
    assert_eq!(daemon.ports(), [""; 0], "{words}");
}

#[test]
fn each_is_one_line_that_names_the_cure() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let guest = &lab.guests[0];
        veth(guest, "red", "10.9.0.1/24", "");
        ip("tuntap add dev tun0 mode tun");
        ip("tuntap add dev tap0 mode tap");
        for mistake in ADDED {
            makes(daemon, &format!("port add vale0:x --kind {}", mistake.0), mistake);
        }
        for mistake in ATTACHED {
            let words = mistake.0.replace("GUEST", &guest.name());
            makes(daemon, &format!("ns {words}"), mistake);
        }
    });
}

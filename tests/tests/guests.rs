//! Real guests: two kernels with their own drivers and stacks, and the switch between them.

use std::path::PathBuf;

use harness::daemon::{Daemon, Setup};
use harness::guest::{Guest, Kit};

/// Two ports for guests with so many pairs of queues.
fn lab(queues: u16) -> (Daemon, [PathBuf; 2]) {
    let port = |name: &str| {
        format!("[switch.vale0.port.{name}]\nkind = \"vhost-user\"\nqueues = {queues}\n")
    };
    let daemon = Setup::new(&(port("vm1") + &port("vm2"))).start();
    let socket = |port: &str| PathBuf::from(daemon.port(port).unwrap().vhost.unwrap().socket);
    let sockets = ["vale0:vm1", "vale0:vm2"].map(socket);
    (daemon, sockets)
}

/// A guest that others reach: it answers, and says what it is sent by TCP. The serial line is an
/// input that never ends, with which the other side would end, too.
const SERVER: &str = "\
ip link set eth0 mtu 9000
ip addr add 10.0.0.2/24 dev eth0
nc -l -p 7 < /dev/ttyS0 > /got
echo SUM $(wc -c < /got) $(md5sum < /got)
";

/// A guest that reaches the other: pings of all sizes, then TCP, then pings for ever.
const CLIENT: &str = "\
ip link set eth0 mtu 9000
ip addr add 10.0.0.1/24 dev eth0
until ping -c 1 -W 1 10.0.0.2 >/dev/null; do :; done
for size in 18 1400 4000 8900; do
  ping -c 5 -i 0.1 -q -s $size 10.0.0.2 >/dev/null; echo PING $size $?
done
yes uvala | head -c 3000000 > /data
echo SUM $(wc -c < /data) $(md5sum < /data)
until nc 10.0.0.2 7 < /data; do sleep 0.2; done
while :; do ping -c 1 -W 1 10.0.0.2 >/dev/null && echo ALIVE; done
";

#[test]
fn two_guests_reach_each_other_and_survive_the_daemon() {
    let Some(kit) = Kit::find() else { return };
    let (mut daemon, [one, two]) = lab(1);
    let mut server = Guest::boot(&kit, &two, 2, 1, SERVER);
    let mut client = Guest::boot(&kit, &one, 1, 1, CLIENT);
    for size in ["18", "1400", "4000", "8900"] {
        assert_eq!(client.hear(&format!("PING {size}")), "0", "{}", client.said());
    }
    assert_eq!(client.hear("SUM"), server.hear("SUM"));
    let stats = daemon.stats("vale0:vm1");
    assert!(stats.tx.bytes > 3_000_000, "{stats:?}");
    client.hear("ALIVE");
    daemon.kill();
    daemon.restart();
    let before = client.said().matches("ALIVE").count();
    client.hear_times("ALIVE", before + 3);
}

#[test]
fn guests_with_several_queues_reach_each_other() {
    let Some(kit) = Kit::find() else { return };
    if kit.is_old() {
        return eprintln!("SKIPPED: QEMU 7 without KVM has one interrupt for all queues");
    }
    let (_daemon, [one, two]) = lab(2);
    let mut server = Guest::boot(&kit, &two, 2, 2, SERVER);
    let mut client = Guest::boot(&kit, &one, 1, 2, CLIENT);
    assert_eq!(client.hear("PING 8900"), "0", "{}", client.said());
    assert_eq!(client.hear("SUM"), server.hear("SUM"));
}

//! A port of kind vxlan whose VLANs have networks of their own (`--vlan-vni`).
//!
//! ```text
//!   station of VLAN 10 ─┐                                   ┌─ VNI 1010 ─ …
//!                       ├─ vale0 ── fabric, trunk ── 10.0.0.1 ── underlay
//!   station of VLAN 20 ─┘         10:1010, 20:1020          └─ VNI 1020 ─ …
//! ```
//!
//! Both VLANs have the same IP and MAC addresses, so that whatever strays is seen.

use std::net::UdpSocket;
use std::process::Command;

use harness::fabric::{FABRIC, Host, Underlay, station, stations};
use harness::frames::announcement;
use harness::lab;
use harness::net::tcp;
use harness::{skip, wait};

const MEGABYTE: usize = 1 << 20;
const MAP: &str = "--vlan-vni=10:1010,20:1020";

/// A host with a trunk to one other.
fn trunk(underlay: &Underlay, number: u8, other: u8) -> Option<Host> {
    let host = Host::new(underlay.home(number)?, number)?;
    let ends = [format!("--local=10.0.0.{number}"), format!("--remote=10.0.0.{other}")];
    let add = ["port", "add", FABRIC, "--kind=vxlan", MAP, "--vlan=trunk:10,20,30"];
    host.done(&[&add[..], &[&ends[0], &ends[1]]].concat());
    Some(host)
}

#[test]
fn vlans_of_two_trunks_are_networks_apart() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts = (trunk(&underlay, 1, 2), trunk(&underlay, 2, 1));
    let (Some(one), Some(two)) = hosts else { return };
    let (Some(ones), Some(twos)) = (stations(&one), stations(&two)) else { return };
    std::thread::scope(|scope| {
        for (from, to) in ones.iter().zip(&twos) {
            scope.spawn(move || tcp(from, to, "192.168.7.2", 8 * MEGABYTE));
        }
    });
    assert_eq!(one.tunnel().mtu, Some(1450), "frames inside have no tag");
    // A VLAN that is no part of the map, though the trunk carries it.
    let Some(third) = station(&one, "vale0:thirty", "192.168.7.3/24", Some(30)) else { return };
    third.within(|| {
        let socket = UdpSocket::bind("192.168.7.3:0").expect("its address");
        wait::until("a frame without a network", || {
            let _ = socket.send_to(b"x", "192.168.7.2:9");
            one.dropped("vxlan_vni") > 0
        });
    });
    // While the others go on, it gets one, and loses it.
    let add = ["port", "set", FABRIC, "--add-vlan-vni=30:1030"];
    let Some(fourth) = station(&two, "vale0:thirty", "192.168.7.4/24", Some(30)) else { return };
    fourth.ip("link set eth0 address 02:00:00:00:00:04");
    third.ip("link set eth0 address 02:00:00:00:00:03");
    one.done(&add);
    two.done(&add);
    tcp(&third, &fourth, "192.168.7.4", MEGABYTE);
    tcp(&ones[0], &twos[0], "192.168.7.2", MEGABYTE);
    two.done(&["port", "set", FABRIC, "--del-vlan-vni=30"]);
    let before = two.dropped("vxlan_vni");
    third.within(|| {
        let socket = UdpSocket::bind("192.168.7.3:0").expect("its address");
        wait::until("a datagram of a network that is gone", || {
            let _ = socket.send_to(b"x", "192.168.7.4:9");
            two.dropped("vxlan_vni") > before
        });
    });
    tcp(&ones[1], &twos[1], "192.168.7.2", MEGABYTE);
}

#[test]
fn a_trunk_meets_ports_with_one_network_each() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(home)) = (trunk(&underlay, 1, 2), underlay.home(2)) else { return };
    let (Some(ones), Some(two)) = (stations(&one), Host::new(home, 2)) else { return };
    let mut twos = Vec::new();
    for (switch, vni) in [("vale0", 1010), ("vale1", 1020)] {
        let (port, vni) = (format!("{switch}:fabric"), format!("--vni={vni}"));
        let ends = ["--local=10.0.0.2", "--remote=10.0.0.1"];
        two.done(&[&["port", "add", &port, "--kind=vxlan", &vni][..], &ends].concat());
        let Some(there) = station(&two, &format!("{switch}:a"), "192.168.7.2/24", None) else {
            return;
        };
        twos.push(there);
    }
    // What stations have said before the second network was there came to the first.
    let strange = || {
        ["vale0:fabric", "vale1:fabric"]
            .map(|port| two.daemon.stats(port).drops.get("vxlan_vni").copied().unwrap_or(0))
    };
    let before = strange();
    std::thread::scope(|scope| {
        for (from, to) in ones.iter().zip(&twos) {
            scope.spawn(move || {
                tcp(from, to, "192.168.7.2", 8 * MEGABYTE);
                tcp(to, from, "192.168.7.1", 8 * MEGABYTE);
            });
        }
    });
    assert_eq!(strange(), before);
}

/// What a remote may do with tags: nothing leads from a VLAN's network into another VLAN.
#[test]
fn a_tag_in_the_network_of_a_vlan_leads_nowhere() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(two)) = (trunk(&underlay, 1, 2), underlay.home(2)) else { return };
    let socket = two.within(|| UdpSocket::bind("10.0.0.2:0")).expect("a port");
    let send = |vni: u16, frame: &[u8]| {
        let [high, low] = vni.to_be_bytes();
        let datagram = [&[8, 0, 0, 0, 0, high, low, 0][..], frame].concat();
        socket.send_to(&datagram, "10.0.0.1:4789").expect("a route");
    };
    let mut spy = one.daemon.open("vale0:spy");
    one.done(&["port", "set", "vale0:spy", "--vlan", "access:20"]);
    let plain = announcement(1);
    let tagged = [&plain[..12], &[0x81, 0, 0, 20], &plain[12..]].concat();
    send(1010, &tagged);
    wait::until("a tag inside", || one.dropped("nested_tag") == 1);
    for stray in [10, 20, 1030] {
        send(stray, &plain);
    }
    wait::until("networks of none", || one.dropped("vxlan_vni") == 3);
    send(1010, &plain);
    send(1020, &announcement(2));
    let mut frame = Vec::new();
    assert!(spy.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("ours"), "VLAN 20");
    assert_eq!(frame, announcement(2), "and of it alone");
}

#[test]
fn a_map_is_checked_shown_saved_and_applied() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let Some(mut one) = trunk(&underlay, 1, 2) else { return };
    let add = |more: &[&str]| {
        let words = ["port", "add", "vale1:x", "--kind=vxlan", "--local=10.0.0.1"];
        one.refused(&[&words[..], more].concat())
    };
    let vlans = "--vlan=trunk:10,20";
    for (more, said) in [
        (&["--vlan-vni=10:7"][..], "--vlan trunk:10,20"),
        (&["--vlan-vni=10:7", "--vlan=access:10"], "--vlan trunk:10,20"),
        (&["--vlan-vni=10:7", "--vlan=trunk:10,native=10"], "--vlan trunk:10,20"),
        (&["--vlan-vni=10:7,10:8", vlans], "given twice"),
        (&["--vlan-vni=10:7,20:7", vlans], "given twice"),
        (&["--vlan-vni=10:7", "--vni=7", vlans], "one VNI, or one for each VLAN"),
        (&["--vlan-vni=10=7", vlans], "VLAN:VNI"),
        (&["--vlan-vni=10:7,20:1020", vlans], "port vale0:fabric has VNI 1020"),
        (&["--vni=1010"], "port vale0:fabric has VNI 1010"),
    ] {
        let error = add(more);
        assert!(error.contains(said), "{error}");
    }
    one.done(&["port", "add", "vale1:x", "--kind=vxlan", "--local=10.0.0.1", "--vni=7"]);
    for (change, said) in [
        ("--add-vlan-vni=30:7", "port vale1:x has VNI 7"),
        ("--del-vlan-vni=30", "no VLAN 30"),
        ("--del-vlan-vni=10,20", "needs vni"),
        ("--vlan=access:10", "--vlan trunk:10,20"),
    ] {
        let error = one.refused(&["port", "set", FABRIC, change]);
        assert!(error.contains(said), "{error}");
    }
    one.done(&["port", "set", FABRIC, "--add-vlan-vni=30:1030", "--del-vlan-vni=20"]);
    one.home.visit(|| one.daemon.restart());
    let shown = one.done(&["port", "show", FABRIC]);
    for line in ["vni              1010 of VLAN 10\n", "vni              1030 of VLAN 30\n"] {
        assert!(shown.contains(line), "{shown}");
    }
    let json = one.done(&["port", "show", FABRIC, "--json"]);
    assert!(json.split_whitespace().collect::<String>().contains(r#"["10:1010","30:1030"]"#));
    let file = one.daemon.dir().join("fabric.toml");
    let apply = |map: &str, vlan: &str| {
        let text = format!(
            "[switch.vale0.port.fabric]\nkind = \"vxlan\"\nvlan_vni = [{map}]\nvlan = \"{vlan}\"\n\
             local = \"10.0.0.1\"\nremote = [\"10.0.0.2\"]\n"
        );
        std::fs::write(&file, text).expect("room");
        let output = one.daemon.uvala(&["apply", file.to_str().expect("text")]);
        String::from_utf8(output.stderr).expect("text")
    };
    let error = apply("\"10:1010\", \"40:1040\"", "trunk:10,40");
    assert_eq!(one.tunnel().vlan_vni.len(), 2, "{error}");
    assert_eq!(one.tunnel().vlan_vni[1].vni, 1040, "{error}");
    let error = apply("\"10:1010\"", "access:10");
    assert!(error.contains("--vlan trunk:10,20"), "{error}");
}

/// The kernel's far end: a vxlan device for each network.
#[test]
fn the_kernels_vxlan_devices_are_far_ends_of_the_vlans() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(kernel)) = (trunk(&underlay, 1, 2), underlay.home(2)) else { return };
    for (vlan, port) in [(10, "vale0:ten"), (20, "vale0:twenty")] {
        let (device, vni) = (format!("vx{vlan}"), 1000 + vlan);
        let make = format!("link add {device} type vxlan id {vni} local 10.0.0.2 dstport 4789");
        let make = format!("{make} dev eth0 remote 10.0.0.1");
        let made = kernel
            .within(|| Command::new("ip").args(make.split_whitespace()).output())
            .expect("iproute2");
        if !made.status.success() {
            return skip("the kernel has no vxlan device");
        }
        kernel.ip(&format!("link set {device} mtu 1450 up"));
        kernel.ip(&format!("addr add 192.168.{vlan}.2/24 dev {device}"));
        // Between namespaces the kernel leaves checksums inside to a card that is not there.
        let off = ["-K", &device, "tx", "off", "gso", "off", "tso", "off"];
        let done = kernel.within(|| Command::new("ethtool").args(off).output());
        assert!(done.is_ok_and(|done| done.status.success()), "apt-get install ethtool");
        let here = station(&one, port, &format!("192.168.{vlan}.1/24"), Some(vlan));
        let Some(here) = here else { return };
        tcp(&here, &kernel, &format!("192.168.{vlan}.2"), MEGABYTE);
        tcp(&kernel, &here, &format!("192.168.{vlan}.1"), MEGABYTE);
    }
    assert_eq!(one.dropped("vxlan_vni") + one.dropped("nested_tag"), 0);
}

/// The kernel's far end: one vxlan device with `external` and `vnifilter` at a bridge that knows
/// VLANs and maps them (`vlan_tunnel`).
#[test]
fn the_kernels_bridge_with_tunnel_info_is_a_far_end() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let (Some(one), Some(kernel)) = (trunk(&underlay, 1, 2), underlay.home(2)) else { return };
    let run = |line: &str| {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a program");
        kernel.within(|| Command::new(program).args(words).output())
    };
    let is_done = |line: &str| run(line).is_ok_and(|output| output.status.success());
    let device = "ip link add vx0 type vxlan local 10.0.0.2 dstport 4789 external vnifilter";
    if !is_done(device) {
        return eprintln!("SKIPPED: the kernel has no vxlan device with vnifilter (Linux 5.18)");
    }
    if !is_done("ip link add br0 type bridge vlan_filtering 1 vlan_default_pvid 0") {
        // Nor can CI bring another kernel.
        return eprintln!("SKIPPED: bridges of this kernel know no VLANs (BRIDGE_VLAN_FILTERING)");
    }
    let mut lines = vec![
        "ip link set vx0 mtu 1450 master br0".to_owned(),
        "bridge link set dev vx0 vlan_tunnel on".to_owned(),
    ];
    for vlan in [10, 20] {
        let (vni, host) = (1000 + vlan, "00:00:00:00:00:00 dev vx0 dst 10.0.0.1");
        lines.extend([
            format!("bridge vni add dev vx0 vni {vni}"),
            format!("bridge vlan add dev vx0 vid {vlan}"),
            format!("bridge vlan add dev vx0 vid {vlan} tunnel_info id {vni}"),
            format!("bridge vlan add dev br0 vid {vlan} self"),
            format!("bridge fdb append {host} src_vni {vni}"),
            format!("ip link add link br0 name vlan{vlan} mtu 1450 type vlan id {vlan}"),
            format!("ip addr add 192.168.{vlan}.2/24 dev vlan{vlan}"),
        ]);
    }
    for device in ["vx0", "br0", "vlan10", "vlan20"] {
        lines.push(format!("ip link set {device} up"));
        // Between namespaces the kernel leaves checksums inside to a card that is not there.
        lines.push(format!("ethtool -K {device} tx off gso off tso off"));
    }
    for line in lines {
        let output = run(&line).expect("iproute2, and ethtool: apt-get install ethtool");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {error}");
    }
    for (vlan, port) in [(10, "vale0:ten"), (20, "vale0:twenty")] {
        let address = format!("192.168.{vlan}.1/24");
        let Some(here) = station(&one, port, &address, Some(vlan)) else { return };
        tcp(&here, &kernel, &format!("192.168.{vlan}.2"), MEGABYTE);
        tcp(&kernel, &here, &format!("192.168.{vlan}.1"), MEGABYTE);
        if vlan == 10 {
            lab::delete(&one.daemon, port);
        }
    }
    let entries = String::from_utf8(run("bridge fdb show dev vx0").expect("iproute2").stdout);
    let entries = entries.expect("text");
    assert!(entries.contains("src_vni 1010") && entries.contains("src_vni 1020"), "{entries}");
    assert_eq!(one.dropped("vxlan_vni") + one.dropped("nested_tag"), 0);
}

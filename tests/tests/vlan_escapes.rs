//! Stations of one VLAN that try to reach another, by what only a switch or a card should write.

use std::path::PathBuf;

use harness::daemon::{Daemon, Setup};
use harness::frames::{BROADCAST, mac};
use harness::lab;
use harness::machine::{HEADER, Machine};
use harness::net::Namespace;
use harness::wait;
use protocol::{HostIf, PortAdd, PortKind, PortRequest, PortSettings, Request};

/// Where a tag's VLAN is.
const TCI: usize = 14;

/// A priority-tagged broadcast for VLAN 10. Its bytes from `start` on, with that VLAN in the tag,
/// have a checksum that is the tag of VLAN 20.
fn forged(start: usize) -> Vec<u8> {
    let mut frame = [&BROADCAST[..], &mac(1), &[0x81, 0, 0, 0, 8, 0, 0x45], &[0; 45]].concat();
    let wish = |frame: &[u8]| {
        let mut seen = frame.to_vec();
        seen[TCI..TCI + 2].copy_from_slice(&[0, 10]);
        let words = seen[start..].chunks(2);
        let word = |w: &[u8]| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&low| u32::from(low));
        let mut total = words.map(word).sum::<u32>();
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        total == 0xffff - 20
    };
    let at = start.max(30) + start % 2;
    let found = (0..=u16::MAX).any(|word| {
        frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
        wish(&frame)
    });
    assert!(found, "each sum comes up");
    frame
}

/// A header that says: complete the checksum of the bytes from `start` on, and write it to `field`.
fn unfinished(start: u16, field: u16) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[0] = 1;
    header[6..8].copy_from_slice(&start.to_ne_bytes());
    header[8..10].copy_from_slice(&field.wrapping_sub(start).to_ne_bytes());
    header
}

/// All headers that want the tag of VLAN 10 overwritten, with their frames.
fn attempts() -> impl Iterator<Item = ([u8; HEADER], Vec<u8>)> {
    [14, 12, 16, 0].into_iter().map(|start| (unfinished(start, 14), forged(start.into())))
}

/// What the trunk gets until `last` comes: all of it must be in VLAN 10.
fn assert_in_vlan_10(trunk: &mut client::Port, last: &[u8]) {
    let mut frame = Vec::new();
    wait::until("the last frame", || {
        while trunk.try_recv(&mut frame).unwrap() {
            assert_eq!(frame[12..16], [0x81, 0, 0, 10], "another VLAN: {frame:02x?}");
            if frame[16..] == last[12..] {
                return true;
            }
        }
        false
    });
}

fn lab(ports: &str) -> (Daemon, client::Port) {
    let trunk = "[switch.vale0.port.trunk]\nvlan = \"trunk:10,20\"\n";
    let daemon = Setup::new(&format!("{trunk}{ports}")).start();
    let trunk = daemon.open("vale0:trunk");
    (daemon, trunk)
}

fn last() -> Vec<u8> {
    [&BROADCAST[..], &mac(2), &[0x88, 0xb5], &[7; 46]].concat()
}

#[test]
fn a_guest_cannot_write_its_vlan_by_a_checksum() {
    let guest = "[switch.vale0.port.vm]\nkind = \"vhost-user\"\nvlan = \"access:10\"\n";
    let (daemon, mut trunk) = lab(guest);
    let socket = daemon.port("vale0:vm").unwrap().machine.unwrap().socket;
    let mut machine = Machine::boot_unfinished(&PathBuf::from(socket));
    for (header, frame) in attempts() {
        machine.send_behind(header, &frame);
    }
    machine.send(&last());
    assert_in_vlan_10(&mut trunk, &last());
    assert_eq!(daemon.stats("vale0:vm").drops.get("offload"), Some(&4));
}

#[test]
fn a_packet_socket_behind_a_tap_cannot_write_its_vlan_by_a_checksum() {
    let Some(home) = Namespace::new() else { return };
    let Some(guest) = Namespace::new() else { return };
    home.within(|| {
        let (daemon, mut trunk) = lab("");
        let settings = PortSettings { vlan: "access:10".parse().ok(), ..PortSettings::default() };
        let host = Some(HostIf {
            ifname: Some("eth0".to_owned()),
            netns: Some(guest.name()),
            ..HostIf::default()
        });
        let port = "vale0:tap".parse().unwrap();
        let add = PortAdd { port, kind: PortKind::Tap, settings, host, machine: None, vxlan: None };
        daemon.call(Request::Port(PortRequest::Add(add.into()))).unwrap();
        lab::becomes(&daemon, "vale0:tap", protocol::LinkState::Up);
        let refused = guest.within(|| {
            let socket = hostif::packet::open("eth0", false).unwrap().socket;
            let send = |header: &[u8; HEADER], frame: &[u8]| {
                rustix::io::write(&socket, &[&header[..10], frame].concat())
            };
            let refused = attempts().filter(|(header, frame)| send(header, frame).is_err()).count();
            send(&[0; HEADER], &last()).unwrap();
            refused
        });
        // Newer kernels (6.11) refuse all of them before the switch can.
        eprintln!("the kernel refuses {refused} of 4");
        assert_in_vlan_10(&mut trunk, &last());
    });
}

//! A guest that boots over the network by iPXE, the firmware of QEMU's own cards, on an emulated
//! e1000: a driver by other authors, which polls and uses what others leave alone.

use std::process::{Command, Stdio};

use harness::daemon::Daemon;
use harness::device::{Device, PORT};
use harness::guest::{Boot, Guest, Kit};
use harness::lab::{Lab, add, inside};
use harness::net::Namespace;
use harness::process::{Owned, Scratch};
use protocol::PortKind;

/// DHCP and TFTP in a namespace; `None` where there is no dnsmasq, which is said.
fn server(lan: &Namespace, files: &Scratch) -> Option<Owned> {
    let is_there = Command::new("dnsmasq").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        harness::skip("no dnsmasq: apt-get install dnsmasq-base");
        return None;
    }
    let place = files.path();
    let words = "--keep-in-foreground --conf-file=/dev/null --user=root --port=0 --no-ping \
                 --interface=eth0 --dhcp-range=10.0.0.50,10.0.0.60,255.255.255.0 \
                 --dhcp-boot=boot.ipxe --enable-tftp --log-dhcp --log-facility=-";
    let mut command = Command::new("dnsmasq");
    command.args(words.split_whitespace());
    command.arg(format!("--tftp-root={}", place.display()));
    command.arg(format!("--dhcp-leasefile={}", place.join("leases").display()));
    command.arg("--pid-file").stderr(std::fs::File::create(place.join("log")).expect("room"));
    Some(lan.visit(|| Owned::spawn(&mut command)))
}

#[test]
fn ipxe_finds_its_server_and_loads_linux_whose_stock_driver_goes_on() {
    let Some(kit) = Kit::with_vfio_user().filter(|kit| kit.firmware().is_some()) else {
        return harness::skip("netboot wants iPXE, pxe-e1000.rom");
    };
    let Some(lab) = Lab::new(1) else { return };
    lab.home.visit(|| {
        let (daemon, files) = (Daemon::start(), Scratch::new("tftp"));
        let lan = &lab.guests[0];
        add(&daemon, "vale0:lan", PortKind::Tap, inside(lan, "10.0.0.1/24")).expect("a TAP");
        let Some(_server) = server(lan, &files) else { return };
        let device = Device::start(&daemon);
        let network = Some(files.path().to_owned());
        let boot = Boot { port: PORT, nic: Some("e1000"), network, ..Boot::default() };
        let mut guest = Guest::start(&kit, &daemon, &boot);
        guest.ready();
        let leases = std::fs::read_to_string(files.path().join("leases")).expect("text");
        assert!(leases.contains(" 52:54:00:"), "it has asked for an address: {leases}");
        guest.configure(2, 1500);
        guest.reach("10.0.0.1");
        guest.run("ping -c 5 -i 0.1 -q -s 1400 10.0.0.1 | grep -q ' 0% packet loss'");
        assert!(!device.said().contains("refused"), "{}", device.said());
    });
}

//! The e1000 with our patches to its Linux driver (`guest/linux/e1000`), in real guests.

use harness::daemon::{Daemon, Setup};
use harness::device::{Device, PORT};
use harness::guest::{Boot, Guest, Kit};
use harness::ladder::{self, RUNGS, Rung};

/// A guest with the patched driver and one with virtio-net on the same switch.
fn lab(kit: &Kit) -> Option<(Daemon, Device, Guest, Guest)> {
    let driver = kit.driver("e1000/e1000.ko")?;
    let port = "[switch.vale0.port.vm2]\nkind = \"vhost-user\"\n";
    let daemon = Setup::new(port).start();
    let device = Device::start(&daemon);
    let patched = Boot { port: PORT, nic: Some("e1000"), driver: Some(driver), ..Boot::default() };
    let virtio = Boot { port: "vale0:vm2", ..Boot::default() };
    let [mut a, mut b] = [patched, virtio].map(|boot| Guest::start(kit, &daemon, &boot));
    for (number, guest) in (1..).zip([&mut a, &mut b]) {
        guest.ready();
        guest.configure(number, 1500);
    }
    Some((daemon, device, a, b))
}

fn kit() -> Option<Kit> {
    let kit = Kit::find()?;
    if kit.is_old() {
        harness::skip("vfio-user wants QEMU 10.1 or newer");
        return None;
    }
    Some(kit)
}

fn rung(name: &str) -> &'static Rung {
    RUNGS.iter().find(|rung| rung.name == name).expect("a rung")
}

#[test]
fn a_driver_that_shares_a_page_carries_whole_frames_and_outlives_the_daemon() {
    let Some((mut daemon, device, mut a, mut b)) = kit().and_then(|kit| lab(&kit)) else { return };
    for how in ["send combining", "CSB"] {
        ladder::load(&mut a, rung(how));
        a.reach("10.0.0.2");
        for size in [18, 1000, 1472] {
            a.run(&format!("ping -c 3 -i 0.1 -q -s {size} 10.0.0.2 | grep -q ' 0% packet loss'"));
        }
        a.send_file(&mut b, "10.0.0.2");
        b.send_file(&mut a, "10.0.0.1");
    }
    assert_eq!(a.checksum_errors() + b.checksum_errors(), 0, "wrong checksums");
    // Long frames take several buffers.
    for guest in [&mut a, &mut b] {
        guest.run("ip link set eth0 mtu 9000");
    }
    a.reach("10.0.0.2");
    a.run("ping -c 3 -i 0.1 -q -s 8000 10.0.0.2 | grep -q ' 0% packet loss'");
    for guest in [&mut a, &mut b] {
        guest.run("ip link set eth0 mtu 1500");
    }
    // Traffic that never ends, in both directions.
    a.reach("10.0.0.2");
    b.run("(ping -q -i 0.01 10.0.0.1 >/dev/null) & sleep 0.1");
    daemon.kill();
    daemon.restart();
    a.reach("10.0.0.2");
    let (said, hangs) = a.try_run("dmesg | grep -E 'Tx Unit Hang|Reset adapter|NETDEV WATCHDOG'");
    assert!(!hangs, "{said}");
    a.run("ping -c 20 -i 0.05 -q -s 1400 10.0.0.2 | grep -q ' 0% packet loss'");
    assert!(!device.said().contains("refused"), "{}", device.said());
}

/// Counters only: rates of an emulated processor on a busy machine say nothing.
#[test]
fn each_rung_of_the_ladder_takes_fewer_kicks_or_interrupts_for_a_frame() {
    const FRAMES: u32 = 20_000;
    let Some((daemon, _device, mut guest, _other)) = kit().and_then(|kit| lab(&kit)) else {
        return;
    };
    let [base, moderation, combining, csb] =
        ["base", "moderation", "send combining", "CSB"].map(|name| {
            ladder::load(&mut guest, rung(name));
            let cost = ladder::send(&mut guest, &daemon, FRAMES);
            assert!(cost.frames() >= u64::from(FRAMES), "{name}: frames are lost: {cost:?}");
            println!("{name}: {cost:?}");
            cost
        });
    assert!(base.per_frame("tx_kicks") > 0.9, "a kick for each frame");
    assert!(moderation.per_frame("tx_kicks") > 0.9, "moderation is for interrupts");
    assert!(combining.per_frame("tx_kicks") < base.per_frame("tx_kicks"));
    for what in ["tx_kicks", "register_accesses"] {
        assert!(csb.per_frame(what) < base.per_frame(what) / 2.0, "{what}");
    }
    assert!(csb.per_frame("interrupts") < 0.1);
}

//! Emulated network cards: `uvala-device`, driven by a client of another author in place of a VMM,
//! and by real guests under QEMU.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use client::Port;
use harness::daemon::{Daemon, Setup};
use harness::device::Device;
use harness::frames::{BROADCAST, announcement, fill, mac};
use harness::guest::{Boot, Console, Guest, Kit};
use harness::process::{Owned, uvala};
use harness::role::Become;
use harness::{Random, wait};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::Signal;

const PORT: &str = harness::device::PORT;

/// Registers of the card (13.4 of Intel's manual).
mod register {
    pub const STATUS: u64 = 0x0008;
    pub const ICR: u64 = 0x00c0;
    pub const IMS: u64 = 0x00d0;
    pub const RCTL: u64 = 0x0100;
    pub const TCTL: u64 = 0x0400;
    pub const RDBAL: u64 = 0x2800;
    pub const TDBAL: u64 = 0x3800;
    /// Behind the base address of a ring.
    pub const LEN: u64 = 0x8;
    pub const HEAD: u64 = 0x10;
    pub const TAIL: u64 = 0x18;
}

/// A driver of the card, and its memory: two rings, and a buffer for each descriptor.
struct Driver {
    client: vfio_user::Client,
    memory: OwnedFd,
    line: OwnedFd,
    next: [u32; 2],
    /// How often the transmit ring was used up.
    laps: u32,
    /// The line was signalled; the causes that were read.
    seen: (bool, u32),
}

const RINGS: [u64; 2] = [0x1000, 0x2000];
const BUFFERS: [u64; 2] = [0x10000, 0x80000];
const DESCRIPTORS: u32 = 64;
const MEMORY: u64 = 0x10_0000;
const BAR0: u32 = 0;
const CONFIG: u32 = 7;

impl Driver {
    /// Connects as a VMM and starts the card as its driver does.
    fn start(device: &Device) -> Self {
        let mut client = vfio_user::Client::new(&device.socket).expect("a device");
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&memory, MEMORY).expect("ours");
        client.dma_map(0, 0, MEMORY, memory.as_raw_fd()).expect("a reply");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let line = eventfd(0, flags).expect("descriptors");
        client.set_irqs(0, 0x24, 0, 1, &[line.as_raw_fd()]).expect("a reply");
        // Memory, and bus master.
        client.region_write(CONFIG, 4, &[6, 0]).expect("a reply");
        let mut this = Self { client, memory, line, next: [0; 2], laps: 0, seen: (false, 0) };
        for (base, ring) in [register::TDBAL, register::RDBAL].into_iter().zip(RINGS) {
            this.write(base, u32::try_from(ring).expect("low"));
            this.write(base + register::LEN, 16 * DESCRIPTORS);
        }
        for at in 0..DESCRIPTORS {
            this.describe(1, at, 0);
        }
        // Enabled, all unicast, broadcast, without the checksum; enabled, short frames padded.
        this.write(register::RCTL, 1 << 1 | 1 << 3 | 1 << 15 | 1 << 26);
        this.write(register::TCTL, 1 << 1 | 1 << 3);
        this.write(register::IMS, 0x9d);
        this.write(register::RDBAL + register::TAIL, DESCRIPTORS - 1);
        this
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(BAR0, offset, &mut bytes).expect("a reply");
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.client.region_write(BAR0, offset, &value.to_le_bytes()).expect("a reply");
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, at), Ok(bytes.len()));
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, at), Ok(N));
        bytes
    }

    /// Writes descriptor `at` of a ring: its buffer, and its second word.
    fn describe(&self, ring: usize, at: u32, word: u64) {
        let place = RINGS[ring] + 16 * u64::from(at);
        self.put(place, &(BUFFERS[ring] + 2048 * u64::from(at)).to_le_bytes());
        self.put(place + 8, &word.to_le_bytes());
    }

    /// Whether the card is done with descriptor `at` of a ring, and its second word.
    fn done(&self, ring: usize, at: u32) -> Option<u64> {
        let word = u64::from_le_bytes(self.get(RINGS[ring] + 16 * u64::from(at) + 8));
        (word >> 32 & 1 != 0).then_some(word)
    }

    /// Sends a frame, and waits until the card has taken it.
    fn send(&mut self, frame: &[u8]) {
        let at = self.next[0];
        self.put(BUFFERS[0] + 2048 * u64::from(at), frame);
        // End of packet, insert the checksum, report the status.
        self.describe(0, at, frame.len() as u64 | 0xb << 24);
        self.next[0] = (at + 1) % DESCRIPTORS;
        self.write(register::TDBAL + register::TAIL, self.next[0]);
        wait::until("the card to take a frame", || self.done(0, at).is_some());
    }

    /// The next frame that has come.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let at = self.next[1];
        let word = self.done(1, at)?;
        let len = usize::try_from(word & 0xffff).expect("16 bits");
        let frame = self.get::<2048>(BUFFERS[1] + 2048 * u64::from(at))[..len].to_vec();
        self.describe(1, at, 0);
        self.write(register::RDBAL + register::TAIL, at);
        self.next[1] = (at + 1) % DESCRIPTORS;
        Some(frame)
    }

    /// Whether the line was signalled; if so, handles the interrupt.
    fn is_signalled(&mut self) -> bool {
        let is_signalled = rustix::io::read(&self.line, &mut [0; 8]).is_ok();
        if is_signalled {
            self.read(register::ICR);
            self.client.set_irqs(0, 0x11, 0, 1, &[]).expect("a reply");
        }
        is_signalled
    }

    /// Whether the card has interrupted, as its handler sees it, which may come a little before or
    /// after the signal.
    fn is_interrupted(&mut self) -> bool {
        self.seen.0 |= rustix::io::read(&self.line, &mut [0; 8]).is_ok();
        self.seen.1 |= self.read(register::ICR);
        self.client.set_irqs(0, 0x11, 0, 1, &[]).expect("a reply");
        let is_both = self.seen.0 && self.seen.1 != 0;
        if is_both {
            self.seen = (false, 0);
        }
        is_both
    }
}

fn named(stream: u32, seq: u64, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, BROADCAST, stream, seq, len);
    frame
}

/// Frames pass both ways, with an interrupt for what comes.
fn exchange(driver: &mut Driver, port: &mut Port) {
    for (seq, len) in (0..).zip([60, 61, 128, 1000, 1514]) {
        let frame = named(1, seq, len);
        driver.send(&frame);
        let mut came = Vec::new();
        while came != frame {
            let soon = Some(wait::PATIENCE);
            assert!(port.recv_timeout(&mut came, soon).expect("a daemon"), "{len} bytes");
        }
        wait::until("an interrupt", || driver.is_interrupted());
        let frame = named(2, seq, len);
        port.send(&frame).expect("a daemon");
        // Frames of others may stand in front of it.
        wait::find("a frame", || driver.receive().filter(|came| *came == frame));
        wait::until("an interrupt", || driver.is_interrupted());
    }
}

#[test]
fn a_card_carries_frames_both_ways_and_goes_on_with_the_next_daemon() {
    let mut daemon = Daemon::start();
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
    for round in 0..3 {
        if round == 1 {
            daemon.terminate();
            daemon.process().wait();
        } else {
            daemon.kill();
        }
        // For a switch that is not there: taken, and lost.
        (0..100).for_each(|seq| driver.send(&named(3, seq, 60)));
        assert_eq!(driver.read(register::STATUS) & 2, 2, "the link stays up");
        daemon.restart();
        wait::until("the port", || daemon.port(PORT).is_some_and(|port| port.client.is_some()));
        exchange(&mut driver, &mut daemon.open("vale0:peer"));
    }
    let head = driver.read(register::TDBAL + register::HEAD);
    assert_eq!(driver.next[0], head, "no reset");
}

#[test]
fn one_vmm_after_another_connects_and_what_each_had_is_given_back() {
    let daemon = Daemon::start();
    let device = Device::start(&daemon);
    // It has a connection for these.
    wait::until("its counters", || daemon.port(PORT).is_some_and(|port| !port.counts.is_empty()));
    let before = device.holdings();
    for round in 1..=5 {
        let mut driver = Driver::start(&device);
        assert_eq!(device.holdings().0, 1, "its memory is mapped");
        exchange(&mut driver, &mut daemon.open("vale0:peer"));
        drop(driver);
        wait::until("everything back", || device.holdings() == before);
        wait::until("the log", || device.said().matches("the VMM has gone").count() == round);
    }
    // Frames for no VMM do not wait for the next one.
    let mut port = daemon.open("vale0:peer");
    (0..2000).for_each(|seq| port.send(&named(4, seq, 60)).expect("a daemon"));
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut port);
}

#[test]
fn a_deleted_port_pulls_the_cable_and_a_process_that_ends_is_missed() {
    let daemon = Daemon::start();
    let mut device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    assert_eq!(driver.read(register::STATUS) & 2, 2);
    assert!(daemon.uvala(&["port", "del", PORT]).status.success());
    wait::until("no link", || driver.read(register::STATUS) & 2 == 0);
    wait::until("a word of it", || device.said().contains("was deleted"));
    // It is plugged in again when the port is there again.
    assert!(daemon.uvala(&["port", "add", PORT]).status.success());
    wait::until("a link", || driver.read(register::STATUS) & 2 != 0);
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
    assert!(daemon.uvala(&["port", "del", PORT]).status.success());
    wait::until("no link", || driver.read(register::STATUS) & 2 == 0);
    device.process.signal(Signal::TERM);
    assert!(device.process.wait().success());
    wait::until("the socket to go", || !device.socket.exists());
    // A machine that has this card is told of by the doctor.
    let card = r#"{"driver":"vfio-user-pci","socket":{"path":"DIR/vale0:nic.vfio"}}"#;
    let memory = "-object memory-backend-memfd,id=m,size=1G,share=on -numa node,memdev=m";
    let _monitor = daemon.monitor(&format!("{memory} -device {card}"));
    wait::until("the doctor's word", || {
        let said = String::from_utf8_lossy(&daemon.uvala(&["doctor"]).stdout).into_owned();
        said.contains("PROBLEM  vale0:nic: process") && said.contains("where no process listens")
    });
    let mut device = Device::start(&daemon);
    wait::until("the doctor's word", || {
        let said = String::from_utf8_lossy(&daemon.uvala(&["doctor"]).stdout).into_owned();
        said.contains("PROBLEM  vale0:nic: process") && said.contains("is not connected")
    });
    device.process.kill();
    wait::until("the socket to go", || !device.socket.exists());
}

/// Whether a process waits, whatever for.
fn sleeps(process: &Owned) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("it lives");
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

#[test]
fn a_ring_that_is_nowhere_costs_no_processor() {
    let daemon = Daemon::start();
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    driver.write(register::TDBAL, 0x4000_0000);
    driver.write(register::TDBAL + register::TAIL, 9);
    (0..20).for_each(|_| wait::until("the device to sleep", || sleeps(&device.process)));
    // Nor a ring whose memory goes while there is something in it.
    driver.write(register::TDBAL, u32::try_from(RINGS[0]).expect("low"));
    driver.client.dma_unmap(0, MEMORY).expect("a reply");
    driver.write(register::TDBAL + register::TAIL, 20);
    (0..20).for_each(|_| wait::until("the device to sleep", || sleeps(&device.process)));
}

#[test]
fn a_card_shows_what_it_counts_at_its_port() {
    let daemon = Daemon::start();
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
    let counts = Device::counts(&daemon);
    assert_eq!([counts["tx_frames"], counts["tx_kicks"], counts["tx_dropped"]], [5, 5, 0]);
    assert!(counts["rx_frames"] >= 5 && counts["interrupts"] >= 2, "{counts:?}");
    assert!(counts["register_accesses"] > counts["tx_kicks"] + counts["rx_kicks"], "{counts:?}");
    let said = daemon.uvala(&["port", "show", PORT]).stdout;
    let said = String::from_utf8(said).expect("UTF-8");
    assert!(said.contains("\ntx_kicks               5\n"), "{said}");
}

#[test]
fn an_operator_spaces_the_interrupts_of_a_driver_that_does_not() {
    let daemon = Daemon::start();
    let late = |usecs: &str| {
        let device = Device::with(&daemon, "e1000", &["--coalesce-usecs", usecs]);
        let mut driver = Driver::start(&device);
        let mut port = daemon.open("vale0:peer");
        wait::until("the interrupt of the link", || driver.is_signalled());
        for seq in 0..200 {
            let frame = named(2, seq, 60);
            port.send(&frame).expect("a daemon");
            // Without naps: only a driver that is quick is to be held up.
            wait::spin("a frame", || driver.receive().is_some_and(|came| came == frame));
            wait::spin("its interrupt", || driver.is_signalled());
        }
        let counts = Device::counts(&daemon);
        assert_eq!((counts["rx_frames"], counts["interrupts"]), (200, 201));
        drop((driver, device, port));
        wait::until("the port to go", || daemon.port(PORT).is_none());
        counts["interrupts_suppressed"]
    };
    assert_eq!(late("0"), 0);
    // On a busy machine no driver is quick all the time.
    wait::until("an interrupt that is late", || late("1000") > 0);
}

/// The words of a page that driver and card share.
mod shared {
    pub const PAGE: u64 = 0x3000;
    pub const TDT: u64 = PAGE;
    pub const IS_ON: u64 = PAGE + 0xc;
    pub const RDT: u64 = PAGE + 0x10;
    pub const TXKICK_AT: u64 = PAGE + 0x14;
    pub const NEED_TXKICK: u64 = PAGE + 0x44;
    pub const CSBAL: u64 = 0x2830;
}

impl Driver {
    /// Names the page to the card.
    fn share(&mut self) {
        self.put(shared::TXKICK_AT, &u32::MAX.to_le_bytes());
        self.put(shared::RDT, &(DESCRIPTORS - 1).to_le_bytes());
        self.put(shared::IS_ON, &1u32.to_le_bytes());
        self.write(shared::CSBAL, u32::try_from(shared::PAGE).expect("low"));
    }

    /// Sends a frame through the page; whether the card wanted a kick.
    fn publish(&mut self, frame: &[u8]) -> bool {
        let at = self.next[0];
        wait::until("room", || self.done(0, at).is_some() || self.laps == 0);
        self.put(BUFFERS[0] + 2048 * u64::from(at), frame);
        self.describe(0, at, frame.len() as u64 | 0xb << 24);
        self.next[0] = (at + 1) % DESCRIPTORS;
        self.laps += u32::from(self.next[0] == 0);
        self.put(shared::TDT, &self.next[0].to_le_bytes());
        // Writes to a file and reads of it are in order, and this is x86.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let is_wanted = u32::from_le_bytes(self.get(shared::NEED_TXKICK)) != 0;
        if is_wanted {
            self.write(register::TDBAL + register::TAIL, self.next[0]);
        }
        is_wanted
    }
}

#[test]
fn a_driver_that_shares_memory_kicks_only_a_card_that_sleeps_and_loses_no_frame() {
    let daemon = Setup::new("[switch.vale0.port.peer]\non_full = \"wait\"\n").start();
    // It never sleeps for long, nor looks for long by itself.
    for polls in ["0", "50", "1000"] {
        let device = Device::with(&daemon, "e1000", &["--poll-usecs", polls]);
        let mut driver = Driver::start(&device);
        let mut port = daemon.open("vale0:peer");
        driver.share();
        let (mut came, mut kicks) = (Vec::new(), 0);
        for burst in 0..150 {
            for seq in 20 * burst..20 * (burst + 1) {
                kicks += u64::from(driver.publish(&named(1, seq, 60)));
            }
            for seq in 20 * burst..20 * (burst + 1) {
                let soon = Some(wait::PATIENCE);
                assert!(port.recv_timeout(&mut came, soon).expect("a daemon"), "{seq}");
                assert_eq!(came, named(1, seq, 60));
            }
            // Now and then it goes to sleep.
            if burst % 5 == 0 {
                wait::until("it to ask for kicks", || {
                    u32::from_le_bytes(driver.get(shared::NEED_TXKICK)) != 0
                });
            }
        }
        let counts = Device::counts(&daemon);
        assert_eq!((counts["tx_frames"], counts["tx_kicks"]), (3000, kicks), "{polls}");
        assert!(kicks >= 30, "it asks each time that it sleeps: {kicks}");
        println!("--poll-usecs {polls}: {kicks} kicks for 3000 frames");
        drop((driver, device));
        wait::until("the port to go", || daemon.port(PORT).is_none());
    }
}

#[test]
fn a_vmm_maps_only_so_much_memory() {
    let daemon = Daemon::start();
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    let large = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&large, 1 << 41).expect("it is sparse");
    // The client does not tell of refusals.
    let _ = driver.client.dma_map(0, 1 << 42, 1 << 41, large.as_raw_fd());
    wait::until("a word of it", || device.said().contains("more than 1024 GiB of guest memory"));
    assert_eq!(device.holdings().0, 1, "only the driver's is mapped");
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
}

#[test]
fn a_device_that_cannot_attach_again_says_why() {
    let mut daemon = Daemon::start();
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    daemon.kill();
    wait::until("a word of it", || device.said().contains("is not attached"));
    device.process.signal(Signal::STOP);
    daemon.restart();
    let thief = daemon.open(PORT);
    device.process.signal(Signal::CONT);
    wait::until("why", || device.said().contains("is taken by process"));
    drop(thief);
    wait::until("the port", || device.said().contains("is attached again"));
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
}

#[test]
fn a_vmm_that_truncates_memory_loses_its_connection() {
    let daemon = Daemon::start();
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    let mut port = daemon.open("vale0:peer");
    exchange(&mut driver, &mut port);
    ftruncate(&driver.memory, 0).expect("ours");
    port.send(&named(1, 0, 60)).expect("a daemon");
    wait::until("the end of the session", || device.said().contains("truncated"));
    assert_eq!(device.holdings().0, 0, "nothing of it is mapped");
    exchange(&mut Driver::start(&device), &mut port);
}

#[test]
fn one_vmm_has_the_device_and_one_that_says_nothing_has_it_not() {
    let daemon = Daemon::start();
    let device = Device::start(&daemon);
    let silent = UnixStream::connect(&device.socket).expect("a device");
    let mut driver = Driver::start(&device);
    assert_eq!((&silent).read(&mut [0; 1]).expect("an end"), 0, "another one came");
    assert!(vfio_user::Client::new(&device.socket).is_err(), "there is one");
    wait::until("a word of it", || device.said().contains("turned away"));
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
}

#[test]
fn a_guest_that_writes_anything_anywhere_costs_no_frame_of_others() {
    let daemon = Setup::new("[switch.vale0.port.b]\non_full = \"wait\"\n").start();
    let mut random = Random::seeded(19);
    let device = Device::start(&daemon);
    let mut driver = Driver::start(&device);
    let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
    b.send(&announcement(9)).expect("a daemon");
    let (mut frame, mut came, mut seq) = (Vec::new(), Vec::new(), 0);
    driver.share();
    for round in 0..3000 {
        let offset = match random.below(5) {
            0 => random.below(0x20000),
            4 => shared::CSBAL + random.below(8),
            1 => 0x3800 + random.below(0x40),
            2 => 0x2800 + random.below(0x40),
            _ => [register::RCTL, register::TCTL, 0x0, 0x14, 0x20][random.index(5)],
        };
        let width = 1 << random.below(3);
        let value = random.any().to_le_bytes();
        let offset = offset.min(0x20000 - 8);
        driver.client.region_write(BAR0, offset, &value[..width]).expect("a reply");
        if random.below(3) == 0 {
            let at = random.below(MEMORY - 64);
            driver.put(at, &random.bytes(64));
        }
        // And what the card shares with its driver.
        driver.put(shared::PAGE + random.below(0x70), &random.bytes(4));
        match random.below(200) {
            0 => driver.client.reset().expect("a reply"),
            // As firmware does, and in the middle of everything.
            1 => {
                driver.client.dma_unmap(0, MEMORY).expect("a reply");
                driver.client.region_write(BAR0, register::TDBAL, &value).expect("a reply");
                let fd = driver.memory.as_raw_fd();
                driver.client.dma_map(0, 0, MEMORY, fd).expect("a reply");
            }
            3 => driver.client.region_write(CONFIG, 4, &[7, 0]).expect("a reply"),
            30..40 => driver.share(),
            4..20 => driver.client.region_write(1, random.below(57), &value).expect("a reply"),
            20..30 => {
                let fds = [driver.line.as_raw_fd()];
                let fds = &fds[..random.index(2)];
                driver.client.set_irqs(0, 0x24, 0, 1, fds).expect("a reply");
            }
            _ => {}
        }
        if round % 10 == 0 {
            fill(&mut frame, mac(9), 5, seq, 60 + usize::try_from(seq % 1000).expect("few"));
            seq += 1;
            a.send(&frame).expect("a daemon");
            while came != frame {
                let soon = Some(Duration::from_secs(20));
                assert!(b.recv_timeout(&mut came, soon).expect("a daemon"), "frame {seq}");
            }
        }
    }
    drop(driver);
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut a);
}

/// A guest with an e1000 and one with virtio-net on the same switch.
fn lab(kit: &Kit) -> (Daemon, Device, Guest, Guest) {
    let port = "[switch.vale0.port.vm2]\nkind = \"vhost-user\"\n";
    let daemon = Setup::new(port).start();
    let device = Device::start(&daemon);
    let emulated = Boot { port: PORT, nic: Some("e1000"), ..Boot::default() };
    let virtio = Boot { port: "vale0:vm2", ..Boot::default() };
    let [mut a, mut b] = [emulated, virtio].map(|boot| Guest::start(kit, &daemon, &boot));
    for (number, guest) in (1..).zip([&mut a, &mut b]) {
        guest.ready();
        guest.configure(number, 1500);
    }
    (daemon, device, a, b)
}

fn kit() -> Option<Kit> {
    let kit = Kit::find()?;
    if kit.is_old() {
        harness::skip("vfio-user wants QEMU 10.1 or newer");
        return None;
    }
    Some(kit)
}

#[test]
fn an_e1000_by_vfio_user_carries_whole_frames_and_outlives_the_daemon() {
    let Some(kit) = kit() else { return };
    let (mut daemon, device, mut a, mut b) = lab(&kit);
    a.reach("10.0.0.2");
    for size in [18, 1000, 1472] {
        a.run(&format!("ping -c 3 -i 0.1 -q -s {size} 10.0.0.2"));
    }
    b.run("iperf3 -s -D >/dev/null");
    for how in ["-n 5M", "-n 5M -R", "-u -b 5M -n 1M", "-u -b 5M -n 1M -R"] {
        let text = a.iperf3("10.0.0.2", how);
        assert!(text.contains("receiver"), "{how}: {text}");
    }
    // The e1000 leaves checksums and segments to the device.
    a.send_file(&mut b, "10.0.0.2");
    b.send_file(&mut a, "10.0.0.1");
    assert_eq!(a.checksum_errors() + b.checksum_errors(), 0, "wrong checksums");
    // Traffic that never ends, in both directions.
    b.run("(ping -q -i 0.01 10.0.0.1 >/dev/null) & sleep 0.1");
    let carrier = a.run("cat /sys/class/net/eth0/carrier_changes");
    for _ in 0..2 {
        daemon.kill();
        daemon.restart();
        let pause = a.reach("10.0.0.2");
        println!("an e1000 is reached {pause:?} after the daemon is back");
    }
    assert_eq!(a.run("cat /sys/class/net/eth0/carrier_changes"), carrier);
    let (said, hangs) = a.try_run("dmesg | grep -E 'Tx Unit Hang|Reset adapter|NETDEV WATCHDOG'");
    assert!(!hangs, "{said}");
    a.run("ping -c 20 -i 0.05 -q -s 1400 10.0.0.2 | grep -q ' 0% packet loss'");
    assert!(!device.said().contains("refused"), "{}", device.said());
}

#[test]
fn a_device_that_is_killed_costs_its_guest_a_card_and_nothing_else() {
    let Some(kit) = kit() else { return };
    let (daemon, mut device, mut a, mut b) = lab(&kit);
    a.reach("10.0.0.2");
    // QEMU is killed: the device gives the guest back, and the next one boots on it.
    a.kill();
    wait::until("the guest's memory back", || device.holdings().0 == 0);
    let again = Boot { port: PORT, nic: Some("e1000"), ..Boot::default() };
    let mut a = Guest::start(&kit, &daemon, &again);
    a.ready();
    a.configure(1, 1500);
    a.reach("10.0.0.2");
    // A stopped machine has no access under way: QEMU 11.1 may abort if its device goes in the
    // midst of one, and the driver looks at its card every two seconds.
    a.monitor("stop");
    device.process.kill();
    wait::until("the port to go", || daemon.port(PORT).is_none());
    a.monitor("cont");
    b.run("(ping -q -i 0.01 10.0.0.1 >/dev/null) & sleep 0.1");
    // The guest runs, and so do all others.
    assert_eq!(a.run("echo alive"), "alive");
    let mut port = daemon.open("vale0:peer");
    b.run("killall ping; ping -c 1 -W 1 10.0.0.9; true");
    let mut frame = Vec::new();
    while !frame.starts_with(&BROADCAST) {
        assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("a daemon"));
    }
}

#[test]
fn a_command_boots_a_guest_with_an_e1000_and_leaves_nothing_behind() {
    let Some(kit) = kit() else { return };
    let daemon = Daemon::start();
    let (dir, kernel) = (daemon.dir(), kit.kernel("kernel-generic").expect("it was found"));
    let words = [dir.as_path(), "--qemu".as_ref(), kit.qemu(), kernel.as_path()];
    let words = words.map(|word| word.to_str().expect("UTF-8"));
    let fixed = ["vm", "run", "--nic", "e1000", "--accel", "tcg", "--memory", "192M"];
    let more = ["--coalesce-usecs", "100", "--dir"];
    let words = [&fixed[..], &more, &words].concat();
    let said = uvala(Become::default(), &[&words[..], &["--print"]].concat(), None).output();
    let said = String::from_utf8(said.expect("it runs").stdout).expect("UTF-8");
    let (device, qemu) = said.split_once('\n').expect("two lines");
    assert!(device.starts_with("uvala-device --nic e1000 --port vale0:vm1 --dir "), "{device}");
    assert!(device.ends_with(" --coalesce-usecs 100 &"), "{device}");
    assert!(qemu.contains("no_timer_check"), "{qemu}");
    let mut guest = Console::start(&mut uvala(Become::default(), &words, None));
    guest.hear("This is 10.0.0.1, on port vale0:vm1");
    guest.hear("vm1# ");
    guest.enter("basename $(readlink /sys/class/net/eth0/device/driver) | sed s/^/driver-/");
    guest.hear("driver-e1000");
    let mut port = daemon.open("vale0:peer");
    guest.enter("ping -c 1 -W 1 10.0.0.9");
    let mut frame = Vec::new();
    while !frame.starts_with(&BROADCAST) {
        assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("a daemon"));
    }
    guest.enter("exit");
    assert!(guest.process().wait().success());
    wait::until("the end of its port", || daemon.ports() == ["vale0:peer"]);
}

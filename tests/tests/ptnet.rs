//! A port passed through to a guest, `uvala-device --nic ptnet`: driven by a client of another
//! author in place of a VMM, and by a real guest with the driver in `guest/linux`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

use client::{Interest, Port};
use harness::daemon::{Daemon, Setup, open_when_free};
use harness::device::{Device, PORT};
use harness::frames::{BROADCAST, announcement, fill, mac};
use harness::guest::{Boot, Console, DRIVER, Guest, Kit};
use harness::guest_driver::{Built, programs};
use harness::process::{Scratch, uvala};
use harness::role::Become;
use harness::{Random, c, chain, wait};
use protocol::{FunctionInfo, FunctionRequest, Reply, Request, SteeringQuery};
use rustix::event::{EventfdFlags, eventfd};

/// Registers, and what is written there.
mod register {
    pub const PTFEAT: u64 = 0x00;
    pub const PTCTL: u64 = 0x04;
    pub const NIFP_OFS: u64 = 0x18;
    pub const NUM_TX_SLOTS: u64 = 0x24;
    pub const STATUS: u64 = 0x44;
    pub const EPOCH: u64 = 0x48;
    pub const BELL_OFS: u64 = 0x50;
    pub const ATOK_OFS: u64 = 0x54;
    pub const KTOA_OFS: u64 = 0x58;
    pub const BUF_OFS: u64 = 0x60;
    pub const BUF_SIZE: u64 = 0x64;
    pub const KICK: u64 = 0x80;
    pub const REGION: u32 = 1 << 31;
    pub const CREATE: u32 = 1;
    pub const DELETE: u32 = 2;
}

const REGISTERS: u32 = 0;
const VECTORS: u32 = 2;
const MEMORY: u32 = 4;
const CONFIG: u32 = 7;
/// `VFIO_PCI_MSIX_IRQ_INDEX`.
const MSIX: u32 = 2;

/// A driver of one transmit and one receive ring.
struct Driver {
    client: vfio_user::Client,
    memory: File,
    vectors: [OwnedFd; 3],
    rings: [u64; 2],
    words: [u64; 3],
    pool: (u64, u64),
    slots: u32,
    heads: [u32; 2],
}

impl Driver {
    /// Connects as a VMM, maps the region, and starts the rings as the driver does.
    fn start(device: &Device) -> Self {
        let mut client = vfio_user::Client::new(&device.socket).expect("a device");
        let region = client.region(MEMORY).expect("a region");
        let memory = region.file_offset.as_ref().expect("memory").file();
        let memory = memory.try_clone().expect("descriptors");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let vectors = [0, 1, 2].map(|_| eventfd(0, flags).expect("descriptors"));
        for (number, vector) in (0..).zip(&vectors) {
            client.set_irqs(MSIX, 0x24, number, 1, &[vector.as_raw_fd()]).expect("a reply");
        }
        let mut this = Self {
            client,
            memory,
            vectors,
            rings: [0; 2],
            words: [0; 3],
            pool: (0, 0),
            slots: 0,
            heads: [0; 2],
        };
        this.write(register::PTFEAT, register::REGION);
        this.create();
        this
    }

    /// Starts the rings, and finds where they are.
    fn create(&mut self) {
        self.write(register::PTCTL, register::CREATE);
        assert_eq!(self.read(register::PTCTL), 0);
        let nifp = u64::from(self.read(register::NIFP_OFS));
        // Behind the rings of each direction is one of the host.
        self.rings = [0, 2].map(|at| nifp + u64::from(self.load(nifp + 56 + 8 * at)));
        let words = [register::BELL_OFS, register::ATOK_OFS, register::KTOA_OFS];
        self.words = words.map(|at| self.read(at).into());
        let pool = [register::BUF_OFS, register::BUF_SIZE].map(|at| self.read(at).into());
        self.pool = (pool[0], pool[1]);
        self.slots = self.read(register::NUM_TX_SLOTS);
        self.heads = [0, 1].map(|ring| self.load(self.words[1] + 64 * ring));
        // A netmap program begins there, and with no frame.
        assert_eq!([20, 24].map(|at| self.rings.map(|ring| self.load(ring + at))), [self.heads; 2]);
    }

    /// The buffers in its slots, each once.
    fn buffers(&self) -> BTreeSet<u32> {
        let slots = [0, 1].into_iter().flat_map(|ring| (0..self.slots).map(move |at| (ring, at)));
        slots.map(|(ring, at)| self.load(self.slot(ring, at).0)).collect()
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.client.region_read(REGISTERS, offset, &mut bytes).expect("a reply");
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.client.region_write(REGISTERS, offset, &value.to_le_bytes()).expect("a reply");
    }

    fn load(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, at), Ok(4));
        u32::from_le_bytes(bytes)
    }

    fn store(&self, at: u64, value: u32) {
        assert_eq!(rustix::io::pwrite(&self.memory, &value.to_le_bytes(), at), Ok(4));
    }

    /// Where slot `at` of a ring is, and its buffer.
    fn slot(&self, ring: usize, at: u32) -> (u64, u64) {
        let slot = self.rings[ring] + 256 + 16 * u64::from(at);
        (slot, self.pool.0 + self.pool.1 * u64::from(self.load(slot)))
    }

    /// Gives up one slot of a ring.
    fn publish(&mut self, ring: usize) {
        self.heads[ring] = (self.heads[ring] + 1) % self.slots;
        let atok = self.words[1] + 64 * ring as u64;
        self.store(atok + 4, self.heads[ring]);
        self.store(atok, self.heads[ring]);
    }

    /// Sends a frame, and waits until the switch has taken it.
    fn send(&mut self, frame: &[u8]) {
        let (slot, buffer) = self.slot(0, self.heads[0]);
        assert_eq!(rustix::io::pwrite(&self.memory, frame, buffer), Ok(frame.len()));
        self.store(slot + 4, u32::try_from(frame.len()).expect("short"));
        self.publish(0);
        if self.load(self.words[0]) != 0 {
            self.write(register::KICK, 0);
        }
        wait::until("the switch to take a frame", || self.load(self.words[2]) == self.heads[0]);
    }

    /// The next frame that has come.
    fn receive(&mut self) -> Option<Vec<u8>> {
        if self.load(self.words[2] + 64 + 4) == self.heads[1] {
            return None;
        }
        let (slot, buffer) = self.slot(1, self.heads[1]);
        let mut frame = vec![0; self.load(slot + 4) as usize & 0xffff];
        assert_eq!(rustix::io::pread(&self.memory, &mut frame, buffer), Ok(frame.len()));
        self.publish(1);
        Some(frame)
    }

    /// Asks for a vector with the next frame.
    fn sleep(&self, number: u32) {
        let atok = self.words[1] + 64;
        self.store(atok + 4, self.heads[1]);
        self.store(atok + 8, number);
    }

    /// How often a vector was sent since the last look.
    fn interrupts(&self, vector: usize) -> u64 {
        let mut count = [0; 8];
        let read = rustix::io::read(&self.vectors[vector], &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    }
}

fn named(stream: u32, seq: u64, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, BROADCAST, stream, seq, len);
    frame
}

/// Frames pass both ways, with an interrupt for what comes to a driver that sleeps.
fn exchange(driver: &mut Driver, port: &mut Port) {
    while driver.receive().is_some() {}
    for (seq, len) in (0..).zip([60, 61, 128, 1000, 1514]) {
        let frame = named(1, seq, len);
        driver.send(&frame);
        let mut came = Vec::new();
        while came != frame {
            let soon = Some(wait::PATIENCE);
            assert!(port.recv_timeout(&mut came, soon).expect("a daemon"), "{len} bytes");
        }
        driver.interrupts(1);
        driver.sleep(u32::try_from(seq).expect("few") + 2);
        let frame = named(2, seq, len);
        port.send(&frame).expect("a daemon");
        wait::until("an interrupt", || driver.interrupts(1) > 0);
        // Frames of others may stand in front of it.
        wait::find("a frame", || driver.receive().filter(|came| *came == frame));
    }
}

#[test]
fn a_guest_drives_the_rings_of_its_port_itself() {
    let daemon = Daemon::start();
    let device = Device::model(&daemon, "ptnet");
    let mut driver = Driver::start(&device);
    let mut id = [0; 4];
    driver.client.region_read(CONFIG, 0, &mut id).expect("a reply");
    assert_eq!(id, [0x36, 0x1b, 0x0d, 0x00]);
    assert_eq!(driver.read(register::STATUS), 1, "the link is up");
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
    // A kick that is posted.
    driver.write(register::PTCTL, register::DELETE);
    driver.create();
    driver.client.region_write(VECTORS, 0x1000, &[0; 4]).expect("a reply");
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
}

#[test]
fn a_switch_that_comes_back_finds_the_guest_with_new_rings_in_the_old_memory() {
    let mut daemon = Daemon::start();
    let device = Device::model(&daemon, "ptnet");
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
    for round in 1..=3 {
        if round == 1 {
            daemon.kill();
        } else {
            daemon.terminate();
            daemon.process().wait();
        }
        wait::until("no link", || driver.read(register::STATUS) == 0);
        wait::until("a word of it", || driver.interrupts(2) > 0);
        // The rings end with the first switch. After that they are the device's.
        assert_eq!(driver.read(register::EPOCH), 1);
        if round == 1 {
            driver.create();
        }
        // For a switch that is not there: taken, and lost.
        (0..100).for_each(|seq| driver.send(&named(3, seq, 60)));
        daemon.restart();
        wait::until("a link", || driver.read(register::STATUS) == 1);
        exchange(&mut driver, &mut daemon.open("vale0:peer"));
    }
    // The next VMM has the memory of the port, and its own rings.
    drop(driver);
    let mut driver = Driver::start(&device);
    assert_eq!(driver.read(register::EPOCH), 0);
    exchange(&mut driver, &mut daemon.open("vale0:peer"));
}

#[test]
fn frames_for_no_driver_do_not_hold_up_their_senders() {
    let daemon = Setup::new("[switch.vale0.port.nic]\non_full = \"wait\"\n").start();
    let device = Device::model(&daemon, "ptnet");
    let mut port = daemon.open("vale0:peer");
    (0..5000).for_each(|seq| port.send(&named(4, seq, 60)).expect("a daemon"));
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut port);
    driver.write(register::PTCTL, register::DELETE);
    (0..5000).for_each(|seq| port.send(&named(4, seq, 60)).expect("a daemon"));
    driver.create();
    exchange(&mut driver, &mut port);
}

#[test]
fn a_program_that_dies_in_an_exchange_leaves_each_buffer_in_one_slot() {
    for group in [None, Some("nf")] {
        let daemon = Daemon::start();
        let more: Vec<_> = group.iter().flat_map(|group| ["--group", group]).collect();
        let device = Device::with(&daemon, "ptnet", &more);
        let mut driver = Driver::start(&device);
        exchange(&mut driver, &mut daemon.open("vale0:peer"));
        let all = driver.buffers();
        // A slot that is to be sent has the buffer of another one, and its own is nowhere.
        let [sent, received] = [0, 1].map(|ring| driver.slot(ring, driver.heads[ring]).0);
        driver.store(sent, driver.load(received));
        assert_eq!(driver.buffers().len(), all.len() - 1);
        driver.write(register::PTCTL, register::DELETE);
        driver.create();
        assert_eq!(driver.buffers(), all, "{group:?}");
        if group.is_some() {
            let held = chain::audit(&daemon).remove(0).members.remove(0);
            assert_eq!((held.wrong, held.kept), (0, 0));
        }
        exchange(&mut driver, &mut daemon.open("vale0:peer"));
    }
}

#[test]
fn no_vmm_finds_the_memory_of_another_and_all_is_given_back() {
    let daemon = Daemon::start();
    let device = Device::model(&daemon, "ptnet");
    drop(Driver::start(&device));
    let before = wait::find("a renewed port", || {
        let renewed = device.said().matches("is attached again").count() == 1;
        renewed.then(|| device.holdings().1)
    });
    for round in 2..5 {
        let mut driver = Driver::start(&device);
        let secret = driver.slot(0, 5).1;
        assert_eq!(driver.load(secret), 0, "as new");
        driver.store(secret, 0x5ec3e7);
        exchange(&mut driver, &mut daemon.open("vale0:peer"));
        drop(driver);
        let renewed = || device.said().matches("is attached again").count() == round;
        wait::until("a renewed port", renewed);
        // Some of the first port's may have been open when they were counted.
        wait::until("everything back", || device.holdings().1 <= before);
    }
}

#[test]
fn a_guest_that_writes_anything_anywhere_costs_no_frame_of_others() {
    write_anything_anywhere(&[]);
}

#[test]
fn a_guest_in_a_trust_group_costs_no_frame_of_ports_outside_of_it() {
    write_anything_anywhere(&["--group", "nf"]);
}

fn write_anything_anywhere(more: &[&str]) {
    let mut daemon = Setup::new("[switch.vale0.port.b]\non_full = \"wait\"\n").start();
    let mut random = Random::seeded(23);
    let device = Device::with(&daemon, "ptnet", more);
    let mut driver = Driver::start(&device);
    for relayed in [false, true] {
        if relayed {
            replace(&mut daemon, &device);
        }
        let (mut a, mut b) = (daemon.open("vale0:a"), daemon.open("vale0:b"));
        b.send(&announcement(9)).expect("a daemon");
        let (mut frame, mut came) = (Vec::new(), Vec::new());
        for round in 0..1500 {
            scribble(&mut driver, &mut random);
            if round % 10 == 0 {
                let len = 60 + usize::try_from(round % 1000).expect("few");
                fill(&mut frame, mac(9), 5, round, len);
                a.send(&frame).expect("a daemon");
                while came != frame {
                    let soon = Some(wait::PATIENCE);
                    assert!(b.recv_timeout(&mut came, soon).expect("a daemon"), "frame {round}");
                }
            }
        }
    }
    drop(driver);
    let mut driver = Driver::start(&device);
    exchange(&mut driver, &mut daemon.open("vale0:c"));
}

/// Writes something somewhere: registers, words of the CSB, slots, or anything of the memory.
fn scribble(driver: &mut Driver, random: &mut Random) {
    let value = random.any().to_le_bytes();
    let width = 1 << random.below(4);
    let client = &mut driver.client;
    match random.below(8) {
        0 => client.region_write(REGISTERS, random.below(0xf8), &value[..width]).expect("a reply"),
        1 => driver.write(register::PTCTL, 1 + u32::try_from(random.below(2)).expect("two")),
        2 => driver.write(register::PTFEAT, u32::MAX),
        3 => client.region_write(VECTORS, random.below(0x1ff8), &value).expect("a reply"),
        4 => {
            let word = driver.words[1] + 4 * random.below(64);
            let value = [random.below(2000), random.any()][random.index(2)];
            driver.store(word, u32::try_from(value & 0xffff_ffff).expect("masked"));
        }
        5 => {
            let slot = driver.rings[random.index(2)] + 256 + 8 * random.below(2048);
            driver.store(slot, u32::try_from(random.any() & 0xffff).expect("masked"));
        }
        6 => {
            let at = random.below(driver.pool.0);
            let bytes = random.bytes(64);
            assert!(rustix::io::pwrite(&driver.memory, &bytes, at).is_ok());
        }
        _ => driver.write(register::KICK, 0),
    }
    match random.below(300) {
        0 => driver.client.reset().expect("a reply"),
        1 => {
            let fds = [driver.vectors[0].as_raw_fd()];
            let fds = &fds[..random.index(2)];
            driver.client.set_irqs(MSIX, 0x24, 0, 1, fds).expect("a reply");
        }
        _ => {}
    }
}

#[test]
fn a_guest_with_our_driver_carries_whole_frames_and_outlives_the_daemon() {
    let Some(kit) = Kit::with_vfio_user() else { return };
    let Some(built) = Built::ptnet(&kit) else { return };
    let port = "[switch.vale0.port.vm2]\nkind = \"vhost-user\"\n";
    let mut daemon = Setup::new(port).start();
    let mut device = Device::with(&daemon, "ptnet", &["--queues", "2"]);
    let driver = Some(built.path());
    let ptnet = Boot { port: PORT, nic: Some("ptnet"), driver, ..Boot::default() };
    let virtio = Boot { port: "vale0:vm2", ..Boot::default() };
    let mut a = Guest::start(&kit, &daemon, &ptnet);
    let mut b = Guest::start(&kit, &daemon, &virtio);
    for (number, guest) in (1..).zip([&mut a, &mut b]) {
        guest.ready();
        guest.configure(number, 1500);
    }
    let carries = |a: &mut Guest, b: &mut Guest| {
        for size in [18, 1000, 1472] {
            a.run(&format!("ping -c 3 -i 0.1 -q -s {size} 10.0.0.2 | grep -q ' 0% packet loss'"));
        }
        a.send_file(b, "10.0.0.2");
        b.send_file(a, "10.0.0.1");
        assert_eq!(a.checksum_errors() + b.checksum_errors(), 0, "wrong checksums");
    };
    a.reach("10.0.0.2");
    carries(&mut a, &mut b);
    b.run("iperf3 -s -D >/dev/null");
    for how in ["-n 5M", "-n 5M -R", "-u -b 5M -n 1M", "-u -b 5M -n 1M -R"] {
        let text = a.iperf3("10.0.0.2", how);
        assert!(text.contains("receiver"), "{how}: {text}");
    }
    println!("{}", a.run("ethtool -S eth0"));
    a.run("ethtool -S eth0 | grep -q 'pair1_interrupts:'");
    // The driver goes and comes.
    a.run(&format!("rmmod uvala_ptnet && insmod {DRIVER}"));
    a.configure(1, 1500);
    a.reach("10.0.0.2");
    // Traffic that never ends, in both directions.
    b.run("(ping -q -i 0.01 10.0.0.1 >/dev/null) & sleep 0.1");
    for _ in 0..2 {
        daemon.kill();
        daemon.restart();
        let pause = a.reach("10.0.0.2");
        println!("a guest with ptnet is reached {pause:?} after the daemon is back");
    }
    carries(&mut a, &mut b);
    let (said, warned) =
        a.try_run("dmesg | grep -E 'WATCHDOG|BUG:|WARNING:|Call Trace|does not start'");
    assert!(!warned, "{said}");
    assert!(!device.said().contains("refused"), "{}", device.said());
    // Of a device that is killed the guest loses the card, and nothing else. No access is under
    // way: QEMU 11.1 may abort if its device goes in the midst of one.
    b.run("killall ping; sleep 0.5");
    device.process.kill();
    wait::until("the port to go", || daemon.port(PORT).is_none());
    assert_eq!(a.run("echo alive"), "alive");
}

#[test]
fn a_command_boots_a_guest_with_a_port_of_its_own_once_the_driver_is_there() {
    let Some(kit) = Kit::with_vfio_user() else { return };
    let Some(built) = Built::ptnet(&kit) else { return };
    let daemon = Daemon::start();
    // A kernel whose modules are beside it, and the driver not among them yet.
    let place = Scratch::new("kernel");
    let modules = place.path().join("lib/modules").join(&built.version).join("kernel");
    std::fs::create_dir_all(&modules).expect("room");
    let kernel = place.path().join("vmlinuz");
    std::fs::copy(kit.kernel("kernel").expect("it was found"), &kernel).expect("room");
    let dir = daemon.dir();
    let words = [dir.as_path(), "--qemu".as_ref(), kit.qemu(), kernel.as_path()];
    let words = words.map(|word| word.to_str().expect("UTF-8"));
    let fixed = ["vm", "run", "--nic", "ptnet", "--accel", "tcg", "--memory", "192M"];
    let words = [&fixed[..], &["--append", "no_timer_check", "--dir"], &words].concat();
    let mut command = uvala(Become::default(), &words, None);
    let said = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && error.contains("make -C guest/linux"), "{error}");
    std::fs::copy(built.path(), modules.join("uvala_ptnet.ko")).expect("room");
    let mut guest = Console::start(&mut uvala(Become::default(), &words, None));
    guest.hear("This is 10.0.0.1, on port vale0:vm1");
    guest.hear("vm1# ");
    guest.enter("basename $(readlink /sys/class/net/eth0/device/driver) | sed s/^/driver-/");
    guest.hear("driver-uvala_ptnet");
    let args = daemon.uvala(&["vm-args", "vale0:vm1", "--nic", "e1000"]);
    let error = String::from_utf8_lossy(&args.stderr).into_owned();
    assert!(!args.status.success() && error.contains("uvala-device (ptnet)"), "{error}");
    guest.enter("exit");
    assert!(guest.process().wait().success());
    wait::until("the end of its port", || daemon.ports().is_empty());
}

/// Starts a guest whose card has no driver; returns it with the address of the card.
fn guest_without_driver(kit: &Kit, daemon: &Daemon, place: &Scratch) -> (Guest, String) {
    let programs = programs(place);
    let boot = Boot { port: PORT, nic: Some("ptnet"), cpus: 2, programs, ..Boot::default() };
    let mut guest = Guest::start(kit, daemon, &boot);
    guest.ready();
    let ours = "[ $(cat $d/vendor)$(cat $d/device) = 0x1b360x000d ]";
    let find = format!("for d in /sys/bus/pci/devices/*; do {ours} && basename $d; done; true");
    let address = guest.run(&find);
    (guest, address)
}

/// The frame number `n` for the program in the guest.
fn numbered(n: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(8), 9, 0, 60);
    frame[14..18].copy_from_slice(&n.to_be_bytes());
    frame
}

/// The number of the next frame that comes from it.
fn next(port: &mut Port) -> u32 {
    let mut frame = Vec::new();
    assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("a daemon"));
    assert_eq!((frame.len(), &frame[..6]), (60, &mac(9)[..]));
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}

/// What a program in the background has said, which was nothing before.
fn said(guest: &mut Guest) -> String {
    guest.run("until grep -q . /tmp/said; do sleep 0.1; done");
    guest.run("cat /tmp/said; rm /tmp/said")
}

/// The daemon is replaced by another one, to which the device attaches its port again.
fn replace(daemon: &mut Daemon, device: &Device) {
    let count = |word: &str| device.said().matches(word).count();
    let again = count("is attached again");
    daemon.kill();
    daemon.restart();
    wait::until("the port", || count("is attached again") > again);
}

#[test]
fn a_netmap_program_in_a_guest_without_a_driver_has_the_hosts_rings() {
    const COUNT: u32 = 5000;
    /// Fewer than the guest's ring has room for: none is dropped.
    const ROOM: u32 = 1000;
    let Some(kit) = Kit::with_vfio_user().filter(|_| c::has_compiler()) else { return };
    let mut daemon = Setup::new("[switch.vale0.port.peer]\non_full = \"wait\"\n").start();
    let device = Device::model(&daemon, "ptnet");
    let place = Scratch::new("programs");
    let (mut guest, address) = guest_without_driver(&kit, &daemon, &place);
    let mut port = daemon.open("vale0:peer");
    let program = "uvala run -- guest";
    assert_eq!(guest.run(&format!("{program} rules {address}")), "as they should be");
    let mut frame = Vec::new();
    for _ in 0..2 {
        assert!(port.recv_timeout(&mut frame, Some(wait::PATIENCE)).expect("a daemon"));
        assert_eq!((frame.len(), frame[59]), (60, 7), "one of the child's, one of the parent's");
    }
    for how in ["poll", "select", "epoll"] {
        // One that comes while no program runs is lost, and the next program begins in order.
        port.send(&numbered(7)).expect("a daemon");
        guest.run(&format!("{program} rx {address} {ROOM} {how} > /tmp/said 2>&1 &"));
        assert_eq!(next(&mut port), 0, "it takes frames");
        for n in 0..ROOM {
            let sent = port.send_timeout(&numbered(n), Some(wait::PATIENCE)).expect("a daemon");
            assert!(sent, "{how}, frame {n}: {}", guest.run("cat /tmp/said"));
        }
        assert_eq!(said(&mut guest), format!("received {ROOM}"), "{how}");
    }
    // One that waits for nothing is woken 125 times a second, not 2000.
    guest.run(&format!("{program} rx {address} 1 poll > /tmp/said 2>&1 &"));
    assert_eq!(next(&mut port), 0);
    let woken = "awk '/^voluntary/ { print $2 }' /proc/$(pidof guest)/status";
    let said_twice = guest.run(&format!("sleep 1; {woken}; sleep 4; {woken}"));
    let counts: Vec<u32> = said_twice.lines().map(|it| it.parse().unwrap()).collect();
    assert!(counts[1] - counts[0] < 2000, "{counts:?}");
    port.send(&numbered(0)).expect("a daemon");
    assert_eq!(said(&mut guest), "received 1");
    guest.run(&format!("{program} tx {address} {COUNT} > /tmp/said 2>&1 &"));
    (0..COUNT).for_each(|n| assert_eq!(next(&mut port), n));
    assert_eq!(said(&mut guest), format!("sent {COUNT}"));
    assert!(!port.try_recv(&mut frame).expect("a daemon"), "no frame was one too many");
    // A program that is killed leaves its rings to the next one.
    guest.run(&format!("{program} rx {address} 1 poll > /tmp/said 2>&1 & sleep 1; kill -9 $!"));
    assert_eq!(next(&mut port), 0);
    guest.run(&format!("{program} tx {address} 10"));
    (0..10).for_each(|n| assert_eq!(next(&mut port), n));
    // One whose switch ends is told, as on a host.
    guest.run(&format!("{program} rx {address} 1 poll > /tmp/said 2>&1 &"));
    assert_eq!(next(&mut port), 0);
    replace(&mut daemon, &device);
    let told = said(&mut guest);
    assert!(told.contains("the daemon is gone"), "{told}");
    let mut port = daemon.open("vale0:peer");
    port.send(&announcement(9)).expect("a daemon");
    guest.run(&format!("{program} tx {address} 10"));
    (0..10).for_each(|n| assert_eq!(next(&mut port), n));
}

/// A chain from `vale0:a` to `vale0:b` through a firewall at the device's port.
const FIREWALLED: &str = "[switch.vale0]\nforwarding = \"chain\"\n\
    [switch.vale0.port.a]\nchain = \"c\"\n[switch.vale0.port.b]\non_full = \"wait\"\n\
    [switch.vale0.port.nic]\nservice = \"firewall\"\non_full = \"wait\"\n\
    [[switch.vale0.chain]]\nname = \"c\"\nservices = [\"firewall\"]\n";

/// A UDP packet number `n`, from a host that may send unless that is a multiple of four.
fn datagram(n: u32) -> Vec<u8> {
    let network = u8::from(!n.is_multiple_of(4));
    let packet = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, network, 1, 10, 0, 2, 2];
    let ports = [0, 7, 0, 53, 0, 26, 0, 0];
    let mut frame = [&mac(9)[..], &mac(1), &[8, 0], &packet, &ports, &n.to_be_bytes()].concat();
    frame.resize(60, 0);
    frame
}

/// Sends through a firewall in a guest, and requires that just the right frames come. In a group,
/// what stands behind them in their buffers comes along: they are not copied.
fn pass_the_firewall(daemon: &Daemon, group: Option<&str>) {
    const COUNT: u32 = 2000;
    const BEHIND: std::ops::Range<usize> = 1000..1004;
    let options = group.iter().fold(daemon.options(), |options, group| options.group(*group));
    let [mut a, mut b] = ["vale0:a", "vale0:b"].map(|name| open_when_free(&options, name));
    // A frame for two ports is copied.
    b.send(&announcement(9)).expect("a daemon");
    for n in 0..COUNT {
        assert!(a.wait(Interest::Tx(1), Some(wait::PATIENCE)).expect("a daemon"));
        let frame = datagram(n);
        a.tx(0).frame(0, 60).copy_from_slice(&frame);
        a.tx(0).buffer(0)[BEHIND].copy_from_slice(&n.to_be_bytes());
        a.tx(0).submit(1).expect("a daemon");
        if n.is_multiple_of(4) {
            continue;
        }
        let slot = wait::find("a frame", || {
            assert!(b.wait(Interest::Rx, Some(wait::PATIENCE)).expect("a daemon"), "frame {n}");
            let slot = b.rx(0).frames().next().map(|frame| frame.first_slot());
            if slot.is_none() {
                // Those that the switch passed over.
                let passed_over = b.rx(0).owned();
                b.rx(0).release(passed_over).expect("a daemon");
            }
            slot
        });
        assert_eq!(b.rx(0).frame(slot), frame, "frame {n}");
        let came_along = b.rx(0).buffer(slot)[BEHIND] == n.to_be_bytes();
        assert_eq!(came_along, group.is_some(), "frame {n} was copied, or was not");
        b.rx(0).release(slot + 1).expect("a daemon");
    }
}

/// The function at the device's port, as the switch lists it.
fn listed(daemon: &Daemon) -> FunctionInfo {
    let query = SteeringQuery { switch: "vale0".parse().expect("a name"), from: None };
    match daemon.call(Request::Function(FunctionRequest::List(query))) {
        Ok(Reply::Functions(mut page)) => page.items.remove(0),
        other => panic!("{other:?}"),
    }
}

fn a_function_in_a_guest(group: Option<&str>) {
    let Some(kit) = Kit::with_vfio_user().filter(|_| c::has_compiler()) else { return };
    let mut daemon = Setup::new(FIREWALLED).start();
    let more: Vec<_> = group.iter().flat_map(|group| ["--group", group]).collect();
    let device = Device::with(&daemon, "ptnet", &more);
    let place = Scratch::new("programs");
    let (mut guest, address) = guest_without_driver(&kit, &daemon, &place);
    for line in ["[[rule]]", "action = \"accept\"", "src = \"10.0.1.0/24\""] {
        guest.run(&format!("echo '{line}' >> /tmp/rules"));
    }
    // The program before the function dies as it exchanges two buffers.
    assert!(!guest.try_run(&format!("uvala run -- guest die {address}")).1);
    let run = format!("uvala nf run firewall netmap:{address} -c /tmp/rules");
    let until_it_runs = "until grep -q resource4 /proc/[0-9]*/maps; do sleep 0.1; done";
    guest.run(&format!("{run} > /tmp/said 2>&1 &"));
    guest.run(until_it_runs);
    pass_the_firewall(&daemon, group);
    wait::until("all counted", || listed(&daemon).frames_in == 2000);
    assert_eq!(listed(&daemon).frames_out, 1500);
    if group.is_some() {
        wait::until("the others to go", || chain::audit(&daemon)[0].members.len() == 1);
        let members = chain::audit(&daemon).remove(0).members;
        assert!(members.iter().all(|member| member.wrong + member.kept == 0), "{members:?}");
    }
    guest.run("killall uvala");
    let counts = said(&mut guest);
    let has = |number| counts.split([' ', ',']).any(|word| word == number);
    assert!(counts.starts_with("firewall: ") && has("500"), "{counts}");
    // Of the daemon's end it hears.
    guest.run(&format!("{run} > /tmp/said 2>&1 &"));
    guest.run(until_it_runs);
    pass_the_firewall(&daemon, group);
    replace(&mut daemon, &device);
    if group.is_some() {
        let why = said(&mut guest);
        assert!(why.contains("start the virtual machine anew"), "{why}");
    } else {
        pass_the_firewall(&daemon, None);
    }
}

#[test]
fn a_function_in_a_guest_is_one_of_a_chain_and_goes_on_with_the_next_daemon() {
    a_function_in_a_guest(None);
}

#[test]
fn a_function_in_a_guest_of_a_trust_group_passes_frames_without_a_copy() {
    a_function_in_a_guest(Some("nf"));
}

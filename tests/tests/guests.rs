//! Real guests: kernels with their own drivers and stacks, and the switch between them. Guests are
//! booted once and go through many checks, for without KVM a boot takes seconds.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use harness::daemon::{Daemon, Setup};
use harness::guest::{Boot, Console, Guest, Kit};
use harness::lab::Lab;
use harness::machine::Machine;
use harness::process::{Owned, Scratch, uvala, uvala_path};
use harness::role::Become;
use harness::{is_root, wait};
use protocol::exit;
use rustix::process::{Pid, Signal, kill_process};

/// Two cards for guests that leave all to them and know several queues, one for another way in.
fn lab(kit: &Kit) -> Daemon {
    let queues = if kit.is_old() { 1 } else { 2 };
    let port = |name: &str| {
        format!("[switch.vale0.port.{name}]\nkind = \"vhost-user\"\nqueues = {queues}\n")
    };
    Setup::new(&["vm1", "vm2", "vm3"].map(port).concat()).start()
}

/// A card that leaves nothing undone and wants all finished.
fn plain(kit: &Kit) -> String {
    let mut features = vec!["csum", "guest_csum", "gso", "host_ecn", "guest_ecn"];
    features.extend(["host_tso4", "host_tso6", "host_ufo"]);
    features.extend(["guest_tso4", "guest_tso6", "guest_ufo"]);
    if !kit.is_old() {
        features.extend(["host_uso", "guest_uso4", "guest_uso6"]);
    }
    features.iter().map(|feature| format!(",{feature}=off")).collect()
}

fn boot_two(kit: &Kit, daemon: &Daemon) -> [Guest; 2] {
    let offloads = Boot { port: "vale0:vm1", cpus: 2, ..Boot::default() };
    let plain = Boot { port: "vale0:vm2", cpus: 2, more: plain(kit), ..Boot::default() };
    let mut guests = [offloads, plain].map(|boot| Guest::start(kit, daemon, &boot));
    for (number, guest) in (1..).zip(&mut guests) {
        guest.ready();
        guest.configure(number, 9000);
    }
    guests
}

fn exchange(a: &mut Guest, b: &mut Guest) {
    for size in [18, 1400, 4000, 8900] {
        a.run(&format!("ping -c 3 -i 0.1 -q -s {size} 10.0.0.2"));
    }
    b.run("iperf3 -s -D >/dev/null");
    for how in ["-n 20M", "-n 20M -R", "-u -b 30M -n 2M -l 1400", "-u -b 30M -n 2M -l 1400 -R"] {
        let text = a.iperf3("10.0.0.2", how);
        assert!(text.contains("receiver"), "{how}: {text}");
    }
    a.send_file(b, "10.0.0.2");
    assert_eq!(a.checksum_errors() + b.checksum_errors(), 0, "wrong checksums");
}

fn tags(daemon: &Daemon, a: &mut Guest, b: &mut Guest) {
    for (number, guest) in (1..).zip([&mut *a, &mut *b]) {
        guest.run("ip link add link eth0 name v10 type vlan id 10");
        guest.run(&format!("ip link set v10 up && ip addr add 10.0.10.{number}/24 dev v10"));
    }
    a.reach("10.0.10.2");
    let vlan = |port: &str, vlan: &str| {
        assert!(daemon.uvala(&["port", "set", port, "--vlan", vlan]).status.success());
    };
    vlan("vale0:vm1", "access:10");
    vlan("vale0:vm2", "trunk:10");
    a.run("ip link del v10 && ip addr add 10.0.10.1/24 dev eth0");
    a.reach("10.0.10.2");
    let (_, reaches) = a.try_run("ping -c 1 -W 1 10.0.0.2");
    assert!(!reaches, "another VLAN");
    vlan("vale0:vm1", "transparent");
    vlan("vale0:vm2", "transparent");
    a.reach("10.0.0.2");
}

fn queues(kit: &Kit, a: &mut Guest) {
    if kit.is_old() {
        return eprintln!("SKIPPED: QEMU 7 without KVM has one interrupt for all queues");
    }
    assert!(a.run("ls /sys/class/net/eth0/queues").contains("rx-1"));
    for count in [1, 2] {
        a.run(&format!("ethtool -L eth0 combined {count}"));
        a.iperf3("10.0.0.2", "-P 4 -n 2M");
    }
}

#[test]
fn two_guests_reach_each_other_whatever_happens() {
    let Some(kit) = Kit::find() else { return };
    let mut daemon = lab(&kit);
    let [mut a, mut b] = boot_two(&kit, &daemon);
    exchange(&mut a, &mut b);
    tags(&daemon, &mut a, &mut b);
    queues(&kit, &mut a);
    let driver = "/sys/bus/virtio/drivers/virtio_net";
    b.run(&format!("cd {driver}; d=$(ls | grep ^virtio); echo $d > unbind; echo $d > bind"));
    b.configure(2, 9000);
    a.reach("10.0.0.2");
    b.monitor("system_reset");
    b.ready();
    b.configure(2, 9000);
    a.reach("10.0.0.2");
    // Traffic that never ends, in both directions.
    b.run("(ping -q -i 0.01 10.0.0.1 >/dev/null) & sleep 0.1");
    for _ in 0..2 {
        daemon.kill();
        daemon.restart();
        println!("guests reach each other {:?} after the daemon is back", a.reach("10.0.0.2"));
    }
    b.kill();
    let start = Instant::now();
    let packed = ",packed=on".to_owned();
    let again = Boot { port: "vale0:vm2", cpus: 1, more: packed, ..Boot::default() };
    let mut b = Guest::start(&kit, &daemon, &again);
    b.ready();
    b.configure(2, 9000);
    a.reach("10.0.0.2");
    println!("a new QEMU on the port is reached after {:?}", start.elapsed());
}

#[test]
fn guests_with_packed_queues_go_on_with_the_next_daemon() {
    let Some(kit) = Kit::find() else { return };
    let mut daemon = lab(&kit);
    let boots = [("vale0:vm1", ",packed=on"), ("vale0:vm2", ",packed=on,indirect_desc=off")];
    let [mut a, mut b] = boots.map(|(port, more)| {
        let boot = Boot { port, more: more.to_owned(), ..Boot::default() };
        Guest::start(&kit, &daemon, &boot)
    });
    for (number, guest) in (1..).zip([&mut a, &mut b]) {
        guest.ready();
        guest.configure(number, 9000);
    }
    // Traffic that never ends, in both directions, and pieces of datagrams.
    b.run("(ping -q -i 0.01 10.0.0.1 >/dev/null) & (ping -q -s 20000 10.0.0.1 >/dev/null) & true");
    a.reach("10.0.0.2");
    for round in 0..6 {
        if round % 2 == 0 {
            daemon.kill();
        } else {
            daemon.terminate();
            daemon.process().wait();
        }
        daemon.restart();
        println!("guests reach each other {:?} after the daemon is back", a.reach("10.0.0.2"));
    }
    a.run("ping -c 20 -i 0.05 -q -s 8900 10.0.0.2 | grep -q ' 0% packet loss'");
}

#[test]
fn other_cards_reach_the_switch_by_stream_and_dgram() {
    let Some(kit) = Kit::find() else { return };
    let port = |name: &str| format!("[switch.vale0.port.{name}]\nkind = \"{name}\"\n");
    let mut daemon = Setup::new(&["stream", "dgram"].map(port).concat()).start();
    let stream = Boot { port: "vale0:stream", nic: Some("e1000"), ..Boot::default() };
    let dgram = Boot { port: "vale0:dgram", nic: Some("rtl8139"), ..Boot::default() };
    let [mut a, mut b] = [stream, dgram].map(|boot| Guest::start(&kit, &daemon, &boot));
    for (number, guest) in (1..).zip([&mut a, &mut b]) {
        guest.ready();
        guest.configure(number, 1500);
    }
    a.reach("10.0.0.2");
    b.run("iperf3 -s -D >/dev/null");
    for how in ["-n 10M", "-n 10M -R", "-u -b 5M -n 1M"] {
        a.iperf3("10.0.0.2", how);
    }
    assert_eq!(a.checksum_errors() + b.checksum_errors(), 0, "wrong checksums");
    if kit.is_old() {
        return;
    }
    daemon.kill();
    daemon.restart();
    println!("an e1000 is back {:?} after the daemon is", a.reach("10.0.0.2"));
}

#[test]
fn a_guest_moves_to_another_port_under_traffic() {
    let Some(kit) = Kit::find() else { return };
    let daemon = lab(&kit);
    let at = |port| Boot { port, cpus: 1, ..Boot::default() };
    let [mut a, mut b] =
        ["vale0:vm1", "vale0:vm2"].map(|port| Guest::start(&kit, &daemon, &at(port)));
    for (number, guest) in (1..).zip([&mut a, &mut b]) {
        guest.ready();
        guest.configure(number, 1500);
    }
    let way = daemon.dir().join("migration");
    // Its card keeps the address that it had: what is said last holds.
    let mac = b.run("cat /sys/class/net/eth0/address");
    let there =
        Boot { more: format!(",mac={mac}"), incoming: Some(way.clone()), ..at("vale0:vm3") };
    let mut moved = Guest::start(&kit, &daemon, &there);
    wait::until("the other QEMU", || way.exists());
    a.reach("10.0.0.2");
    let count = "i=$((i+1)); echo $i > /tmp/i; ping -c 1 -W 1 10.0.0.1";
    b.run(&format!("(i=0; while :; do {count}; done >/dev/null) &"));
    a.run("(ping -q -i 0.02 10.0.0.2 >/dev/null) & sleep 0.5");
    let before: u64 = b.run("cat /tmp/i").parse().unwrap();
    let start = Instant::now();
    b.monitor(&format!("migrate -d unix:{}", way.display()));
    wait::until("the end of the move", || {
        let info = b.monitor("info migrate");
        assert!(!info.contains("failed"), "{info}");
        info.contains("completed")
    });
    println!("the guest has moved within {:?}", start.elapsed());
    b.kill();
    println!("it is reached {:?} later", a.reach("10.0.0.2"));
    let after: u64 = moved.run("cat /tmp/i").parse().unwrap();
    assert!(after >= before, "it is the same guest: {before} {after}");
    moved.reach("10.0.0.1");
    let drops = daemon.stats("vale0:vm3").drops;
    println!("dropped on the way: {drops:?}");
}

/// A program that says that it is QEMU, writes its process into FILE.pid, and sleeps. It ignores
/// SIGHUP, as what runs under nohup does.
fn sleeper(file: &Path) {
    let text = "#!/bin/sh\n[ $# -gt 4 ] || { echo QEMU emulator version 11.1.3; exit; }\n\
                trap '' HUP\necho $$ > $0.pid\nexec sleep 600\n";
    std::fs::write(file, text).expect("room");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("ours");
}

/// The process of a sleeper that has started.
fn sleeps(file: &Path) -> u32 {
    let file = file.with_extension("pid");
    wait::find("QEMU", || std::fs::read_to_string(&file).ok()?.trim().parse().ok())
}

#[test]
fn the_socket_of_a_card_is_in_a_private_directory_that_leaves_no_trace() {
    let daemon = Daemon::start();
    let place = Scratch::new("card");
    let qemu = place.path().join("qemu");
    sleeper(&qemu);
    let dirs = || -> Vec<PathBuf> {
        let all = std::fs::read_dir(place.path()).expect("it is there");
        let all = all.map(|entry| entry.expect("it is there").path());
        all.filter(|path| path.is_dir()).collect()
    };
    for is_killed in [true, false] {
        let mut command = Command::new(uvala_path());
        command.arg("--dir").arg(daemon.dir()).args(["vm", "run", "--nic", "e1000"]);
        command.args(["--accel", "tcg", "--qemu"]).arg(&qemu).arg("--initrd").arg(&qemu).arg(&qemu);
        command.env("TMPDIR", place.path()).stdin(Stdio::null()).stderr(Stdio::null());
        let mut machine = Owned::spawn(&mut command);
        let pid = sleeps(&qemu);
        let [dir] = &dirs()[..] else { panic!("{:?}", dirs()) };
        let mode = dir.metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{dir:?}");
        assert!(dir.join("vale0:vm1.vfio").exists());
        if is_killed {
            machine.kill();
        } else {
            let qemu = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process");
            kill_process(qemu, Signal::KILL).expect("ours");
            machine.wait();
            assert!(dirs().is_empty(), "{:?}", dirs());
        }
        wait::until("the end of QEMU", || !lives(pid));
        wait::until("the end of the directory", || dirs().is_empty());
        wait::until("the end of its port", || daemon.ports().is_empty());
        std::fs::remove_file(qemu.with_extension("pid")).expect("it is there");
    }
}

/// `uvala vm run`, as it is typed into two terminals.
fn run_kernel(kit: &Kit, daemon: &Daemon, more: &[&str]) -> Console {
    // The same on every machine, whatever its KVM is worth.
    Console::start(&mut run_command(kit, daemon, &[&["--accel", "tcg"], more].concat()))
}

fn run_command(kit: &Kit, daemon: &Daemon, more: &[&str]) -> Command {
    let (kernel, dir) = (kit.kernel("kernel").expect("it was found"), daemon.dir());
    let words = [kernel.as_path(), "--dir".as_ref(), &dir, "--qemu".as_ref(), kit.qemu()];
    let words = words.map(|word| word.to_str().expect("UTF-8"));
    let args = [&["vm", "run", "--memory", "128M"], &words[..], more].concat();
    uvala(Become::default(), &args, None)
}

/// Processes that a process has started, and which have not ended.
fn children(pid: u32) -> Vec<u32> {
    let all = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    all.unwrap_or_default().split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Whether there is a process that has not ended, waited for or not.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn nothing_is_left_of_a_machine_whose_command_is_killed() {
    let Some(kit) = Kit::find() else { return };
    let daemon = Daemon::start();
    // While it boots, and while its guest is at work.
    for word in ["", "vm1# "] {
        let mut guest = run_kernel(&kit, &daemon, &[]);
        let pid = guest.process().pid();
        let (mut started, port) = (Vec::new(), "vale0:vm1");
        wait::until("QEMU", || {
            started = children(pid);
            let machine = daemon.port(port).and_then(|port| port.machine);
            !started.is_empty() && machine.is_some_and(|machine| machine.pid.is_some())
        });
        guest.hear(word);
        guest.process().kill();
        wait::until("the end of QEMU", || !started.iter().any(|child| lives(*child)));
        wait::until("the end of its port", || daemon.ports().is_empty());
    }
}

#[test]
fn a_machine_ends_with_its_terminal_also_in_another_session() {
    let daemon = Daemon::start();
    let file = daemon.dir().join("qemu");
    sleeper(&file);
    let (uvala, dir, qemu) = (uvala_path().display(), daemon.dir(), file.display());
    // `su` begins a session as setsid does, and `script` is the other end of the terminal.
    let line = format!(
        "exec setsid --wait {uvala} --dir {} vm run --accel tcg --qemu {qemu} --initrd {qemu} \
         {qemu}",
        dir.display()
    );
    let mut script = Command::new("script");
    script.args(["-q", "-c", &line, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::null());
    let (mut terminal, _input) = Owned::spawn_with_input(&mut script);
    let pid = sleeps(&file);
    terminal.kill();
    wait::until("the end of QEMU", || !lives(pid));
    wait::until("the end of its port", || daemon.ports().is_empty());
}

#[test]
fn names_that_cannot_be_had_have_exit_codes_of_their_own() {
    let Some(kit) = Kit::find() else { return };
    let mut daemon = Daemon::start();
    let status = |daemon: &Daemon, more: &[&str]| {
        let more = [&["--print", "--accel", "tcg"], more].concat();
        let output = run_command(&kit, daemon, &more).output().unwrap();
        assert!(output.status.success() || output.stdout.is_empty(), "{output:?}");
        u8::try_from(output.status.code().unwrap()).unwrap()
    };
    assert!(daemon.uvala(&["port", "add", "vale0:sink", "--kind", "null"]).status.success());
    assert_eq!(status(&daemon, &[]), exit::OK);
    assert_eq!(status(&daemon, &["--name", "vale0:sink"]), exit::UNSUPPORTED);
    let short = daemon.dir().join("short");
    let whole = std::fs::read(kit.kernel("kernel").expect("it was found")).expect("a kernel");
    std::fs::write(&short, &whole[..whole.len() / 2]).expect("room");
    let words = [short.as_path(), "--qemu".as_ref(), kit.qemu()];
    let words = words.map(|word| word.to_str().expect("UTF-8"));
    let output = daemon.uvala(&[&["vm", "run", "--print"], &words[..]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains(": copy the kernel again"), "{error}");
    let _machine = Machine::boot(&{
        assert!(
            daemon.uvala(&["port", "add", "vale0:vm", "--kind", "vhost-user"]).status.success()
        );
        daemon.dir().join("vale0:vm.sock")
    });
    wait::until("a machine", || status(&daemon, &["--name", "vale0:vm"]) != 0);
    assert_eq!(status(&daemon, &["--name", "vale0:vm"]), exit::IN_USE);
    daemon.kill();
    assert_eq!(status(&daemon, &[]), exit::NO_DAEMON);
}

#[test]
fn a_daemon_that_ends_first_leaves_no_port_of_a_command_to_the_next() {
    let Some(kit) = Kit::find() else { return };
    let mut daemon = Daemon::start();
    let mut guest = run_kernel(&kit, &daemon, &[]);
    guest.hear("vm1# ");
    assert_eq!(daemon.ports(), ["vale0:vm1"]);
    daemon.terminate();
    daemon.process().wait();
    guest.enter("exit");
    assert!(guest.process().wait().success());
    daemon.restart();
    assert!(daemon.ports().is_empty(), "{:?}", daemon.ports());
}

#[test]
fn a_guest_is_emulated_where_there_is_no_kvm_and_the_command_says_so() {
    let Some(kit) = Kit::find() else { return };
    let path = Path::new("/dev/kvm");
    let hidden = path.exists() && is_root();
    if hidden {
        harness::mounts::hide_kvm();
    }
    let daemon = Daemon::start();
    let mut command = run_command(&kit, &daemon, &[]);
    let log = daemon.dir().join("said");
    let mut guest = Console::start(command.stderr(File::create(&log).unwrap()));
    guest.hear("This is 10.0.0.1, on port vale0:vm1");
    let said = std::fs::read_to_string(&log).unwrap();
    let why = match path.exists() {
        true if hidden => "/dev/kvm is no KVM that QEMU knows",
        true => "no access to /dev/kvm (sudo usermod -aG kvm $USER, and log in anew)",
        false => "no /dev/kvm",
    };
    let remark = format!("uvala: {why}: QEMU emulates the processor (TCG), slowly\n");
    assert!(said.contains(&remark), "{said}");
    guest.process().kill();
}

#[test]
fn two_commands_make_two_machines_that_ping_each_other() {
    let Some(kit) = Kit::find() else { return };
    let daemon = Daemon::start();
    let mut a = run_kernel(&kit, &daemon, &[]);
    wait::until("the port of the first", || daemon.port("vale0:vm1").is_some());
    let mut b = run_kernel(&kit, &daemon, &["--cpus", "2"]);
    a.hear("This is 10.0.0.1, on port vale0:vm1");
    b.hear("This is 10.0.0.2, on port vale0:vm2");
    b.hear("vm2# ");
    b.enter("ping -c 2 10.0.0.1");
    b.hear("2 packets received");
    b.enter("nproc | sed s/^/has-/");
    b.hear("has-2");
    // A guest that ends, and one that is ended.
    b.enter("exit");
    assert!(b.process().wait().success());
    assert_eq!(daemon.ports(), ["vale0:vm1"]);
    a.process().signal(Signal::TERM);
    a.process().wait();
    assert!(daemon.ports().is_empty(), "{:?}", daemon.ports());
}

/// The five lines of docs/host.md, but for the first: the test runs a daemon of its own.
#[test]
fn a_host_a_namespace_and_a_machine_are_on_one_switch_in_five_lines() {
    let Some(kit) = Kit::find() else { return };
    let Some(lab) = Lab::new(1) else { return };
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/host.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut blocks = page.split("```text\n").filter_map(|rest| rest.split("\n```").next());
    let block = blocks.find(|block| block.contains("uvala ns attach")).unwrap();
    let lines: Vec<&str> = block.lines().map(|line| line.split('#').next().unwrap()).collect();
    let [_, host, namespace, machine, ping] = lines[..] else { panic!("{block}") };
    assert_eq!(machine.trim(), "uvala vm run /boot/vmlinuz-$(uname -r)");
    lab.tell(|daemon, lab| {
        for line in [host, &namespace.replace(" web ", &format!(" {} ", lab.guests[0].name()))] {
            let words: Vec<&str> = line.split_whitespace().skip(1).collect();
            let output = daemon.uvala(&words);
            assert!(output.status.success(), "{line}: {output:?}");
        }
        let mut machine = run_kernel(&kit, daemon, &[]);
        machine.hear("This is 10.0.0.1, on port vale0:vm1");
        machine.hear("vm1# ");
        machine.enter(ping.trim());
        machine.hear("--- 10.0.0.254 ping statistics");
        machine.hear("1 packets received");
        machine.hear("--- 10.0.0.253 ping statistics");
        machine.hear("1 packets received");
        machine.enter("exit");
        assert!(machine.process().wait().success());
    });
}

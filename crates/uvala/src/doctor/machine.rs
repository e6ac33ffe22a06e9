//! Checks of a virtual machine's port.

use std::collections::HashMap;
use std::path::Path;

use protocol::name::PortName;
use protocol::{
    CURE_BY_QUEUES, CURE_IN_GUEST, MachineInfo, MachineState, PortInfo, PortKind, SocketPlace,
};
use terminal::shell::quoted;

use super::facts::{Person, Rights, Socket, Vmm};
use super::vmm::{self, is_qemu, value, with};
use super::{Finding, note, problem};
use crate::vm::qemu::Qemu;

/// The kinds of ports that a `-netdev` of QEMU reaches.
const WAYS: [&str; 3] = ["vhost-user", "stream", "dgram"];

/// All that is wrong with one. `vmm` is its VMM, connected or not, where we may look at it;
/// `people` are the users that may have one.
pub fn check(
    port: &PortInfo,
    socket: &Socket,
    vmm: Option<&Vmm>,
    people: &[Person],
) -> Vec<Finding> {
    let Some(machine) = &port.machine else { return Vec::new() };
    let name = port.port.to_string();
    let mut findings = Vec::new();
    let otherwise = vmm.and_then(|vmm| otherwise(port, machine, vmm));
    if otherwise.is_none() {
        findings.extend(complaint(port, machine, vmm.is_some()));
    }
    findings.extend(rejected_peer(port, machine));
    findings.extend(missing(port, machine, socket));
    findings.extend(replaced(port, machine));
    if machine.state == MachineState::Waiting && !machine.connect {
        let closed = |person| closed(port, machine, socket, person);
        match vmm {
            Some(vmm) => findings.extend(shut_out(&name, machine, socket, vmm)),
            None => findings.extend(people.iter().filter_map(closed)),
        }
    }
    let words = vmm.map_or(&[][..], |vmm| &vmm.words);
    let is_qemu = port.kind == PortKind::VhostUser && is_qemu(words) && otherwise.is_none();
    findings.extend(otherwise);
    let shared = if is_qemu { unshared(&name, words) } else { None };
    let driver = if shared.is_none() { driverless(&name, machine, words) } else { None };
    findings.extend(shared.into_iter().chain(driver));
    findings.extend(is_qemu.then(|| queues(&name, machine, words)).flatten());
    findings
}

/// `is_there`: its VMM runs, connected or not.
fn complaint(port: &PortInfo, machine: &MachineInfo, is_there: bool) -> Option<Finding> {
    let (name, peer) = (&port.port.to_string(), port.kind.peer_word());
    let what = machine.complaint.as_ref()?;
    if machine.state == MachineState::Closed {
        let cure =
            format!("correct that, then delete the port and add it again: uvala port del {name}");
        return Some(problem(name, format!("the daemon could not open it: {what}"), cure));
    }
    if let Some((what, cure)) = what.split_once(CURE_BY_QUEUES) {
        let level = if is_there { problem } else { note };
        return Some(level(name, format!("its last {peer}: {what}"), cure.to_owned()));
    }
    if let Some((what, cure)) = what.split_once(CURE_IN_GUEST) {
        let level = if machine.state == MachineState::Waiting { note } else { problem };
        let (what, cure) = (format!("its machine: {what}"), format!("in the guest, {cure}"));
        return Some(level(name, what, cure));
    }
    let cure = if what.contains("quota.machine_") {
        "raise that quota in the daemon's uvala.toml, or give the machine less memory (--memory)"
            .to_owned()
    } else if what.contains("stalls the switch") {
        format!("delete the port if you do not trust that {peer}: uvala port del {name}")
    } else {
        format!("start the {peer} again; `uvala vm-args {name}` prints the arguments of QEMU")
    };
    Some(match machine.state {
        MachineState::Waiting if is_there => {
            problem(name, format!("the daemon disconnected its {peer}: {what}"), cure)
        }
        MachineState::Waiting => {
            note(name, format!("the daemon disconnected its last {peer}: {what}"), cure)
        }
        _ => problem(name, format!("its machine: {what}"), cure),
    })
}

/// Two programs with one socket.
fn rejected_peer(port: &PortInfo, machine: &MachineInfo) -> Option<Finding> {
    let (name, peer) = (&port.port.to_string(), port.kind.peer_word());
    let second = machine.rejected_peer?;
    let owner = machine.pid.map(|pid| format!(", which process {pid} uses")).unwrap_or_default();
    let what = format!("a second {peer}, process {second}, tries to connect to its socket{owner}");
    Some(problem(name, what, "give that process a port of its own: uvala port add"))
}

/// Machines that are up with the address that another of their switch has, too. `vmms` has each
/// port's, if it is known.
pub fn duplicate_macs(ports: &[PortInfo], vmms: &[Option<&Vmm>]) -> Vec<Finding> {
    let mut seen = HashMap::new();
    let mut findings = Vec::new();
    for (port, vmm) in ports.iter().zip(vmms) {
        let (Some(machine), Some(vmm)) = (&port.machine, vmm) else { continue };
        let mac = vmm::address(&vmm.words, &machine.socket);
        let Some(mac) = mac.filter(|_| machine.state == MachineState::Up) else { continue };
        let name = port.port.to_string();
        let switch = name.split(':').next().unwrap_or_default().to_owned();
        let Some(other) = seen.insert((switch, &port.settings.vlan, mac), name.clone()) else {
            continue;
        };
        let what = format!(
            "its machine has the same MAC address as the one at {other}, {mac}: \
             only one of them receives"
        );
        let cure = format!(
            "start it with the mac=… that `uvala vm-args {name}` prints, which differs by port"
        );
        findings.push(problem(&name, what, cure));
    }
    findings
}

/// VMMs that want a socket in the daemon's directory which is no port's.
pub fn strays(ports: &[PortInfo], vmms: &[Vmm], dir: &Path) -> Vec<Finding> {
    let machines = || ports.iter().filter_map(|port| Some((port, port.machine.as_ref()?)));
    let is_known = |path: &str| {
        machines().any(|(_, it)| it.socket == path || it.peer.as_deref() == Some(path))
    };
    let mut findings = Vec::new();
    for vmm in vmms {
        for path in vmm::paths(&vmm.words, &dir.to_string_lossy(), ".sock") {
            let name = Path::new(&path).file_stem().unwrap_or_default().to_string_lossy();
            let Ok(name) = name.parse::<PortName>() else { continue };
            if is_known(&path) {
                continue;
            }
            let (about, socket) = (name.to_string(), quoted(&path));
            let what =
                format!("process {} tries to connect to {socket}, which does not exist", vmm.pid);
            let cure = match machines().find(|(port, _)| port.port == name) {
                Some((_, machine)) => format!("use the port's socket: {}", quoted(&machine.socket)),
                None => {
                    let way = vmm::way(&vmm.words, &path);
                    // What a command line says in its place may be anything.
                    let way = way.filter(|way| WAYS.contains(way)).unwrap_or(WAYS[0]);
                    format!(
                        "use a socket of uvala port show, or: uvala port add {about} --kind {way}"
                    )
                }
            };
            findings.push(problem(&about, what, cure));
        }
    }
    findings
}

/// Finds a VMM that was told to speak another protocol than the port does.
fn otherwise(port: &PortInfo, machine: &MachineInfo, vmm: &Vmm) -> Option<Finding> {
    let way = vmm::way(&vmm.words, &machine.socket)?;
    let (name, ours, pid) = (port.port.to_string(), port.kind.name(), vmm.pid);
    let what = format!("process {pid} uses -netdev {way}, but the port is of kind {ours}");
    let cure =
        format!("use the arguments of `uvala vm-args {name}`, or add a port of --kind {way}");
    (WAYS.contains(&way) && way != ours).then(|| problem(&name, what, cure))
}

fn missing(port: &PortInfo, machine: &MachineInfo, socket: &Socket) -> Option<Finding> {
    if machine.state != MachineState::Waiting || *socket != Socket::Missing {
        return None;
    }
    let (name, peer) = (&port.port.to_string(), port.kind.peer_word());
    let path = quoted(&machine.socket);
    Some(if machine.connect {
        let cure = format!(
            "start the {peer} there (QEMU: server=on), in a directory that the daemon reaches"
        );
        problem(name, format!("no {peer} listens at {path}"), cure)
    } else {
        let cure = format!("delete the port and add it again: uvala port del {name}");
        problem(name, format!("its socket {path} is gone"), cure)
    })
}

/// A peer that connects reaches another program, or none.
fn replaced(port: &PortInfo, machine: &MachineInfo) -> Option<Finding> {
    let (name, peer) = (&port.port.to_string(), port.kind.peer_word());
    let path = quoted(&machine.socket);
    let what = format!("another program has put its socket in the place of {path}");
    let cure = format!(
        "have the {peer} connect (QEMU: server=off; dgram: local.path is the port's --peer), then \
         delete the port, remove the file, and add the port again: uvala port del {name} && rm \
         {path}"
    );
    let is_so = machine.place == Some(SocketPlace::Replaced);
    is_so.then(|| problem(name, what, cure))
}

/// A user that usually runs VMMs cannot connect.
fn closed(
    port: &PortInfo,
    machine: &MachineInfo,
    socket: &Socket,
    person: &Person,
) -> Option<Finding> {
    let (name, peer) = (&port.port.to_string(), port.kind.peer_word());
    let what = refusal(machine, socket, person)?;
    let cure = format!("if that user runs the {peer}: {}", opening(peer, person));
    Some(note(name, format!("{} {what}", person.name), cure))
}

/// A VMM that is there cannot connect.
fn shut_out(name: &str, machine: &MachineInfo, socket: &Socket, vmm: &Vmm) -> Option<Finding> {
    let Vmm { pid, user, .. } = vmm;
    let what = refusal(machine, socket, user)?;
    let what = format!("its VMM, process {pid} of {}, {what}", user.name);
    Some(problem(name, what, opening("VMM", user)))
}

fn opening(peer: &str, person: &Person) -> String {
    let group = person.group.as_ref().map(|group| format!("--group {group} and "));
    format!(
        "add the port with {}a --socket in a directory that both may search, or run the {peer} \
         as another user",
        group.unwrap_or_default()
    )
}

/// Why a user cannot connect.
fn refusal(machine: &MachineInfo, socket: &Socket, person: &Person) -> Option<String> {
    const SEARCH: u32 = 1;
    const WRITE: u32 = 2;
    let Socket::There { file, dirs } = socket else { return None };
    let what = if !person.may(*file, WRITE) {
        format!("(mode {:o})", file.mode & 0o777)
    } else {
        let shut = dirs.iter().find(|dir| !person.may(**dir, SEARCH))?;
        format!("(a directory above it has mode {:o})", shut.mode & 0o777)
    };
    Some(format!("cannot connect to {} {what}", quoted(&machine.socket)))
}

impl Person {
    fn may(&self, what: Rights, bit: u32) -> bool {
        let Rights { mode, uid, gid } = what;
        let bits = match () {
            () if self.uid == 0 => return true,
            () if self.uid == uid => mode >> 6,
            () if self.gids.contains(&gid) => mode >> 3,
            () => mode,
        };
        bits & bit != 0
    }
}

fn driverless(name: &str, machine: &MachineInfo, words: &[String]) -> Option<Finding> {
    let (what, cure) = if vmm::options(words, "incoming").next().is_some() {
        let cure =
            "in the monitor of the VMM where the guest runs: migrate -d ADDRESS, that of -incoming";
        ("a VMM waits for a guest that moves here (-incoming)", cure)
    } else {
        let cure = "boot the guest; it needs virtio_net, and memory that is shared (share=on); if \
                    the guest has moved to another VMM, quit this one";
        ("a VMM has connected, but no driver runs in the guest", cure)
    };
    let has_driver = machine.complaint.as_ref().is_some_and(|what| what.contains(CURE_IN_GUEST));
    (machine.state == MachineState::Connected && !has_driver).then(|| note(name, what, cure))
}

/// Memory of the machine that others cannot see. What a `-readconfig` names is not looked at.
pub fn unshared(name: &str, words: &[String]) -> Option<Finding> {
    let told = |option| vmm::options(words, option);
    if told("readconfig").next().is_some() {
        return None;
    }
    let of_nodes = told("numa").filter_map(|node| value(node, "memdev"));
    let machines = told("machine").chain(told("M"));
    let used: Vec<&str> =
        of_nodes.chain(machines.filter_map(|word| value(word, "memory-backend"))).collect();
    let mut shared = told("object").filter(|word| is_shared(word));
    let ids: Vec<&str> = shared.clone().filter_map(|word| value(word, "id")).collect();
    if !used.is_empty() && used.iter().all(|id| ids.contains(id)) {
        return None;
    }
    if let (true, Some(idle)) = (used.is_empty(), shared.find_map(|word| value(word, "id"))) {
        let (memory, node) = (quoted(idle), quoted(&format!("node,memdev={idle}")));
        let what = format!("its machine does not use the shared memory {memory}: no frame arrives");
        return Some(problem(name, what, format!("start QEMU with -numa {node}, too")));
    }
    let cure = "start QEMU with -object memory-backend-memfd,id=mem,size=SIZE,share=on -numa \
                node,memdev=mem, as `uvala vm-args` prints";
    Some(problem(name, "the memory of its machine is not shared: no frame arrives", cure))
}

/// As QEMU reads it.
fn is_on(text: &str) -> bool {
    ["on", "yes", "true", "y"].contains(&text)
}

/// Whether an object is memory that other processes can map.
fn is_shared(object: &str) -> bool {
    // memory-backend-shm is shared by default.
    let unsaid = || object.contains("memory-backend-shm");
    object.contains("memory-backend-") && value(object, "share").map_or_else(unsaid, is_on)
}

/// Numbers of queues and of vectors that do not fit the port.
fn queues(name: &str, machine: &MachineInfo, words: &[String]) -> Option<Finding> {
    let path = format!("path={}", machine.socket.replace(',', ",,"));
    let chardev = words.iter().find(|word| word.split(',').any(|part| part == path))?;
    let netdev = with(words, "chardev", value(chardev, "id")?)?;
    let device = with(words, "netdev", value(netdev, "id")?)?;
    let number = |word, key| value(word, key).and_then(|text| text.parse::<u32>().ok());
    let (ours, theirs) = (u32::from(machine.queues), number(netdev, "queues").unwrap_or(1));
    let cure = format!("use the arguments of `uvala vm-args {name}`");
    let vectors = number(device, "vectors");
    if theirs > ours {
        let what = format!("QEMU has {theirs} queue pairs, and the port {ours}");
        Some(problem(name, what, cure))
    } else if theirs > 1 && !value(device, "mq").is_some_and(is_on) {
        Some(problem(
            name,
            format!("QEMU has {theirs} queue pairs, but no mq=on, so it uses one"),
            cure,
        ))
    } else if theirs > 1 && vectors.is_some_and(|vectors| vectors < 2 * theirs + 2) {
        let what = format!("fewer vectors than the {} that {theirs} pairs need", 2 * theirs + 2);
        Some(note(name, what, cure))
    } else if theirs < ours {
        Some(note(name, format!("the port has {ours} queue pairs; QEMU uses {theirs}"), cure))
    } else {
        None
    }
}

/// A fault of the installed QEMU.
pub fn qemu(qemu: Qemu) -> Option<Finding> {
    let (major, minor) = qemu.version;
    let what = format!("QEMU {major}.{minor} without KVM crashes with MSI-X interrupts");
    let cure =
        "add vectors=0 behind virtio-net-pci, as `uvala vm-args` does, or use QEMU 8 or newer";
    qemu.crashes_with_vectors().then(|| note("host", what, cure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    const PATH: &str = "/run/uvala/vale0:vm1.sock";

    fn machine(state: &str, queues: u16) -> MachineInfo {
        let value = serde_json::json!(
            {"socket": PATH, "connect": false, "queues": queues, "state": state}
        );
        serde_json::from_value(value).unwrap()
    }

    fn port(name: &str, machine: MachineInfo) -> PortInfo {
        serde_json::from_value(serde_json::json!({
            "port": name, "kind": "vhost-user", "number": 1, "persistent": true, "creator": 0,
            "client": null, "memory": 0, "trust_group": null, "settings": {}, "machine": machine
        }))
        .unwrap()
    }

    fn any_port() -> PortInfo {
        port("vale0:vm1", machine("waiting", 1))
    }

    fn someone(words: Vec<String>) -> Vmm {
        let user = Person {
            name: "nobody".to_owned(),
            uid: 65534,
            gids: vec![65534],
            group: Some("nogroup".to_owned()),
        };
        Vmm { pid: 5, words, user }
    }

    fn words(netdev: &str, device: &str) -> Vec<String> {
        let text = format!(
            "qemu-system-x86_64 -chardev socket,id=c,path={PATH},reconnect=1 -netdev \
             vhost-user,id=n,chardev=c{netdev} -device virtio-net-pci,netdev=n{device}"
        );
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn test_queues_and_vectors_fit_the_port() {
        let of = |ours, netdev, device| queues("p", &machine("up", ours), &words(netdev, device));
        assert_eq!(of(1, "", ""), None);
        assert_eq!(of(4, ",queues=4", ",mq=on,vectors=10"), None);
        let what = |ours, netdev, device| of(ours, netdev, device).unwrap().what;
        assert!(what(1, ",queues=4", ",mq=on").contains("QEMU has 4"));
        assert!(what(4, ",queues=4", "").contains("no mq=on"));
        assert!(what(4, ",queues=4", ",mq=on,vectors=3").contains("the 10 that 4 pairs"));
        assert!(what(4, "", "").contains("QEMU uses 1"));
    }

    #[test]
    fn test_memory_that_is_not_shared_is_the_mistake() {
        assert!(unshared("p", &words("", "")).is_some());
        let with = |more: &str| {
            let more = more.split_whitespace().map(str::to_owned);
            unshared("p", &words("", "").into_iter().chain(more).collect::<Vec<_>>())
        };
        let object = "-object memory-backend-memfd,id=m,size=1G";
        for used in ["-numa node,memdev=m", "-machine q35,memory-backend=m", "-M memory-backend=m"]
        {
            assert_eq!(with(&format!("{object},share=on {used}")), None);
            assert!(with(&format!("{object},share=off {used}")).is_some());
        }
        let json = r#"-object {"qom-type":"memory-backend-memfd","id":"m","share":true}"#;
        assert_eq!(with(&format!("{json} -numa node,nodeid=0,memdev=m")), None);
        assert_eq!(with("-object memory-backend-shm,id=m,size=1G -numa node,memdev=m"), None);
        assert_eq!(with("-readconfig machine.cfg"), None);
        let second = format!("{object},share=on -numa node,memdev=m -numa node,memdev=other");
        assert!(with(&second).unwrap().what.contains("is not shared"));
        // One that is shared, and that no machine is told to use.
        let idle = with(&format!("{object},share=on")).unwrap();
        assert!(idle.what.contains("does not use the shared memory m"), "{idle:?}");
        assert!(idle.cure.contains("-numa node,memdev=m"), "{idle:?}");
        assert!(driverless("p", &machine("connected", 1), &[]).is_some());
        assert_eq!(driverless("p", &machine("up", 1), &[]), None);
    }

    #[test]
    fn test_a_socket_in_the_place_of_ours_is_a_mistake() {
        let mut machine = machine("up", 1);
        let (owner, group, mode) = (0, 0, "660".parse().unwrap());
        machine.place = Some(SocketPlace::Ours { owner, group, mode });
        assert_eq!(replaced(&any_port(), &machine), None);
        machine.place = Some(SocketPlace::Replaced);
        assert!(replaced(&any_port(), &machine).unwrap().cure.contains("server=off"));
    }

    #[test]
    fn test_two_vmms_with_one_socket_are_a_mistake() {
        let mut machine = machine("up", 1);
        assert_eq!(rejected_peer(&any_port(), &machine), None);
        (machine.pid, machine.rejected_peer) = (Some(7), Some(8));
        let what = rejected_peer(&any_port(), &machine).unwrap().what;
        assert!(what.contains("process 8") && what.contains("process 7 uses"), "{what}");
    }

    #[test]
    fn test_sockets_are_there_and_open_to_the_vmms_user() {
        let (port, waiting) = (any_port(), machine("waiting", 1));
        let gone = missing(&port, &waiting, &Socket::Missing).unwrap();
        assert!(gone.what.contains("is gone"), "{gone:?}");
        let there = |mode, gid, dir| Socket::There {
            file: Rights { mode, uid: 0, gid },
            dirs: vec![Rights { mode: dir, uid: 7, gid: 7 }],
        };
        assert_eq!(missing(&port, &waiting, &there(0o660, 0, 0o755)), None);
        let name = "libvirt-qemu".to_owned();
        let person = |uid| Person { name: name.clone(), uid, gids: vec![108], group: None };
        let closed = |socket, uid| closed(&port, &waiting, &socket, &person(uid));
        let is_closed = |socket| closed(socket, 64055).is_some();
        assert!(is_closed(there(0o660, 0, 0o755)) && is_closed(there(0o660, 108, 0o700)));
        assert!(!is_closed(there(0o660, 108, 0o755)) && !is_closed(there(0o666, 0, 0o755)));
        let in_its_own = closed(there(0o666, 0, 0o700), 7);
        assert_eq!((in_its_own, refusal(&waiting, &there(0, 0, 0), &person(0))), (None, None));
    }

    #[test]
    fn test_a_vmm_that_tries_in_vain_is_found_by_its_command_line() {
        let words = words(",queues=4", ",mq=on,vectors=10");
        let vmm = someone(words);
        let root = Rights { mode: 0o660, uid: 0, gid: 0 };
        let socket = Socket::There { file: root, dirs: vec![Rights { mode: 0o755, ..root }] };
        let found = check(&port("vale0:vm1", machine("waiting", 1)), &socket, Some(&vmm), &[]);
        let said = |text: &str| found.iter().any(|finding| finding.what.contains(text));
        assert!(said("process 5 of nobody, cannot connect"), "{found:?}");
        assert!(found.iter().any(|one| one.cure.contains("--group nogroup and")), "{found:?}");
        assert!(said("QEMU has 4 queue pairs, and the port 1"), "{found:?}");
        assert!(said("not shared"), "{found:?}");
    }

    #[test]
    fn test_a_vmm_that_speaks_something_else_is_the_cause_of_all_it_did() {
        let stream =
            format!("qemu-system-x86_64 -netdev stream,id=n,addr.type=unix,addr.path={PATH}");
        let stream = someone(stream.split(' ').map(str::to_owned).collect());
        let mut machine = machine("waiting", 1);
        machine.complaint = Some("it sent a message with flags 0x3333".to_owned());
        let port = port("vale0:vm1", machine);
        let [found] = &check(&port, &Socket::Unknown, Some(&stream), &[])[..] else { panic!() };
        assert!(found.what.contains("uses -netdev stream, but the port is of kind vhost-user"));
        assert!(found.cure.contains("add a port of --kind stream"), "{found:?}");
        let right = someone(words("", ""));
        assert_eq!(otherwise(&port, port.machine.as_ref().unwrap(), &right), None);
    }

    #[test]
    fn test_a_vmm_that_waits_for_a_machine_needs_no_boot() {
        let words = ["-incoming".to_owned(), "tcp:0:4444".to_owned()];
        let found = driverless("p", &machine("connected", 1), &words).unwrap();
        assert!(found.what.contains("moves here") && !found.cure.contains("boot"), "{found:?}");
    }

    #[test]
    fn test_what_speaks_stream_or_dgram_need_not_be_a_vmm() {
        for kind in [PortKind::Stream, PortKind::Dgram] {
            let mut machine = machine("waiting", 1);
            machine.complaint = Some("it stalls the switch (3 times within a minute); …".into());
            (machine.connect, machine.rejected_peer) = (true, Some(8));
            machine.place = Some(SocketPlace::Replaced);
            let port = PortInfo { kind, ..port("vale0:a", machine) };
            let found = check(&port, &Socket::Missing, None, &[]);
            let texts = found.iter().map(|finding| format!("{}; {}", finding.what, finding.cure));
            let texts: Vec<_> = texts.collect();
            assert!(texts.len() == 4 && texts.iter().all(|it| it.contains("peer")), "{texts:?}");
            assert!(!texts.concat().contains("VMM"), "{texts:?}");
        }
    }

    #[test]
    fn test_two_machines_of_a_switch_that_are_up_differ_in_address() {
        let at = |name: &str, state| port(name, machine(state, 1));
        let vmm = someone(words("", ""));
        let found = |ports: &[PortInfo]| duplicate_macs(ports, &vec![Some(&vmm); ports.len()]);
        let two = [at("vale0:a", "up"), at("vale0:b", "up")];
        let [twin] = &found(&two)[..] else { panic!() };
        assert!(twin.about == "vale0:b" && twin.what.contains("vale0:a, 52:54:00:12:34:56"));
        // In another switch, or one that moves.
        assert!(found(&[at("vale0:a", "up"), at("vale1:b", "up")]).is_empty());
        assert!(found(&[at("vale0:a", "up"), at("vale0:b", "connected")]).is_empty());
        assert!(duplicate_macs(&two, &[Some(&vmm), None]).is_empty());
    }

    #[test]
    fn test_sockets_that_no_port_has_are_missed() {
        let (dir, vmm) = (Path::new("/run/uvala"), [someone(words("", ""))]);
        let found = |ports: &[PortInfo]| strays(ports, &vmm, dir);
        let [stray] = &found(&[])[..] else { panic!() };
        assert!(stray.about == "vale0:vm1" && stray.what.contains(PATH), "{stray:?}");
        assert!(stray.cure.ends_with("uvala port add vale0:vm1 --kind vhost-user"), "{stray:?}");
        assert!(found(&[port("vale0:vm1", machine("waiting", 1))]).is_empty());
        let elsewhere = MachineInfo { socket: "/srv/s".to_owned(), ..machine("waiting", 1) };
        let [stray] = &found(&[port("vale0:vm1", elsewhere)])[..] else { panic!() };
        assert_eq!(stray.cure, "use the port's socket: /srv/s");
        assert!(strays(&[], &vmm, Path::new("/run/other")).is_empty());
    }

    #[test]
    fn test_a_hostile_command_line_gives_no_words_to_a_shell() {
        let words = |text: &str| someone(text.split('|').map(str::to_owned).collect());
        let way = "qemu|-netdev|$(reboot),addr.path=/run/uvala/vale0:a.sock";
        let [stray] = &strays(&[], &[words(way)], Path::new("/run/uvala"))[..] else { panic!() };
        assert!(stray.cure.ends_with("uvala port add vale0:a --kind vhost-user"), "{stray:?}");
        let path = "qemu|-netdev|stream,addr.path=/run/uvala/;reboot\x1b[A/vale0:a.sock";
        let [stray] = &strays(&[], &[words(path)], Path::new("/run/uvala"))[..] else { panic!() };
        let quoted = r"connect to '/run/uvala/;reboot\u{1b}[A/vale0:a.sock', which";
        assert!(stray.what.contains(quoted), "{stray:?}");
        let memory = words("qemu|-object|memory-backend-memfd,share=on,id=$(reboot)");
        let cure = unshared("p", &memory.words).unwrap().cure;
        assert_eq!(cure, "start QEMU with -numa 'node,memdev=$(reboot)', too");
        let mut machine = machine("up", 1);
        machine.place = Some(SocketPlace::Replaced);
        machine.socket = "/tmp/a;reboot".to_owned();
        assert!(replaced(&any_port(), &machine).unwrap().cure.ends_with("&& rm '/tmp/a;reboot'"));
    }

    #[test]
    fn test_complaints_are_repeated_and_old_ones_crash() {
        let (port, mut machine) = (any_port(), machine("waiting", 1));
        let complaint = |machine: &MachineInfo| complaint(&port, machine, true);
        assert_eq!(complaint(&machine), None);
        machine.complaint = Some("a ring of 3".to_owned());
        assert!(complaint(&machine).unwrap().what.ends_with("a ring of 3"));
        assert_eq!(super::complaint(&port, &machine, false).unwrap().level, Level::Note);
        machine.complaint = Some("it takes … (quota.machine_memory): …".to_owned());
        assert!(complaint(&machine).unwrap().cure.contains("raise that quota"));
        machine.complaint = Some("it stalls the switch (3 times within a minute); …".to_owned());
        assert!(complaint(&machine).unwrap().cure.contains("if you do not trust that VMM"));
        machine.state = MachineState::Up;
        machine.complaint = Some("queue 0 is stopped: …; in the guest, bind …".to_owned());
        let found = complaint(&machine).unwrap();
        assert!(found.level == Level::Problem && found.what.ends_with("queue 0 is stopped: …"));
        assert_eq!(found.cure, "in the guest, bind …");
        machine.state = MachineState::Connected;
        assert_eq!(driverless("p", &machine, &[]), None, "its driver is there");
        machine.state = MachineState::Closed;
        assert!(complaint(&machine).unwrap().what.contains("could not open it"));
        assert!(qemu(Qemu { version: (7, 2), kvm: false }).is_some());
        assert_eq!(qemu(Qemu { version: (8, 0), kvm: false }), None);
    }
}

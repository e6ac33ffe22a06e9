//! Checks of the daemon and of the system.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::name::PortName;
use protocol::{LinkState, PortInfo};
use terminal::shell::quoted;

use super::{Finding, note, problem};
use crate::vm::kvm::Access;

/// A process of which the lock file in a daemon's directory says that it is the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locker {
    /// PID of the process.
    pub pid: u32,
    /// The process is there, and a daemon.
    pub runs: bool,
    /// A socket is there: a daemon that ends in order removes it.
    pub has_socket: bool,
}

/// No daemon answers. `others` are daemons that this user can use; `None`: the user named the
/// directory, and wants no other.
pub fn daemon_missing(why: &str, locker: Option<Locker>, others: Option<&[PathBuf]>) -> Finding {
    // The error itself says how to start a daemon there.
    let (what, start) = why.split_once("; ").unwrap_or((why, "start one: uvala daemon"));
    let start = start.trim_start_matches("start one with: ");
    let (what, start) = match locker {
        Some(Locker { pid, runs: true, .. }) => (
            format!("{what}: its socket is gone, but the daemon still runs (process {pid})"),
            format!("start it anew (systemctl restart uvala): kill {pid}, then {start}"),
        ),
        Some(Locker { pid, has_socket: true, .. }) => (
            format!("{what}: process {pid} was the daemon, and was killed or has crashed"),
            format!(
                "start one with: {start}; its log says why (journalctl -u uvala, or uvala.log)"
            ),
        ),
        _ => (what.to_owned(), format!("start one with: {start}")),
    };
    let cure = match others.and_then(|others| others.first()) {
        Some(dir) => {
            let dir = quoted(&dir.to_string_lossy());
            format!("one runs in {dir}: use --dir {dir}, or UVALA_DIR={dir}")
        }
        None => start,
    };
    problem("daemon", what, cure)
}

/// The state of a process, from /proc/PID/stat.
fn state(stat: &str) -> Option<&str> {
    stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next())
}

/// Whether a process is stopped, likewise.
pub fn is_stopped(stat: &str) -> bool {
    matches!(state(stat), Some("T" | "t"))
}

/// The daemon took the connection, and does not answer.
pub fn daemon_silent(pid: u32, stat: &str) -> Finding {
    let (what, cure) = match state(stat) {
        Some("T") => ("it is stopped", format!("kill -CONT {pid}")),
        Some("t") => {
            ("a debugger has stopped it", format!("end the debugger, or kill -CONT {pid}"))
        }
        _ => (
            "it does not answer",
            format!(
                "look at its log; if it stays so, start it anew (systemctl restart uvala, or kill \
                 -9 {pid} and uvala daemon)"
            ),
        ),
    };
    problem("daemon", format!("{what} (process {pid})"), cure)
}

/// Files of its state that the daemon cannot write.
pub fn unsaved(files: &[String], count: u64) -> Option<Finding> {
    let first = files.first()?;
    let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    let what = format!("it cannot save its state: {first}{more}; a restart would undo changes");
    let cure = "make room on that disk, or make it writable: the daemon tries again every few \
                seconds";
    Some(problem("daemon", what, cure))
}

/// Ports of containers and other namespaces that the daemon has forgotten.
pub fn forgotten(ports: &[PortName]) -> Vec<Finding> {
    let cure = "set up the container's network again: podman network reload CONTAINER, or uvala ns \
                attach";
    let what = "it was forgotten, because its interface ended with the daemon before this one: its \
                namespace has no network by it";
    ports.iter().map(|port| problem(&port.to_string(), what, cure)).collect()
}

/// One is there, and its socket or directory is closed to this user.
pub fn daemon_closed(why: &str) -> Finding {
    let (what, cure) = why.split_once("; ").unwrap_or((why, "ask its owner"));
    problem("daemon", what, cure)
}

/// Daemon and command are of different versions.
pub fn versions(ours: &str, theirs: &str) -> Option<Finding> {
    let what = || format!("it has version {theirs}, and this command {ours}");
    let cure = "uvala upgrade, or systemctl reload uvala: the installed program takes over";
    (ours != theirs).then(|| problem("daemon", what(), cure))
}

/// A weight of a group of tasks that was raised, from /proc/PID/autogroup.
pub fn priority(about: &str, autogroup: &str) -> Option<Finding> {
    let nice: i32 = autogroup.trim().rsplit(' ').next()?.parse().ok()?;
    let what = format!("its scheduling weight is raised (autogroup nice {nice})");
    let cure = "echo 0 > /proc/PID/autogroup: on Linux 6.18 a raised weight starves kernel threads";
    (nice < 0).then(|| problem(about, what, cure))
}

/// A daemon that is confined only in part, from /proc/PID/status.
pub fn unconfined(status: &str, landlock: Option<i32>) -> Option<Finding> {
    let filtered = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
    let is_confined = filtered.is_some_and(|filters| filters.trim() != "0");
    let what = "the kernel has no Landlock: a confined daemon can open all files of its user";
    let cure = "start a kernel with CONFIG_SECURITY_LANDLOCK, with landlock in lsm= of its \
                command line";
    (is_confined && landlock.is_none()).then(|| note("daemon", what, cure))
}

/// Interfaces that carry nothing. The daemon says why, and what helps.
pub fn interfaces(ports: &[PortInfo]) -> Vec<Finding> {
    let trouble = |port: &PortInfo| {
        let said = port.host.as_ref()?.trouble.as_deref()?;
        let (what, cure) = said.split_once("; ").unwrap_or((said, "see the daemon's log"));
        Some(problem(&port.port.to_string(), what, cure))
    };
    ports.iter().filter_map(trouble).collect()
}

/// An interface in a namespace has no address.
pub fn bare(port: &str, ifname: &str, netns: &str) -> Finding {
    let what = format!("interface {ifname} in namespace {netns} has no address");
    let cure = "if it had one, a daemon that ended took it along: podman network reload CONTAINER, \
                or detach and attach it again (uvala ns)";
    note(port, what, cure)
}

/// Interfaces of one switch with different MTUs.
pub fn mtus(ports: &[PortInfo]) -> Vec<Finding> {
    let mut switches = BTreeMap::<String, BTreeMap<u32, Vec<String>>>::new();
    for port in ports {
        let there = port.host.as_ref().filter(|host| host.state != LinkState::Gone);
        let Some(host) = there else { continue };
        let name = port.port.to_string();
        let switch = name.split(':').next().unwrap_or_default().to_owned();
        switches.entry(switch).or_default().entry(host.mtu).or_default().push(name);
    }
    let different = switches.into_iter().filter(|(_, mtus)| mtus.len() > 1);
    let finding = |(switch, mtus): (String, BTreeMap<u32, Vec<String>>)| {
        let each = mtus.iter().map(|(mtu, ports)| format!("{} has {mtu}", ports.join(" and ")));
        let what = format!("its interfaces differ in MTU: {}", each.collect::<Vec<_>>().join(", "));
        let cure = "give all of them the same: ip link set … mtu … (ip -n NAME link set … for one \
                    in a namespace), or --mtu of a tap";
        problem(&switch, what, cure)
    };
    different.map(finding).collect()
}

/// Interfaces in namespaces that this user cannot enter: of their MTUs the daemon hears no changes.
pub fn unseen_mtus(ports: &[PortInfo]) -> Vec<Finding> {
    let mut switches = BTreeMap::<String, Vec<String>>::new();
    let is_there =
        |port: &&PortInfo| port.host.as_ref().is_some_and(|host| host.state != LinkState::Gone);
    for port in ports.iter().filter(is_there) {
        let switch = port.port.switch().to_string();
        switches.entry(switch).or_default().push(port.port.to_string());
    }
    let finding = |(switch, ports): (String, Vec<String>)| {
        let ports = ports.join(" and ");
        let what = format!("the MTU of {ports} is unknown: the namespace cannot be entered");
        note(&switch, what, "run uvala doctor as root; if you are, look whether it is still there")
    };
    switches.into_iter().map(finding).collect()
}

/// Sockets of deleted ports: no process has them open, by /proc/net/unix.
pub fn stale(files: &[PathBuf], unix: &str) -> Vec<Finding> {
    let is_open =
        |path: &Path| unix.lines().any(|line| line.ends_with(&format!(" {}", path.display())));
    let left = files.iter().filter(|path| !is_open(path));
    left.map(|path| {
        let path = quoted(&path.to_string_lossy());
        note("daemon", format!("{path} is a socket that no process has open"), format!("rm {path}"))
    })
    .collect()
}

/// Little room for VMMs whose memory is files there.
pub fn shared_memory(bytes: u64) -> Option<Finding> {
    let what = format!("/dev/shm has {} MiB", bytes >> 20);
    let cure = "enlarge it (docker: --shm-size) for machines with memory-backend-file there; \
                memory-backend-memfd does not use it";
    (bytes < 256 << 20).then(|| note("host", what, cure))
}

/// Features of the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel {
    /// membarrier(GLOBAL_EXPEDITED).
    pub membarrier: bool,
    /// Sockets of AF_XDP.
    pub xdp: bool,
    /// User namespaces for all users.
    pub userns: bool,
}

/// Reports a /dev/kvm that cannot be used.
pub fn kvm(access: Access) -> Option<Finding> {
    match access {
        Access::Foreign => {
            let cure = "find out which driver made it: KVM answers with API version 12; until then \
                        `uvala vm run` emulates the processor";
            Some(note("host", "/dev/kvm opens, and does not answer as KVM does", cure))
        }
        Access::Closed => {
            let cure = "join its group, usually: sudo usermod -aG kvm $USER, and log in again";
            Some(note(
                "host",
                "this user may not open /dev/kvm: guests are emulated, which is slow",
                cure,
            ))
        }
        Access::Usable | Access::Missing => None,
    }
}

/// Features that the kernel lacks, each with its consequence.
pub fn kernel(has: Kernel) -> Vec<Finding> {
    let each = [
        (
            has.membarrier,
            "membarrier",
            "nothing to do: clients use a fence for each batch, which is slower",
        ),
        (has.xdp, "AF_XDP", "use ports of --kind packet instead of xdp"),
        (
            has.userns,
            "unprivileged user namespaces",
            "use uvala-helper, or give the daemon capabilities, for interfaces of the host",
        ),
    ];
    let missing = each.iter().filter(|(is_there, ..)| !is_there);
    missing.map(|(_, what, cure)| note("host", format!("no {what}"), *cure)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn a_daemon_that_is_confined_in_part_is_named() {
        let said = |status, landlock| unconfined(status, landlock).map(|found| found.what);
        assert_eq!(said("Seccomp_filters:\t1\n", Some(7)), None);
        assert!(said("Seccomp_filters:\t1\n", None).is_some_and(|what| what.contains("Landlock")));
        assert_eq!(said("Seccomp_filters:\t0\n", None), None);
        assert_eq!(said("", None), None, "a daemon that this user cannot see");
    }

    #[test]
    fn test_a_daemon_is_missing_elsewhere_or_old() {
        let missing = |locker, others| {
            let why = "no daemon at /x; start one with: y";
            let found = daemon_missing(why, locker, others);
            (found.what, found.cure)
        };
        let none = missing(None, Some(&[]));
        assert_eq!((&*none.0, &*none.1), ("no daemon at /x", "start one with: y"));
        let killed = missing(Some(Locker { pid: 7, runs: false, has_socket: true }), None);
        assert!(killed.0.contains("process 7 was") && killed.1.starts_with("start one with: y;"));
        let ended = missing(Some(Locker { pid: 7, runs: false, has_socket: false }), None);
        assert!(!ended.0.contains("process 7") && ended.1.starts_with("start one with: y"));
        let lost = missing(Some(Locker { pid: 7, runs: true, has_socket: false }), None);
        assert!(
            lost.0.contains("socket is gone") && lost.1.ends_with("kill 7, then y"),
            "{lost:?}"
        );
        let closed = daemon_closed("no permission for /x; ask its owner");
        assert_eq!((&*closed.what, &*closed.cure), ("no permission for /x", "ask its owner"));
        let other = missing(None, Some(&["/run/uvala".into()]));
        assert!(other.1.contains("--dir /run/uvala"), "{}", other.1);
        let silent = |stat| daemon_silent(7, stat).cure;
        assert_eq!(silent("7 (uvala) T 1"), "kill -CONT 7");
        assert!(is_stopped("7 (u) t 1") && !is_stopped("7 (T) S 1"));
        assert!(silent("7 (u) t 1").contains("debugger") && silent("").contains("kill -9 7"));
        assert_eq!(unsaved(&[], 0), None);
        let full = unsaved(&["/s/vale0.json: full".to_owned(), "b".to_owned()], 40).unwrap();
        assert!(full.what.contains("vale0.json: full and 39 more"), "{}", full.what);
        assert_eq!(versions("1.0", "1.0"), None);
        assert!(versions("1.1", "1.0").unwrap().what.contains("1.0, and this command 1.1"));
    }

    #[test]
    fn test_a_raised_priority_is_seen_and_no_other() {
        assert!(priority("daemon", "/autogroup-12 nice -11\n").is_some());
        assert_eq!(priority("daemon", "/autogroup-12 nice 0\n"), None);
        assert_eq!(priority("daemon", ""), None);
    }

    /// A port with such an interface.
    fn with(name: &str, host: &serde_json::Value) -> PortInfo {
        serde_json::from_value(serde_json::json!({
            "port": name, "kind": "tap", "number": 1, "persistent": true, "creator": 0,
            "client": null, "memory": 0, "trust_group": null, "settings": {}, "host": host,
        }))
        .unwrap()
    }

    #[test]
    fn test_interfaces_in_trouble_are_told_with_the_cure() {
        let port = |state: &str, trouble: Option<&str>| {
            with(
                "vale0:a",
                &serde_json::json!({
                    "ifname": "x", "state": state, "mtu": 0, "mac": "02:00:00:00:00:01",
                    "trouble": trouble,
                }),
            )
        };
        assert!(interfaces(&[port("up", None)]).is_empty());
        let ports = [port("gone", Some("no interface x; see: ip link")), port("down", Some("x"))];
        let [gone, down] = &interfaces(&ports)[..] else { panic!() };
        assert_eq!((&*gone.about, &*gone.what), ("vale0:a", "no interface x"));
        assert_eq!((&*gone.cure, &*down.cure), ("see: ip link", "see the daemon's log"));
    }

    #[test]
    fn test_mtus_of_one_switch_are_the_same() {
        let state = |name: &str, mtu: u32, state: &str| {
            with(
                name,
                &serde_json::json!({
                    "ifname": "x", "state": state, "mtu": mtu, "mac": "02:00:00:00:00:01",
                }),
            )
        };
        let port = |name, mtu| state(name, mtu, "up");
        assert!(mtus(&[port("vale0:a", 1500), state("vale0:b", 0, "gone")]).is_empty());
        assert!(mtus(&[port("vale0:a", 1500), port("vale1:a", 9000)]).is_empty());
        let [found] = &mtus(&[port("vale0:a", 1500), port("vale0:b", 9000)])[..] else { panic!() };
        assert!(found.about == "vale0" && found.what.contains("vale0:b has 9000"), "{found:?}");
    }

    #[test]
    fn test_an_mtu_that_cannot_be_seen_is_noted_where_there_is_an_interface() {
        let port = |name: &str, state: &str| {
            with(
                name,
                &serde_json::json!({
                    "ifname": "x", "netns": "red", "state": state, "mtu": 1500,
                    "mac": "02:00:00:00:00:01",
                }),
            )
        };
        assert!(unseen_mtus(&[port("vale0:a", "gone")]).is_empty());
        let ports = [port("vale0:a", "up"), port("vale0:b", "down"), port("vale1:a", "up")];
        let [first, second] = &unseen_mtus(&ports)[..] else { panic!() };
        assert_eq!((first.level, &*first.about, &*second.about), (Level::Note, "vale0", "vale1"));
        assert!(first.what.contains("the MTU of vale0:a and vale0:b is unknown"), "{first:?}");
    }

    #[test]
    fn test_sockets_that_nobody_has_open_are_stale() {
        let unix = "Num Path\n0000: 00000002 1 23 /run/uvala/vale0:a.sock\n";
        let files = ["/run/uvala/vale0:a.sock", "/run/uvala/vale0:b.sock"].map(PathBuf::from);
        let [found] = &stale(&files, unix)[..] else { panic!() };
        assert!(found.cure == "rm /run/uvala/vale0:b.sock", "{found:?}");
    }

    #[test]
    fn test_what_the_host_lacks_is_noted() {
        assert_eq!(shared_memory(1 << 30), None);
        assert!(kvm(Access::Foreign).unwrap().what.contains("does not answer as KVM"));
        assert!(kvm(Access::Closed).unwrap().cure.contains("usermod"));
        assert_eq!(kvm(Access::Missing).or(kvm(Access::Usable)), None);
        assert!(shared_memory(64 << 20).unwrap().what.contains("64 MiB"));
        let all = Kernel { membarrier: true, xdp: true, userns: true };
        assert!(kernel(all).is_empty());
        assert_eq!(kernel(Kernel::default()).len(), 3);
    }
}

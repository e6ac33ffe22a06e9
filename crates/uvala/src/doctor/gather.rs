//! The facts that the checks look at, as the daemon and the system say them.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use client::control::Connection;
use hostif::namespace;
use protocol::paths::{LOCK_NAME, SOCKET_NAME, SYSTEM_DIR};
use protocol::{DaemonInfo, HostIfInfo, LinkState, PortInfo, SwitchInfo};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{MembarrierQuery, membarrier_query};

use super::facts::{Person, Rights, Socket, Vmm};
use super::host::Locker;
use super::{Finding, device, host, limits, machine, multicast, security, vmm};
use crate::cni::inside;
use crate::vm::kvm;
use crate::vm::qemu::{PROGRAM, Qemu};

/// The name of one of a user's groups, the first if none has the user's own name.
fn group_of(user: &str, gids: &[u32], groups: &str) -> Option<String> {
    let named = |line: &str| -> Option<(String, u32)> {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    let all: Vec<_> = groups.lines().filter_map(named).collect();
    let own = all.iter().find(|(name, gid)| name == user && gids.contains(gid));
    let first = || all.iter().find(|(_, gid)| gids.first() == Some(gid));
    own.or_else(first).map(|(name, _)| name.clone())
}

/// Directories in which a daemon answers, but for `ours`.
pub fn daemons_elsewhere(ours: &Path) -> Vec<PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("uvala"));
    let own = PathBuf::from(format!("/tmp/uvala-{}", rustix::process::geteuid().as_raw()));
    let places = [Some(PathBuf::from(SYSTEM_DIR)), user, Some(own)].into_iter().flatten();
    let unix = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_open = |dir: &PathBuf| {
        let end = format!(" {}", dir.join(SOCKET_NAME).display());
        // What it was bound as before it was ready is what the kernel shows.
        unix.lines().any(|line| line.trim_end_matches(".new").ends_with(&end))
    };
    let is_usable = |dir: &PathBuf| Connection::connect(&dir.join(SOCKET_NAME)).is_ok();
    places.filter(|dir| dir != ours && is_open(dir)).filter(is_usable).collect()
}

/// The process that the lock file in a daemon's directory names.
pub fn locker(dir: &Path) -> Option<Locker> {
    let lock = fs::canonicalize(dir.join(LOCK_NAME)).ok()?;
    let pid = fs::read_to_string(&lock).ok()?.trim().parse().ok()?;
    // Another process may have its number by now.
    let has_lock = |fd: io::Result<fs::DirEntry>| {
        fd.is_ok_and(|fd| fs::read_link(fd.path()).is_ok_and(|file| file == lock))
    };
    let fds = fs::read_dir(format!("/proc/{pid}/fd"));
    let runs = fds.is_ok_and(|mut fds| fds.any(has_lock));
    Some(Locker { pid, runs, has_socket: dir.join(SOCKET_NAME).exists() })
}

/// A daemon that took a connection and does not answer, because it is stopped; with `is_late` also
/// without that reason.
pub fn silent(connection: &Connection, is_late: bool) -> Option<Finding> {
    let pid = connection.peer().ok()?.pid?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    (is_late || host::is_stopped(&stat)).then(|| host::daemon_silent(pid, &stat))
}

/// Checks a daemon, its switches and its ports. `dir` is where its socket is.
pub fn daemon(
    info: &DaemonInfo,
    switches: &[SwitchInfo],
    ports: &[PortInfo],
    dir: &Path,
) -> Vec<Finding> {
    let process = |what: &str| PathBuf::from(format!("/proc/{}/{what}", info.pid));
    let text = |what: &str| fs::read_to_string(process(what)).unwrap_or_default();
    let open = fs::read_dir(process("fd")).map_or(0, Iterator::count);
    let mut findings = Vec::new();
    findings.extend(host::versions(env!("CARGO_PKG_VERSION"), &info.version));
    findings.extend(limits::descriptors(open, &text("limits")));
    findings.extend(limits::addresses(&text("limits")));
    findings.extend(groups(&text("cgroup")).find_map(|(used, most)| limits::group(used, most)));
    findings.extend(host::priority("daemon", &text("autogroup")));
    findings.extend(host::unconfined(&text("status"), confine::landlock_version()));
    findings.extend(ports.iter().flat_map(clients));
    findings.extend(host::interfaces(ports));
    let mut known = ports.to_vec();
    let is_unseen =
        |port: &mut PortInfo| port.host.as_deref_mut().is_some_and(|host| !see_mtu(host));
    let unseen: Vec<PortInfo> = known.extract_if(.., is_unseen).collect();
    findings.extend(host::mtus(&known));
    findings.extend(host::unseen_mtus(&unseen));
    findings.extend(ports.iter().filter_map(bare));
    findings.extend(security::loops(switches));
    findings.extend(multicast::without_querier(switches));
    findings.extend(security::disabled(ports));
    let unix = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    // A daemon in another namespace has its sockets elsewhere.
    if unix.contains(&*dir.to_string_lossy()) {
        findings.extend(host::stale(&sockets(dir), &unix));
    }
    let has_machines = ports.iter().any(|port| port.machine.is_some());
    findings.extend(machines(ports, dir));
    findings
        .extend(Qemu::ask(PROGRAM.as_ref(), None).filter(|_| has_machines).and_then(machine::qemu));
    findings
}

/// Checks the ports of machines, and VMMs.
fn machines(ports: &[PortInfo], dir: &Path) -> Vec<Finding> {
    let (people, vmms) = (people(), vmms());
    let vmm = |port: &PortInfo| {
        let machine = port.machine.as_ref()?;
        vmms.iter().find(|one| match machine.pid {
            Some(pid) => one.pid == pid,
            None => vmm::names(&one.words, &machine.socket),
        })
    };
    let theirs: Vec<_> = ports.iter().map(vmm).collect();
    let mut findings = Vec::new();
    for (port, vmm) in ports.iter().zip(&theirs) {
        let Some(machine) = &port.machine else { continue };
        let socket = look(Path::new(&machine.socket));
        findings.extend(machine::check(port, &socket, *vmm, &people));
    }
    findings.extend(machine::duplicate_macs(ports, &theirs));
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    findings.extend(machine::strays(ports, &vmms, &dir));
    let unix = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    findings.extend(device::check(&vmms, &unix, |path, name| {
        path.parent() == Some(&dir) || ports.iter().any(|port| Some(&port.port) == name.as_ref())
    }));
    findings
}

/// Looks up the MTU of an interface in another namespace, of which the daemon hears no changes.
/// Returns whether the MTU is that of now.
pub fn see_mtu(host: &mut HostIfInfo) -> bool {
    let Some(netns) = &host.netns else { return true };
    let found = hostif::look(&host.ifname, Some(netns));
    found.map(|(_, now)| host.mtu = now.mtu).is_ok()
}

/// Interfaces of containers and other namespaces that have no address there, where this user may
/// enter.
fn bare(port: &PortInfo) -> Option<Finding> {
    let host = port.host.as_ref().filter(|host| host.state == LinkState::Up)?;
    let (netns, ifname) = (host.netns.as_ref()?, &host.ifname);
    let entered = namespace::open(netns).ok()?;
    let is_bare = inside::within(&entered, || inside::is_bare(ifname)).ok()?;
    is_bare.then(|| host::bare(&port.port.to_string(), ifname, netns))
}

fn clients(port: &PortInfo) -> Option<Finding> {
    let client = port.client.as_ref()?;
    let text = fs::read_to_string(format!("/proc/{}/autogroup", client.pid)).ok()?;
    host::priority(&port.port.to_string(), &text)
}

/// Checks the system.
pub fn system(has_machines: bool) -> Vec<Finding> {
    let room = rustix::fs::statvfs("/dev/shm").map(|shm| shm.f_blocks * shm.f_frsize);
    let room = room.ok().and_then(host::shared_memory);
    let memory = limits::memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let kvm = has_machines.then(kvm::access).and_then(host::kvm);
    room.into_iter().chain(memory).chain(kvm).chain(host::kernel(kernel())).collect()
}

/// What each control group has that a process is in, and what it may have: those with a limit.
fn groups(of_process: &str) -> impl Iterator<Item = (u64, u64)> {
    let path = of_process.lines().find_map(|line| line.strip_prefix("0::/"));
    let root = Path::new("/sys/fs/cgroup");
    let inner = path.map(|path| root.join(path)).unwrap_or_default();
    let all: Vec<_> = inner.ancestors().map(Path::to_path_buf).collect();
    all.into_iter().take_while(move |dir| dir.starts_with(root)).filter_map(|dir| {
        let most = fs::read_to_string(dir.join("memory.max")).ok()?.trim().parse().ok()?;
        Some((lasting(&fs::read_to_string(dir.join("memory.stat")).ok()?), most))
    })
}

/// Memory that is no copy of a file, as `memory.stat` counts it.
fn lasting(stat: &str) -> u64 {
    let number = |key| stat.lines().find_map(|line| line.strip_prefix(key)?.parse::<u64>().ok());
    number("anon ").unwrap_or(0) + number("shmem ").unwrap_or(0)
}

fn kernel() -> host::Kernel {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let is = |path: &str, wanted: u64| number(path) == Some(wanted);
    let is_closed = is("/proc/sys/user/max_user_namespaces", 0)
        || is("/proc/sys/kernel/unprivileged_userns_clone", 0)
        || is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 1);
    let xdp = socket(AddressFamily::XDP, SocketType::RAW, None);
    host::Kernel {
        membarrier: membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED),
        xdp: xdp.err() != Some(rustix::io::Errno::AFNOSUPPORT),
        userns: !is_closed,
    }
}

/// All that we may look at.
fn vmms() -> Vec<Vmm> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(io::Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let table = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (users, groups) = (table("/etc/passwd"), table("/etc/group"));
    let vmm = |pid| {
        let words = Some(command_line(pid)).filter(|words| vmm::is_vmm(words))?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(Vmm { pid, words, user: owner(&status, &users, &groups)? })
    };
    pids.filter_map(vmm).collect()
}

/// The user and groups that a process acts as, from /proc/PID/status.
fn owner(status: &str, users: &str, groups: &str) -> Option<Person> {
    let numbers = |key: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().map(|number| number.parse().ok()).collect()
    };
    // Real, effective, saved, of the file system.
    let (uid, gid) = (*numbers("Uid:")?.get(1)?, *numbers("Gid:")?.get(1)?);
    let gids: Vec<u32> = std::iter::once(gid).chain(numbers("Groups:")?).collect();
    let is_its = |line: &&str| line.split(':').nth(2) == Some(&uid.to_string());
    let name = users.lines().find(is_its).and_then(|line| line.split(':').next());
    let name = name.map_or_else(|| uid.to_string(), str::to_owned);
    let group = group_of(&name, &gids, groups);
    Some(Person { name, uid, gids, group })
}

/// A process's command line; empty where we may not read it.
fn command_line(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = bytes.split(|&byte| byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn look(path: &Path) -> Socket {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Socket::Missing,
        Err(_) => return Socket::Unknown,
    };
    let dirs = path.ancestors().skip(1).filter_map(|dir| fs::metadata(dir).ok());
    Socket::There { file: Rights::of(&metadata), dirs: dirs.map(|dir| Rights::of(&dir)).collect() }
}

/// Sockets of ports in a directory.
fn sockets(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(io::Result::ok);
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let is_ports = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.contains(':') && name.ends_with(".sock")
    };
    sockets.map(|entry| entry.path()).filter(is_ports).collect()
}

/// Users that distributions create for libvirt's machines.
fn people() -> Vec<Person> {
    let table = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (users, groups) = (table("/etc/passwd"), table("/etc/group"));
    ["libvirt-qemu", "qemu"].iter().filter_map(|name| person(name, &users, &groups)).collect()
}

fn person(name: &str, users: &str, groups: &str) -> Option<Person> {
    let fields = |line: &'_ str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let user = users.lines().map(fields).find(|user| user[0] == name)?;
    let (uid, gid) = (user.get(2)?.parse().ok()?, user.get(3)?.parse().ok()?);
    let is_in = |group: &Vec<String>| {
        group.get(3).is_some_and(|members| members.split(',').any(|member| member == name))
    };
    let more = groups.lines().map(fields).filter(is_in).filter_map(|group| group[2].parse().ok());
    let gids: Vec<u32> = std::iter::once(gid).chain(more).collect();
    let group = group_of(name, &gids, groups);
    Some(Person { name: name.to_owned(), uid, gids, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_person_has_a_group_and_more() {
        let users = "root:x:0:0::/:/bin/sh\nqemu:x:107:108::/:/sbin/nologin\n";
        let groups = "kvm:x:36:qemu,me\nother:x:5:me\nqemu:x:108:\n";
        let found = person("qemu", users, groups).unwrap();
        assert_eq!((found.uid, found.gids), (107, vec![108, 36]));
        assert_eq!(found.group.as_deref(), Some("qemu"));
        assert_eq!(person("libvirt-qemu", users, groups), None);
    }

    #[test]
    fn test_a_process_is_its_effective_users() {
        let status = "Name:\tq\nUid:\t0\t107\t0\t107\nGid:\t0\t108\t0\t0\nGroups:\t36 5 \n";
        let users = "root:x:0:0::/:/bin/sh\nqemu:x:107:108::/:/x\n";
        let found = owner(status, users, "kvm:x:36:\nvirt:x:108:\n").unwrap();
        // A user may have no group of its name.
        assert_eq!(found.group.as_deref(), Some("virt"));
        assert_eq!((&*found.name, found.uid, found.gids), ("qemu", 107, vec![108, 36, 5]));
        assert_eq!(owner(status, "", "").unwrap().name, "107");
        assert_eq!(owner("", "", ""), None);
    }

    #[test]
    fn test_memory_that_the_kernel_can_take_back_does_not_count() {
        assert_eq!(lasting("anon 100\nfile 7000\nkernel 1\nshmem 20\n"), 120);
        assert_eq!(groups("4:memory:/x\n").count() + groups("").count(), 0);
    }

    #[test]
    fn test_this_process_can_be_looked_at() {
        assert!(!command_line(std::process::id())[0].is_empty());
        assert_eq!(look(Path::new("/no/such/socket")), Socket::Missing);
        assert!(sockets(Path::new("/no/such/directory")).is_empty());
    }
}

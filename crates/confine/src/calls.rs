//! The system calls of each kind of thread, and why it makes them. This table is the only place
//! where a call becomes allowed.
//!
//! A process has the calls of all its kinds of threads: control starts the others, and they
//! inherit its filter. The lists have what other C libraries and kernels use for the same function,
//! too, so that an update of either does not stop the switch.

use Check::{Any, Both, Is, Masked, OwnProcess};
use Thread::{
    Collapser, Control, Disk, Exporter, Function, Looker, Machine, Opener, Reader, Speaker,
    Watchdog, Worker,
};

/// A kind of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The daemon's first thread: its socket, its configuration, and the start of all others.
    Control,
    /// Moves frames (`worker0`, …).
    Worker,
    /// Writes state files (`state-writer`).
    Disk,
    /// Opens and closes interfaces, commits and frees memory (`opener`, `builder`, `reclaimer`),
    /// and closes what peers have, too (`closer`).
    Opener,
    /// Moves memory to huge pages, and opens nothing (`huge-pages`).
    Collapser,
    /// Reads the memory of ports to see which is slow, and opens nothing (`memory-reader`).
    Reader,
    /// Asks the kernel for interfaces (`looker`).
    Looker,
    /// Speaks with one VMM (`vhost-user`, `netdev`).
    Machine,
    /// Looks at the workers, and tells systemd of them (`watchdog`).
    Watchdog,
    /// A process that runs network functions, with all its threads.
    Function,
    /// Such a process that sends what it counts to a collector, too.
    Exporter,
    /// A process of one thread that speaks with the daemon and, by TCP, with a BGP speaker.
    Speaker,
}

/// All threads of the daemon.
const DAEMON: &[Thread] =
    &[Control, Worker, Disk, Opener, Collapser, Reader, Looker, Machine, Watchdog];
/// All threads.
const ALL: &[Thread] = &[
    Control, Worker, Disk, Opener, Collapser, Reader, Looker, Machine, Watchdog, Function,
    Exporter, Speaker,
];
/// Threads that make sockets.
const SOCKETS: &[Thread] = &[Control, Opener, Looker, Machine, Watchdog, Function, Exporter];

/// Which arguments a call may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// All.
    Any,
    /// The argument of this number is one of these values.
    Is(u8, &'static [u64]),
    /// The argument of this number has one of these values in the bits of the mask.
    Masked(u8, &'static [(u64, u64)]),
    /// The first argument is this process.
    OwnProcess,
    /// Both hold.
    Both(&'static Check, &'static Check),
}

/// A call and its arguments.
pub(crate) type Allowed = (i64, Check);

/// Calls for one purpose.
struct Row {
    threads: &'static [Thread],
    /// Only for a process that has a capability.
    with_capabilities: bool,
    check: Check,
    calls: &'static [(&'static str, i64)],
}

macro_rules! calls {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

const fn row(
    threads: &'static [Thread],
    check: Check,
    calls: &'static [(&'static str, i64)],
) -> Row {
    Row { threads, with_capabilities: false, check, calls }
}

/// Memory that is no code: `PROT_EXEC` is missing.
const NO_CODE: Check = Masked(2, &[(libc::PROT_EXEC as u64, 0)]);
/// A thread of this process, and no new process.
const NEW_THREAD: Check = Masked(0, &[(libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)]);
/// `linux/prctl.h`; how some libraries ask for the size of a page.
const PR_GET_AUXV: u64 = 0x4155_5856;
/// The thread's name, the names of mappings, promises of less, core dumps.
const OWN_PROPERTIES: Check = Is(
    0,
    &[
        libc::PR_SET_NAME as u64,
        libc::PR_GET_NAME as u64,
        libc::PR_SET_VMA as u64,
        libc::PR_SET_NO_NEW_PRIVS as u64,
        libc::PR_SET_DUMPABLE as u64,
        libc::PR_SET_TIMERSLACK as u64,
        PR_GET_AUXV,
    ],
);
/// Commands of TAPs and of interfaces, and what the C library asks of any descriptor. Not those
/// that put input into a terminal.
const DEVICES: Check = Masked(
    1,
    &[
        // TUN…: commands of type 'T' that carry a value.
        (0x4000_ff00, 0x4000_5400),
        (0x8000_ff00, 0x8000_5400),
        // SIOC…
        (0xffff_ff00, 0x8900),
        (0xffff_ffff, libc::TCGETS),
        (0xffff_ffff, libc::FIONREAD),
        // What a peer has not read: replies with descriptors are counted by it.
        (0xffff_ffff, libc::TIOCOUTQ),
        (0xffff_ffff, libc::FIONBIO),
    ],
);
/// `TUNGETDEVNETNS`: opens the namespace of a TAP.
const TAP_NAMESPACE: Check = Is(1, &[0x54e3]);
/// What the standard library asks of a terminal and of a socket.
const DESCRIPTORS: Check = Is(1, &[libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO]);
/// Local sockets, and questions to the kernel about interfaces.
const LOCAL_SOCKETS: Check = Is(0, &[libc::AF_UNIX as u64, libc::AF_NETLINK as u64]);
const UNIX_SOCKETS: Check = Is(0, &[libc::AF_UNIX as u64]);
/// Sockets of the internet, of any type.
const INTERNET_SOCKETS: Check = Is(0, &[libc::AF_INET as u64, libc::AF_INET6 as u64]);
/// Sockets of tunnels and for a collector: UDP, no connections.
const DATAGRAM_SOCKETS: Check = Both(&INTERNET_SOCKETS, &Both(&DATAGRAMS, &Is(2, &[0])));
const DATAGRAMS: Check = Masked(1, &[(SOCKET_TYPE, libc::SOCK_DGRAM as u64)]);
/// Sockets for a BGP speaker: TCP. Landlock knows no other protocol of streams, such as MPTCP.
const STREAM_SOCKETS: Check = Both(&INTERNET_SOCKETS, &Both(&STREAMS, &TCP_PROTOCOL));
const TCP_PROTOCOL: Check = Is(2, &[0, libc::IPPROTO_TCP as u64]);
const STREAMS: Check = Masked(1, &[(SOCKET_TYPE, libc::SOCK_STREAM as u64)]);
/// The type of a socket, without the flags beside it.
const SOCKET_TYPE: u64 = 0xf;
/// Sockets that see the frames of an interface.
const FRAME_SOCKETS: Check = Is(0, &[libc::AF_PACKET as u64, libc::AF_XDP as u64]);

/// `linux/bpf.h`: commands that create maps and change what they hold.
const MAPS: Check = Is(0, &[0, 2]);

/// The table.
const TABLE: &[Row] = &[
    // malloc, stacks of threads, mapped regions, and zeros for a guest's lost memory.
    row(ALL, NO_CODE, calls![SYS_mmap SYS_mprotect]),
    row(ALL, Any, calls![SYS_brk SYS_munmap SYS_mremap SYS_madvise]),
    // Waiting for other threads, and giving the core to them.
    row(
        ALL,
        Any,
        calls![
            SYS_futex SYS_futex_waitv SYS_sched_yield SYS_nanosleep SYS_clock_nanosleep
            SYS_restart_syscall SYS_membarrier
        ],
    ),
    // The clock, where the vDSO does not answer; and who runs, on which cores, for how long.
    row(
        ALL,
        Any,
        calls![
            SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_getrusage SYS_getpid SYS_gettid
            SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_sched_getaffinity SYS_getcpu SYS_uname
            SYS_getrandom
        ],
    ),
    // Signals: SIGBUS of a guest's memory, SIGSYS of a denied call, SIGABRT of a panic.
    row(ALL, Any, calls![SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack]),
    row(ALL, OwnProcess, calls![SYS_tgkill]),
    // The beginning and end of a thread and of the process; a thread narrows its own filter.
    row(
        ALL,
        Any,
        calls![
            SYS_set_robust_list SYS_rseq SYS_set_tid_address SYS_seccomp SYS_exit SYS_exit_group
        ],
    ),
    row(ALL, OWN_PROPERTIES, calls![SYS_prctl]),
    // Descriptors that are open: doorbells, log, rings of frames.
    row(
        ALL,
        Any,
        calls![
            SYS_read SYS_write SYS_readv SYS_writev SYS_close SYS_fcntl SYS_ppoll SYS_fstat
            SYS_lseek
            SYS_eventfd2 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_pipe2
            SYS_dup SYS_dup3 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_shutdown
        ],
    ),
    // Frames of sockets (cable, packet, stream, dgram, xdp, vxlan), calls and answers, descriptors.
    row(
        ALL,
        Any,
        calls![
            SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_getsockopt
            SYS_getsockname SYS_getpeername
        ],
    ),
    // Frames of TAPs.
    row(
        DAEMON,
        Any,
        calls![SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_pread64 SYS_pwrite64],
    ),
    row(DAEMON, DEVICES, calls![SYS_ioctl]),
    row(&[Function, Exporter, Speaker], DESCRIPTORS, calls![SYS_ioctl]),
    row(&[Control, Opener], TAP_NAMESPACE, calls![SYS_ioctl]),
    row(&[Exporter], DATAGRAM_SOCKETS, calls![SYS_socket]),
    // Signals to guests that never wait.
    row(DAEMON, Any, calls![SYS_io_submit SYS_io_getevents SYS_io_cancel]),
    // Threads.
    row(&[Control, Opener, Machine, Function, Exporter], NEW_THREAD, calls![SYS_clone]),
    row(&[Control, Opener, Worker, Function, Exporter], Any, calls![SYS_sched_setaffinity]),
    // Regions of ports, queues between threads, guests' memory; contexts of signals to guests.
    row(
        &[Control, Opener, Machine, Function, Exporter],
        Any,
        calls![
            SYS_memfd_create SYS_ftruncate SYS_fallocate SYS_mlock SYS_mlock2 SYS_munlock
            SYS_mincore
            SYS_io_setup SYS_io_destroy SYS_socketpair SYS_setsockopt SYS_fstatfs SYS_statfs
        ],
    ),
    row(&[Worker, Looker], Any, calls![SYS_setsockopt SYS_io_destroy]),
    // The daemon's socket, of which the owner is checked, and GoBGP's, of which Landlock knows the
    // port.
    row(&[Speaker], Any, calls![SYS_connect SYS_setsockopt SYS_newfstatat SYS_statx SYS_getcwd]),
    row(&[Speaker], STREAM_SOCKETS, calls![SYS_socket]),
    row(&[Speaker], UNIX_SOCKETS, calls![SYS_socket]),
    // Sockets: the daemon's own, those of VMMs, netlink, the helper's, systemd's.
    row(SOCKETS, LOCAL_SOCKETS, calls![SYS_socket]),
    row(
        SOCKETS,
        Any,
        calls![
            SYS_bind SYS_connect SYS_listen SYS_accept4 SYS_accept
        ],
    ),
    // Files: what Landlock leaves; /proc, sysctl, sockets and their owners, state.
    row(
        &[Control, Disk, Opener, Machine, Function, Exporter],
        Any,
        calls![
            SYS_openat SYS_newfstatat SYS_statx SYS_readlinkat SYS_faccessat SYS_faccessat2
            SYS_unlinkat SYS_getdents64 SYS_getcwd
        ],
    ),
    row(
        &[Control, Disk],
        Any,
        calls![
            SYS_mkdirat SYS_renameat SYS_renameat2 SYS_fsync SYS_fdatasync SYS_ftruncate SYS_flock
            SYS_pread64 SYS_pwrite64
        ],
    ),
    // Registers of a guest's own device, in a function.
    row(&[Function, Exporter], Any, calls![SYS_flock SYS_pread64 SYS_pwrite64]),
    // Sockets for others: Landlock handles neither modes nor owners, so these calls reach any file
    // of the user.
    row(&[Control, Opener], Any, calls![SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat]),
    // The limits of the process, its capabilities and groups, for messages and at the start.
    row(
        &[Control, Opener, Machine],
        Any,
        calls![
            SYS_prlimit64 SYS_capget SYS_getgroups SYS_sysinfo SYS_getppid
        ],
    ),
    // Interfaces. Without capabilities the kernel refuses what the daemon says that it lacks then;
    // maps of the helper's programs it does not refuse.
    row(&[Control, Opener], FRAME_SOCKETS, calls![SYS_socket]),
    // Tunnels to other hosts (`--kind vxlan`).
    row(&[Control], DATAGRAM_SOCKETS, calls![SYS_socket]),
    row(&[Control, Opener], MAPS, calls![SYS_bpf]),
    with_capabilities(row(&[Control, Opener], Any, calls![SYS_bpf SYS_setns])),
];

const fn with_capabilities(row: Row) -> Row {
    Row { with_capabilities: true, ..row }
}

/// Calls that x86-64 alone still has, for C libraries that use them.
#[cfg(target_arch = "x86_64")]
const OLD: &[Row] = &[
    row(
        ALL,
        Any,
        calls![
            SYS_poll SYS_epoll_wait SYS_epoll_create SYS_pipe SYS_dup2 SYS_time SYS_select
            SYS_eventfd
            SYS_arch_prctl
        ],
    ),
    row(
        &[Control, Disk, Opener, Machine, Function, Exporter],
        Any,
        calls![
            SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_unlink SYS_getdents
        ],
    ),
    row(&[Control, Opener], Any, calls![SYS_chmod]),
    row(&[Speaker], Any, calls![SYS_stat SYS_lstat]),
    row(&[Control, Disk], Any, calls![SYS_mkdir SYS_rename]),
    row(&[Control], Any, calls![SYS_chown SYS_lchown]),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Row] = &[];

/// Calls that no thread has, of which the log should give the name. The operations of a ring
/// (`io_uring`) would pass by the filter.
const NAMES: &[(&str, i64)] = calls![
    SYS_execve SYS_execveat SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kill
    SYS_tkill SYS_unshare SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_userfaultfd
    SYS_perf_event_open SYS_add_key SYS_keyctl SYS_request_key SYS_init_module SYS_finit_module
    SYS_open_by_handle_at SYS_pidfd_open SYS_pidfd_getfd SYS_pidfd_send_signal SYS_setuid
    SYS_setgid SYS_setresuid SYS_capset SYS_linkat SYS_symlinkat SYS_mknodat SYS_memfd_secret
    SYS_vmsplice SYS_splice SYS_tee SYS_chdir SYS_truncate SYS_personality SYS_setrlimit
    SYS_mbind SYS_set_mempolicy SYS_openat2 SYS_landlock_restrict_self SYS_pkey_mprotect
    SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register
];

/// The newest call that this table knows. C libraries have a way out where the kernel lacks a newer
/// one.
pub(crate) const NEWEST: i64 = libc::SYS_mseal;

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().chain(OLD)
}

/// The calls of a thread. The filter of its process refuses those that the process lacks.
pub(crate) fn of_thread(thread: Thread) -> Vec<Allowed> {
    chosen(|row| row.threads.contains(&thread))
}

/// The calls of a process with this first thread.
pub(crate) fn of_process(first: Thread) -> Vec<Allowed> {
    chosen(|row| match first {
        Function | Exporter | Speaker => row.threads.contains(&first),
        _ => row.threads.iter().any(|thread| DAEMON.contains(thread)),
    })
}

/// The calls of these rows, without those that need a capability where there is none.
fn chosen(is: impl Fn(&Row) -> bool) -> Vec<Allowed> {
    let all = has_capabilities();
    let calls = |row: &'static Row| row.calls.iter().map(|&(_, number)| (number, row.check));
    let of_process = rows().filter(|row| all || !row.with_capabilities);
    of_process.filter(|row| is(row)).flat_map(calls).collect()
}

/// Whether the process has any capability that it may use.
fn has_capabilities() -> bool {
    // Where the kernel does not tell: the calls check them anyhow.
    rustix::thread::capabilities(None).is_ok_and(|sets| !sets.effective.is_empty())
}

/// The name of a call. For a signal handler: it only reads.
pub(crate) fn name(call: i64) -> Option<&'static str> {
    let all = rows().flat_map(|row| row.calls).chain(NAMES);
    all.into_iter().find(|(_, number)| *number == call).and_then(|(name, _)| name.get(4..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_attacker_wants_first_is_in_no_list() {
        for thread in ALL {
            let calls = of_thread(*thread);
            for (name, number) in NAMES {
                assert!(calls.iter().all(|(call, _)| call != number), "{thread:?}: {name}");
            }
        }
    }

    #[test]
    fn workers_and_threads_that_move_or_read_memory_open_nothing_and_connect_nowhere() {
        for thread in [Worker, Collapser, Reader] {
            let calls = of_thread(thread);
            let has = |number| calls.iter().any(|(call, _)| *call == number);
            for number in [libc::SYS_openat, libc::SYS_socket, libc::SYS_connect, libc::SYS_clone] {
                assert!(!has(number), "{thread:?}: {:?}", name(number));
            }
            assert!(has(libc::SYS_madvise) && has(libc::SYS_futex) && has(libc::SYS_getrusage));
        }
        assert!(of_thread(Worker).iter().any(|(call, _)| *call == libc::SYS_io_submit));
    }

    #[test]
    fn a_process_has_the_calls_of_its_threads() {
        let process = of_process(Control);
        for thread in DAEMON {
            let missing: Vec<_> = of_thread(*thread);
            let missing: Vec<_> = missing.iter().filter(|call| !process.contains(call)).collect();
            assert!(missing.is_empty(), "{thread:?}: {missing:?}");
        }
    }

    #[test]
    fn modes_and_owners_are_changed_by_threads_that_make_sockets_for_others() {
        let change = [libc::SYS_fchmod, libc::SYS_fchmodat, libc::SYS_fchown, libc::SYS_fchownat];
        for thread in ALL {
            let calls = of_thread(*thread);
            let has = calls.iter().any(|(call, _)| change.contains(call));
            assert_eq!(has, [Control, Opener].contains(thread), "{thread:?}");
        }
    }

    #[test]
    fn calls_have_names() {
        assert_eq!(name(libc::SYS_execve), Some("execve"));
        assert_eq!(name(libc::SYS_read), Some("read"));
        assert_eq!(name(1_000_000), None);
    }
}

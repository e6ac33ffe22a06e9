//! What a confined thread tries and does not get. Landlock and filters belong to a thread, so each
//! test confines one of its own.

#![allow(unsafe_code)] // UNSAFETY: calls that no safe wrapper would make.

use std::fs::Permissions;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use confine::{Access, Files, Mode, Thread};

/// Two tests at a time would confuse their logs.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `job` in a confined thread of this name, which may use `dir`.
fn confined<R: Send>(name: &str, dir: &Path, job: impl FnOnce() -> R + Send) -> R {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let body = || {
        let files = Files::none().and(dir, Access::Own).and("/proc", Access::Read);
        let report = confine::enter(Mode::On, Thread::Control, &files).expect("no new privileges");
        report.calls.as_ref().expect("a kernel with seccomp");
        job()
    };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn_scoped(scope, body).expect("a thread").join().expect("no panic")
    })
}

/// The error of a call that is made with these arguments.
fn error_of(call: libc::c_long, args: [usize; 5]) -> i32 {
    let [a, b, c, d, e] = args;
    // SAFETY: arguments that harm nothing, should the call succeed.
    let result = unsafe { libc::syscall(call, a, b, c, d, e) };
    if result >= 0 { 0 } else { Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

#[test]
fn a_confined_process_executes_traces_and_reaches_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    confined("victim", dir.path(), || {
        let path = c"/bin/true".as_ptr().expose_provenance();
        let own = usize::try_from(std::process::id()).expect("small");
        let inet = usize::try_from(libc::AF_INET).expect("small");
        let child = usize::try_from(libc::SIGCHLD).expect("small");
        let code = usize::try_from(libc::PROT_READ | libc::PROT_EXEC).expect("small");
        let private = usize::try_from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).expect("small");
        let new_user = usize::try_from(libc::CLONE_NEWUSER).expect("small");
        for (what, call, args) in [
            ("execve", libc::SYS_execve, [path, 0, 0, 0, 0]),
            ("ptrace", libc::SYS_ptrace, [0, 0, 0, 0, 0]),
            ("kill", libc::SYS_kill, [own, 0, 0, 0, 0]),
            ("clone", libc::SYS_clone, [child, 0, 0, 0, 0]),
            ("socket", libc::SYS_socket, [inet, 1, 0, 0, 0]),
            ("unshare", libc::SYS_unshare, [new_user, 0, 0, 0, 0]),
            ("process_vm_readv", libc::SYS_process_vm_readv, [own, 0, 0, 0, 0]),
            ("userfaultfd", libc::SYS_userfaultfd, [0; 5]),
            ("mmap of code", libc::SYS_mmap, [0, 4096, code, private, usize::MAX]),
            // The operations of a ring pass by the filter, and some by Landlock.
            ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
            ("io_uring_enter", libc::SYS_io_uring_enter, [usize::MAX, 0, 0, 0, 0]),
            ("io_uring_register", libc::SYS_io_uring_register, [usize::MAX, 0, 0, 0, 0]),
        ] {
            assert_eq!(error_of(call, args), libc::EPERM, "{what}");
        }
        assert_eq!(error_of(5000, [0; 5]), libc::ENOSYS, "a call of the future");
        let id = std::thread::spawn(|| error_of(libc::SYS_ptrace, [0; 5]));
        assert_eq!(id.join().expect("threads can be made"), libc::EPERM, "and are confined");
    });
}

/// For ports of kind vxlan.
#[test]
fn a_confined_control_thread_opens_sockets_for_datagrams_and_no_others() {
    let dir = tempfile::tempdir().expect("a directory");
    confined("victim", dir.path(), || {
        let number = |value: i32| usize::try_from(value).expect("small");
        let socket = |family: i32, kind: i32| {
            error_of(libc::SYS_socket, [number(family), number(kind), 0, 0, 0])
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            for flags in [0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
                assert_ne!(socket(family, libc::SOCK_DGRAM | flags), libc::EPERM);
                assert_eq!(socket(family, libc::SOCK_STREAM | flags), libc::EPERM);
                assert_eq!(socket(family, libc::SOCK_RAW | flags), libc::EPERM);
            }
        }
        assert_eq!(socket(libc::AF_BLUETOOTH, libc::SOCK_DGRAM), libc::EPERM);
        let work = || {
            confine::narrow(Thread::Worker);
            assert_eq!(socket(libc::AF_INET, libc::SOCK_DGRAM), libc::EPERM);
        };
        std::thread::scope(|scope| scope.spawn(work).join()).expect("no panic");
    });
}

/// `uvala-evpn`: the daemon's socket, and one TCP port.
#[test]
fn a_confined_speaker_reaches_one_port_and_opens_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let [own, other] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [own, other] = [&own, &other].map(|it| it.local_addr().expect("it is bound"));
    let dir = tempfile::tempdir().expect("a directory");
    let daemon = dir.path().join("socket");
    let _daemon = UnixListener::bind(&daemon).expect("room");
    let work = || {
        let files = Files::none().and_tcp(own.port());
        let report = confine::enter(Mode::On, Thread::Speaker, &files).expect("no new privileges");
        report.calls.as_ref().expect("a kernel with seccomp");
        UnixStream::connect(&daemon).expect("the daemon's socket");
        TcpStream::connect(own).expect("its port");
        if confine::landlock_version().is_some_and(|version| version >= 4) {
            let refused = TcpStream::connect(other).expect_err("another port");
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        }
        let number = |value: i32| usize::try_from(value).expect("small");
        let [inet, unix] = [libc::AF_INET, libc::AF_UNIX].map(number);
        let path = c"/etc/passwd".as_ptr().expose_provenance();
        let at = usize::MAX; // no directory
        for (what, call, args) in [
            ("execve", libc::SYS_execve, [path, 0, 0, 0, 0]),
            ("openat", libc::SYS_openat, [at, path, 0, 0, 0]),
            ("unlinkat", libc::SYS_unlinkat, [at, path, 0, 0, 0]),
            ("bind", libc::SYS_bind, [0; 5]),
            ("listen", libc::SYS_listen, [0; 5]),
            ("a datagram socket", libc::SYS_socket, [inet, number(libc::SOCK_DGRAM), 0, 0, 0]),
            ("an MPTCP socket", libc::SYS_socket, [inet, 1, number(libc::IPPROTO_MPTCP), 0, 0]),
            ("a packet socket", libc::SYS_socket, [number(libc::AF_PACKET), 3, 0, 0, 0]),
            ("a netlink socket", libc::SYS_socket, [number(libc::AF_NETLINK), 3, 0, 0, 0]),
            ("a thread", libc::SYS_clone, [number(libc::CLONE_THREAD), 0, 0, 0, 0]),
            ("kill", libc::SYS_kill, [0; 5]),
            ("ptrace", libc::SYS_ptrace, [0; 5]),
        ] {
            assert_eq!(error_of(call, args), libc::EPERM, "{what}");
        }
        assert_ne!(error_of(libc::SYS_socket, [unix, 1, 0, 0, 0]), libc::EPERM);
    };
    std::thread::scope(|scope| scope.spawn(work).join()).expect("no panic");
}

/// Landlock handles neither, also in the directories that a process has.
#[test]
fn a_confined_function_changes_neither_mode_nor_owner_of_a_file() {
    const FCHMODAT2: libc::c_long = 452;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    let file = std::fs::File::create(&path).expect("room");
    let mode = file.metadata().expect("it is open").permissions().mode();
    let work = || {
        let files = Files::none().and(dir.path(), Access::Own);
        let report = confine::enter(Mode::On, Thread::Function, &files).expect("no new privileges");
        report.calls.as_ref().expect("a kernel with seccomp");
        let all = || Permissions::from_mode(0o777);
        for (what, done) in [
            ("chmod", std::fs::set_permissions(&path, all())),
            ("fchmod", file.set_permissions(all())),
            ("chown", chown(&path, None, None)),
        ] {
            assert_eq!(done.expect_err(what).raw_os_error(), Some(libc::EPERM), "{what}");
        }
        let (fd, empty) = (usize::try_from(file.as_raw_fd()), c"".as_ptr().expose_provenance());
        let by_fd = [fd.expect("open"), empty, 0o777, 0, 0];
        for (what, call) in [
            ("fchmodat", libc::SYS_fchmodat),
            ("fchmodat2", FCHMODAT2),
            ("fchownat", libc::SYS_fchownat),
        ] {
            assert_eq!(error_of(call, by_fd), libc::EPERM, "{what}");
        }
    };
    std::thread::scope(|scope| scope.spawn(work).join()).expect("no panic");
    assert_eq!(file.metadata().expect("it is open").permissions().mode(), mode);
}

#[test]
fn a_confined_process_has_its_directories_and_no_other_file() {
    if confine::landlock_version().is_none() {
        println!("SKIPPED: this kernel has no Landlock");
        return;
    }
    let (dir, other) = (tempfile::tempdir().expect("room"), tempfile::tempdir().expect("room"));
    confined("victim", dir.path(), || {
        let refused = |done: std::io::Result<()>, what: &str| {
            assert_eq!(done.expect_err(what).kind(), ErrorKind::PermissionDenied, "{what}");
        };
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&from, "state").expect("its own");
        std::fs::rename(&from, &to).expect("its own");
        assert_eq!(std::fs::read_to_string(&to).expect("its own"), "state");
        UnixListener::bind(dir.path().join("socket")).expect("its own");
        refused(std::fs::read("/etc/passwd").map(drop), "read");
        refused(std::fs::read_dir("/etc").map(drop), "list");
        refused(std::fs::write(other.path().join("x"), ""), "make");
        refused(UnixListener::bind(other.path().join("x")).map(drop), "bind");
        refused(std::fs::File::open("/dev/zero").map(drop), "device");
        refused(std::fs::read("/proc/1/environ").map(drop), "another process");
    });
}

#[test]
fn a_worker_opens_nothing_and_still_moves_frames() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("file");
    std::fs::write(&path, "x").expect("room");
    let (mut a, mut b) = UnixStream::pair().expect("two");
    confined("victim", dir.path(), || {
        let work = || {
            confine::narrow(Thread::Worker);
            let denied = std::fs::read(&path).expect_err("a worker opens nothing");
            assert_eq!(denied.raw_os_error(), Some(libc::EPERM));
            let unix = usize::try_from(libc::AF_UNIX).expect("small");
            let fd = usize::try_from(a.as_raw_fd()).expect("open");
            for (what, call, args) in [
                ("socket", libc::SYS_socket, [unix, 1, 0, 0, 0]),
                ("connect", libc::SYS_connect, [fd, 0, 0, 0, 0]),
                ("bind", libc::SYS_bind, [fd, 0, 0, 0, 0]),
                ("clone", libc::SYS_clone, [0; 5]),
                ("memfd_create", libc::SYS_memfd_create, [0; 5]),
            ] {
                assert_eq!(error_of(call, args), libc::EPERM, "{what}");
            }
            a.write_all(b"frame").expect("a worker writes");
            b.read_exact(&mut [0; 5]).expect("and reads");
            rustix::thread::sched_yield();
            // Memory comes and goes.
            drop(vec![1u8; 8 << 20]);
        };
        std::thread::scope(|scope| scope.spawn(work).join()).expect("no panic");
        assert!(std::fs::read(&path).is_ok(), "the filter of a thread is its own");
    });
}

#[test]
fn a_denied_call_is_logged_with_the_name_of_its_thread() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut log, stderr) = UnixStream::pair().expect("two");
    let mut said = vec![0; 4096];
    confined("victim7", dir.path(), || {
        // SAFETY: the descriptor is open, and restored below.
        let old = unsafe { OwnedFd::from_raw_fd(libc::dup(2)) };
        // SAFETY: both are open.
        unsafe { libc::dup2(stderr.as_raw_fd(), 2) };
        let error = error_of(libc::SYS_ptrace, [0; 5]);
        // SAFETY: both are open.
        unsafe { libc::dup2(old.as_raw_fd(), 2) };
        assert_eq!(error, libc::EPERM);
    });
    let size = log.read(&mut said).expect("a line");
    let said = String::from_utf8_lossy(&said[..size]);
    assert_eq!(said, "confinement: thread victim7 was denied system call ptrace\n");
}

//! A process without descriptors, and frontends that want one. Alone in its process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use port::sys::Waker;
use port::vhost_user::{Access, Spec, State, open};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap())
}

fn assert_rests() {
    let before = processor_time();
    std::thread::sleep(Duration::from_millis(500));
    let spent = processor_time() - before;
    assert!(spent < Duration::from_millis(100), "{spent:?} of 500 ms");
}

fn set_limit(current: Option<u64>) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

#[test]
fn a_frontend_that_cannot_be_accepted_costs_no_processor() {
    let path = std::env::temp_dir().join(format!("uvala-descriptors-{}", std::process::id()));
    let (_wake, bell) = Waker::new().unwrap();
    let (name, access) = ("vale0:vm".to_owned(), Access::default());
    let spec = Spec { name, path: path.clone(), connects: false, pairs: 1, access };
    let (adapter, port) = open(&spec, &Arc::new(bell)).unwrap();
    let frontend = || socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    let [first, second]: [OwnedFd; 2] = [frontend(), frontend()];
    let address = SocketAddrUnix::new(&path).unwrap();
    let usual = getrlimit(Resource::Nofile).current;
    let lowest_free = second.try_clone().unwrap().as_raw_fd();
    set_limit(Some(lowest_free.try_into().unwrap()));
    connect(&first, &address).unwrap();
    assert_rests();
    assert_eq!(port.status().state(), State::Waiting);
    set_limit(usual);
    let start = Instant::now();
    while port.status().state() != State::Connected {
        assert!(start.elapsed() < Duration::from_secs(10), "it is accepted later");
        std::thread::sleep(Duration::from_millis(10));
    }
    let lowest_free = second.try_clone().unwrap().as_raw_fd();
    set_limit(Some(lowest_free.try_into().unwrap()));
    connect(&second, &address).unwrap();
    assert_rests();
    set_limit(usual);
    assert_eq!(rustix::io::read(&second, &mut [0; 1]).unwrap_or(0), 0, "turned away");
    drop((adapter, port));
}

//! A vhost-user frontend that others have written: that of the crate `vhost`. It speaks for
//! machines whose drivers are ours.
//!
//! Not asked of it: `SET_LOG_BASE`. It wants an answer as long as the request, where QEMU, and what
//! else serves QEMU, have one number.

#![allow(unsafe_code)] // UNSAFETY: it takes descriptors as numbers.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::net::UnixStream;

use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, fill, mac};
use harness::machine::Machine;
use harness::wait;
use protocol::MachineState;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures as Protocol};
use vhost::{Error, VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

const QUEUES: usize = 4;
/// Mergeable buffers, several queues, notification by index, version 1, features of the protocol.
const FEATURES: u64 = 1 << 15 | 1 << 22 | 1 << 29 | 1 << 30 | 1 << 32;
/// Where the memory of a machine falls in two: behind its queues.
const BUFFERS: u64 = 1 << 16;

fn lab() -> Daemon {
    let port = |name| format!("[switch.vale0.port.{name}]\nkind = \"vhost-user\"\nqueues = 2\n");
    Setup::new(&["vm1", "vm2"].map(port).concat()).start()
}

fn state(daemon: &Daemon, port: &str) -> MachineState {
    daemon.port(port).unwrap().machine.unwrap().state
}

fn connect(daemon: &Daemon, port: &str) -> UnixStream {
    let socket = daemon.port(port).unwrap().machine.unwrap().socket;
    wait::find("a socket to connect to", || UnixStream::connect(&socket).ok())
}

/// A frontend that has agreed with the switch on what they know.
fn speaker(socket: &UnixStream) -> Frontend {
    // It would let us ask for more queues than there are.
    let mut frontend = Frontend::from_stream(socket.try_clone().unwrap(), 2 * QUEUES as u64);
    frontend.set_owner().unwrap();
    assert_eq!(frontend.get_features().unwrap() & FEATURES, FEATURES);
    let protocol = frontend.get_protocol_features().unwrap();
    let wanted = Protocol::MQ
        | Protocol::REPLY_ACK
        | Protocol::INFLIGHT_SHMFD
        | Protocol::RESET_DEVICE
        | Protocol::CONFIGURE_MEM_SLOTS;
    assert!(protocol.contains(wanted) && !protocol.contains(Protocol::CONFIG), "{protocol:?}");
    frontend.set_protocol_features(wanted).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend.set_features(FEATURES).unwrap();
    frontend
}

fn boot(daemon: &Daemon, port: &str) -> (Machine, Frontend) {
    let socket = connect(daemon, port);
    let frontend = speaker(&socket);
    (Machine::spoken_for(socket, 2), frontend)
}

/// A stretch of a machine's memory.
fn region(machine: &Machine, from: u64, to: u64) -> VhostUserMemoryRegionInfo {
    let memory = machine.memory();
    VhostUserMemoryRegionInfo {
        guest_phys_addr: from,
        memory_size: to - from,
        userspace_addr: memory.user + from,
        mmap_offset: from,
        mmap_handle: memory.file.as_raw_fd(),
    }
}

fn lend(frontend: &Frontend, machine: &Machine) {
    let all = region(machine, 0, machine.memory().bytes);
    assert!(frontend.set_mem_table(&[all]).unwrap().is_none());
}

fn event(fd: BorrowedFd<'_>) -> EventFd {
    let number = fd.try_clone_to_owned().unwrap();
    // SAFETY: the number is that of our own copy, and no other code closes it.
    unsafe { EventFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(number)) }
}

fn start(frontend: &mut Frontend, machine: &Machine, base: impl Fn(usize) -> u16) {
    for at in 0..QUEUES {
        let queue = machine.queue(at);
        frontend.set_vring_num(at, queue.size).unwrap();
        frontend.set_vring_base(at, base(at)).unwrap();
        let places = VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            flags: 0,
            desc_table_addr: queue.descriptors,
            used_ring_addr: queue.device,
            avail_ring_addr: queue.driver,
            log_addr: None,
        };
        frontend.set_vring_addr(at, &places).unwrap();
        frontend.set_vring_call(at, &event(queue.call)).unwrap();
        frontend.set_vring_err(at, &EventFd::new(0).unwrap()).unwrap();
        frontend.set_vring_kick(at, &event(queue.kick)).unwrap();
        frontend.set_vring_enable(at, true).unwrap();
    }
}

/// Starts all queues where they are.
fn start_here(frontend: &mut Frontend, machine: &Machine) {
    start(frontend, machine, |at| machine.queue(at).base);
}

/// Stops all queues; returns where they were.
fn stop(frontend: &Frontend) -> [u16; QUEUES] {
    std::array::from_fn(|at| frontend.get_vring_base(at).unwrap().try_into().unwrap())
}

fn frame(to: u32, stream: u32, seq: u64, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    fill(&mut frame, mac(to), stream, seq, len);
    frame
}

/// Tells the switch where a station is: it knows when the other machine has been told too.
fn introduce(station: u32, at: &mut Machine, other: &mut Machine) {
    let said = announcement(station);
    at.send(&said);
    wait::until("an announcement", || other.try_receive().is_some_and(|frame| frame == said));
}

/// Frames go both ways, by each pair of queues.
fn assert_connected(a: &mut Machine, b: &mut Machine) {
    for pair in [0, 1] {
        a.send_by(pair);
        b.send_by(pair);
        introduce(2, b, a);
        introduce(1, a, b);
        for (seq, len) in (0..100).zip([60, 61, 1514, 64].into_iter().cycle()) {
            let [there, back] = [frame(2, 1, seq, len), frame(1, 2, seq, len)];
            a.send(&there);
            assert_eq!(b.receive(), there, "frame {seq} of pair {pair}");
            b.send(&back);
            assert_eq!(a.receive(), back, "frame {seq} of pair {pair}");
        }
    }
}

fn boot_two(daemon: &Daemon) -> [(Machine, Frontend); 2] {
    let mut two = ["vale0:vm1", "vale0:vm2"].map(|port| boot(daemon, port));
    for (machine, frontend) in &mut two {
        lend(frontend, machine);
        start_here(frontend, machine);
    }
    two
}

#[test]
fn it_is_told_what_there_is_and_refused_what_there_is_not() {
    let daemon = lab();
    let [(mut a, mut frontend), (mut b, _other)] = boot_two(&daemon);
    assert_connected(&mut a, &mut b);
    assert!(frontend.get_max_mem_slots().unwrap() >= 256);
    // Refused in an answer, and the conversation goes on.
    for refused in [
        frontend.set_vring_num(QUEUES, 64),
        frontend.set_vring_base(QUEUES, 0),
        frontend.set_vring_enable(QUEUES, true),
        frontend.set_features(FEATURES | 1 << 63),
        frontend.remove_mem_region(&region(&a, 1 << 40, 2 << 40)),
    ] {
        let Err(Error::VhostUserProtocol(error)) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains("internal error"), "{error}");
    }
    assert!(frontend.reset_owner().is_ok(), "it means nothing");
    assert_eq!(frontend.get_queue_num().unwrap(), 2);
    assert_connected(&mut b, &mut a);
}

#[test]
fn its_queues_stop_where_they_are_and_start_again() {
    let daemon = lab();
    let [(mut a, mut frontend), (mut b, _other)] = boot_two(&daemon);
    for _ in 0..3 {
        assert_connected(&mut a, &mut b);
        let bases = stop(&frontend);
        assert_eq!(bases, std::array::from_fn(|at| a.queue(at).base));
        wait::until("rest", || state(&daemon, "vale0:vm1") == MachineState::Connected);
        start(&mut frontend, &a, |at| bases[at]);
    }
    // The device is reset: queues are disabled and stopped, what was lent is still lent.
    assert_connected(&mut a, &mut b);
    frontend.reset_device().unwrap();
    wait::until("rest", || state(&daemon, "vale0:vm1") == MachineState::Connected);
    start_here(&mut frontend, &a);
    assert_connected(&mut b, &mut a);
    // A queue that is disabled and enabled again goes on.
    (0..QUEUES).for_each(|at| frontend.set_vring_enable(at, false).unwrap());
    wait::until("rest", || state(&daemon, "vale0:vm1") == MachineState::Connected);
    (0..QUEUES).for_each(|at| frontend.set_vring_enable(at, true).unwrap());
    assert_connected(&mut a, &mut b);
}

#[test]
fn its_memory_comes_and_goes_region_by_region() {
    let daemon = lab();
    let [(mut a, mut frontend), (mut b, _other)] = boot_two(&daemon);
    assert_connected(&mut a, &mut b);
    stop(&frontend);
    let [queues, buffers] = [region(&a, 0, BUFFERS), region(&a, BUFFERS, a.memory().bytes)];
    frontend.set_mem_table(&[queues]).unwrap();
    frontend.add_mem_region(&buffers).unwrap();
    start_here(&mut frontend, &a);
    assert_connected(&mut a, &mut b);
    for _ in 0..3 {
        // Queues without buffers stay as they are until those are there again.
        stop(&frontend);
        frontend.remove_mem_region(&buffers).unwrap();
        frontend.add_mem_region(&buffers).expect("the same again");
        start_here(&mut frontend, &a);
        assert_connected(&mut b, &mut a);
    }
}

#[test]
fn it_goes_and_comes_again_and_its_machine_goes_on() {
    let daemon = lab();
    let [(mut a, mut frontend), (mut b, _other)] = boot_two(&daemon);
    for _ in 0..3 {
        assert_connected(&mut a, &mut b);
        drop(frontend);
        a.hang_up();
        wait::until("its end", || state(&daemon, "vale0:vm1") == MachineState::Waiting);
        let socket = connect(&daemon, "vale0:vm1");
        frontend = speaker(&socket);
        lend(&frontend, &a);
        start_here(&mut frontend, &a);
    }
    assert_connected(&mut b, &mut a);
}

#[test]
fn what_it_keeps_note_of_outlives_the_daemon() {
    let mut daemon = lab();
    let ports = ["vale0:vm1", "vale0:vm2"];
    let mut machines = ports.map(|port| boot(&daemon, port));
    let mut notes: Vec<(VhostUserInflight, File)> = Vec::new();
    for (machine, frontend) in &mut machines {
        lend(frontend, machine);
        let wanted = VhostUserInflight::new(0, 0, 4, machine.queue(0).size);
        let (area, file) = frontend.get_inflight_fd(&wanted).unwrap();
        assert!(area.mmap_size > 0);
        frontend.set_inflight_fd(&area, file.as_raw_fd()).unwrap();
        notes.push((area, file));
        start_here(frontend, machine);
    }
    for _ in 0..3 {
        let [(a, _), (b, _)] = &mut machines;
        assert_connected(a, b);
        daemon.kill();
        daemon.restart();
        for ((machine, frontend), (port, note)) in machines.iter_mut().zip(ports.iter().zip(&notes))
        {
            *frontend = speaker(&connect(&daemon, port));
            lend(frontend, machine);
            frontend.set_inflight_fd(&note.0, note.1.as_raw_fd()).unwrap();
            start_here(frontend, machine);
        }
    }
    let [(a, _), (b, _)] = &mut machines;
    assert_connected(b, a);
}

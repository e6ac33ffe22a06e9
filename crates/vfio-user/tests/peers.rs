//! The server with a client of another author, and with peers that send what they like.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ring::guest::Writer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vfio::message::{BODY_MAX, FDS_MAX, HEADER, command};
use vfio::{Area, Client, Description, Device, Ended, Irq, Mappable, Region, irq, region};

const BAR: u64 = 4096;
const PAGE: u64 = 4096;

/// The register whose reading lowers the line.
const CAUSES: u64 = 2;

/// A device of one register file. A write to its first byte writes to guest memory and interrupts.
#[derive(Debug)]
struct Scratchpad {
    bytes: Vec<u8>,
    resets: Arc<AtomicU32>,
    doorbell: Option<u8>,
    line: bool,
}

impl Device for Scratchpad {
    fn read(&mut self, _: u32, offset: u64, to: &mut [u8]) {
        let at = usize::try_from(offset).expect("bounded");
        to.copy_from_slice(&self.bytes[at..at + to.len()]);
        self.line &= offset != CAUSES;
    }

    fn write(&mut self, _: u32, offset: u64, from: &[u8]) {
        let at = usize::try_from(offset).expect("bounded");
        self.bytes[at..at + from.len()].copy_from_slice(from);
        if at == 0 {
            self.doorbell = from.first().copied();
            self.line = from.first().is_some_and(|value| value & 1 != 0);
        }
    }

    fn reset(&mut self) {
        self.bytes.fill(0);
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    fn line(&self) -> bool {
        self.line
    }
}

fn description() -> Description {
    let mut description = Description::default();
    description.regions[region::BAR0 as usize] = Region::of(BAR);
    let fd = memfd_create("bar", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&fd, 2 * PAGE).expect("ours");
    let areas = vec![Area { offset: PAGE, size: PAGE }];
    let mappable = Some(Mappable { fd, offset: 0, areas });
    description.regions[2] = Region { size: 2 * PAGE, mappable };
    description.regions[region::CONFIG as usize] = Region::of(256);
    description.irqs[irq::INTX as usize] = Irq::Line;
    description.irqs[irq::MSIX as usize] = Irq::Vectors(2);
    description
}

/// A server for one connection after the other, and how each of them ended.
struct Server {
    /// How often a reply waited for room.
    full: Arc<AtomicU32>,
    dir: tempfile::TempDir,
    resets: Arc<AtomicU32>,
    ends: Arc<Mutex<Vec<String>>>,
    _thread: JoinHandle<()>,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("room");
        let listener = UnixListener::bind(dir.path().join("socket")).expect("a socket");
        let full = Arc::new(AtomicU32::new(0));
        let waits = full.clone();
        let (resets, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, noted) = (resets.clone(), ends.clone());
        let thread = std::thread::spawn(move || {
            let description = description();
            for stream in listener.incoming() {
                let bytes = vec![0; 2 * 4096];
                let mut device =
                    Scratchpad { bytes, resets: counted.clone(), doorbell: None, line: false };
                let socket = stream.expect("a client").into();
                let end = serve(Client::new(socket, &description), &mut device, &waits);
                noted.lock().expect("no panic").push(end.to_string());
            }
        });
        Self { full, dir, resets, ends, _thread: thread }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).expect("a server");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        stream
    }

    /// A connection on which the version is agreed.
    fn greet(&self) -> UnixStream {
        let mut stream = self.connect();
        stream.write_all(&message(command::VERSION, 0, &[0; 4])).expect("room");
        assert_eq!(reply(&mut stream).0, 0);
        stream
    }

    /// How the `at`-th connection ended.
    fn end(&self, at: usize) -> String {
        for _ in 0..10_000 {
            if let Some(end) = self.ends.lock().expect("no panic").get(at) {
                return end.clone();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("connection {at} did not end");
    }
}

fn serve(mut client: Client<'_>, device: &mut Scratchpad, full: &AtomicU32) -> Ended {
    loop {
        full.fetch_add(u32::from(client.wants_room()), Ordering::Relaxed);
        let flags = if client.wants_room() { PollFlags::OUT } else { PollFlags::IN };
        poll(&mut [PollFd::new(&client, flags)], None).expect("a socket");
        if let Err(end) = client.serve(device, 3) {
            return end;
        }
        if let Some(value) = device.doorbell.take() {
            let memory = client.session().dma().memory();
            if let Some(slice) = memory.slice(PAGE, 1) {
                Writer::new(memory, &[slice]).write(&[value]);
            }
            let interrupts = client.session_mut().interrupts_mut();
            interrupts.send(1);
        }
    }
}

fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER + body.len()).expect("small");
    let mut bytes = vec![5, 0];
    bytes.extend(command.to_ne_bytes());
    [size, flags, 0].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
    bytes.extend(body);
    bytes
}

/// The error number of the next reply, and its body.
fn reply(stream: &mut UnixStream) -> (u32, Vec<u8>) {
    let mut header = [0; HEADER];
    stream.read_exact(&mut header).expect("a reply");
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("a word"));
    let mut body = vec![0; word(4) as usize - HEADER];
    stream.read_exact(&mut body).expect("its body");
    let is_error = word(8) & 0x20 != 0;
    assert_eq!(is_error, word(12) != 0, "an error has a number");
    (word(12), body)
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_ne_bytes().to_vec();
    [region, count].iter().for_each(|word| body.extend(word.to_ne_bytes()));
    body.extend(data);
    body
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors")
}

/// Waits for a signal. The server has made the eventfd one that does not block.
fn heard(event: &OwnedFd) -> u64 {
    poll(&mut [PollFd::new(event, PollFlags::IN)], None).expect("a descriptor");
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).expect("a signal");
    u64::from_ne_bytes(count)
}

#[test]
fn a_client_of_another_author_finds_regions_and_reads_and_writes_any_width() {
    let server = Server::start();
    let mut client = vfio_user::Client::new(&server.path()).expect("a version");
    assert_eq!(client.region(region::BAR0).expect("there").size, BAR);
    let mapped = client.region(2).expect("there");
    assert_eq!(mapped.size, 2 * PAGE);
    assert!(mapped.file_offset.is_some());
    let areas: Vec<_> = mapped.sparse_areas.iter().map(|area| (area.offset, area.size)).collect();
    assert_eq!(areas, [(PAGE, PAGE)]);
    let bytes: Vec<u8> = (1..=64).collect();
    for width in [1, 2, 3, 4, 8, 64] {
        client.region_write(0, 16, &bytes[..width]).expect("a reply");
        let mut back = vec![0; width];
        client.region_read(0, 16, &mut back).expect("a reply");
        assert_eq!(back, bytes[..width]);
    }
    client.reset().expect("a reply");
    let mut back = [1; 8];
    client.region_read(0, 16, &mut back).expect("a reply");
    assert_eq!((back, server.resets.load(Ordering::Relaxed)), ([0; 8], 1));
    drop(client);
    assert_eq!(server.end(0), "the VMM has gone");
}

#[test]
fn a_client_of_another_author_lends_memory_and_is_interrupted() {
    let server = Server::start();
    let mut client = vfio_user::Client::new(&server.path()).expect("a version");
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, 4 * PAGE).expect("ours");
    let intx = client.get_irq_info(irq::INTX).expect("a reply");
    assert_eq!((intx.count, intx.flags), (1, 7));
    assert_eq!(client.get_irq_info(irq::MSIX).expect("a reply").count, 2);
    let (line, vector) = (event(), event());
    // DATA_EVENTFD and ACTION_TRIGGER, one vector at a time and again.
    for (index, start, fd) in
        [(irq::INTX, 0, &line), (irq::MSIX, 1, &line), (irq::MSIX, 1, &vector)]
    {
        client.set_irqs(index, 0x24, start, 1, &[fd.as_raw_fd()]).expect("a reply");
    }
    // As firmware does: again and again.
    for value in 1..=5u8 {
        client.dma_map(0, 0, 4 * PAGE, file.as_raw_fd()).expect("a reply");
        client.region_write(0, 0, &[value]).expect("a reply");
        assert_eq!(heard(&vector), 1);
        let mut byte = [0];
        rustix::io::pread(&file, &mut byte, PAGE).expect("a file");
        assert_eq!(byte, [value]);
        if value & 1 != 0 {
            assert_eq!(heard(&line), 1);
            client.set_irqs(irq::INTX, 0x11, 0, 1, &[]).expect("a reply");
            assert_eq!(heard(&line), 1, "it is still high");
        } else {
            client.set_irqs(irq::INTX, 0x11, 0, 1, &[]).expect("a reply");
        }
        client.dma_unmap(0, 4 * PAGE).expect("a reply");
    }
    client.region_write(0, 0, &[9]).expect("a reply");
    assert_eq!(heard(&vector), 1, "without memory it goes on");
}

#[test]
fn posted_writes_have_no_reply_and_pipelined_requests_are_served_in_order() {
    let server = Server::start();
    let mut stream = server.greet();
    let mut all = Vec::new();
    for value in 0..50u8 {
        all.extend(message(command::REGION_WRITE, 0x10, &access(0, 8, 1, &[value])));
        all.extend(message(command::REGION_READ, 0, &access(0, 8, 1, &[])));
    }
    // In pieces, as a stream may come.
    for piece in all.chunks(7) {
        stream.write_all(piece).expect("room");
    }
    for value in 0..50u8 {
        let (error, body) = reply(&mut stream);
        assert_eq!((error, body.last()), (0, Some(&value)));
    }
}

#[test]
fn an_interrupt_that_the_guest_has_seen_is_not_signalled_again_by_the_unmask_behind_it() {
    let server = Server::start();
    let mut stream = server.greet();
    let line = event();
    let words = |words: &[u32]| words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<_>>();
    let connect = message(command::DEVICE_SET_IRQS, 0, &words(&[20, 0x24, irq::INTX, 0, 1]));
    send_with(&stream, &connect, &[&line]);
    assert_eq!(reply(&mut stream).0, 0);
    let raise = message(command::REGION_WRITE, 0, &access(0, 0, 1, &[1]));
    let see = message(command::REGION_READ, 0, &access(0, CAUSES, 1, &[]));
    let unmask = message(command::DEVICE_SET_IRQS, 0, &words(&[20, 0x11, irq::INTX, 0, 1]));
    for _ in 0..20 {
        stream.write_all(&raise).expect("room");
        assert_eq!((reply(&mut stream).0, heard(&line)), (0, 1));
        // Both come before the event loop has a turn.
        stream.write_all(&[&see[..], &unmask].concat()).expect("room");
        assert_eq!([reply(&mut stream).0, reply(&mut stream).0], [0, 0]);
        assert!(rustix::io::read(&line, &mut [0; 8]).is_err(), "it was seen");
    }
}

/// Sends bytes and descriptors.
fn send_with(stream: &UnixStream, bytes: &[u8], fds: &[&OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

#[test]
fn descriptors_come_with_the_header_or_the_body_and_only_so_many() {
    let server = Server::start();
    let mut stream = server.greet();
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&file, 4 * PAGE).expect("ours");
    let words = |words: &[u32]| words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<_>>();
    let map = message(command::DMA_MAP, 0, &words(&[32, 3, 0, 0, 0, 0, 4 * 4096, 0]));
    let (header, body) = map.split_at(HEADER);
    stream.write_all(header).expect("room");
    send_with(&stream, body, &[&file]);
    assert_eq!(reply(&mut stream).0, 0);
    // All of it, whatever the range says.
    let unmap = message(command::DMA_UNMAP, 0, &words(&[24, 2, 0, 0, 0, 0]));
    for _ in 0..2 {
        stream.write_all(&unmap).expect("room");
        assert_eq!(reply(&mut stream).0, 0);
    }
    send_with(&stream, &map, &[&file; FDS_MAX + 1]);
    assert_eq!(stream.read(&mut [0; 99]).unwrap_or(0), 0, "the connection ends");
    assert!(server.end(0).contains("more file descriptors"), "{}", server.end(0));
    // Half a message, and nothing more.
    let mut stream = server.greet();
    stream.write_all(&map[..20]).expect("room");
    drop(stream);
    assert_eq!(server.end(1), "the VMM has gone");
}

#[test]
fn what_cannot_be_done_is_refused_and_the_session_goes_on() {
    const EINVAL: u32 = 22;
    const EOPNOTSUPP: u32 = 95;
    let server = Server::start();
    let mut stream = server.greet();
    let words = |words: &[u32]| words.iter().flat_map(|it| it.to_ne_bytes()).collect::<Vec<_>>();
    for (command, body, error) in [
        (command::REGION_READ, access(0, BAR, 1, &[]), EINVAL),
        (command::REGION_READ, access(0, u64::MAX, 8, &[]), EINVAL),
        (command::REGION_READ, access(0, 0, u32::MAX, &[]), EINVAL),
        (command::REGION_READ, access(1, 0, 1, &[]), EINVAL),
        (command::REGION_READ, access(u32::MAX, 0, 1, &[]), EINVAL),
        (command::REGION_WRITE, access(7, 253, 4, &[0; 4]), EINVAL),
        (command::DEVICE_GET_REGION_INFO, words(&[32, 0, 9, 0, 0, 0, 0, 0]), EINVAL),
        (command::DEVICE_GET_IRQ_INFO, words(&[16, 0, 5, 0]), EINVAL),
        (command::DEVICE_SET_IRQS, words(&[20, 0x24, 2, 2, 1]), EINVAL),
        (command::DMA_MAP, words(&[32, 3, 0, 0, 0, 0, 0, 0]), EINVAL),
        (command::DMA_UNMAP, words(&[24, 0, 0, 0, 4096, 0]), 2),
        (6, vec![0; 16], EOPNOTSUPP),
        (14, vec![0; 100], EOPNOTSUPP),
    ] {
        stream.write_all(&message(command, 0, &body)).expect("room");
        assert_eq!(reply(&mut stream).0, error, "{command}");
    }
    stream.write_all(&message(command::DEVICE_GET_INFO, 0, &words(&[16, 0, 0, 0]))).expect("room");
    assert_eq!(reply(&mut stream), (0, words(&[16, 3, 9, 5])));
}

#[test]
fn garbage_costs_a_connection_and_says_why() {
    let server = Server::start();
    let long = u32::try_from(HEADER + BODY_MAX + 1).expect("small");
    let header = |size: u32, flags: u32| {
        let mut bytes = message(command::DEVICE_RESET, flags, &[]);
        bytes[4..8].copy_from_slice(&size.to_ne_bytes());
        bytes
    };
    let cases = [
        (true, header(15, 0), "the VMM sent a message of 15 bytes"),
        (true, header(long, 0), "the VMM sent a message of 65569 bytes"),
        (true, header(16, 1), "the VMM sent a message with flags 0x1"),
        (true, message(command::DMA_MAP, 0, &[0; 31]), "a body of 31 bytes for command 2"),
        (true, message(command::REGION_READ, 0, &[0; 17]), "a body of 17 bytes for command 9"),
        (true, message(command::VERSION, 0, &[0; 4]), "the VMM sent a second version"),
        (false, message(command::DEVICE_RESET, 0, &[]), "a request in front of the version"),
        (false, message(command::VERSION, 0, &[1, 0, 0, 0]), "version 1 of vfio-user"),
        (false, message(command::VERSION, 0, b"\0\0\0\0{\0"), "capabilities that make no sense"),
    ];
    for (at, (greeted, bytes, why)) in cases.into_iter().enumerate() {
        let mut stream = if greeted { server.greet() } else { server.connect() };
        stream.write_all(&bytes).expect("room");
        assert_eq!(stream.read(&mut [0; 99]).unwrap_or(0), 0, "the connection ends");
        assert!(server.end(at).contains(why), "{why}: {}", server.end(at));
    }
}

#[test]
fn a_client_that_reads_no_replies_waits_and_loses_none() {
    let server = Server::start();
    let mut stream = server.greet();
    let mut sender = stream.try_clone().expect("descriptors");
    let count = 200;
    let thread = std::thread::spawn(move || {
        for _ in 0..count {
            let body = access(0, 0, 4096, &[]);
            sender.write_all(&message(command::REGION_READ, 0, &body)).expect("room");
        }
    });
    while server.full.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    for _ in 0..count {
        let (error, body) = reply(&mut stream);
        assert_eq!((error, body.len()), (0, 16 + 4096));
    }
    thread.join().expect("it sent all");
}

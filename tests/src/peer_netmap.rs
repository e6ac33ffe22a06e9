//! A client process that is a netmap program.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use client::Error;
use harness::frames::{Tally, announcement, fill};
use harness::netmap::Descriptor;
use harness::role::{At, Receive, Report, Resume, Send};
use protocol::Bind;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType,
};

use crate::{end_of_stdin, say};

fn bind(at: &At) -> Result<Descriptor, Error> {
    let mut bind = Bind::new(at.port.parse()?);
    (bind.tx_slots, bind.rx_slots) = (at.slots, at.slots);
    (bind.tx_rings, bind.rx_rings) = (at.rings, at.rings);
    Descriptor::bind(&at.dir, bind)
}

pub fn send(send: &Send) -> Result<Report, Error> {
    use std::sync::atomic::Ordering;
    let ended = end_of_stdin();
    let port = bind(&send.at)?;
    say(&Report::Ready);
    let (mut seq, mut frame) = (0, Vec::new());
    let end = send.count.unwrap_or(u64::MAX);
    while seq < end && !ended.load(Ordering::Relaxed) {
        let turn = usize::try_from(seq % send.lens.len() as u64).unwrap_or(0);
        fill(&mut frame, send.to, send.stream, seq, send.lens[turn]);
        port.send(&frame)?;
        seq += 1;
        if seq.is_multiple_of(send.batch.max(1) as u64) {
            port.txsync()?;
        }
    }
    port.txsync()?;
    while !port.binding().rings().is_drained() {
        std::thread::yield_now();
        port.txsync()?;
    }
    Ok(Report::Sent(seq))
}

pub fn receive(receive: &Receive) -> Result<Report, Error> {
    let port = bind(&receive.at)?;
    receive_on(&port, receive.station, receive.count)
}

fn receive_on(
    port: &Descriptor,
    station: Option<u32>,
    count: Option<u64>,
) -> Result<Report, Error> {
    use std::sync::atomic::Ordering;
    const QUIET: Duration = Duration::from_millis(50);
    let ended = end_of_stdin();
    if let Some(station) = station {
        port.send(&announcement(station))?;
        port.txsync()?;
    }
    say(&Report::Ready);
    let (mut tally, mut scratch) = (Tally::default(), Vec::new());
    while count.is_none_or(|count| tally.frames() < count) {
        if let Some(frame) = port.receive(QUIET)? {
            tally.count(&frame, &mut scratch);
        } else if ended.load(Ordering::Relaxed) {
            break;
        }
    }
    port.rxsync()?;
    Ok(Report::Received(tally))
}

/// Gets a descriptor from the test and receives on it.
pub fn resume(resume: &Resume) -> Result<Report, Error> {
    let port = Descriptor::resume(&resume.at.dir, receive_fd(&resume.from))?;
    receive_on(&port, None, resume.count)
}

/// Receives a descriptor over a socket at `path`.
fn receive_fd(path: &Path) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None);
    let socket = socket.expect("descriptors");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("short")).expect("a listener");
    let (mut text, mut space) =
        ([0; 8], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .expect("a message");
    let fds = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.expect("a descriptor beside it")
}

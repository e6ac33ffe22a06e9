//! Doorbells: the system calls of this crate.
//!
//! A doorbell is a pipe and not an eventfd, because the two ends of a pipe are two open file
//! descriptions. A process that holds an eventfd can read it, fill it, or change its blocking mode
//! for all holders: a client could put a worker to sleep for ever, or block it in `write`. With a
//! pipe, each side changes only its own end, and the end of file tells a client that the daemon is
//! gone.

pub mod aio;
pub mod packet;
pub mod tun;
pub mod uring;
pub mod vhost;
pub mod write_list;
pub mod xdp;

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use ring::kick::{Decoder, encode};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use switch::Wake;

/// A worker's doorbell: clients write port numbers to it, and the worker reads them.
///
/// The worker also watches ports that have a descriptor of their own, level-triggered, so that
/// nothing needs to be armed and no event is missed. Without such ports, it waits in a `read` of
/// the pipe.
#[derive(Debug)]
pub struct Doorbell {
    blocking: OwnedFd,
    polled: OwnedFd,
    writer: OwnedFd,
    decoder: Cell<Decoder>,
    /// The epoll set of the pipe and the watched descriptors.
    epoll: OwnedFd,
    watched: Cell<u32>,
}

/// The ports that rang.
#[derive(Debug, Default)]
pub struct Rung {
    /// The numbers that clients wrote.
    pub numbers: Vec<u32>,
    /// The numbers of watched ports that are ready.
    pub ready: Vec<u32>,
}

/// The pipe's number in the epoll set: no port has it.
const PIPE: u64 = u64::MAX;
/// The most watched descriptors of one report.
const EVENTS: usize = 64;

impl Doorbell {
    /// A new doorbell.
    ///
    /// # Errors
    /// No descriptors left, or no `/proc`.
    pub fn new() -> io::Result<Self> {
        let (blocking, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&writer)?;
        let polled = reopen(&blocking, OpenOptions::new().read(true))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(PIPE);
        epoll::add(&epoll, &polled, data, epoll::EventFlags::IN)?;
        let (decoder, watched) = (Cell::default(), Cell::default());
        Ok(Self { blocking, polled, writer, decoder, epoll, watched })
    }

    /// Watches a descriptor: `number` is ready whenever `fd` is readable or has an error, until it
    /// is closed or [unwatched](Doorbell::unwatch).
    ///
    /// # Errors
    /// No memory, or too many watches.
    pub fn watch(&self, fd: BorrowedFd<'_>, number: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        self.watched.set(self.watched.get() + 1);
        Ok(())
    }

    /// Ends a watch; `fd`, unless it has been closed.
    pub fn unwatch(&self, fd: Option<BorrowedFd<'_>>) {
        self.watched.set(self.watched.get() - 1);
        if let Some(fd) = fd {
            // The call fails if the descriptor is not watched any more.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// The daemon's own writing end.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn ringer(&self) -> io::Result<Ringer> {
        reopen(&self.writer, OpenOptions::new().write(true)).map(Ringer)
    }

    /// Waits for a ring, then reports the ports. Returns `false` if a client writes garbage or too
    /// much, so that other clients' numbers may be lost.
    pub fn wait(&self, rung: &mut Rung) -> bool {
        if self.watched.get() == 0 {
            return self.read(&self.blocking, &mut rung.numbers);
        }
        self.look(rung, None)
    }

    /// [`Doorbell::wait`] without waiting.
    pub fn poll(&self, rung: &mut Rung) -> bool {
        if self.watched.get() == 0 {
            return self.read(&self.polled, &mut rung.numbers);
        }
        self.look(rung, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    fn look(&self, rung: &mut Rung, timeout: Option<&Timespec>) -> bool {
        let mut space = [MaybeUninit::uninit(); EVENTS];
        // A signal interrupted the call; the caller tries again.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, timeout) else { return true };
        let mut clean = true;
        for event in events {
            match u32::try_from(event.data.u64()) {
                Ok(number) => rung.ready.push(number),
                Err(_) => clean = self.read(&self.polled, &mut rung.numbers),
            }
        }
        clean
    }

    fn read(&self, fd: &OwnedFd, found: &mut Vec<u32>) -> bool {
        let mut bytes = [0; 256];
        let count = loop {
            match rustix::io::read(fd, &mut bytes[..]) {
                Ok(count) => break count,
                Err(Errno::INTR) => {}
                Err(_) => break 0,
            }
        };
        let mut decoder = self.decoder.take();
        found.extend(bytes[..count].iter().filter_map(|&byte| decoder.feed(byte)));
        let garbage = decoder.take_garbage();
        self.decoder.set(decoder);
        count < bytes.len() && !garbage
    }
}

/// A writing end inside the daemon.
#[derive(Debug)]
pub struct Ringer(OwnedFd);

impl Ringer {
    /// A writing end for one client. It is an open file description of its own, so the client
    /// cannot change another one's mode.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn client_end(&self) -> io::Result<OwnedFd> {
        reopen(&self.0, OpenOptions::new().write(true))
    }

    /// Writes a number to the doorbell.
    pub fn ring(&self, number: u32) {
        write_or_skip(&self.0, &encode(number));
    }
}

/// The daemon's end of a client's doorbell.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A doorbell and its two ends: the client's, for reading, and the daemon's.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<(OwnedFd, Self)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // One page is enough for single bytes, and the kernel limits each user's pages of pipes.
        fcntl_setpipe_size(&write, 4096)?;
        set_nonblocking(&write)?;
        Ok((read, Self(write)))
    }

    /// A writing end for another process, which is an open file description of its own.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn other_end(&self) -> io::Result<OwnedFd> {
        reopen(&self.0, OpenOptions::new().write(true))
    }
}

impl Waker {
    /// Whether no process can be woken by it any more.
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        // Without requested events, poll reports only the error of a pipe without readers.
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// The doorbells of all clients that hold a port.
#[derive(Debug)]
pub struct Wakers(pub Vec<Arc<Waker>>);

impl Wake for Wakers {
    fn wake(&self) {
        self.0.iter().for_each(|waker| waker.wake());
    }
}

impl Wake for Waker {
    /// A full pipe needs no more bytes: the client has been woken many times over.
    fn wake(&self) {
        write_or_skip(&self.0, &[0]);
    }
}

/// A new, non-blocking open file description of a pipe's end.
fn reopen(fd: &OwnedFd, options: &mut OpenOptions) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(options.custom_flags(flags.bits().cast_signed()).open(path)?.into())
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// Writes unless the doorbell is full or its other end is closed; it needs no ring then.
fn write_or_skip(fd: &OwnedFd, bytes: &[u8]) {
    while rustix::io::write(fd, bytes) == Err(Errno::INTR) {}
}

/// Whether the kernel takes UDP segmentation behind a virtio-net header (Linux 6.2).
#[must_use]
pub fn knows_datagram_runs() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    [numbers.next(), numbers.next()] >= [Some(6u32), Some(2)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn numbers_arrive_from_every_end_even_between_garbage() {
        let bell = Doorbell::new().expect("descriptors");
        let ringer = bell.ringer().expect("descriptors");
        let client = ringer.client_end().expect("descriptors");
        rustix::io::write(&client, &[1, 0x82, 3]).expect("room");
        rustix::io::write(&client, &encode(7)).expect("room");
        ringer.ring(9);
        let mut found = Rung::default();
        assert!(!bell.wait(&mut found), "garbage is noticed");
        assert_eq!(found.numbers, [7, 9]);
        found.numbers.clear();
        assert!(bell.poll(&mut found));
        assert_eq!(found.numbers, []);
    }

    #[test]
    fn what_is_watched_is_ready_as_long_as_it_is_readable() {
        let bell = Doorbell::new().expect("descriptors");
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("descriptors");
        bell.watch(read.as_fd(), 5).expect("memory");
        bell.ringer().expect("descriptors").ring(9);
        let mut found = Rung::default();
        assert!(bell.wait(&mut found));
        assert_eq!((&found.numbers[..], &found.ready[..]), (&[9][..], &[][..]));
        rustix::io::write(&write, b"x").expect("room");
        found = Rung::default();
        assert!(bell.wait(&mut found) && bell.poll(&mut found));
        assert_eq!(found.ready, [5, 5]);
        bell.unwatch(Some(read.as_fd()));
        found = Rung::default();
        assert!(bell.poll(&mut found));
        assert_eq!((found.numbers, found.ready), (vec![], vec![]));
    }

    #[test]
    fn what_a_client_does_to_its_end_is_not_seen_by_others() {
        let bell = Doorbell::new().expect("descriptors");
        let ringer = bell.ringer().expect("descriptors");
        let (hostile, honest) = (ringer.client_end(), ringer.client_end());
        let (hostile, honest) = (hostile.expect("descriptors"), honest.expect("descriptors"));
        rustix::fs::fcntl_setfl(&hostile, OFlags::empty()).expect("ours");
        assert!(rustix::fs::fcntl_getfl(&honest).expect("ours").contains(OFlags::NONBLOCK));
        assert_eq!(rustix::io::read(&hostile, &mut [0u8; 4]), Err(Errno::BADF));
    }

    #[test]
    fn all_holders_are_woken_and_a_deserted_doorbell_is_noticed() {
        let pipes = [0, 1].map(|_| Waker::new().expect("descriptors"));
        let [(first, a), (second, b)] = pipes.map(|(read, waker)| (read, Arc::new(waker)));
        Wakers(vec![a.clone(), b.clone()]).wake();
        for read in [&first, &second] {
            assert_eq!(rustix::io::read(read, &mut [0u8; 4]), Ok(1));
        }
        drop(first);
        assert_eq!([a, b].map(|waker| waker.is_deserted()), [true, false]);
    }

    #[test]
    fn a_full_or_deserted_doorbell_does_not_block() {
        let (read, waker) = Waker::new().expect("descriptors");
        (0..10_000).for_each(|_| waker.wake());
        drop(read);
        waker.wake();
    }
}

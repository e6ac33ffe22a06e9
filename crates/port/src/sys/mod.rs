//! Doorbells: the system calls of this crate.
//!
//! A doorbell is a pipe and not an eventfd, because the two ends of a pipe are two open file
//! descriptions. Whoever holds an eventfd can read it empty, fill it up, or change its blocking
//! mode under the other side; a client could put a worker to sleep for ever, or block it in
//! `write`. With a pipe each side changes only its own end, and the end of file tells a client
//! that the daemon is gone.

pub mod aio;
pub mod outbox;
pub mod packet;
pub mod tun;
pub mod uring;
pub mod vhost;
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

/// A worker's doorbell: any number of clients write port numbers, the worker reads them.
///
/// Ports that have a descriptor of their own are watched too, level-triggered: nothing is to be
/// armed, and nothing can be missed. While there are none, waiting is a `read` of the pipe.
#[derive(Debug)]
pub struct Doorbell {
    blocking: OwnedFd,
    polled: OwnedFd,
    writer: OwnedFd,
    decoder: Cell<Decoder>,
    /// The pipe and the descriptors that are watched.
    epoll: OwnedFd,
    watched: Cell<u32>,
}

/// Who rang.
#[derive(Debug, Default)]
pub struct Rung {
    /// Numbers that clients wrote.
    pub numbers: Vec<u32>,
    /// Numbers of watched ports that have something.
    pub ready: Vec<u32>,
}

/// What the pipe is called among the watched descriptors: no port has this number.
const PIPE: u64 = u64::MAX;
/// Watched descriptors that are reported at once.
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

    /// From now on `number` is ready whenever `fd` is readable or in trouble, until it is closed
    /// or [unwatched](Doorbell::unwatch).
    ///
    /// # Errors
    /// No memory, or too many watches.
    pub fn watch(&self, fd: BorrowedFd<'_>, number: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number.into());
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?;
        self.watched.set(self.watched.get() + 1);
        Ok(())
    }

    /// Takes one watch back; `fd`, unless it has been closed.
    pub fn unwatch(&self, fd: Option<BorrowedFd<'_>>) {
        self.watched.set(self.watched.get() - 1);
        if let Some(fd) = fd {
            // One that is not watched any more needs no unwatching.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// A writing end for the daemon itself.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn ringer(&self) -> io::Result<Ringer> {
        reopen(&self.writer, OpenOptions::new().write(true)).map(Ringer)
    }

    /// Waits until somebody rings, then reports who did. `false`: somebody writes too much or
    /// nonsense, and the numbers of others may not have fitted.
    pub fn wait(&self, rung: &mut Rung) -> bool {
        if self.watched.get() == 0 {
            return self.read(&self.blocking, &mut rung.numbers);
        }
        self.look(rung, None)
    }

    /// Reports who rang, without waiting; otherwise as [`Doorbell::wait`].
    pub fn poll(&self, rung: &mut Rung) -> bool {
        if self.watched.get() == 0 {
            return self.read(&self.polled, &mut rung.numbers);
        }
        self.look(rung, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    fn look(&self, rung: &mut Rung, timeout: Option<&Timespec>) -> bool {
        let mut space = [MaybeUninit::uninit(); EVENTS];
        // A signal is as good as nothing: whoever waits tries again.
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
    /// A writing end for one client: a description of its own, so that nothing the client does
    /// to it touches another's.
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
    /// A doorbell with its two ends: the client's, which is read from, and ours.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<(OwnedFd, Self)> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // One page is plenty for single bytes, and pages of pipes are counted for each user.
        fcntl_setpipe_size(&write, 4096)?;
        set_nonblocking(&write)?;
        Ok((read, Self(write)))
    }

    /// A writing end for somebody else, a description of its own.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn other_end(&self) -> io::Result<OwnedFd> {
        reopen(&self.0, OpenOptions::new().write(true))
    }
}

impl Waker {
    /// Is nobody left who could be woken?
    #[must_use]
    pub fn is_deserted(&self) -> bool {
        // Asks for nothing: what remains is the error that a pipe without readers has.
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// The doorbells of all who hold a port.
#[derive(Debug)]
pub struct Wakers(pub Vec<Arc<Waker>>);

impl Wake for Wakers {
    fn wake(&self) {
        self.0.iter().for_each(|waker| waker.wake());
    }
}

impl Wake for Waker {
    /// A full pipe is as good: the client has been woken many times over.
    fn wake(&self) {
        write_or_skip(&self.0, &[0]);
    }
}

/// A new open file description of a pipe's end, non-blocking.
fn reopen(fd: &OwnedFd, options: &mut OpenOptions) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(options.custom_flags(flags.bits().cast_signed()).open(path)?.into())
}

fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// A doorbell that cannot be rung needs no ringing: it is full, or its other side is gone.
fn write_or_skip(fd: &OwnedFd, bytes: &[u8]) {
    while rustix::io::write(fd, bytes) == Err(Errno::INTR) {}
}

/// Does the kernel take runs of datagrams behind a virtio-net header? Linux does since 6.2.
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

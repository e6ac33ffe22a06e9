//! System calls of vhost-user ports: messages with descriptors, and eventfds.
//!
//! Frontend and daemon share one open file description of an eventfd, so a hostile frontend can
//! change its counter and its blocking mode. The worker therefore never reads kicks: its epoll set
//! reports each write, edge-triggered, whatever the counter is. It signals calls in the one way
//! that never blocks; see [`Call`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::sys::aio::Signals;
use crate::sys::doorbell::{at_leisure, is_eventfd};
use crate::sys::{PortBell, SlowCalls};

/// The most descriptors beside one message.
pub const FDS_MAX: usize = 8;

/// Receives bytes and the descriptors beside them, without blocking; 0 bytes: the peer has closed
/// the connection.
///
/// # Errors
/// `EAGAIN` if there is nothing to receive.
pub fn receive(from: impl AsFd, to: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match recvmsg(&from, &mut [IoSliceMut::new(to)], &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}

/// Sends all bytes, with a descriptor beside them. Answers are a few bytes, so a full buffer means
/// that the frontend does not read.
///
/// # Errors
/// The error of the system call, or that not all bytes were taken.
pub fn send(to: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.as_slice();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        match sendmsg(&to, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            sent => break sent?,
        }
    };
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Waits until one of the descriptors is readable or has an error, or until the timeout; says
/// which.
///
/// # Errors
/// No memory.
pub fn wait<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    timeout_ms: Option<u32>,
) -> io::Result<[bool; N]> {
    let present = fds.iter().flatten();
    let mut polled: Vec<_> = present.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = timeout_ms.map(|ms| Timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    });
    match rustix::event::poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
    Ok(fds.map(|fd| fd.is_some() && ready.next() == Some(true)))
}

/// An eventfd that only the daemon holds.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// A new eventfd.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable.
    pub fn set(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where the kicks of a port ring: at the worker that has it, if one has.
///
/// The worker says where that is, and has kicks ring no more where it was: the protocol thread may
/// be held up, and the port's number be another port's by then. That thread then takes them out
/// there, and has them ring anew. The worker holds the lock while it changes registrations, which
/// takes no lock of a frontend's; the protocol thread holds it in no system call.
#[derive(Debug)]
pub struct KickPlace {
    kicks: Mutex<Kicks>,
    /// Readable when the bell is another one.
    moved: Event,
}

#[derive(Debug, Default)]
struct Kicks {
    bell: Option<PortBell>,
    /// The eventfds that ring there. A [`Kick`] has each, too, and drops its own last.
    ringing: Vec<Arc<OwnedFd>>,
}

impl KickPlace {
    /// No worker has the port.
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { kicks: Mutex::default(), moved: Event::new()? })
    }

    /// Has kicks ring there, as soon as the protocol thread looks, and nowhere else from now on.
    pub fn set(&self, bell: Option<PortBell>) {
        let mut kicks = self.lock();
        let ringing = std::mem::take(&mut kicks.ringing);
        if let Some(before) = std::mem::replace(&mut kicks.bell, bell) {
            ringing.iter().for_each(|fd| before.mute(fd));
        }
        drop(ringing);
        drop(kicks);
        self.moved.set();
    }

    /// What the protocol thread waits for; it clears that before it looks.
    #[must_use]
    pub fn moved(&self) -> &Event {
        &self.moved
    }

    fn bell(&self) -> Option<PortBell> {
        self.lock().bell.clone()
    }

    /// Notes that an eventfd rings. `false`: the port is there no more.
    fn note(&self, bell: &PortBell, fd: &Arc<OwnedFd>) -> bool {
        let mut kicks = self.lock();
        let is_there = kicks.bell.as_ref() == Some(bell);
        if is_there {
            kicks.ringing.push(fd.clone());
        }
        is_there
    }

    fn forget(&self, fd: &Arc<OwnedFd>) {
        self.lock().ringing.retain(|ringing| !Arc::ptr_eq(ringing, fd));
    }

    fn lock(&self) -> MutexGuard<'_, Kicks> {
        self.kicks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The driver's kick of one queue, watched until this is dropped.
///
/// The frontend makes it slow to add its eventfd to the worker's set and to take it out, by
/// registering it elsewhere very often; a worker that has events waits meanwhile. So the protocol
/// thread does that, and takes the time.
#[derive(Debug)]
pub struct Kick {
    fd: Arc<OwnedFd>,
    place: Arc<KickPlace>,
    /// The bell that it rings, or rang until the port went.
    at: Option<PortBell>,
    slow: Arc<SlowCalls>,
}

impl Kick {
    /// Watches the eventfd.
    ///
    /// # Errors
    /// `EINVAL`: not an eventfd; no memory.
    pub fn new(fd: OwnedFd, place: &Arc<KickPlace>, slow: &Arc<SlowCalls>) -> io::Result<Self> {
        if !is_eventfd(&fd) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (fd, place, slow) = (Arc::new(fd), place.clone(), slow.clone());
        let mut kick = Self { fd, place, at: None, slow };
        kick.follow()?;
        Ok(kick)
    }

    /// Has the kick ring where the port is now. One that has come before rings there.
    ///
    /// # Errors
    /// No memory.
    pub fn follow(&mut self) -> io::Result<()> {
        let bell = self.place.bell();
        if self.at == bell {
            return Ok(());
        }
        self.leave();
        let Some(bell) = bell else { return Ok(()) };
        let (fd, place) = (&self.fd, &self.place);
        let watched = at_leisure(&self.slow, || {
            bell.watch_edges(fd)?;
            Ok::<_, io::Error>(place.note(&bell, fd))
        });
        self.at = Some(bell);
        if !watched? {
            // The port has gone on: its place says so, and this is called again.
            self.leave();
        }
        Ok(())
    }

    fn leave(&mut self) {
        if let Some(bell) = self.at.take() {
            self.place.forget(&self.fd);
            at_leisure(&self.slow, || bell.unwatch(&self.fd));
        }
    }
}

impl Drop for Kick {
    fn drop(&mut self) {
        // The eventfd would stay in the set for as long as the frontend has it.
        self.leave();
    }
}

/// The signal context of the process.
static SIGNALS: LazyLock<io::Result<Signals>> = LazyLock::new(Signals::new);

/// The interrupt of one queue's driver.
///
/// The kernel calls all that watch the eventfd in the call that signals it, also by asynchronous
/// I/O. A frontend can register its eventfd in very many epoll sets, so the time of each signal is
/// taken.
#[derive(Debug)]
pub struct Call {
    fd: OwnedFd,
    slow: Arc<SlowCalls>,
}

impl Call {
    /// Takes the eventfd that a frontend passed. All those of a port share what times them.
    ///
    /// # Errors
    /// `EINVAL`: not an eventfd.
    pub fn new(fd: OwnedFd, slow: &Arc<SlowCalls>) -> io::Result<Self> {
        if !is_eventfd(&fd) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        // Here, in the machine's thread: a confined worker may not make it.
        LazyLock::force(&SIGNALS);
        Ok(Self { fd, slow: slow.clone() })
    }

    /// Signals the driver. If the counter is full, the driver has been signalled already.
    pub fn tell(&self) {
        self.slow.time(|| self.signal());
    }

    fn signal(&self) {
        let told = SIGNALS.as_ref().is_ok_and(|signals| signals.give(&self.fd).is_ok());
        // Without asynchronous I/O, this can block if the frontend makes it (SECURITY.md).
        while !told && rustix::io::write(&self.fd, &1u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Doorbell;

    #[test]
    fn a_kick_follows_its_port_from_worker_to_worker() {
        let bells = [0, 1].map(|_| Doorbell::new().unwrap());
        let rung = || {
            let mut rung = [Vec::new(), Vec::new()];
            bells.iter().zip(&mut rung).for_each(|(bell, rung)| bell.poll(rung));
            rung
        };
        let place = Arc::new(KickPlace::new().unwrap());
        let slow = Arc::new(SlowCalls::unreported());
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let kick = || rustix::io::write(&event, &1_u64.to_ne_bytes()).unwrap();
        let mut ours = Kick::new(event.try_clone().unwrap(), &place, &slow).unwrap();
        kick();
        assert_eq!(rung(), [[0_u32; 0]; 2], "no worker has the port");
        for (at, other) in [(0, 1), (1, 0)] {
            place.set(Some(bells[at].bell(5)));
            (0..2).for_each(|_| ours.follow().unwrap());
            let found = rung();
            assert_eq!((&found[at][..], found[other].len()), (&[5][..], 0), "one came before");
            kick();
            assert_eq!(rung()[at], [5]);
        }
        let gone = bells[0].bell(5);
        place.set(None);
        kick();
        assert_eq!(rung(), [[0_u32; 0]; 2], "nor does it ring where the port was");
        assert!(!place.note(&gone, &ours.fd), "one that is added just then is taken out");
        place.set(Some(gone));
        ours.follow().unwrap();
        assert_eq!(rung()[0], [5], "the kick without a port");
        drop(ours);
        kick();
        assert_eq!(rung(), [[0_u32; 0]; 2]);
        assert!(place.lock().ringing.is_empty());
    }

    #[test]
    fn a_full_eventfd_made_blocking_holds_nobody_up() {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let call =
            Call::new(event.try_clone().unwrap(), &Arc::new(SlowCalls::unreported())).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&event, OFlags::empty()).unwrap();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            call.tell();
            let _ = done.send(());
        });
        is_done.recv_timeout(std::time::Duration::from_secs(10)).expect("it returns");
    }
}

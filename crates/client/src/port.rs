//! A port by its name: open it, send, receive, wait, reconnect.
//!
//! A [`Port`] is two halves, [`Sender`] and [`Receiver`], which may be split and live in two
//! threads. Each holds the rings of its direction ([`Tx`], [`Rx`]); all rings of a port share its
//! doorbells (`link`). The control connection belongs to the attachment: when port and
//! halves are dropped, or the process dies, it closes and the daemon detaches the port.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::name::PortName;
use protocol::{Attached, ErrorCode, Reply, Request};
use ring::RegionId;
use ring::extra::ExtraBufs;
use ring::user::{News, RxRing, TxRing};
use ring::wake::PortWake;

use crate::control::{Connection, ControlError, PortFds};
use crate::geometry::Geometry;
use crate::link::{Link, PortWakes};
use crate::memory::PortMemory;
use crate::nf::calls::Calls;
use crate::options::Options;
use crate::rx::WaitRx;
use crate::tx::WaitTx;
use crate::wait::{WaitPolicy, wait};
use crate::{Error, Lost, Rx, Stop, Tx, ptnet, sys};

impl Options {
    /// Opens the port `name`, creating switch and port where there are none.
    pub fn open(self, name: &str) -> Result<Port, Error> {
        let origin = Origin { name: name.parse()?, options: self };
        let (sender, receiver, memory) = origin.attach()?;
        Ok(Port { sender, receiver, origin, calls: Calls::default(), memory })
    }
}

/// Everything that is needed to open a port again.
#[derive(Clone, Debug)]
struct Origin {
    name: PortName,
    options: Options,
}

impl Origin {
    fn attach(&self) -> Result<(Sender, Receiver, Option<PortMemory>), Error> {
        let (attached, fds, connection) = match self.name.pci_address() {
            Some(address) => {
                let (attached, fds) = ptnet::attach(&self.name, address)?;
                (attached, fds, None)
            }
            None => {
                let connection = Connection::open(self.options.dir.as_deref())?;
                connection.hello(&self.options.introduction())?;
                let (attached, fds) = connection.attach(self.options.request(&self.name))?;
                (attached, fds, Some(connection))
            }
        };
        let Options { wait, stop, lends, .. } = &self.options;
        let file = lends.then(|| fds.region.try_clone()).transpose().map_err(Error::Map)?;
        let halves = halves(&attached, fds, connection, *wait, stop.clone())?;
        let (mut sender, receiver) = halves;
        let port = Geometry::new(&attached)?.port;
        let region = sender.tx(0).ring().region().clone();
        let memory = file.map(|file| PortMemory::new(file, &region, port, sender.link()));
        Ok((sender, receiver, memory))
    }

    /// Sleeps before the next attempt. `true`: the port is to stop.
    fn pause(&self, pause: Duration) -> bool {
        match &self.options.stop {
            Some(stop) => stop.wait(pause),
            None => {
                std::thread::sleep(pause);
                false
            }
        }
    }
}

/// Maps the region and makes the halves.
pub(crate) fn halves(
    attached: &Attached,
    fds: PortFds,
    connection: Option<Connection>,
    policy: WaitPolicy,
    stop: Option<Stop>,
) -> Result<(Sender, Receiver), Error> {
    let geometry = Geometry::new(attached)?;
    let region = fds.map(geometry.region).map_err(Error::Map)?;
    // No barrier of the worker's reaches a guest.
    let light = !fds.kick.is_device() && sys::has_barrier();
    let extra = ExtraBufs::new(&region, &geometry.port);
    let words = PortWakes {
        own: PortWake::new(&region, &geometry.port),
        peer: geometry.peer.as_ref().map(|peer| PortWake::new(&region, peer)),
    };
    let link = Arc::new(Link::new(fds, attached, words, extra, connection, stop)?);
    let tx = |i| {
        let mut ring = match &geometry.peer {
            Some(peer) => TxRing::pipe(&region, peer, i),
            None => TxRing::new(&region, &geometry.port, i),
        };
        if light {
            ring.allow_light();
        }
        Tx::new(ring, &link, policy)
    };
    let rx = |i| {
        let mut ring = RxRing::new(&region, &geometry.port, i);
        // The other end of a pipe is a client like this one, and runs no barrier.
        if light && geometry.peer.is_none() {
            ring.allow_light();
        }
        Rx::new(ring, &link, policy)
    };
    // A pipe sends into the other end's receive rings.
    let counts = geometry.peer.unwrap_or(geometry.port).counts();
    let tx_rings = if geometry.peer.is_some() { counts.rx_rings } else { counts.tx_rings };
    let sender = Sender { rings: (0..tx_rings).map(tx).collect(), link: link.clone(), policy };
    let rings = (0..counts.rx_rings).map(rx).collect();
    let news = News::new(&region, &geometry.port);
    let is_function = attached.function;
    Ok((sender, Receiver { rings, link: link.clone(), policy, next: 0, news, is_function }))
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// A frame on any receive ring.
    Rx,
    /// This many free slots on any transmit ring.
    Tx(u32),
}

/// The sending half of a port: its transmit rings. `sender.tx(0).send(frame)` sends a frame.
#[derive(Debug)]
pub struct Sender {
    rings: Vec<Tx>,
    link: Arc<Link>,
    policy: WaitPolicy,
}

impl Sender {
    /// Transmit ring `i`.
    ///
    /// # Panics
    /// If the port has no such ring.
    #[inline(always)]
    pub fn tx(&mut self, i: usize) -> &mut Tx {
        &mut self.rings[i]
    }

    /// The port's doorbells.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// How the port waits.
    pub(crate) fn policy(&self) -> WaitPolicy {
        self.policy
    }

    /// All transmit rings, for threads that take one each.
    #[must_use]
    pub fn into_rings(self) -> Vec<Tx> {
        self.rings
    }

    /// Number of transmit rings.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Waits until `count` slots of any ring are free. `false`: `timeout` is over.
    pub fn wait(&mut self, count: u32, timeout: Option<Duration>) -> Result<bool, Error> {
        self.rings.iter_mut().for_each(|tx| tx.begin_wait(count));
        wait(&mut WaitTx(&mut self.rings, count), &self.link, self.policy, timeout)
    }

    /// Waits until the switch has taken everything from all rings. `false`: `timeout` is over.
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        let limit = Limit::new(timeout);
        for tx in &mut self.rings {
            if !tx.drain(limit.left())? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl AsFd for Sender {
    /// The doorbell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The receiving half of a port: its receive rings.
#[derive(Debug)]
pub struct Receiver {
    pub(crate) rings: Vec<Rx>,
    pub(crate) link: Arc<Link>,
    policy: WaitPolicy,
    /// The ring to look at first, in rotation.
    next: usize,
    /// Whether other functions may follow this one now.
    pub(crate) news: News,
    /// Whether chains led to the port when it was opened.
    pub(crate) is_function: bool,
}

impl Receiver {
    /// Receive ring `i`.
    ///
    /// # Panics
    /// If the port has no such ring.
    #[inline(always)]
    pub fn rx(&mut self, i: usize) -> &mut Rx {
        &mut self.rings[i]
    }

    /// All receive rings, for threads that take one each.
    #[must_use]
    pub fn into_rings(self) -> Vec<Rx> {
        self.rings
    }

    /// Number of receive rings.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Replaces `to` by the next frame of any ring. `false`: there is none now.
    pub fn try_recv(&mut self, to: &mut Vec<u8>) -> Result<bool, Error> {
        let found = self.take_turns(|rx| rx.try_recv(to).map(|found| found.then_some(())))?;
        Ok(found.is_some())
    }

    /// Copies the next frame of any ring to `to`, as far as it fits; returns its whole length.
    /// `None`: there is none now.
    pub fn try_recv_into(&mut self, to: &mut [u8]) -> Result<Option<usize>, Error> {
        self.take_turns(|rx| rx.try_recv_into(to))
    }

    fn take_turns<T>(
        &mut self,
        mut take: impl FnMut(&mut Rx) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        for _ in 0..self.rings.len() {
            let taken = take(&mut self.rings[self.next])?;
            if taken.is_some() {
                return Ok(taken);
            }
            self.next = (self.next + 1) % self.rings.len();
        }
        Ok(None)
    }

    /// Replaces `to` by the next frame, after waiting for one.
    pub fn recv(&mut self, to: &mut Vec<u8>) -> Result<(), Error> {
        self.recv_timeout(to, None).map(drop)
    }

    /// Replaces `to` by the next frame, after waiting for one. `false`: `timeout` is over.
    pub fn recv_timeout(
        &mut self,
        to: &mut Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        let limit = Limit::new(timeout);
        while !self.try_recv(to)? {
            if !self.wait(limit.left())? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies the next frame to `to`, as far as it fits, after waiting for one; returns its whole
    /// length. `None`: `timeout` is over.
    pub fn recv_into_timeout(
        &mut self,
        to: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>, Error> {
        let limit = Limit::new(timeout);
        loop {
            let found = self.try_recv_into(to)?;
            if found.is_some() || !self.wait(limit.left())? {
                return Ok(found);
            }
        }
    }

    /// Waits for a frame on any ring. `false`: `timeout` is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        wait(&mut WaitRx(&mut self.rings), &self.link, self.policy, timeout)
    }
}

impl AsFd for Receiver {
    /// The doorbell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// An open port.
///
/// ```no_run
/// let mut port = client::Port::open("vale0:a")?;
/// port.send(&[&[0xff; 6][..], &[2; 54]].concat())?;
/// let mut frame = Vec::new();
/// port.recv(&mut frame)?;
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Debug)]
pub struct Port {
    /// The sending half: transmit rings.
    pub sender: Sender,
    /// The receiving half: receive rings.
    pub receiver: Receiver,
    origin: Origin,
    /// Which functions a function calls, see [`crate::nf`].
    pub(crate) calls: Calls,
    memory: Option<PortMemory>,
}

impl Port {
    /// Opens the port `name` with every default, creating switch and port where there are none.
    pub fn open(name: &str) -> Result<Self, Error> {
        Options::new().open(name)
    }

    /// The port's name.
    #[must_use]
    pub fn name(&self) -> &PortName {
        &self.origin.name
    }

    /// Transmit ring `i`.
    ///
    /// # Panics
    /// If the port has no such ring.
    #[inline(always)]
    pub fn tx(&mut self, i: usize) -> &mut Tx {
        self.sender.tx(i)
    }

    /// Receive ring `i`.
    ///
    /// # Panics
    /// If the port has no such ring.
    #[inline(always)]
    pub fn rx(&mut self, i: usize) -> &mut Rx {
        self.receiver.rx(i)
    }

    /// Both halves at once.
    #[inline(always)]
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.sender, &mut self.receiver)
    }

    /// Both halves, and which functions a function calls.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut Sender, &mut Receiver, &mut Calls) {
        (&mut self.sender, &mut self.receiver, &mut self.calls)
    }

    /// Both halves for good, for two threads. Both may sleep at the same time. They do not
    /// reconnect: when one says [`Lost`], open the port again.
    #[must_use]
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Number of transmit rings.
    #[must_use]
    pub fn tx_rings(&self) -> usize {
        self.sender.rings()
    }

    /// Number of receive rings.
    #[must_use]
    pub fn rx_rings(&self) -> usize {
        self.receiver.rings()
    }

    /// The memory that the buffers are in.
    #[must_use]
    pub fn region(&self) -> RegionId {
        self.sender.rings[0].region()
    }

    /// The extra buffers that [`Options::extra_bufs`] asked for. With one of them a frame is kept
    /// without a copy, and sent on later:
    ///
    /// ```no_run
    /// # let mut port = client::Options::new().extra_bufs(64).open("vale0:a")?;
    /// # port.wait(client::Interest::Rx, None)?;
    /// let mut kept = port.extra_bufs().take().expect("64 were asked for");
    /// let len = port.rx(0).frame(0).len();
    /// if port.rx(0).swap(0, &mut kept) {              // the frame is in `kept` now
    ///     port.rx(0).release(1)?;
    ///     println!("{:02x?}", &kept[..len]);          // ... any time later:
    ///     if port.tx(0).space() > 0 && port.tx(0).swap(0, &mut kept) {
    ///         port.tx(0).set(0, len.try_into().unwrap(), 0);
    ///         port.tx(0).submit(1)?;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// After a reconnect there are new ones; the old ones keep their contents.
    #[must_use]
    pub fn extra_bufs(&self) -> &Arc<ExtraBufs> {
        self.sender.link.extra_bufs()
    }

    /// Changes how all rings wait.
    pub fn set_wait_policy(&mut self, policy: WaitPolicy) {
        self.origin.options.wait = policy;
        (self.sender.policy, self.receiver.policy) = (policy, policy);
        self.sender.rings.iter_mut().for_each(|tx| tx.set_wait_policy(policy));
        self.receiver.rings.iter_mut().for_each(|rx| rx.set_wait_policy(policy));
    }

    /// Sends one frame, as a chain of slots where it is long, after waiting for room.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.persist(None, |port, _| port.tx(0).send(frame))
    }

    /// Sends one frame, after waiting for room. `false`: `timeout` is over.
    pub fn send_timeout(&mut self, frame: &[u8], timeout: Option<Duration>) -> Result<bool, Error> {
        self.persist(timeout, |port, left| port.tx(0).send_timeout(frame, left))
    }

    /// Sends one frame. `false`: there is no room for it now.
    pub fn try_send(&mut self, frame: &[u8]) -> Result<bool, Error> {
        self.tx(0).try_send(frame)
    }

    /// Sends all frames in batches, waiting for room. Returns their number.
    pub fn send_all<F: AsRef<[u8]>>(
        &mut self,
        frames: impl IntoIterator<Item = F>,
    ) -> Result<u64, Error> {
        let mut frames = frames.into_iter();
        let mut sent = 0;
        self.persist(None, |port, _| {
            port.tx(0).send_all(frames.by_ref().inspect(|_| sent += 1)).map(drop)
        })?;
        Ok(sent)
    }

    /// Replaces `to` by the next frame, its chain joined, after waiting for one.
    pub fn recv(&mut self, to: &mut Vec<u8>) -> Result<(), Error> {
        self.recv_timeout(to, None).map(drop)
    }

    /// Replaces `to` by the next frame, after waiting for one. `false`: `timeout` is over.
    pub fn recv_timeout(
        &mut self,
        to: &mut Vec<u8>,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        self.persist(timeout, |port, left| port.receiver.recv_timeout(to, left))
    }

    /// Replaces `to` by the next frame. `false`: there is none now.
    pub fn try_recv(&mut self, to: &mut Vec<u8>) -> Result<bool, Error> {
        self.receiver.try_recv(to)
    }

    /// Copies the next frame to `to`, as far as it fits; returns its whole length. `None`: there
    /// is none now.
    pub fn try_recv_into(&mut self, to: &mut [u8]) -> Result<Option<usize>, Error> {
        self.receiver.try_recv_into(to)
    }

    /// Copies the next frame to `to`, as far as it fits, after waiting for one; returns its whole
    /// length. `None`: `timeout` is over.
    pub fn recv_into_timeout(
        &mut self,
        to: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>, Error> {
        self.persist(timeout, |port, left| port.receiver.recv_into_timeout(to, left))
    }

    /// Waits for frames or for room. `false`: `timeout` is over.
    pub fn wait(&mut self, what: Interest, timeout: Option<Duration>) -> Result<bool, Error> {
        self.persist(timeout, |port, left| match what {
            Interest::Rx => port.receiver.wait(left),
            Interest::Tx(count) => port.sender.wait(count, left),
        })
    }

    /// Waits until the switch has taken everything that was sent. `false`: `timeout` is over.
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.sender.drain(timeout)
    }

    /// Asks for a kick on the doorbell ([`AsFd`]), for a program with an event loop of its own:
    ///
    /// ```text
    ///  loop:  if arm(what) { epoll_wait(.. doorbell readable ..) }
    ///         disarm()?;             // ends with Lost when the other side is gone
    ///         use the rings until they have nothing more
    /// ```
    ///
    /// `false`: it is ready already, do not sleep. Several interests may be armed.
    #[must_use]
    pub fn arm(&mut self, what: Interest) -> bool {
        use crate::wait::Waits;
        match what {
            Interest::Rx => WaitRx(&mut self.receiver.rings).arm(),
            Interest::Tx(count) => WaitTx(&mut self.sender.rings, count).arm(),
        }
    }

    /// Cancels all requests and empties the doorbell.
    pub fn disarm(&mut self) -> Result<(), Lost> {
        use crate::wait::Waits;
        WaitRx(&mut self.receiver.rings).disarm();
        WaitTx(&mut self.sender.rings, 0).disarm();
        self.sender.link.acknowledge()
    }

    /// The port's memory, if [`Options::lends`] was set. A reconnect changes it.
    #[must_use]
    pub fn memory(&self) -> Option<&PortMemory> {
        self.memory.as_ref()
    }

    /// Whether the port is an instance of a service in a switch with chains, as of its opening.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.receiver.is_function
    }

    /// Rings the switch's doorbell for a guest that has published slots.
    pub fn kick(&self) -> Result<(), Lost> {
        self.sender.link.kick()
    }

    /// Takes the switch's wake-ups for a guest out of the doorbell.
    pub fn acknowledge(&self) -> Result<(), Lost> {
        self.sender.link.acknowledge()
    }

    /// Checks that the daemon still holds the other side. One system call; waits do it themselves.
    pub fn check(&self) -> Result<(), Lost> {
        self.sender.link.check()
    }

    /// Asks the daemon why the other side is gone, after [`Lost`]: [`Error::Deleted`] or
    /// [`Error::Lost`]. If the port still exists, it is detached.
    #[must_use]
    pub fn why_lost(&self) -> Error {
        self.sender.link.why()
    }

    /// The daemon's socket.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        protocol::paths::client_socket(self.origin.options.dir.as_deref())
    }

    /// Makes a call on its control connection.
    pub(crate) fn call(&self, request: Request) -> Result<Reply, ControlError> {
        self.sender.link.call(request).map(|(reply, _)| reply)
    }

    /// How often the switch re-synchronised a ring of this port. Waits report a change once, as
    /// [`Error::Resynced`].
    #[must_use]
    pub fn resyncs(&self) -> u32 {
        let tx = self.sender.rings.iter().map(Tx::resyncs);
        tx.chain(self.receiver.rings.iter().map(Rx::resyncs)).fold(0, u32::wrapping_add)
    }

    /// Opens the port again under its name, after [`Lost`], trying until `timeout`. A deleted port
    /// is not created again: [`Error::Deleted`]. Frames that the client had not read are lost.
    pub fn reconnect(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        const FIRST_PAUSE: Duration = Duration::from_millis(5);
        const LONGEST_PAUSE: Duration = Duration::from_millis(500);
        if let deleted @ Error::Deleted(_) = self.why_lost() {
            return Err(deleted);
        }
        let (limit, mut pause) = (Limit::new(timeout), FIRST_PAUSE);
        self.sender.link.detach();
        loop {
            let error = match self.origin.attach() {
                Ok((sender, receiver, memory)) => {
                    (self.sender, self.receiver, self.memory) = (sender, receiver, memory);
                    self.calls = Calls::default();
                    return Ok(());
                }
                Err(error) => error,
            };
            let left = limit.left().unwrap_or(pause);
            if !may_pass(&error) || left.is_zero() {
                return Err(error);
            }
            if self.origin.pause(pause.min(left)) {
                return Err(Error::Stopped);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Makes a blocking call; if the options say so, reconnects and repeats it. If no daemon
    /// answers before the time is over, returns the default, as a call that found nothing: the next
    /// one tries again.
    pub(crate) fn persist<T: Default>(
        &mut self,
        timeout: Option<Duration>,
        mut call: impl FnMut(&mut Self, Option<Duration>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let limit = Limit::new(timeout);
        loop {
            match call(self, limit.left()) {
                Err(Error::Lost(Lost)) if self.origin.options.reconnect => {}
                result => return result,
            }
            match self.reconnect(limit.left()) {
                Err(error) if may_pass(&error) => return Ok(T::default()),
                result => result?,
            }
        }
    }
}

impl AsFd for Port {
    /// The doorbell: poll it for reading after [`Port::arm`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sender.link.as_fd()
    }
}

impl AsRawFd for Port {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Whether another attempt may succeed.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Control(ControlError::Refused(failure)) => {
            // The new daemon may not have created the port yet, or the old one not released it.
            matches!(failure.code, ErrorCode::InUse | ErrorCode::NotFound)
        }
        Error::Control(error) => matches!(
            error,
            ControlError::NoDaemon(_) | ControlError::Lost(_) | ControlError::Timeout(_)
        ),
        _ => false,
    }
}

/// A timeout that several calls share.
pub(crate) struct Limit(Option<Instant>);

impl Limit {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

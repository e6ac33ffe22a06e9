//! TAPs: the host's stack, a namespace's, or a program's that wants one.
//!
//! Each frame is one `read` or one `write`, behind a header that says what is left to do to it: the
//! host's stack hands out runs of segments of up to 64 KiB, and takes them. A TAP that is made for
//! a port goes with it; one that was there before (`ip tuntap add`) is opened, and stays. What is
//! made for a namespace is made here and moved there: whoever holds a TAP of another namespace
//! would keep that alive. Somebody who has the right may also open a TAP and hand it over.
//!
//! A TAP may have several queues. The kernel sends what belongs to a conversation by the queue that
//! the other side of it has used last, and by any before that. Which we use depends on who talks
//! to whom alone, so frames of a conversation stay in order.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ring::plain::{FRAMES, Intake};
use ring::put::{ETHERNET, FRAME_MAX};
use ring::umem::delivered;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use switch::batch::{Batch, Delivery};
use switch::offload::{Offloads, VNET_LEN, Vnet};
use switch::{Adapter, DropReason, Drops, Sent};

use super::netlink::{Change, Interface, Netlink};
use super::strangers::disbelieve;
use super::{HostError, Link, State, check_name, namespace, system, write_out};
use crate::sys::Waker;
use crate::sys::bpf::Attached;
use crate::sys::tun::{self, About, HEADER, Places};

/// Bytes of a frame from which on it is cheaper to tell the kernel where its pieces lie than to put
/// them together.
const LONG: usize = 4096;
/// A TAP is read and written in order.
const NO_PLACE: u64 = u64::MAX;
/// What is longer, with its header, than any frame.
const LONGER: usize = HEADER + FRAME_MAX as usize + 1;

/// What a TAP is to be.
#[derive(Clone, Debug, Default)]
pub struct TapSpec {
    /// Its name.
    pub name: String,
    /// Its MTU, if it is to be set.
    pub mtu: Option<u32>,
    /// Its address, likewise.
    pub mac: Option<[u8; 6]>,
    /// The namespace to move it to.
    pub namespace: Option<String>,
    /// An address of the host on it, with the length of the prefix.
    pub address: Option<(std::net::IpAddr, u8)>,
    /// How many queues it is to have; one, if not said.
    pub queues: Option<u16>,
    /// It is for somebody who must not change the host's routes: rather none than one by which
    /// that can be done.
    pub strict: bool,
}

/// Most queues of a TAP.
pub const QUEUES_MAX: u16 = 16;

/// An opened interface.
pub struct Opened {
    /// For the worker.
    pub adapter: Box<dyn Adapter>,
    /// What both know of it.
    pub link: Arc<Link>,
    /// As the kernel described it last.
    pub interface: Interface,
}

/// Opens a TAP, making it if there is none; where something fails, one that was made goes again.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open(spec: &TapSpec, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let (taps, interface) = rights(spec)?;
    open_with(taps, interface, spec.namespace.is_some(), bell)
}

/// Makes a port of a TAP that was opened, with its queues; `foreign`: in another namespace.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open_with(
    taps: Vec<OwnedFd>,
    interface: Interface,
    foreign: bool,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    make(taps, interface, foreign, false, bell)
}

/// `shared`: somebody else may have the queues open, too.
fn make(
    taps: Vec<OwnedFd>,
    interface: Interface,
    foreign: bool,
    shared: bool,
    bell: &Arc<Waker>,
) -> Result<Opened, HostError> {
    let link = Link::new(&interface, foreign, bell);
    if taps.len() > 1 {
        let _ = link.how.set(format!("{} queues", taps.len()));
    }
    let mut adapter = Tap::new(taps, Vec::new(), link.clone(), &interface.name)?;
    if shared {
        adapter.flags = ReadWriteFlags::NOWAIT;
    }
    Ok(Opened { adapter: Box::new(adapter), link, interface })
}

/// Makes a port of a TAP that somebody else has opened, with its queues.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn open_given(taps: Vec<OwnedFd>, bell: &Arc<Waker>) -> Result<Opened, HostError> {
    let mut all = taps.iter().map(|tap| tun::look(tap).map_err(|_| HostError::NotGivenTap));
    let about = all.next().ok_or(HostError::NotGivenTap)??;
    for other in all {
        if other? != about {
            return Err(HostError::GivenTaps);
        }
    }
    if !about.fits {
        return Err(HostError::GivenOtherwise(about.name));
    }
    let name = about.name.as_str();
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let here = netlink.find(name).map_err(system("look up", name))?;
    // One of that name and that address, which is a TAP: it is the one, or it is elsewhere.
    match here.filter(|here| here.driver == "tun" && here.mac == about.mac) {
        Some(here) => make(taps, here, false, true, bell),
        None => make(taps, elsewhere(&about), true, true, bell),
    }
}

/// What is known of a TAP in a namespace where we cannot look.
fn elsewhere(about: &About) -> Interface {
    /// The longest that a TAP takes.
    const MTU: u32 = 65_521;
    let (name, mac, driver) = (about.name.clone(), about.mac, "tun".to_owned());
    Interface { name, mac, driver, mtu: MTU, running: true, up: true, ethernet: true, index: 0 }
}

/// Gets what takes rights: the TAP, as it is to be, with its queues.
///
/// # Errors
/// [`HostError`], with what to do.
pub fn rights(spec: &TapSpec) -> Result<(Vec<OwnedFd>, Interface), HostError> {
    check_name(&spec.name)?;
    let name = spec.name.as_str();
    let target = spec.namespace.as_deref().map(namespace::open).transpose()?;
    let target = spec.namespace.as_deref().zip(target.as_ref());
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let there = match target {
        // Of one that moves, the name matters only where it goes.
        Some(_) => None,
        None => netlink.find(name).map_err(system("look up", name))?,
    };
    match &there {
        Some(there) if there.driver != "tun" => return Err(HostError::NotTap(name.to_owned())),
        Some(there) if !there.ethernet => return Err(HostError::IsTun(name.to_owned())),
        _ => {}
    }
    let made = there.is_none();
    let (taps, here) = attach_all(if target.is_some() { "uvala%d" } else { name }, spec, made)?;
    let index = netlink.find(&here).map_err(system("look up", name))?;
    let index = index.ok_or_else(|| HostError::Missing(name.to_owned()))?.index;
    if let Some((into, namespace)) = target {
        let moved = netlink.change(index, Change::Move(namespace.as_fd(), name));
        moved.map_err(|errno| match errno {
            Errno::EXIST => HostError::Taken(name.to_owned(), into.to_owned()),
            Errno::PERM => HostError::MayNotEnter(into.to_owned()),
            // A namespace, and none of a network.
            Errno::INVAL => namespace::none(into),
            errno => system("move", name)(errno.into()),
        })?;
    }
    let interface = namespace::within(target, || set_up(spec, made))?;
    Ok((taps, interface))
}

/// All queues of a TAP, and its name.
fn attach_all(
    template: &str,
    spec: &TapSpec,
    makes: bool,
) -> Result<(Vec<OwnedFd>, String), HostError> {
    let (name, count) = (spec.name.as_str(), spec.queues.unwrap_or(1));
    if !(1..=QUEUES_MAX).contains(&count) {
        return Err(HostError::TapQueues(QUEUES_MAX));
    }
    if count == 1 {
        let (tap, here) = attach(template, name, makes)?;
        return Ok((vec![tap], here));
    }
    let (first, here) = attach_with(template, name, makes, tun::attach_queue)?;
    let mut taps = vec![first];
    for _ in 1..count {
        taps.push(attach_with(&here, name, makes, tun::attach_queue)?.0);
    }
    Ok((taps, here))
}

pub(super) fn attach(
    template: &str,
    name: &str,
    makes: bool,
) -> Result<(OwnedFd, String), HostError> {
    attach_with(template, name, makes, tun::attach)
}

fn attach_with(
    template: &str,
    name: &str,
    makes: bool,
    attach: fn(&OwnedFd, &str) -> Result<String, Errno>,
) -> Result<(OwnedFd, String), HostError> {
    let own = || name.to_owned();
    let may_not = || {
        let user = rustix::process::geteuid().as_raw().to_string();
        HostError::MayNotTap(if makes { "make a TAP" } else { "open this TAP" }, own(), user)
    };
    let tap = tun::open().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => HostError::NoTun,
        std::io::ErrorKind::PermissionDenied => HostError::MayNotTun,
        _ => system("open /dev/net/tun for", name)(error),
    })?;
    let here = attach(&tap, template).map_err(|errno| match errno {
        Errno::PERM => may_not(),
        Errno::BUSY | Errno::TOOBIG => HostError::Busy(own()),
        // It was looked up before: it is a TAP, of another kind.
        Errno::INVAL if !makes => HostError::OneQueue(own()),
        Errno::INVAL => HostError::NotTap(own()),
        errno => system("open", name)(errno.into()),
    })?;
    Ok((tap, here))
}

/// Gives the TAP what it is to have. One that was made is set up; one that was there is left as it
/// was, but for what is asked.
fn set_up(spec: &TapSpec, made: bool) -> Result<Interface, HostError> {
    let name = spec.name.as_str();
    let netlink = Netlink::open().map_err(system("open netlink for", name))?;
    let look = || {
        let found = netlink.find(name).map_err(system("look up", name))?;
        found.ok_or_else(|| HostError::Missing(name.to_owned()))
    };
    let Interface { index, name: own_name, .. } = look()?;
    let sets_up = made || spec.address.is_some();
    // What is made for a namespace is its interface to the world, which may have routers.
    if sets_up && spec.namespace.is_none() {
        match disbelieve(&own_name) {
            // Root may do so, and may have shut us off from the settings.
            Err(_) if !spec.strict => {}
            done => done?,
        }
    }
    let failed = |what| {
        move |errno| match errno {
            Errno::PERM => HostError::MayNotChange(what, name.to_owned()),
            errno => system(what, name)(errno.into()),
        }
    };
    if let Some(mac) = spec.mac {
        netlink.change(index, Change::Mac(mac)).map_err(failed("set the address"))?;
    }
    if let Some(mtu) = spec.mtu {
        netlink.change(index, Change::Mtu(mtu)).map_err(|errno| match errno {
            Errno::INVAL | Errno::RANGE => {
                HostError::Mtu(name.to_owned(), mtu, "68 to 65521 is what a TAP takes")
            }
            errno => failed("set the MTU")(errno),
        })?;
    }
    if sets_up {
        netlink.change(index, Change::Up).map_err(failed("set up the link"))?;
    }
    if let Some((address, prefix)) = spec.address {
        netlink.add_address(index, address, prefix).map_err(|errno| match errno {
            Errno::ACCESS | Errno::OPNOTSUPP if address.is_ipv6() => {
                HostError::NoIpv6(name.to_owned())
            }
            errno => failed("add the address")(errno),
        })?;
    }
    look()
}

/// The worker's side of a TAP.
pub(super) struct Tap {
    /// Its queues. They are not closed here: the kernel does that for one interface at a time, and
    /// whoever changes another one keeps the worker waiting.
    queues: Vec<OwnedFd>,
    /// The interface is gone.
    over: bool,
    /// Readable when one of them is, where they are several.
    all: Option<OwnedFd>,
    /// Whether its descriptors block is for who has made them to say, at any time. We say it with
    /// each call where that is somebody else.
    flags: ReadWriteFlags,
    /// The queue to begin with.
    next: usize,
    accepts: Offloads,
    link: Arc<Link>,
    intake: Intake,
    write: Vec<u8>,
    places: Places,
    /// Attached as long as the TAP is a port.
    _programs: Vec<Attached>,
}

impl Tap {
    pub(super) fn new(
        queues: Vec<OwnedFd>,
        programs: Vec<Attached>,
        link: Arc<Link>,
        name: &str,
    ) -> Result<Self, HostError> {
        let intake = Intake::new(FRAMES, link.mtu() + super::HEADERS);
        let intake = intake.map_err(system("memory for", name))?;
        let failed = |errno: Errno| system("set up the offloads of", name)(errno.into());
        let accepts = tun::leave_unfinished(&queues[0]).map_err(failed)?;
        let all = if queues.len() > 1 { Some(super::watch_all(&queues)) } else { None };
        let all = all.transpose().map_err(|errno| system("watch", name)(errno.into()))?;
        let (write, places) = (Vec::with_capacity(LONG + HEADER), Places::new());
        Ok(Self {
            queues,
            over: false,
            all,
            flags: ReadWriteFlags::empty(),
            next: 0,
            accepts,
            link,
            intake,
            write,
            places,
            _programs: programs,
        })
    }

    fn write(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        let tap = match self.queues.len() {
            _ if self.over => return Err(DropReason::LinkDown),
            1 => &self.queues[0],
            count => {
                let frame = &batch.frames()[usize::from(delivery.frame)];
                &self.queues[batch.flow(frame) as usize % count]
            }
        };
        let (frame, head) = batch.outgoing(delivery);
        let bytes = delivered(frame, head) as usize;
        let written = if bytes < LONG {
            self.write.clear();
            write_out(batch, delivery, HEADER, &self.link, &mut self.write)?;
            let bytes = [IoSlice::new(&self.write)];
            again(|| pwritev2(tap, &bytes, NO_PLACE, self.flags).map(drop))
        } else {
            let left = batch.left(delivery);
            if !self.link.takes(left.map_or(bytes, |left| left.longest(bytes))) {
                return Err(DropReason::TooLong);
            }
            let mut header = [0; HEADER];
            header[..VNET_LEN].copy_from_slice(&left.map_or([0; VNET_LEN], Vnet::bytes));
            again(|| self.places.write(tap, &header, frame, &head, self.flags))
        };
        written.map(|()| bytes).map_err(|errno| match errno {
            // The interface is there, and knows better what can be made of the frame.
            Errno::INVAL => DropReason::Offload,
            errno => self.link.refused(errno),
        })
    }

    /// Reads one queue empty. `false`: there is no room for more, or no more of the turn is left,
    /// or the interface is gone.
    fn empty(&mut self, at: usize, left: &mut u32, batch: &mut Batch, drops: &mut Drops) -> bool {
        // Counted, so that nobody who sends what is refused has a turn for ever.
        while *left > 0 && batch.has_room() && self.intake.fits(FRAME_MAX as usize) {
            *left -= 1;
            let mut header = [0; HEADER];
            let mut room = [IoSliceMut::new(&mut header), IoSliceMut::new(self.intake.space())];
            match preadv2(&self.queues[at], &mut room, NO_PLACE, self.flags) {
                Ok(LONGER..) => drops.add(DropReason::TooLong, 1),
                Ok(len) => {
                    if let Err(why) = self.take(header, len, batch) {
                        drops.add(why, 1);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => {
                    self.link.seen(State::Gone);
                    self.over = true;
                    return false;
                }
            }
        }
        false
    }

    /// Takes a frame that was read, `len` bytes with its header.
    fn take(
        &mut self,
        header: [u8; HEADER],
        len: usize,
        batch: &mut Batch,
    ) -> Result<(), DropReason> {
        let bytes = len.checked_sub(HEADER).ok_or(DropReason::TooShort)?;
        let left = Vnet::read(*header.first_chunk().expect("it is longer"), bytes);
        let left = left.map_err(|_| DropReason::Offload)?;
        if bytes < ETHERNET {
            return Err(DropReason::TooShort);
        }
        let first = batch.frags().len();
        self.intake.take(bytes, batch.frags());
        batch.push_received(first, u32::try_from(bytes).expect("bounded"));
        left.into_iter().for_each(|left| batch.push_left(left));
        Ok(())
    }
}

/// Does it again as long as signals come between.
fn again(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

impl Adapter for Tap {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        let mut left = FRAMES;
        if self.over {
            return;
        }
        for _ in 0..self.queues.len() {
            let at = self.next;
            self.next = (at + 1) % self.queues.len();
            if !self.empty(at, &mut left, batch, drops) {
                return;
            }
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let sent = Sent::each(list, |delivery| self.write(batch, delivery));
        if sent.delivered.frames > 0 {
            self.link.seen(State::Up);
        }
        sent
    }

    fn accepts(&self) -> Offloads {
        self.accepts
    }

    fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.all.as_ref().or(self.queues.first()).map(AsFd::as_fd)
    }

    fn is_over(&self) -> bool {
        self.over
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // One that was there before stays, and the next program may know nothing of headers.
        self.queues.iter().take(1).for_each(tun::leave_finished);
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    use rustix::net::{recv, send, socketpair};
    use switch::TagAction;

    use super::*;

    /// A TAP of so many queues, and what the kernel has of each.
    fn with_queues(count: usize) -> (Tap, Vec<OwnedFd>) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = |_| socketpair(family, kind, SocketFlags::NONBLOCK, None).expect("two");
        let (queues, theirs) = (0..count).map(pair).unzip();
        let (_, bell) = Waker::new().expect("descriptors");
        let interface = Interface { mtu: 1500, ..Interface::default() };
        let tap = Tap {
            queues,
            over: false,
            all: None,
            flags: ReadWriteFlags::empty(),
            next: 0,
            accepts: Offloads::NONE,
            link: Link::new(&interface, false, &Arc::new(bell)),
            intake: Intake::new(FRAMES, 1518).expect("memory"),
            write: Vec::new(),
            places: Places::new(),
            _programs: Vec::new(),
        };
        (tap, theirs)
    }

    #[test]
    fn frames_that_are_refused_end_a_turn_too() {
        let (mut tap, theirs) = with_queues(1);
        for _ in 0..FRAMES + 10 {
            send(&theirs[0], &[0; HEADER + ETHERNET - 1], SendFlags::empty()).expect("room");
        }
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        tap.recv(&mut batch, &mut drops);
        assert_eq!(drops.get(DropReason::TooShort), FRAMES.into());
        tap.recv(&mut batch, &mut drops);
        assert_eq!(drops.get(DropReason::TooShort), u64::from(FRAMES) + 10);
    }

    #[test]
    fn a_tap_that_is_gone_is_closed_by_whom_the_port_is_given_to() {
        let (mut tap, theirs) = with_queues(2);
        // What is not open for reading cannot be read, like what is gone.
        tap.queues[1] = std::fs::File::create("/dev/null").expect("there is one").into();
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        tap.recv(&mut batch, &mut drops);
        assert!(tap.is_over() && tap.watched().is_some());
        assert_eq!((tap.link.state(), tap.queues.len()), (State::Gone, 2));
        send(&theirs[0], &[0; HEADER + ETHERNET], SendFlags::empty()).expect("room");
        tap.recv(&mut batch, &mut drops);
        assert_eq!((batch.frames().len(), drops.total()), (0, 0), "not looked at any more");
    }

    const BYTES: usize = 60;
    const CONVERSATION: usize = 35;
    const NUMBER: usize = 42;

    /// A UDP datagram of a conversation, and its number in that.
    fn datagram(conversation: u8, number: u8) -> [u8; BYTES] {
        let mut frame = [0; BYTES];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        (frame[CONVERSATION], frame[NUMBER]) = (conversation, number);
        frame
    }

    #[test]
    fn a_conversation_keeps_its_queue_and_others_have_theirs() {
        const QUEUES: usize = 4;
        // So that turns of the queues are no way to keep them apart.
        const CONVERSATIONS: u8 = 63;
        const NUMBERS: u8 = 4;
        let (mut tap, theirs) = with_queues(QUEUES);
        let mut intake = Intake::new(256, 1518).expect("memory");
        let mut batch = Batch::new(256);
        batch.restart(intake.region());
        for (number, conversation) in
            (0..NUMBERS).flat_map(|number| (0..CONVERSATIONS).map(move |c| (number, c)))
        {
            let first = batch.frags().len();
            intake.push(&[&datagram(conversation, number)], batch.frags());
            batch.push_received(first, u32::try_from(BYTES).expect("short"));
        }
        let all = 0..u16::from(CONVERSATIONS) * u16::from(NUMBERS);
        let list: Vec<_> = all.map(|frame| Delivery { frame, tag: TagAction::Keep }).collect();
        assert_eq!(tap.send(&batch, &list).delivered.frames, list.len() as u64);
        let mut seen = [None; CONVERSATIONS as usize];
        let mut conversations = [0; QUEUES];
        for (queue, theirs) in theirs.iter().enumerate() {
            let mut frame = [0; HEADER + BYTES];
            while recv(theirs, &mut frame[..], RecvFlags::empty()).is_ok() {
                let conversation = frame[HEADER + CONVERSATION];
                let number = frame[HEADER + NUMBER];
                let last = seen[usize::from(conversation)].replace((queue, number));
                conversations[queue] += u32::from(last.is_none());
                let expected = number.checked_sub(1).map(|before| (queue, before));
                assert_eq!(last, expected, "conversation {conversation}");
            }
        }
        let is_last =
            |last: &Option<(_, u8)>| last.is_some_and(|(_, number)| number + 1 == NUMBERS);
        assert!(seen.iter().all(is_last));
        assert!(conversations.iter().all(|count| *count >= 8), "{conversations:?}");
    }

    #[test]
    fn a_queue_that_is_never_empty_leaves_the_others_their_turn() {
        const QUEUES: usize = 4;
        let (mut tap, theirs) = with_queues(QUEUES);
        let message = |conversation| [&[0; HEADER][..], &datagram(conversation, 0)].concat();
        let quiet = QUEUES - 1;
        send(&theirs[quiet], &message(1), SendFlags::empty()).expect("room");
        let (mut batch, mut drops) = (Batch::new(256), Drops::default());
        let mut heard = false;
        for _ in 0..QUEUES {
            while send(&theirs[0], &message(0), SendFlags::empty()).is_ok() {}
            tap.recv(&mut batch, &mut drops);
            heard |= (0..batch.frames().len()).any(|frame| {
                let frame = u16::try_from(frame).expect("few");
                let mut bytes = Vec::new();
                batch.append(Delivery { frame, tag: TagAction::Keep }, &mut bytes);
                bytes[CONVERSATION] == 1
            });
        }
        assert!(heard && drops.total() == 0);
    }
}

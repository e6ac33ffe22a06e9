//! A local address and UDP port that VXLAN ports have together, each for networks of its own.
//!
//! ```text
//!                 ┌ program: VNI → index ┐      ┌────────────┐
//!   datagrams ──► │  SO_REUSEPORT group  │ ───► │ receiver 0 │ ──► inlet of port 0 ──► batch
//!                 └──────────────────────┘  │   └────────────┘        │ another port's VNI
//!                                           │   ┌────────────┐    mailbox of port 1
//!                                           └─► │ receiver 1 │ ──► inlet of port 1 ──► batch
//!                                               └────────────┘
//! ```
//!
//! # Theory of operation
//!
//! Each port has a socket of its own, so a flood of one network fills the queue of one port, and no
//! worker reads what another's port gets. The kernel chooses the socket by the VNI, with a
//! [program](crate::sys::steering). What has no VNI, or one that no port has, goes to the port that
//! has the address longest, which drops and counts it.
//!
//! The program is only a guide; the VNI that a port reads decides. Datagrams come to another port
//! of the address if
//!
//! - the kernel has joined datagrams of one flow into a message (`UDP_GRO`): it compares addresses
//!   and ports, and hosts choose the source port by the flow inside, whatever its network;
//! - a port has come or gone, and the kernel's group and program do not fit for a moment.
//!
//! So a port puts a datagram of another's VNI into that one's *mailbox*, whose bell (an eventfd)
//! wakes its worker. A mailbox takes datagrams of its port's remotes only, and is bounded
//! (`MAILBOX`): what finds no room is the loss of the port that it is for. Frames of a flow that
//! come both ways may change their order.
//!
//! The first socket is bound alone, so that the socket of another process makes it fail, and shares
//! the address while there are others. Then programs of the daemon's user could join that ask for
//! the address with `SO_REUSEPORT`, and would get what is theirs by the order of the group. This
//! order is the kernel's as long as a port's socket is closed with its port: no other process may
//! hold it longer. Threads that open and close ports keep the group, under a lock that no worker
//! takes. Workers look up owners of VNIs under a lock that is held for this and for changes of the
//! map, and for no system call.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use packet::vxlan::Vni;
use switch::{DropReason, Drops};

use crate::sys::new_event;
use crate::sys::steering::steer;
use crate::sys::udp::{self, Received};

/// Bytes that wait in a mailbox, where each datagram counts as [`LETTER`] more.
const MAILBOX: usize = 1 << 20;
const LETTER: usize = 64;

/// The addresses of a daemon's ports.
#[derive(Debug, Default)]
pub struct Addresses(BTreeMap<SocketAddr, Weak<Address>>);

impl Addresses {
    /// Binds a socket for these networks. No other port of the address may have one of them.
    /// `anywhere`: the host need not have the address yet.
    ///
    /// # Errors
    /// Another process has the address, or the host does not have it, or the system refused.
    pub fn join(
        &mut self,
        local: SocketAddr,
        vnis: Vec<Vni>,
        anywhere: bool,
    ) -> io::Result<(OwnedFd, Seat)> {
        self.0.retain(|_, address| address.strong_count() > 0);
        let known = self.0.get(&local).and_then(Weak::upgrade);
        let address = known.unwrap_or_else(|| Arc::new(Address::new(local)));
        self.0.insert(local, Arc::downgrade(&address));
        address.join(vnis, anywhere)
    }
}

/// An address with at least one port.
#[derive(Debug)]
struct Address {
    local: SocketAddr,
    group: Mutex<Group>,
    /// Written by threads that open and close ports, from the group; read by workers.
    owners: RwLock<BTreeMap<Vni, Arc<Mailbox>>>,
}

/// The sockets of an address.
#[derive(Debug, Default)]
struct Group {
    /// In the order of the kernel's group.
    members: Vec<Member>,
    next: u64,
}

#[derive(Debug)]
struct Member {
    /// Later ones have greater numbers.
    id: u64,
    /// A copy of the port's.
    socket: OwnedFd,
    vnis: Vec<Vni>,
    mailbox: Arc<Mailbox>,
}

impl Address {
    fn new(local: SocketAddr) -> Self {
        Self { local, group: Mutex::default(), owners: RwLock::default() }
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(self: &Arc<Self>, vnis: Vec<Vni>, anywhere: bool) -> io::Result<(OwnedFd, Seat)> {
        let mut group = self.group();
        let mailbox = Arc::new(Mailbox::new()?);
        if let [only] = &group.members[..] {
            udp::share(&only.socket, true)?;
        }
        let opened = udp::receiver(self.local, anywhere, !group.members.is_empty())
            .and_then(|receiver| Ok((receiver.try_clone()?, receiver)));
        let (socket, receiver) = opened.inspect_err(|_| drop(group.steer()))?;
        let id = group.next;
        group.next += 1;
        group.members.push(Member { id, socket, vnis, mailbox: mailbox.clone() });
        let published = self.publish(&group);
        // The seat leaves the group if the kernel takes no program.
        drop(group);
        let seat = Seat { address: self.clone(), id, mailbox };
        published.map(|()| (receiver, seat))
    }

    fn set(&self, id: u64, vnis: Vec<Vni>) -> io::Result<()> {
        let mut group = self.group();
        match group.members.iter_mut().find(|member| member.id == id) {
            Some(member) if member.vnis != vnis => member.vnis = vnis,
            _ => return Ok(()),
        }
        self.publish(&group)
    }

    fn leave(&self, id: u64) {
        let mut group = self.group();
        let Some(at) = group.members.iter().position(|member| member.id == id) else { return };
        // The last reference to the socket, unless its port still has it: the kernel, too, puts the
        // last member into its place.
        drop(group.members.swap_remove(at));
        if let Err(error) = self.publish(&group) {
            tracing::warn!("cannot steer datagrams of {}, which costs time: {error}", self.local);
        }
    }

    /// Tells workers and the kernel which VNIs the members have.
    fn publish(&self, group: &Group) -> io::Result<()> {
        let all = group.by_age().into_iter();
        let owners = all.flat_map(|(_, it)| it.vnis.iter().map(|&vni| (vni, it.mailbox.clone())));
        let mut owners = owners.collect();
        // What was there is freed without the lock.
        std::mem::swap(
            &mut *self.owners.write().unwrap_or_else(PoisonError::into_inner),
            &mut owners,
        );
        group.steer()
    }
}

impl Group {
    /// The members with their indexes, the oldest first. Where one that is about to leave and a
    /// later one have the same VNI, the later one gets it: it comes last into a map.
    fn by_age(&self) -> Vec<(u32, &Member)> {
        let mut all: Vec<_> = (0..).zip(&self.members).collect();
        all.sort_by_key(|(_, member)| member.id);
        all
    }

    fn steer(&self) -> io::Result<()> {
        let first = match &self.members[..] {
            [] => return Ok(()),
            [only] => return udp::share(&only.socket, false),
            [first, ..] => first,
        };
        let all = self.by_age();
        let oldest = all[0].0;
        let vnis = all.into_iter();
        let vnis = vnis.flat_map(|(at, it)| it.vnis.iter().map(move |vni| (vni.get(), at)));
        steer(&first.socket, &vnis.collect(), oldest)
    }
}

/// A port's place at its address, which it leaves when this is dropped, behind its receiver.
#[derive(Debug)]
pub struct Seat {
    address: Arc<Address>,
    id: u64,
    mailbox: Arc<Mailbox>,
}

/// A port's place at its address, for the thread that changes the port's networks.
#[derive(Clone, Debug)]
pub struct Place {
    address: Weak<Address>,
    id: u64,
}

impl Place {
    /// Sets the networks. No other port of the address may have one of them.
    ///
    /// # Errors
    /// The system refused: other ports hand datagrams over, more slowly.
    pub fn set(&self, vnis: Vec<Vni>) -> io::Result<()> {
        self.address.upgrade().map_or(Ok(()), |address| address.set(self.id, vnis))
    }
}

impl Seat {
    /// What changes the networks.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { address: Arc::downgrade(&self.address), id: self.id }
    }

    /// Puts a datagram into the mailbox of the port with its VNI; `false`: no other port has it.
    #[must_use]
    pub fn hand_over(&self, vni: Vni, from: IpAddr, datagram: &[u8]) -> bool {
        let owners = self.address.owners.read().unwrap_or_else(PoisonError::into_inner);
        let owner = owners.get(&vni).filter(|owner| !Arc::ptr_eq(owner, &self.mailbox)).cloned();
        drop(owners);
        owner.map(|owner| owner.put(from, datagram)).is_some()
    }

    /// Sets the hosts whose datagrams other ports hand over.
    pub fn set_remotes(&self, remotes: &[IpAddr]) {
        self.mailbox.lock().remotes = remotes.iter().copied().collect();
    }

    /// Readable when other ports have put something into this one's mailbox.
    #[must_use]
    pub fn bell(&self) -> &OwnedFd {
        &self.mailbox.bell
    }

    /// Whether other ports have put something into this one's mailbox.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.mailbox.waits.load(Ordering::Acquire)
    }

    /// Takes what is in the mailbox, in exchange for `letters`, which were read; counts what was
    /// not put in.
    pub fn collect(&self, letters: &mut Letters, drops: &mut Drops) {
        letters.clear();
        if self.has_mail() {
            self.mailbox.exchange(letters, drops);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.address.leave(self.id);
    }
}

/// Datagrams that came to the sockets of other ports.
#[derive(Debug)]
struct Mailbox {
    /// There is something to collect. Written under the lock: by the worker that puts the first in,
    /// and by that of the port, which takes all out. The latter reads it without: its acquire pairs
    /// with the release of the former.
    waits: AtomicBool,
    /// Readable while `waits` is set. Written and read under the lock, and never waited for.
    bell: OwnedFd,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    letters: Letters,
    /// Hosts whose datagrams are taken.
    remotes: BTreeSet<IpAddr>,
    /// How many found no room, and how many came from other hosts.
    lost: u64,
    strange: u64,
}

impl Mailbox {
    fn new() -> io::Result<Self> {
        let (letters, remotes) = (Letters::default(), BTreeSet::new());
        let queue = Mutex::new(Queue { letters, remotes, lost: 0, strange: 0 });
        Ok(Self { waits: AtomicBool::new(false), bell: new_event()?, queue })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, from: IpAddr, datagram: &[u8]) {
        let mut queue = self.lock();
        if !queue.remotes.contains(&from) {
            queue.strange += 1;
        } else if !queue.letters.put(from, datagram) {
            queue.lost += 1;
        }
        if !self.waits.swap(true, Ordering::Release) {
            // The counter is 0, so the kernel takes it.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    fn exchange(&self, read: &mut Letters, drops: &mut Drops) {
        let mut queue = self.lock();
        std::mem::swap(&mut queue.letters, read);
        drops.add(DropReason::NoRoom, std::mem::take(&mut queue.lost));
        drops.add(DropReason::VxlanRemote, std::mem::take(&mut queue.strange));
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        self.waits.store(false, Ordering::Release);
    }
}

/// Datagrams in order, each with the host that sent it.
#[derive(Debug)]
pub struct Letters {
    bytes: Vec<u8>,
    /// The sender of each, and where it begins.
    all: Vec<(IpAddr, usize)>,
    /// How many were read.
    read: usize,
}

impl Default for Letters {
    /// None, with memory that the kernel commits when it is used first.
    fn default() -> Self {
        let (bytes, all) = (Vec::with_capacity(MAILBOX), Vec::with_capacity(MAILBOX / LETTER));
        Self { bytes, all, read: 0 }
    }
}

impl Letters {
    fn put(&mut self, from: IpAddr, datagram: &[u8]) -> bool {
        let has_room = self.bytes.len() + self.all.len() * LETTER + datagram.len() <= MAILBOX;
        if has_room {
            self.all.push((from, self.bytes.len()));
            self.bytes.extend(datagram);
        }
        has_room
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.all.clear();
        self.read = 0;
    }

    /// The first that was not read.
    #[must_use]
    pub fn first(&self) -> Option<Received<'_>> {
        let &(from, start) = self.all.get(self.read)?;
        let end = self.all.get(self.read + 1).map_or(self.bytes.len(), |&(_, next)| next);
        let bytes = &self.bytes[start..end];
        Some(Received { from, bytes, segment: bytes.len().max(1) })
    }

    /// Goes on behind it.
    pub fn advance(&mut self) {
        self.read += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use packet::vxlan::header;
    use rustix::event::{PollFd, PollFlags, Timespec};
    use rustix::io::Errno;

    use super::*;
    use crate::sys::udp::Inbox;

    fn vni(number: u32) -> Vni {
        Vni::new(number).expect("24 bits")
    }

    /// An address of the loopback interface that other processes and tests do not use.
    fn local(port: u16) -> SocketAddr {
        let [low, high, ..] = std::process::id().to_le_bytes();
        SocketAddr::new(IpAddr::from([127, low, high, 250]), port)
    }

    fn seats<const N: usize>(local: SocketAddr, vnis: [u32; N]) -> [(OwnedFd, Seat); N] {
        let mut addresses = Addresses::default();
        vnis.map(|it| addresses.join(local, vec![vni(it)], false).expect("a socket"))
    }

    /// The VNIs of the datagrams that a socket has got.
    fn got(socket: &OwnedFd) -> Vec<u32> {
        let (mut inbox, mut got) = (Inbox::default(), Vec::new());
        while inbox.receive(socket) != Err(Errno::AGAIN) {
            for i in 0..inbox.count() {
                let bytes = inbox.get(i).expect("short").bytes;
                got.push(packet::vxlan::read(bytes).map_or(u32::MAX, |(vni, _)| vni.get()));
            }
        }
        got
    }

    #[test]
    fn a_datagram_comes_to_the_socket_of_its_vni_and_a_strange_one_to_the_oldest() {
        let local = local(14_810);
        let mut all = Vec::from(seats(local, [100, 200, 300]));
        let host = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let send = |vnis: &[u32]| {
            for &it in vnis {
                host.send_to(&header(vni(it)), local).expect("loopback");
            }
        };
        send(&[300, 100, 200, 7, 100, 0xff_ffff]);
        host.send_to(b"short", local).expect("loopback");
        let each: Vec<_> = all.iter().map(|(socket, _)| got(socket)).collect();
        assert_eq!(each, [vec![100, 7, 100, 0xff_ffff, u32::MAX], vec![200], vec![300]]);
        // The last one takes the place of the one that goes.
        drop(all.remove(0));
        send(&[300, 200, 100]);
        assert_eq!([got(&all[0].0), got(&all[1].0)], [vec![200, 100], vec![300]]);
        drop(all.remove(1));
        send(&[300, 200]);
        assert_eq!(got(&all[0].0), [300, 200], "alone it gets, and counts, all");
    }

    #[test]
    fn the_kernel_takes_a_program_for_as_many_networks_as_an_address_may_have() {
        let (local, mut addresses) = (local(14_813), Addresses::default());
        let mut join = |first: u32| {
            let vnis = (0..128).map(|i| vni(first + i * 14)).collect();
            addresses.join(local, vnis, false).expect("a program of the kernel's size")
        };
        let [(red, _one), (blue, _two)] = [1, 8].map(&mut join);
        let host = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        for it in [1, 8, 127 * 14 + 1, 127 * 14 + 8] {
            host.send_to(&header(vni(it)), local).expect("loopback");
        }
        assert_eq!((got(&red), got(&blue)), (vec![1, 1779], vec![8, 1786]));
    }

    #[test]
    fn another_process_neither_joins_the_ports_of_an_address_nor_is_joined() {
        let local = local(14_811);
        let ours = seats(local, [1, 2]);
        let refused = Addresses::default().join(local, vec![vni(3)], false).expect_err("taken");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        drop(ours);
        let [mut one] = seats(local, [1]);
        let refused = Addresses::default().join(local, vec![vni(3)], false).expect_err("taken");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        for _ in 0..3 {
            drop(one);
            [one] = seats(local, [1]);
        }
    }

    #[test]
    fn a_datagram_for_another_port_is_handed_over_and_a_full_mailbox_counts_its_loss() {
        let [(_a, one), (b, two)] = seats(local(14_812), [1, 2]);
        let from = IpAddr::from([10, 0, 0, 2]);
        two.set_remotes(&[from]);
        assert!(!one.hand_over(vni(3), from, b"x"));
        assert!(!one.hand_over(vni(1), from, b"x"), "it has come already");
        let is_rung = || {
            let mut bell = [PollFd::new(two.bell(), PollFlags::IN)];
            rustix::event::poll(&mut bell, Some(&Timespec::default())).expect("ours") > 0
        };
        assert!(!two.has_mail() && !is_rung());
        assert!(one.hand_over(vni(2), from, b"first") && one.hand_over(vni(2), from, b""));
        assert!(one.hand_over(vni(2), IpAddr::from([10, 0, 0, 9]), b"a stranger's"));
        let (mut letters, mut drops) = (Letters::default(), Drops::default());
        assert!(two.has_mail() && is_rung());
        two.collect(&mut letters, &mut drops);
        assert!(!two.has_mail() && !is_rung());
        assert_eq!((drops.get(DropReason::VxlanRemote), drops.total()), (1, 1));
        for expected in [&b"first"[..], b""] {
            let letter = letters.first().expect("two of them");
            assert_eq!((letter.from, letter.bytes), (from, expected));
            letters.advance();
        }
        assert!(letters.first().is_none());
        let long = vec![7; 9000];
        for _ in 0..200 {
            assert!(one.hand_over(vni(2), from, &long));
        }
        two.collect(&mut letters, &mut drops);
        let room = (MAILBOX / (9000 + LETTER)) as u64;
        assert_eq!(drops.get(DropReason::NoRoom), 200 - room);
        assert_eq!(letters.first().map(|letter| letter.bytes.len()), Some(9000));
        drop((b, two));
        assert!(!one.hand_over(vni(2), from, b"x"));
    }
}

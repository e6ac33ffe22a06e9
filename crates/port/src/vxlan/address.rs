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
//! So a port puts a datagram of another's VNI into that one's *mailbox*, and wakes its worker by a
//! datagram without a frame. A mailbox is bounded ([`MAILBOX`]): what finds no room is the loss of
//! the port that it is for. Frames of a flow that come both ways may change their order.
//!
//! The first socket is bound alone, so that a socket of another process refuses it, and shares the
//! address when the next one comes. Threads that open and close ports keep the group, under a
//! lock that no worker takes. Workers look up owners of VNIs under a lock that is held for this and
//! for changes of the map, and for no system call.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use packet::vxlan::Vni;

use crate::sys::steering::steer;
use crate::sys::udp::{self, Received};

/// Bytes that wait in a mailbox, where each datagram counts as [`LETTER`] more.
const MAILBOX: usize = 1 << 20;
const LETTER: usize = 64;

/// The addresses of a daemon's ports.
#[derive(Debug, Default)]
pub struct Addresses(BTreeMap<SocketAddr, Weak<Address>>);

impl Addresses {
    /// Binds a socket for these networks, of which no other port of the address has one.
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
        group.members.iter().try_for_each(|member| udp::share(&member.socket))?;
        let receiver = udp::receiver(self.local, anywhere, !group.members.is_empty())?;
        let (id, socket, mailbox) = (group.next, receiver.try_clone()?, Arc::<Mailbox>::default());
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
        if let Some(member) = group.members.iter_mut().find(|member| member.id == id) {
            member.vnis = vnis;
        }
        self.publish(&group)
    }

    fn leave(&self, id: u64) {
        let mut group = self.group();
        let Some(at) = group.members.iter().position(|member| member.id == id) else { return };
        // The last reference to the socket, unless its port still has it: the kernel, too, puts the
        // last member into its place.
        drop(group.members.swap_remove(at));
        // Without a program the kernel spreads datagrams over the ports, which hand them over.
        let _ = self.publish(&group);
    }

    /// Tells workers and the kernel which VNIs the members have.
    fn publish(&self, group: &Group) -> io::Result<()> {
        let all = group.members.iter();
        let owners = all.flat_map(|it| it.vnis.iter().map(|&vni| (vni, it.mailbox.clone())));
        let owners = owners.collect();
        *self.owners.write().unwrap_or_else(PoisonError::into_inner) = owners;
        group.steer()
    }
}

impl Group {
    fn steer(&self) -> io::Result<()> {
        let [first, _, ..] = &self.members[..] else { return Ok(()) };
        let numbered = || (0u32..).zip(&self.members);
        let vnis = numbered().flat_map(|(at, it)| it.vnis.iter().map(move |vni| (vni.get(), at)));
        let oldest = numbered().min_by_key(|(_, member)| member.id).map_or(0, |(at, _)| at);
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
    /// Sets the networks, of which no other port of the address has one.
    ///
    /// # Errors
    /// The system refused: other ports hand datagrams over, more slowly.
    pub fn set(&self, vnis: Vec<Vni>) -> io::Result<()> {
        self.address.upgrade().map_or(Ok(()), |address| address.set(self.id, vnis))
    }
}

/// What became of a datagram of another VNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// No other port of the address has the VNI.
    ToNone,
    /// To a port that will look.
    Over,
    /// To a port that has to be woken.
    ToWake,
}

impl Seat {
    /// What changes the networks.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { address: Arc::downgrade(&self.address), id: self.id }
    }

    /// Puts a datagram into the mailbox of the port with its VNI.
    #[must_use]
    pub fn hand_over(&self, vni: Vni, from: IpAddr, datagram: &[u8]) -> Handed {
        let owners = self.address.owners.read().unwrap_or_else(PoisonError::into_inner);
        match owners.get(&vni) {
            Some(owner) if !Arc::ptr_eq(owner, &self.mailbox) => owner.put(from, datagram),
            _ => Handed::ToNone,
        }
    }

    /// Whether other ports have put something into this one's mailbox.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.mailbox.waits.load(Ordering::Acquire)
    }

    /// Takes what is in the mailbox, in exchange for `letters`, which were read; returns how many
    /// datagrams found no room.
    pub fn collect(&self, letters: &mut Letters) -> u64 {
        letters.clear();
        if self.has_mail() { self.mailbox.exchange(letters) } else { 0 }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.address.leave(self.id);
    }
}

/// Datagrams that came to the sockets of other ports.
#[derive(Debug, Default)]
struct Mailbox {
    /// There are some. Written under the lock: by the worker that puts the first in, and by that of
    /// the port, which takes them out. The latter reads it without: its acquire pairs with the
    /// release of the former.
    waits: AtomicBool,
    letters: Mutex<Letters>,
}

impl Mailbox {
    fn put(&self, from: IpAddr, datagram: &[u8]) -> Handed {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        letters.put(from, datagram);
        match self.waits.swap(true, Ordering::Release) {
            true => Handed::Over,
            false => Handed::ToWake,
        }
    }

    fn exchange(&self, read: &mut Letters) -> u64 {
        let mut letters = self.letters.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *letters, read);
        self.waits.store(false, Ordering::Release);
        std::mem::take(&mut read.lost)
    }
}

/// Datagrams in order, each with the host that sent it.
#[derive(Debug, Default)]
pub struct Letters {
    bytes: Vec<u8>,
    /// The sender of each, and where it begins.
    all: Vec<(IpAddr, usize)>,
    /// How many were read.
    read: usize,
    /// How many found no room.
    lost: u64,
}

impl Letters {
    fn put(&mut self, from: IpAddr, datagram: &[u8]) {
        if self.bytes.len() + self.all.len() * LETTER + datagram.len() > MAILBOX {
            self.lost += 1;
            return;
        }
        self.all.push((from, self.bytes.len()));
        self.bytes.extend(datagram);
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
    use rustix::io::Errno;

    use super::*;
    use crate::sys::udp::Inbox;

    fn vni(number: u32) -> Vni {
        Vni::new(number).expect("24 bits")
    }

    /// An address of the loopback interface with a free port.
    fn local() -> SocketAddr {
        UdpSocket::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("loopback")
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
        let local = local();
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
    fn another_process_neither_joins_the_ports_of_an_address_nor_is_joined() {
        let local = local();
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
        let [(_a, one), (_b, two)] = seats(local(), [1, 2]);
        let from = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(one.hand_over(vni(3), from, b"x"), Handed::ToNone);
        assert_eq!(one.hand_over(vni(1), from, b"x"), Handed::ToNone, "it has come already");
        assert!(!two.has_mail());
        assert_eq!(one.hand_over(vni(2), from, b"first"), Handed::ToWake);
        assert_eq!(one.hand_over(vni(2), from, b""), Handed::Over);
        let mut letters = Letters::default();
        assert_eq!((two.has_mail(), two.collect(&mut letters), two.has_mail()), (true, 0, false));
        for expected in [&b"first"[..], b""] {
            let letter = letters.first().expect("two of them");
            assert_eq!((letter.from, letter.bytes), (from, expected));
            letters.advance();
        }
        assert!(letters.first().is_none());
        let long = vec![7; 9000];
        for _ in 0..200 {
            let _ = one.hand_over(vni(2), from, &long);
        }
        let lost = two.collect(&mut letters);
        assert_eq!(lost, 200 - (MAILBOX / (9000 + LETTER)) as u64);
        assert_eq!(letters.first().map(|letter| letter.bytes.len()), Some(9000));
        drop(_b);
        drop(two);
        assert_eq!(one.hand_over(vni(2), from, b"x"), Handed::ToNone);
    }
}

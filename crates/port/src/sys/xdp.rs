//! AF_XDP sockets: four rings of descriptors that the kernel shares with us.
//!
//! ```text
//!   received:  kernel ── receive ring ──► us ── fill ring ──► kernel    chunks go round
//!   sent:      us ── send ring ──► kernel ── completion ring ──► us     likewise
//! ```
//!
//! In each ring, one side writes the producer's index and the other the consumer's. The port keeps
//! its own index to itself, and bounds the kernel's by the ring's size when it reads it. It reads
//! an entry after the index that passes it (acquire), and writes an entry before that (release).

#![allow(unsafe_code)] // UNSAFETY: raw socket calls, and rings that the kernel maps.

use std::ffi::c_void;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use std::sync::Arc;

use libc::c_int;
use ring::Region;
use ring::umem::Umem;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// The entries of each ring.
pub const SLOTS: u32 = 2048;

/// Registers the memory of a socket.
///
/// # Errors
/// `ENOBUFS`: more than may be locked. `EINVAL`: the kernel needs aligned chunks.
pub fn register(socket: &OwnedFd, umem: &Umem) -> Result<(), Errno> {
    let (addr, len) = umem.pool();
    let flags = if umem.is_aligned() { 0 } else { libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG };
    let memory = libc::xdp_umem_reg {
        addr: addr as u64,
        len: len as u64,
        chunk_size: umem.chunk_size(),
        headroom: 0,
        flags,
        tx_metadata_len: 0,
    };
    set(socket, libc::XDP_UMEM_REG, &memory)
}

/// The mode in which a socket is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The driver puts frames into the memory itself.
    pub zero_copy: bool,
    /// Frames may consist of several chunks.
    pub chains: bool,
}

/// The queue to which a socket is to be bound.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The index of the interface.
    pub index: u32,
    /// The number of the queue.
    pub queue: u32,
    /// The socket that the memory is registered with, if that is another one.
    pub first: Option<BorrowedFd<'a>>,
    /// The kernel copies in any case, because the driver has no zero-copy mode.
    pub copies: bool,
}

/// A socket on one queue of an interface, with its rings.
#[derive(Debug)]
pub struct XdpSocket {
    socket: OwnedFd,
    receive: Ring,
    fill: Ring,
    send: Ring,
    completion: Ring,
    /// The memory, which lives longer than the socket.
    _region: Arc<Region>,
}

/// A place in the memory, in the kernel's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// The offset in the memory.
    pub address: u64,
    /// The number of bytes.
    pub len: u32,
    /// [`CONTINUED`](Self::CONTINUED), or nothing.
    pub options: u32,
}

impl Descriptor {
    /// The next descriptor continues the frame.
    pub const CONTINUED: u32 = libc::XDP_PKT_CONTD;
}

const _: () = assert!(size_of::<Descriptor>() == size_of::<libc::xdp_desc>());

impl XdpSocket {
    /// Maps the rings of a socket, with which the memory is [registered](register) or which is to
    /// be bound behind one that has it.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(socket: OwnedFd, umem: &Umem) -> Result<Self, Errno> {
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(&socket, ring, &SLOTS)?;
        }
        raise_send_buffer(&socket);
        let [receive, fill, send, completion] = rings(&socket)?;
        let _region = umem.region().clone();
        Ok(Self { socket, receive, fill, send, completion, _region })
    }

    /// Binds the socket to a queue.
    ///
    /// # Errors
    /// `EBUSY`: another socket has the queue; the caller may try again. `EINVAL`: no such queue.
    pub fn bind(&self, place: &Place<'_>) -> Result<Bound, Errno> {
        let chains = bind(&self.socket, place)?;
        let mut options = libc::xdp_options { flags: 0 };
        get(&self.socket, libc::XDP_OPTIONS, &mut options)?;
        Ok(Bound { zero_copy: options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0, chains })
    }

    /// The number of received descriptors that were not [taken](Self::take).
    #[must_use]
    pub fn arrived(&self) -> u32 {
        self.receive.full()
    }

    /// A received descriptor, the first being number 0.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn peek(&self, i: u32) -> Descriptor {
        assert!(i < self.receive.full());
        self.receive.read(i)
    }

    /// Takes the first `count` descriptors out of the ring.
    pub fn take(&mut self, count: u32) {
        self.receive.at = self.receive.at.wrapping_add(count);
        self.receive.publish_consumer();
    }

    /// Gives the kernel chunks for received frames; returns how many it had room for.
    pub fn fill(&mut self, addresses: impl ExactSizeIterator<Item = u64>) -> u32 {
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).min(self.fill.empty());
        for (i, address) in (0..count).zip(addresses) {
            self.fill.write(i, address);
        }
        self.fill.at = self.fill.at.wrapping_add(count);
        self.fill.publish_producer();
        if count > 0 && self.fill.needs_wakeup() {
            // A driver that has run out of chunks looks again. An error needs no handling.
            let _ = self.call_receive();
        }
        count
    }

    /// The room in the send ring.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.send.empty()
    }

    /// Appends descriptors to the send ring.
    ///
    /// # Panics
    /// If there is no room.
    pub fn push(&mut self, descriptors: &[Descriptor]) {
        let count = u32::try_from(descriptors.len()).expect("few");
        assert!(count <= self.send.empty());
        for (i, descriptor) in (0..count).zip(descriptors) {
            self.send.write(i, *descriptor);
        }
        self.send.at = self.send.at.wrapping_add(count);
        self.send.publish_producer();
    }

    /// The number of descriptors that the kernel has not taken yet.
    #[must_use]
    pub fn unsent(&self) -> u32 {
        SLOTS - self.send.empty()
    }

    /// Makes the kernel read the send ring, if it asked for that.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOBUFS`: it has not sent all. `ENETDOWN`, `ENXIO`: the interface is down or
    /// gone.
    pub fn kick(&self) -> Result<(), Errno> {
        if !self.send.needs_wakeup() {
            return Ok(());
        }
        let (fd, none) = (self.socket.as_raw_fd(), std::ptr::null());
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: a message of no bytes, without an address.
        let sent = unsafe { libc::sendto(fd, none, 0, flags, std::ptr::null(), 0) };
        check_long(sent)
    }

    /// The next chunk that has been sent.
    pub fn reap(&mut self) -> Option<u64> {
        if self.completion.full() == 0 {
            return None;
        }
        let address = self.completion.read(0);
        self.completion.at = self.completion.at.wrapping_add(1);
        self.completion.publish_consumer();
        Some(address)
    }

    fn call_receive(&self) -> Result<(), Errno> {
        let (fd, none, flags) =
            (self.socket.as_raw_fd(), std::ptr::null_mut::<c_void>(), libc::MSG_DONTWAIT);
        let (name, len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: room for no bytes, and no address.
        check_long(unsafe { libc::recvfrom(fd, none, 0, flags, name, len) })
    }
}

impl XdpSocket {
    /// The socket, readable when frames have arrived.
    #[must_use]
    pub fn descriptor(&self) -> &OwnedFd {
        &self.socket
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Binds with several chunks for a frame if the kernel supports it, and with copies if the driver
/// needs them.
fn bind(socket: &OwnedFd, place: &Place<'_>) -> Result<bool, Errno> {
    if let Some(first) = place.first {
        let shared = first.as_raw_fd().cast_unsigned();
        return bind_with(socket, place, libc::XDP_SHARED_UMEM, shared).map(|()| false);
    }
    let copies = if place.copies { libc::XDP_COPY } else { 0 };
    let plain = libc::XDP_USE_NEED_WAKEUP | copies;
    match bind_with(socket, place, plain | libc::XDP_USE_SG, 0) {
        // Before Linux 6.6.
        Err(Errno::INVAL) => bind_with(socket, place, plain, 0).map(|()| false),
        bound => bound.map(|()| true),
    }
}

fn bind_with(socket: &OwnedFd, place: &Place<'_>, flags: u16, shared: u32) -> Result<(), Errno> {
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).expect("a small number"),
        sxdp_flags: flags,
        sxdp_ifindex: place.index,
        sxdp_queue_id: place.queue,
        sxdp_shared_umem_fd: shared,
    };
    let len = length(size_of::<libc::sockaddr_xdp>());
    // SAFETY: an address of this length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

/// Raises the limit of frames that wait in the interface's queue, which belong to the socket until
/// they are sent.
fn raise_send_buffer(socket: &OwnedFd) {
    const BYTES: usize = 4 << 20;
    use rustix::net::sockopt;
    // Only CAP_NET_ADMIN may exceed the limit; otherwise the limit or the default has to do.
    if sockopt::set_socket_send_buffer_size_force(socket, BYTES).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(socket, BYTES);
    }
}

/// The receive, fill, send and completion rings.
fn rings(socket: &OwnedFd) -> Result<[Ring; 4], Errno> {
    // SAFETY: all zeros are a value of this structure.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { zeroed() };
    get(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    let (long, short) = (size_of::<Descriptor>(), size_of::<u64>());
    let page = |offset: libc::off_t| u64::try_from(offset).expect("not negative");
    Ok([
        Ring::map(socket, &offsets.rx, long, page(libc::XDP_PGOFF_RX_RING))?,
        Ring::map(socket, &offsets.fr, short, libc::XDP_UMEM_PGOFF_FILL_RING)?,
        Ring::map(socket, &offsets.tx, long, page(libc::XDP_PGOFF_TX_RING))?,
        Ring::map(socket, &offsets.cr, short, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?,
    ])
}

/// One ring.
#[derive(Debug)]
struct Ring {
    base: *mut c_void,
    size: usize,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    entry: usize,
    /// The index that this side writes.
    at: u32,
}

// SAFETY: the mapping belongs to no thread, and the ring to one at a time.
unsafe impl Send for Ring {}

impl Ring {
    fn map(
        socket: &OwnedFd,
        offsets: &libc::xdp_ring_offset,
        entry: usize,
        page: u64,
    ) -> Result<Self, Errno> {
        let place = |offset: u64| usize::try_from(offset).map_err(|_| Errno::OVERFLOW);
        let (producer, consumer) = (place(offsets.producer)?, place(offsets.consumer)?);
        let (flags, entries) = (place(offsets.flags)?, place(offsets.desc)?);
        let size = entries + SLOTS as usize * entry;
        let inside = [producer, consumer, flags].iter().all(|at| at % 4 == 0 && at + 4 <= size);
        if !inside || !entries.is_multiple_of(8) {
            return Err(Errno::INVAL);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::SHARED | MapFlags::POPULATE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap(none, size, protection, how, socket, page)? };
        Ok(Self { base, size, producer, consumer, flags, entries, entry, at: 0 })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: a word of the mapping, aligned (`map` has looked), that others change by atomics
        // only; the mapping lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.base.byte_add(at).cast()) }
    }

    /// The entries to consume, in a ring that this side consumes.
    fn full(&self) -> u32 {
        self.word(self.producer).load(Ordering::Acquire).wrapping_sub(self.at).min(SLOTS)
    }

    /// The room, in a ring that this side produces.
    fn empty(&self) -> u32 {
        let taken = self.word(self.consumer).load(Ordering::Acquire);
        SLOTS - self.at.wrapping_sub(taken).min(SLOTS)
    }

    fn publish_producer(&self) {
        self.word(self.producer).store(self.at, Ordering::Release);
    }

    fn publish_consumer(&self) {
        self.word(self.consumer).store(self.at, Ordering::Release);
    }

    fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// The address of an entry, this many after this side's index.
    fn place<T>(&self, i: u32) -> *mut T {
        assert!(size_of::<T>() == self.entry);
        let slot = (self.at.wrapping_add(i) % SLOTS) as usize;
        // SAFETY: `slot` is below the number of entries that the mapping has room for.
        unsafe { self.base.byte_add(self.entries + slot * self.entry).cast() }
    }

    fn read<T: Copy>(&self, i: u32) -> T {
        // SAFETY: an entry of this size, aligned to 8 bytes; any bytes are a value of the two types
        // of entries, and the kernel does not write an entry that it has handed over.
        unsafe { self.place::<T>(i).read_volatile() }
    }

    fn write<T: Copy>(&self, i: u32, value: T) {
        // SAFETY: as above, and the kernel does not read an entry before it is handed over.
        unsafe { self.place::<T>(i).write_volatile(value) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: only `self` has the mapping. What cannot be unmapped stays.
        let _ = unsafe { rustix::mm::munmap(self.base, self.size) };
    }
}

fn set<T>(socket: &OwnedFd, option: c_int, value: &T) -> Result<(), Errno> {
    let (fd, len) = (socket.as_raw_fd(), length(size_of::<T>()));
    // SAFETY: the kernel reads this many bytes of `value`.
    check(unsafe {
        libc::setsockopt(fd, libc::SOL_XDP, option, std::ptr::from_ref(value).cast(), len)
    })
    .map(drop)
}

fn get<T>(socket: &OwnedFd, option: c_int, value: &mut T) -> Result<(), Errno> {
    let (fd, mut len) = (socket.as_raw_fd(), length(size_of::<T>()));
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most this many bytes of a structure of integers.
    check(unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, value, &raw mut len) })?;
    if len == length(size_of::<T>()) { Ok(()) } else { Err(Errno::NOSYS) }
}

fn check(result: c_int) -> Result<c_int, Errno> {
    check_long(result as isize).map(|()| result)
}

fn check_long(result: isize) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

fn length(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).expect("a small number")
}

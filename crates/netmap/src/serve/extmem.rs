//! The option EXTMEM: a program's own memory as the region of a port.
//!
//! netmap pins the program's pages and puts rings and buffers into them. A daemon cannot: what is
//! not a sealed file of its own may shrink under it. Here it is the other way round. The daemon
//! makes a region that fits into the program's memory, and the region is mapped over it: from then
//! on the program's memory *is* the region. What was in it before is gone, as it is with netmap.
//!
//! A program may give several ports one memory. Which region lies where is remembered, and the
//! ports after the first join it.
//!
//! What is not the same: a file behind the memory is not touched any more, so processes do not
//! share a region by mapping one file; a memory id does that.

#![allow(unsafe_code)] // UNSAFETY: maps over memory that the program gives up.

use std::ffi::c_void;
use std::sync::Mutex;

use client::netmap::Binding;
use protocol::{GeometryQuery, Room};
use ring::layout::MAX_STRIDE;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{geometry, pools};
use crate::abi::{OptExtmem, PoolsInfo, Register};
use crate::memory::{OwnMemory, UserMemory};

const PAGE: u64 = ring::layout::PAGE as u64;
/// netmap's limits for the objects of the three pools.
const IF_MAX: u32 = 4096;
const RING_MAX: u32 = 131_072;
const BUFFER_SIZES: std::ops::RangeInclusive<u32> = 64..=65_536;
/// Bytes of a buffer where the program does not say.
const BUFFER: u32 = 2048;
/// Buffers begin at lines.
const LINE: u32 = 64;

/// Memories that are regions.
static PLACED: Mutex<Vec<Placed>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Placed {
    at: u64,
    bytes: u64,
    mem_id: u16,
    /// Bytes of the region: a number may be given again.
    region: u64,
}

impl Placed {
    /// Whether the region of this number still exists, with the same size.
    fn is_there(&self) -> bool {
        let region = geometry(GeometryQuery { mem_id: self.mem_id, ..GeometryQuery::default() });
        region.is_ok_and(|region| region.region_bytes == self.region)
    }
}

/// A program's memory.
#[derive(Debug)]
pub struct Memory {
    asked: OptExtmem,
    /// Whole pages of it.
    bytes: u64,
    /// The region that lies there already; 0: none.
    mem_id: u16,
}

impl Memory {
    /// Looks at what the program asks for.
    ///
    /// # Errors
    /// `EINVAL`: sizes that netmap refuses; `ENOMEM`: too little room for the rings; `EFAULT`: not
    /// the program's memory.
    pub fn read(asked: &OptExtmem, body: &Register) -> Result<Self, Errno> {
        let (at, info) = (asked.nro_usrptr, asked.nro_info);
        let bytes = info.nr_memsize / PAGE * PAGE;
        let buffer = if info.nr_buf_pool_objsize == 0 { BUFFER } else { info.nr_buf_pool_objsize };
        let legal = info.nr_if_pool_objsize <= IF_MAX
            && info.nr_ring_pool_objsize <= RING_MAX
            && BUFFER_SIZES.contains(&buffer)
            && at.is_multiple_of(PAGE);
        if !legal || bytes == 0 {
            return Err(Errno::INVAL);
        }
        if !has_room(&info, body) {
            return Err(Errno::NOMEM);
        }
        let known = PLACED
            .lock()
            .ok()
            .and_then(|placed| placed.iter().find(|it| (it.at, it.bytes) == (at, bytes)).copied());
        let mem_id = known.filter(Placed::is_there).map_or(0, |it| it.mem_id);
        check_mapped(at, bytes)?;
        Ok(Self { asked: *asked, bytes, mem_id })
    }

    /// The region to join; 0: a new one.
    pub fn mem_id(&self) -> u16 {
        self.mem_id
    }

    /// What a new region is to be like.
    pub fn room(&self) -> Option<Room> {
        let size = self.asked.nro_info.nr_buf_pool_objsize;
        let size = if size == 0 { BUFFER } else { size };
        let stride = (size / LINE * LINE).min(MAX_STRIDE);
        (self.mem_id == 0).then_some(Room { bytes: self.bytes, stride })
    }

    /// Puts the region where the program's memory is, and says what it is like.
    ///
    /// # Errors
    /// The program has changed its memory since it asked.
    pub fn place(&self, binding: &Binding) -> Result<OptExtmem, Errno> {
        let bound = binding.bound();
        let size = usize::try_from(bound.attached.region_bytes).map_err(|_| Errno::NOMEM)?;
        if size as u64 > self.bytes {
            return Err(Errno::NOMEM);
        }
        let at = usize::try_from(self.asked.nro_usrptr).map_err(|_| Errno::FAULT)?;
        let at: *mut c_void = std::ptr::with_exposed_provenance_mut(at);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let how = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the program gives this memory up, all of which was mapped when it asked; or it is
        // the region already, and then it stays what it is.
        unsafe { rustix::mm::mmap(at, size, access, how, binding.region(), 0) }?;
        let placed = Placed {
            at: self.asked.nro_usrptr,
            bytes: self.bytes,
            mem_id: bound.mem_id,
            region: size as u64,
        };
        if let Ok(mut known) = PLACED.lock() {
            known.retain(|it| it.at != placed.at && it.mem_id != placed.mem_id);
            known.push(placed);
        }
        let region = GeometryQuery { mem_id: bound.mem_id, ..GeometryQuery::default() };
        let info = pools(&geometry(region)?);
        let nro_info = PoolsInfo { nr_memsize: self.asked.nro_info.nr_memsize, ..info };
        Ok(OptExtmem { nro_info, ..self.asked })
    }
}

/// Whether the requested rings fit the requested pools.
fn has_room(info: &PoolsInfo, body: &Register) -> bool {
    let (slots, rings) = (body.nr_tx_slots.max(body.nr_rx_slots), body.nr_tx_rings.max(1));
    let size = u64::from(slots) * 16 + 256;
    let fits = info.nr_ring_pool_objsize == 0 || size <= info.nr_ring_pool_objsize.into();
    let all = u32::from(rings) + u32::from(body.nr_rx_rings.max(1));
    fits && (info.nr_ring_pool_objtotal == 0 || all <= info.nr_ring_pool_objtotal)
}

/// Checks that the whole range is mapped, and that its ends can be written.
fn check_mapped(at: u64, bytes: u64) -> Result<(), Errno> {
    let end = at.checked_add(bytes).ok_or(Errno::FAULT)?;
    for page in [at, end - PAGE] {
        let mut byte = [0];
        OwnMemory.read(page, &mut byte)?;
        OwnMemory.write(page, &byte)?;
    }
    let (address, size) = (usize::try_from(at), usize::try_from(bytes));
    let (Ok(address), Ok(size)) = (address, size) else { return Err(Errno::FAULT) };
    let mut there = vec![0u8; size / ring::layout::PAGE];
    let start = std::ptr::without_provenance_mut(address);
    // SAFETY: a byte for each page; nothing at `start` is touched.
    let found = unsafe { libc::mincore(start, size, there.as_mut_ptr()) };
    if found == 0 { Ok(()) } else { Err(Errno::FAULT) }
}

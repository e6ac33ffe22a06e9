//! Memory in extents, windows, and memory that goes.

use super::*;
use crate::frame::{Frame, Pieces, VNET_HEADER_MAX};
use core::sync::atomic::Ordering;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MprotectFlags, mprotect};
use std::os::fd::OwnedFd;

const PAGE: usize = 4096;

fn file(pages: usize) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&fd, (pages * PAGE) as u64).expect("ours");
    fd
}

fn extent(guest: u64, size: usize, offset: usize, lent: &Arc<GuestMapping>) -> Extent {
    Extent { guest, user: guest + 0x7000_0000_0000, size: size as u64, offset, lent: lent.clone() }
}

/// Two extents that follow each other in the guest, and lie the other way round in the file.
fn memory() -> (OwnedFd, GuestMemory) {
    let fd = file(4);
    let lent = GuestMapping::map(&fd, 0, 4 * PAGE).expect("memory");
    let extents = vec![extent(2 * PAGE as u64, PAGE, 0, &lent), extent(0, 2 * PAGE, PAGE, &lent)];
    (fd, GuestMemory::new(extents).expect("they are apart"))
}

#[test]
fn bytes_that_cross_extents_come_back() {
    let (fd, memory) = memory();
    let (mut slices, text) = (Vec::new(), *b"over the border");
    assert!(memory.slices(2 * PAGE as u64 - 8, 15, &mut slices, 2));
    assert_eq!(slices.iter().map(|slice| slice.len()).collect::<Vec<_>>(), [8, 7]);
    Writer::new(&memory, &slices).write(&text);
    let (mut all, mut first) = ([0; 15], [0; 7]);
    Reader::new(&memory, &slices).read(&mut all);
    rustix::io::pread(&fd, &mut first, 0).expect("a file");
    assert_eq!((all, &first[..]), (text, &text[8..]));
    assert!(!memory.is_lost());
}

#[test]
fn what_is_not_there_is_no_span() {
    let (_, memory) = memory();
    let mut slices = Vec::new();
    for (guest, len) in [(3 * PAGE as u64, 1), (u64::MAX, 2), (3 * PAGE as u64 - 1, 2)] {
        assert!(!memory.slices(guest, len, &mut slices, 9), "{guest}");
    }
    slices.clear();
    assert!(!memory.slices(0, 12_288, &mut slices, 1), "one slice is not enough");
    assert_eq!(memory.words(3 * PAGE as u64 - 8), None);
    assert_eq!(memory.words(16), Some([0; 2]));
}

#[test]
fn words_by_guest_address_are_aligned_and_in_one_piece() {
    let (fd, memory) = memory();
    let end = 3 * PAGE as u64;
    memory.atomic_u64(2 * PAGE as u64).expect("there").store(7, Ordering::Release);
    memory.atomic_u32(end - 4).expect("there").store(9, Ordering::Release);
    let mut page = [0; PAGE];
    rustix::io::pread(&fd, &mut page, 0).expect("a file");
    assert_eq!((page[0], page[PAGE - 4]), (7, 9));
    assert!(memory.atomic_u64(end - 4).is_none() && memory.atomic_u32(end).is_none());
    assert!(memory.atomic_u64(4).is_none() && memory.atomic_u32(2).is_none(), "not aligned");
    assert!(memory.atomic_u64(u64::MAX - 7).is_none());
}

#[test]
fn a_frame_in_one_piece_is_written_behind_what_is_in_front_of_it() {
    let (fd, memory) = memory();
    let from: Vec<u8> = (0..255).cycle().take(PAGE).collect();
    Writer::new(&memory, &[memory.slice(0, 4096).expect("there")]).write(&from);
    let (vnet_header, header) =
        ([7; VNET_HEADER_MAX], 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100_u128);
    let (blank, nearly) = ([0xaa; VNET_HEADER_MAX], [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 6]);
    // At 52 it ends where a line does: there it is not written if it is there already.
    let places = [(13, 60), (52, 60), (52, 1514), (11, 16), (9, 33), (9, 200)];
    for ((at, bytes), before) in places
        .into_iter()
        .flat_map(|place| [blank, vnet_header, nearly].map(|before| (place, before)))
    {
        let (slice, to) = (memory.slice(0, bytes), memory.slice(PAGE as u64 + at, bytes + 20));
        let pieces = [slice.expect("there")];
        let frame = Frame { pieces: Pieces::Guest(&memory, &pieces), bytes };
        rustix::io::pwrite(&fd, &[0xaa; PAGE], 2 * PAGE as u64).expect("a file");
        rustix::io::pwrite(&fd, &before, 2 * PAGE as u64 + at).expect("a file");
        assert!(frame.write_single(&vnet_header, header, &memory, to.expect("there")));
        let mut out = vec![0; 8 + 12 + bytes as usize + 8];
        rustix::io::pread(&fd, &mut out, 2 * PAGE as u64 + at - 8).expect("a file");
        let around = [0xaa; 8];
        let text = [&header.to_le_bytes(), &from[16..bytes as usize]].concat();
        let expected = [&around[..], &vnet_header, &text, &around].concat();
        assert_eq!(out, expected, "{bytes} bytes at {at}");
        let short = memory.slice(PAGE as u64, bytes + 11).expect("there");
        assert!(!frame.write_single(&vnet_header, header, &memory, short), "it has no room");
    }
    let pieces = [memory.slice(0, 15).expect("there")];
    let frame = Frame { pieces: Pieces::Guest(&memory, &pieces), bytes: 15 };
    let to = memory.slice(PAGE as u64, 100).expect("there");
    assert!(!frame.write_single(&vnet_header, header, &memory, to), "it has no whole header");
    let pieces = [pieces[0], memory.slice(15, 45).expect("there")];
    let frame = Frame { pieces: Pieces::Guest(&memory, &pieces), bytes: 60 };
    assert!(!frame.write_single(&vnet_header, header, &memory, to), "in two pieces");
}

/// The line could be in the caches of both sides; here it cannot even be written.
#[test]
fn what_is_there_already_in_a_line_of_its_own_is_not_written() {
    let (_, memory) = memory();
    let vnet_header = [7; VNET_HEADER_MAX];
    Writer::new(&memory, &[memory.slice(PAGE as u64 - 12, 12).expect("there")]).write(&vnet_header);
    let (to, from) = (memory.slice(PAGE as u64 - 12, 112), memory.slice(PAGE as u64 + 512, 60));
    let (to, pieces) = (to.expect("there"), [from.expect("there")]);
    let page = memory.at(memory.slice(0, 1).expect("there"), 0).cast();
    // SAFETY: it is a page of a mapping of the test's own, and stays one.
    unsafe { mprotect(page, PAGE, MprotectFlags::READ) }.expect("ours");
    let frame = Frame { pieces: Pieces::Guest(&memory, &pieces), bytes: 60 };
    assert!(frame.write_single(&vnet_header, 9, &memory, to));
    let behind = memory.slice(PAGE as u64, 60).expect("there");
    assert_eq!(memory.first::<16>(behind), Some(9_u128.to_le_bytes()));
}

#[test]
fn a_span_has_a_beginning_and_what_is_behind_it() {
    let (_, memory) = memory();
    let slice = memory.slice(100, 20).expect("there");
    Writer::new(&memory, &[slice]).write(&[1, 2, 3, 4, 5]);
    assert_eq!(memory.first::<3>(slice), Some([1, 2, 3]));
    assert_eq!(slice.behind(3).and_then(|rest| memory.first(rest)), Some([4, 5]));
    assert_eq!((memory.first::<21>(slice), slice.behind(20), slice.behind(21)), (None, None, None));
    memory.prefetch(slice, true);
    memory.prefetch(memory.slice(3 * PAGE as u64 - 1, 1).expect("there"), false);
}

/// As many extents as a port takes, with a hole of a page behind each but the first two.
fn scattered() -> (Vec<u64>, GuestMemory) {
    const COUNT: usize = 509;
    let lent = GuestMapping::map(file(1), 0, PAGE).expect("memory");
    let guests: Vec<u64> = (0..COUNT as u64).map(|i| PAGE as u64 * (2 * i).max(1)).collect();
    let extents = guests.iter().rev().map(|guest| extent(*guest, PAGE, 0, &lent)).collect();
    (guests, GuestMemory::new(extents).expect("they are apart"))
}

#[test]
fn each_of_many_extents_is_found_and_no_hole() {
    let (guests, memory) = scattered();
    let page = PAGE as u64;
    assert_eq!(memory.slice(page - 1, 1), None);
    for (at, guest) in (0..).zip(&guests) {
        let slice = GuestSlice { extent: at, len: 1, offset: PAGE - 1 };
        assert_eq!(memory.slice(*guest, 9), Some(GuestSlice { len: 9, offset: 0, ..slice }));
        assert_eq!(memory.slice(guest + page - 1, 9), Some(slice));
        let behind = memory.slice(guest + page, 9);
        assert_eq!(behind.is_some(), at == 0, "behind extent {at}");
    }
}

#[test]
fn windows_are_aligned_and_in_one_piece() {
    let (_, memory) = memory();
    let user = |at: usize| 0x7000_0000_0000 + at as u64;
    let window = memory.window(user(PAGE), PAGE, 16).expect("it is there");
    window.u16(6).store(7, Ordering::Relaxed);
    assert_eq!(memory.words(PAGE as u64), Some([7 << 48, 0]));
    assert!(memory.window(user(PAGE), 2 * PAGE, 16).is_none(), "two extents");
    assert!(memory.window(user(8), 16, 16).is_none(), "not aligned");
    assert!(memory.window(user(3 * PAGE), 1, 1).is_none());
}

#[test]
fn extents_that_overlap_or_are_not_mapped_are_refused() {
    let lent = GuestMapping::map(file(2), 0, 2 * PAGE).expect("memory");
    for bad in [
        vec![extent(0, PAGE, 0, &lent), extent(PAGE as u64 - 1, PAGE, 0, &lent)],
        vec![extent(0, PAGE, PAGE + 1, &lent)],
        vec![extent(0, 0, 0, &lent)],
        vec![extent(0, 1, usize::MAX, &lent)],
        vec![Extent { guest: u64::MAX, ..extent(0, PAGE, 0, &lent) }],
    ] {
        assert!(GuestMemory::new(bad).is_none());
    }
}

#[test]
fn memory_that_is_taken_away_reads_as_zeros_and_is_known_to_be_lost() {
    let (fd, other) = (file(2), file(1));
    let lent = GuestMapping::map(&fd, 0, 2 * PAGE).expect("memory");
    let kept = GuestMapping::map(&other, 0, PAGE).expect("memory");
    let memory = GuestMemory::new(vec![extent(0, 2 * PAGE, 0, &lent)]).expect("sound");
    let kept = GuestMemory::new(vec![extent(0, PAGE, 0, &kept)]).expect("sound");
    let mut slices = Vec::new();
    assert!(memory.slices(0, 8192, &mut slices, 1));
    ftruncate(&fd, 0).expect("ours");
    let mut bytes = vec![1; 2 * PAGE];
    Reader::new(&memory, &slices).read(&mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0) && memory.is_lost());
    Writer::new(&memory, &slices).write(&bytes);
    assert!(!kept.is_lost());
}

#[test]
fn a_guests_memory_is_in_no_core_dump() {
    let fd = file(4);
    let lent = GuestMapping::map(&fd, 0, 4 * PAGE).expect("memory");
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("/proc");
    let own = maps.split_once(&format!("{:x}-", lent.base.as_ptr().addr())).expect("is mapped").1;
    let flags = own.lines().find(|line| line.starts_with("VmFlags:")).expect("flags");
    assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
}

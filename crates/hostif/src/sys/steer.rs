//! The program in front of an interface's driver: which frames AF_XDP sockets get.
//!
//! The program is assembled here, and attached by a link: the kernel takes it away when the last
//! descriptor of that is closed. A frame that the [`Filter`] does not take, or that arrives by a
//! queue without a socket, goes on to the host's stack.
//!
//! ```text
//!   frame ─► to one of our addresses? ──► in one of our VLANs? ──► of one of our types? ──► socket
//!                    │ no                        │ no                   │ no         of its queue
//!                    └───────────────────────────┴──────────────────────┴──► the host's stack
//! ```

#![allow(unsafe_code)] // UNSAFETY: bpf(2) is in no safe wrapper that we use.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use protocol::Filter;
use rustix::io::Errno;

use super::bpf::{Attr, EXIT, LINK_CREATE, PROG_LOAD, bpf, call, op, set};
use super::packet::membership;

const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const XSKMAP: u32 = 17;
const PROG_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program reads the first fragment only, so frames may have several.
const HAS_FRAGS: u32 = 1 << 5;
/// Attach modes: after the driver (`XDP_FLAGS_SKB_MODE`), in the driver (`XDP_FLAGS_DRV_MODE`).
const GENERIC: u32 = 1 << 1;
const DRIVER: u32 = 1 << 2;
/// The return value that passes a frame to the host's stack.
const PASS: i32 = 2;
/// The BPF function `bpf_redirect_map`, which passes a frame to a socket of a map.
const REDIRECT_MAP: i32 = 51;

/// An XDP program, attached while `link` is open.
#[derive(Debug)]
pub struct Steering {
    /// The map from queue numbers to sockets.
    pub map: OwnedFd,
    /// The link that keeps the program attached.
    pub link: OwnedFd,
    /// The socket that makes the interface accept frames for the filter's addresses.
    pub membership: OwnedFd,
    /// The program runs in the driver, before the kernel allocates a socket buffer.
    pub native: bool,
}

/// Attaches a program for queues `0..queues` to the interface of this index in the thread's
/// namespace: in the driver, or after it if the driver does not support XDP.
///
/// # Errors
/// `EPERM`; `EBUSY` if another program is attached.
pub fn attach(filter: &Filter, queues: u32, index: u32) -> Result<Steering, Errno> {
    let mut attr = Attr::default();
    attr.put(0, XSKMAP);
    attr.put(4, 4);
    attr.put(8, 4);
    attr.put(12, queues);
    // SAFETY: no addresses are in it.
    let map = unsafe { bpf(MAP_CREATE, &attr) }?;
    let membership = membership(index, &filter.macs).map_err(|errno| match errno {
        // A sandbox answers EAFNOSUPPORT.
        Errno::AFNOSUPPORT => Errno::PERM,
        errno => errno,
    })?;
    let program = load(&code(filter, map.as_raw_fd()))?;
    let (link, native) = match link(&program, index, DRIVER) {
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::RANGE) => {
            (link(&program, index, GENERIC)?, false)
        }
        link => (link?, true),
    };
    Ok(Steering { map, link, membership, native })
}

/// Directs the frames of a queue to a socket.
///
/// # Errors
/// The error of the system call.
pub fn enter(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let socket = socket.as_raw_fd();
    let mut attr = Attr::default();
    attr.put(0, map.as_raw_fd().cast_unsigned());
    attr.put_address(8, (&raw const queue).addr());
    attr.put_address(16, (&raw const socket).addr());
    // SAFETY: the kernel reads a key and a value of four bytes, which live until it returns.
    unsafe { call(MAP_UPDATE, &attr) }.map(drop)
}

fn load(code: &[u64]) -> Result<OwnedFd, Errno> {
    let license = c"Dual MIT/GPL";
    let load = |flags| {
        let mut attr = Attr::default();
        attr.put(0, PROG_XDP);
        attr.put(4, u32::try_from(code.len()).expect("short"));
        attr.put_address(8, code.as_ptr().addr());
        attr.put_address(16, license.as_ptr().addr());
        attr.put(44, flags);
        // SAFETY: the kernel reads the program and the licence, which live until it returns.
        unsafe { bpf(PROG_LOAD, &attr) }
    };
    match load(HAS_FRAGS) {
        // Kernels before 5.18 do not know the flag.
        Err(Errno::INVAL) => load(0),
        loaded => loaded,
    }
}

fn link(program: &OwnedFd, index: u32, mode: u32) -> Result<OwnedFd, Errno> {
    let mut attr = Attr::default();
    attr.put(0, program.as_raw_fd().cast_unsigned());
    attr.put(4, index);
    attr.put(8, ATTACH_XDP);
    attr.put(12, mode);
    // SAFETY: no addresses are in it.
    unsafe { bpf(LINK_CREATE, &attr) }
}

/// Registers: return value and scratch, context, frame, end of frame, queue, scratch.
const R0: u8 = 0;
const CONTEXT: u8 = 1;
const DATA: u8 = 2;
const END: u8 = 3;
const QUEUE: u8 = 4;
const R5: u8 = 5;
const TYPE: u8 = 6;
const VLAN: u8 = 7;

/// A value that no VLAN ID has: those have 12 bits.
const UNTAGGED: i32 = 0x1_0000;

/// A program whose jumps to the end are filled in when the end is known.
#[derive(Default)]
struct Code {
    words: Vec<u64>,
    /// Jumps to the instructions that pass the frame to the stack.
    leave: Vec<usize>,
}

fn takes_all(filter: &Filter) -> bool {
    filter.macs.is_empty() && filter.vlans.is_empty() && filter.types.is_empty()
}

fn code(filter: &Filter, map: i32) -> Vec<u64> {
    let mut code = Code::default();
    code.words.push(load_word(QUEUE, CONTEXT, 16));
    if !takes_all(filter) {
        code.words.extend([load_word(DATA, CONTEXT, 0), load_word(END, CONTEXT, 4)]);
        code.check(filter);
    }
    let map = op(0x18, CONTEXT, 1, 0, map);
    let copy = op(0xbf, DATA, QUEUE, 0, 0);
    code.words.extend([map, 0, copy, set(END, PASS), op(0x85, 0, 0, 0, REDIRECT_MAP), EXIT]);
    let end = code.words.len();
    let leave = std::mem::take(&mut code.leave);
    // The verifier rejects programs with unreachable instructions.
    if !leave.is_empty() {
        code.words.extend([set(R0, PASS), EXIT]);
    }
    leave.into_iter().for_each(|at| code.land(at, end));
    code.words
}

impl Code {
    fn check(&mut self, filter: &Filter) {
        self.bound(14);
        let macs = filter.macs.iter().map(|mac| {
            let mac = mac.octets();
            let low = i32::from_ne_bytes(mac[..4].try_into().expect("four"));
            let high = i32::from(u16::from_ne_bytes([mac[4], mac[5]]));
            vec![(R0, low), (R5, high)]
        });
        self.words.extend([load_word(R0, DATA, 0), load_half(R5, DATA, 4)]);
        self.one_of(macs.collect());
        self.read_type();
        let vlans = filter.vlans.iter().map(|vlan| vec![(VLAN, wire(*vlan))]);
        self.one_of(vlans.collect());
        let types = filter.types.iter().map(|kind| vec![(TYPE, wire(*kind))]);
        self.one_of(types.collect());
    }

    /// Passes frames that are shorter than this.
    fn bound(&mut self, bytes: i32) {
        self.words.extend([op(0xbf, R5, DATA, 0, 0), op(0x07, R5, 0, 0, bytes)]);
        self.leave.push(self.words.len());
        self.words.push(op(0x2d, R5, END, 0, 0));
    }

    /// Loads the EtherType, and the VLAN ID of a tagged frame.
    fn read_type(&mut self) {
        const ID: u16 = 0x0fff;
        self.words.extend([load_half(TYPE, DATA, 12), set(VLAN, UNTAGGED)]);
        let tags = [0x8100, 0x88a8];
        let before = self.words.len();
        self.words
            .extend([op(0x15, TYPE, 0, 1, wire(tags[0])), op(0x55, TYPE, 0, 0, wire(tags[1]))]);
        self.bound(18);
        self.words.extend([load_half(VLAN, DATA, 14), op(0x57, VLAN, 0, 0, wire(ID))]);
        self.words.push(load_half(TYPE, DATA, 16));
        self.land(before + 1, self.words.len());
    }

    /// Continues if all registers of one alternative have its values, or if there are none; passes
    /// the frame otherwise.
    fn one_of(&mut self, wanted: Vec<Vec<(u8, i32)>>) {
        if wanted.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for values in wanted {
            let next = self.words.len() + values.len() + 1;
            for (register, value) in values {
                let skip = i16::try_from(next - self.words.len() - 1).expect("two");
                self.words.push(op(0x56, register, 0, skip, value));
            }
            found.push(self.words.len());
            self.words.push(op(0x05, 0, 0, 0, 0));
        }
        self.leave.push(self.words.len());
        self.words.push(op(0x05, 0, 0, 0, 0));
        for at in found {
            self.land(at, self.words.len());
        }
    }

    /// Makes the jump at `at` go to `to`.
    fn land(&mut self, at: usize, to: usize) {
        let offset = i16::try_from(to - at - 1).expect("a program of a few hundred instructions");
        self.words[at] |= u64::from(offset.cast_unsigned()) << 16;
    }
}

/// A number in network byte order, as a load of its two bytes leaves it in a register.
fn wire(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

fn load_word(to: u8, from: u8, offset: i16) -> u64 {
    op(0x61, to, from, offset, 0)
}

fn load_half(to: u8, from: u8, offset: i16) -> u64 {
    op(0x69, to, from, offset, 0)
}

#[cfg(test)]
mod tests {
    use packet::MacAddr;

    use super::*;

    /// Interprets a program over a frame; returns whether the frame goes to a socket.
    fn takes(filter: &Filter, frame: &[u8]) -> bool {
        let code = code(filter, 0);
        let (mut at, mut r) = (0usize, [0u64; 11]);
        for _ in 0..code.len() {
            let word = code[at];
            let (to, from) = ((word >> 8 & 0xf) as usize, (word >> 12 & 0xf) as usize);
            let [_, _, low, high, number @ ..] = word.to_le_bytes();
            let offset = isize::from(i16::from_le_bytes([low, high]));
            let number = i64::from(i32::from_le_bytes(number)).cast_unsigned();
            let read = |at: u64, n: usize| {
                let at = usize::try_from(at).unwrap() + offset.cast_unsigned();
                frame[at..at + n].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
            };
            let mut jump = false;
            match word & 0xff {
                0x61 if from == 1 => r[to] = if offset == 4 { frame.len() as u64 } else { 0 },
                0x61 => r[to] = read(r[from], 4),
                0x69 => r[to] = read(r[from], 2),
                0xbf => r[to] = r[from],
                0xb7 => r[to] = number,
                0x07 => r[to] += number,
                0x57 => r[to] &= number,
                0x2d => jump = r[to] > r[from],
                0x15 => jump = r[to] == number,
                0x55 => jump = r[to] != number,
                0x56 => jump = (r[to] ^ number) << 32 != 0,
                0x05 => jump = true,
                0x18 => at += 1,
                0x85 => return true,
                0x95 => return false,
                other => panic!("{other:#x}"),
            }
            at = (at + 1).wrapping_add_signed(if jump { offset } else { 0 });
        }
        panic!("no end");
    }

    fn frame(to: u8, tag: Option<u16>, kind: u16) -> Vec<u8> {
        let mut frame = vec![0xfe, 0xff, 0xff, 0xff, 0xff, to, 2, 0, 0, 0, 0, 9];
        if let Some(tci) = tag {
            frame.extend([0x81, 0]);
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(kind.to_be_bytes());
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn a_filter_takes_what_matches_one_value_of_each_kind() {
        let mac = |last| MacAddr::new([0xfe, 0xff, 0xff, 0xff, 0xff, last]);
        let all = Filter::default();
        assert!(takes(&all, &frame(1, None, 0x0800)) && takes(&all, &[]));
        let macs = Filter { macs: vec![mac(1), mac(2)], ..Filter::default() };
        assert!(takes(&macs, &frame(1, None, 0x0800)) && takes(&macs, &frame(2, Some(5), 0x0800)));
        assert!(!takes(&macs, &frame(3, None, 0x0800)) && !takes(&macs, &[0xfe; 13]));
        let vlans = Filter { vlans: vec![5, 4094], ..macs.clone() };
        assert!(takes(&vlans, &frame(1, Some(5), 0x0800)), "in one of them");
        assert!(takes(&vlans, &frame(2, Some(0xe000 | 4094), 0x0800)), "whatever its priority");
        assert!(!takes(&vlans, &frame(1, Some(6), 0x0800)));
        assert!(!takes(&vlans, &frame(1, None, 0x0800)), "untagged");
        assert!(!takes(&vlans, &frame(3, Some(5), 0x0800)), "to others");
        let types = Filter { types: vec![0x0806, 0x88b5], ..Filter::default() };
        assert!(
            takes(&types, &frame(9, None, 0x88b5)) && takes(&types, &frame(9, Some(1), 0x0806))
        );
        assert!(!takes(&types, &frame(9, None, 0x0800)));
        assert!(!takes(&types, &frame(9, None, 0x8100)[..17]), "cut off in the tag");
    }

    #[test]
    fn the_longest_filter_has_a_program() {
        let many = 0..u16::try_from(Filter::VALUES_MAX).unwrap();
        let macs =
            many.clone().map(|i| MacAddr::new([2, 0, 0, 0, 1, i.to_le_bytes()[0]])).collect();
        let filter = Filter { macs, vlans: many.clone().collect(), types: many.collect() };
        assert!(code(&filter, 3).len() < 4096);
    }
}

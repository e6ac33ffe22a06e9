//! Which of the sockets that share a UDP port gets a VXLAN datagram: the kernel asks a program of
//! classic BPF, which reads the VNI and returns the socket's index.
//!
//! ```text
//!    len < 8? ───────────────────────────────► the index for what has no VNI
//!    VNI ≥ middle? ─ yes ─► VNI ≥ …? ─ … ────► the index of a range of VNIs
//!                  └ no ──► VNI ≥ …? ─ …
//! ```
//!
//! A search of the ranges of VNIs with one index, so the cost grows with the logarithm of their
//! number. The kernel counts sockets in the order in which they were bound; when one is closed, the
//! last takes its place.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use libc::sock_filter;

use super::udp::{attach, detach};

/// Instructions, of class, size and mode.
mod code {
    pub const LOAD_LENGTH: u16 = 0x80;
    pub const LOAD_WORD: u16 = 0x20;
    pub const SHIFT_RIGHT: u16 = 0x74;
    pub const JUMP: u16 = 0x05;
    pub const JUMP_IF_AT_LEAST: u16 = 0x35;
    pub const RETURN: u16 = 0x06;
}

/// The header of VXLAN, and where the VNI stands, in the upper 24 bits of a word.
const HEADER: u32 = 8;
const VNI_AT: u32 = 4;
const VNI_SHIFT: u32 = 8;

/// From a VNI on, the index of the socket that gets datagrams.
type Step = (u32, u32);

/// Steers datagrams to the sockets that share the address of `socket`: those of a VNI to the index
/// that the map names, all others to index `other`.
///
/// # Errors
/// The system refused; there are too many VNIs. Then the kernel spreads datagrams by their flows.
pub fn steer(socket: &OwnedFd, vnis: &BTreeMap<u32, u32>, other: u32) -> io::Result<()> {
    let mut program = program(&steps(vnis, other), other);
    let attached = attach(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &mut program);
    attached.inspect_err(|_| {
        // An older program has indexes that are others' now.
        let _ = detach(socket);
    })
}

/// Ends a program with a value.
const fn give(value: u32) -> sock_filter {
    op(code::RETURN, value)
}

const fn op(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// If the value is `k` at least, the next instruction follows, else the one behind that.
const fn at_least(k: u32) -> sock_filter {
    sock_filter { code: code::JUMP_IF_AT_LEAST, jt: 0, jf: 1, k }
}

/// The VNIs from which on another index holds, in order.
fn steps(vnis: &BTreeMap<u32, u32>, other: u32) -> Vec<Step> {
    let mut steps = vec![(0, other)];
    let mut add = |from, index| match steps.last_mut() {
        Some(last) if last.0 == from => last.1 = index,
        Some(last) if last.1 == index => {}
        _ => steps.push((from, index)),
    };
    for (&vni, &index) in vnis {
        add(vni, index);
        if !vnis.contains_key(&(vni + 1)) {
            add(vni + 1, other);
        }
    }
    steps
}

fn program(steps: &[Step], other: u32) -> Vec<sock_filter> {
    let mut program = vec![
        op(code::LOAD_LENGTH, 0),
        sock_filter { jt: 1, jf: 0, ..at_least(HEADER) },
        give(other),
        op(code::LOAD_WORD, VNI_AT),
        op(code::SHIFT_RIGHT, VNI_SHIFT),
    ];
    program.extend(search(steps));
    program
}

fn search(steps: &[Step]) -> Vec<sock_filter> {
    if let [(_, index)] = steps {
        return vec![give(*index)];
    }
    let (below, above) = steps.split_at(steps.len() / 2);
    let (low, high) = (search(below), search(above));
    let over = u32::try_from(low.len()).expect("few VNIs");
    [vec![at_least(above[0].0), op(code::JUMP, over)], low, high].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the kernel makes of a program, for a payload.
    fn run(program: &[sock_filter], payload: &[u8]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                code::LOAD_LENGTH => value = u32::try_from(payload.len()).expect("short"),
                code::LOAD_WORD => {
                    let word = payload[k as usize..].first_chunk().expect("it is that long");
                    value = u32::from_be_bytes(*word);
                }
                code::SHIFT_RIGHT => value >>= k,
                code::JUMP => at += k as usize,
                code::JUMP_IF_AT_LEAST => at += usize::from(if value >= k { jt } else { jf }),
                code::RETURN => return k,
                other => panic!("no instruction {other}"),
            }
        }
    }

    proptest! {
        #[test]
        fn a_datagram_goes_where_its_vni_says_and_others_to_one_place(
            vnis in prop::collection::btree_map(0u32..40, 0u32..4, 0..20),
            top in prop::collection::btree_map(0xff_fff0u32..=0xff_ffff, 0u32..4, 0..4),
            probe in prop_oneof![0u32..42, 0xff_ffeeu32..=0xff_ffff],
            len in 0usize..12,
        ) {
            let vnis: BTreeMap<_, _> = vnis.into_iter().chain(top).collect();
            let program = program(&steps(&vnis, 9), 9);
            let [_, a, b, c] = probe.to_be_bytes();
            let payload = [8, 0, 0, 0, a, b, c, 0xff, 1, 2, 3, 4];
            let expected = vnis.get(&probe).copied().filter(|_| len >= 8).unwrap_or(9);
            prop_assert_eq!(run(&program, &payload[..len]), expected);
        }
    }

    #[test]
    fn ranges_of_vnis_with_one_place_cost_one_step() {
        let vnis = (1000..1256).map(|vni| (vni, 3)).collect();
        assert_eq!(steps(&vnis, 0), [(0, 0), (1000, 3), (1256, 0)]);
        let apart: BTreeMap<_, _> = (0..256).map(|i| (i * 7 + 1, i)).collect();
        let program = program(&steps(&apart, 0), 0);
        // Linux before 6.7 takes programs of 20 KiB, of which each of these becomes up to 16 bytes.
        assert!(program.len() < 1700, "{}", program.len());
    }
}

//! For tests of what moves frames: ports of which one thread has both halves.

use std::os::fd::AsFd;

use crate::format::cursor::RingSize;
use crate::format::layout::{DEFAULT_STRIDE, FIRST_BLOCK, PortLayout, RegionLayout, RingCounts};
use crate::group::owners::Owner;
use crate::kring::krings::Krings;
use crate::region::Region;
use crate::user::{RxRing, TxRing};

/// The switch's half, and the client's.
pub(crate) struct BothHalves {
    pub host: Krings,
    pub tx: TxRing,
    pub rx: RxRing,
}

/// A port alone in its region.
pub(crate) fn port() -> BothHalves {
    let [port] = ports();
    port
}

/// Ports of two rings of 16 slots in one region, each with its own buffers.
pub(crate) fn ports<const N: usize>() -> [BothHalves; N] {
    let slots = RingSize::new(16).expect("legal");
    let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
    let size = PortLayout::new(FIRST_BLOCK, counts).end() - FIRST_BLOCK;
    let buffers = counts.buffers() * u32::try_from(N).expect("few");
    let layout = RegionLayout::new(size * N, DEFAULT_STRIDE, buffers).expect("legal");
    let (region, fd) = Region::create_shared("test", layout).expect("memory");
    let client = Region::attach(fd.as_fd(), layout).expect("sealed");
    let mut free = region.buffers();
    std::array::from_fn(|i| {
        let port = PortLayout::new(FIRST_BLOCK + i * size, counts);
        let own: Vec<_> = free.by_ref().take(counts.buffers() as usize).collect();
        for &buffer in &own {
            assert!(region.owners().pass(buffer, Owner::POOL, Owner::of(&port)));
        }
        region.format_port("test", &port, own, N == 1).expect("memory");
        let (tx, rx) = (TxRing::new(&client, &port, 0), RxRing::new(&client, &port, 0));
        BothHalves { host: Krings::new(&region, &port), tx, rx }
    })
}

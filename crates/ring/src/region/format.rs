//! What the daemon writes when it makes a port: `netmap_if`, rings, slots and CSB.

use std::io;
use std::ops::Range;

use super::Region;
use crate::format::abi::{NetmapIf, NetmapRing, Slot, dir};
use crate::format::cursor::RingSize;
use crate::format::held::{HeldRings, HeldSides};
use crate::format::layout::{BufferIndex, PortLayout, RingCounts};

impl Region {
    /// Writes the structures of a port that owns the buffers `buffers`, in slot order, TX first.
    ///
    /// # Errors
    /// `ENOMEM` where the memory cannot be committed.
    ///
    /// # Panics
    /// If there are fewer buffers than slots, or the block does not lie before the pool.
    pub fn format_port(
        &self,
        name: &str,
        port: &PortLayout,
        buffers: impl IntoIterator<Item = BufferIndex>,
        private: bool,
    ) -> io::Result<()> {
        assert!(port.end() <= self.layout.pool);
        self.memory.populate(port.nifp(), port.end() - port.nifp())?;
        self.format_interface(name, port, private);
        self.format_csb(port);
        let mut buffers = buffers.into_iter();
        let counts = port.counts();
        for i in 0..counts.tx_rings {
            self.format_ring(port, usize::from(i), dir::TX, i, &mut buffers);
        }
        for i in 0..counts.rx_rings {
            self.format_ring(port, usize::from(counts.tx_rings + i), dir::RX, i, &mut buffers);
        }
        Ok(())
    }

    fn format_interface(&self, name: &str, port: &PortLayout, private: bool) {
        let RingCounts { tx_rings, rx_rings, .. } = port.counts();
        let all = HeldRings { port: *port, tx: 0..tx_rings, rx: 0..rx_rings };
        self.format_nifp(port.nifp(), name, &HeldSides { nic: Some(all), host: None }, private);
    }

    /// Writes a `netmap_if` with the offsets of rings on loan.
    pub(crate) fn format_nifp(&self, nifp: usize, name: &str, sides: &HeldSides, private: bool) {
        let (nic, host) = (HeldRings::counts(&sides.nic), HeldRings::counts(&sides.host));
        let mut head = NetmapIf {
            ni_flags: if private { crate::format::abi::NI_PRIV_MEM } else { 0 },
            ni_tx_rings: nic[0],
            ni_rx_rings: nic[1],
            ni_host_tx_rings: host[0],
            ni_host_rx_rings: host[1],
            ..NetmapIf::default()
        };
        for (to, from) in head.ni_name.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        self.memory.write(nifp, head);
        let directions = [dir::TX, dir::RX].into_iter();
        let rings =
            directions.flat_map(|dir| sides.both().map(move |it| HeldRings::rings(it, dir)));
        for (i, ring) in rings.flatten().enumerate() {
            let offset = ring.map_or(0, |at| (at - nifp) as u64);
            self.memory.write(nifp + size_of::<NetmapIf>() + i * size_of::<i64>(), offset);
        }
    }

    /// A ring starts empty for the switch: all transmit slots are the client's, no receive slot is.
    fn format_csb(&self, port: &PortLayout) {
        let counts = port.counts();
        let (tx, rx) = (usize::from(counts.tx_rings), usize::from(counts.rx_rings));
        for i in 0..tx + rx {
            let hwtail = if i < tx { counts.tx_slots.slots() - 1 } else { 0 };
            for word in [port.atok(i), port.atok(i) + 4, port.atok(i) + 8, port.atok(i) + 12] {
                self.memory.write(word, 0u32);
            }
            self.memory.write(port.ktoa(i), 0u32);
            self.memory.write(port.ktoa(i) + 4, hwtail);
            self.memory.write(port.ktoa(i) + 8, u32::from(i < tx));
            self.memory.write(port.ktoa(i) + 12, 0u32);
            self.memory.write(port.atok(i) + 16, 0u64);
            self.memory.write(port.atok(i) + 24, 0u64);
            self.memory.write(port.atok(i) + 32, 0u32);
        }
        self.memory.write(port.bell(), 0u32);
        self.memory.write(port.bell() + 4, 0u32);
        self.memory.write(port.bell() + 8, 0u32);
    }

    fn format_ring(
        &self,
        port: &PortLayout,
        ring: usize,
        dir: u16,
        ringid: u16,
        buffers: &mut impl Iterator<Item = BufferIndex>,
    ) {
        let counts = port.counts();
        let slots = if dir == dir::TX { counts.tx_slots } else { counts.rx_slots };
        let at = port.ring(ring);
        let buf_ofs = i64::try_from(self.layout.pool - at).expect("a region is below 4 GiB");
        let head = NetmapRing::new(dir, ringid, slots.slots(), buf_ofs, self.layout.stride);
        self.memory.write(at, head);
        // As netmap's kernel does: programs take it for the room in the buffer.
        let len = u16::try_from(self.layout.stride).expect("a stride is below 64 KiB");
        for i in 0..slots.slots() as usize {
            let buffer = buffers.next().expect("a buffer for every slot");
            let slot = Slot { buf_idx: buffer.get(), len, ..Slot::default() };
            self.memory.write(at + size_of::<NetmapRing>() + i * size_of::<Slot>(), slot);
        }
    }

    /// The buffers that stand in the slots of a port now. Peers may have written anything; what is
    /// no buffer's index is left out.
    pub fn slot_buffers(&self, port: &PortLayout) -> impl Iterator<Item = BufferIndex> + '_ {
        let (tx, rx) = self.ring_buffers(port);
        tx.chain(rx)
    }

    /// The buffers in the slots of a port's transmit rings, and of its receive rings.
    pub(crate) fn ring_buffers(
        &self,
        port: &PortLayout,
    ) -> (impl Iterator<Item = BufferIndex> + use<'_>, impl Iterator<Item = BufferIndex> + use<'_>)
    {
        let (port, counts) = (*port, port.counts());
        let (tx, rx) = (usize::from(counts.tx_rings), usize::from(counts.rx_rings));
        let of = move |rings: Range<usize>, span: RingSize| {
            let slots = move |ring: usize| {
                let first = port.ring(ring) + size_of::<NetmapRing>();
                (0..span.slots() as usize).map(move |i| first + i * size_of::<Slot>())
            };
            rings.flat_map(slots).filter_map(|at| self.check(self.memory.read::<u32>(at)))
        };
        (of(0..tx, counts.tx_slots), of(tx..tx + rx, counts.rx_slots))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::format::abi::CsbAtok;
    use crate::format::cursor::RingSize;
    use crate::format::layout::{DEFAULT_STRIDE, FIRST_BLOCK, RegionLayout, RingCounts};
    use crate::kring::krings::Krings;

    #[test]
    fn a_port_does_not_inherit_the_counts_of_calls_of_an_earlier_one() {
        let slots = RingSize::new(16).expect("legal");
        let counts = RingCounts { tx_rings: 1, rx_rings: 1, tx_slots: slots, rx_slots: slots };
        let port = PortLayout::new(FIRST_BLOCK, counts);
        let size = port.end() - FIRST_BLOCK;
        let layout = RegionLayout::new(size, DEFAULT_STRIDE, counts.buffers()).expect("legal");
        let (region, _fd) = Region::create_shared("test", layout).expect("memory");
        let atok = port.atok(counts.tx_rings.into());
        for at in [offset_of!(CsbAtok, called), offset_of!(CsbAtok, passed)] {
            region.memory().write(atok + at, 7u64);
        }
        region.format_port("test", &port, region.buffers(), true).expect("memory");
        assert_eq!(Krings::new(&region, &port).calls(), [0, 0]);
    }

    #[test]
    fn the_length_of_a_new_slot_is_the_room_in_its_buffer() {
        let [a, _] = crate::fixture::ports();
        let slots = a.host.rx[0].slots();
        let rings = [a.host.tx[0].view(), a.host.rx[0].view()];
        for ring in rings {
            let index = |i| ring.span.check(i).expect("a slot");
            assert!((0..slots).all(|i| ring.read(index(i)).len() == 2112));
        }
    }
}

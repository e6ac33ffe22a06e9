//! What a host may send to a VXLAN port.
//!
//! ```text
//!   input ──► messages of datagrams, from remotes and others ──► inlet ──► frames of a turn
//! ```
//!
//! The inlet is the one that a worker calls, with messages as the kernel joins them. A model reads
//! each datagram in the plainest way.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packet::vxlan::{Vni, header};
use packet::{MacAddr, VlanId};
use port::sys::udp::Received;
use port::vxlan::inlet::Inlet;
use port::vxlan::neighbours::Neighbours;
use port::vxlan::networks::Networks;
use port::vxlan::remotes::Remotes;
use protocol::VxlanStation;
use switch::receive::batch::{Batch, Delivery};
use switch::{DropReason, Drops, Now, TagAction};

use crate::Input;

/// Messages of an input. More of them only take longer.
const MESSAGES: usize = 32;
const VNI: u8 = 7;
const VLAN: u16 = 5;
/// The network of another port of the address.
const OTHER: u8 = 9;
/// The station that is static behind the first remote.
const FIXED: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 1]);

/// Whatever hosts send, frames of the port's network from its remotes are delivered, in order and
/// as they are; each other datagram is counted once, with its reason; and a station is behind the
/// remote that it was heard from last, unless it is static.
pub fn vxlan_datagram(data: &[u8]) {
    run(data);
}

/// Returns how many frames were delivered, and how many datagrams dropped.
fn run(data: &[u8]) -> [u64; 2] {
    let mut input = Input(data);
    let mut world = World::new(input.below(2) == 1);
    for _ in 0..MESSAGES {
        if input.is_empty() {
            break;
        }
        world.message(&mut input);
    }
    [world.delivered, world.drops.total()]
}

fn host(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

struct World {
    inlet: Inlet,
    /// The VLAN of the port's network, if it is that of one.
    vlan: Option<VlanId>,
    drops: Drops,
    delivered: u64,
    /// What another port of the address has got.
    handed: Vec<Vec<u8>>,
    /// The drops that the model has counted, and where it has heard stations last.
    expected: BTreeMap<DropReason, u64>,
    homes: BTreeMap<MacAddr, u8>,
}

impl World {
    fn new(is_of_vlan: bool) -> Self {
        let mut remotes = Remotes::new(4789, 0, 1);
        remotes.set(&[host(2), host(3)], &[VxlanStation { mac: FIXED, remote: host(2) }]);
        let vni = Vni::new(VNI.into()).expect("24 bits");
        let neighbours = Neighbours::default();
        let vlan = VlanId::new(VLAN).filter(|_| is_of_vlan);
        let networks = match vlan {
            Some(vlan) => Networks::OfVlans([(vlan, vni)].into(), [(vni, vlan)].into()),
            None => Networks::One(vni),
        };
        let inlet = Inlet::new(networks, host(1), true, remotes, neighbours).expect("memory");
        let homes = BTreeMap::from([(FIXED, 2)]);
        let (drops, expected) = (Drops::default(), BTreeMap::new());
        Self { inlet, vlan, drops, delivered: 0, handed: Vec::new(), expected, homes }
    }

    /// One message: its sender, the length of its datagrams, and the bytes, which are noise behind
    /// a header that is often right.
    fn message(&mut self, input: &mut Input<'_>) {
        let from = [2, 2, 3, 9][input.below(4)];
        let segment = [1, 7, 8, 21, 22, 23, 68, 1522][input.below(8)];
        let count = input.below(8);
        let mut bytes = Vec::new();
        for _ in 0..count {
            let mut datagram = vec![0; segment];
            let noise = input.bytes::<24>();
            datagram.iter_mut().zip(noise).for_each(|(to, byte)| *to = byte);
            if input.below(4) > 0 {
                let vni = [VNI, VNI, VNI, OTHER][input.below(4)];
                let vni = Vni::new(vni.into()).expect("24 bits");
                datagram.iter_mut().zip(header(vni)).for_each(|(to, byte)| *to = byte);
            }
            bytes.extend(datagram);
        }
        bytes.truncate(bytes.len().saturating_sub(input.below(segment.min(256))));
        let (frames, others) = self.model(from, &bytes, segment);
        assert!(self.take(from, &bytes, segment) == frames, "the frames, in order");
        assert!(std::mem::take(&mut self.handed) == others, "another port's, in order");
        for reason in DropReason::ALL {
            let expected = self.expected.get(&reason).copied().unwrap_or(0);
            assert_eq!(self.drops.get(reason), expected, "{}", reason.name());
        }
        for (&mac, &home) in &self.homes {
            let number = self.inlet.remotes.number(host(home));
            let vlan = self.vlan.unwrap_or(VlanId::DEFAULT);
            assert_eq!(self.inlet.remotes.find(vlan, mac, Now::START), number, "{mac}");
        }
    }

    fn take(&mut self, from: u8, bytes: &[u8], segment: usize) -> Vec<Vec<u8>> {
        let (mut frames, mut at) = (Vec::new(), Some(0));
        let mut batch = Batch::new(5);
        while let Some(start) = at {
            self.inlet.begin(&mut batch);
            let received = Received { from: host(from), bytes, segment };
            let (to, handed) = ((&mut batch, &mut self.drops), &mut self.handed);
            at = self.inlet.take(received, start, Now::START, to, |vni, _, datagram| {
                let is_others = vni.get() == u32::from(OTHER);
                handed.extend(is_others.then(|| datagram.to_vec()));
                is_others
            });
            for frame in 0..u16::try_from(batch.frames().len()).expect("five at most") {
                let mut out = Vec::new();
                batch.append(Delivery { frame, tag: TagAction::Keep }, &mut out);
                frames.push(out);
            }
        }
        self.delivered += frames.len() as u64;
        frames
    }

    /// What the port is to make of a message.
    fn model(&mut self, from: u8, bytes: &[u8], segment: usize) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let none: &[u8] = &[];
        let datagrams: Vec<&[u8]> =
            if bytes.is_empty() { vec![none] } else { bytes.chunks(segment).collect() };
        let (mut frames, mut others) = (Vec::new(), Vec::new());
        for datagram in datagrams {
            if let [flags, _, _, _, 0, 0, OTHER, _, ..] = datagram
                && flags & 8 != 0
            {
                others.push(datagram.to_vec());
                continue;
            }
            match self.read(from, datagram) {
                Ok(frame) => frames.push(self.tagged(frame)),
                Err(why) => *self.expected.entry(why).or_default() += 1,
            }
        }
        (frames, others)
    }

    fn tagged(&self, frame: &[u8]) -> Vec<u8> {
        let tag = self.vlan.map_or(vec![], |_| [&[0x81, 0][..], &VLAN.to_be_bytes()].concat());
        [&frame[..12], &tag, &frame[12..]].concat()
    }

    fn read<'a>(&mut self, from: u8, datagram: &'a [u8]) -> Result<&'a [u8], DropReason> {
        if from == 9 {
            return Err(DropReason::VxlanRemote);
        }
        let [flags, _, _, _, a, b, c, _, frame @ ..] = datagram else {
            return Err(DropReason::VxlanHeader);
        };
        if flags & 8 == 0 {
            return Err(DropReason::VxlanHeader);
        }
        if [*a, *b, *c] != [0, 0, VNI] {
            return Err(DropReason::VxlanVni);
        }
        let [_, _, _, _, _, _, a, b, c, d, e, f, _, _, ..] = *frame else {
            return Err(DropReason::TooShort);
        };
        if self.vlan.is_some() && [[0x81, 0], [0x88, 0xa8]].iter().any(|tag| frame[12..14] == *tag)
        {
            return Err(DropReason::NestedTag);
        }
        let source = MacAddr::new([a, b, c, d, e, f]);
        if source == FIXED && from != 2 {
            return Err(DropReason::VxlanRemote);
        }
        if source.is_station() {
            self.homes.insert(source, from);
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_gets_frames_through_and_others_dropped() {
        let noise = crate::noise();
        let parts = noise.chunks(900).map(run);
        let [delivered, dropped] = parts.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
        assert!(delivered > 500 && dropped > 500, "{delivered} {dropped}");
    }
}

//! What others have sent to a VXLAN port: checked, learned from, and put into the batch.
//!
//! No byte of a datagram is trusted. A datagram of another port's network goes to that port
//! ([`address`](super::address)). Any other has to come from a remote, or the port drops and counts
//! it; but one without a frame, from the port's own address, only wakes its worker.

use std::io;
use std::net::IpAddr;

use packet::bytes::mac_at;
use packet::vxlan::{self, Vni};
use packet::{PortId, VlanId};
use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use switch::receive::batch::Batch;
use switch::{DropReason, Drops, Now};

use super::neighbours::Neighbours;
use super::networks::{Networks, TAG};
use super::remotes::{Remotes, Stolen};
use crate::sys::udp::Received;

/// Where the source address is in a frame.
const SOURCE: usize = 6;

/// The way in of a port.
pub struct Inlet {
    /// The networks whose frames it takes.
    pub networks: Networks,
    local: IpAddr,
    /// Source addresses are learned.
    pub learning: bool,
    /// The remotes, and the stations behind them.
    pub remotes: Remotes,
    /// Which station has which IP address.
    pub neighbours: Neighbours,
    intake: Intake,
}

impl Inlet {
    /// Takes frames of these networks from these remotes, at this address.
    ///
    /// # Errors
    /// No memory for received frames.
    pub fn new(
        networks: Networks,
        local: IpAddr,
        learning: bool,
        remotes: Remotes,
        neighbours: Neighbours,
    ) -> io::Result<Self> {
        let intake = Intake::new(FRAMES, STANDARD_FRAME)?;
        Ok(Self { networks, local, learning, remotes, neighbours, intake })
    }

    /// Begins a batch, in place of the last one.
    pub fn begin(&mut self, batch: &mut Batch) {
        self.intake.clear();
        batch.restart(self.intake.region());
    }

    /// Takes the datagrams of a message from byte `at` on. `Some`: the batch is full, and the rest
    /// begins there. `hand_over` is asked for each datagram of another network: whether it was for
    /// another port, which has it now.
    pub fn take(
        &mut self,
        received: Received<'_>,
        mut at: usize,
        now: Now,
        (batch, drops): (&mut Batch, &mut Drops),
        mut hand_over: impl FnMut(Vni, IpAddr, &[u8]) -> bool,
    ) -> Option<usize> {
        let Received { from, bytes, segment } = received;
        let remote = self.remotes.number(from);
        loop {
            if !self.has_room(batch) {
                return Some(at);
            }
            let end = bytes.len().min(at + segment);
            let datagram = bytes.get(at..end).unwrap_or_default();
            if let Err(why) = self.take_one(datagram, from, remote, now, batch, &mut hand_over) {
                drops.add(why, 1);
            }
            at = end;
            if at >= bytes.len() {
                return None;
            }
        }
    }

    /// Whether a batch takes one more frame.
    #[must_use]
    pub fn has_room(&self, batch: &Batch) -> bool {
        batch.has_room() && self.intake.fits(FRAME_MAX as usize)
    }

    /// Puts a frame, given in pieces, into a batch that has room.
    pub fn put(&mut self, pieces: &[&[u8]], batch: &mut Batch) {
        let first = batch.frags().len();
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.intake.push(pieces, batch.frags());
        batch.push_received(first, u32::try_from(len).expect("bounded"));
    }

    /// Puts the frame of a datagram into the batch, if it may enter; or hands the datagram over.
    fn take_one(
        &mut self,
        datagram: &[u8],
        from: IpAddr,
        remote: Option<PortId>,
        now: Now,
        batch: &mut Batch,
        hand_over: &mut impl FnMut(Vni, IpAddr, &[u8]) -> bool,
    ) -> Result<(), DropReason> {
        let read = vxlan::read(datagram);
        let inside = read.and_then(|(vni, _)| self.networks.inside(vni));
        match (read, inside) {
            (Some((vni, _)), None) if hand_over(vni, from, datagram) => return Ok(()),
            // The port has sent it to wake its worker.
            (Some((_, [])), Some(_)) if from == self.local => return Ok(()),
            _ => {}
        }
        let remote = remote.ok_or(DropReason::VxlanRemote)?;
        let (_, frame) = read.ok_or(DropReason::VxlanHeader)?;
        let inside = inside.ok_or(DropReason::VxlanVni)?;
        if !self.remotes.is_in(remote, inside.vlan()) {
            return Err(DropReason::VxlanRemote);
        }
        match frame.len() {
            0..ETHERNET => return Err(DropReason::TooShort),
            len if len + inside.more() > FRAME_MAX as usize => return Err(DropReason::TooLong),
            _ => inside.check(frame)?,
        }
        self.learn(inside.vlan(), frame, remote, now)?;
        let is_behind = |mac| self.remotes.find(inside.vlan(), mac, now) == Some(remote);
        self.neighbours.hear_remote(inside.vlan(), frame, is_behind);
        self.put(&inside.tagged(frame, &mut [0; TAG]), batch);
        Ok(())
    }

    fn learn(
        &mut self,
        vlan: VlanId,
        frame: &[u8],
        remote: PortId,
        now: Now,
    ) -> Result<(), DropReason> {
        let source = mac_at(frame, SOURCE);
        let learned = match self.learning {
            true => self.remotes.learn(vlan, source, remote, now),
            false => self.remotes.check(source, remote),
        };
        learned.map_err(|Stolen| DropReason::VxlanRemote)
    }
}

#[cfg(test)]
mod tests {
    use packet::MacAddr;
    use switch::TagAction;
    use switch::receive::batch::Delivery;

    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const VLAN: VlanId = VlanId::DEFAULT;
    const STATION: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);

    fn vni() -> Vni {
        Vni::new(100).expect("24 bits")
    }

    fn inlet() -> Inlet {
        let mut remotes = Remotes::new(4789, 0, 1);
        remotes.set(&[REMOTE], &[]);
        let local = [10, 0, 0, 1].into();
        Inlet::new(Networks::One(vni()), local, true, remotes, Neighbours::default())
            .expect("memory")
    }

    /// A datagram with a frame of this length from the station.
    fn datagram(len: usize) -> Vec<u8> {
        let mut frame = vec![7; len];
        let source = STATION.octets();
        frame.iter_mut().skip(SOURCE).zip(source).for_each(|(to, byte)| *to = byte);
        [&vxlan::header(vni())[..], &frame].concat()
    }

    /// The lengths of frames that are taken, and what was dropped.
    fn take(inlet: &mut Inlet, from: IpAddr, bytes: &[u8], segment: usize) -> (Vec<usize>, Drops) {
        let (mut batch, mut drops, mut lens) = (Batch::new(16), Drops::default(), Vec::new());
        let mut at = Some(0);
        while let Some(start) = at {
            inlet.begin(&mut batch);
            let received = Received { from, bytes, segment };
            let to = (&mut batch, &mut drops);
            at = inlet.take(received, start, Now::START, to, |_, _, _| false);
            for frame in 0..u16::try_from(batch.frames().len()).expect("few") {
                let mut out = Vec::new();
                batch.append(Delivery { frame, tag: TagAction::Keep }, &mut out);
                lens.push(out.len());
            }
        }
        (lens, drops)
    }

    #[test]
    fn joined_datagrams_become_frames_in_order_over_several_batches() {
        let mut inlet = inlet();
        let bytes = [datagram(60).repeat(20), datagram(14)].concat();
        let (lens, drops) = take(&mut inlet, REMOTE, &bytes, 68);
        assert_eq!((lens, drops.total()), ([vec![60; 20], vec![14]].concat(), 0));
        let home = inlet.remotes.find(VLAN, STATION, Now::START);
        assert_eq!(home, inlet.remotes.number(REMOTE));
    }

    #[test]
    fn a_strangers_datagrams_are_counted_and_nothing_is_learned_of_them() {
        let mut inlet = inlet();
        let (lens, drops) = take(&mut inlet, [10, 0, 0, 3].into(), &datagram(60).repeat(3), 68);
        assert_eq!((lens.len(), drops.get(DropReason::VxlanRemote), drops.total()), (0, 3, 3));
        assert_eq!(inlet.remotes.find(VLAN, STATION, Now::START), None);
        assert_eq!(take(&mut inlet, [10, 0, 0, 3].into(), &[], 1).1.total(), 1);
        let own = [10, 0, 0, 1].into();
        assert_eq!(take(&mut inlet, own, &datagram(0), 8).1.total(), 0, "it wakes the worker");
        assert_eq!(take(&mut inlet, own, &datagram(60), 68).1.total(), 1);
    }

    #[test]
    fn of_joined_datagrams_those_of_another_ports_network_go_there_from_any_host() {
        let mut inlet = inlet();
        let mut other = datagram(60);
        other[6] = 101;
        let bytes = [&datagram(60)[..], &other, &datagram(60), &other, &datagram(20)].concat();
        for (from, frames) in [(REMOTE, 3), ([10, 0, 0, 9].into(), 0)] {
            let (mut batch, mut drops) = (Batch::new(16), Drops::default());
            inlet.begin(&mut batch);
            let received = Received { from, bytes: &bytes, segment: 68 };
            let mut handed = Vec::new();
            let to = (&mut batch, &mut drops);
            let left = inlet.take(received, 0, Now::START, to, |vni, host, datagram| {
                handed.push((vni.get(), host, datagram.to_vec()));
                true
            });
            assert_eq!(left, None);
            assert_eq!(handed, vec![(101, from, other.clone()); 2]);
            assert_eq!((batch.frames().len(), drops.total()), (frames, 3 - frames as u64));
        }
    }

    #[test]
    fn a_frame_of_a_vlans_network_gets_its_tag_and_is_learned_there() {
        let mut inlet = inlet();
        let spec = r#"{"local":"10.0.0.1","vlan_vni":["10:100","20:200"]}"#;
        inlet.networks = Networks::of(&serde_json::from_str(spec).expect("a tunnel"));
        assert_eq!(take(&mut inlet, REMOTE, &datagram(60), 68).0, [64]);
        let [ten, twenty] = [10, 20].map(|vlan| VlanId::new(vlan).expect("a VLAN"));
        assert!(inlet.remotes.find(ten, STATION, Now::START).is_some());
        assert_eq!(inlet.remotes.find(twenty, STATION, Now::START), None);
        let mut tagged = datagram(60);
        tagged[20..24].copy_from_slice(&[0x81, 0, 0, 20]);
        let (lens, drops) = take(&mut inlet, REMOTE, &tagged, 68);
        assert_eq!((lens.len(), drops.get(DropReason::NestedTag)), (0, 1), "no way to VLAN 20");
        let longest = datagram(FRAME_MAX as usize - 3);
        assert_eq!(take(&mut inlet, REMOTE, &longest, longest.len()).1.get(DropReason::TooLong), 1);
    }

    #[test]
    fn a_remote_of_some_vlans_sends_into_these_alone() {
        let mut inlet = inlet();
        let spec = r#"{"local":"10.0.0.1","vlan_vni":["10:100","20:200"],
            "extern_remote":["10=10.0.0.2"]}"#;
        let spec: protocol::Vxlan = serde_json::from_str(spec).expect("a tunnel");
        inlet.networks = Networks::of(&spec);
        inlet.remotes.set_vlans(&spec.remote_vlans());
        assert_eq!(take(&mut inlet, REMOTE, &datagram(60), 68).0, [64]);
        let mut other = datagram(60);
        other[6] = 200;
        let (lens, drops) = take(&mut inlet, REMOTE, &other, 68);
        assert_eq!((lens.len(), drops.get(DropReason::VxlanRemote)), (0, 1));
    }

    #[test]
    fn what_is_no_frame_of_this_network_is_dropped_with_its_reason() {
        let mut inlet = inlet();
        let mut other = datagram(60);
        other[6] = 101;
        let mut flagless = datagram(60);
        flagless[0] = 0;
        for (bad, why) in [
            (other, DropReason::VxlanVni),
            (flagless, DropReason::VxlanHeader),
            (datagram(60)[..7].to_vec(), DropReason::VxlanHeader),
            (Vec::new(), DropReason::VxlanHeader),
            (datagram(13), DropReason::TooShort),
        ] {
            let (lens, drops) = take(&mut inlet, REMOTE, &bad, bad.len().max(1));
            assert_eq!((lens.len(), drops.get(why), drops.total()), (0, 1, 1), "{}", why.name());
        }
        assert_eq!(inlet.remotes.find(VLAN, STATION, Now::START), None);
    }

    #[test]
    fn a_station_that_is_static_elsewhere_cannot_be_sent_from() {
        let mut inlet = inlet();
        let other = [10, 0, 0, 3].into();
        let station = protocol::VxlanStation { mac: STATION, remote: other };
        inlet.remotes.set(&[REMOTE, other], &[station]);
        for learning in [true, false] {
            inlet.learning = learning;
            assert_eq!(
                take(&mut inlet, REMOTE, &datagram(60), 68).1.get(DropReason::VxlanRemote),
                1
            );
            assert_eq!(take(&mut inlet, other, &datagram(60), 68).0, [60]);
        }
        inlet.remotes.set(&[REMOTE, other], &[]);
        assert_eq!(take(&mut inlet, REMOTE, &datagram(60), 68).0, [60]);
        assert_eq!(inlet.remotes.find(VLAN, STATION, Now::START), None, "learning is off");
    }
}

//! What others have sent to a VXLAN port: checked, learned from, and put into the batch.
//!
//! No byte of a datagram is trusted. One from an address that is no remote's is dropped unread and
//! counted, unless it is the port's own, which wakes its worker: of no bytes, from its address.

use std::io;
use std::net::IpAddr;

use packet::PortId;
use packet::bytes::mac_at;
use packet::vxlan::{self, Vni};
use ring::frame::{ETHERNET, FRAME_MAX};
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use switch::receive::batch::Batch;
use switch::{DropReason, Drops, Now};

use super::neighbours::Neighbours;
use super::remotes::{Remotes, Stolen};
use crate::sys::udp::Received;

/// Where the source address is in a frame.
const SOURCE: usize = 6;

/// The way in of a port.
pub struct Inlet {
    vni: Vni,
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
    /// Takes frames of this network from these remotes, at this address.
    ///
    /// # Errors
    /// No memory for received frames.
    pub fn new(
        vni: Vni,
        local: IpAddr,
        learning: bool,
        remotes: Remotes,
        neighbours: Neighbours,
    ) -> io::Result<Self> {
        let intake = Intake::new(FRAMES, STANDARD_FRAME)?;
        Ok(Self { vni, local, learning, remotes, neighbours, intake })
    }

    /// The network.
    #[must_use]
    pub fn vni(&self) -> Vni {
        self.vni
    }

    /// Begins a batch, in place of the last one.
    pub fn begin(&mut self, batch: &mut Batch) {
        self.intake.clear();
        batch.restart(self.intake.region());
    }

    /// Takes the datagrams of a message from byte `at` on. `Some`: the batch is full, and the rest
    /// begins there.
    pub fn take(
        &mut self,
        received: Received<'_>,
        mut at: usize,
        now: Now,
        (batch, drops): (&mut Batch, &mut Drops),
    ) -> Option<usize> {
        let Received { from, bytes, segment } = received;
        let Some(remote) = self.remotes.number(from) else {
            if from == self.local && bytes.is_empty() {
                return None; // the port itself wakes its worker
            }
            let left = bytes.len().saturating_sub(at);
            drops.add(DropReason::VxlanRemote, left.div_ceil(segment).max(1) as u64);
            return None;
        };
        loop {
            if !self.has_room(batch) {
                return Some(at);
            }
            let end = bytes.len().min(at + segment);
            let frame = bytes.get(at..end).ok_or(DropReason::VxlanHeader);
            let frame = frame.and_then(|datagram| self.inner(datagram));
            match frame.and_then(|frame| self.learn(frame, remote, now)) {
                Ok(frame) => {
                    let is_behind = |mac| self.remotes.find(mac, now) == Some(remote);
                    self.neighbours.hear_remote(frame, is_behind);
                    self.put(frame, batch);
                }
                Err(why) => drops.add(why, 1),
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

    /// Puts a frame into a batch that has room.
    pub fn put(&mut self, frame: &[u8], batch: &mut Batch) {
        let first = batch.frags().len();
        self.intake.push(&[frame], batch.frags());
        batch.push_received(first, u32::try_from(frame.len()).expect("bounded"));
    }

    /// The frame in a datagram.
    fn inner<'a>(&self, datagram: &'a [u8]) -> Result<&'a [u8], DropReason> {
        let (vni, frame) = vxlan::read(datagram).ok_or(DropReason::VxlanHeader)?;
        match frame.len() {
            _ if vni != self.vni => Err(DropReason::VxlanVni),
            0..ETHERNET => Err(DropReason::TooShort),
            len if len > FRAME_MAX as usize => Err(DropReason::TooLong),
            _ => Ok(frame),
        }
    }

    fn learn<'a>(
        &mut self,
        frame: &'a [u8],
        remote: PortId,
        now: Now,
    ) -> Result<&'a [u8], DropReason> {
        let source = mac_at(frame, SOURCE);
        let learned = match self.learning {
            true => self.remotes.learn(source, remote, now),
            false => self.remotes.check(source, remote),
        };
        learned.map(|()| frame).map_err(|Stolen| DropReason::VxlanRemote)
    }
}

#[cfg(test)]
mod tests {
    use packet::MacAddr;
    use switch::TagAction;
    use switch::receive::batch::Delivery;

    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const STATION: MacAddr = MacAddr::new([2, 0, 0, 0, 0, 9]);

    fn vni() -> Vni {
        Vni::new(100).expect("24 bits")
    }

    fn inlet() -> Inlet {
        let mut remotes = Remotes::new(4789, 0, 1);
        remotes.set(&[REMOTE], &[]);
        let local = [10, 0, 0, 1].into();
        Inlet::new(vni(), local, true, remotes, Neighbours::default()).expect("memory")
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
            at = inlet.take(received, start, Now::START, (&mut batch, &mut drops));
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
        let home = inlet.remotes.find(STATION, Now::START);
        assert_eq!(home, inlet.remotes.number(REMOTE));
    }

    #[test]
    fn a_strangers_datagrams_are_counted_and_nothing_is_learned_of_them() {
        let mut inlet = inlet();
        let (lens, drops) = take(&mut inlet, [10, 0, 0, 3].into(), &datagram(60).repeat(3), 68);
        assert_eq!((lens.len(), drops.get(DropReason::VxlanRemote), drops.total()), (0, 3, 3));
        assert_eq!(inlet.remotes.find(STATION, Now::START), None);
        assert_eq!(take(&mut inlet, [10, 0, 0, 3].into(), &[], 1).1.total(), 1);
        assert_eq!(take(&mut inlet, [10, 0, 0, 1].into(), &[], 1).1.total(), 0, "the port's own");
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
        assert_eq!(inlet.remotes.find(STATION, Now::START), None);
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
        assert_eq!(inlet.remotes.find(STATION, Now::START), None, "learning is off");
    }
}

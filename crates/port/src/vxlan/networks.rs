//! The virtual networks of a port: one, or one for each VLAN of a trunk.
//!
//! A frame of a VLAN travels without its tag, as behind a bridge of Linux with `vlan_tunnel`: its
//! VNI says at the other end which VLAN it is of. So a tag inside would name a VLAN that the port's
//! settings do not: frames with one are dropped in both directions (RFC 7348, section 6.1).

use std::collections::BTreeMap;

use packet::ethernet::{ETHERNET_HEADER, EtherType, Tag, field};
use packet::vxlan::Vni;
use packet::{VlanId, bytes::u16_at};
use protocol::Vxlan;
use ring::frame::Prologue;
use switch::DropReason;

/// Bytes of the addresses, behind which a tag stands.
const ADDRESSES: u8 = 12;
/// Bytes of a tag.
pub const TAG: usize = 4;

/// The virtual networks of a port.
#[derive(Debug, PartialEq, Eq)]
pub enum Networks {
    /// Frames are what they are, with a tag or without.
    One(Vni),
    /// Each VLAN has its own.
    OfVlans(BTreeMap<VlanId, Vni>, BTreeMap<Vni, VlanId>),
}

impl Networks {
    /// The networks of a tunnel.
    ///
    /// # Panics
    /// If a VNI has more than 24 bits, or there is none.
    #[must_use]
    pub fn of(spec: &Vxlan) -> Self {
        let checked = |vni| Vni::new(vni).expect("control has checked it");
        if let Some(vni) = spec.vni {
            return Self::One(checked(vni));
        }
        assert!(!spec.vlan_vni.is_empty(), "control has checked it");
        let pairs = || spec.vlan_vni.iter().map(|it| (it.vlan, checked(it.vni)));
        Self::OfVlans(pairs().collect(), pairs().map(|(vlan, vni)| (vni, vlan)).collect())
    }

    /// All networks.
    #[must_use]
    pub fn all(&self) -> Vec<Vni> {
        match self {
            Self::One(vni) => vec![*vni],
            Self::OfVlans(_, vnis) => vnis.keys().copied().collect(),
        }
    }

    /// The networks of VLANs.
    pub fn vlans(&self) -> impl Iterator<Item = (VlanId, Vni)> {
        let vlans = match self {
            Self::One(_) => None,
            Self::OfVlans(vlans, _) => Some(vlans),
        };
        vlans.into_iter().flatten().map(|(&vlan, &vni)| (vlan, vni))
    }

    /// Whether each VLAN has its own.
    #[must_use]
    pub fn are_of_vlans(&self) -> bool {
        matches!(self, Self::OfVlans(..))
    }

    /// One network of these.
    #[must_use]
    pub fn first(&self) -> Vni {
        match self {
            Self::One(vni) => *vni,
            Self::OfVlans(_, vnis) => *vnis.keys().next().expect("there is one"),
        }
    }

    /// Where frames of a network belong. `None`: it is none of the port's.
    #[must_use]
    pub fn inside(&self, vni: Vni) -> Option<Inside> {
        match self {
            Self::One(own) => (*own == vni).then_some(Inside::ASIS),
            Self::OfVlans(_, vnis) => vnis.get(&vni).map(|&vlan| Inside { tag: Some(vlan) }),
        }
    }

    /// The network in which a frame travels, how it begins there, and where it belongs here.
    ///
    /// # Errors
    /// The frame's VLAN has no network.
    pub fn outside(&self, head: Prologue) -> Result<(Vni, Prologue, Inside), DropReason> {
        let vnis = match self {
            Self::One(vni) => return Ok((*vni, head, Inside::ASIS)),
            Self::OfVlans(vnis, _) => vnis,
        };
        let has_tag = u16_at(&head.bytes, field::ETHERTYPE.start) == EtherType::VLAN.0
            && usize::from(head.len) >= field::TCI.end;
        let tag = Tag::from_tci(u16_at(&head.bytes, field::TCI.start));
        let vlan = tag.vlan().filter(|_| has_tag).ok_or(DropReason::VxlanVni)?;
        let vni = *vnis.get(&vlan).ok_or(DropReason::VxlanVni)?;
        // What follows the prologue follows the tag.
        Ok((vni, Prologue { len: ADDRESSES, ..head }, Inside { tag: Some(vlan) }))
    }
}

/// Where frames of a network belong in the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inside {
    tag: Option<VlanId>,
}

impl Inside {
    const ASIS: Self = Self { tag: None };

    /// The VLAN in which the port knows their stations.
    #[must_use]
    pub fn vlan(self) -> VlanId {
        self.tag.unwrap_or(VlanId::DEFAULT)
    }

    /// How much longer they are in the switch.
    #[must_use]
    pub fn more(self) -> usize {
        if self.tag.is_some() { TAG } else { 0 }
    }

    /// A frame of the tunnel, of 14 bytes at least, in pieces as the switch gets it.
    #[must_use]
    pub fn tagged<'a>(self, frame: &'a [u8], tag: &'a mut [u8; TAG]) -> [&'a [u8]; 3] {
        let Some(vlan) = self.tag else { return [frame, &[], &[]] };
        let [high, low] = vlan.get().to_be_bytes();
        let [kind, more] = EtherType::VLAN.0.to_be_bytes();
        *tag = [kind, more, high, low];
        let (addresses, rest) = frame.split_at(ADDRESSES.into());
        [addresses, tag, rest]
    }

    /// Whether a frame of the tunnel may be in this network.
    ///
    /// # Errors
    /// The frame has a tag, in the network of a VLAN, or is short.
    pub fn check(self, frame: &[u8]) -> Result<(), DropReason> {
        let kind = EtherType(u16_at(frame, field::ETHERTYPE.start));
        match self.tag {
            Some(_) if frame.len() < ETHERNET_HEADER => Err(DropReason::TooShort),
            Some(_) if kind.is_tag() => Err(DropReason::NestedTag),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(number: u16) -> VlanId {
        VlanId::new(number).expect("a VLAN")
    }

    fn vni(number: u32) -> Vni {
        Vni::new(number).expect("24 bits")
    }

    fn networks(fields: &str) -> Networks {
        let spec = format!(r#"{{"local":"10.0.0.1",{fields}}}"#);
        Networks::of(&serde_json::from_str(&spec).expect("a tunnel"))
    }

    fn head(kind: u16, tci: u16) -> Prologue {
        let mut bytes = [7; 16];
        bytes[12..14].copy_from_slice(&kind.to_be_bytes());
        bytes[14..].copy_from_slice(&tci.to_be_bytes());
        Prologue { bytes, len: 16, skip: 12 }
    }

    #[test]
    fn the_vlan_of_a_frame_chooses_its_network_and_the_other_way_round() {
        let map = networks(r#""vlan_vni":["10:1010","20:1020"]"#);
        assert_eq!((map.all(), map.first()), (vec![vni(1010), vni(1020)], vni(1010)));
        for (number, network) in [(10, 1010), (20, 1020)] {
            // With a priority, which does not travel.
            let head = head(0x8100, 5 << 13 | number);
            let (to, out, inside) = map.outside(head).expect("it has one");
            assert_eq!((to, out.len, out.skip), (vni(network), 12, head.skip));
            assert_eq!((inside.vlan(), map.inside(to)), (vlan(number), Some(inside)));
        }
        assert_eq!(map.inside(vni(10)), None);
        for stray in [head(0x8100, 30), head(0x8100, 0), head(0x0800, 10), head(0x88a8, 10)] {
            assert_eq!(map.outside(stray).err(), Some(DropReason::VxlanVni));
        }
    }

    #[test]
    fn a_frame_has_the_tag_of_its_network_and_no_other() {
        let map = networks(r#""vlan_vni":["10:1010"]"#);
        let inside = map.inside(vni(1010)).expect("it has it");
        let frame: Vec<u8> = (0..20).collect();
        let mut tag = [0; TAG];
        let whole = inside.tagged(&frame, &mut tag).concat();
        assert_eq!(whole, [&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat());
        assert_eq!((whole.len(), inside.check(&frame)), (frame.len() + inside.more(), Ok(())));
        assert_eq!(inside.check(&frame[..13]), Err(DropReason::TooShort), "it was all tag");
        for kind in [[0x81, 0], [0x88, 0xa8]] {
            let tagged = [&frame[..12], &kind, &[0; 6]].concat();
            assert_eq!(inside.check(&tagged), Err(DropReason::NestedTag));
            let one = networks(r#""vni":1010"#).inside(vni(1010)).expect("its own");
            assert_eq!(one.check(&tagged), Ok(()));
            assert_eq!(one.tagged(&tagged, &mut tag).concat(), tagged);
        }
    }
}

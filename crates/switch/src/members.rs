//! Who gets a flooded frame.
//!
//! Sets of ports are bitmaps, one per VLAN in use and one per thing that a port can refuse. The
//! targets of a flood are found 64 ports at a time:
//!
//! ```text
//!  members of the VLAN  &  takers of the class  &  (not isolated, if the source is)  &  not source
//! ```
//!
//! so that a frame costs as much as the ports that get it, plus one word per 64 ports that exist.

use std::collections::BTreeMap;

use crate::config::{PortConfig, VlanMode};
use crate::forward::FloodClass;
use crate::id::PortId;
use crate::vlan::VlanId;

/// A set of ports, as long as its highest member asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PortSet(Vec<u64>);

impl PortSet {
    fn insert(&mut self, port: PortId) {
        let (word, bit) = place(port);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    fn remove(&mut self, port: PortId) {
        let (word, bit) = place(port);
        if let Some(bits) = self.0.get_mut(word) {
            *bits &= !bit;
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|&bits| bits == 0)
    }

    #[inline]
    fn word(&self, word: usize) -> u64 {
        self.0.get(word).copied().unwrap_or(0)
    }
}

/// The ports of a switch, by what they take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Members {
    by_vlan: BTreeMap<VlanId, PortSet>,
    /// Trunks of all VLANs, kept apart so that one does not make 4094 sets.
    every_vlan: PortSet,
    isolated: PortSet,
    takers: [PortSet; FloodClass::COUNT],
    none: PortSet,
}

impl Members {
    pub(crate) fn add(&mut self, port: PortId, config: &PortConfig) {
        match &config.vlan {
            VlanMode::Transparent(vlan) | VlanMode::Access(vlan) => self.join(*vlan, port),
            VlanMode::Trunk { allowed, .. } if allowed.is_all() => self.every_vlan.insert(port),
            VlanMode::Trunk { native, allowed } => {
                allowed.iter().chain(*native).for_each(|vlan| self.join(vlan, port));
            }
        }
        if config.isolated {
            self.isolated.insert(port);
        }
        for class in FloodClass::ALL.into_iter().filter(|&class| config.takes(class)) {
            self.takers[class.index()].insert(port);
        }
    }

    pub(crate) fn remove(&mut self, port: PortId) {
        self.by_vlan.retain(|_, ports| {
            ports.remove(port);
            !ports.is_empty()
        });
        let others = [&mut self.every_vlan, &mut self.isolated].into_iter();
        others.chain(&mut self.takers).for_each(|ports| ports.remove(port));
    }

    /// The ports that get a frame of this VLAN and class from `src`, ascending.
    pub(crate) fn targets(
        &self,
        src: PortId,
        vlan: VlanId,
        class: FloodClass,
    ) -> impl Iterator<Item = PortId> + '_ {
        let members = self.by_vlan.get(&vlan).unwrap_or(&self.none);
        let takers = &self.takers[class.index()];
        let (src_word, src_bit) = place(src);
        let src_is_isolated = self.isolated.word(src_word) & src_bit != 0;
        (0..takers.0.len()).flat_map(move |word| {
            let mut bits = (members.word(word) | self.every_vlan.word(word)) & takers.0[word];
            if src_is_isolated {
                bits &= !self.isolated.word(word);
            }
            if word == src_word {
                bits &= !src_bit;
            }
            ports_of(word, bits)
        })
    }

    fn join(&mut self, vlan: VlanId, port: PortId) {
        self.by_vlan.entry(vlan).or_default().insert(port);
    }
}

/// The ports whose bits are set in a word of a set.
#[inline]
fn ports_of(word: usize, mut bits: u64) -> impl Iterator<Item = PortId> {
    std::iter::from_fn(move || {
        let bit = usize::try_from(bits.trailing_zeros()).ok().filter(|_| bits != 0)?;
        bits &= bits - 1;
        PortId::new(word * 64 + bit)
    })
}

/// The word of a port in a set, and its bit there.
#[inline]
fn place(port: PortId) -> (usize, u64) {
    (port.index() / 64, 1 << (port.index() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::MAX_PORTS;

    fn port(index: usize) -> PortId {
        PortId::new(index).unwrap()
    }

    fn config(vlan: &str) -> PortConfig {
        PortConfig { vlan: vlan.parse().unwrap(), ..PortConfig::default() }
    }

    fn targets(members: &Members, src: usize, vlan: u16, class: FloodClass) -> Vec<usize> {
        let vlan = VlanId::new(vlan).unwrap();
        members.targets(port(src), vlan, class).map(PortId::index).collect()
    }

    #[test]
    fn test_flood_reaches_the_members_of_the_vlan_but_not_the_source() {
        let mut members = Members::default();
        for (index, vlan) in
            ["access:10", "trunk:10-20", "trunk:all", "access:20"].iter().enumerate()
        {
            members.add(port(index * 100), &config(vlan));
        }
        assert_eq!(targets(&members, 0, 10, FloodClass::Broadcast), [100, 200]);
        assert_eq!(targets(&members, 300, 20, FloodClass::Unicast), [100, 200]);
        assert_eq!(targets(&members, 200, 20, FloodClass::Unicast), [100, 300]);
        assert_eq!(targets(&members, 0, 99, FloodClass::Multicast), [200]);
    }

    #[test]
    fn test_isolated_ports_and_policies_are_left_out() {
        let mut members = Members::default();
        let open = config("access:1");
        members.add(port(0), &PortConfig { isolated: true, ..open.clone() });
        members.add(port(1), &PortConfig { isolated: true, ..open.clone() });
        members.add(port(2), &PortConfig { unicast_flood: false, ..open.clone() });
        members.add(port(3), &open);
        assert_eq!(targets(&members, 0, 1, FloodClass::Broadcast), [2, 3]);
        assert_eq!(targets(&members, 0, 1, FloodClass::Unicast), [3]);
        assert_eq!(targets(&members, 3, 1, FloodClass::Broadcast), [0, 1, 2]);
    }

    #[test]
    fn test_removed_port_leaves_nothing_behind() {
        let mut members = Members::default();
        members.add(port(0), &PortConfig { isolated: true, ..config("trunk:5-9,native=1") });
        members.remove(port(0));
        assert!(members.by_vlan.is_empty() && members.isolated.is_empty());
        assert!(members.takers.iter().all(PortSet::is_empty));
    }

    #[test]
    fn test_all_4096_ports_are_reached() {
        let mut members = Members::default();
        (0..MAX_PORTS).for_each(|index| members.add(port(index), &PortConfig::default()));
        let reached = targets(&members, 7, 1, FloodClass::Broadcast);
        assert!(reached.into_iter().eq((0..MAX_PORTS).filter(|&index| index != 7)));
    }
}

//! Flooding: the ports that get a multicast, a broadcast or an unknown unicast frame.
//!
//! Sets of ports are bitmaps, one per VLAN in use and one per thing that a port can refuse. The
//! targets of a flood are found 64 ports at a time:
//!
//! ```text
//!  members of the VLAN  &  takers of the class  &  (not isolated, if the source is)  &  not source
//! ```
//!
//! so that a frame costs as much as the ports that get it, plus one word per 64 port numbers up
//! to the last member of its VLAN.

use std::collections::BTreeMap;

use packet::{PortId, VlanId, VlanMode};

use crate::decide::forward::FloodClass;
use crate::model::config::PortConfig;

/// A set of ports: a bitmap up to its highest member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PortSet(Vec<u64>);

impl PortSet {
    pub(crate) fn insert(&mut self, port: PortId) {
        let (word, bit) = place(port);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    pub(crate) fn remove(&mut self, port: PortId) {
        let (word, bit) = place(port);
        if let Some(bits) = self.0.get_mut(word) {
            *bits &= !bit;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&bits| bits == 0)
    }

    /// The members, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PortId> + '_ {
        let has = |&port: &PortId| self.word(port.index() / 64) & place(port).1 != 0;
        (0..self.0.len() * 64).filter_map(PortId::new).filter(has)
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
    /// Ports that a client holds.
    present: PortSet,
    takers: [PortSet; FloodClass::COUNT],
}

impl Members {
    pub(crate) fn add(&mut self, port: PortId, config: &PortConfig) {
        let (word, bit) = place(port);
        let is_new = self.takers.iter().all(|takers| takers.word(word) & bit == 0);
        assert!(is_new, "the port was removed before");
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
        if !config.vacant {
            self.present.insert(port);
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
        let others = [&mut self.every_vlan, &mut self.isolated, &mut self.present].into_iter();
        others.chain(&mut self.takers).for_each(|ports| ports.remove(port));
    }

    /// The ports that get a frame of this VLAN and class from `src`, ascending.
    pub(crate) fn targets(&self, src: PortId, vlan: VlanId, class: FloodClass) -> Targets<'_> {
        self.of_vlan(Some(src), vlan, [&self.takers[class.index()].0, &[], &[]], None)
    }

    /// The ports of these sets that may get a frame of this VLAN from `src`, whatever floods they
    /// take; ascending.
    pub(crate) fn among<'a>(
        &'a self,
        src: PortId,
        vlan: VlanId,
        sets: [&'a PortSet; 3],
    ) -> Targets<'a> {
        self.of_vlan(Some(src), vlan, sets.map(|set| &set.0[..]), Some(&self.present.0))
    }

    /// All ports that may get a frame of this VLAN from `src`, or from the switch; likewise.
    pub(crate) fn all(&self, src: Option<PortId>, vlan: VlanId) -> Targets<'_> {
        self.of_vlan(src, vlan, [&self.present.0, &[], &[]], None)
    }

    /// The VLANs that ports name, ascending.
    pub(crate) fn vlans(&self) -> impl Iterator<Item = VlanId> + '_ {
        self.by_vlan.keys().copied()
    }

    fn of_vlan<'a>(
        &'a self,
        src: Option<PortId>,
        vlan: VlanId,
        takers: [&'a [u64]; 3],
        present: Option<&'a [u64]>,
    ) -> Targets<'a> {
        let is_isolated = |src: PortId| self.isolated.word(place(src).0) & place(src).1 != 0;
        let src_is_isolated = src.is_some_and(is_isolated);
        Targets {
            members: self.by_vlan.get(&vlan).map_or(&[], |members| &members.0),
            every_vlan: &self.every_vlan.0,
            takers,
            present,
            refused: if src_is_isolated { &self.isolated.0 } else { &[] },
            src,
            next_word: 0,
            bits: 0,
        }
    }

    fn join(&mut self, vlan: VlanId, port: PortId) {
        self.by_vlan.entry(vlan).or_default().insert(port);
    }
}

/// The ports that get a flooded frame.
pub(crate) struct Targets<'a> {
    members: &'a [u64],
    every_vlan: &'a [u64],
    /// Ports that are in one of these.
    takers: [&'a [u64]; 3],
    /// Ports that are in this one, too.
    present: Option<&'a [u64]>,
    /// Ports that do not get it although all else holds.
    refused: &'a [u64],
    src: Option<PortId>,
    /// The word after the one that `bits` is what remains of.
    next_word: usize,
    bits: u64,
}

impl Targets<'_> {
    fn word(&self, word: usize) -> u64 {
        let bits = |set: &[u64]| set.get(word).copied().unwrap_or(0);
        let src = match self.src.map(place) {
            Some((at, bit)) if at == word => bit,
            _ => 0,
        };
        let members = bits(self.members) | bits(self.every_vlan);
        let takers = self.takers.iter().fold(0, |all, takers| all | bits(takers));
        let present = self.present.map_or(u64::MAX, bits);
        members & takers & present & !bits(self.refused) & !src
    }
}

impl Iterator for Targets<'_> {
    type Item = PortId;

    #[inline]
    fn next(&mut self) -> Option<PortId> {
        let words = self.members.len().max(self.every_vlan.len());
        while self.bits == 0 {
            if self.next_word == words {
                return None;
            }
            self.bits = self.word(self.next_word);
            self.next_word += 1;
        }
        let bit = usize::try_from(self.bits.trailing_zeros()).ok()?;
        debug_assert!(self.bits != 0 && bit < 64, "a word has a port left");
        self.bits &= self.bits - 1;
        PortId::new((self.next_word - 1) * 64 + bit)
    }
}

/// The word of a port in a set, and its bit there.
#[inline]
fn place(port: PortId) -> (usize, u64) {
    (port.index() / 64, 1 << (port.index() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::MAX_PORTS;

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

//! Which station is behind which remote: the table of a VXLAN port.
//!
//! The table is a forwarding database of its own ([`switch::Fdb`]), in which each remote has the
//! number of a port. So learning, moves, ageing and the bound on what one remote can learn are
//! those of the switch. As in the kernel's vxlan device, the key is the MAC address, with the VLAN
//! only where VLANs have VNIs of their own: those of one VNI share it.
//!
//! Static entries lie beside it. A station with one is behind that remote only, and a frame that
//! another remote sends from its address is refused.
//!
//! A remote is in all VLANs, or in some: a routing daemon says in which. It gets the floods of
//! these, and sends into no other.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use packet::{MacAddr, PortId, VlanId, VlanSet};
use protocol::{RemoteVlans, VxlanStation};
use switch::{Fdb, Flush, Learned, Now};

use crate::sys::udp::Target;

/// Stations that a port learns behind all its remotes, which have an equal share of them.
const CAPACITY: usize = 1 << 16;
/// The least share of a remote.
const SHARE_MIN: usize = 4096;
/// Slots that one [sweep](Remotes::sweep) looks at.
const SWEEP: usize = 256;

/// A frame from a remote that another remote's static entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stolen;

/// A remote.
struct Slot {
    address: IpAddr,
    target: Target,
    /// The VLANs that it is in; `None`: all.
    vlans: Option<VlanSet>,
}

/// The remotes of a port, and the stations behind them.
pub struct Remotes {
    udp_port: u16,
    /// By number; a number without a remote is free.
    slots: Vec<Option<Slot>>,
    numbers: BTreeMap<IpAddr, PortId>,
    statics: BTreeMap<MacAddr, PortId>,
    table: Fdb,
}

impl Remotes {
    /// None, and no stations. Learned entries expire after `ageing_ms`, or never if that is 0.
    #[must_use]
    pub fn new(udp_port: u16, ageing_ms: u64, seed: u64) -> Self {
        Self {
            udp_port,
            slots: Vec::new(),
            numbers: BTreeMap::new(),
            statics: BTreeMap::new(),
            table: Fdb::new(CAPACITY, ageing_ms, seed),
        }
    }

    /// Sets the remotes and the static entries. A remote that stays keeps what it has learned.
    pub fn set(&mut self, remotes: &[IpAddr], stations: &[VxlanStation]) {
        let gone = self.numbers.extract_if(.., |remote, _| !remotes.contains(remote));
        for (_, number) in gone.collect::<Vec<_>>() {
            self.slots[number.index()] = None;
            self.table.remove_port(number);
        }
        remotes.iter().for_each(|&remote| self.add(remote));
        let number =
            |station: &VxlanStation| Some((station.mac, *self.numbers.get(&station.remote)?));
        self.statics = stations.iter().filter_map(number).collect();
        self.share_out();
    }

    fn add(&mut self, remote: IpAddr) {
        if self.numbers.contains_key(&remote) {
            return;
        }
        let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        // A port has far fewer remotes than a switch has ports.
        let Some(number) = PortId::new(free) else { return };
        if free == self.slots.len() {
            self.slots.push(None);
        }
        let target = SocketAddr::new(remote, self.udp_port).into();
        self.slots[free] = Some(Slot { address: remote, target, vlans: None });
        self.numbers.insert(remote, number);
    }

    /// Sets which VLANs the remotes are in.
    pub fn set_vlans(&mut self, remotes: &RemoteVlans) {
        for slot in self.slots.iter_mut().flatten() {
            slot.vlans = remotes.vlans(slot.address).cloned();
        }
    }

    /// Bounds what each remote can learn, so that none pushes out what others have.
    fn share_out(&mut self) {
        let count = self.numbers.len().max(1);
        let share = SHARE_MIN.max(CAPACITY / count);
        self.table.set_capacity(CAPACITY.max(share * count));
        let share = u32::try_from(share).expect("it has 17 bits");
        self.numbers.values().for_each(|&number| self.table.set_limit(number, Some(share), None));
    }

    /// The number of the remote with this address.
    #[must_use]
    pub fn number(&self, remote: IpAddr) -> Option<PortId> {
        self.numbers.get(&remote).copied()
    }

    /// Where datagrams to a remote go.
    #[must_use]
    pub fn target(&self, number: PortId) -> Option<&Target> {
        self.slots.get(number.index())?.as_ref().map(|slot| &slot.target)
    }

    /// The numbers of the remotes that get floods of a VLAN.
    pub fn flooded(&self, vlan: VlanId) -> impl Iterator<Item = PortId> + '_ {
        self.numbers.values().copied().filter(move |&number| self.is_in(number, vlan))
    }

    /// Whether a remote gets floods of a VLAN, and may send into it.
    #[must_use]
    pub fn is_in(&self, number: PortId, vlan: VlanId) -> bool {
        let slot = self.slots[number.index()].as_ref();
        slot.and_then(|slot| slot.vlans.as_ref()).is_none_or(|vlans| vlans.contains(vlan))
    }

    /// How many remotes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.numbers.len()
    }

    /// The remote behind which a station is, if that is known.
    #[must_use]
    pub fn find(&self, vlan: VlanId, mac: MacAddr, now: Now) -> Option<PortId> {
        if mac.is_multicast() {
            return None;
        }
        let fixed = self.statics.get(&mac).copied();
        let home = fixed.or_else(|| self.table.lookup(vlan, mac, now));
        // A remote may have lost the VLAN since it was learned there.
        home.filter(|&number| self.is_in(number, vlan))
    }

    /// Notes that a remote has sent a frame from this address.
    ///
    /// # Errors
    /// The address is static behind another remote.
    pub fn learn(
        &mut self,
        vlan: VlanId,
        mac: MacAddr,
        from: PortId,
        now: Now,
    ) -> Result<(), Stolen> {
        if let Some(home) = self.statics.get(&mac) {
            return if *home == from { Ok(()) } else { Err(Stolen) };
        }
        if mac.is_station() {
            let learned = self.table.learn(vlan, mac, from, now);
            debug_assert!(learned != Learned::Static, "static entries lie beside the table");
        }
        Ok(())
    }

    /// Notes that a station is behind a remote, as a routing daemon says. The station may be heard
    /// from another one later.
    pub fn add_external(&mut self, (vlan, mac): (VlanId, MacAddr), remote: IpAddr) {
        if let Some(number) = self.number(remote) {
            self.table.add_external(vlan, mac, number);
        }
    }

    /// Takes that back.
    pub fn remove_external(&mut self, (vlan, mac): (VlanId, MacAddr), remote: IpAddr) {
        if let Some(number) = self.number(remote) {
            self.table.remove_external(vlan, mac, number);
        }
    }

    /// Whether a remote may send from this address.
    ///
    /// # Errors
    /// The address is static behind another remote.
    pub fn check(&self, mac: MacAddr, from: PortId) -> Result<(), Stolen> {
        self.statics.get(&mac).is_none_or(|home| *home == from).then_some(()).ok_or(Stolen)
    }

    /// Changes the ageing time, at once and for all entries.
    pub fn set_ageing(&mut self, ageing_ms: u64) {
        self.table.set_ageing(ageing_ms);
    }

    /// Forgets what was learned.
    pub fn flush(&mut self) {
        self.table.flush(Flush::All);
    }

    /// Forgets what was learned in these VLANs.
    pub fn flush_vlans(&mut self, vlans: &VlanSet) {
        self.table.flush(Flush::Vlans(vlans));
    }

    /// Removes some of the entries that have expired; the next call goes on behind them.
    pub fn sweep(&mut self, now: Now) {
        self.table.age(now, SWEEP);
    }

    /// The remotes, and how many stations were learned behind each.
    #[must_use]
    pub fn learned(&self) -> Vec<(IpAddr, u32)> {
        let numbers = self.numbers.iter();
        numbers.map(|(&remote, &number)| (remote, self.table.learned_on(number))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const VLAN: VlanId = VlanId::DEFAULT;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn mac(last: u8) -> MacAddr {
        MacAddr::new([2, 0, 0, 0, 0, last])
    }

    fn at(s: u64) -> Now {
        Now::from_ms(1000 * s)
    }

    fn remotes(all: &[IpAddr]) -> Remotes {
        let mut remotes = Remotes::new(4789, 300_000, 7);
        remotes.set(all, &[]);
        remotes
    }

    #[test]
    fn a_station_is_behind_the_remote_that_it_was_heard_from_last() {
        let mut remotes = remotes(&[ip(2), ip(3)]);
        let [two, three] = [ip(2), ip(3)].map(|ip| remotes.number(ip).expect("one of them"));
        assert_eq!(remotes.find(VLAN, mac(1), at(0)), None);
        remotes.learn(VLAN, mac(1), two, at(0)).expect("it is not static");
        assert_eq!(remotes.find(VLAN, mac(1), at(1)), Some(two));
        remotes.learn(VLAN, mac(1), three, at(2)).expect("it moves");
        assert_eq!(remotes.find(VLAN, mac(1), at(3)), Some(three));
        assert_eq!(remotes.learned(), [(ip(2), 0), (ip(3), 1)]);
        assert_eq!(remotes.find(VLAN, mac(1), at(302)), None, "it has aged");
        remotes.learn(VLAN, MacAddr::BROADCAST, two, at(0)).expect("ignored");
        assert_eq!(remotes.find(VLAN, MacAddr::BROADCAST, at(0)), None);
    }

    #[test]
    fn a_static_station_stays_and_nothing_else_may_send_from_it() {
        let mut remotes = remotes(&[ip(2), ip(3)]);
        let [two, three] = [ip(2), ip(3)].map(|ip| remotes.number(ip).expect("one of them"));
        remotes.set(&[ip(2), ip(3)], &[VxlanStation { mac: mac(1), remote: ip(2) }]);
        assert_eq!(remotes.learn(VLAN, mac(1), three, at(0)), Err(Stolen));
        assert_eq!(
            (remotes.check(mac(1), three), remotes.check(mac(1), two)),
            (Err(Stolen), Ok(()))
        );
        assert_eq!(remotes.find(VLAN, mac(1), at(9999)), Some(two));
        remotes.set(&[ip(3)], &[]);
        assert_eq!(remotes.find(VLAN, mac(1), at(0)), None);
        assert!(remotes.learn(VLAN, mac(1), three, at(0)).is_ok());
    }

    #[test]
    fn a_station_that_a_routing_daemon_names_stays_until_it_is_taken_back_or_heard_elsewhere() {
        let mut remotes = remotes(&[ip(2), ip(3)]);
        let [two, three] = [ip(2), ip(3)].map(|ip| remotes.number(ip).expect("one of them"));
        remotes.add_external((VLAN, mac(1)), ip(2));
        remotes.add_external((VLAN, mac(2)), ip(9));
        remotes.flush();
        assert_eq!(remotes.find(VLAN, mac(1), at(9999)), Some(two));
        assert_eq!(remotes.find(VLAN, mac(2), at(0)), None, "there is no such remote");
        remotes.remove_external((VLAN, mac(1)), ip(3));
        assert_eq!(remotes.find(VLAN, mac(1), at(9999)), Some(two), "it is behind another one");
        remotes.remove_external((VLAN, mac(1)), ip(2));
        assert_eq!(remotes.find(VLAN, mac(1), at(0)), None);
        remotes.add_external((VLAN, mac(1)), ip(2));
        remotes.learn(VLAN, mac(1), three, at(1)).expect("it moves");
        assert_eq!(remotes.find(VLAN, mac(1), at(2)), Some(three));
    }

    #[test]
    fn floods_of_a_vlan_go_to_the_remotes_that_are_in_it() {
        let fields = r#"{"vlan_vni":["10:1010","20:1020"],"local":"10.0.0.1",
            "remote":["10.0.0.2"],"extern_remote":["10=10.0.0.3","20=10.0.0.4"]}"#;
        let spec: protocol::Vxlan = serde_json::from_str(fields).expect("a tunnel");
        let mut remotes = remotes(&spec.all_remotes());
        let [ten, twenty] = [10, 20].map(|vlan| VlanId::new(vlan).expect("a VLAN"));
        assert_eq!(remotes.flooded(ten).count(), 3, "before it is said");
        remotes.set_vlans(&spec.remote_vlans());
        for (vlan, other) in [(ten, 3), (twenty, 4)] {
            let expected = [2, other].map(|last| remotes.number(ip(last)).expect("one of them"));
            assert_eq!(remotes.flooded(vlan).collect::<Vec<_>>(), expected);
        }
        // A station is behind a remote in its own VLAN only.
        remotes.add_external((ten, mac(1)), ip(3));
        assert_eq!(remotes.find(ten, mac(1), at(0)), remotes.number(ip(3)));
        assert_eq!(remotes.find(twenty, mac(1), at(0)), None);
        let four = remotes.number(ip(4)).expect("one of them");
        remotes.learn(ten, mac(2), four, at(0)).expect("it is not static");
        assert_eq!(remotes.find(ten, mac(2), at(0)), None, "the remote has lost that VLAN");
        remotes.set_vlans(&RemoteVlans::default());
        assert_eq!(remotes.flooded(ten).count(), 3);
    }

    #[test]
    fn a_remote_that_stays_keeps_its_stations_and_one_that_goes_takes_them_along() {
        let mut remotes = remotes(&[ip(2), ip(3)]);
        let [two, three] = [ip(2), ip(3)].map(|ip| remotes.number(ip).expect("one of them"));
        remotes.learn(VLAN, mac(2), two, at(0)).expect("new");
        remotes.learn(VLAN, mac(3), three, at(0)).expect("new");
        remotes.set(&[ip(3), ip(4)], &[]);
        assert_eq!(remotes.find(VLAN, mac(3), at(1)), Some(three));
        assert_eq!(remotes.find(VLAN, mac(2), at(1)), None);
        assert_eq!(remotes.number(ip(2)), None);
        assert_eq!(remotes.number(ip(4)), Some(two), "its number is free again");
        assert_eq!(remotes.learned(), [(ip(3), 1), (ip(4), 0)]);
    }

    #[test]
    fn one_remote_cannot_fill_the_table_of_the_others() {
        let mut remotes = remotes(&[ip(2), ip(3)]);
        let [two, three] = [ip(2), ip(3)].map(|ip| remotes.number(ip).expect("one of them"));
        for i in 0..u32::try_from(CAPACITY).expect("17 bits") {
            let [a, b, c, d] = i.to_be_bytes();
            remotes.learn(VLAN, MacAddr::new([2, 1, a, b, c, d]), two, at(0)).expect("new");
        }
        remotes.learn(VLAN, mac(3), three, at(0)).expect("new");
        assert_eq!(remotes.find(VLAN, mac(3), at(1)), Some(three));
        let count = remotes.learned()[0].1;
        assert_eq!(count as usize, CAPACITY / 2);
    }

    #[test]
    fn a_remote_among_many_has_room_for_the_stations_of_a_host() {
        let many: Vec<IpAddr> = (0..=255).map(ip).collect();
        let mut remotes = remotes(&many);
        for remote in [0, 255] {
            let number = remotes.number(ip(remote)).expect("one of them");
            for i in 0..5000u16 {
                let [a, b] = i.to_be_bytes();
                remotes
                    .learn(VLAN, MacAddr::new([2, 2, 0, remote, a, b]), number, at(0))
                    .expect("new");
            }
        }
        let learned = remotes.learned();
        assert_eq!([learned[0].1, learned[255].1].map(|count| count as usize), [SHARE_MIN; 2]);
    }

    proptest! {
        /// Against a map that knows the last remote of each station.
        #[test]
        fn the_table_is_a_map_of_the_last_remote(
            steps in prop::collection::vec((0u8..4, 0u8..6, 0u8..8), 1..60),
        ) {
            let mut ours = remotes(&[]);
            let (mut there, mut model) = (BTreeSet::new(), BTreeMap::<u8, u8>::new());
            for (what, remote, station) in steps {
                match what {
                    0 => { there.insert(remote); }
                    1 => {
                        there.remove(&remote);
                        model.retain(|_, home| *home != remote);
                    }
                    _ => {
                        let number = ours.number(ip(remote));
                        prop_assert_eq!(number.is_some(), there.contains(&remote));
                        if let Some(number) = number {
                            ours.learn(VLAN, mac(station), number, at(1)).expect("none is static");
                            model.insert(station, remote);
                        }
                    }
                }
                ours.set(&there.iter().map(|&it| ip(it)).collect::<Vec<_>>(), &[]);
                prop_assert_eq!(ours.count(), there.len());
                for station in 0..8 {
                    let home = model.get(&station).map(|&it| ours.number(ip(it)).expect("there"));
                    prop_assert_eq!(ours.find(VLAN, mac(station), at(2)), home);
                }
            }
        }
    }
}

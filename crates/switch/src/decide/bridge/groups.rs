//! Multicast groups: what the bridge hears of them, and where their frames go.

use packet::ethernet::Header;
use packet::mcast::{self, Malformed, Message};
use packet::{PortId, VlanId};

use super::{Bridge, Payload, TagAction, Tagging, VlanVerdict, tag_action};
use crate::decide::forward::{FloodClass, Verdict};
use crate::decide::snooping::{
    Destination, Domain, Kind, Listener, McastRow, McastScope, McastStats, OwnQuery, Snooping,
    family_of,
};
use crate::model::config::SwitchConfig;
use crate::model::now::Now;

impl Bridge {
    /// Whether a frame of this verdict goes to members of its group only. One whose tag is payload
    /// does not: its VLAN is none of this switch.
    #[inline]
    #[must_use]
    pub fn snoops(&self, verdict: &VlanVerdict) -> bool {
        self.config.mcast_snooping
            && verdict.forward == Verdict::Flood(FloodClass::Multicast)
            && verdict.payload != Payload::Tagged
    }

    /// Learns from what a frame says of groups; returns its cost in records.
    pub(crate) fn hear(
        &mut self,
        (src, vlan): (PortId, VlanId),
        header: Header,
        read: Result<Option<Message<'_>>, Malformed>,
        now: Now,
    ) -> u32 {
        let Some(Some(config)) = self.ports.get(src.index()) else { return 0 };
        let (Some(message), Some(family)) = (read.transpose(), family_of(header.dst())) else {
            return 0;
        };
        let (from, domain) = (Listener::new(src, config), Domain { vlan, family });
        self.snooping.lock().observe(from, domain, (message, &self.members), now)
    }

    /// Finds the ports that get a multicast frame, and why those; none for a flood.
    pub(crate) fn group_targets(
        &mut self,
        (src, vlan): (PortId, VlanId),
        (header, kind): (Header, Kind),
        now: Now,
        to: &mut Vec<PortId>,
    ) -> McastScope {
        let (group, members) = (header.dst(), &self.members);
        let frame = Destination { src, vlan, group, kind, members, now };
        let mut snooping = self.snooping.lock();
        snooping.expire(now);
        snooping.find(&frame, to)
    }

    /// Finds them without ending what is due.
    pub(crate) fn peek_group_targets(
        &self,
        (src, vlan): (PortId, VlanId),
        (header, kind): (Header, Kind),
        now: Now,
    ) -> (McastScope, Vec<PortId>) {
        let (group, members) = (header.dst(), &self.members);
        let frame = Destination { src, vlan, group, kind, members, now };
        let mut to = Vec::new();
        (self.snooping.with(|snooping| snooping.find(&frame, &mut to)), to)
    }

    /// Ends memberships that are due, up to the bound of one call.
    pub(crate) fn expire_groups(&mut self, now: Now) {
        if self.config.mcast_snooping {
            self.snooping.lock().expire(now);
        }
    }

    /// When the switch has a query to send; `None`: it sends none.
    #[must_use]
    pub fn next_query(&self) -> Option<Now> {
        let asks = self.config.mcast_snooping && self.config.mcast_querier;
        asks.then(|| self.snooping.with(Snooping::due))
    }

    /// The queries that the switch sends now.
    pub(crate) fn take_due_queries(&mut self, now: Now) -> Vec<OwnQuery> {
        self.snooping.lock().take_due(self.members.vlans(), now)
    }

    /// The frame of a query, and the ports that get it, each with what is done to its tag.
    pub(crate) fn own_query(&self, query: OwnQuery) -> (Vec<u8>, Vec<(PortId, TagAction)>) {
        let OwnQuery { domain: Domain { vlan, family }, group } = query;
        let (mac, source) = self.snooping.with(|snooping| snooping.source(family));
        let frame = mcast::query(mac, source, group.map(|(group, _)| group));
        debug_assert!(mcast::is_control(&frame), "switches and hosts know it as such");
        let (tagging, payload) = (Tagging::Untagged, Payload::Other);
        let verdict = VlanVerdict { forward: Verdict::Members, vlan, tagging, payload };
        let all = self.members.all(None, vlan);
        let asked = all.filter(|port| group.is_none_or(|(_, only)| only == *port));
        let tag = |port: PortId| Some((port, tag_action(&self.port(port)?.vlan, &verdict)));
        (frame, asked.filter_map(tag).collect())
    }

    /// What was counted of groups; how many groups and memberships there are; how many queriers.
    #[must_use]
    pub fn mcast_stats(&self) -> (McastStats, [usize; 2], usize) {
        self.snooping.with(Snooping::stats)
    }

    /// At most `max` queriers, router ports and members of groups, after the first `from` of them.
    pub fn mcast_rows(&mut self, now: Now, from: usize, max: usize) -> Vec<McastRow> {
        let mut snooping = self.snooping.lock();
        snooping.expire(now);
        snooping.rows(now, from, max)
    }

    /// Follows a change of the switch's settings.
    pub(super) fn set_snooping(&mut self, config: &SwitchConfig) {
        let key = |it: &SwitchConfig| (it.mcast_snooping, it.mcast_querier);
        if key(config) == key(&self.config) {
            return;
        }
        let mut snooping = self.snooping.lock();
        match config.mcast_snooping {
            true => snooping.restart_querier(config.mcast_querier),
            false => snooping.clear(),
        }
    }
}

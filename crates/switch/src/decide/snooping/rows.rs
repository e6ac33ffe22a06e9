//! What a listing shows of groups, router ports and queriers.

use std::net::IpAddr;

use packet::{MacAddr, PortId, VlanId};

use super::{Frames, McastFamily, Snooping};
use crate::model::now::Now;

/// A row of the listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McastRow {
    /// A querier.
    Querier(McastQuerier),
    /// A router port.
    Router(McastRouterPort),
    /// A member of a group.
    Member(McastMember),
}

/// The querier of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastQuerier {
    /// The VLAN.
    pub vlan: VlanId,
    /// The family that it asks for.
    pub family: McastFamily,
    /// The source of its queries.
    pub address: IpAddr,
    /// The port behind which it is; `None`: it is the switch.
    pub port: Option<PortId>,
    /// Milliseconds until it is forgotten, if it is not heard again.
    pub expires_ms: Option<u64>,
}

/// A router port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastRouterPort {
    /// The port.
    pub port: PortId,
    /// The VLAN and the family of the router; `None`: an operator has made it one, for all.
    pub of: Option<(VlanId, McastFamily)>,
    /// Milliseconds until it is none, if no router is heard again.
    pub expires_ms: Option<u64>,
}

/// A member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct McastMember {
    /// The VLAN.
    pub vlan: VlanId,
    /// The MAC address of the group.
    pub mac: MacAddr,
    /// The group, unless an operator has named it by the MAC address.
    pub address: Option<IpAddr>,
    /// The port behind which the member is.
    pub port: PortId,
    /// Milliseconds until it is none, if it does not report again; `None`: a static entry.
    pub expires_ms: Option<u64>,
}

impl Snooping {
    /// At most `max` rows after the first `from`: queriers, router ports, members.
    pub(crate) fn rows(&self, now: Now, from: usize, max: usize) -> Vec<McastRow> {
        let left = move |until: Now| until.ms_since(now);
        let queriers = self.querier.all().map(|(domain, other)| {
            let (vlan, family) = (domain.vlan, domain.family);
            let own = self.querier.source(family).1;
            let address = other.map_or(own, |other| other.address);
            let (port, expires_ms) = (other.map(|it| it.port), other.map(|it| left(it.until)));
            McastRow::Querier(McastQuerier { vlan, family, address, port, expires_ms })
        });
        let always = self.always.iter().map(|port| (port, None, None));
        let heard = self.router_until.iter().map(|((domain, port), until)| {
            (*port, Some((domain.vlan, domain.family)), Some(left(*until)))
        });
        let routers = always.chain(heard).map(|(port, of, expires_ms)| {
            McastRow::Router(McastRouterPort { port, of, expires_ms })
        });
        let members = self.members.iter().map(|((group, port), until)| {
            let (Frames { vlan, mac }, address, port) = (group.frames, group.address, *port);
            let expires_ms = until.map(left);
            McastRow::Member(McastMember { vlan, mac, address, port, expires_ms })
        });
        queriers.chain(routers).chain(members).skip(from).take(max).collect()
    }
}

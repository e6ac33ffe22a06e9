//! Ports of tunnels to other hosts: permission, creation and change.

use std::str::FromStr;

use port::vxlan::neighbours::Place;
use protocol::name::PortName;
use protocol::{
    ExternLearn, NeighList, Page, PortAdd, Reply, VNIS_MAX, Vxlan, VxlanChange, VxlanInfo, check,
};

use super::difference::difference;
use super::{Client, Control, page_from};
use crate::control::datapath::Datapath;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::{AccessRefusal, Refusal};
use crate::control::state::Port;
use crate::model::plan::Origin;
use crate::model::policy::{Access, Caller};
use crate::model::specs::VxlanSpec;

impl<D: Datapath> Control<D> {
    pub(super) fn vxlan_info(&self, port: &Port) -> Option<VxlanInfo> {
        port.vxlan.as_ref().and_then(|_| self.datapath.vxlan_info(port.key))
    }

    /// Stations as a routing daemon has learned them. They are no part of what is saved.
    pub(super) fn extern_learn(
        &mut self,
        client: &Client,
        learn: &ExternLearn,
    ) -> Result<Reply, Refusal> {
        let caller = &client.caller;
        let port = self.state.port(caller, &learn.port, Access::Manage)?;
        let wrong = |error: String| Refusal::bad_value(format!("{}: {error}", learn.port));
        let Some(vxlan) = port.vxlan.as_deref() else {
            let kind = port.kind.name();
            return Err(wrong(format!("extern_learn: not for kind {kind}, only for vxlan")));
        };
        if !caller.privileged {
            return Err(AccessRefusal::Vxlan.into());
        }
        let vlan = check::extern_learn(vxlan, learn).map_err(wrong)?;
        let vlan = vlan.or(port.config.vlan.untagged()).ok_or_else(|| {
            wrong("extern_learn needs a VLAN without a tag; set vlan=…,native=VLAN".to_owned())
        })?;
        let key = port.key;
        self.check_routing(client, learn)?;
        self.datapath.extern_learn(key, vlan, learn);
        Ok(Reply::Done)
    }

    /// Notes the routing daemon of a port, which begins by a mark. Of two, each would take back
    /// what the other one has set.
    fn check_routing(&mut self, client: &Client, learn: &ExternLearn) -> Result<(), Refusal> {
        let Caller { pid, uid, .. } = client.caller;
        match self.notes.routing.get(&learn.port) {
            Some(&(conn, pid, uid)) if conn != client.conn => {
                return Err(PortRefusal::Routed { port: learn.port.clone(), pid, uid }.into());
            }
            _ if learn.mark => {
                self.notes.routing.insert(learn.port.clone(), (client.conn, pid, uid));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn neigh_list(&self, caller: &Caller, list: &NeighList) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, &list.port, Access::Look)?;
        if !port.vxlan.as_ref().is_some_and(|vxlan| vxlan.neigh_suppress) {
            return Err(Refusal::bad_value(format!(
                "{0} knows no neighbours; if it is of kind vxlan: uvala port set {0} \
                 --neigh-suppress",
                list.port
            )));
        }
        let from: Option<Cursor> = page_from(list.from.as_deref())?;
        let from = from.map(|Cursor(place)| place);
        let (items, next) = self.datapath.neigh_page(port.key, from, NEIGH_PAGE);
        Ok(Reply::Neigh(Page { items, next: next.map(|(vlan, ip)| format!("{vlan}={ip}")) }))
    }

    /// Makes the port with its sockets; one of a plan without, where they cannot be opened.
    pub(super) fn add_vxlan(&mut self, spec: &VxlanSpec, origin: Origin) -> Result<(), Refusal> {
        let made = self.check_vnis(&spec.name, &spec.vxlan);
        let made = made.and_then(|()| Ok(self.datapath.add_vxlan(spec, origin)?));
        match made {
            Err(error) if origin == Origin::Plan => {
                tracing::warn!("{}: {error}; then delete the port and add it again", spec.name);
                Ok(self.datapath.add_vxlan_without_sockets(spec, error.to_string())?)
            }
            made => made,
        }
    }

    /// Whether the ports at the tunnel's address have different VNIs, and not too many.
    pub(super) fn check_vnis(&self, name: &PortName, vxlan: &Vxlan) -> Result<(), Refusal> {
        let is_there = |other: &&Vxlan| other.address() == vxlan.address();
        let others = self.state.ports().filter(|(other, _)| *other != name);
        let others = others
            .filter_map(|(other, port)| Some((other, port.vxlan.as_deref().filter(is_there)?)));
        let mut count = vxlan.vnis().count();
        for (other, there) in others {
            if let Some(vni) = vxlan.vnis().find(|own| there.vnis().any(|vni| vni == *own)) {
                return Err(PortRefusal::VniTaken { vni, port: other.clone() }.into());
            }
            count += there.vnis().count();
        }
        match count > VNIS_MAX {
            true => Err(PortRefusal::VnisFull(vxlan.address()).into()),
            false => Ok(()),
        }
    }
}

/// The tunnel that a new port is to have. Its datagrams are the daemon's, so it is for users that
/// have the daemon's rights anyway.
pub(super) fn request_of(caller: &Caller, add: &PortAdd) -> Result<Option<Vxlan>, Refusal> {
    let vxlan = check::vxlan(add.kind, add.vxlan.as_ref())
        .map_err(|error| Refusal::bad_value(format!("{}: {error}", add.port)))?;
    match vxlan {
        Some(_) if !caller.privileged => Err(AccessRefusal::Vxlan.into()),
        vxlan => Ok(vxlan),
    }
}

/// The tunnel of a port after a change.
pub(super) fn changed(
    caller: &Caller,
    name: &PortName,
    port: &Port,
    change: &VxlanChange,
) -> Result<Vxlan, Refusal> {
    let wrong = |error: String| Refusal::bad_value(format!("{name}: {error}"));
    let Some(now) = port.vxlan.as_deref() else {
        let kind = port.kind.name();
        let what = "remotes, fdb and vlan_vni";
        return Err(wrong(format!("{what}: not for kind {kind}, only for vxlan")));
    };
    if !caller.privileged {
        return Err(AccessRefusal::Vxlan.into());
    }
    let mut new = now.clone();
    if let Some(all) = check::vxlan(port.kind, change.all.as_ref().or(Some(now))).map_err(wrong)? {
        if let Some(what) = difference(&now.fixed(), &all.fixed()) {
            return Err(PortRefusal::Differs(name.clone(), what.into()).into());
        }
        new = Vxlan { extern_remote: now.extern_remote.clone(), ..all };
    }
    delete(&mut new, change).map_err(wrong)?;
    add(&mut new, change);
    forget_networks(&mut new, now);
    add_missing(&mut new.extern_remote, &change.add_extern_remote);
    new.neigh_suppress = change.neigh_suppress.unwrap_or(new.neigh_suppress);
    let new = check::vxlan(port.kind, Some(&new)).map_err(wrong)?;
    Ok(new.expect("the kind has one"))
}

/// Takes remotes, stations and VLANs out.
fn delete(vxlan: &mut Vxlan, change: &VxlanChange) -> Result<(), String> {
    if let Some(remote) = change.del_remote.iter().find(|it| !vxlan.remote.contains(it)) {
        return Err(format!("there is no remote {remote}; see: uvala port show"));
    }
    let has = |mac| vxlan.fdb.iter().any(|station| station.mac == mac);
    if let Some(mac) = change.del_fdb.iter().find(|mac| !has(**mac)) {
        return Err(format!("fdb has no static entry {mac}; see: uvala port show"));
    }
    let has = |vlan| vxlan.vlan_vni.iter().any(|it| it.vlan.get() == vlan);
    if let Some(vlan) = change.del_vlan_vni.iter().find(|vlan| !has(**vlan)) {
        return Err(format!("vlan_vni has no VLAN {vlan}; see: uvala port show"));
    }
    vxlan.vlan_vni.retain(|it| !change.del_vlan_vni.contains(&it.vlan.get()));
    vxlan.remote.retain(|remote| !change.del_remote.contains(remote));
    vxlan.fdb.retain(|station| {
        !change.del_remote.contains(&station.remote) && !change.del_fdb.contains(&station.mac)
    });
    vxlan.extern_remote.retain(|remote| !change.del_extern_remote.contains(remote));
    Ok(())
}

/// Brings remotes, stations and VLANs in; those that are there already get the new values.
fn add(vxlan: &mut Vxlan, change: &VxlanChange) {
    add_missing(&mut vxlan.remote, &change.add_remote);
    let is_replaced = |vlan| change.add_vlan_vni.iter().any(|it| it.vlan == vlan);
    vxlan.vlan_vni.retain(|it| !is_replaced(it.vlan));
    vxlan.vlan_vni.extend(&change.add_vlan_vni);
    let is_replaced = |mac| change.add_fdb.iter().any(|station| station.mac == mac);
    vxlan.fdb.retain(|station| !is_replaced(station.mac));
    vxlan.fdb.extend(&change.add_fdb);
}

/// Takes out what a routing daemon has found for VLANs that have another network now, or none.
fn forget_networks(vxlan: &mut Vxlan, before: &Vxlan) {
    let same = vxlan.same_vlans(before);
    vxlan.extern_remote.retain(|it| it.vlan.is_none_or(|vlan| same.contains(vlan)));
}

fn add_missing<T: Copy + PartialEq>(remotes: &mut Vec<T>, more: &[T]) {
    for &remote in more {
        if !remotes.contains(&remote) {
            remotes.push(remote);
        }
    }
}

/// Where a page of neighbours begins, as the text `10=192.168.7.2`.
struct Cursor(Place);

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (vlan, ip) = text.split_once('=').ok_or(())?;
        let place = (vlan.parse().map_err(drop)?, ip.parse().map_err(drop)?);
        Ok(Self(place))
    }
}

/// Entries of a page of neighbours; one takes at most 200 bytes.
const NEIGH_PAGE: usize = 256;

//! Multicast databases: listed, static entries added and deleted.
//!
//! A static entry is a setting of its port, and is kept and saved as one.

use std::collections::BTreeSet;

use packet::VlanId;
use packet::mcast::GroupAddr;
use protocol::name::{PortName, SwitchName};
use protocol::{
    McastFamily, MdbChange, MdbEntry, MdbList, MdbRequest, Page, PortSet, PortSettings, Reply,
    StaticGroup,
};
use switch::McastRow;

use super::{Control, page_from};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::control::switches::refusal::SwitchRefusal;
use crate::model::policy::{Access, Caller};
use crate::model::settings::show_groups;

/// Rows of a page; one takes at most 250 bytes.
const MDB_PAGE: usize = 200;
/// Cursors from here on count entries of ports that no worker knows. A switch has fewer rows.
const AWAY: u64 = 1 << 40;

impl<D: Datapath> Control<D> {
    pub(super) fn mdb_call(&mut self, caller: &Caller, call: MdbRequest) -> Result<Reply, Refusal> {
        match call {
            MdbRequest::List(list) => self.mdb_list(caller, &list),
            MdbRequest::Add(add) => self.mdb_add(caller, &add),
            MdbRequest::Del(del) => self.mdb_del(caller, &del),
        }
    }

    fn mdb_list(&mut self, caller: &Caller, list: &MdbList) -> Result<Reply, Refusal> {
        let key = self.state.switch(caller, &list.switch, Access::Look)?.key;
        let cursor = page_from(list.from.as_deref())?.unwrap_or(0);
        let (rows, mut next) = match cursor < AWAY {
            true => self.datapath.mdb_page(key, cursor, MDB_PAGE),
            false => (Vec::new(), None),
        };
        let names = self.names_of(&list.switch);
        let items = rows.into_iter().filter_map(|row| {
            let port = match row.port {
                Some(key) => Some((*names.get(&key)?).clone()),
                None => None,
            };
            entry(row.row, port)
        });
        let mut items: Vec<MdbEntry> = items.collect();
        if next.is_none() {
            let (from, room) = (cursor.saturating_sub(AWAY), MDB_PAGE.saturating_sub(items.len()));
            let skipped = usize::try_from(from).unwrap_or(usize::MAX);
            let mut away = self.entries_away(&list.switch).skip(skipped);
            items.extend(away.by_ref().take(room));
            next = away.next().map(|_| cursor.max(AWAY).saturating_add(room as u64));
        }
        Ok(Reply::Mdb(Page { items, next: next.map(|next| next.to_string()) }))
    }

    /// The static entries of ports that no worker knows, because they have no client.
    fn entries_away<'a>(&'a self, switch: &'a SwitchName) -> impl Iterator<Item = MdbEntry> + 'a {
        let places = self.statics.places_of(switch).filter(|(_, place)| place.is_some());
        let known: BTreeSet<&PortName> = places.map(|(name, _)| name).collect();
        let is_away = move |it: &(&PortName, &Port)| !it.1.is_live() && !known.contains(it.0);
        self.state.ports_of(switch).filter(is_away).flat_map(|(name, port)| {
            port.config.mcast_groups.iter().map(|&(vlan, group)| MdbEntry::Member {
                vlan: vlan.get(),
                group,
                mac: group.mac(),
                port: name.clone(),
                is_static: true,
                expires_s: None,
            })
        })
    }

    fn mdb_add(&mut self, caller: &Caller, add: &MdbChange) -> Result<Reply, Refusal> {
        let entry = static_group(add)?;
        let mut groups = self.static_groups(caller, add)?;
        if !groups.contains(&entry) {
            groups.push(entry);
        }
        self.set_groups(caller, add, groups)
    }

    fn mdb_del(&mut self, caller: &Caller, del: &MdbChange) -> Result<Reply, Refusal> {
        let entry = static_group(del)?;
        let mut groups = self.static_groups(caller, del)?;
        let before = groups.len();
        // By another address of the same frames, too: both are one entry of the switch.
        groups.retain(|it| (it.vlan, it.group.mac()) != (entry.vlan, entry.group.mac()));
        if groups.len() == before {
            return Err(
                SwitchRefusal::NoMdbEntry(del.port.clone(), entry.to_string().into()).into()
            );
        }
        self.set_groups(caller, del, groups)
    }

    fn static_groups(
        &self,
        caller: &Caller,
        change: &MdbChange,
    ) -> Result<Vec<StaticGroup>, Refusal> {
        let groups = &self.state.port(caller, &change.port, Access::Manage)?.config.mcast_groups;
        Ok(show_groups(groups).unwrap_or_default())
    }

    fn set_groups(
        &mut self,
        caller: &Caller,
        change: &MdbChange,
        groups: Vec<StaticGroup>,
    ) -> Result<Reply, Refusal> {
        let settings = PortSettings { mcast_groups: Some(groups), ..PortSettings::default() };
        self.port_set(caller, &PortSet { port: change.port.clone(), settings, vxlan: None })
    }
}

fn static_group(change: &MdbChange) -> Result<StaticGroup, Refusal> {
    let vlan = VlanId::try_from(change.vlan);
    let vlan = vlan.map_err(|error| Refusal::bad_value(format!("vlan: {error}")))?;
    Ok(StaticGroup { vlan, group: change.group })
}

/// A row as an answer has it.
fn entry(row: McastRow, port: Option<PortName>) -> Option<MdbEntry> {
    let seconds = |ms: Option<u64>| ms.map(|ms| u32::try_from(ms / 1000).unwrap_or(u32::MAX));
    Some(match row {
        McastRow::Querier(it) => MdbEntry::Querier {
            vlan: it.vlan.get(),
            family: family(it.family),
            address: it.address,
            port,
            expires_s: seconds(it.expires_ms),
        },
        McastRow::Router(it) => MdbEntry::Router {
            port: port?,
            vlan: it.of.map(|(vlan, _)| vlan.get()),
            family: it.of.map(|(_, of)| family(of)),
            expires_s: seconds(it.expires_ms),
        },
        McastRow::Member(it) => MdbEntry::Member {
            vlan: it.vlan.get(),
            group: it.address.map_or(GroupAddr::Mac(it.mac), GroupAddr::Ip),
            mac: it.mac,
            port: port?,
            is_static: it.expires_ms.is_none(),
            expires_s: seconds(it.expires_ms),
        },
    })
}

fn family(family: switch::McastFamily) -> McastFamily {
    match family {
        switch::McastFamily::Ipv4 => McastFamily::Ipv4,
        switch::McastFamily::Ipv6 => McastFamily::Ipv6,
    }
}

//! Multicast databases: listed, static entries added and deleted.
//!
//! A static entry is a setting of its port, and is kept and saved as one.

use packet::VlanId;
use packet::mcast::GroupAddr;
use protocol::{
    McastFamily, MdbChange, MdbEntry, MdbList, MdbRequest, Page, PortSet, PortSettings, Reply,
    StaticGroup,
};
use switch::McastRow;

use super::{Control, page_from};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::switches::refusal::SwitchRefusal;
use crate::model::policy::{Access, Caller};
use crate::model::settings::show_groups;

/// Rows of a page; one takes at most 250 bytes.
const MDB_PAGE: usize = 200;

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
        let (rows, next) = self.datapath.mdb_page(key, cursor, MDB_PAGE);
        let names = self.names_of(&list.switch);
        let items = rows.into_iter().filter_map(|row| {
            let port = match row.port {
                Some(key) => Some((*names.get(&key)?).clone()),
                None => None,
            };
            entry(row.row, port)
        });
        Ok(Reply::Mdb(Page { items: items.collect(), next: next.map(|n| n.to_string()) }))
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
fn entry(row: McastRow, port: Option<protocol::name::PortName>) -> Option<MdbEntry> {
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

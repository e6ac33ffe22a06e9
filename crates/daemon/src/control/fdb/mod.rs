//! Forwarding databases: listed, static addresses added and deleted, learnt ones forgotten.

pub mod statics;

use std::collections::HashMap;

use protocol::name::{PortName, SwitchName};
use protocol::{
    FdbAdd, FdbDel, FdbEntry, FdbFlush, FdbList, MAX_STATIC, Page, PortKind, Reply, StaticAddress,
};
use switch::{OnFull, PortConfig, SwitchConfig};

use super::{Control, page_from};
use crate::control::datapath::Datapath;
use crate::control::fdb::statics::Place;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::switches::refusal::SwitchRefusal;
use crate::model::error::DatapathError;
use crate::model::keys::PortKey;
use crate::model::policy::{Access, Caller};

impl<D: Datapath> Control<D> {
    pub(super) fn fdb_list(&mut self, caller: &Caller, list: &FdbList) -> Result<Reply, Refusal> {
        let key = self.state.switch(caller, &list.switch, Access::Look)?.key;
        let cursor = page_from(list.from.as_deref())?.unwrap_or(0);
        let (rows, next) = self.datapath.fdb_page(key, cursor, FDB_PAGE);
        let names = self.names_of(&list.switch);
        let items = rows.into_iter().filter_map(|row| {
            Some(FdbEntry {
                mac: row.mac,
                vlan: row.vlan.get(),
                port: (*names.get(&row.port)?).clone(),
                is_static: row.is_static,
                extern_learn: row.extern_learn,
                age_s: u32::try_from(row.age_ms / 1000).unwrap_or(u32::MAX),
            })
        });
        Ok(Reply::Fdb(Page { items: items.collect(), next: next.map(|n| n.to_string()) }))
    }

    /// The ports of a switch as its workers know them, and those that others stand in for.
    pub(super) fn names_of<'a>(&'a self, switch: &'a SwitchName) -> HashMap<PortKey, &'a PortName> {
        let ports = self.state.ports_of(switch).map(|(name, port)| (port.key, name));
        let places = self.statics.places_of(switch);
        let stand_ins = places.filter_map(|(name, place)| Some((place?.key(), name)));
        ports.chain(stand_ins).collect()
    }

    pub(super) fn fdb_add(&mut self, caller: &Caller, add: &FdbAdd) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, &add.port, Access::Manage)?;
        if port.kind == PortKind::Pipe {
            return Err(PortRefusal::PipeSettings(add.port.clone()).into());
        }
        let station = StaticAddress::new(add.mac, add.vlan).map_err(Refusal::bad_value)?;
        if self.statics.find(add.port.switch(), station).is_none() {
            self.check_station(add.port.switch())?;
        }
        self.add_station(&add.port, station)?;
        Ok(Reply::Done)
    }

    /// Whether the owner of a switch may have one more static address.
    fn check_station(&self, switch: &SwitchName) -> Result<(), Refusal> {
        let owner = self.state.find_switch(switch).expect("a port has a switch").permissions.owner;
        self.state.check_static_address(owner, self.static_addresses_of(owner))
    }

    /// The static addresses of all switches of a user.
    pub(super) fn static_addresses_of(&self, uid: u32) -> u64 {
        self.state.switches_of(uid).map(|(name, _)| self.statics.count(name) as u64).sum()
    }

    /// Puts an address on a port, wherever it was before.
    pub(super) fn add_station(
        &mut self,
        name: &PortName,
        station: StaticAddress,
    ) -> Result<(), Refusal> {
        self.check_no_mirror(name)?;
        let before = self.statics.find(name.switch(), station).cloned();
        if before.is_none() && self.statics.count(name.switch()) >= MAX_STATIC {
            let text = format!("{} has {MAX_STATIC} static addresses, the limit", name.switch());
            return Err(Refusal::bad_value(text));
        }
        self.check_room(name.switch(), before.is_none())?;
        let added = self.place_of(name).and_then(|place| {
            self.datapath.fdb_add(place.key(), station.mac, station.vlan)?;
            Ok(())
        });
        if added.is_ok() {
            self.statics.insert(name, station);
        }
        for port in before.iter().chain([name]) {
            self.tidy_statics(port);
        }
        added.map_err(Refusal::from)
    }

    /// Whether the database of a switch has room for one more static address, if it is one more.
    fn check_room(&self, name: &SwitchName, more: bool) -> Result<(), Refusal> {
        let switch = self.state.find_switch(name).expect("a port has a switch");
        let have = self.statics.count(name);
        if more && have >= switch.config.fdb_capacity {
            return Err(SwitchRefusal::FdbFull { switch: name.clone(), have }.into());
        }
        Ok(())
    }

    /// Puts an address on a port as the configuration says, which must say so once.
    pub(super) fn add_planned(
        &mut self,
        name: &PortName,
        station: StaticAddress,
    ) -> Result<(), Refusal> {
        match self.statics.find(name.switch(), station) {
            Some(other) if other != name => {
                Err(Refusal::bad_value(format!("{station} is on {other} and on {name}")))
            }
            _ => self.add_station(name, station),
        }
    }

    pub(super) fn fdb_del(&mut self, caller: &Caller, del: &FdbDel) -> Result<Reply, Refusal> {
        let key = self.state.switch(caller, &del.switch, Access::Manage)?.key;
        let station = StaticAddress::new(del.mac, del.vlan).map_err(Refusal::bad_value)?;
        if let Some(name) = self.statics.take(&del.switch, station) {
            self.datapath.fdb_del(key, station.mac, station.vlan);
            self.tidy_statics(&name);
            return Ok(Reply::Done);
        }
        if self.datapath.fdb_del(key, station.mac, station.vlan) {
            return Ok(Reply::Done);
        }
        let switch = del.switch.clone();
        Err(SwitchRefusal::NoFdbEntry { switch, mac: del.mac, vlan: del.vlan }.into())
    }

    pub(super) fn fdb_flush(
        &mut self,
        caller: &Caller,
        flush: &FdbFlush,
    ) -> Result<Reply, Refusal> {
        let key = self.state.switch(caller, &flush.switch, Access::Manage)?.key;
        let port = match &flush.port {
            None => None,
            Some(name) if name.switch() != &flush.switch => {
                let text = format!("port {name} is not one of switch {}", flush.switch);
                return Err(Refusal::bad_value(text));
            }
            Some(name) => Some(self.state.port(caller, name, Access::Manage)?.key),
        };
        self.datapath.fdb_flush(key, port);
        Ok(Reply::Done)
    }

    /// Whether a switch with these settings has room for its static addresses.
    pub(super) fn check_capacity(
        &self,
        switch: &SwitchName,
        config: SwitchConfig,
    ) -> Result<(), Refusal> {
        let have = self.statics.count(switch);
        if have <= config.fdb_capacity {
            return Ok(());
        }
        let wanted = config.fdb_capacity;
        let text = format!("fdb_capacity = {wanted} is less than the {have} static addresses");
        Err(Refusal::bad_value(text))
    }
}

/// Where static addresses are.
impl<D: Datapath> Control<D> {
    /// Brings the static addresses of a port where they belong, after a client came, left, or the
    /// port went away. What the workers have no room for is missing until the next change.
    pub(super) fn refresh_static_addresses(&mut self, name: &PortName) {
        if !self.statics.has(name) {
            return;
        }
        let Some(port) = self.state.find_port(name) else {
            let place = self.statics.remove(name);
            return self.dismiss(name, place);
        };
        let (live, config) = (port.is_live(), port.config.clone());
        let placed = match self.statics.place(name) {
            Some(Place::StandIn(key)) if !live => {
                self.datapath.set_port(key, stand_in(config));
                Ok(())
            }
            _ => self.place_of(name).map(drop),
        };
        if let Err(error) = placed {
            tracing::warn!("static addresses of {name} are not in effect: {error}");
        }
    }

    /// Where the addresses of a port are, after they were brought there.
    fn place_of(&mut self, name: &PortName) -> Result<Place, DatapathError> {
        let switch = self.state.find_switch(name.switch()).expect("a port has a switch").key;
        let port = self.state.find_port(name).expect("addresses are those of a port");
        let (live, key) = (port.is_live(), port.key);
        let before = self.statics.place(name);
        match before {
            Some(Place::Port(old)) if live && old == key => return Ok(Place::Port(old)),
            Some(Place::StandIn(old)) if !live => return Ok(Place::StandIn(old)),
            _ => {}
        }
        let config = stand_in(port.config.clone());
        self.statics.set_place(name, None);
        let now = match live {
            true => Place::Port(key),
            false => {
                let key = PortKey(self.state.new_key());
                self.datapath.add_null(key, switch, config)?;
                Place::StandIn(key)
            }
        };
        self.statics.set_place(name, Some(now));
        // From the stand-in to the port, without a moment between.
        for StaticAddress { mac, vlan } in self.statics.stations(name) {
            self.datapath.fdb_add(now.key(), mac, vlan)?;
        }
        self.dismiss(name, before);
        Ok(now)
    }

    /// A port without static addresses needs no place for them.
    fn tidy_statics(&mut self, name: &PortName) {
        let place = self.statics.tidy(name);
        self.dismiss(name, place);
    }

    fn dismiss(&mut self, name: &PortName, place: Option<Place>) {
        if let Some(Place::StandIn(key)) = place {
            self.datapath.detach(key, name);
        }
    }
}

/// What the switch makes of a port without a holder: its VLANs and its isolation, no floods.
fn stand_in(config: PortConfig) -> PortConfig {
    PortConfig {
        unicast_flood: false,
        multicast_flood: false,
        broadcast_flood: false,
        on_full: OnFull::Drop,
        vacant: true,
        ..config
    }
}

/// Entries of an address page; one takes at most 200 bytes.
const FDB_PAGE: usize = 256;

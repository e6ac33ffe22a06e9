//! `uvala daemon --replace`: the next daemon asks this one for its interfaces, for the ports of its
//! clients, then for its end.
//!
//! The copies change nothing here: if the next daemon ends before it has asked for the end, this
//! one goes on. So it does while there are changes that it cannot save, which the next one would
//! not have.
//!
//! A client keeps its port if the next daemon can go on with all that its connection has: one
//! port, which is no function's and no mirror, in no trust group, with settings that the next one
//! knows. Other clients attach again.

use std::collections::BTreeMap;

use packet::MacAddr;
use protocol::name::PortName;
use protocol::{Attach, HandedOver, HandedPort, Page, PageFrom, PortKind, Reply};
use switch::PortConfig;

use super::refusal::{AccessRefusal, Refusal};
use super::state::{Holder, Port};
use super::{Answer, Control};
use crate::control::datapath::Datapath;
use crate::model::error::DatapathError;
use crate::model::handed::{Copies, Parting, StoppedPort};
use crate::model::keys::{ConnKey, PortKey};
use crate::model::policy::{Caller, shown_process};
use crate::model::specs::RingSpec;
use crate::store::writer::Writer;

impl<D: Datapath> Control<D> {
    pub(super) fn hand_over(&self, caller: &Caller, page: &PageFrom) -> Answer {
        check(caller)?;
        self.check_saved()?;
        let copies = self.datapath.hand_over(first(page)?).map_err(DatapathError::from)?;
        Ok(match copies {
            None => (Reply::HandedOver(HandedOver { name: None, next: None }), Vec::new()),
            Some((key, (name, fds))) => {
                let (name, next) = (Some(name), Some(after(key)));
                (Reply::HandedOver(HandedOver { name, next }), fds)
            }
        })
    }

    /// A client's port; the socket adds the connection, which it has.
    pub(super) fn hand_over_port(&mut self, caller: &Caller, page: &PageFrom) -> Answer {
        check(caller)?;
        self.check_saved()?;
        self.pending.ports_are_handed = true;
        let from = first(page)?;
        let left = self.state.ports().filter(|(_, port)| port.key >= from);
        let first = left.filter_map(|it| self.handed(it)).min_by_key(|(_, port, _)| port.key);
        let Some((name, port, holder)) = first else {
            return Ok((Reply::HandedPort(Page { items: Vec::new(), next: None }), Vec::new()));
        };
        let next = Some(after(port.key));
        let copies = self.datapath.copies_of(port.key).unwrap_or_else(|error| {
            tracing::warn!("{name}: its client attaches again: {error}");
            None
        });
        let Some(Copies { rings, fds }) = copies else {
            return Ok((Reply::HandedPort(Page { items: Vec::new(), next }), Vec::new()));
        };
        let items = vec![shown(name, port.key, holder, &rings)];
        self.pending.handed = Some(holder.conn);
        Ok((Reply::HandedPort(Page { items, next }), fds.into()))
    }

    /// The connection of the port that the answer hands over.
    pub(super) fn take_handed(&mut self) -> Option<ConnKey> {
        self.pending.handed.take()
    }

    /// Ends the daemon. If the next one has asked for ports, no frame is moved from here on, and it
    /// hears where.
    pub(super) fn end(&mut self, caller: &Caller) -> Answer {
        check(caller)?;
        self.check_saved()?;
        tracing::info!("{} takes over", shown_process(caller.pid, caller.uid));
        self.pending.successor = Some(caller.pid);
        let mut said = Vec::new();
        if self.pending.ports_are_handed {
            // What is learned from here on is learned again.
            let stations = self.stations();
            self.datapath.halt();
            match self.parting(stations).write() {
                Ok(file) => said.push(file),
                Err(error) => tracing::warn!("all clients attach again: {error}"),
            }
        }
        Ok((Reply::Done, said))
    }

    /// Where the workers have stopped.
    fn parting(&mut self, mut stations: Stations) -> Parting {
        let handed = self.state.ports().filter_map(|it| Some(self.handed(it)?.1.key));
        let positions = self.datapath.positions(&handed.collect::<Vec<_>>());
        let stopped = |(key, at): (PortKey, _)| {
            StoppedPort::new(key.0, at, stations.remove(&key).unwrap_or_default())
        };
        let limit = self.datapath.watchdog_limit().unwrap_or_default();
        let watchdog_us = limit.as_micros().try_into().unwrap_or(u64::MAX);
        Parting { watchdog_us, ports: positions.into_iter().map(stopped).collect() }
    }

    /// The addresses that were learned, with their VLANs.
    fn stations(&mut self) -> Stations {
        let mut stations = Stations::new();
        for switch in self.switch_keys().into_values() {
            let mut next = Some(0);
            while let Some(from) = next {
                let (rows, more) = self.datapath.fdb_page(switch, from, STATIONS);
                for row in rows.iter().filter(|row| !row.is_static && !row.extern_learn) {
                    stations.entry(row.port).or_default().push((row.mac, row.vlan.get()));
                }
                next = more;
            }
        }
        stations
    }

    /// A port that its client keeps, with its holder.
    fn handed<'a>(
        &self,
        (name, port): (&'a PortName, &'a Port),
    ) -> Option<(&'a PortName, &'a Port, &'a Holder)> {
        let holder = port.holder.as_ref().filter(|holder| holder.ready)?;
        let goes_on = is_plain(port, holder) && self.has_one(holder.conn);
        goes_on.then_some((name, port, holder))
    }

    /// Whether a port is all that a connection has, and waits for.
    fn has_one(&self, conn: ConnKey) -> bool {
        self.state.held_by(conn).len() == 1
            && self.state.bound_by(conn).is_none()
            && !self.pending.building.contains_key(&conn)
            && !self.pending.deferred.contains_key(&conn)
            && !self.pending.drafts.contains_key(&conn)
            && !self.notes.routing.values().any(|(of, ..)| *of == conn)
            && !self.listens(conn)
    }

    fn check_saved(&self) -> Result<(), Refusal> {
        let unsaved = self.writer().map(Writer::unsaved).unwrap_or_default();
        unsaved.into_values().next().map_or(Ok(()), |why| Err(Refusal::Unsaved(why)))
    }

    /// Lets the workers take frames: all ports are there.
    pub(super) fn go_on(&mut self) {
        self.datapath.go_on();
    }

    /// Gives up what the next daemon makes anew, if that has the rest; whether it has. The workers
    /// have stopped by then.
    pub fn leave(&mut self) -> bool {
        let leaves = self.successor().is_some() && self.pending.ports_are_handed;
        if leaves {
            self.datapath.leave();
        }
        leaves
    }

    /// The process of the daemon that takes over, if it is time to end.
    pub fn successor(&self) -> Option<u32> {
        self.pending.successor
    }
}

/// Whether the next daemon makes the same port of it: settings of a port that goes with its client
/// are not in the state files.
fn is_plain(port: &Port, holder: &Holder) -> bool {
    let PortConfig { user, usual_max_macs, .. } = port.config;
    let usual = PortConfig { user, usual_max_macs, ..PortConfig::default() };
    port.kind == PortKind::Shm
        && port.config.role.service.is_none()
        && port.config.mirror.is_none()
        && (port.persistent || port.config == usual)
        && holder.group.is_none()
        && !holder.alone
}

fn shown(name: &PortName, key: PortKey, holder: &Holder, rings: &RingSpec) -> HandedPort {
    let RingSpec { counts, extra_bufs, stride } = *rings;
    let attach = Attach {
        tx_rings: Some(counts.tx_rings),
        rx_rings: Some(counts.rx_rings),
        tx_slots: Some(counts.tx_slots.slots()),
        rx_slots: Some(counts.rx_slots.slots()),
        extra_bufs: Some(extra_bufs),
        thread: holder.thread,
        ..Attach::new(name.clone())
    };
    HandedPort { key: key.0, client: holder.name.clone(), attach, stride }
}

/// The first port of a page.
fn first(page: &PageFrom) -> Result<PortKey, Refusal> {
    let number = page.from.as_deref().unwrap_or("0").parse();
    number.map(PortKey).map_err(|_| Refusal::bad_value("from: not a `next` of the last reply"))
}

/// Where the page after this port begins.
fn after(PortKey(number): PortKey) -> String {
    number.saturating_add(1).to_string()
}

fn check(caller: &Caller) -> Result<(), Refusal> {
    if caller.privileged { Ok(()) } else { Err(AccessRefusal::Replace.into()) }
}

/// Addresses that were learned behind ports, with their VLANs.
type Stations = BTreeMap<PortKey, Vec<(MacAddr, u16)>>;

/// Entries of a forwarding database that are asked for at once.
const STATIONS: usize = 4096;

//! The ports of each user and connection, and of each key.
//!
//! The entries say what is; the index says where to look. So a call of one user costs no more
//! because other users have ports: the quota of a user is counted from that user's entries alone.
//!
//! | index | from | to |
//! |---|---|---|
//! | `stakes` | a user | ports that the user owns, holds, has bound, or pays for by their regions |
//! | `binders` | a connection | ports that it has bound |
//! | `unswitched` | a user | connections with rings that no switch serves, likewise |
//! | `captures` | a port | connections that capture it |
//! | `keys` | the key of a port at the workers | the port |

use std::collections::{BTreeMap, BTreeSet};

use protocol::name::PortName;

use super::regions::regions_of;
use super::{Port, State};
use crate::model::keys::{ConnKey, PortKey};

/// Ports by users and connections.
#[derive(Debug, Default)]
pub(super) struct Index {
    stakes: BTreeMap<u32, BTreeSet<PortName>>,
    binders: BTreeMap<ConnKey, BTreeSet<PortName>>,
    unswitched: BTreeMap<u32, BTreeSet<ConnKey>>,
    captures: BTreeMap<PortName, BTreeSet<ConnKey>>,
    keys: BTreeMap<PortKey, PortName>,
}

impl Index {
    /// Notes the users, the connections and the key of a port.
    pub(super) fn enter(&mut self, name: &PortName, port: &Port) {
        self.keys.insert(port.key, name.clone());
        for uid in users(port) {
            self.stakes.entry(uid).or_default().insert(name.clone());
        }
        for conn in binders(port) {
            self.binders.entry(conn).or_default().insert(name.clone());
        }
    }

    /// Forgets the users, the connections and the key of a port.
    pub(super) fn leave(&mut self, name: &PortName, port: &Port) {
        self.keys.remove(&port.key);
        for uid in users(port) {
            remove(&mut self.stakes, uid, name);
        }
        for conn in binders(port) {
            remove(&mut self.binders, conn, name);
        }
    }

    /// How many keys are known.
    #[cfg(test)]
    pub(super) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The users with ports or rings; some of them twice.
    pub(super) fn users(&self) -> impl Iterator<Item = u32> {
        self.stakes.keys().chain(self.unswitched.keys()).copied()
    }

    pub(super) fn enter_unswitched(&mut self, uid: u32, conn: ConnKey) {
        self.unswitched.entry(uid).or_default().insert(conn);
    }

    pub(super) fn leave_unswitched(&mut self, uid: u32, conn: ConnKey) {
        remove(&mut self.unswitched, uid, &conn);
    }

    pub(super) fn enter_capture(&mut self, port: &PortName, conn: ConnKey) {
        self.captures.entry(port.clone()).or_default().insert(conn);
    }

    pub(super) fn leave_capture(&mut self, port: &PortName, conn: ConnKey) {
        remove(&mut self.captures, port.clone(), &conn);
    }
}

impl State {
    /// The ports that a user owns, holds or has bound, and those in regions that it pays for.
    pub(super) fn ports_of_user(&self, uid: u32) -> impl Iterator<Item = &Port> {
        let names = self.index.stakes.get(&uid).into_iter().flatten();
        names.map(|name| {
            visited();
            self.ports.get(name).expect("a port lists its holders")
        })
    }

    /// The connections of a user with rings that no switch serves, and those with such rings in
    /// regions that it pays for.
    pub(super) fn unswitched_of_user(&self, uid: u32) -> impl Iterator<Item = ConnKey> {
        self.index.unswitched.get(&uid).into_iter().flatten().copied()
    }

    /// The connections that capture a port.
    #[must_use]
    pub fn captures_of(&self, port: &PortName) -> Vec<ConnKey> {
        self.index.captures.get(port).into_iter().flatten().copied().collect()
    }

    /// The port with this key at the workers.
    #[must_use]
    pub fn port_with(&self, key: PortKey) -> Option<(&PortName, &Port)> {
        self.ports.get_key_value(self.index.keys.get(&key)?)
    }

    /// The ports that a connection has bound.
    pub(super) fn ports_bound_by(&self, conn: ConnKey) -> impl Iterator<Item = &PortName> {
        self.index.binders.get(&conn).into_iter().flatten()
    }
}

/// Each user that has something of a port; one that has several things, several times.
fn users(port: &Port) -> impl Iterator<Item = u32> {
    let holder = port.holder.as_ref().map(|holder| holder.uid);
    let binder = port.bound.as_ref().map(|shared| shared.uid);
    let payers = regions_of(port).map(|region| region.charge.uid);
    [port.owner].into_iter().chain(holder).chain(binder).chain(payers)
}

fn binders(port: &Port) -> impl Iterator<Item = ConnKey> {
    port.bound.iter().flat_map(|shared| &shared.holders).map(|holder| holder.conn)
}

fn remove<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: &V) {
    if let Some(values) = map.get_mut(&key) {
        values.remove(value);
        if values.is_empty() {
            map.remove(&key);
        }
    }
}

/// A port is looked at. Tests count that.
#[inline]
pub(super) fn visited() {
    #[cfg(test)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How many ports were looked at since the last time.
#[cfg(test)]
pub fn take_visits() -> u64 {
    VISITS.with(std::cell::Cell::take)
}

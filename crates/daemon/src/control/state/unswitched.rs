//! What one connection has for itself under `/dev/netmap`: a null port or a monitor.
//!
//! ```text
//!            bind                     hang-up
//!   (none) ─────────► held by one ─────────────► (none)
//! ```
//!
//! Neither is a port of a switch: no client finds it by a name, and no listing shows it. It
//! counts as a port for its user's quota, and its region lives as long as it does. A monitor
//! outlives the port that it looks at, and sees nothing any more; a capture goes on with the next
//! client of a permanent port.

use protocol::name::{PortName, SwitchName};
use protocol::{CaptureOf, PortKind};

use super::State;
use super::shared::{Region, Shared};
use crate::control::netmap::refusal::NetmapRefusal;
use crate::control::refusal::Refusal;
use crate::model::keys::{ConnKey, PortKey};
use crate::model::policy::Caller;

/// A capture that was allowed.
#[derive(Clone, Debug)]
pub struct CaptureFor {
    /// The process and user that capture.
    pub caller: Caller,
    /// The frames that they get.
    pub of: CaptureKind,
}

/// The frames that a capture gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureKind {
    /// Frames of the port.
    Port(CaptureOf),
    /// Frames that the switch drops.
    Drops,
}

/// Rings of one connection.
#[derive(Clone, Debug)]
pub struct UnswitchedPort {
    /// Key of the rings at the workers.
    pub key: PortKey,
    /// The name that was asked for.
    pub name: PortName,
    /// Region, user, memory and the connection that holds it.
    pub shared: Shared,
    /// For a capture.
    pub capture: Option<CaptureFor>,
}

impl UnswitchedPort {
    /// Whether it captures what a switch drops.
    #[must_use]
    pub fn captures_drops(&self) -> bool {
        self.capture.as_ref().is_some_and(|capture| capture.of == CaptureKind::Drops)
    }
}

/// A port that a client has open.
#[derive(Clone, Debug)]
pub struct Open {
    /// Key of the port.
    pub key: PortKey,
    /// User of the port.
    pub uid: u32,
    /// The region of a port that netmap programs have bound.
    pub region: Option<Region>,
    /// For the end of a pipe, the other end.
    pub peer: Option<PortKey>,
}

/// The user that has it, and the one that pays for its region.
fn users(port: &UnswitchedPort) -> impl Iterator<Item = u32> + use<> {
    [port.shared.uid, port.shared.region.charge.uid].into_iter()
}

impl State {
    /// What a connection has for itself.
    #[must_use]
    pub fn unswitched_of(&self, conn: ConnKey) -> Option<&UnswitchedPort> {
        self.unswitched.get(&conn)
    }

    /// The connections that capture the drops of a switch.
    #[must_use]
    pub fn drop_captures_of(&self, switch: &SwitchName) -> Vec<ConnKey> {
        let all = self.unswitched.iter().filter(|(_, port)| port.captures_drops());
        let of_switch = all.filter(|(_, port)| port.name.switch() == switch);
        of_switch.map(|(conn, _)| *conn).collect()
    }

    /// The monitor or capture with rings of this key.
    #[must_use]
    pub fn unswitched_with(&self, key: PortKey) -> Option<&UnswitchedPort> {
        self.unswitched.values().find(|port| port.key == key)
    }

    /// Enters what the workers have made.
    pub fn add_unswitched(&mut self, conn: ConnKey, port: UnswitchedPort) {
        users(&port).for_each(|uid| self.index.enter_unswitched(uid, conn));
        if matches!(&port.capture, Some(CaptureFor { of: CaptureKind::Port(_), .. })) {
            self.index.enter_capture(&port.name, conn);
        }
        let before = self.unswitched.insert(conn, port);
        assert!(before.is_none(), "a connection binds once");
    }

    /// Removes what a connection has for itself.
    pub fn remove_unswitched(&mut self, conn: ConnKey) -> Option<UnswitchedPort> {
        let port = self.unswitched.remove(&conn)?;
        users(&port).for_each(|uid| self.index.leave_unswitched(uid, conn));
        self.index.leave_capture(&port.name, conn);
        self.note_regions_left([&port.shared.region].into_iter());
        Some(port)
    }

    /// A connection has the memory of what it has for itself.
    pub fn note_unswitched_ready(&mut self, conn: ConnKey) {
        self.unswitched.get_mut(&conn).expect("it was bound").shared.ready = true;
    }

    /// The port of this name, if a client has it open and its frames pass a worker.
    pub fn open(&self, name: &PortName) -> Result<Open, Refusal> {
        let port = self.ports.get(name).ok_or_else(|| NetmapRefusal::NotOpen(name.clone()))?;
        let held = port.holder.as_ref().filter(|holder| holder.ready);
        let bound = port.bound.as_ref().filter(|it| it.ready && !it.holders.is_empty());
        let peer = || Some(self.ports.get(&name.peer()?)?.key);
        match (bound, held, port.kind) {
            (Some(shared), _, _) => {
                let region = Some(shared.region.clone());
                Ok(Open { key: port.key, uid: shared.uid, region, peer: peer() })
            }
            (None, Some(holder), PortKind::Shm) => {
                Ok(Open { key: port.key, uid: holder.uid, region: None, peer: None })
            }
            (None, Some(_), _) => Err(NetmapRefusal::NotMonitorable(name.clone()).into()),
            (None, None, _) => Err(NetmapRefusal::NotOpen(name.clone()).into()),
        }
    }
}

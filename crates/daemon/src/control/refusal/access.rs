//! The caller lacks a permission.

use protocol::Mode;
use protocol::name::{PortName, SwitchName};
use protocol::users;
use thiserror::Error;

use crate::model::policy::Access;

/// A permission that the caller lacks.
#[derive(Debug, Error)]
pub enum AccessRefusal {
    /// Owner, group and mode of the switch do not let the caller in.
    #[error(
        "switch {switch} belongs to {} with mode {mode}: no permission to {}; {}",
        users::user_name(*.owner), .access.verb(), remedy(*.access, .switch)
    )]
    Switch {
        /// The switch.
        switch: SwitchName,
        /// Owner of the switch.
        owner: u32,
        /// Mode of the switch.
        mode: Mode,
        /// What the caller wanted to do.
        access: Access,
    },
    /// Owner, group and mode of the port do not let the caller attach.
    #[error(
        "port {port} belongs to {} with mode {mode}: no permission to attach; the switch's owner \
         can change that with: uvala port set {port} --owner USER",
        users::user_name(*.owner)
    )]
    Port {
        /// The port.
        port: PortName,
        /// The user that the port is for.
        owner: u32,
        /// Mode of the port.
        mode: Mode,
    },
    /// Only the owner of the switch makes ports there.
    #[error(
        "there is no port {port}, and only {}, the switch's owner, may create ports (new-ports \
         owner); ask for: \
         uvala port add {port} --owner USER",
        users::user_name(*.owner)
    )]
    NewPort {
        /// The port.
        port: PortName,
        /// Owner of the switch.
        owner: u32,
    },
    /// Only root gives a switch away.
    #[error("only root may give a switch to another user, or to a group you are not in")]
    GiveAway,
    /// The other end of a pipe, or a region of netmap ports, belongs to another user.
    #[error(
        "{what} belongs to {}: only processes of one user share memory",
        users::user_name(*.owner)
    )]
    SharedMemory {
        /// The pipe, port or region.
        what: String,
        /// User that owns it.
        owner: u32,
    },
    /// A netmap monitor of another user's port.
    #[error(
        "port {port} belongs to {}: only that user and root may monitor it",
        users::user_name(*.owner)
    )]
    Monitor {
        /// The port.
        port: PortName,
        /// User that owns it.
        owner: u32,
    },
    /// Network interfaces are opened with the daemon's rights.
    #[error(
        "only root and the daemon's user may add ports for network interfaces: run this as one of \
         them"
    )]
    Host,
    /// Datagrams of a tunnel are the daemon's.
    #[error(
        "only root and the daemon's user may add ports of kind vxlan and change their remotes: run \
         this as one of them"
    )]
    Vxlan,
    /// A look at all switches costs what all users have.
    #[error(
        "only root and the daemon's user may listen to events; see listings with --watch, such as: \
         uvala stats --watch"
    )]
    Events,
    /// Only root and the daemon's user end a daemon.
    #[error("only root and the daemon's user may replace the daemon")]
    Replace,
    /// Sockets are made with the daemon's rights.
    #[error("only root and the daemon's user may choose the socket's path; leave it out")]
    SocketPath,
}

/// What a caller without the permission can do.
fn remedy(access: Access, switch: &SwitchName) -> String {
    match access {
        Access::Look | Access::Attach => {
            let set = format!("uvala switch set {switch} --group GROUP --mode 660");
            format!("its owner can let a group in, or all users with --mode 666: {set}")
        }
        Access::Manage => "only its owner and root may, whatever the mode".to_owned(),
    }
}

//! Permissions of a switch: owner, group and mode, read as for a file.
//!
//! | to | bit | of |
//! |---|---|---|
//! | see it, its ports, counters and addresses | `r` | owner, group or others |
//! | attach to it, creating ports | `w` | owner, group or others |
//! | change it, its ports and its addresses | – | owner only |
//!
//! A persistent port is a file in that folder: a user that may attach to the switch needs `w` of
//! the port too. [`Grant`] has what an operator has set of it, and the defaults for the rest. The
//! owner of the switch may attach to all its ports.
//!
//! As for a file, exactly one triple counts: the owner's for the owner, even where the group's
//! grants more. Root and the user the daemon runs as may do everything. What the kernel said about
//! the caller when it connected is what counts; nothing in a message can claim another identity.

use protocol::users::user_name;
use protocol::{Mode, NewPorts, PortSettings};

use super::keys::ConnKey;

/// The process behind a connection, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Process number when it connected, for messages: 0 in another PID namespace, and another
    /// process may get it later.
    pub pid: u32,
    /// By what it is told from other processes.
    pub process: Process,
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Root, or the daemon's own user.
    pub privileged: bool,
}

/// A process, told from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// By the inode of its pidfd, which the kernel gives to no other process.
    Pidfd(u64),
    /// By its number, where pidfds have no inodes of their own (before Linux 6.9).
    Number(u32),
    /// By its connection, where it has no number either: in another PID namespace. Two connections
    /// of such a process are two.
    Connection(ConnKey),
}

/// Whether a user is root or the daemon's own.
#[must_use]
pub fn is_privileged(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl Caller {
    /// Whether the caller is a member of a group.
    #[must_use]
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// A process as messages name it, by its number, if it has one here, and its user.
#[must_use]
pub fn shown_process(pid: u32, uid: u32) -> String {
    let user = user_name(uid);
    match pid {
        0 => format!("a process of {user} in another PID namespace"),
        pid => format!("process {pid} of {user}"),
    }
}

/// The owner and group of a switch, and what its mode allows to them and to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// User.
    pub owner: u32,
    /// Group.
    pub group: u32,
    /// Bits.
    pub mode: Mode,
}

/// Owner, group and mode of a persistent port, as far as an operator has set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// User.
    pub owner: Option<u32>,
    /// Group.
    pub group: Option<u32>,
    /// Bits.
    pub mode: Option<Mode>,
}

impl Grant {
    /// What a change of settings makes of it.
    #[must_use]
    pub fn changed(self, settings: &PortSettings) -> Self {
        Self {
            owner: settings.owner.or(self.owner),
            group: settings.group.or(self.group),
            mode: settings.mode.or(self.mode),
        }
    }

    /// What it means for a port that `maker` made of a switch.
    #[must_use]
    pub fn permissions(self, maker: u32, switch: &Permissions, new_ports: NewPorts) -> Permissions {
        Permissions {
            owner: self.owner.unwrap_or(maker),
            group: self.group.unwrap_or(switch.group),
            mode: self.mode.unwrap_or_else(|| self.usual_mode(new_ports)),
        }
    }

    /// The mode of a port without one: the owner and the group that are set may attach. Without
    /// both, the users that may open a new port of the switch.
    fn usual_mode(self, new_ports: NewPorts) -> Mode {
        let bits = match (self.owner, self.group, new_ports) {
            (_, Some(_), _) => 0o660,
            (Some(_), None, _) | (None, None, NewPorts::Owner) => 0o600,
            (None, None, NewPorts::Any) => 0o666,
        };
        Mode::new(bits).expect("nine bits")
    }
}

/// What a caller wants to do with a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// See it.
    Look,
    /// Attach ports to it.
    Attach,
    /// Change it.
    Manage,
}

impl Access {
    /// As it reads in "no permission to …".
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Look => "look at it",
            Self::Attach => "attach to it",
            Self::Manage => "change it",
        }
    }
}

impl Permissions {
    /// Whether the caller may.
    #[must_use]
    pub fn allow(&self, caller: &Caller, access: Access) -> bool {
        if caller.privileged {
            return true;
        }
        let bits = self.bits_for(caller);
        match access {
            Access::Look => bits & 0o4 != 0,
            Access::Attach => bits & 0o2 != 0,
            Access::Manage => caller.uid == self.owner,
        }
    }

    fn bits_for(&self, caller: &Caller) -> u16 {
        let mode = self.mode.bits();
        if caller.uid == self.owner {
            mode >> 6
        } else if caller.in_group(self.group) {
            mode >> 3
        } else {
            mode
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, groups: &[u32]) -> Caller {
        Caller {
            pid: 1,
            process: Process::Number(1),
            uid,
            gid: uid,
            groups: groups.to_vec(),
            privileged: uid == 0,
        }
    }

    fn allowed(mode: u16, caller: &Caller) -> String {
        let mode = Mode::new(mode).unwrap();
        let permissions = Permissions { owner: 1000, group: 50, mode };
        let letters = [(Access::Look, 'l'), (Access::Attach, 'a'), (Access::Manage, 'm')];
        let may = |&(access, _): &(Access, char)| permissions.allow(caller, access);
        letters.iter().filter(|&pair| may(pair)).map(|&(_, letter)| letter).collect()
    }

    #[test]
    fn test_modes_read_as_for_a_file() {
        let (owner, member, other) = (caller(1000, &[]), caller(1001, &[7, 50]), caller(1002, &[]));
        assert_eq!(allowed(0o600, &owner), "lam");
        assert_eq!(allowed(0o600, &member), "");
        assert_eq!(allowed(0o640, &member), "l");
        assert_eq!(allowed(0o660, &member), "la");
        assert_eq!(allowed(0o660, &other), "");
        assert_eq!(allowed(0o666, &other), "la");
        assert_eq!(allowed(0o066, &owner), "m");
        assert_eq!(allowed(0o000, &caller(0, &[])), "lam");
    }

    #[test]
    fn test_what_is_not_said_of_a_port_follows_from_what_is() {
        let switch =
            Permissions { owner: 1000, group: 50, mode: Mode::new(0o660).expect("nine bits") };
        let (owner, group, mode) = (Some(7), Some(8), Mode::new(0o620));
        for (grant, new_ports, expected) in [
            (Grant::default(), NewPorts::Any, (1000, 50, 0o666)),
            (Grant::default(), NewPorts::Owner, (1000, 50, 0o600)),
            (Grant { owner, ..Grant::default() }, NewPorts::Any, (7, 50, 0o600)),
            (Grant { group, ..Grant::default() }, NewPorts::Any, (1000, 8, 0o660)),
            (Grant { owner, group, ..Grant::default() }, NewPorts::Owner, (7, 8, 0o660)),
            (Grant { owner, group, mode }, NewPorts::Any, (7, 8, 0o620)),
            (Grant { mode, ..Grant::default() }, NewPorts::Owner, (1000, 50, 0o620)),
        ] {
            let port = grant.permissions(1000, &switch, new_ports);
            assert_eq!((port.owner, port.group, port.mode.bits()), expected, "{grant:?}");
        }
    }

    #[test]
    fn test_primary_group_counts() {
        let mut member = caller(1001, &[]);
        member.gid = 50;
        assert_eq!(allowed(0o620, &member), "a");
    }
}

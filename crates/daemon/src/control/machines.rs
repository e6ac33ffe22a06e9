//! Ports of virtual machines: which user may have which socket.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use port::log_budget::NextReport;
use port::machine::quota::{Limits, Quota};
use port::machine::{Access, Coalesce, Spec};
use protocol::name::PortName;
use protocol::{Machine, MachineInfo, PortAdd, PortKind, check};

use super::{Client, Control};
use crate::control::datapath::Datapath;
use crate::control::refusal::{AccessRefusal, Refusal};
use crate::control::shares::Shares;
use crate::control::state::{Holder, Port};
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::plan::{Origin, PortPlan};
use crate::model::policy::{Caller, is_privileged};
use crate::model::specs::MachineSpec;

/// So many users are on record before any is forgotten.
const USERS: usize = 64;

/// What the machines of each user may take together, as long as any port of theirs is there, or
/// the log has had lines of theirs a short time ago.
#[derive(Debug)]
pub(super) struct Allowances {
    limits: Limits,
    /// The limits of users that are neither root nor the daemon's.
    ordinary: Limits,
    /// Users with ports or lines, and others until there are `most` or they have a port again.
    users: BTreeMap<u32, Arc<Quota>>,
    most: usize,
    next: NextReport,
}

impl Allowances {
    pub(super) fn new(limits: Limits) -> Self {
        let (users, next) = (BTreeMap::new(), NextReport::default());
        Self { limits, ordinary: limits, users, most: USERS, next }
    }

    /// From now on ordinary users have at most a share of the descriptors.
    pub(super) fn share(&mut self, shares: Shares) {
        self.ordinary.descriptors = shares.of_machines(self.limits.descriptors);
    }

    /// When the log can have the number of lines that were suppressed, if some were.
    pub(super) fn next_report(&self) -> Option<Instant> {
        self.next.at()
    }

    /// Logs how many lines of users were suppressed in minutes that are over, if it is time.
    pub(super) fn log_suppressed(&self, now: Instant) {
        if self.next.take_due(now) {
            self.users.values().for_each(|quota| quota.lines().log_suppressed(now));
        }
    }

    pub(super) fn of(&mut self, user: u32) -> Arc<Quota> {
        let now = Instant::now();
        if self.users.len() >= self.most {
            self.users.retain(|_, quota| !is_idle(quota, now));
            self.most = USERS.max(2 * self.users.len());
        }
        if self.users.get(&user).is_some_and(|quota| is_idle(quota, now)) {
            self.users.remove(&user);
        }
        let limits = if is_privileged(user) { self.limits } else { self.ordinary };
        let (next, users) = (&self.next, &mut self.users);
        users.entry(user).or_insert_with(|| Quota::with_lines(user, limits, next)).clone()
    }
}

/// Whether a user has no ports, and all its lines.
fn is_idle(quota: &Arc<Quota>, now: Instant) -> bool {
    Arc::strong_count(quota) == 1 && quota.lines().are_whole(now)
}

impl<D: Datapath> Control<D> {
    pub(super) fn machine_info(&self, port: &Port) -> Option<MachineInfo> {
        port.machine.as_ref().and_then(|_| self.datapath.machine_info(port.key))
    }

    /// From now on the port goes with the connection.
    pub(super) fn give(&mut self, client: &Client, name: &PortName) {
        let port = self.state.port_mut(name).expect("made just now");
        port.persistent = false;
        let holder = Some(Holder { ready: true, ..client.holder(0, None) });
        let held = Port { holder, ..port.clone() };
        self.state.hold(name, held);
    }

    /// Makes the port with its socket; one of a plan without, where that cannot be had.
    pub(super) fn add_machine(
        &mut self,
        key: PortKey,
        switch: SwitchKey,
        owner: u32,
        plan: &PortPlan,
        origin: Origin,
    ) -> Result<(), Refusal> {
        let machine = plan.machine.clone().unwrap_or_default();
        let default = || self.defaults.dir.join(format!("{}.sock", plan.name));
        let path = machine.socket.as_ref().map_or_else(default, PathBuf::from);
        // Only root can give a socket away, and only what it makes for others needs giving.
        let privileged = rustix::process::geteuid().is_root();
        let access = Access {
            owner: plan.grant.owner.or_else(|| privileged.then_some(owner)),
            group: plan.grant.group,
            mode: plan.grant.mode.map(|mode| u32::from(mode.bits())),
        };
        let (connects, pairs) = (machine.connect, machine.queues.unwrap_or(1));
        let (coalesce, allowance) = (coalesce(&machine), self.notes.allowances.of(owner));
        let peer = machine.peer.map_or_else(|| path.with_extension("peer"), PathBuf::from);
        let peer = (plan.kind == PortKind::Dgram).then_some(peer);
        let name = plan.name.to_string();
        let socket = Spec { name, path, connects, pairs, coalesce, peer, access, quota: allowance };
        let (name, kind, config) = (plan.name.clone(), plan.kind, plan.config.clone());
        let spec = MachineSpec { key, kind, name, switch, socket, config };
        let made = match &spec.socket.peer {
            Some(peer) if *peer == spec.socket.path => Err(Refusal::bad_value(format!(
                "{}: the peer {} is the port's own socket; name the VMM's",
                spec.name,
                peer.display()
            ))),
            _ => self.datapath.add_machine(&spec).map_err(Refusal::from),
        };
        match made {
            Err(error) if origin == Origin::Plan => {
                tracing::warn!("{}: {error}; then delete the port and add it again", spec.name);
                Ok(self.datapath.add_machine_without_socket(&spec, error.to_string())?)
            }
            made => made,
        }
    }
}

/// The socket that a new port is to have. It is made, or connected to, with the daemon's rights, so
/// one at a place of choice is for users that have these anyway.
pub(super) fn request_of(caller: &Caller, add: &PortAdd) -> Result<Option<Machine>, Refusal> {
    let chosen = |machine: &Machine| machine.socket.is_some() || machine.peer.is_some();
    let chosen = add.machine.as_ref().is_some_and(chosen);
    if chosen && !caller.privileged {
        return Err(AccessRefusal::SocketPath.into());
    }
    check::machine(add.kind, add.machine.as_ref())
        .map_err(|error| Refusal::bad_value(format!("{}: {error}", add.port)))
}

/// Interrupt coalescing of the port, if the request sets it.
fn coalesce(machine: &Machine) -> Option<Coalesce> {
    let usecs = machine.coalesce_usecs?;
    Some(Coalesce { frames: machine.coalesce_frames.unwrap_or(0), usecs })
}

#[cfg(test)]
mod tests {
    use port::machine::quota::Resource;

    use super::*;

    #[test]
    fn a_user_has_one_allowance_for_all_ports() {
        let mut allowances = Allowances::new(Limits::NONE);
        let [first, other, again] = [1, 2, 1].map(|user| allowances.of(user));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn users_without_ports_are_forgotten_when_there_are_many() {
        let mut allowances = Allowances::new(Limits::NONE);
        let stays = [1, 2].map(|user| allowances.of(user));
        assert!(stays[1].lines().allows_event());
        (3..1000).for_each(|user| drop(allowances.of(user)));
        assert!(allowances.users.len() <= USERS);
        let again = [1, 2].map(|user| allowances.of(user));
        assert!(stays.iter().zip(&again).all(|(it, again)| Arc::ptr_eq(it, again)));
        drop((stays, again));
        assert!((3..1000).all(|user| Arc::strong_count(&allowances.of(user)) == 2));
        let is_known = |user: u32| allowances.users.contains_key(&user);
        assert_eq!([1, 2].map(is_known), [false, true], "the log has had a line of one");
    }

    #[test]
    fn a_user_whose_ports_are_gone_has_the_limits_of_now() {
        let mut allowances = Allowances::new(Limits::NONE);
        let take = |quota: &Arc<Quota>| quota.take(Resource::Descriptors, 1).is_ok();
        let before = allowances.of(4711);
        allowances.ordinary.descriptors = 0;
        assert!(take(&before) && take(&allowances.of(4711)));
        drop(before);
        assert!(!take(&allowances.of(4711)));
    }

    #[test]
    fn a_user_that_deletes_its_ports_and_adds_them_again_gets_no_more_lines_of_the_log() {
        let mut allowances = Allowances::new(Limits::NONE);
        let said = |_: &u32| allowances.of(1).lines().allows_event();
        assert_eq!((0..100).filter(said).count(), 40);
        assert!(allowances.of(2).lines().allows_event(), "another user");
    }
}

//! Port security: the limits of ordinary users' ports, disabled ports, loops.

use std::time::Instant;

use packet::{MacAddr, MacList, VlanId};
use protocol::name::{PortName, SwitchName};
use protocol::{Change, LoopInfo, Reply};
use switch::{Disabled, PortSecurity, SecurityState};

use super::Control;
use crate::control::datapath::Datapath;
use crate::control::datapath::security::Notice;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::policy::{Access, Caller, is_privileged};
use crate::model::settings::security_in_force;

/// A loop that was seen so long ago, in milliseconds, is shown no more.
const SHOWN_MS: u64 = 60_000;

impl<D: Datapath> Control<D> {
    /// How many addresses are learned on a port of this user if nothing else is set. The users that
    /// may do everything have no limit.
    pub(super) fn usual_max_macs(&self, uid: u32) -> Option<u32> {
        Some(self.defaults.max_macs).filter(|_| !is_privileged(uid))
    }

    /// A user is about to use a port: that limits its addresses, and its share of a worker's time.
    pub(super) fn note_user(&mut self, name: &PortName, uid: u32) {
        let limit = self.usual_max_macs(uid);
        if let Some(port) = self.state.port_mut(name) {
            (port.config.usual_max_macs, port.config.user) = (limit, uid);
        }
    }

    /// Port security of a port: its own settings, with the switch's where it has none.
    pub(super) fn security_in_force(&self, name: &PortName, port: &Port) -> PortSecurity {
        let switch = self.state.find_switch(name.switch()).map(|switch| switch.config);
        security_in_force(&port.config, &switch.unwrap_or_default())
    }

    /// What port security remembers of a port. Workers are asked where they remember something.
    pub(super) fn security_state(&self, port: &Port, in_force: &PortSecurity) -> SecurityState {
        let kept = port.config.security_state;
        let is_on = in_force.is_on() || kept.disabled.is_some();
        let asked = (is_on && port.is_live()).then(|| self.datapath.security_state(port.key));
        asked.flatten().unwrap_or(kept)
    }

    /// Keeps what port security remembers of a port that stays without its client.
    pub(super) fn remember_security(&mut self, name: &PortName, key: PortKey) {
        let state = self.datapath.security_state(key);
        if let (Some(port), Some(state)) = (self.state.port_mut(name), state) {
            port.config.security_state = state;
        }
    }

    /// The lock of a switch has changed: the addresses of its ports' old lock are forgotten.
    pub(super) fn forget_first_macs(&mut self, name: &SwitchName) {
        let ports: Vec<_> = self.state.ports_of(name).map(|(name, _)| name.clone()).collect();
        for name in ports {
            if let Some(port) = self.state.port_mut(&name) {
                port.config.security_state.first_macs = MacList::default();
            }
        }
    }

    pub(super) fn port_enable(
        &mut self,
        caller: &Caller,
        name: &PortName,
    ) -> Result<Reply, Refusal> {
        let port = self.state.port(caller, name, Access::Manage)?;
        if port.is_live() {
            self.datapath.enable_port(port.key);
        }
        let port = self.state.port_mut(name).expect("it was there just now");
        port.config.security_state.disabled = None;
        Ok(Reply::Done)
    }

    /// The loop of a switch that was seen last, if that was a short time ago.
    pub(super) fn loop_of(&self, name: &SwitchName, switch: SwitchKey) -> Option<LoopInfo> {
        let found = self.datapath.last_loop(switch)?;
        let port = |key: PortKey| {
            let known = self.state.port_with(key).map(|(port, _)| port);
            known.filter(|port| port.switch() == name).cloned()
        };
        let ports = [port(found.ports[0])?, port(found.ports[1])?];
        let looped =
            LoopInfo { ports, mac: found.mac, vlan: found.vlan.get(), age_ms: found.age_ms };
        Some(looped).filter(|looped| looped.age_ms < SHOWN_MS)
    }

    /// Logs the loops and the disabled ports that the workers report.
    pub(super) fn log_notices(&mut self) {
        for notice in self.datapath.take_notices() {
            match notice {
                Notice::Loop { ports, mac, vlan } => self.note_loop(ports, mac, vlan),
                Notice::Disabled(port, why) => self.note_disabled(port, why),
            }
        }
    }

    /// Logs a loop, and tells the listeners. The line counts for the user that has both ports.
    /// Where two users have them, it counts for the switch's owner: either may be the other's
    /// victim.
    fn note_loop(&mut self, ports: [PortKey; 2], mac: MacAddr, vlan: VlanId) {
        let ends = ports.map(|key| self.state.port_with(key));
        let [Some((a, one)), Some((b, other))] = ends else { return };
        let owner = self.state.find_switch(a.switch()).map(|switch| switch.permissions.owner);
        let both = (one.config.user == other.config.user).then_some(one.config.user);
        let ports = [a.clone(), b.clone()];
        if both.or(owner).is_some_and(|uid| self.call_log.logs_change(uid, Instant::now())) {
            let [a, b] = &ports;
            tracing::warn!(
                "loop between {a} and {b}: {mac} of VLAN {vlan} moves back and forth; disconnect \
                 one of them, or give the stations different addresses"
            );
        }
        self.listeners.tell(&Change::Loop { ports, mac, vlan: vlan.get() });
    }

    fn note_disabled(&mut self, key: PortKey, why: Disabled) {
        let Some((name, port)) = self.state.port_with(key) else { return };
        let (name, uid) = (name.clone(), port.config.user);
        if let Some(port) = self.state.port_mut(&name) {
            port.config.security_state.disabled = Some(why);
        }
        if !self.call_log.logs_change(uid, Instant::now()) {
            return;
        }
        let cause = match why {
            Disabled::BpduGuard => "it has sent a BPDU",
            Disabled::LoopProtect => "a loop leads through it",
        };
        let setting = why.name();
        tracing::warn!("{name} is disabled by {setting}: {cause}; then uvala port enable {name}");
    }
}

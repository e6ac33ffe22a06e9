//! Port security and loops, as control asks the workers for them.
//!
//! The replica that sees a reason disables the port by itself. The others hear of it from control,
//! which gets the replica's notice.

use packet::PortId;
use switch::{News, SecurityState};

use super::Workers;
use super::worker::Worker;
use crate::control::datapath::security::{FoundLoop, Notice, Security};
use crate::model::keys::{PortKey, SwitchKey};

impl Security for Workers {
    fn security_state(&self, port: PortKey) -> Option<SecurityState> {
        let place = self.ports.get(&port)?;
        let id = place.id;
        let job = move |worker: &mut Worker, at| worker.switch(at).bridge().security_state(id);
        Some(self.on_port(place, job))
    }

    fn enable_port(&mut self, port: PortKey) {
        let Some((switch, id)) = self.switch_of(port) else { return };
        self.on_replicas(switch, move |worker, at| worker.switch(at).bridge_mut().enable_port(id));
    }

    fn last_loop(&self, switch: SwitchKey) -> Option<FoundLoop> {
        let (found, age_ms) = self.on_switch(switch, |worker, at| {
            let now = worker.now();
            let found = worker.switch(at).bridge().fdb().last_loop()?;
            Some((found, now.ms_since(found.seen)))
        })?;
        let keys = &self.place(switch).keys;
        let ports = [*keys.get(&found.ports[0])?, *keys.get(&found.ports[1])?];
        Some(FoundLoop { ports, mac: found.mac, vlan: found.vlan, age_ms })
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        let notice = |(at, news)| {
            // The switch may be gone by now.
            let (switch, place) = self.switches.iter().find(|(_, place)| place.at == at)?;
            let keys = &place.keys;
            Some(match news {
                News::Disabled(port, why) => {
                    if !self.is_disabled(*switch, port) {
                        return None;
                    }
                    self.on_replicas(*switch, move |worker, at| {
                        worker.switch(at).bridge_mut().disable_port(port, why);
                    });
                    Notice::Disabled(*keys.get(&port)?, why)
                }
                News::Loop(found) => {
                    let ports = [*keys.get(&found.ports[0])?, *keys.get(&found.ports[1])?];
                    Notice::Loop { ports, mac: found.mac, vlan: found.vlan }
                }
            })
        };
        self.notices.take(self.host.ringer()).into_iter().filter_map(notice).collect()
    }
}

impl Workers {
    /// Whether a replica has disabled the port. If none has, another port has got the number since
    /// the notice was sent, or an operator has enabled the port.
    fn is_disabled(&self, switch: SwitchKey, port: PortId) -> bool {
        let look = move |worker: &mut Worker, at| worker.switch(at).bridge().security_state(port);
        self.on_replicas(switch, look).iter().any(|state| state.disabled.is_some())
    }
}

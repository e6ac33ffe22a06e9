//! Notices of workers for the control thread: loops, and ports that switches have disabled.
//!
//! A worker sends a notice seldom, at most one for each switch in a millisecond: a loop is one
//! until it ends, and a disabled port is one until an operator enables it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use port::sys::Waker;
use switch::{News, SecurityState};

use super::Workers;
use super::worker::Worker;
use crate::control::datapath::security::{FoundLoop, Notice, Security};
use crate::model::keys::{PortKey, SwitchKey};

/// What a worker says of the switch at a place.
#[derive(Debug)]
struct Sent {
    at: usize,
    news: News,
}

/// A worker's end.
#[derive(Debug)]
pub struct NoticeSender {
    notices: Sender<Sent>,
    bell: Arc<Waker>,
}

impl NoticeSender {
    /// Sends a notice about the switch at this place, and wakes the control thread.
    pub fn send(&self, at: usize, news: News) {
        if self.notices.send(Sent { at, news }).is_ok() {
            self.bell.wake();
        }
    }
}

/// The control thread's end.
#[derive(Debug)]
pub struct Notices {
    notices: Receiver<Sent>,
    sender: Sender<Sent>,
}

impl Default for Notices {
    fn default() -> Self {
        let (sender, notices) = channel();
        Self { notices, sender }
    }
}

impl Notices {
    /// The end for a worker, which rings this bell.
    pub fn sender(&self, bell: Arc<Waker>) -> NoticeSender {
        NoticeSender { notices: self.sender.clone(), bell }
    }
}

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
        let notice = |sent: Sent| {
            // The switch may be gone by now.
            let (switch, place) = self.switches.iter().find(|(_, place)| place.at == sent.at)?;
            let keys = &place.keys;
            Some(match sent.news {
                News::Disabled(port, why) => {
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
        self.notices.notices.try_iter().filter_map(notice).collect()
    }
}

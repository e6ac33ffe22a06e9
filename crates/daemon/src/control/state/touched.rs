//! Switches and ports that calls have touched, noted while clients listen to events.
//!
//! A name that is noted may have stayed as it was; one that has changed is noted.

use std::collections::BTreeSet;

use protocol::name::{PortName, SwitchName};

use super::State;

/// Names that were touched.
#[derive(Debug, Default)]
pub struct Touched {
    /// Switches.
    pub switches: BTreeSet<SwitchName>,
    /// Ports.
    pub ports: BTreeSet<PortName>,
}

impl State {
    /// Begins to note names, or ends it.
    pub fn note_touched(&mut self, wanted: bool) {
        self.touched = wanted.then(Touched::default);
    }

    /// The names that were noted since the last call.
    pub fn take_touched(&mut self) -> Touched {
        self.touched.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn touch_port(&mut self, name: &PortName) {
        if let Some(touched) = &mut self.touched {
            touched.ports.insert(name.clone());
        }
    }

    pub(super) fn touch_switch(&mut self, name: &SwitchName) {
        if let Some(touched) = &mut self.touched {
            touched.switches.insert(name.clone());
        }
    }
}

//! Ports that go from switch to switch: cables between two, and interfaces that leave one.

use port::cable::cable;
use protocol::name::PortName;
use switch::{Plug, PortConfig};

use super::lone::Home;
use super::{PortPlace, Workers};
use crate::model::error::DatapathError;
use crate::model::keys::{PortKey, SwitchKey};

impl Workers {
    /// Plugs one end of a new cable into each switch.
    pub(super) fn lay_cable(
        &mut self,
        ends: [(PortKey, SwitchKey, PortConfig); 2],
    ) -> Result<(), DatapathError> {
        for (_, switch, _) in &ends {
            self.next_place(*switch)?;
        }
        for ((key, switch, config), end) in ends.into_iter().zip(cable()?) {
            let (id, number) = self.next_place(switch)?;
            let place = PortPlace { switch, id, number, bytes: 0, memory: None };
            self.plug(key, place, Plug::Adapter(Box::new(end)), config);
        }
        Ok(())
    }

    /// Moves a port to a switch on the same worker. Its holders know it by the number that they
    /// write to the worker's doorbell, which it keeps.
    pub(super) fn replant(
        &mut self,
        port: PortKey,
        name: &PortName,
        switch: SwitchKey,
        config: PortConfig,
    ) {
        self.blind_monitors(port);
        let (id, _) = self.next_place(switch).expect("a new switch has room");
        let place = self.ports.get_mut(&port).expect("control knows which ports there are");
        let (number, left_id) = (place.number, std::mem::replace(&mut place.id, id));
        let left = std::mem::replace(&mut place.switch, switch);
        assert_eq!(self.place(left).worker, self.place(switch).worker, "made beside it");
        let old = self.switches.get_mut(&left).expect("it was there");
        old.ids.give_back(left_id.index());
        old.keys.remove(&left_id);
        let new = self.switches.get_mut(&switch).expect("it is there");
        new.ids.take(id.index());
        new.keys.insert(id, port);
        self.on_switch(switch, move |worker, at| {
            let plug = worker.unplug(number).expect("it was plugged in");
            worker.plug(number, at, id, plug, config);
        });
        let bound = self.bound.get_mut(&port).expect("a port of netmap programs");
        (bound.name, bound.home) = (name.clone(), Home::Switch(switch));
    }
}

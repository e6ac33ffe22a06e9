//! What switches would do with frames.

use switch::TraceStep;

use packet::PortId;

use crate::model::keys::PortKey;

/// What switches would do with frames.
pub trait Traces {
    /// What the switch would do with a frame of `bytes` bytes that a port sent, of which `head` is
    /// the beginning. `None`: the port carries no frames.
    fn trace(&mut self, port: PortKey, head: Vec<u8>, bytes: u32) -> Option<Vec<TraceStep>>;

    /// The port with this number in the switch of another port.
    fn port_beside(&self, port: PortKey, id: PortId) -> Option<PortKey>;
}

#[cfg(test)]
mod fake {
    use packet::PortId;
    use switch::{DropReason, TraceStep};

    use super::Traces;
    use crate::control::fake::Fake;
    use crate::model::keys::PortKey;

    impl Traces for Fake {
        fn trace(&mut self, port: PortKey, _: Vec<u8>, _: u32) -> Option<Vec<TraceStep>> {
            let id = PortId::new(0).expect("in range");
            self.ports.contains_key(&port).then(|| vec![TraceStep::Drop(id, DropReason::Vlan)])
        }

        fn port_beside(&self, port: PortKey, _: PortId) -> Option<PortKey> {
            Some(port)
        }
    }
}

//! Rings that no switch serves: netmap null ports, netmap monitors and captures.

use switch::MirrorSource;

use crate::model::error::DatapathError;
use crate::model::keys::PortKey;
use crate::model::specs::UnswitchedSpec;

/// Rings that no switch serves: netmap null ports, netmap monitors and captures.
pub trait Unswitched {
    /// Reserves rings that no connection holds yet, and returns the number of their region. All
    /// ports that a monitor mirrors are in one switch; the monitor sees nothing more when the first
    /// of them goes. A capture then waits for [`Unswitched::resume_capture`]. A capture of drops
    /// ends with its switch.
    fn reserve_unswitched(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError>;

    /// Attaches rings whose memory is built.
    fn attach_unswitched(&mut self, port: PortKey);

    /// Has a capture that waits get these frames of the port that it captured, which is back with
    /// another key.
    fn resume_capture(&mut self, capture: PortKey, sources: &[(PortKey, MirrorSource)]);

    /// Ends a capture: it gets no more frames, and its holder finds its doorbell closed.
    fn end_capture(&mut self, capture: PortKey);

    /// How many frames and slots have found no room in a monitor.
    fn missed(&self, port: PortKey) -> u64;

    /// Removes rings with their holder.
    fn remove_unswitched(&mut self, port: PortKey);
}

#[cfg(test)]
mod fake {
    use std::collections::BTreeMap;

    use switch::MirrorSource;

    use super::Unswitched;
    use crate::control::fake::Fake;
    use crate::control::fake::FakeBound;
    use crate::model::error::DatapathError;
    use crate::model::keys::{PortKey, SwitchKey};
    use crate::model::specs::{Mirrored, UnswitchedSpec};

    impl Unswitched for Fake {
        fn reserve_unswitched(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError> {
            self.allocate()?;
            if let (Mirrored::Ports(sources), false) = (&spec.mirrored, spec.is_stamped) {
                assert!(sources.iter().all(|(port, _)| self.ports.contains_key(port)));
            }
            let region = self.find_or_make_region(&spec.region);
            let (name, holders) = (spec.name.clone(), BTreeMap::new());
            let switch = SwitchKey(u32::MAX);
            let port = FakeBound { name, switch, rings: spec.rings, region, holders };
            assert!(self.bound.insert(spec.key, port).is_none());
            Ok(region)
        }

        fn attach_unswitched(&mut self, port: PortKey) {
            self.unswitched.push(port);
        }

        fn resume_capture(&mut self, capture: PortKey, sources: &[(PortKey, MirrorSource)]) {
            assert!(sources.iter().all(|(port, _)| self.ports.contains_key(port)));
            self.resumed.push(capture);
        }

        fn end_capture(&mut self, capture: PortKey) {
            self.ended_captures.push(capture);
        }

        fn missed(&self, _: PortKey) -> u64 {
            7
        }

        fn remove_unswitched(&mut self, port: PortKey) {
            self.unswitched.retain(|it| *it != port);
            self.bound.remove(&port).expect("known");
            self.drop_empty_regions();
        }
    }
}

//! Rings that no switch serves: netmap null ports, netmap monitors and captures.

use crate::model::error::DatapathError;
use crate::model::keys::PortKey;
use crate::model::specs::UnswitchedSpec;

/// Rings that no switch serves: netmap null ports, netmap monitors and captures.
pub trait Unswitched {
    /// Reserves rings that no connection holds yet, and returns the number of their region. All
    /// ports that a monitor mirrors are in one switch; the monitor sees nothing more when the first
    /// of them goes.
    fn reserve_unswitched(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError>;

    /// Attaches rings whose memory is built.
    fn attach_unswitched(&mut self, port: PortKey);

    /// How many frames and slots have found no room in a monitor.
    fn missed(&self, port: PortKey) -> u64;

    /// Removes rings with their holder.
    fn remove_unswitched(&mut self, port: PortKey);
}

#[cfg(test)]
mod fake {
    use std::collections::BTreeMap;

    use super::Unswitched;
    use crate::control::fake::Fake;
    use crate::control::fake::FakeBound;
    use crate::model::error::DatapathError;
    use crate::model::keys::{PortKey, SwitchKey};
    use crate::model::specs::UnswitchedSpec;

    impl Unswitched for Fake {
        fn reserve_unswitched(&mut self, spec: &UnswitchedSpec) -> Result<u16, DatapathError> {
            self.allocate()?;
            assert!(spec.sources.iter().all(|(port, _)| self.ports.contains_key(port)));
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

//! Regions of netmap ports.

use protocol::PortGeometry;
use protocol::name::PortName;

use crate::model::error::DatapathError;
use crate::model::specs::{RegionSpec, RingSpec};

/// Regions of netmap ports.
pub trait Regions {
    /// Keeps a region until [`Regions::drop_region`], even while no port is in it. A new one gets
    /// this name.
    fn keep_region(&mut self, region: &RegionSpec, name: &PortName) -> Result<u16, DatapathError>;

    /// Ends one [`Regions::keep_region`].
    fn drop_region(&mut self, region: u16);

    /// Sizes of a region that is or would be, with rings of these sizes.
    fn region_sizes(&self, region: &RegionSpec, rings: &RingSpec) -> PortGeometry;
}

#[cfg(test)]
mod fake {
    use protocol::name::PortName;
    use protocol::{Pool, PortGeometry};

    use super::Regions;
    use crate::control::datapath::ports::Ports;
    use crate::control::fake::Fake;
    use crate::model::error::DatapathError;
    use crate::model::specs::{RegionSpec, RingSpec};

    impl Regions for Fake {
        fn keep_region(&mut self, region: &RegionSpec, _: &PortName) -> Result<u16, DatapathError> {
            self.allocate()?;
            let region = self.find_or_make_region(region);
            self.kept.push(region);
            Ok(region)
        }

        fn drop_region(&mut self, region: u16) {
            let at = self.kept.iter().position(|kept| *kept == region).expect("kept");
            self.kept.remove(at);
            self.drop_empty_regions();
        }

        fn region_sizes(&self, region: &RegionSpec, rings: &RingSpec) -> PortGeometry {
            let (mem_id, region_bytes) = match region {
                RegionSpec::Known(number) => (*number, self.memory_of(rings).unwrap_or(0)),
                RegionSpec::New(new) => (77, new.parts.bytes()),
            };
            let pool = Pool { offset: 4096, count: 1, size: 4096 };
            PortGeometry {
                mem_id,
                region_bytes,
                tx_rings: 0,
                rx_rings: 0,
                tx_slots: 0,
                rx_slots: 0,
                ifs: pool,
                rings: pool,
                buffers: pool,
            }
        }
    }
}

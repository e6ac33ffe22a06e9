//! Regions of netmap ports.

use protocol::PortGeometry;
use protocol::name::PortName;

use crate::model::error::DatapathError;
use crate::model::specs::RingSpec;

/// Regions of netmap ports.
pub trait Regions {
    /// Keeps a region until [`Regions::drop_region`], even while no port is in it: the one of that
    /// number, or a new one that fits `rings`.
    fn keep_region(
        &mut self,
        region: Option<u16>,
        name: &PortName,
        rings: &RingSpec,
    ) -> Result<u16, DatapathError>;

    /// Ends one [`Regions::keep_region`].
    fn drop_region(&mut self, region: u16);

    /// Sizes of a region; without a number, of the region that a port with these rings would get.
    fn region_sizes(&self, region: Option<u16>, rings: &RingSpec) -> PortGeometry;
}

#[cfg(test)]
mod fake {
    use protocol::name::PortName;
    use protocol::{Pool, PortGeometry};

    use super::Regions;
    use crate::control::datapath::ports::Ports;
    use crate::control::fake::Fake;
    use crate::model::error::DatapathError;
    use crate::model::specs::RingSpec;

    impl Regions for Fake {
        fn keep_region(
            &mut self,
            region: Option<u16>,
            _: &PortName,
            _: &RingSpec,
        ) -> Result<u16, DatapathError> {
            self.allocate()?;
            let region = region.unwrap_or_else(|| self.new_region());
            self.kept.push(region);
            Ok(region)
        }

        fn drop_region(&mut self, region: u16) {
            let at = self.kept.iter().position(|kept| *kept == region).expect("kept");
            self.kept.remove(at);
        }

        fn region_sizes(&self, region: Option<u16>, rings: &RingSpec) -> PortGeometry {
            let pool = Pool { offset: 4096, count: 1, size: 4096 };
            PortGeometry {
                mem_id: region.unwrap_or(77),
                region_bytes: self.memory_of(rings).unwrap_or(0),
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

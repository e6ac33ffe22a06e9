//! New regions of bound ports: how large they are, and that their users can pay for them.

use std::io;
use std::sync::Arc;

use port::netmap_region::{Needs, USUAL_BYTES};
use protocol::Room;

use crate::control::Control;
use crate::control::datapath::Datapath;
use crate::control::netmap::refusal::NetmapRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::groups::Charge;
use crate::control::state::shared::Region;
use crate::model::error::DatapathError;
use crate::model::specs::{NewRegion, RegionSpec, RingSpec};

/// The region that a port is to be in.
pub(in crate::control) enum Place {
    Known(Region),
    New(u32, NewRegion),
}

impl Place {
    pub(in crate::control) fn spec(&self) -> RegionSpec {
        match self {
            Self::Known(region) => RegionSpec::Known(region.mem_id),
            Self::New(_, new) => RegionSpec::New(new.clone()),
        }
    }

    /// The region, which the workers have by this number.
    pub(in crate::control) fn region(self, mem_id: u16) -> Region {
        match self {
            Self::Known(region) => region,
            Self::New(uid, NewRegion { parts, life }) => {
                let charge = Charge { uid, memory: parts.bytes() };
                Region { mem_id, charge, life: Arc::downgrade(&life) }
            }
        }
    }

    /// Why a port has no room there.
    pub(in crate::control) fn refused(&self, error: DatapathError) -> Refusal {
        match self {
            Self::Known(region) => refused(error, region),
            Self::New(..) => error.into(),
        }
    }
}

/// Why there is no room in a region.
pub(in crate::control) fn refused(error: DatapathError, region: &Region) -> Refusal {
    match &error {
        DatapathError::System(why) if why.kind() == io::ErrorKind::StorageFull => {
            let Region { mem_id, charge, .. } = region;
            NetmapRefusal::RegionFull { mem_id: *mem_id, has: charge.memory }.into()
        }
        _ => error.into(),
    }
}

/// What a port with these rings takes of its region.
pub(in crate::control) fn needs_of(rings: &RingSpec, extra_bufs: u32) -> Needs {
    Needs::new(rings.stride, &[rings.counts], extra_bufs)
}

impl<D: Datapath> Control<D> {
    /// The region of a port: a known one, or a new one as by [`Self::new_region`].
    pub(in crate::control) fn place(
        &self,
        uid: u32,
        region: Option<Region>,
        needs: &Needs,
        room: Option<Room>,
    ) -> Result<Place, Refusal> {
        match region {
            Some(region) => Ok(Place::Known(region)),
            None => self.new_region(uid, needs, room),
        }
    }

    /// A new region for a port and those that come with it, if its user can pay for it. Extra
    /// buffers are as many as it has then.
    pub(in crate::control) fn new_region(
        &self,
        uid: u32,
        needs: &Needs,
        room: Option<Room>,
    ) -> Result<Place, Refusal> {
        let least = needs.least().ok_or(NetmapRefusal::TooLarge)?;
        if let Some(Room { bytes, .. }) = room
            && bytes < least
        {
            return Err(NetmapRefusal::RoomTooSmall { has: bytes, least }.into());
        }
        self.state.check_memory(uid, least)?;
        let (left, share) = self.state.room_for_region(uid);
        let (share, most) = match room {
            None => (share.min(USUAL_BYTES), left),
            Some(Room { bytes, .. }) => (bytes, bytes.min(left)),
        };
        planned_region(uid, needs, share, most)
    }

    /// A new region for an interface that was made before the daemon started, which no quota
    /// prevents.
    pub(in crate::control) fn restored_region(
        &self,
        uid: u32,
        needs: &Needs,
    ) -> Result<Place, Refusal> {
        let (_, share) = self.state.room_for_region(uid);
        planned_region(uid, needs, share.min(USUAL_BYTES), u64::MAX)
    }
}

fn planned_region(uid: u32, needs: &Needs, share: u64, most: u64) -> Result<Place, Refusal> {
    let parts = needs.plan(share, most).ok_or(NetmapRefusal::TooLarge)?;
    Ok(Place::New(uid, NewRegion { parts, life: Arc::default() }))
}

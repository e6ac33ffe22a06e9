//! Mirrors: a port that gets copies of what other ports send and receive (SPAN).

use serde::{Deserialize, Serialize};

use crate::choices::Direction;

/// Most ports that one port mirrors.
pub const MIRROR_PORTS_MAX: usize = 64;

/// What a mirror port mirrors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// Names of ports within the switch, at most [`MIRROR_PORTS_MAX`]; they need not be there yet.
    /// Empty: the port is no mirror port.
    pub from: Vec<String>,
    /// Which of their frames it gets, seen from the switch.
    #[serde(default)]
    pub direction: Direction,
    /// Most copies in a second; 0 for any number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rate: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(rate: &u32) -> bool {
    *rate == 0
}

//! Chains that no frame can pass.

use protocol::ChainInfo;
use protocol::name::SwitchName;

use super::{Finding, problem};

/// Names the chains of a switch that are broken.
pub fn chains(switch: &SwitchName, chains: &[ChainInfo]) -> Vec<Finding> {
    let finding = |info: &ChainInfo| {
        let (why, name) = (info.broken.as_ref()?, &info.chain.name);
        let what = format!("no frame passes chain {name}: {why}");
        let cure = format!(
            "start what is missing (uvala nf run FUNCTION PORT), or take it out of the chain: \
             uvala chain add {switch} {name} SERVICES; see: uvala nf list {switch}"
        );
        Some(problem(&switch.to_string(), what, cure))
    };
    chains.iter().filter_map(finding).collect()
}

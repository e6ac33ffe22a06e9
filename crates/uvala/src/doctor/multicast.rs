//! Switches that snoop, and hear no querier.

use protocol::SwitchInfo;

use super::{Finding, note};

/// Switches whose snooping restricts nothing: without queries, no host reports its groups.
pub fn without_querier(switches: &[SwitchInfo]) -> Vec<Finding> {
    let is_alone =
        |info: &&SwitchInfo| info.mcast_snooping && !info.mcast_querier && info.mcast.queriers == 0;
    let finding = |info: &SwitchInfo| {
        let what = "multicast snooping is on, but no querier is heard: all multicast is flooded";
        let cure = format!("uvala switch set {} --mcast-querier", info.switch);
        note(&info.switch.to_string(), what, cure)
    };
    switches.iter().filter(is_alone).map(finding).collect()
}

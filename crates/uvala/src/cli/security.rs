//! Port security on the command line: the same options for a port and for all ports of a switch.

use protocol::PortSettings;
use protocol::parse;

/// The heading of these options alone: as `next_help_heading` it would be that of all later ones.
const HEADING: &str = "Port security";

#[derive(Debug, clap::Args)]
pub struct Security {
    /// Source addresses allowed on a port: MAC,MAC,…, or first:N for the first N that it sends
    /// from, or off [default: off]
    #[arg(long, value_name = "LIST|first:N|off", help_heading = HEADING)]
    mac_lock: Option<String>,
    /// Maximum number of addresses learned on a port; 0 is no limit. Ports of ordinary users have
    /// 128, or max_macs of [new_port] in the configuration [default: 0]
    #[arg(long, value_name = "N", help_heading = HEADING, value_parser = parse::number32)]
    max_macs: Option<u32>,
    /// Storm control: broadcast frames per second from a port; 0 is no limit [default: 0]
    #[arg(long, value_name = "FRAMES", help_heading = HEADING, value_parser = parse::number32)]
    broadcast_limit: Option<u32>,
    /// Storm control: multicast frames per second from a port [default: 0]
    #[arg(long, value_name = "FRAMES", help_heading = HEADING, value_parser = parse::number32)]
    multicast_limit: Option<u32>,
    /// Storm control: frames per second from a port to unknown unicast addresses [default: 0]
    #[arg(long, value_name = "FRAMES", help_heading = HEADING, value_parser = parse::number32)]
    unknown_unicast_limit: Option<u32>,
    /// Drop BPDUs from a port and for it; bpdu-guard does not see them then [default: false]
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    bpdu_filter: Option<bool>,
    /// Disable a port that sends a BPDU, until uvala port enable [default: false]
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    bpdu_guard: Option<bool>,
    /// Disable a port that a loop leads through, until uvala port enable [default: false]
    #[arg(
        long,
        help_heading = HEADING,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    loop_protect: Option<bool>,
}

impl Security {
    /// The options as settings of a port.
    pub fn to_api(&self) -> PortSettings {
        PortSettings {
            mac_lock: self.mac_lock.clone(),
            max_macs: self.max_macs,
            broadcast_limit: self.broadcast_limit,
            multicast_limit: self.multicast_limit,
            unknown_unicast_limit: self.unknown_unicast_limit,
            bpdu_filter: self.bpdu_filter,
            bpdu_guard: self.bpdu_guard,
            loop_protect: self.loop_protect,
            ..PortSettings::default()
        }
    }
}

/// Names and values of the settings, for `show`.
pub fn rows(settings: &PortSettings) -> [(&'static str, Option<String>); 8] {
    let number = |value: Option<u32>| value.map(|value| value.to_string());
    let flag = |value: Option<bool>| value.map(|value| value.to_string());
    [
        ("mac-lock", settings.mac_lock.clone()),
        ("max-macs", number(settings.max_macs)),
        ("broadcast-limit", number(settings.broadcast_limit)),
        ("multicast-limit", number(settings.multicast_limit)),
        ("unknown-unicast-limit", number(settings.unknown_unicast_limit)),
        ("bpdu-filter", flag(settings.bpdu_filter)),
        ("bpdu-guard", flag(settings.bpdu_guard)),
        ("loop-protect", flag(settings.loop_protect)),
    ]
}

//! Port security: which source addresses a port may use, how much it may flood, and what disables
//! it.

use packet::{MacList, MacLock};

use crate::decide::forward::FloodClass;

/// Settings of port security. `None`: on a port, as the switch says; on a switch, off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSecurity {
    /// The source addresses that the port may use.
    pub mac_lock: Option<MacLock>,
    /// How many addresses may be learned on the port, 0 for any number; those beyond are forwarded
    /// but not learned.
    pub max_macs: Option<u32>,
    /// Frames of each [`FloodClass`] that are flooded in a second, 0 for any number.
    pub flood_limits: [Option<u32>; FloodClass::COUNT],
    /// Whether BPDUs from the port and for it are dropped, before the guard sees them.
    pub bpdu_filter: Option<bool>,
    /// Whether a BPDU from the port disables it.
    pub bpdu_guard: Option<bool>,
    /// Whether a loop through the port disables it.
    pub loop_protect: Option<bool>,
}

impl PortSecurity {
    /// No limit, and nothing guarded.
    pub const OFF: Self = Self {
        mac_lock: Some(MacLock::Off),
        max_macs: Some(0),
        flood_limits: [Some(0); FloodClass::COUNT],
        bpdu_filter: Some(false),
        bpdu_guard: Some(false),
        loop_protect: Some(false),
    };

    /// The settings of a port in a switch with these settings for all ports.
    #[must_use]
    pub fn or(self, all: Self) -> Self {
        let mut flood_limits = self.flood_limits;
        for (limit, other) in flood_limits.iter_mut().zip(all.flood_limits) {
            *limit = limit.or(other);
        }
        Self {
            mac_lock: self.mac_lock.or(all.mac_lock),
            max_macs: self.max_macs.or(all.max_macs),
            flood_limits,
            bpdu_filter: self.bpdu_filter.or(all.bpdu_filter),
            bpdu_guard: self.bpdu_guard.or(all.bpdu_guard),
            loop_protect: self.loop_protect.or(all.loop_protect),
        }
    }

    /// The limit of a class in frames per second, if there is one.
    #[must_use]
    pub fn flood_limit(&self, class: FloodClass) -> Option<u32> {
        self.flood_limits[class.index()].filter(|&limit| limit > 0)
    }

    /// Whether the switch has to look at the port's frames.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.mac_lock.is_some_and(|lock| lock != MacLock::Off)
            || FloodClass::ALL.iter().any(|&class| self.flood_limit(class).is_some())
            || self.bpdu_filter == Some(true)
            || self.bpdu_guard == Some(true)
            || self.loop_protect == Some(true)
    }
}

/// Why the switch has disabled a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disabled {
    /// The port has sent a BPDU ([`PortSecurity::bpdu_guard`]).
    BpduGuard,
    /// A loop leads through the port ([`PortSecurity::loop_protect`]).
    LoopProtect,
}

impl Disabled {
    /// The name of the setting that has disabled the port.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BpduGuard => "bpdu_guard",
            Self::LoopProtect => "loop_protect",
        }
    }
}

/// What port security remembers of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecurityState {
    /// The addresses of [`MacLock::First`].
    pub first_macs: MacList,
    /// Why the port is disabled, if it is.
    pub disabled: Option<Disabled>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_port_s_own_settings_come_before_the_switch_s() {
        let all = PortSecurity {
            max_macs: Some(9),
            flood_limits: [Some(1), Some(2), None],
            bpdu_guard: Some(true),
            ..PortSecurity::default()
        };
        let own = PortSecurity {
            max_macs: Some(0),
            flood_limits: [Some(0), None, None],
            ..PortSecurity::default()
        };
        let both = own.or(all);
        assert_eq!((both.max_macs, both.bpdu_guard), (Some(0), Some(true)));
        assert_eq!(both.flood_limits, [Some(0), Some(2), None]);
        assert_eq!(both.flood_limit(FloodClass::Unicast), None);
        assert!(both.is_on() && !PortSecurity { bpdu_guard: None, ..own }.is_on());
    }
}

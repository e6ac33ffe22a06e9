//! Choices of an operator, between the protocol's types and the switch's.

use protocol::{Direction, Mirror, RunBy};
use switch::{Forwarding, McastRouter, MirrorConfig, OnFull};

/// The switch's forwarding function of this name.
#[must_use]
pub fn forwarding(name: protocol::Forwarding) -> Forwarding {
    match name {
        protocol::Forwarding::Learning => Forwarding::Learning,
        protocol::Forwarding::Hub => Forwarding::Hub,
        protocol::Forwarding::Patch => Forwarding::Patch,
        protocol::Forwarding::Static => Forwarding::Static,
        protocol::Forwarding::StaticFlood => Forwarding::StaticFlood,
        protocol::Forwarding::Chain => Forwarding::Chain,
        protocol::Forwarding::Program => Forwarding::Program,
    }
}

/// The name of a forwarding function.
#[must_use]
pub fn show_forwarding(function: Forwarding) -> protocol::Forwarding {
    match function {
        Forwarding::Learning => protocol::Forwarding::Learning,
        Forwarding::Hub => protocol::Forwarding::Hub,
        Forwarding::Patch => protocol::Forwarding::Patch,
        Forwarding::Static => protocol::Forwarding::Static,
        Forwarding::StaticFlood => protocol::Forwarding::StaticFlood,
        Forwarding::Chain => protocol::Forwarding::Chain,
        Forwarding::Program => protocol::Forwarding::Program,
    }
}

/// What the switch does with a frame for a full port.
#[must_use]
pub fn on_full(name: protocol::OnFull) -> OnFull {
    match name {
        protocol::OnFull::Drop => OnFull::Drop,
        protocol::OnFull::Wait => OnFull::Wait,
    }
}

/// The name of what the switch does with a frame for a full port.
#[must_use]
pub fn show_on_full(on_full: OnFull) -> protocol::OnFull {
    match on_full {
        OnFull::Drop => protocol::OnFull::Drop,
        OnFull::Wait => protocol::OnFull::Wait,
    }
}

/// Whether a port leads to a multicast router.
#[must_use]
pub fn mcast_router(name: protocol::McastRouter) -> McastRouter {
    match name {
        protocol::McastRouter::Off => McastRouter::Off,
        protocol::McastRouter::Auto => McastRouter::Auto,
        protocol::McastRouter::On => McastRouter::On,
    }
}

/// The name of how a port leads to a multicast router.
#[must_use]
pub fn show_mcast_router(router: McastRouter) -> protocol::McastRouter {
    match router {
        McastRouter::Off => protocol::McastRouter::Off,
        McastRouter::Auto => protocol::McastRouter::Auto,
        McastRouter::On => protocol::McastRouter::On,
    }
}

/// What a mirror port mirrors, if it is one.
#[must_use]
pub fn mirror(mirror: &Mirror) -> Option<Box<MirrorConfig>> {
    let Mirror { from, direction, rate } = mirror.clone();
    let (entering, leaving) = (direction != Direction::Out, direction != Direction::In);
    (!from.is_empty()).then(|| MirrorConfig { from, entering, leaving, rate }.into())
}

/// A mirror port as a setting.
#[must_use]
pub fn show_mirror(config: &MirrorConfig) -> Mirror {
    let direction = match (config.entering, config.leaving) {
        (true, false) => Direction::In,
        (false, true) => Direction::Out,
        _ => Direction::Both,
    };
    Mirror { from: config.from.clone(), direction, rate: config.rate }
}

/// The workers of a switch.
#[must_use]
pub fn show_workers(is_spread: bool) -> RunBy {
    if is_spread { RunBy::All } else { RunBy::One }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_choices_are_shown_as_they_were_set() {
        for &name in protocol::Forwarding::ALL {
            assert_eq!(show_forwarding(forwarding(name)), name);
        }
        for &name in protocol::OnFull::ALL {
            assert_eq!(show_on_full(on_full(name)), name);
        }
        for &direction in Direction::ALL {
            let asked = Mirror { from: vec!["a".to_owned()], direction, rate: 7 };
            assert_eq!(mirror(&asked).as_deref().map(show_mirror), Some(asked));
        }
        assert_eq!(mirror(&Mirror::default()), None);
        assert_eq!(forwarding(protocol::Forwarding::default()), Forwarding::default());
        assert_eq!(on_full(protocol::OnFull::default()), OnFull::default());
    }
}

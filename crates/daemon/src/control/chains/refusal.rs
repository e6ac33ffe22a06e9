//! The reason is a service, a chain or a rule.

use protocol::ErrorCode;
use protocol::name::{PortName, SwitchName};
use thiserror::Error;

use super::clash::Clash;

/// What is wrong with the service, the chain or the rule.
#[derive(Debug, Error)]
pub enum ChainRefusal {
    /// The switch has no chain of this name.
    #[error("{0} has no chain {1}; see: uvala chain list {0}")]
    NoChain(SwitchName, String),
    /// The switch has no rule of this number.
    #[error("{0} has no rule {1}; see: uvala rule list {0}")]
    NoRule(SwitchName, u32),
    /// The chain or the rule contradicts itself or the switch.
    #[error("{0}: {1}")]
    Invalid(SwitchName, String),
    /// The switch's forwarding function does not use chains.
    #[error("{0} has no chains or rules; to change that: uvala switch set {0} --forwarding chain")]
    NotForwarding(SwitchName),
    /// Only ports of kind shm run functions.
    #[error("{0} is not of kind shm, and only ports of that kind run functions; use another port")]
    ServiceKind(PortName),
    /// The function may hold frames of a chain.
    #[error(
        "a function runs at {0}, and frames that it holds would leave the chain: stop it first \
         (uvala nf list)"
    )]
    FunctionRuns(PortName),
    /// Without chains, functions would flood frames to each other.
    #[error(
        "a function runs at {0}, and without chains the switch would send its frames in a loop: \
         stop it first (uvala nf list)"
    )]
    NeedsChains(PortName),
    /// A running instance allows no other instance of its service.
    #[error(
        "{0} and allows one instance of it only: stop it first, or choose another service \
         (--service)"
    )]
    SingleInstance(Box<Clash>),
    /// The new instance allows no other instance of its service, and another runs.
    #[error(
        "the function allows one instance of its service only, and {0}: stop that one first, or \
         choose another service (--service)"
    )]
    OtherInstance(Box<Clash>),
}

impl ChainRefusal {
    pub(in crate::control) fn code(&self) -> ErrorCode {
        match self {
            Self::NoChain(..) | Self::NoRule(..) => ErrorCode::NotFound,
            Self::FunctionRuns(_)
            | Self::NeedsChains(_)
            | Self::SingleInstance(_)
            | Self::OtherInstance(_) => ErrorCode::InUse,
            Self::Invalid(..) | Self::NotForwarding(_) | Self::ServiceKind(_) => {
                ErrorCode::BadRequest
            }
        }
    }
}

//! The vocabulary of the daemon: keys, specifications, plans and permissions, without state.
//!
//! ```text
//!  model ◄── config, store ◄── control ◄── engine
//! ```
//!
//! Every other part of the daemon speaks in these types, and none of them imports from above:
//! `control` decides, `engine` carries out, and both mean the same by a [`keys::PortKey`].

pub mod audit;
pub mod choices;
pub mod error;
pub mod groups;
pub mod handed;
pub mod keys;
pub mod opening;
pub mod plan;
pub mod policy;
pub mod programs;
pub mod replies;
pub mod settings;
pub mod specs;
pub mod steering;

//! The control plane: who may have which switch and port, and the socket where they ask.
//!
//! ```text
//!  client ══ SEQPACKET ══ socket ── handlers ── state     what exists, who holds it (pure)
//!                                      │    └── policy    who may (pure)
//!                                      ▼
//!                                   datapath              the workers, between two batches
//! ```

pub mod builders;
pub mod counters;
pub mod datapath;
pub mod declared;
#[cfg(test)]
pub mod fake;
pub mod handlers;
pub mod refusal;
pub mod socket;
pub mod state;
pub mod statics;
mod sys;
pub mod turns;
pub mod usage;

//! netmap's interface for programs that know nothing of uvala.
//!
//! [`abi`] holds its structures and numbers, API 14 and 15; [`request`] reads what programs ask
//! and writes the answers.

pub mod abi;
pub mod memory;
pub mod request;

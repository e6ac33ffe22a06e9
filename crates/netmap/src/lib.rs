//! netmap's interface for programs that know nothing of uvala.
//!
//! [`abi`] holds its structures and numbers, API 14 and 15.

pub mod abi;

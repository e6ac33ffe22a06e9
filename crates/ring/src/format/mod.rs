//! The port format: what client and switch share, byte for byte, and the rules of its words.

#[cfg(not(loom))]
pub mod abi;
pub mod atomic;
pub mod cursor;
pub mod doorbell;
#[cfg(not(loom))]
pub mod held;
#[cfg(not(loom))]
pub mod layout;
pub mod ptnet;
#[cfg(not(loom))]
pub mod slot;
#[cfg(any(test, not(loom)))]
pub mod turn;

//! The server's half of vfio-user: a PCI device outside of the VMM's process.
//!
//! # Theory of operation
//!
//! A VMM (QEMU's `vfio-user-pci`) connects to the device's socket. It asks what regions and
//! interrupts the device has, passes the guest's memory and eventfds, and then sends each access of
//! the guest's as a message:
//!
//! ```text
//!   guest ──► VMM ──► Connection ──► Request::parse ──► Session ──► Device::read, write, reset
//!                      bytes, fds      bounds            │ DmaTable    the register model
//!                                                        │ Interrupts ──► eventfds of the VMM
//! ```
//!
//! [`message`] knows the bytes and nothing else. [`Session`] holds what the VMM has passed so far:
//! [`DmaTable`], the guest's memory, and [`Interrupts`]. [`Client`] joins a session and its
//! connection for an event loop, and never blocks.
//!
//! A VMM is not trusted. Each length, count, address and descriptor is bounded where it is read. A
//! request that asks for something impossible is answered with an error number; bytes that are no
//! message end the connection, and nothing else ([`Ended`]).
//!
//! # What is absent
//!
//! Migration, dirty pages, and requests of the server's (DMA by messages): memory that comes
//! without a descriptor is not reached. No thread, no clock, no log.

#![forbid(unsafe_code)]

mod client;
mod connection;
mod device;
mod dma;
mod interrupts;
pub mod message;
mod refused;
mod session;

pub use client::{Client, Progress};
pub use connection::{Connection, Ended};
pub use device::{Area, Description, Device, Irq, Mappable, Region, irq, region};
pub use dma::{DmaTable, MAPS_MAX};
pub use interrupts::Interrupts;
pub use refused::Refused;
pub use session::Session;

//! Models of the device that a guest sees, without input or output.
//!
//! [`virtqueue`] is the device's half of VirtIO's queues, split and packed; [`virtio_net`] is the
//! header in front of each frame; [`moderation`] decides when to interrupt a driver; [`pending`]
//! tells a worker that another thread wants to take or return a queue. Section numbers are those of
//! VirtIO 1.3. [`e1000`] is an Intel 82540EM, and has section numbers of its own;
//! [`ptnet`] is netmap's device.
//!
//! A model is a state and the operations on it. It has no clock, no thread and no descriptor. It
//! knows guest memory as [`ring::guest`] provides it, and bounds what the guest wrote there when it
//! reads it.

#![forbid(unsafe_code)]

mod atomic;
#[cfg(not(loom))]
pub mod e1000;
#[cfg(not(loom))]
pub mod moderation;
pub mod notify;
pub mod pending;
pub mod ptnet;
#[cfg(not(loom))]
pub mod virtio_net;
#[cfg(not(loom))]
pub mod virtqueue;

//! What a guest sees of a device: models without input or output.
//!
//! [`virtqueue`] is the device's half of VirtIO's queues, split and packed; [`virtio_net`] what
//! lies in front of each frame there;
//! [`moderation`] when a driver is told of them; [`pending`] how a worker hears that it is to take or
//! give back a queue. Section numbers are those of VirtIO 1.3.
//!
//! A model is a state and what may be done to it. It has no clock, no thread, no descriptor; the
//! guest's memory it knows as [`ring::guest`] hands it out, and what the guest wrote there is
//! bounded where it is read.

#![forbid(unsafe_code)]

mod atomic;
#[cfg(not(loom))]
pub mod moderation;
pub mod notify;
pub mod pending;
#[cfg(not(loom))]
pub mod virtio_net;
#[cfg(not(loom))]
pub mod virtqueue;

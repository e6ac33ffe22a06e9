//! A port that takes every frame and drops it, counted as delivered: a sink for measurements, or
//! for a mirror that is not read.

use packet::offload::Offloads;
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, Notify, Sent};

/// The port; it never sends a frame.
#[derive(Debug, Default)]
pub struct NullPort;

impl Adapter for NullPort {
    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        let mut sent = Sent::default();
        for delivery in list {
            let frame = &batch.frames()[usize::from(delivery.frame)];
            sent.delivered.add(1, u64::from(frame.bytes));
        }
        sent
    }

    fn accepts(&self) -> Offloads {
        Offloads::ALL
    }
}

impl Notify for NullPort {}

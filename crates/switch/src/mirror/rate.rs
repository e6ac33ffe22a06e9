//! How many copies a mirror port gets.

use ring::shared::Shared;

use crate::decide::bridge::security::Bucket;
use crate::model::now::Now;
use crate::receive::batch::{Batch, Delivery};

/// How many copies a mirror port gets in a second, from all workers together.
pub struct CopyRate {
    /// 0 for any number.
    limit: u32,
    bucket: Shared<Bucket>,
}

impl CopyRate {
    /// A rate of so many, or 0 for any number.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { limit, bucket: Shared::sole(Bucket::default()).into_common() }
    }

    /// A handle of the same rate, for another worker.
    #[must_use]
    pub fn handle(&self) -> Self {
        Self { limit: self.limit, bucket: self.bucket.handle() }
    }

    /// This rate, in the place of one of which some is used.
    pub(super) fn in_place_of(self, before: Option<&Self>) -> Self {
        let bucket = before.map_or(self.bucket, |before| before.bucket.handle());
        Self { limit: self.limit, bucket }
    }

    /// How many of the listed frames are copied.
    pub(super) fn admit(&mut self, batch: &Batch, list: &[Delivery], now: Now) -> usize {
        if self.limit == 0 {
            return list.len();
        }
        let bucket = &mut *self.bucket.lock();
        let segments = |delivery: &Delivery| batch.segments(delivery.frame.into());
        list.iter().take_while(|it| bucket.take(self.limit, segments(it), now)).count()
    }
}

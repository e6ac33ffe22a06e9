//! What a transmit and a receive ring have in common.

use std::sync::Arc;

use ring::RegionId;

use crate::link::Link;
use crate::wait::{Unwaited, WaitPolicy};

/// One ring of a port with all that it needs: [`Tx`](crate::Tx) or [`Rx`](crate::Rx).
#[derive(Debug)]
pub(crate) struct Half<R> {
    pub(crate) ring: R,
    pub(crate) link: Arc<Link>,
    pub(crate) region: RegionId,
    pub(crate) policy: WaitPolicy,
    /// Re-synchronisations that a caller knows of.
    pub(crate) told: u32,
    /// Slots of a transmit ring since the thread last waited; unused by a receive ring.
    pub(crate) unwaited: Unwaited,
}

/// Methods of both kinds of rings. A slot is the client's if it is free (transmit) or holds a frame
/// (receive).
macro_rules! half {
    ($half:ident, $ring:ident) => {
        impl $half {
            pub(crate) fn new(ring: $ring, link: &Arc<Link>, policy: WaitPolicy) -> Self {
                let (region, told) = (ring.region().id(), ring.resyncs());
                Self(Half {
                    ring,
                    link: link.clone(),
                    region,
                    policy,
                    told,
                    unwaited: crate::wait::Unwaited::default(),
                })
            }

            /// Number of slots that are the client's as of the last look.
            #[inline(always)]
            #[must_use]
            pub fn owned(&self) -> u32 {
                self.0.ring.owned()
            }

            /// Most slots that can ever be the client's.
            #[inline]
            #[must_use]
            pub fn capacity(&self) -> u32 {
                self.0.ring.slots() - 1
            }

            /// Size of each slot's buffer in bytes: longer frames take a chain of slots.
            #[inline]
            #[must_use]
            pub fn stride(&self) -> usize {
                self.0.ring.region().stride() as usize
            }

            /// Exchanges the buffer of the `i`-th slot with an extra one, without a copy; what the
            /// slot says stays. `false`: they are not in the same memory, or a broken neighbour has
            /// spoilt the slot.
            ///
            /// # Panics
            /// If that slot is not the client's as of the last look.
            #[inline]
            #[must_use]
            pub fn swap(&mut self, i: u32, buffer: &mut Buffer) -> bool {
                self.0.ring.swap(i, buffer)
            }

            /// The port's extra buffers; see [`Port::extra_bufs`](crate::Port::extra_bufs).
            #[must_use]
            pub fn extra_bufs(&self) -> &Arc<ExtraBufs> {
                self.0.link.extra_bufs()
            }

            /// Takes the request back and the kicks out of the doorbell.
            pub fn disarm(&mut self) -> Result<(), Lost> {
                self.0.ring.disarm();
                self.0.link.acknowledge()
            }

            /// How often the switch re-synchronised this ring because of an index or buffer out of
            /// range.
            #[must_use]
            pub fn resyncs(&self) -> u32 {
                self.0.ring.resyncs()
            }

            /// Addresses of slots and buffers, for bindings to other languages.
            #[must_use]
            pub fn raw(&self) -> RawRing {
                self.0.ring.raw()
            }

            /// The memory that the buffers are in.
            #[must_use]
            pub fn region(&self) -> RegionId {
                self.0.region
            }

            /// Changes how this half waits.
            pub fn set_wait_policy(&mut self, policy: WaitPolicy) {
                self.0.policy = policy;
            }

            pub(crate) fn new_resyncs(&mut self) -> u32 {
                let now = self.0.ring.resyncs();
                now.wrapping_sub(std::mem::replace(&mut self.0.told, now))
            }
        }

        impl AsFd for $half {
            /// The doorbell, shared by all rings of the port.
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.link.as_fd()
            }
        }
    };
}
pub(crate) use half;

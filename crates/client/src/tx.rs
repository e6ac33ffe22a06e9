//! A transmit ring: slots to fill, zero-copy, and conveniences that copy.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ring::RegionId;
use ring::abi::slot_flag;
use ring::extra::{Buffer, ExtraBufs};
use ring::frame::SLOTS_MAX;
use ring::user::{RawRing, TxRing};

use crate::half::{Half, half};
use crate::link::Link;
use crate::wait::{WaitPolicy, Waits, wait};
use crate::{Error, FRAME_MAX, FRAME_MIN, Lost};

/// A transmit ring. The free slots are counted from 0; fill some, then [`Tx::submit`] them.
///
/// ```no_run
/// # let mut port = client::Port::open("vale0:a")?;
/// let tx = port.tx(0);
/// for i in 0..tx.space().min(64) {
///     tx.frame(i, 60).fill(0xff);
/// }
/// tx.submit(tx.owned().min(64))?;
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Debug)]
pub struct Tx(Half<TxRing>);

half!(Tx, TxRing);

impl Tx {
    /// Number of free slots, after a look at how far the switch has got.
    #[inline(always)]
    pub fn space(&mut self) -> u32 {
        self.0.ring.refresh()
    }

    /// The whole buffer of the `i`-th free slot.
    ///
    /// # Panics
    /// If that slot is not free as of the last look.
    #[inline(always)]
    pub fn buffer(&mut self, i: u32) -> &mut [u8] {
        self.0.ring.buffer(i)
    }

    /// The `i`-th free slot as a frame of `len` bytes, without flags. Its contents are those of an
    /// old frame.
    ///
    /// # Panics
    /// If that slot is not free as of the last look, or `len` exceeds [`Tx::stride`].
    #[inline(always)]
    pub fn frame(&mut self, i: u32, len: u16) -> &mut [u8] {
        self.0.ring.frame(i, len)
    }

    /// Sets length and [`slot_flag`]s of the `i`-th free slot; `MOREFRAG` if the frame continues in
    /// the next slot.
    ///
    /// # Panics
    /// If that slot is not free as of the last look.
    #[inline(always)]
    pub fn set(&mut self, i: u32, len: u16, flags: u16) {
        self.0.ring.set(i, len, flags);
    }

    /// Sets the metadata of the frame in the `i`-th free slot; see [`crate::nf`].
    ///
    /// # Panics
    /// If that slot is not free as of the last look.
    #[inline(always)]
    pub fn set_mark(&mut self, i: u32, mark: u64) {
        self.0.ring.set_metadata(i, mark);
    }

    /// Hands the first `count` slots over, whole frames only. Yields the core after a ring of slots
    /// without a wait, unless the policy is to spin.
    ///
    /// # Panics
    /// If fewer slots are free as of the last look.
    #[inline(always)]
    pub fn submit(&mut self, count: u32) -> Result<(), Lost> {
        let must_kick = self.0.ring.submit(count);
        if must_kick {
            self.0.link.kick()?;
        }
        if self.0.unwaited.add(count, self.capacity()) && !self.0.policy.spin {
            rustix::thread::sched_yield();
        }
        Ok(())
    }

    /// Writes frames into up to `max` free slots and hands them over at once. `write` gets a
    /// slot's buffer and returns the length of the frame; with `None` the batch ends. Returns the
    /// number of frames.
    #[inline]
    pub fn fill(
        &mut self,
        max: u32,
        mut write: impl FnMut(&mut [u8]) -> Option<u16>,
    ) -> Result<u32, Lost> {
        let (max, mut count) = (max.min(self.space()), 0);
        while count < max {
            let Some(len) = write(self.0.ring.buffer(count)) else { break };
            self.0.ring.set(count, len, 0);
            count += 1;
        }
        if count > 0 {
            self.submit(count)?;
        }
        Ok(count)
    }

    /// Number of slots that a frame of `len` bytes takes.
    pub fn slots_for(&self, len: usize) -> Result<u32, Error> {
        if len < usize::from(FRAME_MIN) {
            return Err(Error::TooShort { len });
        }
        let slots = len.div_ceil(self.stride());
        let most = self.capacity().min(SLOTS_MAX);
        let max = FRAME_MAX.min(most as usize * self.stride());
        match u32::try_from(slots) {
            Ok(slots) if len <= max => Ok(slots),
            _ => Err(Error::TooLong { len, max }),
        }
    }

    /// Copies a frame into the slots from the `at`-th on, a chain where it is longer than one.
    /// `None`: there is no room as of the last look. Hand them over with [`Tx::submit`].
    pub fn put(&mut self, at: u32, frame: &[u8]) -> Result<Option<u32>, Error> {
        let slots = self.slots_for(frame.len())?;
        if self.owned().saturating_sub(at) < slots {
            return Ok(None);
        }
        let stride = self.stride();
        for (i, part) in (at..at + slots).zip(frame.chunks(stride)) {
            let more = if i + 1 < at + slots { slot_flag::MOREFRAG } else { 0 };
            let len = u16::try_from(part.len()).map_err(|_| Error::Geometry("stride"))?;
            self.0.ring.set(i, len, more);
            self.0.ring.buffer(i)[..part.len()].copy_from_slice(part);
        }
        Ok(Some(slots))
    }

    /// Copies one frame and hands it over. `false`: there is no room for it now.
    pub fn try_send(&mut self, frame: &[u8]) -> Result<bool, Error> {
        let slots = self.slots_for(frame.len())?;
        if self.owned() < slots {
            self.space();
        }
        match self.put(0, frame)? {
            Some(slots) => self.submit(slots).map(|()| true).map_err(Error::from),
            None => Ok(false),
        }
    }

    /// Copies one frame and hands it over, after waiting for room.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), Error> {
        self.send_timeout(frame, None).map(drop)
    }

    /// Copies one frame and hands it over, after waiting for room. `false`: `timeout` is over.
    pub fn send_timeout(&mut self, frame: &[u8], timeout: Option<Duration>) -> Result<bool, Error> {
        // Room for the frame, once there, is this ring's alone: one wait is enough.
        Ok(self.try_send(frame)?
            || self.wait(self.slots_for(frame.len())?, timeout)? && self.try_send(frame)?)
    }

    /// Copies all frames and hands them over in batches, waiting for room as often as needed.
    /// Returns their number.
    pub fn send_all<F: AsRef<[u8]>>(
        &mut self,
        frames: impl IntoIterator<Item = F>,
    ) -> Result<u64, Error> {
        let (mut at, mut count) = (0, 0);
        for frame in frames {
            let frame = frame.as_ref();
            while !self.put_in_batch(&mut at, frame)? {
                self.wait(self.slots_for(frame.len())?, None)?;
            }
            count += 1;
        }
        self.submit(at)?;
        Ok(count)
    }

    /// Adds a frame to the batch of `at` slots; hands the batch over where it is full.
    fn put_in_batch(&mut self, at: &mut u32, frame: &[u8]) -> Result<bool, Error> {
        /// Slots handed over at once: enough to pay for the publication, few enough for the cache.
        const BATCH: u32 = 64;
        if *at < BATCH
            && let Some(slots) = self.put(*at, frame)?
        {
            *at += slots;
            return Ok(true);
        }
        self.submit(std::mem::take(at))?;
        self.space();
        let put = self.put(0, frame)?;
        *at = put.unwrap_or(0);
        Ok(put.is_some())
    }

    /// Waits until `count` slots are free (or all, if it has fewer). `false`: `timeout` is over.
    pub fn wait(&mut self, count: u32, timeout: Option<Duration>) -> Result<bool, Error> {
        let (link, policy) = (self.0.link.clone(), self.0.policy);
        self.begin_wait(count);
        wait(&mut WaitTx(std::slice::from_mut(self), count), &link, policy, timeout)
    }

    /// Counts slots anew if the thread is about to wait for `count` of them.
    pub(crate) fn begin_wait(&mut self, count: u32) {
        if self.space() < count.min(self.capacity()) {
            self.0.unwaited.reset();
        }
    }

    /// Waits until the switch has taken everything. `false`: `timeout` is over.
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<bool, Error> {
        self.wait(self.capacity(), timeout)
    }

    /// Whether the switch has taken every frame.
    pub fn is_drained(&mut self) -> bool {
        self.0.ring.is_drained()
    }

    /// Asks for a kick on the doorbell ([`AsFd`]) once `count` slots are free. `false`: they are
    /// already, do not sleep.
    #[must_use]
    pub fn arm(&mut self, count: u32) -> bool {
        self.0.ring.arm(count.min(self.capacity()))
    }

    pub(crate) fn ring(&mut self) -> &mut TxRing {
        &mut self.0.ring
    }
}

/// Some free slots on any of these rings.
pub(crate) struct WaitTx<'a>(pub &'a mut [Tx], pub u32);

impl Waits for WaitTx<'_> {
    fn ready(&mut self) -> bool {
        self.0.iter_mut().any(|tx| tx.space() >= self.1.min(tx.capacity()))
    }

    fn arm(&mut self) -> bool {
        let armed = self.0.iter_mut().all(|tx| tx.arm(self.1));
        if !armed {
            self.disarm();
        }
        armed
    }

    fn disarm(&mut self) {
        self.0.iter().for_each(|tx| tx.0.ring.disarm());
    }

    fn new_resyncs(&mut self) -> u32 {
        self.0.iter_mut().map(Tx::new_resyncs).sum()
    }
}

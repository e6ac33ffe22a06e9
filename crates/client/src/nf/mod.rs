//! Functions of a chain: a callback for each frame, in place.
//!
//! ```no_run
//! use client::nf::{self, Action, Frame, Generated};
//!
//! let mut port = client::Options::new().group("nf").open("vale0:fw")?;
//! let mut drop_arp = |frame: &mut Frame<'_>, _: &mut Generated| match frame.bytes() {
//!     bytes if bytes.get(12..14) == Some(&[8, 6]) => Action::Drop,
//!     _ => Action::Next,
//! };
//! loop {
//!     nf::step(&mut port, &mut drop_arp, None)?; // sleeps while there is nothing to do
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), client::Error>(())
//! ```
//!
//! The port is an instance of a service (`uvala port add vale0:fw --service firewall`). Frames lie
//! in the memory of its trust group: what passes is passed on by exchanging buffers. What the
//! switch says of a frame, and is told, stands in its slot ([`Metadata`]);
//! `docs/spec/frame-metadata.md` has the bits. A frame that is passed on keeps its place among the
//! others. Several cores: [`Threads`]; several functions in one thread: [`step_all`].

mod call_setup;
pub(crate) mod calls;
mod cpus;
mod generated;
mod lookup;
mod metrics;
pub(crate) mod pass;
mod service;
mod sleep;
mod step;
mod threads;

use packet::{PortId, metadata};

pub use cpus::{CpuError, CpuList};
pub use generated::{Generated, Held, send};
pub use lookup::{chain_number, port_number, service_number};
pub use metrics::{Metric, Metrics, MetricsReport};
pub use packet::metadata::Metadata;
pub use step::{step, step_all};
pub use threads::{Failed, Instance, Threads, until_stopped};

/// Most functions of one thread, as many as a chain has services.
pub const TOGETHER_MAX: usize = 8;
/// Frames of a batch.
const BATCH: u32 = 128;
/// Bytes at the end of each buffer that are the functions' own.
pub const OWN_BYTES: usize = 16;

/// What is to become of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next function of its chain, or its end.
    Next,
    /// Nothing; counted as `function`.
    Drop,
    /// To the service of this number.
    Service(u8),
    /// Out by the port of this number, or to that instance.
    Port(u16),
    /// Nothing yet: the function has a copy ([`Frame::to_held`]), which it sends later
    /// ([`Generated::send_on`]).
    Hold,
}

/// Highest number of a port.
const PORT_MAX: u16 = 0xfff;

impl Action {
    /// What is no action: the switch drops the frame, and counts it as `bad_action`. So it does
    /// with what names a port or a service beyond those that there can be.
    pub const NONE: Self = Self::Service(u8::MAX);

    /// As it can be told to the switch.
    #[inline]
    fn told(self) -> Self {
        match self {
            Self::Port(port) if port > PORT_MAX => Self::NONE,
            action => action,
        }
    }

    /// The bits of a slot's flags that name the service.
    #[inline]
    fn slot_flags(self) -> u16 {
        if let Self::Service(number) = self { u16::from(number) << 8 } else { 0 }
    }

    /// The metadata by which a function asks the switch for this action.
    #[inline]
    fn write_to(self, meta: Metadata) -> Metadata {
        match self {
            Self::NONE if !meta.is_valid() => Metadata::BAD_ACTION,
            Self::Next | Self::Hold => meta.with_action(metadata::Action::Next),
            Self::Drop => meta.with_action(metadata::Action::Drop),
            Self::Service(_) => meta.with_action(metadata::Action::Service),
            Self::Port(port) => meta.to_port(PortId::from_low_bits(port.into())),
        }
    }
}

/// A frame, where it lies.
#[derive(Debug)]
pub struct Frame<'a> {
    buffer: &'a mut [u8],
    len: usize,
    is_whole: bool,
    /// What the switch says of it, and is told.
    pub meta: Metadata,
}

impl<'a> Frame<'a> {
    /// A frame that fills this, for tests of functions: it is in no chain.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        let len = buffer.len();
        Self { buffer, len, is_whole: true, meta: Metadata::default() }
    }

    /// The frame's bytes; of one that lies in several buffers, the beginning.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The frame's bytes, to be changed; of one that lies in several buffers, the beginning.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }

    /// Does it lie in one buffer, as nearly all do?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// How long it can become.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_whole { self.buffer.len().min(usize::from(u16::MAX)) } else { self.len }
    }

    /// Makes it longer or shorter; what is new are bytes of old frames. `false`: there is no room,
    /// or it lies in several buffers.
    pub fn resize(&mut self, len: usize) -> bool {
        let fits = self.is_whole && len <= self.room();
        if fits {
            self.len = len;
        }
        fits
    }

    /// The functions' own bytes, which travel with the buffer inside of the trust group; what is in
    /// them at first is anything. `None`: the frame reaches into them.
    #[must_use]
    pub fn own(&mut self) -> Option<&mut [u8; OWN_BYTES]> {
        let at = self.own_at()?;
        self.buffer[at..].first_chunk_mut()
    }

    fn own_at(&self) -> Option<usize> {
        self.buffer.len().checked_sub(OWN_BYTES).filter(|&at| self.len <= at)
    }

    /// A copy, to be sent on later; the functions' own bytes go with it. Of a frame that lies in
    /// several buffers it is the beginning alone.
    #[must_use]
    pub fn to_held(&self) -> Held {
        let at = self.own_at().filter(|_| self.is_whole);
        let own = at.and_then(|at| self.buffer[at..].first_chunk().copied());
        Held { bytes: self.bytes().to_vec(), meta: self.meta, own }
    }
}

/// A function.
pub trait Handler {
    /// What becomes of this frame?
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action;

    /// So many frames come now, or fewer from a function of the same thread; of 0, nothing has come
    /// for a while.
    fn batch(&mut self, _frames: u32, _made: &mut Generated) {}
}

impl<F: FnMut(&mut Frame<'_>, &mut Generated) -> Action> Handler for F {
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action {
        self(frame, made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_switch_reads_the_action_that_a_function_asks_for() {
        let word = 0x8000_0000_0000_0000 | 5 << 52 | 9 << 44 | 0x123 << 32 | 0xdead_beef;
        let meta = Metadata::new(word);
        assert_eq!(Action::Port(0xabc).write_to(meta).word() >> 32 & 0xfff, 0xabc);
        assert_eq!(Action::Drop.write_to(meta).word() >> 60 & 3, 1);
        assert_eq!(Action::Next.write_to(Action::Drop.write_to(meta)), meta);
        assert_eq!(Action::NONE.write_to(meta).word() >> 60, 8 | 2);
        let lost = Action::NONE.write_to(Metadata::default());
        assert!(lost.is_valid() && lost.chain() == 255, "it does not leave by its address");
        assert_eq!(Action::Port(0x1000).told(), Action::NONE);
        assert_eq!(Action::Port(0xfff).told(), Action::Port(0xfff));
    }
}

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
//! in the memory of its trust group, and are passed on by exchanging buffers. Switch and function
//! exchange information about a frame in its slot ([`Metadata`]); `docs/spec/frame-metadata.md` has
//! the bits. Frames that are passed on keep their order. Several cores: [`Threads`]; several
//! functions in one thread: [`step_all`].

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

/// What the switch shall do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next function of its chain, or its end.
    Next,
    /// Drops the frame; counted as `function`.
    Drop,
    /// To the service of this number.
    Service(u8),
    /// Out by the port of this number, or to that instance.
    Port(u16),
    /// Nothing yet: the function keeps a copy ([`Frame::to_held`]), and sends it later
    /// ([`Generated::send_on`]).
    Hold,
}

/// Highest number of a port.
const PORT_MAX: u16 = 0xfff;

impl Action {
    /// An invalid action: the switch drops the frame, and counts it as `bad_action`, as it does
    /// with the number of a port or a service that cannot exist.
    pub const NONE: Self = Self::Service(u8::MAX);

    /// The action in a form that metadata can carry.
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
    /// The frame's metadata.
    pub meta: Metadata,
}

impl<'a> Frame<'a> {
    /// A frame of these bytes, in no chain, for tests of functions.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        let len = buffer.len();
        Self { buffer, len, is_whole: true, meta: Metadata::default() }
    }

    /// The frame's bytes; if it lies in several buffers, those in the first.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// The frame's bytes, to be changed; if it lies in several buffers, those in the first.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }

    /// Whether the frame lies in one buffer, as nearly all do.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The most bytes that the frame can have.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_whole { self.buffer.len().min(usize::from(u16::MAX)) } else { self.len }
    }

    /// Changes the length of the frame; added bytes are those of old frames. `false`: there is no
    /// room, or the frame lies in several buffers.
    pub fn resize(&mut self, len: usize) -> bool {
        let fits = self.is_whole && len <= self.room();
        if fits {
            self.len = len;
        }
        fits
    }

    /// The functions' own bytes, which travel with the buffer inside of the trust group; their
    /// first contents are undefined. `None`: the frame reaches into them.
    #[must_use]
    pub fn own(&mut self) -> Option<&mut [u8; OWN_BYTES]> {
        let at = self.own_at()?;
        self.buffer[at..].first_chunk_mut()
    }

    fn own_at(&self) -> Option<usize> {
        self.buffer.len().checked_sub(OWN_BYTES).filter(|&at| self.len <= at)
    }

    /// A copy, to be sent on later, with the functions' own bytes. If the frame lies in several
    /// buffers, only the bytes in the first are copied.
    #[must_use]
    pub fn to_held(&self) -> Held {
        let at = self.own_at().filter(|_| self.is_whole);
        let own = at.and_then(|at| self.buffer[at..].first_chunk().copied());
        Held { bytes: self.bytes().to_vec(), meta: self.meta, own }
    }
}

/// A function.
pub trait Handler {
    /// Decides what the switch shall do with this frame.
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action;

    /// Announces a batch of this many frames, or fewer from a function of the same thread. 0:
    /// nothing has come for a while.
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

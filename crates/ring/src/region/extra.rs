//! Lists of extra buffers, the daemon's half; the client's is [`crate::user::extra`].

use core::mem::offset_of;

use super::Region;
use crate::format::abi::NetmapIf;
use crate::format::layout::{BufferIndex, PortLayout};

/// Most buffers of a list that the daemon follows. It counts buffers behind them as kept.
pub const LIST_MAX: u32 = 32_768;

impl Region {
    /// Links `buffers` into the port's list, in this order.
    pub fn format_extra(&self, port: &PortLayout, buffers: &[BufferIndex]) {
        self.format_list(port.nifp(), buffers);
    }

    /// Links `buffers` into the list of a `netmap_if`.
    pub(crate) fn format_list(&self, nifp: usize, buffers: &[BufferIndex]) {
        let mut next = 0;
        for &buffer in buffers.iter().rev() {
            self.memory().write(self.offset(buffer), next);
            next = buffer.get();
        }
        self.memory().write(nifp + offset_of!(NetmapIf, ni_bufs_head), next);
    }

    /// The buffers in a port's list now. Peers may have written anything: it ends where no buffer
    /// has the number, and in any case after as many as the region has.
    pub fn extra_buffers(&self, port: &PortLayout) -> impl Iterator<Item = BufferIndex> + '_ {
        self.list(port.nifp())
    }

    /// The buffers in the list of a `netmap_if` now, likewise.
    pub(crate) fn list(&self, nifp: usize) -> impl Iterator<Item = BufferIndex> + '_ {
        let follow = |at: usize| self.check(self.memory().read(at));
        let first = follow(nifp + offset_of!(NetmapIf, ni_bufs_head));
        let list = core::iter::successors(first, move |&buffer| follow(self.offset(buffer)));
        list.take(self.layout().buffers as usize)
    }
}

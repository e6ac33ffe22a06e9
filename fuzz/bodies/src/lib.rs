//! What the fuzz targets do with their bytes.
//!
//! Each function takes any input and panics when a promise is broken. libFuzzer calls them through
//! `fuzz/targets`; `tests/smoke.rs` calls them with a few thousand seeded inputs on every test run.

mod chain;
mod e1000;
mod fdb;
mod flow;
mod frame;
mod helper;
mod machine;
mod mcast;
mod netdev;
mod netmap;
mod offload;
mod program;
mod ptnet;
mod ring_slots;
mod rings;
mod text;
mod vfio;
mod vxlan;

pub use chain::chain;
pub use e1000::{e1000, e1000_samples};
pub use fdb::fdb_ops;
pub use flow::flow;
pub use frame::frame_header;
pub use helper::helper_question;
pub use machine::{vhost_message, virtqueue};
pub use mcast::mcast_message;
pub use netdev::stream_port;
pub use netmap::{netmap_request, netmap_samples};
pub use offload::{frame_offload, offload_samples};
pub use program::program_object;
pub use ptnet::{ptnet, ptnet_samples};
pub use ring_slots::ring_slots;
pub use text::{config, control_message, port_name, rules};
pub use vfio::vfio_user_message;
pub use vxlan::vxlan_datagram;

/// Reads numbers out of an input; zeros once it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let n = N.min(self.0.len());
        let (now, later) = self.0.split_at(n);
        out[..n].copy_from_slice(now);
        self.0 = later;
        out
    }

    fn u8(&mut self) -> u8 {
        self.bytes::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    /// A number below `bound`, which is at most 256.
    fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u8()) % bound
    }
}

/// Noise that is the same every time, enough for a body to get somewhere.
#[cfg(test)]
fn noise() -> Vec<u8> {
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..200_000).map(|_| byte()).collect()
}

//! The client library: opens ports by name, and speaks the daemon's control protocol.
//!
//! ```no_run
//! use client::{Interest, Port};
//!
//! let mut port = Port::open("vale0:a")?;          // a running `uvala daemon` is found by itself
//! let frame = [&[0xff; 6][..], &[2; 54]].concat(); // to all, from 02:02:02:02:02:02
//! port.send(&frame)?;                             // copies
//! let tx = port.tx(0);                            // or without a copy:
//! for i in 0..tx.space().min(64) {
//!     tx.frame(i, 60)[..6].fill(0xff);            //   frames written where the switch reads them
//! }
//! tx.submit(tx.owned().min(64))?;                 //   handed over at once
//! port.wait(Interest::Rx, None)?;
//! let rx = port.rx(0);
//! let count = rx.available();
//! rx.frames().for_each(|frame| println!("{} bytes", frame.len()));
//! rx.release(count)?;
//! # Ok::<(), client::Error>(())
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`port`], [`tx`], [`rx`] | ports and their rings |
//! | [`wait`] | how threads wait |
//! | [`nf`] | functions of a chain |
//! | [`capture`], [`filter`] | copies of the frames of other ports, those that match |
//! | [`netmap`] | ports as netmap programs see them |
//! | [`ptnet`] | ports of a guest's own devices |
//! | [`control`], [`listing`] | the daemon's control connection; its messages are in [`protocol`] |
//!
//! The library starts no thread, except those that a program requests of [`nf::Threads`] and one
//! for the metrics of a function ([`nf::MetricsReport`]). It changes no signal's disposition.

pub mod capture;
pub mod control;
mod error;
#[cfg(test)]
mod fake;
pub mod filter;
mod geometry;
mod half;
mod kick;
mod link;
pub mod listing;
mod memory;
pub mod netmap;
pub mod nf;
mod options;
pub mod port;
pub mod ptnet;
mod registers;
pub mod rx;
mod seen;
mod stop;
mod sys;
mod ticks;
pub mod tx;
pub mod wait;

pub use error::{Error, Lost};
pub use kick::Kick;
pub use memory::PortMemory;
pub use options::{Options, program_name};
pub use port::{Interest, Port, Receiver, Sender};
pub use ring::RegionId;
pub use ring::abi::slot_flag;
pub use ring::extra::{Buffer, ExtraBufs};
pub use rx::{Frame, Frames, Rx};
pub use stop::Stop;
pub use tx::Tx;
pub use wait::WaitPolicy;

/// Shortest frame in bytes: an Ethernet header.
pub const FRAME_MIN: u16 = ring::kring::FRAME_MIN;

/// Longest frame in bytes: the largest IP packet behind an Ethernet header with a VLAN tag.
pub const FRAME_MAX: usize = ring::frame::FRAME_MAX as usize;

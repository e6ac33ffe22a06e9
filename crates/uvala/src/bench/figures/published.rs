//! What others have published, with the place where it stands.
//!
//! Only numbers stated in words are here. Curves of the papers are not: reading them off a picture
//! would be a measurement of ours.

use super::plot::{Look, Mark, Point, Series};

/// What every figure says about the numbers below.
pub const SOURCE: &str = "VALE: Rizzo and Lettieri, CoNEXT 2012, numbers stated in its text \
     (i7-3930K, 3.2 GHz; pkt-gen, payload untouched).";

/// What every figure with a netmap pipe says about it.
pub const PIPE_SOURCE: &str = "netmap pipes: netmap(4), \"over 100 Mpps\" (drawn at 100).";

fn series(name: &str, points: &[(f64, f64)]) -> Series {
    let points = points.iter().map(|&(x, y)| Point { x, y, spread: None, mark: Mark::Measured });
    Series { name: name.into(), look: Look::Published, points: points.collect() }
}

/// Million frames a second by length.
pub fn vale_by_length() -> Series {
    series("VALE, published", &[(60.0, 17.6), (1514.0, 6.0)])
}

/// Million frames a second by batch: "about 2" with batches of one along the whole chain.
pub fn vale_by_batch() -> Series {
    series("VALE, published: batch 1 everywhere", &[(1.0, 2.0)])
}

/// The same, with batches of one in the kernel only.
pub fn vale_by_switch_batch() -> Series {
    series("VALE, published: batch 1 in the switch", &[(1.0, 5.0)])
}

/// Million frames a second to one destination.
pub fn vale_to_one() -> Series {
    series("VALE, published", &[(1.0, 17.6)])
}

/// Million frames a second through a netmap pipe.
pub fn netmap_pipe() -> Series {
    series("netmap pipe, published", &[(60.0, 100.0)])
}

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

/// VALE with batches of one in the kernel only.
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

/// What every figure of chains says about others.
pub const NETVM_SOURCE: &str = "NetVM: Hwang, Ramakrishnan and Wood, NSDI 2014, 10 Gbit/s, the \
     rate of its line; openNetVM: HotMiddlebox 2016, 40 Gbit/s through five functions; both drawn \
     as frames of 1518 bytes. What stands in their figures only is not here.";

/// Million frames a second of 1518 bytes, on an Ethernet with 20 bytes between two of them.
fn long_frames(gbit: f64) -> f64 {
    gbit * 1e3 / (1538.0 * 8.0)
}

/// Through five functions.
pub fn opennetvm_by_functions() -> Series {
    series("openNetVM, published: 40 Gbit/s", &[(5.0, long_frames(40.0))])
}

/// By length: the line's rate.
pub fn netvm_by_length() -> Series {
    series("NetVM, published: 10 Gbit/s", &[(1514.0, long_frames(10.0))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_rate_of_a_line_of_ten_gigabits() {
        assert!((long_frames(10.0) - 0.8127).abs() < 0.0001);
    }
}

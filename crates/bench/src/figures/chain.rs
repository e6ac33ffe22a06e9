//! Figures of chains, after those of the NetVM paper (NSDI 2014): rate by the number of functions,
//! and by frame length through one of them.

use super::plot::Look;
use super::{Figure, Line, Of, RATE, axis, marked, over_lengths, published};
use crate::scenario::Limit;
use crate::work::{Batch, Path, Work};
use crate::work::{Chain, between};

const FUNCTIONS: [u8; 6] = [1, 2, 3, 4, 5, 8];
const NOTE: &str = "Sender, functions and receiver are processes on one core, the switch has the \
     other; every function reads each byte and writes one.";

/// All of them.
pub fn figures() -> Vec<Figure> {
    vec![by_functions(), by_length()]
}

fn by_functions() -> Figure {
    let line = |name, number, frame_len, batch, chain: fn(u8) -> Chain| {
        let path = |count| Path::Chain(chain(count));
        let batch = Batch::all(batch);
        let work = |count| Work { frame_len, batch, path: path(count), ..between(count) };
        let points = FUNCTIONS.map(|count| (f64::from(count), work(count)));
        Line { name, look: Look::Own(number), of: Of::Subject, points: points.to_vec() }
    };
    Figure {
        file: "chain-functions",
        title: "Rate through a chain by the number of its functions",
        x: marked("functions", &FUNCTIONS.map(u16::from)),
        y: axis(RATE, true),
        lines: vec![
            line("uvala, 60 B", 0, 60, 256, Chain::Functions),
            line("uvala, 60 B, one thread", 2, 60, 256, Chain::Together),
            line("uvala, 1514 B", 1, 1514, 64, Chain::Functions),
            line("uvala, 1514 B, one thread", 3, 1514, 64, Chain::Together),
        ],
        published: vec![published::opennetvm_by_functions()],
        notes: vec![NOTE, published::NETVM_SOURCE],
    }
}

fn by_length() -> Figure {
    Figure {
        file: "chain-length",
        title: "Rate through one function by frame length",
        x: marked("frame length, bytes", &[60, 128, 256, 512, 1514]),
        y: axis(RATE, true),
        lines: vec![
            over_lengths("uvala, one function", Look::Own(0), Of::Subject, between(1), 1514),
            over_lengths(
                "limit: ring, two cores",
                Look::Limit,
                Of::Limit(Limit::Exchange),
                between(1),
                1514,
            ),
        ],
        published: vec![published::netvm_by_length()],
        notes: vec![NOTE, published::NETVM_SOURCE],
    }
}

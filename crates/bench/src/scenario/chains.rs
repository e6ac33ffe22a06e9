//! Chains of functions: the scenarios `nf-…`.
//!
//! Sender, functions and receiver are processes of their own and members of one trust group: the
//! switch swaps their buffers. The switch does not wait for a full receiver there, so a sender that
//! is too fast loses frames, nearly all where they would enter the chain (`chain_full`): the report
//! says how many, and each sample at which ports. The rate is that of frames which arrive.

use super::{Limit, Scenario, rate};
use crate::work::{Batch, COPY, Chain, Path, Payload, Traffic, Unit, Work, between};

/// A chain with rings for short frames. Processes that share a core take turns on it, and have half
/// a ring of frames to do in each: the more frames, the less a turn costs each.
const fn short_between(functions: u8) -> Work {
    Work { slots: SLOTS, ..between(functions) }
}

/// Slots of rings for short frames. Long ones would not fit the cache.
const SLOTS: u16 = 4096;

/// A rate that is held against a chain of bare rings.
fn bare(name: &'static str, what: &'static str, goal: Option<f64>, work: Work) -> Scenario {
    Scenario { limit: Limit::Chain, ..rate(name, what, goal, work) }
}

/// All of them.
pub fn scenarios() -> Vec<Scenario> {
    let long = Work { frame_len: 1514, batch: Batch::all(64), ..between(3) };
    let long_together = Work { path: Path::Chain(Chain::Together(3)), ..long };
    let read = Work { path: Path::Chain(Chain::Readers(3)), ..long };
    let untouched = Work { payload: Payload::Untouched, ..short_between(3) };
    let of = |chain| Work { path: Path::Chain(chain), ..COPY };
    let short = |chain| Work { slots: SLOTS, ..of(chain) };
    let call = Work { payload: Payload::Untouched, ..short(Chain::Call) };
    vec![
        bare("nf-1", "60 B through a function in a trust group", Some(110.0), short_between(1)),
        bare("nf-2", "60 B through two functions", Some(75.0), short_between(2)),
        bare("nf-3", "60 B through three functions", Some(60.0), short_between(3)),
        bare("nf-2-together", "two functions, one thread", Some(75.0), short(Chain::Together(2))),
        bare("nf-3-together", "three functions, one thread", Some(60.0), short(Chain::Together(3))),
        bare("nf-3-bridged", "three functions, by learned addresses", None, of(Chain::Bridged(3))),
        rate("nf-call", "one more function in a thread, slots only", Some(3.0), call)
            .counts(Unit::Nanoseconds),
        bare("nf-3-untouched", "three processes, all of which use slots only", None, untouched),
        bare("nf-3-1514", "1514 B through three functions", Some(15.0), long),
        bare(
            "nf-3-1514-together",
            "1514 B through three functions, one thread",
            Some(15.0),
            long_together,
        ),
        bare("nf-3-1514-read", "through three processes, each reads it all", None, read),
        rate(
            "nf-rules",
            "60 B, a thousand rules and a million flows, no function",
            Some(25.0),
            of(Chain::Rules),
        ),
        bare(
            "nf-real",
            "60 B through a firewall, a NAT and a router",
            Some(8.0),
            short(Chain::Box),
        ),
        bare(
            "nf-real-together",
            "60 B through a firewall, a NAT and a router, one thread",
            Some(8.0),
            short(Chain::BoxTogether),
        ),
        rate(
            "nf-latency",
            "five functions, median latency at 99 % load divided by that at 10 %",
            Some(5.0),
            Work { traffic: Traffic::Latency, ..between(5) },
        )
        .counts(Unit::Times),
    ]
}

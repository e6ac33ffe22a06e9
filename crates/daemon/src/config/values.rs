//! The daemon's own values of the configuration file: a number or a text, checked when they are
//! read.

use protocol::config::values::{NumberOrText, in_range};
use protocol::parse;
use ring::cursor::RingSize;
use ring::layout::{MAX_RINGS, MAX_STRIDE};
use tracing::Level;

use ring::waiters::WORKERS_MAX as MAX_WORKERS;

use crate::model::specs::{GROUP_MEMORY_MAX, GROUP_MEMORY_MIN, MAX_EXTRA_BUFS};

protocol::checked_values! {
    WorkerCount(u32) = parse_workers;
    FrameCount(u16) = |text| in_range(text, 1, 1024);
    Bytes(u64) = parse::bytes;
    GroupMemory(u64) = parse_group_memory;
    Rings(u16) = |text| in_range(text, 1, MAX_RINGS);
    Slots(RingSize) = parse_slots;
    ExtraBufs(u32) = |text| in_range(text, 0, MAX_EXTRA_BUFS);
    Stride(u32) = parse_stride;
    Log(Level) = |text| text.parse().map_err(|_| {
        format!("expected error, warn, info, debug or trace, found {text:?}")
    });
}

impl Default for Log {
    fn default() -> Self {
        Self(Level::INFO)
    }
}

/// Reads a number of workers; `auto` means one less than CPUs.
pub fn parse_workers(text: &str) -> Result<u32, String> {
    if text == "auto" {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return Ok(u32::try_from(cpus).unwrap_or(MAX_WORKERS).clamp(2, MAX_WORKERS + 1) - 1);
    }
    in_range(text, 1, MAX_WORKERS)
        .map_err(|error| error.replacen("expected", "expected \"auto\" or", 1))
}

fn parse_slots(text: &str) -> Result<RingSize, String> {
    let slots = in_range(text, RingSize::MIN, RingSize::MAX)?;
    Ok(RingSize::new(slots).expect("in range"))
}

fn parse_group_memory(text: &str) -> Result<u64, String> {
    let bytes = parse::bytes(text)?;
    let fits = (GROUP_MEMORY_MIN..=GROUP_MEMORY_MAX).contains(&bytes);
    fits.then_some(bytes).ok_or_else(|| format!("expected 1MiB to 4095MiB, found {text}"))
}

fn parse_stride(text: &str) -> Result<u32, String> {
    let stride = in_range(text, 64, MAX_STRIDE)?;
    match stride.is_multiple_of(64) {
        true => Ok(stride),
        false => Err(format!("expected a multiple of 64, found {stride}")),
    }
}

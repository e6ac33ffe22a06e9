//! Values of the configuration file that are a number or a text, checked when they are read.

use std::fmt;
use std::str::FromStr;

use protocol::{PortKind, Queues, parse, users};
use ring::cursor::RingSize;
use ring::layout::{MAX_RINGS, MAX_STRIDE};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};
use switch::FDB_CAPACITY_MAX;
use tracing::Level;

use crate::model::specs::{GROUP_MEMORY_MAX, GROUP_MEMORY_MIN, MAX_EXTRA_BUFS};

/// Reads a value whose text form another module defines.
pub fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// Reads such a value of a key that may be missing.
pub fn some_from_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    from_text(deserializer).map(Some)
}

/// Declares types of values that are a number or a text, with the check of each.
macro_rules! checked {
    ($($name:ident($inner:ty) = $parse:expr;)*) => {$(
        #[doc = concat!("`", stringify!($inner), "` in the file.")]
        #[derive(Clone, Copy, Deserialize)]
        #[serde(try_from = "NumberOrText")]
        pub struct $name(pub $inner);

        impl TryFrom<NumberOrText> for $name {
            type Error = String;
            fn try_from(value: NumberOrText) -> Result<Self, String> {
                let parse: fn(&str) -> Result<$inner, String> = $parse;
                parse(&value.0).map(Self)
            }
        }
    )*};
}

checked! {
    UserId(u32) = |text| users::user_id(text).ok_or(format!("no user {text:?} in /etc/passwd"));
    GroupId(u32) = |text| users::group_id(text).ok_or(format!("no group {text:?} in /etc/group"));
    Number(u32) = |text| in_range(text, 0, u32::MAX);
    Kind(PortKind) = parse_kind;
    WorkerCount(u32) = parse_workers;
    FrameCount(u16) = |text| in_range(text, 1, 1024);
    Bytes(u64) = parse::bytes;
    GroupMemory(u64) = parse_group_memory;
    Capacity(usize) = |text| in_range(text, 1, FDB_CAPACITY_MAX);
    VnetHeader(u8) = |text| match text {
        "0" => Ok(0),
        "10" => Ok(10),
        "12" => Ok(12),
        _ => Err(format!("expected 0, 10 or 12, found {text:?}")),
    };
    Rings(u16) = |text| in_range(text, 1, MAX_RINGS);
    Slots(RingSize) = parse_slots;
    ExtraBufs(u32) = |text| in_range(text, 0, MAX_EXTRA_BUFS);
    Stride(u32) = parse_stride;
    Log(Level) = |text| text.parse().map_err(|_| {
        format!("expected error, warn, info, debug or trace, found {text:?}")
    });
}

/// `Queues` in the file.
#[derive(Clone, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub struct QueueNumbers(pub Queues);

impl TryFrom<NumberOrText> for QueueNumbers {
    type Error = String;
    fn try_from(value: NumberOrText) -> Result<Self, String> {
        value.0.parse().map(Self).map_err(|error: protocol::ValueError| error.to_string())
    }
}

impl Default for Log {
    fn default() -> Self {
        Self(Level::INFO)
    }
}

impl Default for Kind {
    fn default() -> Self {
        Self(PortKind::Shm)
    }
}

fn parse_kind(text: &str) -> Result<PortKind, String> {
    let kind = PortKind::persistent(text);
    kind.ok_or_else(|| format!("expected {}, found {text:?}", PortKind::names()))
}

/// Reads a number of workers; `auto` means one less than cores.
pub fn parse_workers(text: &str) -> Result<u32, String> {
    if text == "auto" {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        return Ok(u32::try_from(cores).unwrap_or(MAX_WORKERS).clamp(2, MAX_WORKERS + 1) - 1);
    }
    in_range(text, 1, MAX_WORKERS).map_err(|error| format!("{error}, or \"auto\""))
}

/// Limit for the number of workers.
const MAX_WORKERS: u32 = 256;

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

fn in_range<T>(text: &str, low: T, high: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    let number: Option<T> = text.parse().ok();
    let fits = number.filter(|number| (&low..=&high).contains(&number));
    fits.ok_or_else(|| format!("expected a number from {low} to {high}, found {text}"))
}

/// The text of a value with or without quotes.
struct NumberOrText(String);

impl<'de> Deserialize<'de> for NumberOrText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = NumberOrText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }
            fn visit_i64<E>(self, number: i64) -> Result<NumberOrText, E> {
                Ok(NumberOrText(number.to_string()))
            }
            fn visit_str<E>(self, text: &str) -> Result<NumberOrText, E> {
                Ok(NumberOrText(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

//! Values of a configuration file that are a number or a text, checked when they are read.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};

use crate::{FDB_CAPACITY_MAX, PortKind, Queues, ValueError, parse, users};

/// Reads a value whose text form another module defines.
///
/// # Errors
/// The value is no text, or the text has another form.
pub fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// Reads such a value of a key that may be missing.
///
/// # Errors
/// As [`from_text`].
pub fn some_from_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    from_text(deserializer).map(Some)
}

/// Declares types of values that are a number or a text, with the check of each.
/// [`NumberOrText`](crate::config::values::NumberOrText) has to be in scope.
#[macro_export]
macro_rules! checked_values {
    ($($name:ident($inner:ty) = $parse:expr;)*) => {$(
        #[doc = concat!("`", stringify!($inner), "` in the file.")]
        #[derive(Clone, Copy, ::serde::Deserialize)]
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

crate::checked_values! {
    UserId(u32) = |text| users::user_id(text).ok_or(format!("no user {text:?} in /etc/passwd"));
    GroupId(u32) = |text| users::group_id(text).ok_or(format!("no group {text:?} in /etc/group"));
    Number(u32) = |text| in_range(text, 0, u32::MAX);
    Kind(PortKind) = parse_kind;
    Capacity(u32) = |text| in_range(text, 1, FDB_CAPACITY_MAX);
    GroupFwdMask(u16) = parse::group_fwd_mask;
    VnetHeader(u8) = |text| match text {
        "0" => Ok(0),
        "10" => Ok(10),
        "12" => Ok(12),
        _ => Err(format!("expected 0, 10 or 12, found {text:?}")),
    };
}

/// `Queues` in the file.
#[derive(Clone, Deserialize)]
#[serde(try_from = "NumberOrText")]
pub struct QueueNumbers(pub Queues);

impl TryFrom<NumberOrText> for QueueNumbers {
    type Error = String;
    fn try_from(value: NumberOrText) -> Result<Self, String> {
        value.0.parse().map(Self).map_err(|error: ValueError| error.to_string())
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

/// Reads a number of a range.
///
/// # Errors
/// The range.
pub fn in_range<T>(text: &str, low: T, high: T) -> Result<T, String>
where
    T: FromStr + PartialOrd + fmt::Display,
{
    let number: Option<T> = text.parse().ok();
    let fits = number.filter(|number| (&low..=&high).contains(&number));
    fits.ok_or_else(|| format!("expected a number from {low} to {high}, found {text}"))
}

/// The text of a value with or without quotes.
pub struct NumberOrText(pub String);

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

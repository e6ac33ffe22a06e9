//! The error of text that cannot be read.

use std::fmt;

/// An error that says which text was expected, and which was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    expected: &'static str,
    found: String,
}

impl ParseError {
    /// An error for text that is not `expected`, a phrase such as "a VLAN, 1 to 4094".
    #[must_use]
    pub fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.to_owned() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {:?}", self.expected, self.found)
    }
}

impl std::error::Error for ParseError {}

/// Makes a type's text form, what `Display` writes and `FromStr` reads, its form in JSON and files:
/// for `#[serde(try_from = "String", into = "String")]`.
#[macro_export]
macro_rules! text_form {
    ($($type:ty),*) => {$(
        impl TryFrom<String> for $type {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    )*};
}

//! What the TOML and JSON parsers report, in the words of a configuration file.
//!
//! Serde's messages speak of Rust's types ("invalid type: map, expected a sequence"). An operator
//! reads "found a table, expected a list such as [2, 3]".

use std::ops::Range;

/// What the TOML parser reports, and the byte offset of the fault: its `message()` and `span()`.
#[must_use]
pub fn describe(message: &str, span: Option<Range<usize>>) -> (usize, String) {
    let why = plain(&message.replace("unknown field", "unknown key"));
    (span.map_or(0, |span| span.start), why)
}

/// The line, counted from 1, of a byte offset in a text.
#[must_use]
pub fn line(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&byte| byte == b'\n').count() + 1
}

/// A parser's message without the names of Rust's types.
#[must_use]
pub fn plain(message: &str) -> String {
    let words = [
        ("\n", "; "),
        ("invalid type: ", "found "),
        ("invalid value: ", "found "),
        ("found map", "found a table"),
        ("found sequence", "found a list"),
        ("found string", "found the text"),
        ("found integer", "found the number"),
        ("found floating point", "found the number"),
        ("found boolean", "found"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list such as [2, 3]"),
        ("expected path string", "expected a path in quotes"),
        ("expected a string", "expected a text in quotes"),
        ("expected a map", "expected a table"),
    ];
    words.iter().fold(message.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_message_is_said_in_plain_words_with_its_line() {
        let (at, why) = describe("unknown field `x`\nexpected a map", Some(4..5));
        assert_eq!((at, &*why), (4, "unknown key `x`; expected a table"));
        assert_eq!((line("a\nb\nc", 0), line("a\nb\nc", 4)), (1, 3));
    }
}

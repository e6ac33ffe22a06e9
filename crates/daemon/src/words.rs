//! What parsers say of a configuration or of a call, without the words of their trade.

/// What the reader of TOML says, and before which byte of the text.
#[must_use]
pub fn in_toml(error: &toml::de::Error) -> (usize, String) {
    let why = in_plain_words(&error.message().replace("unknown field", "unknown key"));
    (error.span().map_or(0, |span| span.start), why)
}

/// What a parser says.
#[must_use]
pub fn in_plain_words(message: &str) -> String {
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

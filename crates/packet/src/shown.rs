//! Texts of others, as a terminal or a log shows them.
//!
//! A name of a client, a command line or a symbol of an object file may have any character.

/// Whether a character is shown as itself. Those that control a terminal, end a line, hide, or turn
/// the direction of the text behind them are not.
#[must_use]
pub fn is_shown(letter: char) -> bool {
    matches!(letter, '"' | '\'' | '\\') || letter.escape_debug().count() == 1
}

/// The text with an escape, such as `\n`, in the place of each character that is not shown as
/// itself, and cut to `max` characters of which the last is then `…`.
#[must_use]
pub fn shown(text: &str, max: usize) -> String {
    let escaped = |letter: char| {
        let itself = is_shown(letter).then_some(letter);
        let escape = itself.is_none().then(|| letter.escape_debug());
        itself.into_iter().chain(escape.into_iter().flatten())
    };
    // No more of a long text is looked at than is shown.
    let mut letters = text.chars().flat_map(escaped);
    let mut start: String = letters.by_ref().take(max).collect();
    if letters.next().is_some() {
        start.pop();
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_what_controls_hides_or_turns_is_escaped_and_the_rest_stays() {
        let plain = "/run/vale0:vm1.sock 'a' \"b\" \\ größer 東京 …";
        assert_eq!(shown(plain, 100), plain);
        assert_eq!(shown("a\x1b]0;x\x07b\r\n\tc\x7f", 100), r"a\u{1b}]0;x\u{7}b\r\n\tc\u{7f}");
        assert_eq!(shown("\u{9b}31m\u{202e}a\u{200b}", 100), r"\u{9b}31m\u{202e}a\u{200b}");
    }

    #[test]
    fn test_a_long_text_is_cut() {
        assert_eq!(shown("abcd", 4), "abcd");
        assert_eq!(shown("abcde", 4), "abc…");
        assert_eq!(shown(&"\x1b".repeat(1 << 20), 10), r"\u{1b}\u{…");
        assert_eq!(shown("", 0), "");
    }
}

//! Command lines that a user may paste into a shell.

/// A word as a shell reads it.
#[must_use]
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=+,./:@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_words_are_quoted_where_a_shell_would_read_more_into_them() {
        assert_eq!(quoted("id=a,path=/run/vale0:vm1.sock"), "id=a,path=/run/vale0:vm1.sock");
        assert_eq!(quoted("/tmp/$(id);a"), "'/tmp/$(id);a'");
        assert_eq!(quoted("it's two"), r"'it'\''s two'");
        assert_eq!(quoted(""), "''");
    }
}

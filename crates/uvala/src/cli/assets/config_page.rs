//! uvala.toml(5), from the sample that shows every key.
//!
//! `docs/uvala.toml` is the one description of the configuration; the daemon's tests compare it
//! with what the daemon reads. Its lines become:
//!
//! ```text
//!  # words           what is said of the key or table that follows, or a paragraph
//!  [table]           a heading
//!  key = value       an entry, with its default
//!  #! key = value    an entry, with an example
//! ```

const SAMPLE: &str = include_str!("../../../../../docs/uvala.toml");

/// The page.
pub fn page() -> String {
    let mut page =
        format!(".TH uvala.toml 5 \"\" \"uvala {}\"\n{HEAD}", escaped(env!("CARGO_PKG_VERSION")));
    let (_, settings) = SAMPLE.split_once("\n\n").expect("a head, and settings");
    let mut words = Words::default();
    for line in settings.lines() {
        let (line, is_example) = match line.strip_prefix("#! ") {
            Some(line) => (line, true),
            None => (line, false),
        };
        if let Some(said) = line.strip_prefix('#') {
            words.push(said.strip_prefix(' ').unwrap_or(said));
        } else if line.starts_with('[') {
            page += &format!(".SS {}\n{}", escaped(line), words.take());
        } else if let Some((key, value)) = line.split_once(" = ") {
            let between = if is_example { ", for example" } else { " =" };
            let (key, value) = (escaped(key), escaped(value));
            page += &format!(".TP\n\\fB{key}\\fR{between} {value}\n{}", words.take());
        } else if !words.0.is_empty() {
            page += &format!(".PP\n{}", words.take());
        }
    }
    page + TAIL
}

/// What was said of something that is still to come.
#[derive(Default)]
struct Words(String);

impl Words {
    fn push(&mut self, line: &str) {
        // Columns stay as they are.
        match line.starts_with("  ") {
            true => self.0 += &format!(".nf\n{}\n.fi\n", escaped(line)),
            false => self.0 += &format!("{}\n", escaped(line)),
        }
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.0).replace(".fi\n.nf\n", "")
    }
}

/// A text as roff prints it.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

const HEAD: &str = "\
.SH NAME
uvala.toml \\- configuration of the uvala daemon
.SH SYNOPSIS
\\fBuvala daemon \\-c\\fR \\fIuvala.toml\\fR
.SH DESCRIPTION
A TOML file, which the daemon reads when it starts; \\fBuvala apply\\fR applies its switches to a
running daemon. The daemon refuses unknown keys, and names their line, so a typing error never goes
unnoticed. Every key is optional; the value shown here is its default, or an example where it says
so.
.SH SETTINGS
";

const TAIL: &str = "\
.SH FILES
.TP
\\fI/etc/uvala.toml\\fR
The configuration of the service.
.SH SEE ALSO
\\fBuvala\\-daemon\\fR(1), \\fBuvala\\-apply\\fR(1), \\fBuvala\\-switch\\fR(1),
\\fBuvala\\-port\\fR(1)
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_every_key_and_table_of_the_sample_is_in_the_page() {
        let page = page();
        for line in SAMPLE.lines().map(|line| line.strip_prefix("#! ").unwrap_or(line)) {
            if line.starts_with('[') {
                assert!(page.contains(&format!("\n.SS {line}\n")), "{line}");
            } else if let Some((key, value)) = line.split_once(" = ")
                && !line.starts_with('#')
            {
                let value = escaped(value);
                let forms = ["\\fR = ", "\\fR, for example "];
                let entry = |form| page.contains(&format!("\n\\fB{key}{form}{value}\n"));
                assert!(forms.into_iter().any(entry), "{line}");
            }
        }
        assert!(!page.contains("#!") && !page.contains("\n# "), "{page}");
    }

    #[test]
    fn test_what_is_said_stands_behind_its_key() {
        let page = page();
        let count = "\\fBcount\\fR = 1\nWorker threads; a switch belongs to one of them.";
        assert!(page.contains(count), "{page}");
        assert!(page.contains(".SS [quota]\nLimits of one user.\n.TP\n"), "{page}");
        assert!(page.contains(".nf\n  spin    poll without end"), "{page}");
        assert!(page.contains("\\fBowner\\fR, for example \"root\"\n"), "{page}");
    }
}

//! Rules about lines of text: columns, trailing space, markers of unfinished work, and paths of
//! one machine.

use super::Finding;
use crate::tree::{Kind, Source};

const COLUMNS_MAX: usize = 100;

/// Marks of unfinished work. Written in halves, so that this file does not break its own rule.
const MARKERS: [&str; 6] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

/// Folders that exist on one machine only.
const PRIVATE: [&str; 3] = [concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// All of the above for one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if source.kind == Kind::Other {
        return findings;
    }
    let mut literal = false;
    for (index, line) in source.text.lines().enumerate() {
        literal ^= line.trim_start().starts_with("```");
        let table = line.starts_with('|');
        // What a program printed, a table and a URL cannot be broken.
        let whole = source.kind == Kind::Markdown && (literal || table) || line.contains("://");
        if !whole {
            findings.extend(check_columns(source, index + 1, line));
        }
        findings.extend(check_line(source, index + 1, line));
    }
    findings
}

fn check_columns(source: &Source, number: usize, line: &str) -> Option<Finding> {
    let columns = line.chars().count();
    let advice = format!("{columns} columns; break the line at {COLUMNS_MAX}");
    (columns > COLUMNS_MAX).then(|| Finding::new(source, number, "columns", advice))
}

fn check_line(source: &Source, number: usize, line: &str) -> Vec<Finding> {
    let prose = source.kind == Kind::Markdown;
    let mut findings = Vec::new();
    let mut say = |rule, advice: String| findings.push(Finding::new(source, number, rule, advice));
    if line.ends_with([' ', '\t']) {
        say("trailing-space", "delete the blanks at the end of the line".into());
    }
    if let Some(marker) = MARKERS.iter().find(|&&marker| !prose && has_word(line, marker)) {
        say("unfinished", format!("finish it or open an issue; `{marker}` does not land"));
    }
    if let Some(folder) = PRIVATE.iter().find(|&&folder| has_path(line, folder)) {
        say("private-path", format!("`{folder}…` exists on one machine; use a relative path"));
    }
    findings
}

/// Whether `word` stands in the line and is not part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(part)
            && (word.ends_with('(') || !line[at + word.len()..].starts_with(part))
    })
}

/// Whether an absolute path under `folder` stands in the line.
fn has_path(line: &str, folder: &str) -> bool {
    let relative = |c: char| c.is_alphanumeric() || "._-)}>$*".contains(c);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(relative))
}

#[cfg(test)]
mod tests {
    use super::super::{found, found_in};
    use super::*;

    #[test]
    fn long_lines_are_counted_in_characters() {
        let line = |n| format!("//! x\n// {}\n", "é".repeat(n));
        assert_eq!(found(&line(97)), []);
        assert_eq!(found(&line(98)), [(2, "columns")]);
        assert_eq!(found(&format!("//! x\n// https://{}\n", "a".repeat(120))), []);
    }

    #[test]
    fn prose_is_broken_too_but_for_tables_and_what_is_quoted() {
        let long = "a ".repeat(60) + "a";
        assert_eq!(found_in("a.md", &long), [(1, "columns")]);
        assert_eq!(found_in("a.md", &format!("```\n{long}\n```\n| {long} |\n")), []);
        assert_eq!(found_in("a.md", &format!("```\n```\n{long}\n")), [(3, "columns")]);
    }

    #[test]
    fn trailing_blanks_are_found_in_any_text() {
        assert_eq!(found_in("README.md", "a\nb \n"), [(2, "trailing-space")]);
        assert_eq!(found_in("x.c", "int a;\t\n"), [(1, "trailing-space")]);
    }

    #[test]
    fn unfinished_work_is_found_as_a_word() {
        for marker in MARKERS {
            assert_eq!(found(&format!("//! x\n// {marker}\n")), [(2, "unfinished")], "{marker}");
            assert_eq!(found(&format!("//! x\n// a{marker}\n")), [], "{marker}");
        }
        assert_eq!(found_in("STYLE.md", MARKERS[0]), []);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for folder in PRIVATE {
            assert_eq!(found_in("a.md", &format!("see {folder}me/x")), [(1, "private-path")]);
            assert_eq!(found_in("a.md", &format!("see tests{folder}x")), []);
        }
    }
}

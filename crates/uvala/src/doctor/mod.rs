//! What is wrong with a daemon, its machines and its host, and the cure.
//!
//! Facts are gathered in one place ([`gather`]); each check is a function of facts.

mod chain;
mod config;
mod device;
mod facts;
pub mod gather;
mod host;
mod limits;
mod machine;
mod multicast;
mod program;
mod security;
mod tunnel;
mod vmm;
mod worker;

use packet::shown::shown;
use serde::Serialize;

pub use chain::chains;
pub use config::configuration;
pub use host::{daemon_closed, daemon_missing, forgotten, unsaved};
pub use program::{failing, missing};
pub use tunnel::tunnels;
pub use worker::stalls;

/// Most characters of a part of a finding. Command lines of other users may be longer.
const TEXT_MAX: usize = 2000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Something does not work.
    Problem,
    /// Something may be meant so, or may be missed later.
    Note,
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// A port, a switch, `daemon` or `host`.
    pub about: String,
    /// What is so.
    pub what: String,
    /// What to do.
    pub cure: String,
}

/// Parts of it may come from any process of this host, so nothing in it controls a terminal.
fn problem(about: &str, what: impl AsRef<str>, cure: impl AsRef<str>) -> Finding {
    let [about, what, cure] =
        [about, what.as_ref(), cure.as_ref()].map(|text| shown(text, TEXT_MAX));
    Finding { level: Level::Problem, about, what, cure }
}

fn note(about: &str, what: impl AsRef<str>, cure: impl AsRef<str>) -> Finding {
    Finding { level: Level::Note, ..problem(about, what, cure) }
}

/// Findings as people read them.
pub fn text(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let level = if finding.level == Level::Problem { "PROBLEM" } else { "note" };
        format!("{level:<8} {}: {}\n         cure: {}\n", finding.about, finding.what, finding.cure)
    };
    let lines: String = findings.iter().map(line).collect();
    if has_problems(findings) { lines } else { lines + "no problems found\n" }
}

/// Whether any finding is a problem.
pub fn has_problems(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.level == Level::Problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_notes_are_no_problems() {
        let findings = [note("host", "no AF_XDP", "take packet")];
        assert!(!has_problems(&findings) && text(&findings).ends_with("no problems found\n"));
        let findings = [problem("vale0:a", "gone", "add it")];
        assert_eq!(text(&findings), "PROBLEM  vale0:a: gone\n         cure: add it\n");
        assert!(has_problems(&findings));
    }

    #[test]
    fn test_a_finding_controls_no_terminal_and_is_no_longer_than_a_screen() {
        let found = note("a\rb", "c\x1b]0;d\x07", "e\n         cure: f\u{202e}");
        assert_eq!((&*found.about, &*found.what), (r"a\rb", r"c\u{1b}]0;d\u{7}"));
        assert_eq!(found.cure, r"e\n         cure: f\u{202e}");
        let long = problem("a", "x".repeat(1 << 20), "");
        assert_eq!(long.what.chars().count(), TEXT_MAX);
    }
}

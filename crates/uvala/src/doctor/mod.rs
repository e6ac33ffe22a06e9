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

use serde::Serialize;

pub use chain::chains;
pub use config::configuration;
pub use host::{daemon_closed, daemon_missing, unsaved};
pub use program::{failing, missing};
pub use tunnel::tunnels;
pub use worker::stalls;

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

fn problem(about: &str, what: impl Into<String>, cure: impl Into<String>) -> Finding {
    let (what, cure) = (what.into(), cure.into());
    Finding { level: Level::Problem, about: about.to_owned(), what, cure }
}

fn note(about: &str, what: impl Into<String>, cure: impl Into<String>) -> Finding {
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
}

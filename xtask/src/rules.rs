//! The rules, one module each, and the finding that they all return.

mod asserts;
mod attributes;
pub mod cycles;
mod graph;
pub mod length;
mod links;
mod modules;
mod promises;
pub mod prose;
mod readme;
mod text;
mod unsafety;

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;

use crate::tree::{Source, Tree};

/// One broken rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: PathBuf,
    line: usize,
    rule: &'static str,
    advice: String,
}

impl Finding {
    fn new(source: &Source, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self { path: source.path.clone(), line, rule, advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path.display(), self.line, self.rule, self.advice)
    }
}

/// Every rule over every file, in the order of the files.
pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = graph::check(&tree.root)?;
    findings.extend(graph::check_modules(tree));
    for source in &tree.files {
        findings.extend(check_file(source));
    }
    findings.extend(modules::check_tree(tree));
    findings.extend(links::check(tree));
    findings.extend(cycles::check(tree));
    findings.extend(asserts::check(tree));
    findings.extend(prose::check_tree(tree));
    findings.extend(promises::check(tree));
    findings.extend(readme::check(tree));
    findings.sort();
    Ok(findings)
}

/// The rules that need one file only.
fn check_file(source: &Source) -> Vec<Finding> {
    let mut findings = text::check(source);
    findings.extend(length::check(source));
    match &source.syntax {
        None => {}
        Some(Err(error)) => {
            let line = error.span().start().line;
            findings.push(Finding::new(source, line, "parse", error.to_string()));
        }
        Some(Ok(file)) => {
            findings.extend(modules::check(source, file));
            findings.extend(attributes::check(source, file));
            findings.extend(unsafety::check(source, file));
            findings.extend(prose::check(source, file));
        }
    }
    findings
}

/// What the rules' own tests use: the rule names and lines found in one Rust file.
#[cfg(test)]
fn found(text: &str) -> Vec<(usize, &'static str)> {
    found_in("crates/x/src/lib.rs", text)
}

#[cfg(test)]
fn found_in(path: &str, text: &str) -> Vec<(usize, &'static str)> {
    let mut findings = check_file(&Source::new(path.into(), text.into()));
    findings.sort();
    findings.iter().map(|finding| (finding.line, finding.rule)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_path_line_rule_advice() {
        let source = Source::new("a/b.c".into(), String::new());
        let finding = Finding::new(&source, 3, "columns", "break the line");
        assert_eq!(finding.to_string(), "a/b.c:3: columns: break the line");
    }

    #[test]
    fn what_does_not_parse_is_a_finding() {
        assert_eq!(found("//! x\nfn {\n"), [(2, "parse")]);
    }
}

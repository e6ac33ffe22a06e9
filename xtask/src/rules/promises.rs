//! A promise of `SECURITY.md` names the test that shows it, and that test exists.
//!
//! The name is `path/of/file.rs::function`, from the root, in backticks. Each row of a table names
//! one, or says `no test: ` and why there is none. Rows whose last cell is empty promise nothing,
//! and neither does the table of parties.

use std::path::Path;

use super::Finding;
use crate::tree::{Source, Tree};

const RULE: &str = "promise";

/// Why a row has no test.
const NO_TEST: &str = "no test: ";
/// The first header of a table that promises nothing.
const PARTIES: &str = "party";

/// Every test that `SECURITY.md` names, and every row that names none.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.file(Path::new("SECURITY.md")) else { return Vec::new() };
    let lines = document.text.lines().enumerate();
    let named = lines.flat_map(|(index, line)| check_line(tree, document, index + 1, line));
    named.chain(check_rows(document)).collect()
}

/// Rows of tables that promise something and show it by no test.
fn check_rows(document: &Source) -> Vec<Finding> {
    let lines: Vec<&str> = document.text.lines().collect();
    let mut numbered = lines.iter().zip(1..);
    let mut findings = Vec::new();
    // The first line of a table is its header, the second a rule.
    while let Some((header, _)) = numbered.by_ref().find(|(line, _)| line.starts_with('|')) {
        let is_of_parties = cells(header).next() == Some(PARTIES);
        let rows = numbered.by_ref().take_while(|(line, _)| line.starts_with('|')).skip(1);
        let unproven = rows.filter(|(row, _)| !is_of_parties && !is_proven(row));
        findings.extend(unproven.map(|(_, number)| {
            let advice = format!("the row names no test; name one, or say `{NO_TEST}` and why");
            Finding::new(document, number, RULE, advice)
        }));
    }
    findings
}

fn is_proven(row: &str) -> bool {
    let promises = cells(row).last().is_some_and(|cell| !cell.is_empty());
    let is_reason = |(_, why): (&str, &str)| !why.trim_matches(['|', ' ', ')']).is_empty();
    let has_reason = row.split_once(NO_TEST).is_some_and(is_reason);
    !promises || has_reason || tests_named(row).next().is_some()
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

fn check_line(tree: &Tree, document: &Source, number: usize, line: &str) -> Vec<Finding> {
    let missing = tests_named(line).filter(|&(file, name)| !exists(tree, file, name));
    missing
        .map(|(file, name)| {
            let advice = format!("`{file}` has no test `{name}`; name one that shows the promise");
            Finding::new(document, number, RULE, advice)
        })
        .collect()
}

/// The tests that a line names: their files and their functions.
fn tests_named(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let code = line.split('`').skip(1).step_by(2);
    code.filter_map(|code| code.split_once("::").filter(|(file, _)| file.ends_with(".rs")))
}

/// Whether a file has a function marked as a test.
fn exists(tree: &Tree, file: &str, name: &str) -> bool {
    let Some(syntax) = tree.file(Path::new(file)).and_then(Source::rust) else { return false };
    has_test(&syntax.items, name)
}

fn has_test(items: &[syn::Item], name: &str) -> bool {
    items.iter().any(|item| match item {
        syn::Item::Fn(function) => function.sig.ident == name && is_test(&function.attrs),
        syn::Item::Mod(module) => module.content.iter().any(|(_, items)| has_test(items, name)),
        // What a macro such as `proptest!` holds is not parsed.
        syn::Item::Macro(item) => {
            let tokens = item.mac.tokens.to_string();
            tokens.contains(&format!("fn {name} (")) || tokens.contains(&format!("fn {name}("))
        }
        _ => false,
    })
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().segments.last().is_some_and(|segment| segment.ident == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "//! x
fn helper() {}
#[test]
fn a() {}
mod tests {
    #[test]
    fn b() {}
    proptest! { #[test] fn c(x in 0..1) {} }
}
";

    /// The lines of a `SECURITY.md` at which the rule finds fault.
    fn faults(text: &str) -> Vec<usize> {
        let files = vec![
            Source::new("SECURITY.md".into(), text.into()),
            Source::new("tests/tests/x.rs".into(), FILE.into()),
        ];
        let findings = check(&Tree { root: "".into(), files });
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn test_that_exists_may_be_named() {
        assert!(faults("a (`tests/tests/x.rs::a`, `tests/tests/x.rs::b`)\n").is_empty());
        assert!(faults("`tests/tests/x.rs::c`\n").is_empty());
        assert!(faults("`port::sys::aio`, `tests/tests/x.rs`\n").is_empty());
    }

    #[test]
    fn row_without_a_test_is_a_finding() {
        let table = |rows: &str| faults(&format!("text\n| a can | it cannot |\n|---|---|\n{rows}"));
        assert_eq!(table("| x | y |\n| x | z (`tests/tests/x.rs::a`) |\n| x | y |\n"), [4, 6]);
        assert!(table("| x | |\n").is_empty());
        assert!(table("| x | y (no test: the kernel decides) |\n").is_empty());
        assert_eq!(table("| x | y (no test: ) |\n"), [4]);
        assert!(faults("| party | trusts |\n|---|---|\n| x | y |\n").is_empty());
        assert_eq!(faults("| party |\n|---|\n| x |\n\n| a |\n|---|\n| x |\n"), [7]);
    }

    #[test]
    fn test_that_does_not_exist_is_a_finding() {
        assert_eq!(faults("x\n`tests/tests/x.rs::d`\n"), [2]);
        assert_eq!(faults("`tests/tests/x.rs::helper`\n"), [1]);
        assert_eq!(faults("`tests/tests/y.rs::a`\n"), [1]);
    }
}

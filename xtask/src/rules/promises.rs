//! A promise of `SECURITY.md` names the test that shows it, and that test exists.
//!
//! The name is `path/of/file.rs::function`, from the root, in backticks. Each row of a table, item
//! of a list and paragraph names one, or says `no test: ` and why there is none. These need none:
//!
//! - a row whose last cell is empty: it promises nothing;
//! - a paragraph that introduces, which is the first below a heading, or ends with a colon; but
//!   one that says `cannot` or `never` promises, wherever it stands;
//! - a section that promises nothing (`WITHOUT_PROMISES`).

use std::path::Path;

use super::Finding;
use crate::tree::{Source, Tree};

const RULE: &str = "promise";

/// Why a promise has no test.
const NO_TEST: &str = "no test: ";
/// The sections that promise nothing.
const WITHOUT_PROMISES: [&str; 3] = ["## Parties", "## Not promised", "## Reporting"];
/// The words by which an introduction promises.
const PROMISING: [&str; 2] = ["cannot", "never"];

/// A heading, a row below the header of a table, a list item or a paragraph, as one line.
struct Block {
    /// The number of the first line.
    number: usize,
    text: String,
}

/// Every test that `SECURITY.md` names and that is missing, and every promise that names none.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.file(Path::new("SECURITY.md")) else { return Vec::new() };
    let blocks = blocks(&document.text);
    let named = blocks.iter().flat_map(|block| check_tests(tree, document, block));
    named.chain(check_promises(document, &blocks)).collect()
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (line, number) in text.lines().zip(1..) {
        let is_whole = line.is_empty() || line.starts_with(['#', '|']);
        let goes_on = is_open && !is_whole && !line.starts_with("- ");
        if line.starts_with("|-") {
            // The line above a rule is the header of a table: both promise nothing.
            blocks.pop();
        } else if goes_on && let Some(block) = blocks.last_mut() {
            block.text.push(' ');
            block.text.push_str(line.trim_start());
        } else if !line.is_empty() {
            blocks.push(Block { number, text: line.to_owned() });
        }
        is_open = !is_whole;
    }
    blocks
}

/// What promises something and shows it by no test.
fn check_promises(document: &Source, blocks: &[Block]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut is_without, mut before) = (false, None);
    for block in blocks {
        if block.text.starts_with("## ") {
            is_without = WITHOUT_PROMISES.contains(&block.text.as_str());
        }
        if !is_without && promises(block, before) && !is_proven(&block.text) {
            let advice = format!("a promise names a test, or says `{NO_TEST}` and why");
            findings.push(Finding::new(document, block.number, RULE, advice));
        }
        before = Some(block);
    }
    findings
}

/// Whether a block promises something, where it stands behind `before`.
fn promises(block: &Block, before: Option<&Block>) -> bool {
    let text = block.text.as_str();
    if text.starts_with('|') {
        return cells(text).last().is_some_and(|cell| !cell.is_empty());
    }
    let is_first = before.is_some_and(|before| before.text.starts_with('#'));
    let introduces = !text.starts_with("- ") && (is_first || text.ends_with(':'));
    !text.starts_with('#') && (!introduces || PROMISING.iter().any(|&word| text.contains(word)))
}

fn is_proven(text: &str) -> bool {
    let is_reason = |(_, why): (&str, &str)| !why.trim_matches(['|', ' ', ')', '.']).is_empty();
    text.split_once(NO_TEST).is_some_and(is_reason) || tests_named(text).next().is_some()
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

fn check_tests(tree: &Tree, document: &Source, block: &Block) -> Vec<Finding> {
    let missing = tests_named(&block.text).filter(|&(file, name)| !exists(tree, file, name));
    missing
        .map(|(file, name)| {
            let advice = format!("`{file}` has no test `{name}`; name one that shows the promise");
            Finding::new(document, block.number, RULE, advice)
        })
        .collect()
}

/// The tests that a text names: their files and their functions.
fn tests_named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let code = text.split('`').skip(1).step_by(2);
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
        assert!(faults("# A\n\n`port::sys::aio`, `tests/tests/x.rs`\n").is_empty());
    }

    #[test]
    fn row_without_a_test_is_a_finding() {
        let table = |rows: &str| faults(&format!("# A\n| a can | it cannot |\n|---|---|\n{rows}"));
        assert_eq!(table("| x | y |\n| x | z (`tests/tests/x.rs::a`) |\n| x | y |\n"), [4, 6]);
        assert!(table("| x | |\n").is_empty());
        assert!(table("| x | y (no test: the kernel decides) |\n").is_empty());
        assert_eq!(table("| x | y (no test: ) |\n"), [4]);
        assert_eq!(faults("| a |\n|---|\n\n| b |\n|---|\n| x |\n"), [6]);
    }

    #[test]
    fn prose_without_a_test_is_a_finding() {
        let text = "## A\n\nIt does x.\n\nIt does\ny (`tests/tests/x.rs::a`).\n\nIt does z.\n\n";
        assert_eq!(faults(text), [8]);
        assert_eq!(faults("- It\n  does x.\n- It does y (`tests/tests/x.rs::b`).\n"), [1]);
        assert!(faults("- It does x (no\n  test: a time).\n").is_empty());
    }

    #[test]
    fn introduction_promises_by_what_it_cannot_do_only() {
        assert!(faults("## A\n\nAn a is x.\n\nIt can:\n\n").is_empty());
        assert_eq!(faults("## A\n\nAn a cannot x.\n\nIt never does:\n"), [3, 5]);
        assert_eq!(faults("## A\n\n- x:\n"), [3], "an item introduces nothing");
    }

    #[test]
    fn section_without_promises_needs_no_test() {
        let text = "## Parties\n| party |\n|---|\n| x |\n\n### B\n\nx\n\ny\n\n## A\n\nx\n\ny\n";
        assert_eq!(faults(text), [16]);
    }

    #[test]
    fn test_that_does_not_exist_is_a_finding() {
        assert_eq!(faults("# A\n\n`a\nb` `tests/tests/x.rs::d`\n"), [3]);
        assert_eq!(faults("`tests/tests/x.rs::helper`\n"), [1]);
        assert_eq!(faults("`tests/tests/y.rs::a`\n"), [1]);
    }
}

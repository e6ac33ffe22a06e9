//! The core states what it relies on: assertions per thousand lines of product code.

use std::path::Path;

use super::Finding;
use crate::lengths::asserts_per_kloc;
use crate::tree::Tree;

/// Crates whose invariants the others build on.
const ASSERTING: [&str; 2] = ["ring", "switch"];
const PER_KLOC_MIN: usize = 10;

/// A finding for each of these crates that asserts too little.
pub fn check(tree: &Tree) -> Vec<Finding> {
    ASSERTING.iter().filter_map(|name| check_crate(tree, name)).collect()
}

fn check_crate(tree: &Tree, name: &str) -> Option<Finding> {
    let root = tree.file(&Path::new("crates").join(name).join("src/lib.rs"))?;
    let found = asserts_per_kloc(tree, name);
    let advice = format!("{found} assertions per 1000 lines; {PER_KLOC_MIN} is the least");
    (found < PER_KLOC_MIN).then(|| Finding::new(root, 1, "asserts", advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

    fn findings(asserts: usize) -> usize {
        let text = format!(
            "//! x\n{}{}",
            "assert!(true);\n".repeat(asserts),
            "//\n".repeat(999 - asserts)
        );
        let files = vec![Source::new("crates/ring/src/lib.rs".into(), text)];
        check(&Tree { root: "".into(), files }).len()
    }

    #[test]
    fn ten_assertions_in_a_thousand_lines_are_enough() {
        assert_eq!(findings(10), 0);
        assert_eq!(findings(9), 1);
    }
}

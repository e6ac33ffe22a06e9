//! The README is read by a person with a minute to spare.

use std::path::Path;

use super::Finding;
use crate::tree::Tree;

const LINES_MAX: usize = 150;

/// The README's length in lines.
pub fn check(tree: &Tree) -> Option<Finding> {
    let readme = tree.file(Path::new("README.md"))?;
    let lines = readme.text.lines().count();
    let advice = format!("{lines} lines; {LINES_MAX} are enough, the rest belongs into docs/");
    (lines > LINES_MAX).then(|| Finding::new(readme, LINES_MAX + 1, "readme", advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Source;

    fn check_lines(count: usize) -> bool {
        let files = vec![Source::new("README.md".into(), "a\n".repeat(count))];
        check(&Tree { root: "".into(), files }).is_some()
    }

    #[test]
    fn a_hundred_and_fifty_lines_are_enough() {
        assert!(!check_lines(LINES_MAX));
        assert!(check_lines(LINES_MAX + 1));
    }
}

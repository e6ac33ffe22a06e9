//! A relative link in a document leads to a file that exists.

use std::path::Path;

use super::Finding;
use crate::tree::{Kind, Source, Tree};

/// Every relative link of every Markdown file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let documents = tree.files.iter().filter(|source| source.kind == Kind::Markdown);
    documents.flat_map(|source| check_document(&tree.root, source)).collect()
}

fn check_document(root: &Path, source: &Source) -> Vec<Finding> {
    let folder = root.join(source.path.parent().unwrap_or(Path::new("")));
    let mut findings = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        for target in targets(line).filter(|target| !folder.join(target).exists()) {
            let advice = format!("`{target}` does not exist; mend the link");
            findings.push(Finding::new(source, index + 1, "link", advice));
        }
    }
    findings
}

/// The files that the links of one line name, without their `#section`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let after = line.split("](").skip(1);
    let inside = after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let files = inside.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
    files.map(|target| target.split('#').next().unwrap_or("")).filter(|target| !target.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_told_from_the_others() {
        let line = "[a](b.md#c), [d](#e), [f](https://g.h/i), [j](../k)";
        assert_eq!(targets(line).collect::<Vec<_>>(), ["b.md", "../k"]);
    }

    #[test]
    fn a_dead_link_is_a_finding() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = Source::new("a.md".into(), "[x](Cargo.toml)\n[y](nowhere.md)\n".into());
        let found = check_document(root, &source);
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }
}

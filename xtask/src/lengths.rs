//! How long functions and files are, how much is comment, how much is asserted: the house numbers
//! of STYLE.md measured on the product, without its tests.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::rules::length::{Tests, file_lines, functions};
use crate::tree::{Kind, Source, Tree};

/// What is counted for one crate.
#[derive(Default)]
struct Count {
    functions: Vec<usize>,
    files: Vec<usize>,
    lines: usize,
    comments: usize,
    asserts: usize,
}

/// The table, one row per crate and one for all.
pub fn table(tree: &Tree) -> String {
    let mut crates: BTreeMap<String, Count> = BTreeMap::new();
    let product = tree.files.iter().filter(|file| file.kind == Kind::Rust && !file.is_test_file());
    for source in product {
        for name in [crate_of(source), "zall".into()] {
            crates.entry(name).or_default().add(source);
        }
    }
    let mut out = String::from(
        "crate     files median  p90  max   functions median  p90  max   comments  asserts/kloc\n",
    );
    for (name, count) in &mut crates {
        count.row(if name == "zall" { "all" } else { name }, &mut out);
    }
    out
}

/// Assertions in a thousand lines of one crate's product code.
pub fn asserts_per_kloc(tree: &Tree, name: &str) -> usize {
    let mut count = Count::default();
    let product = tree.files.iter().filter(|file| file.kind == Kind::Rust && !file.is_test_file());
    product.filter(|file| crate_of(file) == name).for_each(|file| count.add(file));
    count.asserts * 1000 / count.lines.max(1)
}

/// Lines of each crate's product code, the largest first.
pub fn crate_lines(tree: &Tree) -> Vec<(String, usize)> {
    let mut crates: BTreeMap<String, usize> = BTreeMap::new();
    let product = tree.files.iter().filter(|file| file.kind == Kind::Rust && !file.is_test_file());
    for source in product.filter(|source| source.path.starts_with("crates")) {
        *crates.entry(crate_of(source)).or_default() += file_lines(source);
    }
    let mut crates: Vec<_> = crates.into_iter().collect();
    crates.sort_by_key(|(_, lines)| std::cmp::Reverse(*lines));
    crates
}

/// The crate that a file belongs to: its folder under `crates`, else its first folder.
fn crate_of(source: &Source) -> String {
    let mut parts = source.path.components().map(|part| part.as_os_str().to_string_lossy());
    let first = parts.next().unwrap_or_default();
    if first == "crates" { parts.next().unwrap_or_default().into() } else { first.into() }
}

impl Count {
    fn add(&mut self, source: &Source) {
        self.files.push(file_lines(source));
        self.functions.extend(functions(source, Tests::Excluded).iter().map(|f| f.lines));
        let tests = source.test_modules();
        for (index, line) in source.text.lines().map(str::trim_start).enumerate() {
            if tests.iter().any(|range| range.contains(&(index + 1))) {
                continue;
            }
            self.lines += 1;
            self.comments += usize::from(line.starts_with("//"));
            self.asserts += usize::from(is_assert(line));
        }
    }

    fn row(&mut self, name: &str, out: &mut String) {
        let (files, functions) = (spread(&mut self.files), spread(&mut self.functions));
        let lines = self.lines.max(1);
        let _ = writeln!(
            out,
            "{name:<9} {:>5} {:>6} {:>4} {:>4}   {:>9} {:>6} {:>4} {:>4}   {:>6} %  {:>12}",
            self.files.len(),
            files[0],
            files[1],
            files[2],
            self.functions.len(),
            functions[0],
            functions[1],
            functions[2],
            self.comments * 100 / lines,
            self.asserts * 1000 / lines,
        );
    }
}

fn is_assert(line: &str) -> bool {
    let words =
        ["assert!(", "assert_eq!(", "assert_ne!(", "debug_assert", "const _: () = assert!("];
    words.iter().any(|word| line.starts_with(word))
}

/// Median, 90th percentile, maximum.
fn spread(values: &mut [usize]) -> [usize; 3] {
    values.sort_unstable();
    let at = |percent: usize| values.get(values.len().saturating_sub(1) * percent / 100);
    [50, 90, 100].map(|percent| at(percent).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_median_p90_max() {
        assert_eq!(spread(&mut (0..=100).collect::<Vec<_>>()), [50, 90, 100]);
        assert_eq!(spread(&mut []), [0, 0, 0]);
    }

    #[test]
    fn tests_are_not_counted() {
        let text =
            "//! x\nfn a() {\n    assert!(true);\n}\n#[cfg(test)]\nmod t {\n    fn b() {}\n}\n";
        let mut count = Count::default();
        count.add(&Source::new("crates/a/src/lib.rs".into(), text.into()));
        assert_eq!((count.functions.as_slice(), count.files.as_slice()), (&[3][..], &[4][..]));
        assert_eq!((count.lines, count.comments, count.asserts), (4, 1, 1));
    }
}

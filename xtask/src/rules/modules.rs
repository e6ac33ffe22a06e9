//! Every module says what it is, belongs to a crate, and keeps the promises of that crate.

use std::path::{Path, PathBuf};

use super::Finding;
use super::attributes::names;
use crate::tree::{Source, Tree};

/// Crates whose root must say `#![forbid(unsafe_code)]`.
const WITHOUT_UNSAFE: [&str; 3] =
    ["crates/packet/src/lib.rs", "crates/switch/src/lib.rs", "crates/device/src/lib.rs"];

/// Module documentation, and `forbid(unsafe_code)` where it is promised.
pub fn check(source: &Source, file: &syn::File) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.attrs.iter().any(|attr| attr.path().is_ident("doc")) {
        let advice = "open the file with `//!`: what it holds, and how it works if it keeps state";
        findings.push(Finding::new(source, 1, "module-doc", advice));
    }
    let promised = WITHOUT_UNSAFE.iter().any(|root| source.path == Path::new(root));
    if promised && !file.attrs.iter().any(|attr| names(attr, "forbid", "unsafe_code")) {
        let advice = "say `#![forbid(unsafe_code)]`: this crate is free of it by promise";
        findings.push(Finding::new(source, 1, "forbid-unsafe", advice));
    }
    findings
}

/// Finds Rust files that no `mod` line names; the compiler never sees them.
pub fn check_tree(tree: &Tree) -> Vec<Finding> {
    let orphans = tree.files.iter().filter(|source| is_orphan(tree, &source.path));
    let advice = "no `mod` line names this file; name it or delete it";
    orphans.map(|source| Finding::new(source, 1, "orphan", advice)).collect()
}

fn is_orphan(tree: &Tree, path: &Path) -> bool {
    let Some((dir, name)) = module_of(path) else { return false };
    let parents =
        [dir.join("lib.rs"), dir.join("main.rs"), dir.join("mod.rs"), dir.with_extension("rs")];
    let declared = parents.iter().filter_map(|parent| tree.file(parent)).any(|parent| {
        let items = parent.rust().map_or(&[][..], |file| &file.items);
        items.iter().any(|item| matches!(item, syn::Item::Mod(module) if module.ident == name))
    });
    !declared
}

/// The folder whose module must declare this file, and under which name. None for crate roots and
/// for files that cargo finds by itself (`bin/`, `tests/`, `examples/`, `benches/`, `build.rs`).
fn module_of(path: &Path) -> Option<(PathBuf, String)> {
    let inside_src = path.components().any(|part| part.as_os_str() == "src");
    let stem = path.file_stem()?.to_str()?;
    let dir = path.parent()?;
    let root = dir.file_name()? == "src" && matches!(stem, "lib" | "main");
    if path.extension()? != "rs" || !inside_src || root || dir.ends_with("src/bin") {
        return None;
    }
    if stem == "mod" {
        return Some((dir.parent()?.to_path_buf(), dir.file_name()?.to_str()?.to_string()));
    }
    Some((dir.to_path_buf(), stem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::{found, found_in};
    use super::*;

    fn orphans(files: &[(&str, &str)]) -> Vec<PathBuf> {
        let file = |&(path, text): &(&str, &str)| Source::new(path.into(), text.into());
        let tree = Tree { root: PathBuf::new(), files: files.iter().map(file).collect() };
        check_tree(&tree).into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn a_module_needs_documentation() {
        assert_eq!(found("fn a() {}\n"), [(1, "module-doc")]);
        assert_eq!(found("//! A thing.\nfn a() {}\n"), []);
    }

    #[test]
    fn the_switch_forbids_unsafe() {
        let root = WITHOUT_UNSAFE[1];
        assert_eq!(found_in(root, "//! x\n"), [(1, "forbid-unsafe")]);
        assert_eq!(found_in(root, "//! x\n#![forbid(unsafe_code)]\n"), []);
    }

    #[test]
    fn a_file_without_a_mod_line_is_an_orphan() {
        let lib = ("crates/a/src/lib.rs", "//! x\nmod b;\nmod c;\n");
        let (b, c) =
            (("crates/a/src/b.rs", "//! x\nmod d;\n"), ("crates/a/src/c/mod.rs", "//! x\n"));
        let d = ("crates/a/src/b/d.rs", "//! x\n");
        assert!(orphans(&[lib, b, c, d, ("crates/a/src/bin/tool.rs", "//! x\n")]).is_empty());
        let e = ("crates/a/src/e.rs", "//! x\n");
        assert_eq!(orphans(&[lib, b, c, d, e]), [PathBuf::from(e.0)]);
    }
}

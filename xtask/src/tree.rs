//! The files of the repository, read and parsed once for all rules.

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::spanned::Spanned;

/// Folders that hold what tools produce, not what people write.
const SKIPPED: [&str; 7] =
    ["target", "corpus", "found", "artifacts", ".git", "results", "node_modules"];

/// All files of the repository that people write.
pub struct Tree {
    /// The folder that holds the workspace's `Cargo.toml`.
    pub root: PathBuf,
    /// Sorted by path.
    pub files: Vec<Source>,
}

impl Tree {
    /// Reads every text file under `root`; files that are not UTF-8 are not ours to judge.
    pub fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        walk(root, &mut paths)?;
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let Ok(text) = String::from_utf8(bytes) else { continue };
            files.push(Source::new(path.strip_prefix(root)?.to_path_buf(), text));
        }
        Ok(Self { root: root.to_path_buf(), files })
    }

    /// The file at `path`, relative to the root.
    pub fn file(&self, path: &Path) -> Option<&Source> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn walk(dir: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        if SKIPPED.iter().any(|&name| entry.file_name() == name) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), out)?;
        } else if kind.is_file() {
            out.push(entry.path());
        }
    }
    Ok(())
}

/// What a file is written in, as far as the rules care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Rust source.
    Rust,
    /// C source or header.
    C,
    /// Prose.
    Markdown,
    /// Build and configuration files, scripts.
    Script,
    /// Anything else.
    Other,
}

/// One file.
pub struct Source {
    /// Relative to the root.
    pub path: PathBuf,
    /// What it is written in.
    pub kind: Kind,
    /// The whole text.
    pub text: String,
    /// The syntax tree of a Rust file, or where and why it does not parse.
    pub syntax: Option<Result<syn::File, syn::Error>>,
}

impl Source {
    /// A file with this text; parsed when it is Rust.
    pub fn new(path: PathBuf, text: String) -> Self {
        let kind = kind(&path);
        let syntax = (kind == Kind::Rust).then(|| syn::parse_file(&text));
        Self { path, kind, text, syntax }
    }

    /// The syntax tree, when there is one.
    pub fn rust(&self) -> Option<&syn::File> {
        self.syntax.as_ref()?.as_ref().ok()
    }

    /// The lines of the file; `lines()[n - 1]` is line `n`.
    pub fn lines(&self) -> Vec<&str> {
        self.text.lines().collect()
    }

    /// The line ranges of the modules that exist in tests only.
    pub fn test_modules(&self) -> Vec<RangeInclusive<usize>> {
        let items = self.rust().map_or(&[][..], |file| &file.items);
        items
            .iter()
            .filter_map(|item| match item {
                syn::Item::Mod(module) if is_test_only(&module.attrs) => Some(lines_of(item)),
                _ => None,
            })
            .collect()
    }

    /// Whether the file is C or Rust that only tests use.
    pub fn is_test_code(&self) -> bool {
        matches!(self.kind, Kind::Rust | Kind::C) && self.is_test_file()
    }

    /// Whether the whole file is test code, by where it lies.
    pub fn is_test_file(&self) -> bool {
        let in_tests = self.path.components().any(|part| part.as_os_str() == "tests");
        in_tests || self.path.file_stem() == Some(OsStr::new("tests"))
    }
}

fn kind(path: &Path) -> Kind {
    let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    match (extension, name) {
        ("rs", _) => Kind::Rust,
        ("c" | "h", _) => Kind::C,
        ("md", _) => Kind::Markdown,
        ("toml" | "sh" | "py" | "yml" | "service" | "socket" | "in", _)
        | (_, "Makefile" | "run") => Kind::Script,
        _ => Kind::Other,
    }
}

/// First to last line of a piece of syntax, attributes and documentation included.
pub fn lines_of(node: &impl Spanned) -> RangeInclusive<usize> {
    let span: Span = node.span();
    span.start().line..=span.end().line
}

/// Whether the attributes confine an item to test builds (`#[cfg(test)]`, `#[cfg(all(test, …))]`).
pub fn is_test_only(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let syn::Meta::List(list) = &attr.meta else { return false };
        let condition = list.tokens.to_string();
        attr.path().is_ident("cfg")
            && !condition.contains("not")
            && condition.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_are_found_by_their_condition() {
        let text = "//! x\nfn a() {}\n#[cfg(test)]\nmod tests {\n}\n#[cfg(not(test))]\nmod b {}\n";
        let source = Source::new("crates/x/src/a.rs".into(), text.into());
        assert_eq!(source.test_modules(), [3..=5]);
        assert!(!source.is_test_file());
        assert!(Source::new("tests/a.rs".into(), String::new()).is_test_file());
    }

    #[test]
    fn kinds_follow_names() {
        assert_eq!(kind(Path::new("a/Makefile")), Kind::Script);
        assert_eq!(kind(Path::new("a/b.h")), Kind::C);
        assert_eq!(kind(Path::new("LICENSE-MIT")), Kind::Other);
    }
}

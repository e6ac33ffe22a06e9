//! A lint that is switched off needs a reason: `reason = "…"`, or a comment above or beside it.
//! `unsafe_code` needs a reason that starts with `UNSAFETY:`, so that they can all be listed.

use syn::spanned::Spanned;
use syn::visit::Visit;

use super::Finding;
use crate::tree::Source;

/// Every `#[allow]` and `#[expect]` of one file.
pub fn check(source: &Source, file: &syn::File) -> Vec<Finding> {
    let mut walk = Walk { source, lines: source.lines(), findings: Vec::new() };
    walk.visit_file(file);
    walk.findings
}

/// Whether the attribute is `#[level(… lint …)]`.
pub fn names(attr: &syn::Attribute, level: &str, lint: &str) -> bool {
    let syn::Meta::List(list) = &attr.meta else { return false };
    let named = |token| matches!(token, proc_macro2::TokenTree::Ident(word) if word == lint);
    attr.path().is_ident(level) && list.tokens.clone().into_iter().any(named)
}

struct Walk<'a> {
    source: &'a Source,
    lines: Vec<&'a str>,
    findings: Vec<Finding>,
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_attribute(&mut self, attr: &'ast syn::Attribute) {
        let levels = ["allow", "expect"];
        if !levels.iter().any(|level| attr.path().is_ident(level)) {
            return;
        }
        let line = attr.span().start().line;
        let comment = comment_at(&self.lines, line);
        if levels.iter().any(|level| names(attr, level, "unsafe_code")) {
            if !comment.contains("UNSAFETY:") {
                let advice = "say above it `// UNSAFETY: why this module needs unsafe code`";
                self.findings.push(Finding::new(self.source, line, "unsafety", advice));
            }
        } else if comment.is_empty() && !attr_has_reason(attr) {
            let advice = "say why the lint is wrong here: `reason = \"…\"`";
            self.findings.push(Finding::new(self.source, line, "allow-reason", advice));
        }
    }
}

fn attr_has_reason(attr: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attr.meta else { return false };
    list.tokens.to_string().contains("reason =")
}

/// The plain comment beside line `line`, or directly above it (attributes may lie between).
pub fn comment_at(lines: &[&str], line: usize) -> String {
    let mut found = String::new();
    if let Some((_, beside)) = lines[line - 1].split_once("// ") {
        found.push_str(beside);
    }
    for above in lines[..line - 1].iter().rev().map(|text| text.trim_start()) {
        if above.starts_with("//") && !above.starts_with("///") && !above.starts_with("//!") {
            found.insert_str(0, above);
        } else if !above.starts_with("#[") {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::found;

    #[test]
    fn a_lint_is_switched_off_with_a_reason_only() {
        assert_eq!(found("//! x\n#[allow(dead_code)]\nfn f() {}\n"), [(2, "allow-reason")]);
        assert_eq!(found("//! x\n#[expect(dead_code, reason = \"r\")]\nfn f() {}\n"), []);
        assert_eq!(found("//! x\n// The lint is wrong.\n#[allow(dead_code)]\nfn f() {}\n"), []);
        assert_eq!(
            found("//! x\n/// Doc.\n#[allow(dead_code)]\nfn f() {}\n"),
            [(3, "allow-reason")]
        );
    }

    #[test]
    fn unsafe_code_is_allowed_with_its_own_word_only() {
        let bad = "//! x\n// Because.\n#![allow(unsafe_code)]\n";
        assert_eq!(found(bad), [(3, "unsafety")]);
        assert_eq!(found("//! x\n// UNSAFETY: maps memory.\n#![allow(unsafe_code)]\n"), []);
    }
}

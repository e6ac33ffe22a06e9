//! One `// SAFETY:` comment for each unsafe block and each unsafe impl.
//!
//! Clippy asks for a comment; this rule also refuses one comment that serves two blocks, and looks
//! into macro calls, which clippy does not.

use std::collections::HashSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use crate::tree::Source;

/// Every unsafe block and impl of one file.
pub fn check(source: &Source, file: &syn::File) -> Vec<Finding> {
    let mut walk = Walk {
        source,
        lines: source.lines(),
        statement: 0,
        used: HashSet::new(),
        findings: Vec::new(),
    };
    walk.visit_file(file);
    walk.findings
}

struct Walk<'a> {
    source: &'a Source,
    lines: Vec<&'a str>,
    /// First line of the innermost statement, arm or field around the node being visited.
    statement: usize,
    /// Lines of `SAFETY:` comments that a block has claimed.
    used: HashSet<usize>,
    findings: Vec<Finding>,
}

impl Walk<'_> {
    /// The comment of the unsafe thing at `line` lies above it or above its statement.
    fn claim(&mut self, line: usize) {
        let places = [Some(line), (self.statement != 0).then_some(self.statement)];
        let comment = places.into_iter().flatten().find_map(|place| self.safety_above(place));
        let advice = match comment {
            Some(at) if self.used.insert(at) => return,
            Some(_) => "this `// SAFETY:` serves another block already; write one for each",
            None => "say above it `// SAFETY: why this is sound`",
        };
        self.findings.push(Finding::new(self.source, line, "safety", advice));
    }

    fn safety_above(&self, line: usize) -> Option<usize> {
        if self.lines[line - 1].contains("// SAFETY:") {
            return Some(line);
        }
        for (index, text) in self.lines[..line - 1].iter().enumerate().rev() {
            let text = text.trim_start();
            if text.starts_with("// SAFETY:") {
                return Some(index + 1);
            }
            if !text.starts_with("//") && !text.starts_with("#[") {
                return None;
            }
        }
        None
    }

    /// Visits `node` with its first line as the innermost statement.
    fn within<T: Spanned>(&mut self, node: &T, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.statement, node.span().start().line);
        visit(self);
        self.statement = outer;
    }

    fn claim_tokens(&mut self, tokens: TokenStream) {
        let mut after_unsafe = None;
        for token in tokens {
            match &token {
                TokenTree::Ident(word) if word == "unsafe" => {
                    after_unsafe = Some(word.span().start().line);
                    continue;
                }
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Brace {
                        after_unsafe.into_iter().for_each(|line| self.claim(line));
                    }
                    self.claim_tokens(group.stream());
                }
                _ => {}
            }
            after_unsafe = None;
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.claim(block.unsafe_token.span().start().line);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = &item.unsafety {
            self.claim(token.span().start().line);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.claim_tokens(call.tokens.clone());
    }

    fn visit_stmt(&mut self, node: &'ast syn::Stmt) {
        self.within(node, |walk| visit::visit_stmt(walk, node));
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        self.within(node, |walk| visit::visit_arm(walk, node));
    }

    fn visit_field_value(&mut self, node: &'ast syn::FieldValue) {
        self.within(node, |walk| visit::visit_field_value(walk, node));
    }

    fn visit_item(&mut self, node: &'ast syn::Item) {
        self.within(node, |walk| visit::visit_item(walk, node));
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;

    #[test]
    fn a_block_needs_its_comment() {
        assert_eq!(found("//! x\nfn f() {\n    unsafe { g() }\n}\n"), [(3, "safety")]);
        assert_eq!(found("//! x\nfn f() {\n    // SAFETY: fine.\n    unsafe { g() }\n}\n"), []);
    }

    #[test]
    fn the_comment_may_stand_above_the_statement() {
        let text = "//! x\nfn f() {\n    // SAFETY: fine,\n    // as said.\n    let a =\n        \
                    unsafe { g() };\n}\n";
        assert_eq!(found(text), []);
    }

    #[test]
    fn two_blocks_need_two_comments() {
        let text =
            "//! x\nfn f() {\n    // SAFETY: fine.\n    h(unsafe { g() }, unsafe { g() });\n}\n";
        assert_eq!(found(text), [(4, "safety")]);
    }

    #[test]
    fn an_impl_needs_its_comment() {
        assert_eq!(found("//! x\nunsafe impl Send for A {}\n"), [(2, "safety")]);
        assert_eq!(found("//! x\n// SAFETY: owned.\nunsafe impl Send for A {}\n"), []);
    }

    #[test]
    fn macro_calls_are_looked_into() {
        assert_eq!(found("//! x\nfn f() {\n    assert!(unsafe { g() });\n}\n"), [(3, "safety")]);
    }
}

//! How long a file and a function may be.
//!
//! A file is measured without its `#[cfg(test)]` modules; a function from its `fn` line to its
//! closing brace, without attributes and documentation.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::Finding;
use crate::tree::{Kind, Source, is_test_only};

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 70;

/// File and function length of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if matches!(source.kind, Kind::Rust | Kind::C) {
        let lines = file_lines(source);
        if lines > FILE_LINES_MAX {
            let advice = format!("{lines} lines; cut it in two where it has two reasons to change");
            findings.push(Finding::new(source, 1, "file-length", advice));
        }
    }
    for function in functions(source, Tests::Included) {
        if function.lines > FUNCTION_LINES_MAX {
            let Function { name, lines, .. } = &function;
            let advice = format!("`{name}` has {lines} lines; {FUNCTION_LINES_MAX} is the limit");
            findings.push(Finding::new(source, function.line, "function-length", advice));
        }
    }
    findings
}

/// Lines of a file without its test modules.
pub fn file_lines(source: &Source) -> usize {
    let tests: usize = source.test_modules().into_iter().map(Iterator::count).sum();
    source.text.lines().count() - tests
}

/// Whether functions of test modules are wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tests {
    /// All functions.
    Included,
    /// Only those of the product.
    Excluded,
}

/// One function and its length.
pub struct Function {
    /// The function's name, without its type.
    pub name: String,
    /// Where its `fn` line is.
    pub line: usize,
    /// How long it is.
    pub lines: usize,
}

/// Every function with a body, methods and nested functions included.
pub fn functions(source: &Source, tests: Tests) -> Vec<Function> {
    let mut walk = Walk { tests, found: Vec::new() };
    if let Some(file) = source.rust() {
        walk.visit_file(file);
    }
    walk.found
}

struct Walk {
    tests: Tests,
    found: Vec<Function>,
}

impl Walk {
    fn add(&mut self, sig: &syn::Signature, body: &syn::Block) {
        let (first, last) = (sig.span().start().line, body.span().end().line);
        let name = sig.ident.to_string();
        self.found.push(Function { name, line: first, lines: last - first + 1 });
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if self.tests == Tests::Included || !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.add(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{found, found_in};

    fn function(lines: usize) -> String {
        format!("//! x\n/// Doc.\nfn f() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn seventy_lines_are_enough_for_a_function() {
        assert_eq!(found(&function(70)), []);
        assert_eq!(found(&function(71)), [(3, "function-length")]);
    }

    #[test]
    fn methods_count_too() {
        let body = "        a();\n".repeat(69);
        let text = format!("//! x\nimpl S {{\n    fn f() {{\n{body}    }}\n}}\n");
        assert_eq!(found(&text), [(3, "function-length")]);
    }

    #[test]
    fn test_modules_do_not_make_a_file_long() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "//\n".repeat(900));
        assert_eq!(found(&format!("//! x\n{tests}")), []);
        assert_eq!(found(&format!("//! x\n{}", "//\n".repeat(700))), [(1, "file-length")]);
        assert_eq!(found_in("a.c", &"int a;\n".repeat(701)), [(1, "file-length")]);
    }
}

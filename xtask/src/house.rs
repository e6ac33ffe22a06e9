//! The figures of the layout in one table, for a look before and after a change of it.

use std::path::Path;

use syn::visit::{self, Visit};

use crate::lengths::{asserts_per_kloc, crate_lines};
use crate::rules::{cycles, prose};
use crate::tree::{Source, Tree, is_test_only};

/// The table, as Markdown.
pub fn table(tree: &Tree) -> String {
    let mut rows = vec![("", "today".to_string(), "limit".to_string())];
    let mut row = |what, today, limit: &str| rows.push((what, today, limit.to_string()));
    let crates = crate_lines(tree);
    let largest: Vec<_> = crates.iter().take(3).map(|(name, n)| format!("{name} {n}")).collect();
    row("largest crates, product lines", largest.join(", "), "");
    let program = crates.iter().find(|(name, _)| name == "uvala").map_or(0, |(_, lines)| *lines);
    row("the crate `uvala`, product lines", program.to_string(), "10000");
    let (modules, in_cycles) = cycles::count(tree);
    row("modules in an import cycle", format!("{in_cycles} of {modules}"), "0");
    let sizes = Sizes::of(tree);
    row("largest trait, methods", sizes.largest_trait.show(), "12");
    row("largest struct of the daemon, fields", sizes.largest_struct.show(), "");
    row("the daemon's `Control`, fields", sizes.control.show(), "8");
    row("largest enum of daemon and protocol, variants", sizes.largest_enum.show(), "");
    for name in ["ring", "switch"] {
        let what =
            if name == "ring" { "asserts per kloc, ring" } else { "asserts per kloc, switch" };
        row(what, asserts_per_kloc(tree, name).to_string(), "10 or more");
    }
    let rust = || tree.files.iter().filter(|source| source.rust().is_some());
    let headless: usize = rust().map(|source| prose::headless(source).count()).sum();
    let docs: usize = rust().map(prose::doc_comments).sum();
    row("doc comments without a subject", format!("{headless} of {docs}"), "0");
    let agentless: usize = tree.files.iter().map(|source| prose::agentless(source).count()).sum();
    row("lines that hide the agent", agentless.to_string(), "20");
    let readme = tree.file(Path::new("README.md")).map_or(0, |file| file.text.lines().count());
    row("README, lines", readme.to_string(), "150");
    let head = rows.remove(0);
    let line =
        |(what, today, limit): (&str, String, String)| format!("| {what} | {today} | {limit} |\n");
    let body: String = rows.into_iter().map(line).collect();
    format!("{}|---|---|---|\n{body}", line(head))
}

/// A type and how many parts it has.
#[derive(Default)]
struct Largest {
    name: String,
    parts: usize,
}

impl Largest {
    fn add(&mut self, name: String, parts: usize) {
        if parts > self.parts {
            *self = Self { name, parts };
        }
    }

    fn show(&self) -> String {
        format!("{} `{}`", self.parts, self.name)
    }
}

/// The largest types of the product.
#[derive(Default)]
struct Sizes {
    in_daemon: bool,
    in_protocol: bool,
    largest_trait: Largest,
    largest_struct: Largest,
    control: Largest,
    largest_enum: Largest,
}

impl Sizes {
    fn of(tree: &Tree) -> Self {
        let mut sizes = Self::default();
        let product =
            |source: &&Source| source.path.starts_with("crates") && !source.is_test_file();
        for source in tree.files.iter().filter(product) {
            sizes.in_daemon = source.path.starts_with("crates/daemon");
            sizes.in_protocol = source.path.starts_with("crates/protocol");
            source.rust().into_iter().for_each(|file| sizes.visit_file(file));
        }
        sizes
    }
}

impl<'ast> Visit<'ast> for Sizes {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let methods = item.items.iter().filter(|item| matches!(item, syn::TraitItem::Fn(_)));
        self.largest_trait.add(item.ident.to_string(), methods.count());
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if self.in_daemon {
            self.largest_struct.add(item.ident.to_string(), item.fields.len());
            if item.ident == "Control" {
                self.control.add(item.ident.to_string(), item.fields.len());
            }
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if self.in_daemon || self.in_protocol {
            self.largest_enum.add(item.ident.to_string(), item.variants.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_types_are_found_without_tests() {
        let text = "//! x\ntrait A { fn a(); fn b(); type T; }\nstruct Control { a: u8 }\n\
                    #[cfg(test)]\nmod tests { trait B { fn a(); fn b(); fn c(); } }\n";
        let files = vec![Source::new("crates/daemon/src/lib.rs".into(), text.into())];
        let sizes = Sizes::of(&Tree { root: "".into(), files });
        assert_eq!(sizes.largest_trait.show(), "2 `A`");
        assert_eq!(sizes.control.show(), "1 `Control`");
    }
}

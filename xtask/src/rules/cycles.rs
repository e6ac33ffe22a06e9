//! The modules of a crate import each other in one direction.
//!
//! An import is a `use`, or a path that starts with `crate`, `super` or `self`; a name that a
//! module re-exports counts as an import of the module that defines it. A module and the modules
//! inside it are one thing seen from two sides, so imports between them do not count. What
//! remains must have no cycle. Test code is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::Finding;
use crate::tree::{Source, Tree, is_test_only};

/// The names from the crate root to a module or to an item: `["bridge", "Bridge"]`.
type Names = Vec<String>;

/// Every module that stands in a cycle, each with the modules that it shares the cycle with.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for modules in crates(tree).into_values() {
        for knot in modules.knots() {
            for &module in &knot {
                let others: Vec<_> = knot.iter().filter(|&&other| other != module).collect();
                let others: Vec<_> = others.iter().map(|other| other.join("::")).collect();
                let advice = format!("imports in a circle with {}", others.join(", "));
                let source = modules.0[module].source;
                findings.push(Finding::new(source, 1, "module-cycle", advice));
            }
        }
    }
    findings
}

/// How many modules there are, and how many of them stand in a cycle.
pub fn count(tree: &Tree) -> (usize, usize) {
    let crates = crates(tree);
    let in_cycles = crates.values().flat_map(Modules::knots).map(|knot| knot.len()).sum();
    (crates.values().map(|modules| modules.0.len()).sum(), in_cycles)
}

/// The modules of one crate by their names.
struct Modules<'a>(BTreeMap<Names, Module<'a>>);

/// What one module says of others.
struct Module<'a> {
    source: &'a Source,
    /// Paths from the crate root that it mentions.
    imports: BTreeSet<Names>,
    /// What it re-exports: the name here, and where that comes from.
    exports: BTreeMap<String, Names>,
}

/// The crates of the product, by folder.
fn crates(tree: &Tree) -> BTreeMap<&Path, Modules<'_>> {
    let tests = test_modules(tree);
    let mut crates: BTreeMap<&Path, Modules<'_>> = BTreeMap::new();
    for source in tree.files.iter().filter(|source| !source.is_test_file()) {
        let Some((folder, names)) = place(&source.path) else { continue };
        let is_program = source.path.ends_with("src/main.rs");
        if is_program && tree.file(&folder.join("lib.rs")).is_some() {
            continue;
        }
        let Some(file) = source.rust() else { continue };
        if (1..=names.len()).any(|len| tests.contains(&(folder, names[..len].to_vec()))) {
            continue;
        }
        let mut walk = Walk { here: names.clone(), imports: BTreeSet::new(), exports: vec![] };
        walk.visit_file(file);
        let exports = walk.exports.into_iter().collect();
        let module = Module { source, imports: walk.imports, exports };
        crates.entry(folder).or_insert_with(|| Modules(BTreeMap::new())).0.insert(names, module);
    }
    crates
}

/// The folder `crates/x/src` of a file, and the names of its module in that crate.
fn place(path: &Path) -> Option<(&Path, Names)> {
    let folder = path.ancestors().find(|folder| folder.ends_with("src"))?;
    if !path.starts_with("crates") || path.extension()? != "rs" {
        return None;
    }
    let inside = path.strip_prefix(folder).ok()?.with_extension("");
    let names = inside.components().map(|part| match part {
        Component::Normal(name) => name.to_string_lossy().into_owned(),
        _ => String::new(),
    });
    let mut names: Names = names.collect();
    if names.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        names.pop();
    }
    Some((folder, names))
}

/// Modules that another file declares for test builds only.
fn test_modules(tree: &Tree) -> BTreeSet<(&Path, Names)> {
    let mut found = BTreeSet::new();
    for source in &tree.files {
        let (Some((folder, names)), Some(file)) = (place(&source.path), source.rust()) else {
            continue;
        };
        for item in &file.items {
            if let syn::Item::Mod(module) = item
                && is_test_only(&module.attrs)
            {
                let mut names = names.clone();
                names.push(module.ident.to_string());
                found.insert((folder, names));
            }
        }
    }
    found
}

impl Modules<'_> {
    /// The module that defines what `path` names; `None` for the crate root.
    fn resolve(&self, path: &[String]) -> Option<&Names> {
        let mut path = path.to_vec();
        // A re-export may lead to another one; a longer chain than this is a loop.
        for _ in 0..8 {
            let depth = (0..=path.len()).rev().find(|&len| self.0.contains_key(&path[..len]))?;
            let (names, module) = self.0.get_key_value(&path[..depth])?;
            match path.get(depth).and_then(|name| module.exports.get(name)) {
                Some(target) if *target != path[..=depth] => {
                    path = [target.as_slice(), &path[depth + 1..]].concat();
                }
                _ => return Some(names),
            }
        }
        None
    }

    /// What a module imports, itself, its parents and its children aside.
    fn imports_of<'s>(&'s self, names: &Names) -> BTreeSet<&'s Names> {
        let targets = self.0[names].imports.iter().filter_map(|path| self.resolve(path));
        targets.filter(|to| !to.starts_with(names) && !names.starts_with(to)).collect()
    }

    /// The sets of modules that reach each other, those of one module aside.
    fn knots(&self) -> Vec<BTreeSet<&Names>> {
        let reached: BTreeMap<&Names, BTreeSet<&Names>> =
            self.0.keys().map(|names| (names, self.reach(names))).collect();
        let mut knots = BTreeSet::new();
        for (&names, others) in &reached {
            if others.contains(names) {
                let knot = others.iter().filter(|other| reached[*other].contains(names));
                knots.insert(knot.copied().collect::<BTreeSet<_>>());
            }
        }
        knots.into_iter().collect()
    }

    /// Every module that can be reached from this one by imports.
    fn reach<'s>(&'s self, from: &Names) -> BTreeSet<&'s Names> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<&Names> = self.imports_of(from).into_iter().collect();
        while let Some(names) = open.pop() {
            if reached.insert(names) {
                open.extend(self.imports_of(names));
            }
        }
        reached
    }
}

/// Collects the paths of one file.
struct Walk {
    here: Names,
    imports: BTreeSet<Names>,
    exports: Vec<(String, Names)>,
}

impl Walk {
    /// The path from the crate root; `None` for other crates' items and for local names.
    fn absolute(&self, path: &[String]) -> Option<Names> {
        match path.first()?.as_str() {
            "crate" => Some(path[1..].to_vec()),
            "self" => Some([&self.here, &path[1..]].concat()),
            "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                let base = &self.here[..self.here.len().saturating_sub(ups)];
                Some([base, &path[ups..]].concat())
            }
            _ => None,
        }
    }

    fn add_use(&mut self, path: &[String], name: Option<String>, is_public: bool) {
        let relative = || [&self.here, path].concat();
        if let Some(path) = self.absolute(path) {
            self.imports.insert(path);
        }
        if let Some(name) = name.filter(|_| is_public) {
            let target = self.absolute(path).unwrap_or_else(relative);
            self.exports.push((name, target));
        }
    }

    /// Every path of a `use` item.
    fn expand(&mut self, path: &Names, tree: &syn::UseTree, is_public: bool) {
        let with = |ident: &syn::Ident| [path.as_slice(), &[ident.to_string()]].concat();
        match tree {
            syn::UseTree::Path(part) => self.expand(&with(&part.ident), &part.tree, is_public),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.expand(path, tree, is_public));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.add_use(path, path.last().cloned(), is_public);
            }
            syn::UseTree::Name(name) => {
                self.add_use(&with(&name.ident), Some(name.ident.to_string()), is_public);
            }
            syn::UseTree::Rename(name) => {
                self.add_use(&with(&name.ident), Some(name.rename.to_string()), is_public);
            }
            syn::UseTree::Glob(_) => self.add_use(path, None, is_public),
        }
    }

    /// Paths in the tokens of a macro, which `syn` does not parse.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path: Names = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || colons == 2 => {
                    path.push(ident.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(ref group) => self.scan(group.stream()),
                _ => {}
            }
            self.imports.extend(self.absolute(&path));
            path.clear();
            colons = 0;
            if let TokenTree::Ident(ident) = token {
                path.push(ident.to_string());
            }
        }
        self.imports.extend(self.absolute(&path));
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attrs = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test_only(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test_only(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        // A module inside the file: its `super` is this one.
        self.here.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.expand(&Vec::new(), &item.tree, is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.imports.extend(self.absolute(&names));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.scan(mac.tokens.clone());
        visit::visit_macro(self, mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let file = |&(path, text): &(&str, &str)| {
            Source::new(format!("crates/x/src/{path}").into(), text.into())
        };
        let tree = Tree { root: "".into(), files: files.iter().map(file).collect() };
        check(&tree).iter().map(|finding| finding.path.display().to_string()).collect()
    }

    #[test]
    fn two_modules_that_import_each_other_are_a_cycle() {
        let lib = ("lib.rs", "mod a;\nmod b;");
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        let both = ["crates/x/src/a.rs", "crates/x/src/b.rs"];
        assert!(cycles(&[lib, a, ("b.rs", "pub struct B;")]).is_empty());
        assert_eq!(cycles(&[lib, a, ("b.rs", "fn f(_: super::a::A) {}")]), both);
        assert_eq!(cycles(&[lib, a, ("b.rs", "fn f() { vec![crate::a::A] }")]), both);
        assert_eq!(cycles(&[lib, a, ("b.rs", "use super::{a, c};")]), both);
    }

    #[test]
    fn a_name_that_the_root_reexports_leads_to_the_module_that_defines_it() {
        let lib = ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;");
        let a = ("a.rs", "use crate::b::B; pub struct A;");
        assert_eq!(cycles(&[lib, a, ("b.rs", "use crate::A;")]).len(), 2);
    }

    #[test]
    fn a_module_and_its_children_are_one_thing() {
        let lib = ("lib.rs", "mod a;");
        let a = ("a.rs", "mod b; use b::B; pub struct A;");
        assert!(cycles(&[lib, a, ("a/b.rs", "use super::A; use crate::a::A as C;")]).is_empty());
    }

    #[test]
    fn test_code_may_import_as_it_likes() {
        let lib = ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod fake;");
        let a = ("a.rs", "use crate::b::B;");
        let b = ("b.rs", "#[cfg(test)]\nmod tests { use crate::a::A; }");
        assert!(cycles(&[lib, a, b, ("fake.rs", "use crate::a::A;")]).is_empty());
        let test_function = ("b.rs", "impl B {\n#[cfg(test)]\nfn f() { crate::a::g() } }");
        assert!(cycles(&[lib, a, test_function]).is_empty());
    }
}

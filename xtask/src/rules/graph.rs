//! The import graph of the workspace, and how many other crates the core may depend on.
//!
//! The graph is what cargo itself says (`cargo metadata`), not what a document claims.
//! Dev-dependencies are free: a test may look at its crate from any side. Where only some modules
//! of a crate may import another, the source files are searched.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;

use super::Finding;
use crate::tree::{Source, Tree};

/// Each crate, by the name under which the others import it, and what it may import of ours.
const ALLOWED: [(&str, &[&str]); 25] = [
    ("protocol", &["packet"]),
    ("packet", &[]),
    ("ring", &[]),
    ("program", &["packet"]),
    ("switch", &["packet", "program", "ring"]),
    ("device", &["packet", "ring"]),
    ("confine", &[]),
    ("vfio-user", &["ring"]),
    (
        "nic",
        &["client", "confine", "device", "packet", "protocol", "ring", "terminal", "vfio-user"],
    ),
    ("http", &["client", "confine", "packet", "protocol", "terminal"]),
    ("evpn", &["client", "confine", "packet", "protocol", "terminal"]),
    ("hostif", &["packet", "protocol"]),
    ("port", &["packet", "protocol", "ring", "switch", "device", "hostif", "confine"]),
    ("client", &["packet", "protocol", "ring"]),
    ("capi", &["client", "protocol", "ring"]),
    ("helper", &["hostif", "packet", "protocol"]),
    (
        "daemon",
        &["packet", "program", "hostif", "port", "switch", "ring", "protocol", "helper", "confine"],
    ),
    ("netmap", &["client", "protocol", "ring"]),
    ("terminal", &[]),
    ("functions", &["client", "packet", "protocol", "terminal"]),
    ("bench", &["client", "functions", "packet", "program", "protocol", "ring", "terminal"]),
    (
        "uvala",
        &[
            "bench",
            "client",
            "confine",
            "daemon",
            "functions",
            "hostif",
            "packet",
            "program",
            "protocol",
            "terminal",
        ],
    ),
    ("tests", &["bench", "packet", "ring", "protocol", "client"]),
    (
        "fuzz-bodies",
        &[
            "packet",
            "program",
            "ring",
            "switch",
            "device",
            "port",
            "protocol",
            "client",
            "daemon",
            "helper",
            "netmap",
            "vfio-user",
        ],
    ),
    ("xtask", &[]),
];

/// Crates of the datapath, and how many crates of others each may import directly.
const LEAN: [&str; 4] = ["packet", "ring", "switch", "device"];
const EXTERNAL_MAX: usize = 3;

/// Crates that only some modules of a crate may import: the folder of that crate, the name of the
/// imported one, and the modules.
const MODULES: [(&str, &str, &[&str]); 1] =
    [("crates/uvala/src", "daemon", &["cli/daemon.rs", "demo", "doctor/config.rs"])];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
    target: Option<String>,
}

impl Dependency {
    /// What is linked into the product: not tests, and not the model checker.
    fn is_product(&self) -> bool {
        self.kind.as_deref() != Some("dev") && self.target.as_deref() != Some("cfg(loom)")
    }
}

/// The import graph of the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let command = command.current_dir(root).args(["metadata", "--format-version=1", "--no-deps"]);
    let output = command.output().context("cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    Ok(metadata.packages.iter().flat_map(|package| check_package(root, package)).collect())
}

fn check_package(root: &Path, package: &Package) -> Vec<Finding> {
    let name = short(&package.name);
    let manifest = package.manifest_path.strip_prefix(root).unwrap_or(&package.manifest_path);
    let finding = |rule, advice: String| Finding { path: manifest.into(), line: 1, rule, advice };
    let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
        let advice =
            format!("`{name}` is not in the import table; a new crate needs a design record");
        return vec![finding("imports", advice)];
    };
    let product = || package.dependencies.iter().filter(|dependency| dependency.is_product());
    let ours = product().filter(|dependency| dependency.path.is_some());
    let mut findings: Vec<Finding> = ours
        .map(|dependency| short(&dependency.name))
        .filter(|dependency| !allowed.contains(dependency))
        .map(|dependency| finding("imports", format!("`{name}` may not import `{dependency}`")))
        .collect();
    let external = product().filter(|dependency| dependency.path.is_none()).count();
    if LEAN.contains(&name) && external > EXTERNAL_MAX {
        let advice =
            format!("`{name}` imports {external} crates of others; {EXTERNAL_MAX} is the limit");
        findings.push(finding("external", advice));
    }
    findings
}

/// Imports by modules that [`MODULES`] does not name.
pub fn check_modules(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, imported, allowed) in MODULES {
        for source in &tree.files {
            let Ok(module) = source.path.strip_prefix(folder) else { continue };
            if allowed.iter().any(|allowed| module.starts_with(allowed)) {
                continue;
            }
            let lines = import_lines(source, imported);
            findings.extend(lines.into_iter().map(|line| {
                let advice = format!("only {} may import `{imported}`", allowed.join(" and "));
                Finding::new(source, line, "imports", advice)
            }));
        }
    }
    findings
}

/// The lines of a file on which a path begins with the name of a crate.
fn import_lines(source: &Source, name: &str) -> Vec<usize> {
    let Ok(tokens) = source.text.parse::<TokenStream>() else { return Vec::new() };
    let mut all = Vec::new();
    flatten(tokens, &mut all);
    let text = |at: usize| all.get(at).map_or("", |(text, _)| text.as_str());
    let is_path = |at: usize| text(at) == ":" && text(at + 1) == ":";
    let is_word = |at: usize| text(at).ends_with(char::is_alphanumeric) && text(at) != "use";
    let is_inner = |at: usize| at > 2 && is_path(at - 2) && is_word(at - 3);
    let is_absolute = |at: usize| at > 1 && is_path(at - 2) && !is_inner(at);
    let named = (0..all.len()).filter(|&at| text(at) == name);
    // A module of that name that the file declares or imports hides the crate.
    let hides = |at: usize| at > 0 && text(at - 1) == "mod" || is_inner(at) && !is_path(at + 1);
    let is_hidden = named.clone().any(hides);
    let begins = |at: &usize| is_path(at + 1) || text(at + 1) == "as";
    let is_import = |at: &usize| !is_inner(*at) && (is_absolute(*at) || !is_hidden);
    named.filter(begins).filter(is_import).map(|at| all[at].1).collect()
}

/// The words and signs of a file, each with its line, in order.
fn flatten(tokens: TokenStream, all: &mut Vec<(String, usize)>) {
    for token in tokens {
        let line = token.span().start().line;
        match token {
            TokenTree::Group(group) => {
                all.push(("(".to_owned(), line));
                flatten(group.stream(), all);
                all.push((")".to_owned(), line));
            }
            other => all.push((other.to_string(), line)),
        }
    }
}

fn short(package: &str) -> &str {
    package.strip_prefix("uvala-").unwrap_or(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(name: &str, dependencies: &str) -> Vec<&'static str> {
        let text = format!(
            r#"{{"name":"{name}","manifest_path":"/r/a.toml","dependencies":[{dependencies}]}}"#
        );
        let package = serde_json::from_str(&text).unwrap();
        check_package(Path::new("/r"), &package).iter().map(|finding| finding.rule).collect()
    }

    fn ours(name: &str, kind: &str) -> String {
        format!(r#"{{"name":"{name}","kind":{kind},"path":"/r/{name}","target":null}}"#)
    }

    #[test]
    fn the_switch_imports_the_ring_and_nothing_above() {
        assert!(rules("uvala-switch", &ours("uvala-ring", "null")).is_empty());
        assert_eq!(rules("uvala-switch", &ours("uvala-port", "null")), ["imports"]);
        assert_eq!(rules("uvala-ring", &ours("uvala-switch", r#""build""#)), ["imports"]);
        assert!(rules("uvala-port", &ours("uvala-client", r#""dev""#)).is_empty());
    }

    #[test]
    fn no_crate_imports_the_daemon_except_the_binary() {
        let exempt = ["uvala", "daemon", "fuzz-bodies"];
        for (name, _) in ALLOWED.iter().filter(|(name, _)| !exempt.contains(name)) {
            assert_eq!(rules(name, &ours("uvala-daemon", "null")), ["imports"], "{name}");
        }
        assert!(rules("uvala", &ours("uvala-daemon", "null")).is_empty());
    }

    #[test]
    fn user_tools_and_the_privileged_helper_import_no_switch() {
        for name in ["uvala", "uvala-functions", "uvala-bench", "uvala-client", "uvala-helper"] {
            assert_eq!(rules(name, &ours("uvala-switch", "null")), ["imports"], "{name}");
        }
        assert_eq!(rules("uvala-helper", &ours("uvala-port", "null")), ["imports"]);
    }

    #[test]
    fn the_core_leans_on_few() {
        let external =
            |target: &str| format!(r#"{{"name":"a","kind":null,"path":null,"target":{target}}}"#);
        let three = vec![external("null"); 3].join(",");
        assert!(rules("uvala-ring", &three).is_empty());
        assert_eq!(rules("uvala-ring", &format!("{three},{}", external("null"))), ["external"]);
        assert!(rules("uvala-ring", &format!("{three},{}", external(r#""cfg(loom)""#))).is_empty());
        assert!(rules("uvala-daemon", &format!("{three},{three}")).is_empty());
    }

    fn daemon_lines(path: &str, text: &str) -> Vec<usize> {
        let source = Source::new(path.into(), text.into());
        let findings = check_modules(&Tree { root: "".into(), files: vec![source] });
        assert!(findings.iter().all(|finding| finding.rule == "imports"));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn only_the_modules_of_the_daemon_and_the_demo_import_the_daemon() {
        let text = "use std::fmt;\nuse daemon::config::Config;\n";
        for allowed in ["cli/daemon.rs", "demo/mod.rs", "demo/place.rs", "doctor/config.rs"] {
            assert!(daemon_lines(&format!("crates/uvala/src/{allowed}"), text).is_empty());
        }
        assert!(daemon_lines("crates/daemon/src/lib.rs", text).is_empty());
        for other in ["cli/apply.rs", "cli/mod.rs", "cli/daemon_log.rs", "main.rs"] {
            assert_eq!(daemon_lines(&format!("crates/uvala/src/{other}"), text), [2], "{other}");
        }
    }

    #[test]
    fn every_way_to_write_an_import_is_found() {
        let lines = |text: &str| daemon_lines("crates/uvala/src/cli/apply.rs", text);
        assert_eq!(lines("use {std::fmt,\ndaemon::Daemon};"), [2]);
        assert_eq!(lines("use daemon as d;"), [1]);
        assert_eq!(lines("use ::daemon::Daemon;"), [1]);
        assert_eq!(lines("fn f() {\n  daemon::start();\n}"), [2]);
        assert_eq!(lines("fn f() { println!(\"{}\",\n daemon::NAME) }"), [2]);
        assert_eq!(lines("mod daemon;\nfn f() { daemon::run(); ::daemon::start() }"), [2]);
        assert!(lines("mod daemon;\nfn f() { daemon::run() }").is_empty());
        assert!(lines("use super::daemon;\nfn f() { daemon::run() }").is_empty());
        assert!(
            lines("// daemon::run\nfn f(daemon: u8) { crate::daemon::run(daemon) }").is_empty()
        );
    }

    #[test]
    fn a_crate_without_a_row_is_refused() {
        assert_eq!(rules("uvala-misc", ""), ["imports"]);
    }
}

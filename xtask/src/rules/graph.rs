//! The import graph of the workspace, and how many other crates the core may depend on.
//!
//! The graph is what cargo itself says (`cargo metadata`), not what a document claims.
//! Dev-dependencies are free: a test may look at its crate from any side.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Finding;

/// Each crate, by the name under which the others import it, and what it may import of ours.
const ALLOWED: [(&str, &[&str]); 19] = [
    ("protocol", &["packet"]),
    ("packet", &[]),
    ("ring", &[]),
    ("switch", &["packet", "ring"]),
    ("device", &["ring"]),
    ("hostif", &["packet", "protocol"]),
    ("port", &["packet", "protocol", "ring", "switch", "device", "hostif"]),
    ("client", &["packet", "protocol", "ring"]),
    ("capi", &["client", "protocol", "ring"]),
    ("helper", &["hostif", "packet", "protocol"]),
    ("daemon", &["packet", "hostif", "port", "switch", "ring", "protocol", "helper"]),
    ("netmap", &["client", "protocol", "ring"]),
    ("terminal", &[]),
    ("functions", &["client", "packet", "protocol", "terminal"]),
    ("bench", &["client", "functions", "packet", "protocol", "ring", "terminal"]),
    (
        "uvala",
        &["bench", "client", "daemon", "functions", "hostif", "packet", "protocol", "terminal"],
    ),
    ("tests", &["bench", "packet", "ring", "protocol", "client"]),
    (
        "fuzz-bodies",
        &[
            "packet", "ring", "switch", "device", "port", "protocol", "client", "daemon", "helper",
            "netmap",
        ],
    ),
    ("xtask", &[]),
];

/// Crates of the datapath, and how many crates of others each may import directly.
const LEAN: [&str; 4] = ["packet", "ring", "switch", "device"];
const EXTERNAL_MAX: usize = 3;

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
    fn nobody_imports_the_daemon_except_the_binary() {
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

    #[test]
    fn a_crate_without_a_row_is_refused() {
        assert_eq!(rules("uvala-misc", ""), ["imports"]);
    }
}

//! The plugin that gives addresses: another program, which gets what we got and answers for us.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Trouble;
use super::spec::{Success, VERSIONS, code};

/// Runs the plugin `kind` out of `paths` (those of `CNI_PATH`) with our environment and this
/// configuration, for `command`. Returns what it printed.
pub fn run(kind: &str, paths: &str, command: &str, config: &[u8]) -> Result<Vec<u8>, Trouble> {
    let bad = kind.is_empty() || kind.contains('/') || kind.starts_with('.');
    let found = std::env::split_paths(paths).map(|dir| dir.join(kind)).find(|path| path.is_file());
    let program: PathBuf = found.filter(|_| !bad).ok_or_else(|| {
        Trouble::new(code::CONFIG, format!("ipam: no plugin {kind:?} in CNI_PATH {paths:?}"))
    })?;
    let failed = |error: std::io::Error| {
        Trouble::new(code::IPAM, format!("ipam: {}: {error}", program.display()))
    };
    let mut command = {
        let mut plugin = Command::new(&program);
        plugin.env("CNI_COMMAND", command).stdin(Stdio::piped()).stdout(Stdio::piped());
        plugin
    };
    let mut plugin = command.spawn().map_err(failed)?;
    // One that does not read its configuration says why.
    let _ = plugin.stdin.take().map(|mut stdin| stdin.write_all(config));
    let output = plugin.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(said) if said["code"].is_number() => {
            let number = said["code"].as_u64().and_then(|code| u32::try_from(code).ok());
            let msg = said["msg"].as_str().unwrap_or_default();
            let details = said["details"].as_str().unwrap_or_default().to_owned();
            let msg = format!("ipam: {kind}: {msg}");
            Err(Trouble { details, ..Trouble::new(number.unwrap_or(code::IPAM), msg) })
        }
        _ => Err(Trouble::new(code::IPAM, format!("ipam: {kind} ended with {}", output.status))),
    }
}

/// A configuration in a version that the plugin speaks: ours, or the one before, in which there is
/// no `GC` and no `STATUS`, so that there is nothing to ask.
pub fn spoken(
    kind: &str,
    paths: &str,
    command: &str,
    config: &[u8],
) -> Result<Option<Vec<u8>>, Trouble> {
    let said = run(kind, paths, "VERSION", config).unwrap_or_default();
    let said: Value = serde_json::from_slice(&said).unwrap_or_default();
    let speaks = |version: &str| {
        let versions = said["supportedVersions"].as_array();
        versions.is_some_and(|versions| versions.iter().any(|known| known == version))
    };
    // One that does not say what it speaks is asked all the same.
    if speaks(VERSIONS[1]) || !speaks(VERSIONS[0]) {
        return Ok(Some(config.to_vec()));
    }
    if matches!(command, "GC" | "STATUS") {
        return Ok(None);
    }
    let mut older: Value = serde_json::from_slice(config).unwrap_or_default();
    older["cniVersion"] = VERSIONS[0].into();
    if older["prevResult"].is_object() {
        older["prevResult"]["cniVersion"] = VERSIONS[0].into();
    }
    Ok(Some(older.to_string().into_bytes()))
}

/// The addresses that it gave.
pub fn parse(kind: &str, said: &[u8]) -> Result<Success, Trouble> {
    serde_json::from_slice(said)
        .map_err(|error| Trouble::new(code::IPAM, format!("ipam: {kind} answered: {error}")))
}

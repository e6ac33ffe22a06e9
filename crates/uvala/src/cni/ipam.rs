//! The plugin that gives addresses: another program, which gets what we got and answers for us.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use terminal::process::{self, Limits};

use super::Trouble;
use super::spec::{Success, VERSIONS, code};

/// A plugin that asks a DHCP server waits for it. A runtime may give up before.
const LIMITS: Limits = Limits { bytes: 1 << 20, time: Duration::from_secs(60) };

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
    let mut plugin = Command::new(&program);
    plugin.env("CNI_COMMAND", command);
    let (status, said) = process::converse(&mut plugin, config, LIMITS).map_err(failed)?;
    if status.success() {
        return Ok(said);
    }
    match serde_json::from_slice::<Value>(&said) {
        Ok(said) if said["code"].is_number() => {
            let number = said["code"].as_u64().and_then(|code| u32::try_from(code).ok());
            let msg = said["msg"].as_str().unwrap_or_default();
            let details = said["details"].as_str().unwrap_or_default().to_owned();
            let msg = format!("ipam: {kind}: {msg}");
            Err(Trouble { details, ..Trouble::new(number.unwrap_or(code::IPAM), msg) })
        }
        _ => Err(Trouble::new(code::IPAM, format!("ipam: {kind} ended with {status}"))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_plugin_may_answer_before_it_has_read_a_long_configuration() {
        // A shell reads line by line, and a pipe holds less than both.
        let config = format!("head -c 200000 /dev/zero\n{}", "#\n".repeat(200_000));
        let said = run("sh", "/bin", "ADD", config.as_bytes()).unwrap();
        assert_eq!(said.len(), 200_000);
    }

    #[test]
    fn test_a_plugin_that_says_too_much_is_ended() {
        let trouble = run("sh", "/bin", "ADD", b"cat /dev/zero").unwrap_err();
        assert_eq!(trouble.code, code::IPAM);
        assert!(trouble.msg.contains("more than 1048576 bytes"), "{}", trouble.msg);
    }
}

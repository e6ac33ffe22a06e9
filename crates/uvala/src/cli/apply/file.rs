//! The file: its switches as requests, and the names of its other tables.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::config::{self, ConfigError, InvalidValue, RawSwitch, SwitchText, TOP_KEYS};
use protocol::name::SwitchName;
use protocol::toml_error;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use toml::Spanned;

/// The part of the file that the command applies.
#[derive(Deserialize)]
struct Tables {
    #[serde(default)]
    switch: BTreeMap<SwitchName, RawSwitch>,
}

/// Reads the switches of a file, and the names of its other tables, which count when a daemon
/// starts.
pub fn load(path: &Path) -> Result<(Vec<SwitchText>, Vec<String>), ConfigError> {
    read(&config::read(path)?, path)
}

fn read(text: &str, path: &Path) -> Result<(Vec<SwitchText>, Vec<String>), ConfigError> {
    let keys: BTreeMap<Spanned<String>, IgnoredAny> = parse(text, path)?;
    if let Some(unknown) = keys.keys().find(|key| !TOP_KEYS.contains(&&**key.get_ref())) {
        let known = TOP_KEYS.join(", ");
        let message = format!("unknown key `{}`, expected one of {known}", unknown.get_ref());
        return Err(ConfigError::at(path, text, unknown.span().start, message));
    }
    let tables: Tables = parse(text, path)?;
    let switches = tables.switch.into_iter().map(|(name, raw)| raw.read(name));
    let mut switches: Vec<SwitchText> = switches
        .collect::<Result<_, _>>()
        .map_err(|InvalidValue { at, error }| ConfigError::at(path, text, at, error.to_string()))?;
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at| ends.partition_point(|&end| end < at) + 1;
    for switch in &mut switches {
        switch.places.map(line);
        switch.program.iter_mut().for_each(|file| file.at = line(file.at));
    }
    let others = keys.into_keys().map(Spanned::into_inner).filter(|key| key != "switch");
    Ok((switches, others.collect()))
}

fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let (at, why) = toml_error::describe(error.message(), error.span());
        ConfigError::at(path, text, at, why)
    })
}

#[cfg(test)]
mod tests {
    use protocol::{PortSettings, SwitchSettings};

    use super::*;

    fn error(text: &str) -> String {
        read(text, Path::new("a.toml")).expect_err(text).to_string()
    }

    #[test]
    fn test_what_the_file_does_not_say_stays_open() {
        let text = "log = \"debug\"\n[switch.vale0]\nage_s = 7\n[switch.vale0.port.a]\n\
                    isolated = true\nstatic = [\"02:00:00:00:00:01\"]\n";
        let (switches, others) = read(text, Path::new("a.toml")).unwrap();
        assert_eq!(others, ["log"]);
        let SwitchText { spec, ports, places, .. } = &switches[0];
        let settings = SwitchSettings { age_s: Some(7), ..SwitchSettings::default() };
        assert_eq!(spec.settings, settings);
        let settings = PortSettings { isolated: Some(true), ..PortSettings::default() };
        assert_eq!((&ports[0].add.settings, &ports[0].add.host), (&settings, &None));
        assert_eq!((ports[0].stations.len(), &places.ports[..]), (1, &[4][..]));
    }

    #[test]
    fn test_mistakes_are_refused_with_their_line() {
        for (text, says) in [
            ("log = \"info\"\n[swich.vale0]\n", "config a.toml:2: unknown key `swich`, expected"),
            ("[switch.vale0]\nforwarding = \"x\"\n", ":2: expected learning, hub, patch, "),
            ("[switch.vale0]\n[switch.vale0.port.a]\nvlan = \"x\"\n", ":3: expected transparent"),
            ("[switch.vale0.port.a]\non_full = \"x\"\n", ":2: expected drop or wait"),
            ("[switch.vale0.port.a]\ninstance = 1\n", ":1: vale0:a: instance: only a port"),
            (
                "[[switch.vale0.rule]]\naction = \"drop\"\nsrc = \"10.0.0.0/33\"\n",
                ":1: vale0: rule 1: ",
            ),
            ("switch = 3\n", "a.toml:1: found the number `3`, expected a table"),
            ("= 3\n", "a.toml:1: "),
        ] {
            let said = error(text);
            assert!(said.contains(says) && !said.contains('\n'), "{text}: {said}");
        }
    }
}

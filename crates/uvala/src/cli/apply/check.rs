//! What a file names, beside what the daemon has: looked at before anything is made.
//!
//! The daemon looks at it again, call by call, and it alone decides. What stays as it is there, it
//! does not look at, and neither is it looked at here: ports of programs come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use client::control::{Connection, ControlError};
use protocol::config::{ConfigError, PortText, SwitchText};
use protocol::{
    ChainSpec, ErrorCode, PortInfo, PortKind, PortList, PortRequest, PortSettings, Request,
    RuleSpec, sent_by_function,
};

use crate::cli::{chain, listing, rule};

/// A line of the file, and what is wrong with it.
type Fault = (usize, String);

/// Whether the names in what a file says of a switch are those of something.
pub fn check(connection: &Connection, path: &Path, text: &SwitchText) -> anyhow::Result<()> {
    let Some(there) = There::ask(connection, text)? else { return Ok(()) };
    let fault = there.chains(text).or_else(|| there.rules(text)).or_else(|| there.entries(text));
    fault.map_or(Ok(()), |(line, message)| {
        Err(ConfigError::Parse { path: path.to_path_buf(), line, message }.into())
    })
}

/// A switch as it is, with the ports that the file will make of it.
#[derive(Debug, Default)]
struct There {
    chains: Vec<ChainSpec>,
    rules: Vec<RuleSpec>,
    /// What is to be said of each port, by its name.
    ports: BTreeMap<String, PortSettings>,
}

impl There {
    /// `None`: the caller may not look at it.
    fn ask(connection: &Connection, text: &SwitchText) -> anyhow::Result<Option<Self>> {
        let name = &text.spec.switch;
        let ask = |from| {
            Request::Port(PortRequest::List(PortList {
                switch: Some(name.clone()),
                from,
                ..PortList::default()
            }))
        };
        let mut there = match listing::all::<PortInfo>(connection, ask) {
            Ok(ports) => Self {
                chains: chain::chains(connection, name)?.into_iter().map(|it| it.chain).collect(),
                rules: rule::rules(connection, name)?.into_iter().map(|it| it.rule).collect(),
                ports: ports.into_iter().filter_map(known).collect(),
            },
            Err(ControlError::Refused(failure)) if failure.code == ErrorCode::NotFound => {
                Self::default()
            }
            Err(ControlError::Refused(failure)) if failure.code == ErrorCode::Permission => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        for add in text.ports.iter().map(|port| &port.add) {
            let known = there.ports.entry(add.port.port().to_owned()).or_default();
            known.service = add.settings.service.clone().or(known.service.take());
            known.chain = add.settings.chain.clone().or(known.chain.take());
        }
        Ok(Some(there))
    }

    fn chains(&self, text: &SwitchText) -> Option<Fault> {
        let services: BTreeSet<&str> =
            self.ports.values().filter_map(|port| port.service.as_deref()).collect();
        text.places.chains.iter().zip(&text.chains).find_map(|(&line, chain)| {
            if self.chains.contains(chain) {
                return None;
            }
            let names = chain.service_names();
            let mut lost = names.filter(|name| !services.contains(name));
            let service = lost.next().map(|name| {
                let chain = &chain.name;
                format!(
                    "chain {chain}: there is no service {name}; set it at a port: service = \
                     \"{name}\""
                )
            });
            Some((line, service.or_else(|| self.no_port(chain.out.as_ref()?))?))
        })
    }

    fn rules(&self, text: &SwitchText) -> Option<Fault> {
        let known: BTreeSet<String> = self.rules.iter().map(said).collect();
        text.places.rules.iter().zip(&text.rules).find_map(|(&line, rule)| {
            let to = rule.action.strip_prefix("port:");
            let mut ports = rule.port.as_deref().into_iter().chain(to);
            let why = ports.find_map(|port| self.no_port(port)).or_else(|| self.deaf(rule))?;
            (!known.contains(&said(rule))).then_some((line, why))
        })
    }

    /// Chains of the ports that the file has: of a switch in a file they are those of the file.
    fn entries(&self, text: &SwitchText) -> Option<Fault> {
        text.places.ports.iter().zip(&text.ports).find_map(|(&line, PortText { add, .. })| {
            let chain = add.settings.chain.as_ref().filter(|chain| !chain.is_empty())?;
            let is_there = text.chains.iter().any(|known| known.name == *chain);
            let port = &add.port;
            (!is_there).then(|| (line, format!("{port}: there is no chain {chain} in the file")))
        })
    }

    /// The fault of a rule that matches frames which a function sends.
    fn deaf(&self, rule: &RuleSpec) -> Option<String> {
        let port = rule.port.as_deref()?;
        let service = self.ports.get(port)?.service.as_deref()?;
        Some(sent_by_function(port, service)).filter(|_| !service.is_empty())
    }

    fn no_port(&self, name: &str) -> Option<String> {
        let why = || {
            format!("there is no port {} in this switch; see: uvala port list", name.escape_debug())
        };
        (!self.ports.contains_key(name)).then(why)
    }
}

/// A port as chains and rules know it. Pipes they do not.
fn known(info: PortInfo) -> Option<(String, PortSettings)> {
    let is_pipe = info.kind == PortKind::Pipe || info.port.pipe().is_some();
    (!is_pipe).then(|| (info.port.port().to_owned(), info.settings))
}

/// What a rule says, whatever its number is.
pub fn said(rule: &RuleSpec) -> String {
    serde_json::to_string(&RuleSpec { id: None, ..rule.clone() }).unwrap_or_default()
}

//! `uvala apply`

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use client::api::{
    ChainSpec, ErrorCode, HostIf, NewPorts, PortAdd, PortKind, PortSet, PortSettings, Reply,
    Request, RuleAdd, RuleSpec, SwitchSettings, SwitchSpec,
};
use client::control::{Connection, ControlError, unexpected};
use client::name::SwitchName;
use serde::Deserialize;

use super::Global;
use super::chain::chains;
use super::output::Output;

/// Make switches, ports, chains and rules as a file says
///
/// The file is written as the daemon's configuration is: [switch.vale0], [switch.vale0.port.a],
/// [[switch.vale0.chain]], [[switch.vale0.rule]]. What is there is changed, what is missing is
/// made, and nothing else is touched, but that chains and rules of a switch in the file are those
/// of the file alone: they change at once, between two batches of frames. Where the daemon refuses
/// something, what stands before it in the file is made and stays: mend it, and apply it again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file; TOML
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    switch: BTreeMap<SwitchName, Part>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Part {
    forwarding: Option<String>,
    age_s: Option<u32>,
    fdb_capacity: Option<u32>,
    new_ports: Option<NewPorts>,
    chain: Vec<ChainSpec>,
    rule: Vec<RuleSpec>,
    port: BTreeMap<String, toml::Table>,
}

/// A port of the file.
struct PortPart {
    kind: PortKind,
    host: Option<HostIf>,
    settings: PortSettings,
}

/// Keys of a port's interface.
const HOST: [&str; 9] =
    ["ifname", "mtu", "mac", "netns", "address", "alone", "queues", "filter", "trust_group"];
/// Rules of one message.
const CHUNK: usize = 200;

impl PortPart {
    fn new(mut table: toml::Table) -> anyhow::Result<Self> {
        let kind = match table.remove("kind") {
            Some(kind) => kind.try_into()?,
            None => PortKind::Shm,
        };
        let host: toml::Table =
            HOST.iter().filter_map(|&key| Some((key.to_owned(), table.remove(key)?))).collect();
        let host = if host.is_empty() { None } else { Some(host.try_into()?) };
        Ok(Self { kind, host, settings: table.try_into()? })
    }
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let path = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("{path}"))?;
    let file: File = toml::from_str(&text).with_context(|| format!("{path}"))?;
    let connection = global.connect()?;
    for (name, part) in file.switch {
        let made = "what stands before it in the file is made; apply it again when it is mended";
        apply(&connection, &name, part).with_context(|| format!("{path}: {name}: {made}"))?;
    }
    args.output.done()
}

fn apply(connection: &Connection, name: &SwitchName, part: Part) -> anyhow::Result<()> {
    let settings = SwitchSettings {
        forwarding: part.forwarding,
        age_s: part.age_s,
        fdb_capacity: part.fdb_capacity,
        new_ports: part.new_ports,
        ..SwitchSettings::default()
    };
    let spec = SwitchSpec { switch: name.clone(), settings };
    add_or(connection, Request::SwitchAdd(spec.clone()), || Request::SwitchSet(spec))?;
    // Ports first, because chains need their services; their chains last, for these need to be.
    let mut later = Vec::new();
    for (key, table) in part.port {
        let port = name.join(&key)?;
        let PortPart { kind, host, mut settings } =
            PortPart::new(table).with_context(|| format!("port {key}"))?;
        if let Some(chain) = settings.chain.take() {
            let settings = PortSettings { chain: Some(chain), ..PortSettings::default() };
            later.push(PortSet { port: port.clone(), settings });
        }
        let set = PortSet { port: port.clone(), settings: settings.clone() };
        let add = PortAdd { port, kind, settings, host, machine: None };
        add_or(connection, Request::PortAdd(Box::new(add)), || Request::PortSet(set))?;
    }
    // Chains that ports use until then stay until then, so that their frames miss no function.
    let is_named = |old: &ChainSpec| part.chain.iter().any(|new| new.name == old.name);
    let mut used: Vec<_> = chains(connection, name)?.into_iter().map(|info| info.chain).collect();
    used.retain(|old| !is_named(old));
    let is_last = used.is_empty();
    let mut rules = part.rule.chunks(CHUNK);
    let settings = SwitchSettings {
        chains: Some([&part.chain[..], &used].concat()),
        rules: Some(rules.next().unwrap_or_default().to_vec()),
        ..SwitchSettings::default()
    };
    done(connection.call(Request::SwitchSet(SwitchSpec { switch: name.clone(), settings }))?)?;
    for rules in rules {
        let add = RuleAdd { switch: name.clone(), rules: rules.to_vec() };
        match connection.call(Request::RuleAdd(add))? {
            Reply::RulesAdded(_) => {}
            other => return Err(unexpected(&other).into()),
        }
    }
    later.into_iter().try_for_each(|set| done(connection.call(Request::PortSet(set))?))?;
    if is_last {
        return Ok(());
    }
    let settings = SwitchSettings { chains: Some(part.chain), ..SwitchSettings::default() };
    done(connection.call(Request::SwitchSet(SwitchSpec { switch: name.clone(), settings }))?)
}

/// Makes something, or changes it where it is there.
fn add_or(
    connection: &Connection,
    add: Request,
    set: impl FnOnce() -> Request,
) -> anyhow::Result<()> {
    match connection.call(add) {
        Err(ControlError::Refused(failure)) if failure.code == ErrorCode::Exists => {
            done(connection.call(set())?)
        }
        reply => done(reply?),
    }
}

fn done(reply: Reply) -> anyhow::Result<()> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other).into()),
    }
}

const EXAMPLES: &str = "\
Example of a file:
  [switch.vale0]
  forwarding = \"chain\"
  [switch.vale0.port.uplink]
  chain = \"web\"
  [switch.vale0.port.fw]
  service = \"firewall\"
  [[switch.vale0.chain]]
  name = \"web\"
  services = [\"firewall\"]
  [[switch.vale0.rule]]
  action = \"drop\"
  src = \"192.0.2.0/24\"";

//! `uvala apply`

use std::path::PathBuf;

use anyhow::Context;
use client::api::{
    ChainSpec, ErrorCode, FdbAdd, Mac, PortSet, PortSettings, Reply, Request, RuleAdd, RuleSpec,
    SwitchSettings, SwitchSpec,
};
use client::control::{Connection, ControlError, unexpected};
use client::name::SwitchName;
use daemon::config::{SwitchText, load_switches};

use super::Global;
use super::chain::chains as list;
use super::output::Output;
use crate::say;

/// Make switches, ports, chains and rules as a file says
///
/// The file is written as the daemon's configuration is, uvala.toml(5), and may be that:
/// [switch.vale0], [switch.vale0.port.a], [[switch.vale0.chain]], [[switch.vale0.rule]]. A daemon
/// reads its configuration when it starts; this is how what is changed in it comes into force
/// without a restart. What is there is changed, what is missing is made, and nothing else is
/// touched, but that chains and rules of a switch in the file are those of the file alone: they
/// change at once, between two batches of frames; rules behind the first 200 follow in steps of as
/// many. Where the daemon refuses something, what stands
/// before it in the file is made and stays: mend it, and apply it again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The file; TOML
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Rules of one message.
const CHUNK: usize = 200;

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let path = args.file.display();
    let (switches, others) = load_switches(&args.file)?;
    let connection = global.connect()?;
    for text in switches {
        let made = "what stands before it in the file is made; apply it again when it is mended";
        let name = text.spec.switch.clone();
        apply(&connection, text).with_context(|| format!("{path}: {name}: {made}"))?;
    }
    if !others.is_empty() {
        let keys = others.join(", ");
        say::remark(format_args!("uvala: {path}: {keys}: in force when a daemon starts with it"));
    }
    args.output.done()
}

fn apply(connection: &Connection, text: SwitchText) -> anyhow::Result<()> {
    let SwitchText { spec, ports, plan } = text;
    let name = spec.switch.clone();
    add_or(connection, Request::SwitchAdd(spec.clone()), || Request::SwitchSet(spec))?;
    // Ports first, because chains need their services; their chains last, for these need to be.
    let mut later = Vec::new();
    for (mut add, plan) in ports.into_iter().zip(&plan.ports) {
        let port = add.port.clone();
        if let Some(chain) = add.settings.chain.take() {
            let settings = PortSettings { chain: Some(chain), ..PortSettings::default() };
            later.push(PortSet { port: port.clone(), settings });
        }
        let set = PortSet { port: port.clone(), settings: add.settings.clone() };
        add_or(connection, Request::PortAdd(Box::new(add)), || Request::PortSet(set))?;
        for station in &plan.stations {
            let (mac, vlan) = (Mac(station.mac.octets()), station.vlan.get());
            done(connection.call(Request::FdbAdd(FdbAdd { port: port.clone(), mac, vlan }))?)?;
        }
    }
    steer(connection, &name, plan.chains, &plan.rules, later)
}

/// Gives a switch its chains and rules, and then its ports the chains that they enter.
fn steer(
    connection: &Connection,
    name: &SwitchName,
    chains: Vec<ChainSpec>,
    rules: &[RuleSpec],
    ports: Vec<PortSet>,
) -> anyhow::Result<()> {
    // Chains that ports use until then stay until then, so that their frames miss no function.
    let is_named = |old: &ChainSpec| chains.iter().any(|new| new.name == old.name);
    let mut used: Vec<_> = list(connection, name)?.into_iter().map(|info| info.chain).collect();
    used.retain(|old| !is_named(old));
    let set = |settings| {
        let spec = SwitchSpec { switch: name.clone(), settings };
        done(connection.call(Request::SwitchSet(spec))?)
    };
    let mut rules = rules.chunks(CHUNK);
    set(SwitchSettings {
        chains: Some([&chains[..], &used].concat()),
        rules: Some(rules.next().unwrap_or_default().to_vec()),
        ..SwitchSettings::default()
    })?;
    for rules in rules {
        let add = RuleAdd { switch: name.clone(), rules: rules.to_vec() };
        match connection.call(Request::RuleAdd(add))? {
            Reply::RulesAdded(_) => {}
            other => return Err(unexpected(&other).into()),
        }
    }
    ports.into_iter().try_for_each(|set| done(connection.call(Request::PortSet(set))?))?;
    if used.is_empty() {
        return Ok(());
    }
    set(SwitchSettings { chains: Some(chains), ..SwitchSettings::default() })
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

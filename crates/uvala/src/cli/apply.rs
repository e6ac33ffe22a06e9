//! `uvala apply`

mod check;
mod file;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use client::control::{Connection, ControlError, unexpected};
use protocol::config::{ConfigError, PortText, SwitchText};
use protocol::name::SwitchName;
use protocol::{
    ChainSpec, ErrorCode, FdbAdd, FdbRequest, MAX_MESSAGE, PortAdd, PortKind, PortRequest, PortSet,
    PortSettings, Reply, Request, RuleSpec, SwitchRequest, SwitchSettings, SwitchSpec, Vxlan,
    VxlanChange,
};
use serde::Serialize;

use super::Global;
use super::chain::chains as list;
use super::object_file;
use super::output::Output;
use terminal::say;

/// Apply switches, ports, chains and rules from a file to the running daemon
///
/// The file has the format of the daemon's configuration, uvala.toml(5), and may be that file:
/// [switch.vale0], [switch.vale0.port.a], [[switch.vale0.chain]], [[switch.vale0.rule]]. The daemon
/// reads its configuration only when it starts; this command applies changes without a restart.
///
/// The command adds or changes the switches and ports in the file, and leaves all others as they
/// are. It refuses to change the kind of a port, its network interface or its socket: delete the
/// port first. It replaces all chains and rules of a switch in the file at once, between two
/// batches of frames, and prints which chains and how many rules it deletes. It checks these tables
/// before it changes anything, and reports a mistake with its line; only the daemon reads the
/// file's other tables. If the daemon refuses a change later, earlier changes stay: correct the
/// file, and apply it again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File to apply, TOML
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Bytes of chains or rules in a message, which has a name and little else beside them.
const PART_BYTES: usize = MAX_MESSAGE - 1024;

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let path = args.file.display();
    let (mut switches, others) = file::load(&args.file)?;
    switches.iter_mut().try_for_each(|text| load_program(&args.file, text))?;
    let connection = global.connect()?;
    switches.iter().try_for_each(|text| check::check(&connection, &args.file, text))?;
    for text in switches {
        let made = "earlier changes stay; correct the file, and apply it again";
        let name = text.spec.switch.clone();
        apply(&connection, text).with_context(|| format!("{path}: {name}: {made}"))?;
    }
    if !others.is_empty() {
        let keys = others.join(", ");
        say::remark(format_args!(
            "uvala: {path}: {keys}: takes effect only when a daemon starts \
             with this file"
        ));
    }
    args.output.done()
}

/// Reads the forwarding program that a file names for a switch.
fn load_program(path: &Path, text: &mut SwitchText) -> Result<(), ConfigError> {
    let Some(file) = &text.program else { return Ok(()) };
    let read = object_file::read(&file.path).map_err(|why| ConfigError::Parse {
        path: path.to_path_buf(),
        line: file.at,
        message: format!("{}: {why:#}", text.spec.switch),
    })?;
    text.spec.settings.program = Some(read);
    Ok(())
}

fn apply(connection: &Connection, text: SwitchText) -> anyhow::Result<()> {
    let SwitchText { spec, ports, chains, rules, .. } = text;
    let name = spec.switch.clone();
    let set = SwitchRequest::Set(spec.clone());
    add_or(connection, Request::Switch(SwitchRequest::Add(spec)), [Request::Switch(set)])?;
    // Ports first, because chains need their services; their chains last, for these need to be.
    let mut later = Vec::new();
    for PortText { mut add, stations } in ports {
        let port = add.port.clone();
        if let Some(chain) = add.settings.chain.take() {
            let settings = PortSettings { chain: Some(chain), ..PortSettings::default() };
            later.push(PortSet { port: port.clone(), settings, vxlan: None });
        }
        let all = |vxlan: &Vxlan| VxlanChange { all: Some(vxlan.clone()), ..Default::default() };
        let vxlan = add.vxlan.as_ref().map(all).map(Box::new);
        let set = PortSet { port: port.clone(), settings: add.settings.clone(), vxlan };
        let set = PortRequest::Set(Box::new(set));
        let changes = unchangeable(&add).into_iter().chain([set]).map(Request::Port);
        add_or(connection, Request::Port(PortRequest::Add(Box::new(add))), changes)?;
        for station in &stations {
            let (mac, vlan) = (station.mac, station.vlan.get());
            let add = FdbAdd { port: port.clone(), mac, vlan };
            done(connection.call(Request::Fdb(FdbRequest::Add(add)))?)?;
        }
    }
    let gone = gone(connection, &name, &chains, &rules)?;
    steer(connection, &name, chains, &rules, later)?;
    if !gone.is_empty() {
        let gone = gone.join(", ");
        say::remark(format_args!("uvala: {name}: deleted, as the file does not have it: {gone}"));
    }
    Ok(())
}

/// The call that compares what stays as it is from a port's beginning: kind, interface and socket.
/// `None`: the file gives none of these, or a tunnel, which the daemon compares when it is set.
fn unchangeable(add: &PortAdd) -> Option<PortRequest> {
    let is_asked = add.kind != PortKind::Shm && add.vxlan.is_none();
    let bare = || PortAdd { settings: PortSettings::default(), ..add.clone() };
    is_asked.then(|| PortRequest::Compare(Box::new(bare())))
}

/// What goes of a switch's chains and rules, because a file has others, or none.
fn gone(
    connection: &Connection,
    name: &SwitchName,
    chains: &[ChainSpec],
    rules: &[RuleSpec],
) -> anyhow::Result<Vec<String>> {
    let is_kept = |old: &ChainSpec| chains.iter().any(|new| new.name == old.name);
    let old = list(connection, name)?.into_iter().map(|info| info.chain);
    let mut gone: Vec<_> =
        old.filter(|old| !is_kept(old)).map(|old| format!("chain {}", old.name)).collect();
    let kept: BTreeSet<String> = rules.iter().map(check::said).collect();
    let old = super::rule::rules(connection, name)?;
    match old.iter().filter(|old| !kept.contains(&check::said(&old.rule))).count() {
        0 => {}
        1 => gone.push("1 rule".to_owned()),
        count => gone.push(format!("{count} rules")),
    }
    Ok(gone)
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
    set(connection, name, &[&chains[..], &used].concat(), Some(rules))?;
    ports.into_iter().try_for_each(|set| {
        done(connection.call(Request::Port(PortRequest::Set(Box::new(set))))?)
    })?;
    if used.is_empty() {
        return Ok(());
    }
    set(connection, name, &chains, None)
}

/// Gives a switch these chains, and these rules where there are some, at once: in drafts, whose
/// messages have room for all.
fn set(
    connection: &Connection,
    name: &SwitchName,
    chains: &[ChainSpec],
    rules: Option<&[RuleSpec]>,
) -> anyhow::Result<()> {
    let none = SwitchSettings::default;
    let chains = parts(chains).map(|part| SwitchSettings { chains: Some(part.to_vec()), ..none() });
    let rule_parts = parts(rules.unwrap_or_default());
    let rule_parts = rule_parts.map(|part| SwitchSettings { rules: Some(part.to_vec()), ..none() });
    let all = SwitchSettings { chains: Some(vec![]), rules: rules.map(|_| vec![]), ..none() };
    let spec = |settings| SwitchSpec { switch: name.clone(), settings };
    let drafts =
        chains.chain(rule_parts).map(|part| Request::Switch(SwitchRequest::Draft(spec(part))));
    let mut calls = drafts.chain([Request::Switch(SwitchRequest::Set(spec(all)))]);
    calls.try_for_each(|call| done(connection.call(call)?))
}

/// Parts of a list that a message has room for each, in order; one that is too long for any comes
/// alone, and is refused.
fn parts<T: Serialize>(list: &[T]) -> impl Iterator<Item = &[T]> {
    let bytes = |item: &T| serde_json::to_string(item).map_or(0, |text| text.len() + 1);
    let mut rest = list;
    std::iter::from_fn(move || {
        let mut room = PART_BYTES;
        let fits = rest.iter().take_while(|item| {
            let left = room.checked_sub(bytes(item));
            room = left.unwrap_or(0);
            left.is_some()
        });
        let count = fits.count().max(1);
        let (part, others) = rest.split_at_checked(count)?;
        rest = others;
        Some(part)
    })
}

/// Makes something, or changes it where it is there. What is not there was refused for the sake of
/// something else that is.
fn add_or(
    connection: &Connection,
    add: Request,
    changes: impl IntoIterator<Item = Request>,
) -> anyhow::Result<()> {
    let failure = match connection.call(add) {
        Err(ControlError::Refused(failure)) if failure.code == ErrorCode::Exists => failure,
        reply => return done(reply?),
    };
    for change in changes {
        match connection.call(change) {
            Err(ControlError::Refused(other)) if other.code == ErrorCode::NotFound => {
                return Err(ControlError::Refused(failure).into());
            }
            reply => done(reply?)?,
        }
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_parts_have_all_in_order_and_room_in_a_message() {
        let default = RuleSpec::default;
        let rule = |id: u32| RuleSpec { id: Some(id), action: "drop".to_owned(), ..default() };
        for count in [0u32, 1, 2, 4096] {
            let rules: Vec<_> = (0..count).map(rule).collect();
            let all: Vec<_> = parts(&rules).collect();
            assert_eq!(all.concat(), rules);
            let longest = all.iter().map(|part| serde_json::to_string(part).unwrap().len());
            assert!(longest.max().unwrap_or(0) <= PART_BYTES + 1);
            assert!(all.len() <= 4 && all.iter().all(|part| !part.is_empty()));
        }
        let long = RuleSpec { action: "x".repeat(MAX_MESSAGE), ..default() };
        let rules = [rule(1), long, rule(2)];
        assert_eq!(parts(&rules).map(<[_]>::len).collect::<Vec<_>>(), [1, 1, 1]);
    }
}

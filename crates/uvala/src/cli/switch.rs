//! `uvala switch`

use client::control::{Connection, unexpected};
use protocol::name::{NameError, SwitchName};
use protocol::{
    ForwardingChoice, McastCounters, Mode, NewPorts, PageFrom, ProgramSpec, Reply, Request, RunBy,
    SwitchInfo, SwitchRef, SwitchRequest, SwitchSettings, SwitchSpec, parse, users,
};

use super::output::{Output, Watch};
use super::security::{self, Security};
use super::target::{add, change, refuse_empty};
use super::{Global, listing, object_file};
use terminal::Usage;
use terminal::table::{Table, left, right, yes};

/// List, add, change and delete switches
///
/// Port security of a switch (mac-lock, limits, guards) is that of all its ports, new ones too, but
/// for ports whose own settings say otherwise.
///
/// The daemon also creates a switch when its first port attaches, and deletes it with its last
/// port. A switch that `uvala switch add` creates is permanent.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the switches that you may see
    List {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Show one switch
    Show {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
    /// Add a permanent switch, or make an existing one permanent
    Add {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        settings: Settings,
        /// Succeed if there is such a switch, permanent and with the settings that are given
        #[arg(long)]
        if_absent: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Change the settings that are given
    ///
    /// Settings that are left out keep their values. The defaults below are those of a new switch.
    Set {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        settings: Settings,
        #[command(flatten)]
        output: Output,
    },
    /// Delete a switch and all its ports, and disconnect their clients
    Del {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, clap::Args)]
struct Name {
    /// Name of the switch, such as vale0
    #[arg(value_name = "SWITCH")]
    switch: String,
}

#[derive(Debug, clap::Args)]
struct Settings {
    /// Forwarding function: learning, hub, patch, static, static-flood, chain, or program:FILE, an
    /// object file with a program of your own (`uvala program`) [default: learning]
    #[arg(long, value_name = "FUNCTION")]
    forwarding: Option<ForwardingChoice>,
    /// Ageing time of learned addresses in seconds; 0 disables ageing [default: 300]
    #[arg(long, value_name = "SECS", value_parser = parse::number32)]
    age: Option<u32>,
    /// Capacity of the forwarding database, 1 to 1048576 addresses; when it is full, a new address
    /// replaces an old one [default: 65536]
    #[arg(long, value_name = "N", value_parser = parse::positive32)]
    fdb_capacity: Option<u32>,
    /// Reserved group addresses to forward, as for a Linux bridge: bit N, such as 0x4000 for LLDP,
    /// stands for 01:80:c2:00:00:0N; PAUSE (bit 1) is never forwarded [default: 0]
    #[arg(long, value_name = "MASK", value_parser = parse::group_fwd_mask)]
    group_fwd_mask: Option<u16>,
    /// Send frames of multicast groups to members only, which the switch learns from IGMP and MLD;
    /// needs a querier: a multicast router, or --mcast-querier [default: false]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    mcast_snooping: Option<bool>,
    /// Where no other querier is heard, ask for members of groups (with --mcast-snooping)
    /// [default: false]
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    mcast_querier: Option<bool>,
    /// Workers that run the switch: one, or all, each with a share of the ports; only for a switch
    /// without ports, and without chains and monitors [default: one]
    #[arg(long, value_name = "one|all")]
    workers: Option<RunBy>,
    /// User that owns the switch, by name or UID [default: you]
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Group of the switch, by name or GID [default: yours]
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Permission to attach (w) and to list (r), in octal, as for a file [default: 600]
    #[arg(long)]
    mode: Option<Mode>,
    /// Users that may create ports by attaching: any user that may attach, or only the owner; other
    /// users then attach to ports that `uvala port add --owner` gave them [default: any]
    #[arg(long, value_name = "any|owner")]
    new_ports: Option<NewPorts>,
    #[command(flatten)]
    security: Security,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List { output, watch } => watch.repeat(global, |connection, _| {
            output.print(&list(connection)?, |switches| table(switches))
        }),
        Action::Show { name, output } => {
            let switch = name.parse()?;
            let request = Request::Switch(SwitchRequest::Show(SwitchRef { switch }));
            match global.connect()?.call(request)? {
                Reply::Switch(info) => output.print(&info, show),
                other => Err(unexpected(&other).into()),
            }
        }
        Action::Add { name, settings, if_absent, output } => {
            let spec = settings.spec(name)?;
            let compare = SwitchRequest::Compare(spec.clone());
            let compare = if_absent.then_some(Request::Switch(compare));
            let request = Request::Switch(SwitchRequest::Add(spec));
            add(&global.connect()?, (request, &[]), compare, *output)
        }
        Action::Set { name, settings, output } => {
            let spec = settings.spec(name)?;
            refuse_empty(&spec.settings, "switch set")?;
            change(global, Request::Switch(SwitchRequest::Set(spec)), *output)
        }
        Action::Del { name, output } => change(
            global,
            Request::Switch(SwitchRequest::Del(SwitchRef { switch: name.parse()? })),
            *output,
        ),
    }
}

impl Name {
    fn parse(&self) -> Result<SwitchName, NameError> {
        self.switch.parse()
    }
}

impl Settings {
    /// The program of a file, if one is to decide.
    fn program(&self) -> anyhow::Result<Option<ProgramSpec>> {
        let file = self.forwarding.as_ref().and_then(|choice| choice.program.as_deref());
        file.map(object_file::read).transpose()
    }

    fn spec(&self, name: &Name) -> anyhow::Result<SwitchSpec> {
        let all_ports = self.security.to_api();
        let settings = SwitchSettings {
            max_macs: all_ports.max_macs,
            mac_lock: all_ports.mac_lock,
            broadcast_limit: all_ports.broadcast_limit,
            multicast_limit: all_ports.multicast_limit,
            unknown_unicast_limit: all_ports.unknown_unicast_limit,
            bpdu_filter: all_ports.bpdu_filter,
            bpdu_guard: all_ports.bpdu_guard,
            loop_protect: all_ports.loop_protect,
            forwarding: self.forwarding.as_ref().map(|choice| choice.function),
            program: self.program()?,
            age_s: self.age,
            fdb_capacity: self.fdb_capacity,
            group_fwd_mask: self.group_fwd_mask,
            mcast_snooping: self.mcast_snooping,
            mcast_querier: self.mcast_querier,
            workers: self.workers,
            owner: user(self.owner.as_deref())?,
            group: group(self.group.as_deref())?,
            mode: self.mode,
            new_ports: self.new_ports,
            chains: None,
            rules: None,
        };
        Ok(SwitchSpec { switch: name.parse()?, settings })
    }
}

/// The UID of the user that an option names.
pub fn user(text: Option<&str>) -> Result<Option<u32>, Usage> {
    number(text, users::user_id, "user", "passwd")
}

/// The GID of the group that an option names.
pub fn group(text: Option<&str>) -> Result<Option<u32>, Usage> {
    number(text, users::group_id, "group", "group")
}

fn number(
    text: Option<&str>,
    id: fn(&str) -> Option<u32>,
    what: &str,
    file: &str,
) -> Result<Option<u32>, Usage> {
    let Some(text) = text else { return Ok(None) };
    let missing = || Usage(format!("there is no {what} {text:?} in /etc/{file}"));
    id(text).map(Some).ok_or_else(missing)
}

/// All switches that we may see.
pub fn list(connection: &Connection) -> anyhow::Result<Vec<SwitchInfo>> {
    Ok(listing::all(connection, |from| Request::Switch(SwitchRequest::List(PageFrom { from })))?)
}

fn table(switches: &[SwitchInfo]) -> String {
    let columns = [
        left("SWITCH", |info: &SwitchInfo| info.switch.to_string()),
        right("PORTS", |info| info.ports.to_string()),
        right("ADDRESSES", |info| info.fdb_entries.to_string()),
        left("FORWARDING", |info| info.forwarding.clone()),
        left("OWNER", |info| users::user_name(info.owner)),
        left("UNIX GROUP", |info| users::group_name(info.group)),
        left("MODE", |info| info.mode.to_string()),
        right("WORKER", worker),
        left("PERM", |info| yes(info.persistent)),
    ];
    Table::of(switches, &columns).fitted()
}

/// The worker of a switch, or that all run it.
fn worker(info: &SwitchInfo) -> String {
    match info.workers {
        RunBy::One => info.worker.to_string(),
        RunBy::All => "all".to_owned(),
    }
}

fn show(info: &SwitchInfo) -> String {
    let age = match info.age_s {
        0 => "no ageing".to_owned(),
        age => format!("ageing time {age} s"),
    };
    let stays = if info.persistent { "permanent" } else { "deleted with its last port" };
    let moves = format!(
        "{} moved, {} evicted, {} not learned: port limit, {} not learned: table full",
        info.fdb.moved, info.fdb.evicted, info.fdb.refused_limit, info.fdb.refused_full
    );
    let groups = match info.group_fwd_mask {
        0 => String::new(),
        mask => format!("forwards    reserved groups {mask:#06x}\n"),
    };
    let multicast = multicast(info);
    let text = format!(
        "switch      {} ({stays})\nports       {}\nforwarding  {}\n\
         addresses   {} of {}, {age}\n            {moves}\n\
         {groups}{multicast}owner       {}\ngroup       {}\nmode        {}\nnew ports   {}\n\
         worker      {}\n",
        info.switch,
        info.ports,
        info.forwarding,
        info.fdb_entries,
        info.fdb_capacity,
        users::user_name(info.owner),
        users::group_name(info.group),
        info.mode,
        info.new_ports,
        worker(info),
    );
    let looped = info.looped.as_ref().map(|looped| {
        let ([a, b], seconds) = (&looped.ports, looped.age_ms / 1000);
        format!("loop        between {a} and {b}: {} moves, {seconds} s ago\n", looped.mac)
    });
    let rows = security::rows(&info.port_settings).into_iter();
    let rows = rows.filter_map(|(name, value)| Some((name, value?)));
    let is_set = |(_, value): &(&str, String)| !matches!(&**value, "off" | "0" | "false");
    let rows = rows.filter(is_set).map(|(name, value)| format!("{name}={value}"));
    let all: Vec<_> = rows.collect();
    let all = (!all.is_empty()).then(|| format!("all ports   {}\n", all.join(" ")));
    text + &looped.unwrap_or_default() + &all.unwrap_or_default()
}

/// The line of a switch that snoops.
fn multicast(info: &SwitchInfo) -> String {
    let McastCounters { groups, members, queriers, refused_limit, refused_full, .. } = info.mcast;
    let asks = if info.mcast_querier { " and querier" } else { "" };
    let line = format!(
        "multicast   snooping{asks}: {groups} groups, {members} members, {queriers} queriers\n\
         {:12}{refused_limit} not learned: port limit, {refused_full} not learned: full\n",
        ""
    );
    if info.mcast_snooping { line } else { String::new() }
}

const EXAMPLES: &str = "\
Examples:
  uvala switch list --watch
  uvala switch add vale0 --group users --mode 660
  uvala switch set vale0 --mode 666 --new-ports owner    all users, on ports that you give them
  uvala switch set vale0 --forwarding hub --age 60
  uvala switch set vale0 --forwarding program:balance.o
  uvala switch add vale1 --workers all                   one switch on all cores of the daemon
  uvala switch set vale0 --mcast-snooping --mcast-querier
  uvala switch set vale0 --mac-lock first:1 --bpdu-guard --broadcast-limit 1000
  uvala switch del vale0";

//! `uvala chain` and `uvala rule`

use client::api::{
    ChainAdd, ChainInfo, ChainRef, ChainSpec, FlowCacheInfo, Mac, Reply, Request, RuleAdd, RuleDel,
    RuleInfo, RuleSpec, SteeringQuery,
};
use client::control::{Connection, unexpected};
use client::name::SwitchName;

use super::output::{Output, Watch};
use super::switch::change;
use super::{Global, Usage, listing};
use crate::table::{Align, Table};

/// List, add, change and delete chains of functions
///
/// A chain is services in order: a frame that enters it goes to one instance of each, and leaves
/// where its address is, or by a port. Frames enter by rules (uvala rule), or because of the port
/// by which they come in (uvala port set PORT --chain NAME).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// All chains of a switch
    #[command(alias = "show")]
    List {
        /// Name of the switch, such as vale0
        switch: String,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Make a chain, or another of one that there is; frames in it go on
    Add {
        /// Name of the switch, such as vale0
        switch: String,
        /// Name of the chain
        chain: String,
        /// Its services in order, at most 8, such as firewall,router; with @least behind a name,
        /// flows that begin go to the instance with most room, else a flow's hash says where
        #[arg(value_delimiter = ',', required = true)]
        services: Vec<String>,
        /// Where frames leave: a port of the switch [new: where their addresses are]
        #[arg(long, value_name = "PORT")]
        out: Option<String>,
        #[command(flatten)]
        output: Output,
    },
    /// Delete a chain that neither a rule nor a port uses
    Del {
        /// Name of the switch, such as vale0
        switch: String,
        /// Name of the chain
        chain: String,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs `uvala chain`.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List { switch, output, watch } => {
            let switch = switch.parse()?;
            watch.repeat(global, |connection, _| {
                output.print(&chains(connection, &switch)?, |rows| table(rows))
            })
        }
        Action::Add { switch, chain, services, out, output } => {
            let (name, services) = (chain.clone(), services.clone());
            let chain = ChainSpec { name, services, out: out.clone() };
            change(global, Request::ChainAdd(ChainAdd { switch: switch.parse()?, chain }), *output)
        }
        Action::Del { switch, chain, output } => {
            let del = ChainRef { switch: switch.parse()?, chain: chain.clone() };
            change(global, Request::ChainDel(del), *output)
        }
    }
}

/// All chains of a switch.
pub fn chains(connection: &Connection, switch: &SwitchName) -> anyhow::Result<Vec<ChainInfo>> {
    let ask = |from| Request::ChainList(SteeringQuery { switch: switch.clone(), from });
    Ok(listing::all(connection, ask)?)
}

fn table(chains: &[ChainInfo]) -> String {
    let mut table = Table::new(&[
        ("CHAIN", Align::Left),
        ("SERVICES", Align::Left),
        ("OUT", Align::Left),
        ("PORTS", Align::Left),
        ("ENTERED", Align::Right),
        ("SHED", Align::Right),
        ("DROPPED", Align::Left),
        ("STATE", Align::Left),
    ]);
    for info in chains {
        table.row([
            info.chain.name.clone(),
            info.chain.services.join(","),
            info.chain.out.clone().unwrap_or_else(|| "address".to_owned()),
            info.ports.join(","),
            info.entered.to_string(),
            info.shed.to_string(),
            dropped(info),
            info.broken.clone().unwrap_or_else(|| "ok".to_owned()),
        ]);
    }
    let mut text = table.to_string();
    if let Some(info) = chains.first() {
        let FlowCacheInfo { hits, misses, evicted } = info.flow_cache;
        text +=
            &format!("flows: {hits} frames of known ones, {misses} of others, {evicted} evicted\n");
    }
    text
}

/// What ended in a chain otherwise than by being shed.
fn dropped(info: &ChainInfo) -> String {
    let others = info.drops.iter().filter(|(reason, _)| *reason != "chain_full");
    let text = others.map(|(reason, frames)| format!("{frames} {reason}")).collect::<Vec<_>>();
    if text.is_empty() { "-".to_owned() } else { text.join(", ") }
}

/// List, add and delete rules
///
/// Of the rules that match a frame which comes in by an ordinary port, the one with the highest
/// priority says what becomes of it; without one, the chain of its port does.
#[derive(Debug, clap::Args)]
#[command(after_help = RULE_EXAMPLES)]
pub struct RuleArgs {
    #[command(subcommand)]
    action: RuleAction,
}

#[derive(Debug, clap::Subcommand)]
enum RuleAction {
    /// All rules of a switch, in the order in which they are tried
    #[command(alias = "show")]
    List {
        /// Name of the switch, such as vale0
        switch: String,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Add a rule, or change the one of that number
    Add {
        /// Name of the switch, such as vale0
        switch: String,
        /// What becomes of the frames: drop, forward (past all functions), chain:NAME or port:NAME
        action: String,
        #[command(flatten)]
        fields: Box<Fields>,
        #[command(flatten)]
        output: Output,
    },
    /// Delete rules
    Del {
        /// Name of the switch, such as vale0
        switch: String,
        /// Their numbers
        #[arg(required_unless_present = "all")]
        rules: Vec<u32>,
        /// All of them
        #[arg(long, conflicts_with = "rules")]
        all: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, clap::Args)]
struct Fields {
    /// Number of the rule [new: the next]
    #[arg(long, value_name = "N")]
    id: Option<u32>,
    /// Rules of a higher one are tried first
    #[arg(long, value_name = "N", default_value_t = 0)]
    priority: u32,
    /// Port by which the frame comes in
    #[arg(long = "in", value_name = "PORT")]
    port: Option<String>,
    /// Source address
    #[arg(long, value_name = "MAC")]
    src_mac: Option<Mac>,
    /// Destination address
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<Mac>,
    /// VLAN of the switch
    #[arg(long, value_name = "N")]
    vlan: Option<u16>,
    /// Type: ipv4, ipv6, arp, or a number such as 0x88cc
    #[arg(long, value_name = "TYPE")]
    ethertype: Option<String>,
    /// IP source, such as 10.0.0.0/8
    #[arg(long, value_name = "NETWORK")]
    src: Option<String>,
    /// IP destination
    #[arg(long, value_name = "NETWORK")]
    dst: Option<String>,
    /// IP protocol: tcp, udp, icmp, icmpv6, sctp, or a number
    #[arg(long, value_name = "PROTOCOL")]
    proto: Option<String>,
    /// Source port of TCP, UDP or SCTP, or a range: 1000-1999
    #[arg(long, value_name = "PORTS")]
    sport: Option<String>,
    /// Destination port, or a range
    #[arg(long, value_name = "PORTS")]
    dport: Option<String>,
}

impl Fields {
    fn rule(&self, action: &str) -> RuleSpec {
        RuleSpec {
            id: self.id,
            priority: self.priority,
            action: action.to_owned(),
            port: self.port.clone(),
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            vlan: self.vlan,
            ethertype: self.ethertype.clone(),
            src: self.src.clone(),
            dst: self.dst.clone(),
            proto: self.proto.clone(),
            sport: self.sport.clone(),
            dport: self.dport.clone(),
        }
    }
}

/// Runs `uvala rule`.
pub fn run_rule(global: &Global, args: &RuleArgs) -> anyhow::Result<()> {
    match &args.action {
        RuleAction::List { switch, output, watch } => {
            let switch = switch.parse()?;
            watch.repeat(global, |connection, _| {
                output.print(&rules(connection, &switch)?, |rows| rule_table(rows))
            })
        }
        RuleAction::Add { switch, action, fields, output } => {
            let add = RuleAdd { switch: switch.parse()?, rules: vec![fields.rule(action)] };
            match global.connect()?.call(Request::RuleAdd(add))? {
                Reply::RulesAdded(ids) => output.print(&ids, |_| String::new()),
                other => Err(unexpected(&other).into()),
            }
        }
        RuleAction::Del { switch, rules, all, output } => {
            if rules.is_empty() && !all {
                return Err(Usage("which rules? their numbers, or --all".to_owned()).into());
            }
            let del = RuleDel { switch: switch.parse()?, rules: rules.clone() };
            change(global, Request::RuleDel(del), *output)
        }
    }
}

fn rules(connection: &Connection, switch: &SwitchName) -> anyhow::Result<Vec<RuleInfo>> {
    let ask = |from| Request::RuleList(SteeringQuery { switch: switch.clone(), from });
    Ok(listing::all(connection, ask)?)
}

fn rule_table(rules: &[RuleInfo]) -> String {
    let mut table = Table::new(&[
        ("RULE", Align::Right),
        ("PRIORITY", Align::Right),
        ("FRAMES THAT", Align::Left),
        ("ACTION", Align::Left),
        ("FRAMES", Align::Right),
        ("BYTES", Align::Right),
    ]);
    for RuleInfo { rule, frames, bytes } in rules {
        table.row([
            rule.id.unwrap_or_default().to_string(),
            rule.priority.to_string(),
            condition(rule),
            rule.action.clone(),
            frames.to_string(),
            bytes.to_string(),
        ]);
    }
    table.to_string()
}

fn condition(rule: &RuleSpec) -> String {
    let text = |value: &Option<String>| value.clone();
    let parts = [
        ("in", text(&rule.port)),
        ("src-mac", rule.src_mac.map(|mac| mac.to_string())),
        ("dst-mac", rule.dst_mac.map(|mac| mac.to_string())),
        ("vlan", rule.vlan.map(|vlan| vlan.to_string())),
        ("ethertype", text(&rule.ethertype)),
        ("src", text(&rule.src)),
        ("dst", text(&rule.dst)),
        ("proto", text(&rule.proto)),
        ("sport", text(&rule.sport)),
        ("dport", text(&rule.dport)),
    ];
    let said = parts.iter().filter_map(|(name, value)| Some(format!("{name} {}", value.as_ref()?)));
    let said = said.collect::<Vec<_>>().join(" ");
    if said.is_empty() { "any".to_owned() } else { said }
}

const EXAMPLES: &str = "\
Examples:
  uvala switch add vale0 --forwarding chain
  uvala port add vale0:fw --service firewall
  uvala port add vale0:r1 --service router
  uvala chain add vale0 web firewall,router
  uvala port set vale0:uplink --chain web
  uvala chain list vale0 --watch";

const RULE_EXAMPLES: &str = "\
Examples:
  uvala rule add vale0 chain:web --proto tcp --dport 80
  uvala rule add vale0 drop --src 192.0.2.0/24 --priority 10
  uvala rule add vale0 forward --ethertype arp --priority 20
  uvala rule list vale0
  uvala rule del vale0 3";

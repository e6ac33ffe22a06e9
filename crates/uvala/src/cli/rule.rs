//! `uvala rule`

use client::control::{Connection, unexpected};
use packet::MacAddr;
use protocol::name::SwitchName;
use protocol::{Reply, Request, RuleAdd, RuleDel, RuleInfo, RuleRequest, RuleSpec, SteeringQuery};

use super::Global;
use super::listing::{self, OfSwitch};
use super::target::InSwitch;
use terminal::Usage;
use terminal::table::{Column, left, right};

/// List, add and delete rules
///
/// The matching rule with the highest priority decides what the switch does with a frame from an
/// ordinary port. A frame that no rule matches enters the chain of its port; if the port has none,
/// it goes to its destination address. Rules do not apply to frames that functions send.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the rules of a switch in the order of evaluation
    #[command(alias = "show")]
    List(OfSwitch),
    /// Add a rule, or replace the one with this number
    Add {
        #[command(flatten)]
        of: InSwitch,
        /// Action: drop, forward (to the destination address, past all chains), chain:NAME (into
        /// that chain) or port:NAME (out by that port)
        action: String,
        #[command(flatten)]
        fields: Box<Fields>,
    },
    /// Delete rules
    Del {
        #[command(flatten)]
        of: InSwitch,
        /// Numbers of the rules
        #[arg(required_unless_present = "all")]
        rules: Vec<u32>,
        /// Delete all rules of the switch
        #[arg(long, conflicts_with = "rules")]
        all: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Fields {
    /// Number of the rule [default: the next free one]
    #[arg(long, value_name = "N")]
    id: Option<u32>,
    /// Priority; rules of higher priority are evaluated first
    #[arg(long, value_name = "N", default_value_t = 0)]
    priority: u32,
    /// Ingress port
    #[arg(long = "in", value_name = "PORT")]
    port: Option<String>,
    /// Source MAC address
    #[arg(long, value_name = "MAC")]
    src_mac: Option<MacAddr>,
    /// Destination MAC address
    #[arg(long, value_name = "MAC")]
    dst_mac: Option<MacAddr>,
    /// VLAN ID
    #[arg(long, value_name = "N")]
    vlan: Option<u16>,
    /// EtherType: ipv4, ipv6, arp, or a number such as 0x88cc
    #[arg(long, value_name = "TYPE")]
    ethertype: Option<String>,
    /// Source IP network, such as 10.0.0.0/8
    #[arg(long, value_name = "NETWORK")]
    src: Option<String>,
    /// Destination IP network
    #[arg(long, value_name = "NETWORK")]
    dst: Option<String>,
    /// IP protocol: tcp, udp, icmp, icmpv6, sctp, or a number
    #[arg(long, value_name = "PROTOCOL")]
    proto: Option<String>,
    /// Source port of TCP, UDP or SCTP, or a range such as 1000-1999
    #[arg(long, value_name = "PORTS")]
    sport: Option<String>,
    /// Destination port of TCP, UDP or SCTP, or a range
    #[arg(long, value_name = "PORTS")]
    dport: Option<String>,
}

impl Fields {
    fn rule(&self, of: &InSwitch, action: &str) -> Result<RuleSpec, Usage> {
        let action = match action.strip_prefix("port:") {
            Some(to) => format!("port:{}", of.port(to)?),
            None => action.to_owned(),
        };
        Ok(RuleSpec {
            id: self.id,
            priority: self.priority,
            action,
            port: self.port.as_deref().map(|port| of.port(port)).transpose()?.map(str::to_owned),
            src_mac: self.src_mac,
            dst_mac: self.dst_mac,
            vlan: self.vlan,
            ethertype: self.ethertype.clone(),
            src: self.src.clone(),
            dst: self.dst.clone(),
            proto: self.proto.clone(),
            sport: self.sport.clone(),
            dport: self.dport.clone(),
        })
    }
}

/// Runs `uvala rule`.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List(of) => of.print(global, rules, &columns(), |_| String::new()),
        Action::Add { of, action, fields } => {
            let add = RuleAdd { switch: of.name()?, rules: vec![fields.rule(of, action)?] };
            match global.connect()?.call(Request::Rule(RuleRequest::Add(add)))? {
                Reply::RulesAdded(ids) => of.output.print(&ids, |_| String::new()),
                other => Err(unexpected(&other).into()),
            }
        }
        Action::Del { of, rules, all } => {
            if rules.is_empty() && !all {
                return Err(Usage("name rules by their numbers, or use --all".to_owned()).into());
            }
            let rules = rules.clone();
            of.change(global, |switch| Request::Rule(RuleRequest::Del(RuleDel { switch, rules })))
        }
    }
}

/// All rules of a switch.
pub fn rules(connection: &Connection, switch: &SwitchName) -> anyhow::Result<Vec<RuleInfo>> {
    let ask =
        |from| Request::Rule(RuleRequest::List(SteeringQuery { switch: switch.clone(), from }));
    Ok(listing::all(connection, ask)?)
}

fn columns() -> [Column<RuleInfo>; 7] {
    [
        right("RULE", |info| info.rule.id.unwrap_or_default().to_string()),
        right("PRIORITY", |info| info.rule.priority.to_string()),
        left("MATCH", |info| condition(&info.rule)),
        left("ACTION", |info| info.rule.action.clone()),
        right("FRAMES", |info| info.frames.to_string()),
        right("BYTES", |info| info.bytes.to_string()),
        left("STATE", |info| info.broken.clone().unwrap_or_else(|| "ok".to_owned())),
    ]
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
  uvala rule add vale0 chain:web --proto tcp --dport 80
  uvala rule add vale0 drop --src 192.0.2.0/24 --priority 10
  uvala rule add vale0 forward --ethertype arp --priority 20
  uvala rule list vale0
  uvala rule del vale0 3";

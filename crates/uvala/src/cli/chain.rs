//! `uvala chain`

use std::collections::BTreeSet;

use client::control::Connection;
use protocol::name::SwitchName;
use protocol::{
    ChainAdd, ChainInfo, ChainRef, ChainRequest, ChainSpec, DROP_REASONS, DropReason,
    FlowCacheInfo, NO_DIRECT_HOPS, Request, SteeringQuery,
};

use super::listing::{self, OfSwitch};
use super::target::InSwitch;
use super::{Global, Usage};
use terminal::table::{Column, left, right};

/// List, add, change and delete service chains
///
/// A chain is an ordered list of services. A frame that enters it visits one instance of each, and
/// leaves to its destination address, or by a fixed port. A rule (uvala rule) or the setting of its
/// ingress port (uvala port set PORT --chain NAME) sends a frame into a chain.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the chains of a switch
    ///
    /// PORTS are the ports whose frames enter the chain. ENTERED counts the frames that entered,
    /// SHED those that the switch dropped at the entrance because a later function had too little
    /// room (chain_full), LOST those in the rings of a function whose process ended. STATE says why
    /// no frame can pass now.
    #[command(alias = "show")]
    List(OfSwitch),
    /// Add a chain, or replace one; frames that are inside it continue
    Add {
        #[command(flatten)]
        of: InSwitch,
        /// Name of the chain
        chain: String,
        /// Services in order, at most 8, such as firewall,router. The flow's hash selects the
        /// instance of a service; with NAME@least, new flows, and flows after a pause, go to the
        /// instance with the most free slots
        #[arg(value_delimiter = ',', required = true)]
        services: Vec<String>,
        /// Port by which frames leave [default: by their destination address]
        #[arg(long, value_name = "PORT")]
        out: Option<String>,
        #[arg(long, hide = true)]
        direct: bool,
    },
    /// Delete a chain that neither a rule nor a port uses
    Del {
        #[command(flatten)]
        of: InSwitch,
        /// Name of the chain
        chain: String,
    },
}

/// Runs `uvala chain`.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List(of) => {
            of.print(global, chains, &columns(), |rows| reasons(rows) + &early(rows) + &flows(rows))
        }
        Action::Add { direct: true, .. } => Err(Usage(NO_DIRECT_HOPS.to_owned()).into()),
        Action::Add { of, chain, services, out, .. } => {
            let (name, services) = (chain.clone(), services.clone());
            let out = out.as_deref().map(|out| of.port(out)).transpose()?.map(str::to_owned);
            let chain = ChainSpec { name, services, out };
            of.change(global, |switch| {
                Request::Chain(ChainRequest::Add(ChainAdd { switch, chain }))
            })
        }
        Action::Del { of, chain } => {
            let chain = chain.clone();
            of.change(global, |switch| {
                Request::Chain(ChainRequest::Del(ChainRef { switch, chain }))
            })
        }
    }
}

/// All chains of a switch.
pub fn chains(connection: &Connection, switch: &SwitchName) -> anyhow::Result<Vec<ChainInfo>> {
    let ask =
        |from| Request::Chain(ChainRequest::List(SteeringQuery { switch: switch.clone(), from }));
    Ok(listing::all(connection, ask)?)
}

fn columns() -> [Column<ChainInfo>; 9] {
    [
        left("CHAIN", |info| info.chain.name.clone()),
        left("SERVICES", |info| info.chain.services.join(",")),
        left("OUT", |info| info.chain.out.clone().unwrap_or_else(|| "address".to_owned())),
        left("PORTS", |info| info.ports.join(",")),
        right("ENTERED", |info| info.entered.to_string()),
        right("SHED", |info| info.shed.to_string()),
        right("LOST", |info| info.lost.to_string()),
        left("DROPPED", dropped),
        left("STATE", |info| info.broken.clone().unwrap_or_else(|| "ok".to_owned())),
    ]
}

/// A line for each reason why frames ended: what it is, and what helps.
fn reasons(chains: &[ChainInfo]) -> String {
    let seen: BTreeSet<&str> =
        chains.iter().flat_map(|info| info.drops.keys().map(String::as_str)).collect();
    let all = DROP_REASONS.iter().filter(|reason| seen.contains(reason.name));
    let line =
        |reason: &DropReason| format!("{}: {} {}\n", reason.name, reason.explanation, reason.cure);
    all.map(line).collect()
}

/// A line for each chain in which frames may have been overtaken.
fn early(chains: &[ChainInfo]) -> String {
    let line = |info: &ChainInfo| {
        let (name, early) = (&info.chain.name, info.early);
        format!(
            "chain {name}: {early} times the switch let frames in after a change before older ones \
             had left, and may have reordered them\n"
        )
    };
    chains.iter().filter(|info| info.early > 0).map(line).collect()
}

/// What the chains of a switch know of flows together.
fn flows(chains: &[ChainInfo]) -> String {
    let Some(info) = chains.first() else { return String::new() };
    let FlowCacheInfo { hits, misses, evicted } = info.flow_cache;
    format!("flow cache: {hits} hits, {misses} misses, {evicted} evicted\n")
}

/// What ended in a chain otherwise than by being shed.
fn dropped(info: &ChainInfo) -> String {
    let others = info.drops.iter().filter(|(reason, _)| *reason != "chain_full");
    let text = others.map(|(reason, frames)| format!("{frames} {reason}")).collect::<Vec<_>>();
    if text.is_empty() { "-".to_owned() } else { text.join(", ") }
}

const EXAMPLES: &str = "\
Examples:
  uvala switch add vale0 --forwarding chain
  uvala port add vale0:fw --service firewall
  uvala port add vale0:r1 --service router
  uvala chain add vale0 web firewall,router
  uvala port set vale0:uplink --chain web
  uvala chain list vale0 --watch";

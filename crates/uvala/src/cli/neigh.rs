//! `uvala neigh`

use protocol::name::PortName;
use protocol::{FdbRequest, NeighEntry, NeighList, Request};

use super::Global;
use super::listing;
use super::output::{Output, Watch};
use terminal::table::{Column, Table, left, right};

/// List the IP addresses of stations that a port of kind vxlan knows
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all IP addresses that a port knows
    ///
    /// Those of stations of this host are learned from ARP and neighbour discovery. Those behind
    /// remotes come from a routing daemon (extern_learn), and the port answers requests for them,
    /// unless a frame of another host has named another station (disputed).
    List {
        /// Name of the port, of kind vxlan with --neigh-suppress
        port: PortName,
        #[command(flatten)]
        watch: Watch,
        #[command(flatten)]
        output: Output,
    },
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let Action::List { port, watch, output } = &args.action;
    let ask = |from| Request::Fdb(FdbRequest::Neigh(NeighList { port: port.clone(), from }));
    let text = |entries: &Vec<NeighEntry>| Table::of(entries, &columns()).fitted();
    watch.repeat(global, |connection, _| {
        output.print(&listing::all::<NeighEntry>(connection, ask)?, text)
    })
}

fn columns() -> [Column<NeighEntry>; 5] {
    [
        left("ADDRESS", |entry| entry.address.to_string()),
        right("VLAN", |entry| entry.vlan.map_or_else(|| "-".to_owned(), |it| it.to_string())),
        left("LLADDR", |entry| entry.mac.to_string()),
        right("AGE", |entry| match entry.extern_learn {
            true => "extern_learn".to_owned(),
            false => format!("{} s", entry.age_s),
        }),
        left("FLAGS", |entry| {
            let flags = [(entry.router, "router"), (entry.disputed, "disputed")];
            let set: Vec<_> = flags.iter().filter(|it| it.0).map(|it| it.1).collect();
            set.join(",")
        }),
    ]
}

const EXAMPLES: &str = "\
Example:
  uvala neigh list vale0:fabric";

//! `uvala mdb`

use client::control::Connection;
use packet::mcast::GroupAddr;
use protocol::name::SwitchName;
use protocol::{MdbChange, MdbEntry, MdbList, MdbRequest, Request, parse};

use super::Global;
use super::listing::{self, OfSwitch};
use super::output::Output;
use super::target::change;
use terminal::table::{Column, left, right};

/// List a switch's multicast database (MDB), add and delete static entries
///
/// With `uvala switch set --mcast-snooping`, frames of a multicast group go to the ports that have
/// members, and to router ports. The list shows members, router ports and queriers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List members of groups, router ports and queriers of a switch
    List(OfSwitch),
    /// Make a port a member of a group, whatever its hosts report
    ///
    /// The entry is a setting of the port (mcast_groups in the configuration): on a permanent port
    /// it stays until it or the port is deleted.
    Add(Entry),
    /// Delete a static entry
    Del(Entry),
}

#[derive(Debug, clap::Args)]
struct Entry {
    /// Name of the port, such as vale0:vm1
    port: String,
    /// The group: 239.1.1.1, ff15::7, or the MAC address of its frames
    group: GroupAddr,
    /// VLAN ID, 1 to 4094
    #[arg(long, default_value_t = 1, value_parser = parse::vlan)]
    vlan: u16,
    #[command(flatten)]
    output: Output,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List(of) => of.print(global, list, &columns(), |_| String::new()),
        Action::Add(entry) => entry.change(global, MdbRequest::Add),
        Action::Del(entry) => entry.change(global, MdbRequest::Del),
    }
}

impl Entry {
    fn change(&self, global: &Global, of: fn(MdbChange) -> MdbRequest) -> anyhow::Result<()> {
        let entry = MdbChange { port: self.port.parse()?, group: self.group, vlan: self.vlan };
        change(global, Request::Mdb(of(entry)), self.output)
    }
}

fn list(connection: &Connection, switch: &SwitchName) -> anyhow::Result<Vec<MdbEntry>> {
    let ask = |from| Request::Mdb(MdbRequest::List(MdbList { switch: switch.clone(), from }));
    Ok(listing::all(connection, ask)?)
}

fn columns() -> [Column<MdbEntry>; 4] {
    [
        left("GROUP", |entry: &MdbEntry| match entry {
            MdbEntry::Querier { family, address, .. } => format!("querier {address} ({family})"),
            MdbEntry::Router { family: Some(family), .. } => format!("router ({family})"),
            MdbEntry::Router { .. } => "router".to_owned(),
            MdbEntry::Member { group, .. } => group.to_string(),
        }),
        right("VLAN", |entry| match entry {
            MdbEntry::Querier { vlan, .. } | MdbEntry::Member { vlan, .. } => vlan.to_string(),
            MdbEntry::Router { vlan, .. } => {
                vlan.map_or_else(|| "all".to_owned(), |vlan| vlan.to_string())
            }
        }),
        left("PORT", |entry| match entry {
            MdbEntry::Querier { port: None, .. } => "the switch".to_owned(),
            MdbEntry::Querier { port: Some(port), .. }
            | MdbEntry::Router { port, .. }
            | MdbEntry::Member { port, .. } => port.to_string(),
        }),
        right("EXPIRES", |entry| match entry {
            MdbEntry::Querier { expires_s, .. }
            | MdbEntry::Router { expires_s, .. }
            | MdbEntry::Member { expires_s, .. } => {
                expires_s.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds} s"))
            }
        }),
    ]
}

const EXAMPLES: &str = "\
Examples:
  uvala switch set vale0 --mcast-snooping --mcast-querier
  uvala mdb list vale0
  uvala mdb add vale0:vm1 239.1.1.1 --vlan 10";

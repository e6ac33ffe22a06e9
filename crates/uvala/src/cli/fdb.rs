//! `uvala fdb`

use client::control::Connection;
use packet::MacAddr;
use protocol::name::SwitchName;
use protocol::parse;
use protocol::{FdbAdd, FdbDel, FdbEntry, FdbFlush, FdbList, FdbRequest, Request};

use super::Global;
use super::listing::{self, OfSwitch};
use super::output::Output;
use super::target::change;
use terminal::table::{Column, left, right};

/// List, add and delete entries of a switch's forwarding database (FDB)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all entries of a switch
    List(OfSwitch),
    /// Add a static FDB entry, which does not age and does not move
    ///
    /// On a permanent port (uvala port add), the entry stays until it or the port is deleted. On
    /// another port, it is deleted with the port.
    Add {
        /// Name of the port, such as vale0:vm1
        port: String,
        #[command(flatten)]
        address: Address,
        #[command(flatten)]
        output: Output,
    },
    /// Delete an entry
    Del {
        /// Name of the switch, such as vale0
        switch: String,
        #[command(flatten)]
        address: Address,
        #[command(flatten)]
        output: Output,
    },
    /// Delete all learned entries
    Flush {
        /// Name of the switch, such as vale0
        switch: String,
        /// Delete entries of this port only
        #[arg(long)]
        port: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, clap::Args)]
struct Address {
    /// MAC address, such as 02:00:00:00:00:01
    mac: MacAddr,
    /// VLAN ID, 1 to 4094
    #[arg(long, default_value_t = 1, value_parser = parse::vlan)]
    vlan: u16,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List(of) => of.print(global, list, &columns(), |_| String::new()),
        Action::Add { port, address: Address { mac, vlan }, output } => {
            let add = FdbAdd { port: port.parse()?, mac: *mac, vlan: *vlan };
            change(global, Request::Fdb(FdbRequest::Add(add)), *output)
        }
        Action::Del { switch, address: Address { mac, vlan }, output } => {
            let del = FdbDel { switch: switch.parse()?, mac: *mac, vlan: *vlan };
            change(global, Request::Fdb(FdbRequest::Del(del)), *output)
        }
        Action::Flush { switch, port, output } => {
            let port = port.as_deref().map(str::parse).transpose()?;
            let flush = FdbFlush { switch: switch.parse()?, port };
            change(global, Request::Fdb(FdbRequest::Flush(flush)), *output)
        }
    }
}

fn list(connection: &Connection, switch: &SwitchName) -> anyhow::Result<Vec<FdbEntry>> {
    let ask = |from| Request::Fdb(FdbRequest::List(FdbList { switch: switch.clone(), from }));
    let mut entries: Vec<FdbEntry> = listing::all(connection, ask)?;
    // The daemon's order is that of its hash table.
    entries.sort_by_key(|entry| (entry.vlan, entry.mac));
    Ok(entries)
}

fn columns() -> [Column<FdbEntry>; 4] {
    [
        left("ADDRESS", |entry| entry.mac.to_string()),
        right("VLAN", |entry| entry.vlan.to_string()),
        left("PORT", |entry| entry.port.to_string()),
        right("AGE", |entry| match entry.is_static {
            true => "static".to_owned(),
            false if entry.extern_learn => "extern_learn".to_owned(),
            false => format!("{} s", entry.age_s),
        }),
    ]
}

const EXAMPLES: &str = "\
Examples:
  uvala fdb list vale0
  uvala fdb add vale0:vm1 02:00:00:00:00:01 --vlan 10
  uvala fdb flush vale0 --port vale0:vm1";

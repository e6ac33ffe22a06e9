//! `uvala program`

use std::path::PathBuf;

use client::control::{Connection, unexpected};
use program::image::{Looks, to_hex};
use protocol::name::{PortName, SwitchName};
use protocol::{
    PortInfo, ProgramEntry, ProgramEntryRef, ProgramEntrySet, ProgramInfo, ProgramMap,
    ProgramMapQuery, ProgramRequest, Reply, Request, SwitchInfo, SwitchRef,
};

use super::output::Output;
use super::target::{self, InSwitch, change};
use super::{Global, listing, object_file, port, switch};
use terminal::table::{Table, left, right};
use terminal::{Usage, say};

mod text;

use text::{parse, show};

/// Show forwarding programs, and read and write their maps
///
/// A forwarding program is an eBPF function of your own that decides where a switch sends frames.
/// Load it, and replace it, with: uvala switch set SWITCH --forwarding program:FILE. Any other
/// forwarding function unloads it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the programs of the switches that you may see
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show the program of a switch: its decisions, its failures, its maps
    Show {
        #[command(flatten)]
        of: InSwitch,
    },
    /// Check an object file, without a daemon
    Check {
        /// Object file for eBPF, of a program in C or Rust
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Read and write the maps of a program
    #[command(subcommand)]
    Map(MapAction),
}

#[derive(Debug, clap::Subcommand)]
enum MapAction {
    /// List all entries of a map
    List {
        #[command(flatten)]
        map: MapName,
    },
    /// Show an entry; of an lpm map, that of the longest prefix
    Get {
        #[command(flatten)]
        map: MapName,
        /// Key: a number, a MAC or IP address, port:NAME, or hex:DIGITS; of an lpm map, a network
        key: String,
    },
    /// Set an entry, now and whenever the daemon starts
    Set {
        #[command(flatten)]
        map: MapName,
        /// Key, as for `get`
        key: String,
        /// Value: a number, an address, hex:DIGITS, or port:NAME, the number of a port of the
        /// switch; while that port carries no frames, there is no entry
        value: String,
    },
    /// Delete an entry
    Del {
        #[command(flatten)]
        map: MapName,
        /// Key, as for `get`
        key: String,
    },
}

#[derive(Debug, clap::Args)]
struct MapName {
    #[command(flatten)]
    of: InSwitch,
    /// Name of the map
    map: String,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List { output } => {
            let connection = global.connect()?;
            let programs = of(&connection, &switch::list(&connection)?)?;
            output.print(&programs, |all| table(all))
        }
        Action::Show { of } => of.output.print(&info(&global.connect()?, &of.name()?)?, details),
        Action::Check { file, output } => {
            object_file::read(file)?;
            output.done()
        }
        Action::Map(action) => run_map(global, action),
    }
}

fn run_map(global: &Global, action: &MapAction) -> anyhow::Result<()> {
    match action {
        MapAction::List { map } => {
            let (connection, of) = map.find(global)?;
            let switch = map.of.name()?;
            let entries = entries(&connection, &switch, &map.map)?;
            let ports = port::list(&connection, Some(&switch))?;
            map.of.output.print(&entries, |entries| shown(entries, &of, &ports))
        }
        MapAction::Get { map, key } => {
            let (connection, of) = map.find(global)?;
            let get = ProgramRequest::MapGet(map.key(key, &of)?);
            match connection.call(Request::Program(get))? {
                Reply::ProgramEntry(entry) => {
                    let ports = port::list(&connection, Some(&map.of.name()?))?;
                    map.of.output.print(&entry, |entry| value(entry, &of, &ports) + "\n")
                }
                other => Err(unexpected(&other).into()),
            }
        }
        MapAction::Set { map, key, value } => {
            let (_, of) = map.find(global)?;
            let ProgramEntryRef { switch, map: name, key } = map.key(key, &of)?;
            let value = map.bytes("value", value, of.value_bytes, false)?;
            let entry = ProgramEntry { map: name, key, value };
            let ports = [&entry.key, &entry.value].map(|it| it.strip_prefix("port:"));
            let ports = ports.into_iter().flatten().map(|port| switch.join(port));
            let ports = ports.collect::<Result<Vec<_>, _>>()?;
            let set = ProgramEntrySet { switch, entry };
            change(global, Request::Program(ProgramRequest::MapSet(set)), map.of.output)?;
            remark_idle(&global.connect()?, &ports)
        }
        MapAction::Del { map, key } => {
            let (_, of) = map.find(global)?;
            let del = ProgramRequest::MapDel(map.key(key, &of)?);
            change(global, Request::Program(del), map.of.output)
        }
    }
}

/// Says which of these ports carry no frames, so that the map has no entry that names them.
fn remark_idle(connection: &Connection, ports: &[PortName]) -> anyhow::Result<()> {
    let all = if ports.is_empty() { Vec::new() } else { port::list(connection, None)? };
    for name in ports {
        let is_there = all.iter().any(|it| it.port == *name && it.number.is_some());
        if !is_there {
            say::remark(format_args!(
                "uvala: {name} carries no frames now; the map has the entry while it does"
            ));
        }
    }
    Ok(())
}

impl MapName {
    /// The map, as the daemon describes it.
    fn find(&self, global: &Global) -> anyhow::Result<(Connection, ProgramMap)> {
        let (connection, name) = (global.connect()?, self.of.name()?);
        let maps = info(&connection, &name)?.maps;
        let names: Vec<String> = maps.iter().map(|map| map.map.clone()).collect();
        let found = maps.into_iter().find(|map| map.map == self.map);
        let found = found.ok_or_else(|| match names.is_empty() {
            true => Usage(format!("the program of {name} has no maps")),
            false => {
                let names = names.join(", ");
                Usage(format!("the program of {name} has no map {}, but {names}", self.map))
            }
        })?;
        Ok((connection, found))
    }

    fn key(&self, key: &str, map: &ProgramMap) -> anyhow::Result<ProgramEntryRef> {
        let key = self.bytes("key", key, map.key_bytes, map.kind == "lpm")?;
        Ok(ProgramEntryRef { switch: self.of.name()?, map: self.map.clone(), key })
    }

    /// What a request has for a key or a value.
    fn bytes(&self, what: &str, text: &str, bytes: u32, is_lpm: bool) -> Result<String, Usage> {
        if let Some(port) = text.strip_prefix("port:") {
            return Ok(format!("port:{}", self.of.port(port)?));
        }
        let read = parse(text, bytes as usize, is_lpm);
        let read = read.map_err(|why| Usage(format!("{what} {text:?}: {why}")))?;
        Ok(to_hex(&read))
    }
}

fn info(connection: &Connection, switch: &SwitchName) -> anyhow::Result<ProgramInfo> {
    let of = SwitchRef { switch: switch.clone() };
    match connection.call(Request::Program(ProgramRequest::Show(of)))? {
        Reply::Program(info) => Ok(info),
        other => Err(unexpected(&other).into()),
    }
}

/// The programs of some switches.
pub fn of(connection: &Connection, switches: &[SwitchInfo]) -> anyhow::Result<Vec<ProgramInfo>> {
    let programs = switches.iter().filter(|info| info.forwarding == "program");
    let infos = programs.map(|it| info(connection, &it.switch));
    infos.filter(|info| !is_not_there(info)).collect()
}

/// Whether a switch has no program, because the daemon refused the saved one.
pub fn is_missing(connection: &Connection, switch: &SwitchName) -> bool {
    is_not_there(&info(connection, switch))
}

fn is_not_there(info: &anyhow::Result<ProgramInfo>) -> bool {
    info.as_ref().is_err_and(target::is_missing)
}

fn entries(
    connection: &Connection,
    switch: &SwitchName,
    map: &str,
) -> anyhow::Result<Vec<ProgramEntry>> {
    let query = |from| ProgramMapQuery { switch: switch.clone(), map: map.to_owned(), from };
    let ask = |from| Request::Program(ProgramRequest::MapList(query(from)));
    Ok(listing::all(connection, ask)?)
}

fn table(programs: &[ProgramInfo]) -> String {
    let columns = [
        left("SWITCH", |info: &ProgramInfo| info.switch.to_string()),
        left("FUNCTION", |info| info.function.clone()),
        left("SEES", |info| info.looks.clone()),
        right("INSTRUCTIONS", |info| info.instructions.to_string()),
        right("MAPS", |info| info.maps.len().to_string()),
        right("DECISIONS", |info| info.runs.to_string()),
        right("FAILURES", |info| info.faults.to_string()),
    ];
    Table::of(programs, &columns).fitted()
}

fn details(info: &ProgramInfo) -> String {
    let sees = match &*info.looks {
        it if it == Looks::Packet.name() => "the first 96 bytes of each frame",
        _ => "addresses, type and VLAN tag",
    };
    let mut text = format!(
        "function    {}\nsees        {sees}\nsize        {} instructions, {} KiB\n\
         decisions   {}\nfailures    {}\n",
        info.function,
        info.instructions,
        info.memory.div_ceil(1024),
        info.runs,
        info.faults,
    );
    if let Some(fault) = &info.last_fault {
        text += &format!("            the last one {fault}\n");
    }
    let columns = [
        left("MAP", |map: &ProgramMap| map.map.clone()),
        left("KIND", |map| map.kind.clone()),
        right("KEY", |map| map.key_bytes.to_string()),
        right("VALUE", |map| map.value_bytes.to_string()),
        right("ENTRIES", |map| map.entries.to_string()),
        right("MAX", |map| map.max_entries.to_string()),
    ];
    match info.maps.is_empty() {
        true => text,
        false => text + &Table::of(&info.maps, &columns).fitted(),
    }
}

fn shown(entries: &[ProgramEntry], map: &ProgramMap, ports: &[PortInfo]) -> String {
    let row = |entry: &ProgramEntry| {
        let key = show(&entry.key, map.key_bytes as usize, map.kind == "lpm");
        (key, value(entry, map, ports))
    };
    let rows: Vec<(String, String)> = entries.iter().map(row).collect();
    let columns = [
        left("KEY", |row: &(String, String)| row.0.clone()),
        left("VALUE", |row: &(String, String)| row.1.clone()),
    ];
    Table::of(&rows, &columns).fitted()
}

/// The value of an entry, and why the map does not have it now.
fn value(entry: &ProgramEntry, map: &ProgramMap, ports: &[PortInfo]) -> String {
    let carries = |name: &str| ports.iter().any(|it| it.port.port() == name && it.number.is_some());
    let named = [&entry.key, &entry.value].map(|it| it.strip_prefix("port:"));
    let idle = named.into_iter().flatten().find(|name| !carries(name));
    let why = idle.map(|name| format!("  ({name} carries no frames)")).unwrap_or_default();
    show(&entry.value, map.value_bytes as usize, false) + &why
}

const EXAMPLES: &str = "\
Examples:
  clang -O2 -target bpf -c stations.c                    uvala_program.h has what it includes
  uvala program check stations.o
  uvala switch set vale0 --forwarding program:stations.o
  uvala program show vale0
  uvala program map set vale0 stations 02:00:00:00:00:01 port:web
  uvala program map list vale0 stations";

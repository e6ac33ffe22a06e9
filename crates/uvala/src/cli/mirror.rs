//! `uvala mirror`

use client::control::Connection;
use protocol::name::{PortName, SwitchName};
use protocol::parse;
use protocol::{
    Direction, ErrorCode, Failure, Mirror, PortInfo, PortRequest, PortSet, PortSettings, Request,
};

use super::output::{Output, Watch};
use super::target::{change, show};
use super::{Global, port};
use terminal::Usage;
use terminal::table::{Column, Table, left, right};

/// Copy what ports send and receive to a mirror port (SPAN)
///
/// A mirror port gets copies of the frames of other ports of its switch, and nothing else; what it
/// sends is dropped. No port waits for its copies: those that find no room at the mirror port are
/// lost, and counted there (uvala stats: no_room). The ports may come and go.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make a permanent port a mirror port, in place of what it mirrored before
    ///
    /// Only the switch's owner and root may.
    Add {
        /// Name of the mirror port, such as vale0:ids
        port: String,
        /// Ports to mirror, such as vale0:a,vale0:b; they may come later
        #[arg(long, value_name = "PORT,…", value_delimiter = ',', required = true)]
        from: Vec<String>,
        /// Frames that enter the switch by these ports (in), that leave by them (out), or both
        #[arg(long, value_name = "in|out|both", default_value = "both")]
        direction: Direction,
        /// Most copies per second; those beyond are dropped [default: no limit]
        #[arg(long, value_name = "FRAMES", value_parser = parse::positive32)]
        rate: Option<u32>,
        #[command(flatten)]
        output: Output,
    },
    /// List the mirror ports that you may see
    List {
        /// Show mirror ports of this switch only
        switch: Option<String>,
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        watch: Watch,
    },
    /// Make a mirror port an ordinary port again
    Del {
        /// Name of the mirror port, such as vale0:ids
        port: String,
        #[command(flatten)]
        output: Output,
    },
}

/// A mirror port in the listing.
#[derive(Debug, serde::Serialize)]
struct Row {
    port: PortName,
    from: Vec<String>,
    direction: Direction,
    rate: u32,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::Add { port, from, direction, rate, output } => {
            let port = port.parse::<PortName>()?;
            let from =
                from.iter().map(|from| within(&port, from)).collect::<anyhow::Result<_>>()?;
            let mirror = Mirror { from, direction: *direction, rate: rate.unwrap_or(0) };
            change(global, set(port, mirror), *output)
        }
        Action::List { switch, output, watch } => {
            let switch = switch.as_deref().map(str::parse).transpose()?;
            let text = |rows: &Vec<Row>| Table::of(rows, &columns()).fitted();
            watch.repeat(global, |connection, _| {
                output.print(&list(connection, switch.as_ref())?, text)
            })
        }
        Action::Del { port, output } => {
            let port = port.parse::<PortName>()?;
            if show(&global.connect()?, &port)?.settings.mirror.is_none() {
                let text = format!("{port} is no mirror port; see: uvala mirror list");
                return Err(Failure::new(ErrorCode::NotFound, text).into());
            }
            change(global, set(port, Mirror::default()), *output)
        }
    }
}

/// The name of a port within the switch of the mirror port.
fn within(mirror: &PortName, from: &str) -> anyhow::Result<String> {
    let from = from.parse::<PortName>()?;
    match from.switch() == mirror.switch() {
        // Of a pipe with its end, which the daemon refuses.
        true => Ok(from.to_string().split_off(from.switch().as_str().len() + 1)),
        false => Err(Usage(format!(
            "--from {from}: not a port of {}, the switch of {mirror}",
            mirror.switch()
        ))
        .into()),
    }
}

fn set(port: PortName, mirror: Mirror) -> Request {
    let settings = PortSettings { mirror: Some(mirror), ..PortSettings::default() };
    Request::Port(PortRequest::Set(Box::new(PortSet { port, settings, vxlan: None })))
}

fn list(connection: &Connection, switch: Option<&SwitchName>) -> anyhow::Result<Vec<Row>> {
    let row = |info: PortInfo| {
        let Mirror { from, direction, rate } = info.settings.mirror?;
        let from = from.into_iter().map(|from| format!("{}:{from}", info.port.switch()));
        Some(Row { from: from.collect(), port: info.port, direction, rate })
    };
    Ok(port::list(connection, switch)?.into_iter().filter_map(row).collect())
}

fn columns() -> [Column<Row>; 4] {
    [
        left("PORT", |row: &Row| row.port.to_string()),
        left("DIRECTION", |row| row.direction.to_string()),
        right("RATE", |row| if row.rate == 0 { "-".to_owned() } else { row.rate.to_string() }),
        left("FROM", |row| row.from.join(", ")),
    ]
}

const EXAMPLES: &str = "\
Examples:
  uvala port add vale0:ids
  uvala mirror add vale0:ids --from vale0:vm1,vale0:vm2
  uvala mirror add vale0:ids --from vale0:vm1 --direction in --rate 100000
  uvala run -- tcpdump -i vale0:ids
  uvala mirror del vale0:ids";

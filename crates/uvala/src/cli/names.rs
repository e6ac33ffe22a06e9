//! `uvala names`

use super::{Global, port, switch};
use terminal::say;

/// Print the names of switches and ports, for the completion of shells
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {}

/// Runs the subcommand.
pub fn run(global: &Global) -> anyhow::Result<()> {
    // A shell asks at each TAB: without a daemon, there is nothing to say.
    let Ok(connection) = global.connect() else { return Ok(()) };
    let switches = switch::list(&connection)?.into_iter().map(|info| info.switch.to_string());
    let ports = port::list(&connection, None)?.into_iter().map(|info| info.port.to_string());
    let names: String = switches.chain(ports).map(|name| name + "\n").collect();
    say::out(names)
}

//! `uvala names`

use client::control::Connection;

use super::{Global, port, switch};
use crate::doctor::gather;
use terminal::say;

/// Print the names of switches and ports, for the completion of shells
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {}

/// Runs the subcommand.
pub fn run(global: &Global) -> anyhow::Result<()> {
    // A shell asks at each TAB, and the user waits: without a daemon, or while it is stopped, there
    // is nothing to say.
    let Ok(connection) = Connection::open(global.dir.as_deref()) else { return Ok(()) };
    if gather::silent(&connection, false).is_some() {
        return Ok(());
    }
    let Ok(connection) = Global::begin(connection) else { return Ok(()) };
    let switches = switch::list(&connection)?.into_iter().map(|info| info.switch.to_string());
    let ports = port::list(&connection, None)?.into_iter().map(|info| info.port.to_string());
    let names: String = switches.chain(ports).map(|name| name + "\n").collect();
    say::out(names)
}

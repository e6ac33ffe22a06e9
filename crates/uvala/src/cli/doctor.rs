//! `uvala doctor`

use anyhow::Result;
use client::control::{ControlError, unexpected};
use protocol::paths;
use protocol::{Hello, Reply, Request, SessionRequest, exit};

use super::output::Output;
use super::{Global, port, switch, worker};
use crate::doctor::{self, Finding, gather};

/// Diagnose the daemon, its switches, its virtual machines and this host
///
/// Prints each problem with its cure, and changes nothing. The exit status is 1 if there is a
/// problem, else 0; notes do not count.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    output: Output,
}

/// Runs the subcommand; returns the exit status.
pub fn run(global: &Global, args: &Args) -> Result<u8> {
    let mut findings = daemon(global)?;
    findings.extend(gather::system());
    args.output.print(&findings, |findings| doctor::text(findings))?;
    Ok(if doctor::has_problems(&findings) { exit::FAILURE } else { exit::OK })
}

fn daemon(global: &Global) -> Result<Vec<Finding>> {
    let socket = paths::client_socket(global.dir.as_deref());
    let dir = socket.parent().unwrap_or(&socket);
    let connection = match global.connect() {
        Ok(connection) => connection,
        Err(error @ ControlError::NoDaemon(_)) => {
            let others = gather::daemons_elsewhere(dir);
            return Ok(vec![doctor::daemon_missing(&error.to_string(), &others)]);
        }
        Err(error @ (ControlError::Permission(_) | ControlError::Untrusted { .. })) => {
            return Ok(vec![doctor::daemon_closed(&error.to_string())]);
        }
        Err(error) => return Err(error.into()),
    };
    let info = match connection.call(Request::Session(SessionRequest::Hello(Hello {
        client: "uvala doctor".to_owned(),
    })))? {
        Reply::Daemon(info) => info,
        other => return Err(unexpected(&other).into()),
    };
    let (switches, ports) = (switch::list(&connection)?, port::list(&connection, None)?);
    let mut findings = gather::daemon(&info, &switches, &ports, dir);
    // A daemon of an earlier version has no such call.
    findings.extend(doctor::stalls(&worker::workers(&connection).unwrap_or_default()));
    Ok(findings)
}

const EXAMPLES: &str = "\
Examples:
  uvala doctor
  uvala doctor --json";

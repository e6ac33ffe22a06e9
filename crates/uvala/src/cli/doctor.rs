//! `uvala doctor`

use std::path::PathBuf;

use anyhow::Result;
use client::control::{Connection, ControlError};
use protocol::paths;
use protocol::{DaemonInfo, Reply, Request, StatsQuery, SwitchInfo, UsageRequest, exit};

use super::output::Output;
use super::{Global, chain, forwarding_program, port, stats, switch, worker};
use crate::doctor::{self, Finding, gather};

/// Diagnose the daemon, its switches, its virtual machines and this host
///
/// Prints each problem with its cure, and changes nothing. The exit status is 1 if there is a
/// problem, else 0; notes do not count. With FILE, checks a configuration of a daemon on this host
/// instead, without a daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file to check
    file: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// Runs the subcommand; returns the exit status.
pub fn run(global: &Global, args: &Args) -> Result<u8> {
    let findings = match &args.file {
        Some(file) => doctor::configuration(file),
        None => daemon_and_host(global)?,
    };
    args.output.print(&findings, |findings| doctor::text(findings))?;
    Ok(if doctor::has_problems(&findings) { exit::FAILURE } else { exit::OK })
}

fn daemon_and_host(global: &Global) -> Result<Vec<Finding>> {
    let mut has_machines = false;
    let mut findings = match answering(global)? {
        Ok((connection, info)) => daemon(global, &connection, &info, &mut has_machines)?,
        Err(finding) => vec![finding],
    };
    findings.extend(gather::system(has_machines));
    Ok(findings)
}

/// The daemon, or why there is none that answers.
fn answering(global: &Global) -> Result<Result<(Connection, DaemonInfo), Finding>> {
    let socket = paths::client_socket(global.dir.as_deref());
    let dir = socket.parent().unwrap_or(&socket);
    let connection = match Connection::connect(&socket) {
        Ok(connection) => connection,
        Err(error @ ControlError::NoDaemon(_)) => {
            let is_chosen = paths::is_chosen(global.dir.as_deref());
            let others = (!is_chosen).then(|| gather::daemons_elsewhere(dir));
            let (why, locker) = (error.to_string(), gather::locker(dir));
            return Ok(Err(doctor::daemon_missing(&why, locker, others.as_deref())));
        }
        Err(error @ (ControlError::Permission(_) | ControlError::Untrusted { .. })) => {
            return Ok(Err(doctor::daemon_closed(&error.to_string())));
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(finding) = gather::silent(&connection, false) {
        return Ok(Err(finding));
    }
    match connection.hello("uvala doctor") {
        Ok(info) => Ok(Ok((connection, info))),
        Err(error @ ControlError::Timeout(_)) => match gather::silent(&connection, true) {
            Some(finding) => Ok(Err(finding)),
            None => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

fn daemon(
    global: &Global,
    connection: &Connection,
    info: &DaemonInfo,
    has_machines: &mut bool,
) -> Result<Vec<Finding>> {
    let socket = paths::client_socket(global.dir.as_deref());
    let dir = socket.parent().unwrap_or(&socket);
    let (switches, ports) = (switch::list(connection)?, port::list(connection, None)?);
    *has_machines = ports.iter().any(|port| port.machine.is_some());
    let mut findings = gather::daemon(info, &switches, &ports, dir);
    let counted = stats::snapshot(connection, &StatsQuery::default())?.ports;
    findings.extend(doctor::tunnels(&ports, &counted));
    findings.extend(doctor::failing(&counted));
    let programmed = switches.iter().filter(|info| info.forwarding == "program");
    let refused =
        programmed.filter(|info| forwarding_program::is_missing(connection, &info.switch));
    findings.extend(refused.map(|info| doctor::missing(&info.switch)));
    // A daemon of an earlier version has no such calls.
    findings.extend(doctor::stalls(&worker::workers(connection).unwrap_or_default()));
    if let Ok(Reply::Usage(usage)) = connection.call(Request::Usage(UsageRequest::Show)) {
        findings.extend(doctor::unsaved(&usage.unsaved, usage.unsaved_files));
        findings.extend(doctor::forgotten(&usage.forgotten));
    }
    for SwitchInfo { switch, .. } in switches.iter().filter(|info| info.forwarding == "chain") {
        // The switch may be gone by now.
        let chains = chain::chains(connection, switch).unwrap_or_default();
        findings.extend(doctor::chains(switch, &chains));
    }
    Ok(findings)
}

const EXAMPLES: &str = "\
Examples:
  uvala doctor
  uvala doctor --json
  uvala doctor /etc/uvala.toml        before the daemon is restarted";

//! What the daemon counts at one moment, as far as `uvala top` shows it.

use std::collections::{BTreeMap, HashMap};
use std::time::{SystemTime, UNIX_EPOCH};

use client::control::Connection;
use protocol::name::{PortName, SwitchName};
use protocol::{ChainInfo, FunctionInfo, PortInfo, PortStats, StatsQuery, SwitchInfo, WorkerInfo};

use crate::cli::target::is_missing;
use crate::cli::{chain, nf, port, stats, switch, worker};

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The daemon's clock.
    pub at_ns: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    pub stats: Vec<PortStats>,
    pub ports: BTreeMap<PortName, Known>,
    pub workers: Vec<WorkerInfo>,
    pub functions: HashMap<PortName, FunctionInfo>,
    pub chains: Vec<(SwitchName, ChainInfo)>,
}

/// A port, apart from its counters.
#[derive(Clone, Debug)]
pub struct Known {
    pub info: PortInfo,
    /// The program behind it: its PID and its name.
    pub program: Option<(u32, String)>,
}

/// Asks the daemon for all ports that this user may see, or for those of one switch.
pub fn take(connection: &Connection, only: Option<&SwitchName>) -> anyhow::Result<Sample> {
    let query = StatsQuery { switch: only.cloned(), ..StatsQuery::default() };
    let counters = stats::snapshot(connection, &query)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ports = port::list(connection, only)?.into_iter();
    let mut sample = Sample {
        at_ns: counters.at_ns,
        time_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        stats: counters.ports,
        ports: ports.map(|info| (info.port.clone(), known(info))).collect(),
        workers: worker::workers(connection)?,
        ..Sample::default()
    };
    let has_chains = |info: &SwitchInfo| {
        info.forwarding == "chain" && only.is_none_or(|only| *only == info.switch)
    };
    for info in switch::list(connection)?.into_iter().filter(has_chains) {
        match add_chains(&mut sample, connection, &info.switch) {
            Err(error) if is_missing(&error) => {}
            added => added?,
        }
    }
    Ok(sample)
}

fn add_chains(
    sample: &mut Sample,
    connection: &Connection,
    switch: &SwitchName,
) -> anyhow::Result<()> {
    let functions = nf::functions(connection, Some(switch))?.into_iter();
    sample.functions.extend(functions.map(|info| (info.port.clone(), info)));
    let chains = chain::chains(connection, switch)?.into_iter();
    sample.chains.extend(chains.map(|info| (switch.clone(), info)));
    Ok(())
}

fn known(info: PortInfo) -> Known {
    let pid = port::vmm(&info).or(info.client.as_ref().map(|client| client.pid));
    let name = port::client_name(&info).unwrap_or_default();
    Known { program: pid.map(|pid| (pid, name)), info }
}

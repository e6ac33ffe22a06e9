//! `uvala metrics`: what there is to measure, as Prometheus reads it.
//!
//! The command asks the daemon, as any client does, and sees what its user may see; each module
//! adds the samples of its subject to a [`Page`]. The daemon itself knows nothing of HTTP: [`http`]
//! serves the text from a process of its own, whose faults are no faults of the switch.

mod daemon;
mod functions;
mod http;
mod page;
mod programs;
mod switches;

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, Builder};

use anyhow::Context;
use client::control::{Connection, ControlError, unexpected};
use confine::{Access, Files, Mode, Thread};
use protocol::{
    ChainInfo, DaemonInfo, FunctionInfo, PageFrom, PortInfo, PortList, PortRequest, ProgramInfo,
    Reply, Request, RuleInfo, StatsQuery, SwitchInfo, Usage, UsageRequest, UserUsage, WorkerInfo,
};

use super::target::is_missing;
use super::{Global, chain, forwarding_program, listing, nf, rule, stats, switch, worker};
use http::Server;
use page::{Family, Kind, Labels, Page};
use terminal::place::Place;
use terminal::{remover, say};

/// Print metrics for Prometheus, or serve them
///
/// Prints counters and gauges of the daemon, its workers, users, switches, ports, tunnels,
/// functions, chains, rules and forwarding programs in the Prometheus text format: once, for the
/// textfile collector of node_exporter, or with --listen by HTTP to each client that asks, until
/// SIGTERM. The metrics are those that this user may see. All rules of a switch after the first 256
/// are summed under the name others.
///
/// While the daemon does not answer, the only metric is uvala_up 0; a command that prints once then
/// has exit status 3.
///
/// The server is for this machine or a trusted network: it has neither TLS nor passwords. At most
/// 16 clients are connected at once; the next one takes the place of the oldest.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Serve by HTTP at ADDRESS:PORT or unix:PATH [default: 127.0.0.1:9776]
    #[arg(
        long,
        value_name = "PLACE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:9776"
    )]
    listen: Option<Place>,
}

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let Some(place) = &args.listen else { return once(global) };
    let refused =
        |error| anyhow::anyhow!("cannot listen at {place}: {error}; choose another place");
    let server = Server::bind(place.clone()).map_err(refused)?;
    // Once confined, this process may not remove its socket.
    let cannot = "cannot start the process that removes the socket";
    let _remover = match server.place() {
        Place::Unix(path) => Some(remover::start_for(path).context(cannot)?),
        Place::Tcp(_) => None,
    };
    let path = if matches!(place, Place::Tcp(_)) { "/metrics" } else { "" };
    say::remark(format_args!("uvala: metrics at {}{}", server.place(), path));
    if !server.place().is_local() {
        say::remark("uvala: all who reach that address can read them: there is no password");
    }
    confine()?;
    let (global, page) = (global.clone(), Mutex::default());
    server.run(page::CONTENT_TYPE, move || {
        serve(&global, &mut page.lock().unwrap_or_else(PoisonError::into_inner))
    });
    Ok(())
}

/// Leaves the process what it needs to answer: its socket is open, and the daemon's is one that it
/// connects to.
fn confine() -> anyhow::Result<()> {
    let files = Files::none()
        .and("/proc", Access::Read)
        .and("/sys/devices/system/cpu", Access::Read)
        // Names of users.
        .and("/etc/passwd", Access::Read);
    let report = confine::enter(Mode::On, Thread::Exporter, &files).context("cannot confine it")?;
    if !report.is_whole() {
        say::remark(format_args!("uvala: the server is confined in part: {report}"));
    }
    Ok(())
}

/// Prints the text, also where there is no daemon: the one that was written before says that there
/// is one.
fn once(global: &Global) -> anyhow::Result<()> {
    let said = text(global, &mut Page::default());
    if said.as_ref().is_err_and(is_down) {
        say::out(down())?;
    }
    say::out(said?)
}

/// The text now; also where there is no daemon.
fn serve(global: &Global, page: &mut Page) -> Result<String, String> {
    text(global, page).or_else(|error| match is_down(&error) {
        true => Ok(down()),
        false => Err(format!("{error:#}")),
    })
}

/// Whether no daemon answers.
fn is_down(error: &anyhow::Error) -> bool {
    use ControlError::{Lost, NoDaemon, Timeout};
    matches!(error.downcast_ref(), Some(NoDaemon(_) | Timeout(_) | Lost(_)))
}

/// The families of this module.
const FAMILIES: [Family; 1] = [("up", Kind::Gauge, "Whether the daemon answers.")];

/// What a daemon says of itself, its ports apart.
struct Seen {
    info: DaemonInfo,
    usage: Usage,
    users: Vec<UserUsage>,
    workers: Vec<WorkerInfo>,
    switches: Vec<(SwitchInfo, Option<Steering>)>,
    programs: Vec<ProgramInfo>,
}

/// What a switch with chains has.
struct Steering {
    functions: Vec<FunctionInfo>,
    chains: Vec<ChainInfo>,
    rules: Vec<RuleInfo>,
}

/// The text for what the daemon has. The samples of the page go; its memory is used again.
fn text(global: &Global, page: &mut Page) -> anyhow::Result<String> {
    let connection = &global.connect()?;
    let seen = gather(connection, introduce(connection)?)?;
    page.clear();
    page.add("up", &Labels::default(), 1);
    daemon::add(page, &seen);
    seen.switches.iter().for_each(|(info, _)| switches::switch(page, info));
    let other = &global.connect_quietly()?;
    introduce(other)?;
    ports(connection, other, page)?;
    seen.programs.iter().for_each(|info| programs::add(page, info));
    for (info, steering) in &seen.switches {
        let own = Labels::of("switch", info.switch.as_str());
        steering.iter().for_each(|steering| functions::add(page, &own, steering));
    }
    Ok(page.text(families()))
}

/// The text for a daemon that does not answer.
fn down() -> String {
    let mut page = Page::default();
    page.add("up", &Labels::default(), 0);
    page.text(families())
}

fn families() -> impl Iterator<Item = Family> {
    let own = FAMILIES.into_iter().chain(daemon::FAMILIES).chain(switches::FAMILIES);
    own.chain(programs::FAMILIES).chain(functions::FAMILIES)
}

/// Says who asks; the answer is the daemon's own.
fn introduce(connection: &Connection) -> Result<DaemonInfo, ControlError> {
    connection.hello(concat!("uvala metrics ", env!("CARGO_PKG_VERSION")))
}

fn gather(connection: &Connection, info: DaemonInfo) -> anyhow::Result<Seen> {
    let usage = match connection.call(Request::Usage(UsageRequest::Show))? {
        Reply::Usage(usage) => usage,
        other => return Err(unexpected(&other).into()),
    };
    let users =
        listing::all(connection, |from| Request::Usage(UsageRequest::Users(PageFrom { from })))?;
    let all = switch::list(connection)?;
    let programs = forwarding_program::of(connection, &all)?;
    let mut switches = Vec::new();
    for info in all {
        let steering = steering(connection, &info)?;
        switches.push((info, steering));
    }
    Ok(Seen { info, usage, users, workers: worker::workers(connection)?, switches, programs })
}

/// Adds all ports, without settings that no metric is of, and their counters, which come over a
/// connection of their own: while one answer is read, the daemon makes another.
fn ports(connection: &Connection, other: &Connection, page: &mut Page) -> anyhow::Result<()> {
    let list = |from| PortList { brief: true, from, ..PortList::default() };
    let ask = |from| Request::Port(PortRequest::List(list(from)));
    let (give, counted) = mpsc::channel();
    thread::scope(|scope| {
        let ask_stats = move || {
            let give = |all| give.send(all).expect("the receiver outlives the thread");
            stats::each(other, &StatsQuery::default(), give).map(drop)
        };
        let asked = Builder::new().name("counters".to_owned()).spawn_scoped(scope, ask_stats)?;
        let add = |ports: Vec<PortInfo>| ports.iter().for_each(|info| switches::port(page, info));
        client::listing::each(|request| connection.call(request), ask, add)?;
        counted.iter().flatten().for_each(|stats| switches::counters(page, &stats));
        asked.join().expect("no panic")
    })
}

/// `None`: the switch has no chains, or is gone.
fn steering(connection: &Connection, info: &SwitchInfo) -> anyhow::Result<Option<Steering>> {
    if info.forwarding != "chain" {
        return Ok(None);
    }
    let ask = || {
        let functions = nf::functions(connection, Some(&info.switch))?;
        let chains = chain::chains(connection, &info.switch)?;
        let rules = rule::rules(connection, &info.switch)?;
        anyhow::Ok(Steering { functions, chains, rules })
    };
    match ask() {
        Err(error) if is_missing(&error) => Ok(None),
        asked => asked.map(Some),
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala metrics > uvala.tmp; mv uvala.tmp /var/lib/prometheus/node-exporter/uvala.prom
  uvala metrics --listen                      http://127.0.0.1:9776/metrics
  uvala metrics --listen=192.0.2.1:9776
  uvala metrics --listen=unix:/run/uvala-metrics/socket";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_no_family_stands_twice() {
        let mut names: Vec<_> = families().map(|(name, ..)| name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        for (name, kind, help) in families() {
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
            assert!(help.ends_with('.'), "{name}: {help}");
        }
    }

    #[test]
    fn test_a_daemon_that_is_down_is_a_sample() {
        assert!(down().ends_with("# TYPE uvala_up gauge\nuvala_up 0\n"), "{}", down());
    }
}

//! `uvala audit`

use std::time::Duration;

use anyhow::bail;
use client::control::{Connection, ControlError};
use protocol::users::{group_name, user_name};
use protocol::{GroupAudit, GroupRequest, PageFrom, Request};

use super::output::Output;
use super::{Global, listing};
use terminal::table::{Align, Table};

/// Audit the buffers of trust groups
///
/// Shows how many buffers each member holds: in slots of its transmit and receive rings, in its
/// list of extra buffers, or kept (taken out of all of these by the client). INITIAL is the number
/// that the member got when it joined; WRONG counts places with a buffer that belongs to another
/// member, or is in a second place, too. The switch counts between two batches, when it holds none
/// itself. Fails if buffers of a group are missing.
///
/// A second table shows, in MiB, the maximum size of each group's memory region, which counts in
/// the quota of the user that created the group, and how much of it is in use. For groups that the
/// daemon's configuration declares, it also shows the Unix group and the mode.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    output: Output,
}

/// Looks that a group gets: what clients of two workers exchange meanwhile is seen twice.
const LOOKS: usize = 3;

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let connection = global.connect()?;
    let mut groups = audit(&connection)?;
    for _ in 1..LOOKS {
        if groups.iter().all(|group| group.problem().is_none()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        groups = audit(&connection)?;
    }
    args.output.print(&groups, |rows| format!("{}\n{}", table(rows), memory(rows)))?;
    let problem = |group: &GroupAudit| Some(format!("group {}: {}", group.group, group.problem()?));
    let problems: Vec<_> = groups.iter().filter_map(problem).collect();
    if !problems.is_empty() {
        bail!("{}", problems.join("; "));
    }
    Ok(())
}

fn audit(connection: &Connection) -> Result<Vec<GroupAudit>, ControlError> {
    let parts =
        listing::all(connection, |from| Request::Group(GroupRequest::Audit(PageFrom { from })))?;
    Ok(GroupAudit::whole(parts))
}

fn table(groups: &[GroupAudit]) -> String {
    let mut table = Table::new(&[
        ("TRUST GROUP", Align::Left),
        ("UID", Align::Right),
        ("MEMBER", Align::Left),
        ("BUFFERS", Align::Right),
        ("INITIAL", Align::Right),
        ("TX", Align::Right),
        ("RX", Align::Right),
        ("EXTRA", Align::Right),
        ("KEPT", Align::Right),
        ("WRONG", Align::Right),
    ]);
    let none = || "-".to_owned();
    for group in groups {
        let whole = |who: &str, count: u32| {
            let ends = [group.group.clone(), group.uid.to_string(), who.to_owned()];
            ends.into_iter().chain([count.to_string()]).chain((0..6).map(|_| none()))
        };
        for member in &group.members {
            let counts = [
                member.owned,
                member.given,
                member.tx,
                member.rx,
                member.extra,
                member.kept,
                member.wrong,
            ];
            let ends = [group.group.clone(), group.uid.to_string(), member.port.to_string()];
            table.row(ends.into_iter().chain(counts.iter().map(u32::to_string)));
        }
        table.row(whole("free", group.free));
        table.row(whole("all", group.buffers));
    }
    table.fitted()
}

/// The memory of regions, and the users that pay for it.
fn memory(groups: &[GroupAudit]) -> String {
    let mut table = Table::new(&[
        ("TRUST GROUP", Align::Left),
        ("UID", Align::Right),
        ("MIB", Align::Right),
        ("COMMITTED", Align::Right),
        ("CHARGED TO", Align::Left),
        ("UNIX GROUP", Align::Left),
        ("MODE", Align::Left),
    ]);
    let none = || "-".to_owned();
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for group in groups {
        let ends = [group.group.clone(), group.uid.to_string()];
        let numbers = [mib(group.memory), mib(group.committed), user_name(group.charged_to)];
        let access = group.access.map(|it| (it.group.map(group_name), it.mode.to_string()));
        let (with, mode) = access.unwrap_or_else(|| (None, none()));
        table.row(ends.into_iter().chain(numbers).chain([with.unwrap_or_else(none), mode]));
    }
    table.fitted()
}

const EXAMPLES: &str = "\
Examples:
  uvala audit
  uvala audit --json";

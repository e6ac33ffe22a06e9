//! `uvala nf top`: what functions do now, the busiest first.

use std::collections::HashMap;
use std::time::Instant;

use protocol::FunctionInfo;
use protocol::name::{PortName, SwitchName};
use serde::Serialize;

use super::{Output, Watch, counts, functions, state};
use crate::cli::Global;
use crate::cli::rates::Interval;
use terminal::table::{Table, left, or_dash, right};

/// A function, and what it has done in a second.
#[derive(Debug, Serialize)]
pub struct Busy {
    #[serde(flatten)]
    pub info: FunctionInfo,
    /// Share of a core, in percent; not known of processes that are not here.
    pub cpu_percent: Option<f64>,
    pub frames_in_per_s: f64,
    pub frames_out_per_s: f64,
    pub no_room_per_s: f64,
    pub dropped_per_s: f64,
}

/// Shows them again and again.
pub fn run(
    global: &Global,
    switch: Option<&SwitchName>,
    every_s: u64,
    output: Output,
) -> anyhow::Result<()> {
    let mut before: Option<(Instant, HashMap<PortName, FunctionInfo>)> = None;
    Watch::every(every_s).repeat(global, |connection, again| {
        let (now, infos) = (Instant::now(), functions(connection, switch)?);
        let seen: HashMap<_, _> = infos.into_iter().map(|info| (info.port.clone(), info)).collect();
        // Of another daemon's counters nothing can be taken away.
        if let Some((then, old)) = before.take().filter(|_| again) {
            let interval = Interval(now.duration_since(then));
            output.print(&busiest(&seen, &old, interval), |rows| table(rows))?;
        }
        before = Some((now, seen));
        Ok(())
    })
}

/// What instances have done since the look before, the busiest first.
pub fn busiest(
    seen: &HashMap<PortName, FunctionInfo>,
    old: &HashMap<PortName, FunctionInfo>,
    interval: Interval,
) -> Vec<Busy> {
    let mut all: Vec<Busy> =
        seen.iter().map(|(port, seen)| busy(seen, old.get(port), interval)).collect();
    all.sort_by(|a, b| {
        let by_load = b.frames_in_per_s.total_cmp(&a.frames_in_per_s);
        by_load.then(b.info.waiting.cmp(&a.info.waiting)).then(a.info.port.cmp(&b.info.port))
    });
    all
}

fn busy(seen: &FunctionInfo, old: Option<&FunctionInfo>, interval: Interval) -> Busy {
    let rate = |count: fn(&FunctionInfo) -> u64| {
        old.map_or(0.0, |old| interval.growth(count(old), count(seen)))
    };
    let same = old.filter(|old| (old.pid, old.thread) == (seen.pid, seen.thread));
    Busy {
        // A millisecond in a second is a tenth of a percent.
        cpu_percent: same.and_then(|old| Some(interval.growth(old.cpu_ms?, seen.cpu_ms?) / 10.0)),
        frames_in_per_s: rate(|info| info.frames_in),
        frames_out_per_s: rate(|info| info.frames_out),
        no_room_per_s: rate(|info| info.no_room),
        dropped_per_s: rate(|info| info.dropped),
        info: seen.clone(),
    }
}

fn table(rows: &[Busy]) -> String {
    let columns = [
        left("SERVICE", |row: &Busy| row.info.service.clone()),
        right("INSTANCE", |row| row.info.instance.to_string()),
        left("PORT", |row| row.info.port.to_string()),
        right("PID", |row| or_dash(row.info.pid)),
        left("STATE", |row| state(&row.info).to_owned()),
        right("CORES", |row| or_dash(row.info.cores.as_ref())),
        right("CPU", |row| or_dash(row.cpu_percent.map(|percent| format!("{percent:.0} %")))),
        right("WAITING", |row| row.info.waiting.to_string()),
        right("IN/S", |row| format!("{:.0}", row.frames_in_per_s)),
        right("OUT/S", |row| format!("{:.0}", row.frames_out_per_s)),
        right("NO ROOM/S", |row| format!("{:.0}", row.no_room_per_s)),
        right("DROPPED/S", |row| format!("{:.0}", row.dropped_per_s)),
    ];
    Table::of(rows, &columns).fitted() + &counts(rows.iter().map(|row| &row.info))
}

/// A function that has sent on all frames that it got.
#[cfg(test)]
pub fn function_for_tests(port: &str, pid: u32, frames_in: u64, cpu_ms: u64) -> FunctionInfo {
    FunctionInfo {
        service: "fw".to_owned(),
        number: 1,
        instance: 0,
        port: port.parse().unwrap(),
        pid: Some(pid),
        user: None,
        trust_group: None,
        waiting: 0,
        capacity: 1023,
        cpu_ms: Some(cpu_ms),
        thread: None,
        cores: None,
        stalled: false,
        frames_in,
        frames_out: frames_in,
        called_in: 0,
        called_out: 0,
        lost: 0,
        no_room: 0,
        dropped: 0,
        drops: std::collections::BTreeMap::new(),
        counts: std::collections::BTreeMap::new(),
        gauges: std::collections::BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seen(port: &str, pid: u32, frames_in: u64, cpu_ms: u64) -> (PortName, FunctionInfo) {
        let info = function_for_tests(port, pid, frames_in, cpu_ms);
        (info.port.clone(), info)
    }

    #[test]
    fn test_the_busiest_is_first_and_what_is_new_has_no_rate() {
        let old = HashMap::from([seen("vale0:a", 1, 100, 0), seen("vale0:b", 2, 100, 0)]);
        let new = HashMap::from([
            seen("vale0:a", 1, 200, 500),
            seen("vale0:b", 3, 1100, 500),
            seen("vale0:c", 4, 9000, 500),
        ]);
        let all = busiest(&new, &old, Interval(Duration::from_secs(2)));
        let rates: Vec<_> = all.iter().map(|row| row.frames_in_per_s).collect();
        assert_eq!(rates, [500.0, 50.0, 0.0]);
        let known: Vec<_> = all.iter().map(|row| row.cpu_percent.is_some()).collect();
        assert_eq!(known, [false, true, false], "another process, the same, a new one");
        assert!(table(&all).starts_with("SERVICE"));
    }
}

//! What a result depends on and what every result therefore names: CPU, kernel, date.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// The machine a sample was taken on.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model name of the first CPU.
    pub cpu: String,
    /// CPUs this process may use.
    pub cpus: usize,
    /// Release of the running kernel.
    pub kernel: String,
}

impl Machine {
    /// Looks at this machine.
    pub fn here() -> Machine {
        let uname = rustix::system::uname();
        Machine {
            cpu: model().unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            cpus: cpus(),
            kernel: uname.release().to_string_lossy().into_owned(),
        }
    }

    /// The CPU's name as a part of a file name.
    pub fn slug(&self) -> String {
        let words = self.cpu.split(|c: char| !c.is_ascii_alphanumeric());
        let words: Vec<_> = words.filter(|w| !w.is_empty()).map(str::to_lowercase).collect();
        words.join("-")
    }
}

fn model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("model name"))?;
    let field = |name: &str| {
        let line = info.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == name));
        line.and_then(|l| l.split(':').nth(1)).map(|v| v.trim().to_owned())
    };
    let name = line.split(':').nth(1)?.trim().to_owned();
    // Virtual machines often hide the model behind the brand; family and model tell the core.
    match (field("cpu family"), field("model")) {
        (Some(family), Some(model)) => Some(format!("{name} (family {family} model {model})")),
        _ => Some(name),
    }
}

/// How many CPUs this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether this process may run on a CPU.
pub fn may_run_on(cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|set| set.is_set(cpu))
}

/// Pins the calling thread. A machine without that CPU runs it where it may: the probe has said
/// already that the distance is unknown.
pub fn pin(cpu: usize) {
    if may_run_on(cpu) {
        let mut set = CpuSet::new();
        set.set(cpu);
        // It was allowed a line ago; if it no longer is, the thread runs where it may.
        let _ = sched_setaffinity(None, &set);
    }
}

/// Today as `YYYY-MM-DD`, UTC.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    date_of(seconds / 86_400)
}

/// The date of a day counted from 1970-01-01, in the Gregorian calendar. Years begin in March, so
/// that the leap day is the last day of a year, and repeat every 400 years (146 097 days).
fn date_of(days: u64) -> String {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_date_of_known_days() {
        assert_eq!(date_of(0), "1970-01-01");
        assert_eq!(date_of(11_016), "2000-02-29");
        assert_eq!(date_of(20_778), "2026-11-21");
    }

    #[test]
    fn test_slug_is_a_file_name() {
        let m = Machine { cpu: "AMD EPYC 9B14 (x)".into(), cpus: 2, kernel: "6.18".into() };
        assert_eq!(m.slug(), "amd-epyc-9b14-x");
    }
}

//! What a process costs, as `/proc` says.

use std::fs;

/// Things that a process must not collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Mapped regions of ports.
    pub regions: usize,
}

/// What process `pid` holds now.
#[must_use]
pub fn holdings(pid: u32) -> Holdings {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let maps = read(pid, "maps");
    let regions = maps.lines().filter(|line| line.contains("/memfd:")).count();
    Holdings { descriptors, regions }
}

/// What the descriptors of process `pid` are, for the reader of a failed test.
#[must_use]
pub fn descriptors(pid: u32) -> Vec<String> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut all: Vec<_> = all
        .filter_map(|fd| Some((fd.path(), fs::read_link(fd.path()).ok()?)))
        .map(|(fd, file)| format!("{} {}", fd.display(), file.display()))
        .collect();
    all.sort();
    all
}

/// Threads of process `pid`.
#[must_use]
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// The middle one of some numbers.
///
/// # Panics
/// If there are none.
#[must_use]
pub fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Bytes of memory of process `pid` that are not shared memory, where ports live.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn own_memory(pid: u32) -> u64 {
    let status = read(pid, "status");
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|number| number.parse::<u64>().ok()).expect("a size")
    };
    (kib("RssAnon:") + kib("RssFile:")) * 1024
}

/// How often the threads of process `pid` have left their cores, of themselves or not.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process that lives");
    let status = tasks.flatten().map(|task| fs::read_to_string(task.path().join("status")));
    let of = |text: String| {
        let lines = text.lines().filter(|line| line.contains("ctxt_switches:"));
        let counts = lines.filter_map(|line| line.rsplit('\t').next()?.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    status.flatten().map(of).sum()
}

/// Bytes of ports' memory that process `pid` has mapped by huge pages.
///
/// # Panics
/// If there is no such process.
#[must_use]
pub fn on_huge_pages(pid: u32) -> u64 {
    let smaps = read(pid, "smaps");
    let sizes = smaps.lines().filter_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kib = sizes.filter_map(|size| size.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    1024 * kib.sum::<u64>()
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a process that lives")
}

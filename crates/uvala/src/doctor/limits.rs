//! Checks of what a daemon may have: descriptors, addresses, memory.

use super::{Finding, note, problem};

/// What a machine with one pair of queues takes: its port eight, each queue three (to be kicked, to
/// interrupt, to say what is wrong; the last since QEMU 7.2).
const DESCRIPTORS_OF_A_MACHINE: usize = 14;
/// Fewer than Linux gives a process.
const DESCRIPTORS_FEW: usize = 1024;
/// No more than the memory that a host may have.
const ADDRESSES_FEW: u64 = 1 << 42;
/// A machine of the usual size wants as much.
const MEMORY_LITTLE: u64 = 256 << 20;

/// Descriptors run out, or there are few. Both from /proc.
pub fn descriptors(open: usize, limits: &str) -> Option<Finding> {
    let [soft, hard] = limit(limits, "Max open files")?;
    let [soft, hard] = [soft?, hard?].map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let cure =
        "raise the limit: LimitNOFILE= in its unit, or ulimit -n in the shell that starts it";
    if open > soft - soft / 5 {
        let what = format!("it has {open} of {soft} descriptors open (hard limit {hard})");
        return Some(problem("daemon", what, cure));
    }
    let more = (soft - open) / DESCRIPTORS_OF_A_MACHINE;
    let what = format!("it may have {soft} descriptors: room for {more} more machines at most");
    (soft < DESCRIPTORS_FEW).then(|| note("daemon", what, cure))
}

/// The memory of machines and clients is mapped, however much of it is used.
pub fn addresses(limits: &str) -> Option<Finding> {
    let [soft, _] = limit(limits, "Max address space")?;
    let soft = soft.filter(|soft| *soft < ADDRESSES_FEW)?;
    let what = format!(
        "its address space is limited to {} MiB, and the memory of machines is mapped there",
        soft >> 20
    );
    let cure =
        "remove the limit: LimitAS=infinity in its unit, or ulimit -v unlimited in the shell";
    Some(problem("daemon", what, cure))
}

/// Bytes of a group of processes that cannot be taken back, and those that it may have.
pub fn group(used: u64, most: u64) -> Option<Finding> {
    let what = format!(
        "its control group uses {} MiB of {} MiB: at the limit the kernel kills the daemon",
        used >> 20,
        most >> 20
    );
    let cure = "raise the limit (MemoryMax= in its unit, docker --memory), or delete ports";
    (used > most - most / 5).then(|| problem("daemon", what, cure))
}

/// The host has little memory left. From /proc/meminfo.
pub fn memory(meminfo: &str) -> Option<Finding> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    let what = format!("{} MiB of memory are available", kib >> 10);
    let cure =
        "give machines less memory (--memory), or close ports: a program's port takes 4.4 MB";
    (kib << 10 < MEMORY_LITTLE).then(|| note("host", what, cure))
}

/// A soft and a hard limit, none where there is no limit.
fn limit(limits: &str, name: &str) -> Option<[Option<u64>; 2]> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace().map(|word| word.parse().ok());
    Some([words.next()?, words.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "Limit             Soft       Hard       Units\n\
                          Max open files    100        4096       files\n\
                          Max address space unlimited  unlimited  bytes\n";

    #[test]
    fn test_descriptors_are_too_few_before_they_are_gone() {
        assert!(descriptors(81, LIMITS).unwrap().what.contains("81 of 100"));
        assert!(descriptors(40, LIMITS).unwrap().what.contains("room for 4 more machines"));
        assert_eq!(descriptors(81, "nothing"), None);
        assert_eq!(descriptors(81, &LIMITS.replace("100 ", "1024 ")), None);
    }

    #[test]
    fn test_addresses_are_not_to_be_limited() {
        assert_eq!(addresses(LIMITS), None);
        let limited = LIMITS.replace("unlimited  unlimited", "1073741824 unlimited");
        assert!(addresses(&limited).unwrap().what.contains("1024 MiB"));
        let plenty = LIMITS.replace("unlimited  unlimited", "109951162777600 unlimited");
        assert_eq!(addresses(&plenty), None, "100 TiB");
    }

    #[test]
    fn test_memory_is_short_before_it_is_gone() {
        assert_eq!(group(80, 100), None);
        assert!(group(81 << 20, 100 << 20).unwrap().what.contains("81 MiB of 100 MiB"));
        assert_eq!(group(0, u64::MAX), None);
        let meminfo = "MemTotal:  2000000 kB\nMemAvailable:     102400 kB\n";
        assert!(memory(meminfo).unwrap().what.contains("100 MiB"));
        assert_eq!(memory("MemAvailable:     1024000 kB\n"), None);
    }
}

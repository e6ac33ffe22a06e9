//! Memory for DPDK: huge pages where they can be had, as its users have them, ordinary ones else.
//!
//! Root reserves what is missing and gives it back afterwards; others use what is free already. No
//! hugetlbfs need be mounted: DPDK takes the pages through memfds.
//! With ordinary pages every lookup of a buffer costs more, so a result says which it was.

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// What DPDK processes are told about memory; gives reserved pages back when dropped.
pub enum Pages {
    /// Pages of 2 MiB, and how many were reserved before.
    Huge(Option<u64>),
    /// Ordinary pages.
    Small,
}

impl Pages {
    /// Gets huge pages if it can, for processes with this many megabytes each.
    pub fn get(megabytes: &[u32]) -> Pages {
        let needed = u64::from(megabytes.iter().sum::<u32>()) / 2 + 8;
        if field("Hugepagesize") != Some(2048) {
            return Pages::Small;
        }
        if field("HugePages_Free").is_some_and(|free| free >= needed) {
            return Pages::Huge(None);
        }
        let Some(before) = read(RESERVED) else { return Pages::Small };
        let pages = Pages::Huge(Some(before));
        // Only root may; and the kernel reserves what it finds, which may be less.
        let _ = std::fs::write(RESERVED, (before + needed).to_string());
        if field("HugePages_Free").is_some_and(|free| free >= needed) {
            pages
        } else {
            Pages::Small
        }
    }

    /// As options of the environment layer of one process.
    pub fn options(&self, megabytes: u32) -> Vec<String> {
        let memory = format!("-m{megabytes}");
        match self {
            Pages::Huge(_) => vec![memory, "--in-memory".into()],
            Pages::Small => vec![memory, "--no-huge".into()],
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Pages::Huge(Some(before)) = self {
            // It could be raised, so it can be lowered.
            let _ = std::fs::write(RESERVED, before.to_string());
        }
    }
}

fn field(name: &str) -> Option<u64> {
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn read(file: &str) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_field_reads_this_machine() {
        assert!(field("MemTotal").is_some_and(|kb| kb > 0));
        assert_eq!(field("NoSuchField"), None);
    }

    #[test]
    fn test_options_small_pages_ask_for_none() {
        assert!(Pages::Small.options(256).contains(&"--no-huge".into()));
    }
}

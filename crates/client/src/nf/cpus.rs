//! Cores, one for each thread of a function.

use std::fmt::Write;
use std::str::FromStr;
use std::{io, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use thiserror::Error;

/// A list of cores as `taskset` has it, such as `0,2-3`; in this order threads get one each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

/// Why threads cannot have these cores.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CpuError {
    /// No list of numbers.
    #[error("{0:?} is not a list of cores, such as 0,2-3")]
    Text(String),
    /// Two threads would share it.
    #[error("core {0} is listed twice; each thread needs a core of its own")]
    Twice(usize),
    /// Cores that do not exist, or that this process may not use.
    #[error("there is no core {missing} here, or not for this process, which may use {allowed}")]
    Missing {
        /// Which.
        missing: String,
        /// The cores that it may use.
        allowed: String,
    },
    /// Fewer or more than threads.
    #[error("{threads} threads and {cores} cores; name as many cores as threads, or leave one out")]
    Count {
        /// Threads that are wanted.
        threads: u16,
        /// Cores in the list.
        cores: usize,
    },
}

impl CpuList {
    /// How many.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The core of a thread.
    pub(super) fn of(&self, thread: u16) -> usize {
        self.0[usize::from(thread)]
    }

    /// Checks that this process may run on every one of these CPUs.
    pub(super) fn check(&self) -> Result<(), CpuError> {
        let allowed = allowed();
        let missing: Vec<usize> =
            self.0.iter().copied().filter(|core| !allowed.contains(core)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(CpuError::Missing { missing: list(&missing), allowed: list(&allowed) })
    }
}

impl FromStr for CpuList {
    type Err = CpuError;

    fn from_str(text: &str) -> Result<Self, CpuError> {
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let core = |text: &str| text.trim().parse::<usize>().ok();
            match (core(first), core(last)) {
                // A set of the kernel's has no place for more.
                (Some(first), Some(last)) if first <= last && last < CpuSet::MAX_CPU => {
                    cores.extend(first..=last);
                }
                _ => return Err(CpuError::Text(text.to_owned())),
            }
        }
        let twice = cores.iter().enumerate().find(|(i, core)| cores[..*i].contains(core));
        match twice {
            Some((_, core)) => Err(CpuError::Twice(*core)),
            None => Ok(Self(cores)),
        }
    }
}

/// From now on this thread runs there.
pub(super) fn pin(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// The cores that a thread of this process may use: a thread asks for all cores and reads what the
/// kernel grants. The caller's own affinity may be a smaller set (`taskset`), and is no limit.
fn allowed() -> Vec<usize> {
    let ask = || {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
        let _ = sched_setaffinity(None, &all);
        let set = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
    };
    thread::scope(|scope| scope.spawn(ask).join()).unwrap_or_default()
}

/// As it is read: `0,2-3`.
fn list(cores: &[usize]) -> String {
    let (mut text, mut rest) = (String::new(), cores);
    while let [first, ..] = *rest {
        let run = rest.iter().zip(first..).take_while(|(core, next)| *core == next).count();
        let comma = if text.is_empty() { "" } else { "," };
        // A string takes everything.
        let _ = match run {
            1 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{}", first + run - 1),
        };
        rest = &rest[run..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_list_is_read_as_taskset_does_and_nothing_else_is() {
        let cores = |text: &str| text.parse::<CpuList>().map(|cores| cores.0);
        assert_eq!(cores("0,2-3"), Ok(vec![0, 2, 3]));
        assert_eq!(cores("7, 1"), Ok(vec![7, 1]), "in the order that was said");
        for bad in ["", ",", "1,", "-", "1-", "-1", "3-2", "a", "0-4294967295", "1024", "0x1"] {
            assert_eq!(cores(bad), Err(CpuError::Text(bad.to_owned())));
        }
        assert_eq!(cores("0-3,2"), Err(CpuError::Twice(2)));
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!((list(&[]), list(&[4])), (String::new(), "4".to_owned()));
    }

    #[test]
    fn test_a_core_that_is_not_there_is_named_with_those_that_are() {
        let (last, most) = (CpuSet::MAX_CPU - 1, allowed());
        assert!(!most.contains(&last), "a machine with this many cores tests this elsewhere");
        let cores: CpuList = format!("{},{last}", most[0]).parse().unwrap();
        let error = cores.check().unwrap_err();
        let missing = CpuError::Missing { missing: last.to_string(), allowed: list(&most) };
        assert_eq!(error, missing);
        assert_eq!(list(&most).parse::<CpuList>().unwrap().check(), Ok(()));
    }

    #[test]
    fn test_a_thread_is_pinned_and_others_are_not() {
        let before = sched_getaffinity(None).unwrap();
        let core = allowed()[0];
        let set = thread::spawn(move || pin(core).map(|()| sched_getaffinity(None).unwrap()));
        let set = set.join().unwrap().unwrap();
        assert!(set.is_set(core) && set.count() == 1);
        assert!(sched_getaffinity(None).unwrap() == before);
    }
}

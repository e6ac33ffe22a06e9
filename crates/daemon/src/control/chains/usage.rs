//! What a process, or a thread of it, uses of the machine, as `/proc` shows it to every user.

use std::fs::read_to_string;

/// What an instance uses. `None`: it is not to be seen from here.
#[derive(Debug, Default)]
pub struct Usage {
    /// Milliseconds on a core.
    pub cpu_ms: Option<u64>,
    /// The thread that these are of; else of all threads of the process.
    pub thread: Option<u32>,
    /// Cores that it may run on.
    pub cores: Option<String>,
}

impl Usage {
    /// Reads the usage of a process, or of one of its threads. The daemon looks up a thread only
    /// among those of the client's own process. A client in a PID namespace of its own numbers its
    /// threads otherwise, and gets the time of its process.
    pub fn of(pid: u32, thread: Option<u32>) -> Self {
        let of_thread = thread.map(|thread| format!("/proc/{pid}/task/{thread}"));
        let thread = thread.filter(|_| of_thread.as_deref().is_some_and(|at| cpu_ms(at).is_some()));
        let at = of_thread.filter(|_| thread.is_some()).unwrap_or_else(|| format!("/proc/{pid}"));
        Self { cpu_ms: cpu_ms(&at), thread, cores: cores(&at) }
    }
}

fn cpu_ms(at: &str) -> Option<u64> {
    let text = read_to_string(format!("{at}/stat")).ok()?;
    in_ticks(&text).map(|ticks| ticks * 1000 / rustix::param::clock_ticks_per_second().max(1))
}

/// Time in user and in kernel mode: the fourteenth and the fifteenth field.
fn in_ticks(text: &str) -> Option<u64> {
    // The second one is a name in brackets, in which anything may stand.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11).map(|field| field.parse::<u64>().ok());
    Some(fields.next()?? + fields.next()??)
}

fn cores(at: &str) -> Option<String> {
    let text = read_to_string(format!("{at}/status")).ok()?;
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| list.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let text = "7 (a) b 9) S 1 7 7 0 -1 4194560 1 0 0 0 250 30 0 0 20 0 1 0 9 1 1 2";
        assert_eq!(in_ticks(text), Some(280));
        assert_eq!(in_ticks("7 (a"), None);
    }

    #[test]
    fn a_thread_is_shown_where_it_is_its_process_s_and_else_the_process() {
        let pid = std::process::id();
        let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let used = Usage::of(pid, Some(own));
        assert!(used.thread == Some(own) && used.cpu_ms.is_some() && used.cores.is_some());
        for other in [None, Some(1), Some(u32::MAX)] {
            let used = Usage::of(pid, other);
            assert!(used.thread.is_none() && used.cpu_ms.is_some(), "{other:?}");
        }
        let ended = Usage::of(u32::MAX, Some(own));
        assert!(ended.thread.is_none() && ended.cpu_ms.is_none() && ended.cores.is_none());
    }
}

//! What the daemon and its users have, for metrics.

use std::collections::BTreeSet;
use std::time::Duration;

use protocol::name::SwitchName;
use protocol::{PageFrom, Reply, Usage, UserUsage};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::{Control, page};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::model::policy::{Access, Caller};
use crate::store::writer::Writer;

impl<D: Datapath> Control<D> {
    pub(super) fn usage(&self, caller: &Caller) -> Reply {
        let unsaved = self.writer().map(Writer::unsaved).unwrap_or_default();
        // The file of a switch has its name.
        let may_look = |name: &SwitchName| {
            let switch = self.state.find_switch(name);
            switch.map_or(caller.privileged, |it| it.permissions.allow(caller, Access::Look))
        };
        let seen: Vec<_> = unsaved.iter().filter(|(name, _)| may_look(name)).collect();
        let unsaved_files = seen.len() as u64;
        let named = seen.into_iter().take(NAMES_MAX);
        let unsaved = named.map(|(_, why)| why.to_string()).collect();
        let forgotten = self.notes.forgotten.iter().filter(|_| caller.privileged);
        let forgotten = forgotten.filter(|name| self.state.find_port(name).is_none());
        let forgotten = forgotten.take(NAMES_MAX).cloned().collect();
        Reply::Usage(Usage { unsaved, unsaved_files, forgotten, ..of_daemon() })
    }

    pub(super) fn user_list(&self, caller: &Caller, from: &PageFrom) -> Result<Reply, Refusal> {
        let first = match from.from.as_deref() {
            None => 0,
            Some(text) => text.parse().map_err(|_| {
                Refusal::bad_value(format!("from: {text:?} is not the number of a user"))
            })?,
        };
        let users = self.users(caller).into_iter().filter(|uid| *uid >= first);
        let rows = users.map(|uid| (uid.to_string(), self.user_usage(uid)));
        Ok(Reply::Users(page(rows)))
    }

    /// The users that the caller may see, of those that have something.
    fn users(&self, caller: &Caller) -> BTreeSet<u32> {
        let all = self.state.users().chain(self.connections.keys().copied());
        all.filter(|uid| caller.privileged || *uid == caller.uid).collect()
    }

    fn user_usage(&self, uid: u32) -> UserUsage {
        let connections = self.connections.get(&uid).copied().unwrap_or(0).into();
        let static_addresses = self.static_addresses_of(uid);
        UserUsage { connections, static_addresses, ..self.state.user_usage(uid) }
    }
}

/// Most files that are named, and most ports.
const NAMES_MAX: usize = 16;

/// What this process uses.
fn of_daemon() -> Usage {
    let cpu: Duration = clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default();
    Usage {
        resident_memory: resident_memory(),
        descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
        descriptors_max: getrlimit(Resource::Nofile).current,
        cpu_ms: u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX),
        unsaved: Vec::new(),
        unsaved_files: 0,
        forgotten: Vec::new(),
    }
}

/// Bytes, by `/proc/self/statm`, which has pages in its second word.
fn resident_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let usage = of_daemon();
        assert!(usage.resident_memory > 1 << 20 && usage.descriptors > 2, "{usage:?}");
    }
}

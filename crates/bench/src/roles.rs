//! Which roles there are, by their names.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::Value;

use crate::role::Role;
use crate::{descriptor, host, limit, peers, subject};

/// Plays the part that a command line names.
pub fn run(text: &str) -> Result<()> {
    // Without the process that asked for the result there is no reason to go on.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let role: BTreeMap<String, Value> = serde_json::from_str(text).context(NOT_FOR_USERS)?;
    let Some((name, told)) = role.into_iter().next() else { bail!(NOT_FOR_USERS) };
    let known = ROLES.iter().find(|(known, _)| *known == name);
    known.context(NOT_FOR_USERS)?.1(told)
}

const NOT_FOR_USERS: &str = "--role is not for users";

type Run = fn(Value) -> Result<()>;

const ROLES: [(&str, Run); 6] = [
    of::<limit::wake_up::Echo>(),
    of::<descriptor::End>(),
    of::<peers::bridge::Job>(),
    of::<host::Job>(),
    of::<host::End>(),
    of::<subject::Part>(),
];

const fn of<R: Role>() -> (&'static str, Run) {
    (R::NAME, |told| serde_json::from_value::<R>(told).context(NOT_FOR_USERS)?.run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_each_role_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = ROLES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), ROLES.len());
        assert!(run("{}").is_err() && run(r#"{"nonsense":1}"#).is_err());
    }
}

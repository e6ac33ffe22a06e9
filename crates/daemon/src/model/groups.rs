//! Trust groups as text.

use super::keys::GroupKey;

/// Parses a trust group, `UID/NAME` or `NAME`; without a user the daemon's user owns it.
pub fn trust_group(text: &str) -> Option<GroupKey> {
    let (uid, name) = protocol::check::trust_group(text)?;
    let uid = uid.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    Some((uid, name.to_owned()))
}

/// A trust group as text: its name, preceded by its user unless that is `owner`.
#[must_use]
pub fn shown_group((uid, name): &GroupKey, owner: u32) -> String {
    if *uid == owner { name.clone() } else { format!("{uid}/{name}") }
}

//! Users and groups by name, from `/etc/passwd` and `/etc/group`.
//!
//! No name service: a daemon must not load foreign modules or wait for a directory server to read
//! its configuration. A user that is known only there can be given by number.

use std::fs;

/// The number of a user, given by name or number.
#[must_use]
pub fn user_id(text: &str) -> Option<u32> {
    id_in(text, "/etc/passwd")
}

/// The number of a group, given by name or number.
#[must_use]
pub fn group_id(text: &str) -> Option<u32> {
    id_in(text, "/etc/group")
}

/// The name of a user, or the number where there is no name.
#[must_use]
pub fn user_name(id: u32) -> String {
    name_in(id, "/etc/passwd")
}

/// The name of a group, or the number where there is no name.
#[must_use]
pub fn group_name(id: u32) -> String {
    name_in(id, "/etc/group")
}

fn id_in(text: &str, file: &str) -> Option<u32> {
    if let Ok(id) = text.parse() {
        return Some(id);
    }
    let table = fs::read_to_string(file).ok()?;
    rows(&table).find(|&(name, _)| name == text).map(|(_, id)| id)
}

fn name_in(id: u32, file: &str) -> String {
    let table = fs::read_to_string(file).unwrap_or_default();
    let name = rows(&table).find(|&(_, number)| number == id).map(|(name, _)| name.to_owned());
    name.unwrap_or_else(|| id.to_string())
}

/// Both files begin with `name:password:number:`.
fn rows(table: &str) -> impl Iterator<Item = (&str, u32)> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let id = fields.nth(1)?.parse().ok()?;
        Some((name, id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_root_has_number_zero() {
        assert_eq!((user_id("root"), group_id("root")), (Some(0), Some(0)));
        assert_eq!((user_name(0), user_id("4711")), ("root".to_owned(), Some(4711)));
        assert_eq!(user_id("no such user"), None);
    }

    #[test]
    fn test_rows_skip_what_is_no_row() {
        let table = "a:x:5:6:::\nbroken\nb:x:seven:\nc:x:8:\n";
        assert_eq!(rows(table).collect::<Vec<_>>(), [("a", 5), ("c", 8)]);
    }
}

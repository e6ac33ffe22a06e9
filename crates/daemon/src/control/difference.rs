//! Whether two descriptions of one thing differ, and by which option.

use serde::Serialize;
use serde_json::Value;

/// A setting that `has` and `wanted` do not have in common, by the option that gives it.
pub(super) fn difference<T: Serialize>(has: &T, wanted: &T) -> Option<String> {
    let [has, wanted] = [has, wanted].map(|it| serde_json::to_value(it).expect("plain data"));
    let (Value::Object(has), Value::Object(wanted)) = (has, wanted) else { return None };
    let shown = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "not set".to_owned(),
        Some(Value::String(text)) => text.escape_debug().to_string(),
        Some(value) => value.to_string(),
    };
    let key = has.keys().chain(wanted.keys()).find(|&key| has.get(key) != wanted.get(key))?;
    if key == "program" {
        return Some("its program is another one".to_owned());
    }
    let (old, new) = (shown(has.get(key)), shown(wanted.get(key)));
    Some(format!("{} is {old} there, and {new} here", option(key)))
}

/// The option of `uvala port add` or `uvala switch add` for a key.
fn option(key: &str) -> String {
    match key {
        "age_s" => "--age".to_owned(),
        "fds" => "--fd".to_owned(),
        key => format!("--{}", key.replace('_', "-")),
    }
}

#[cfg(test)]
mod tests {
    use protocol::HostIf;

    use super::*;

    #[test]
    fn the_first_difference_is_named() {
        let with = |mtu, ifname: Option<&str>| HostIf {
            mtu,
            ifname: ifname.map(str::to_owned),
            ..HostIf::default()
        };
        assert_eq!(difference(&with(Some(1500), None), &with(Some(1500), None)), None);
        for (has, wanted, said) in [
            (with(Some(1500), None), with(Some(9000), None), "--mtu is 1500 there, and 9000 here"),
            (with(None, None), with(Some(9000), None), "--mtu is not set there, and 9000 here"),
            (with(None, Some("a")), with(None, None), "--ifname is a there, and not set here"),
        ] {
            assert_eq!(difference(&has, &wanted).as_deref(), Some(said));
        }
    }
}

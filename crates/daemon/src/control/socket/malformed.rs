//! Messages that are no calls, and what is wrong with them.

use protocol::name::{NameError, PortName, SwitchName};
use protocol::{PROTOCOL_VERSION, Request, toml_error};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::control::refusal::{MessageRefusal, Refusal};

/// Why a message is none, of which the parser said `error`.
#[cold]
pub fn explain(text: &[u8], error: &serde_json::Error) -> Refusal {
    let Ok(message) = serde_json::from_slice::<Value>(text) else {
        return shapeless(&format!("no JSON ({error})"));
    };
    match message.get("v").map(Value::as_u64) {
        None => return shapeless("it has no \"v\""),
        Some(None) => return shapeless("\"v\" is no version"),
        Some(Some(v)) if v != u64::from(PROTOCOL_VERSION) => {
            return Refusal::from(MessageRefusal::Version(u32::try_from(v).unwrap_or(u32::MAX)));
        }
        Some(Some(_)) => {}
    }
    match message.get("call") {
        None => shapeless("it has no \"call\""),
        Some(Value::String(name)) => explain_call(name, &Value::Null, error),
        Some(Value::Object(call)) if call.len() == 1 => {
            let (name, fields) = call.iter().next().expect("there is one");
            explain_call(name, fields, error)
        }
        Some(_) => shapeless("\"call\" is not one call"),
    }
}

/// Explains an error in a call of this name.
fn explain_call(name: &str, fields: &Value, error: &serde_json::Error) -> Refusal {
    if let Some(error) = bad_name(fields) {
        return error.into();
    }
    let call = |fields: &Value| Value::Object(Map::from_iter([(name.to_owned(), fields.clone())]));
    let said = match Request::deserialize(call(fields)) {
        Err(error) => error.to_string(),
        // What is wrong is around it.
        Ok(_) => return shapeless(&error.to_string()),
    };
    if said.starts_with(&format!("unknown variant `{name}`")) {
        let said = said.replace("unknown variant", "there is no call");
        return Refusal::from(MessageRefusal::Unknown(said));
    }
    if said.starts_with("unknown variant") {
        return Refusal::from(MessageRefusal::Malformed(
            said.replace("unknown variant", "there is no call"),
        ));
    }
    if !fields.is_object() {
        return shapeless(&format!("{name} is without its fields"));
    }
    Refusal::from(MessageRefusal::Malformed(format!("{name}: {}", toml_error::plain(&said))))
}

/// What is wrong with the name of a port or switch, if anything is.
fn bad_name(fields: &Value) -> Option<NameError> {
    let name = |key| fields.get(key)?.as_str();
    let port = name("port").and_then(|name| name.parse::<PortName>().err());
    port.or_else(|| name("switch")?.parse::<SwitchName>().err())
}

fn shapeless(why: &str) -> Refusal {
    let right = r#"{"v":1,"call":{"hello":{"client":"NAME"}}}"#;
    Refusal::from(MessageRefusal::Malformed(format!("{why}; a call looks like {right}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::CallMessage;

    fn said(text: &str) -> String {
        let error = serde_json::from_str::<CallMessage>(text).expect_err(text);
        let refusal = explain(text.as_bytes(), &error).to_string();
        let trade =
            ["variant", "struct", "newtype", "u32", "found map", "sequence", "invalid type"];
        assert!(trade.iter().all(|word| !refusal.contains(word)), "{text}: {refusal}");
        refusal
    }

    #[test]
    fn test_messages_of_another_shape_are_shown_the_right_one() {
        for (text, expected) in [
            ("hello", "no JSON (expected value at line 1 column 1)"),
            ("{}", "it has no \"v\""),
            (r#"{"call":"hello"}"#, "it has no \"v\""),
            (r#"{"v":"1","call":{"hello":{"client":"x"}}}"#, "\"v\" is no version"),
            (r#"{"v":1}"#, "it has no \"call\""),
            (r#"{"v":1,"call":"hello"}"#, "hello is without its fields"),
            (r#"{"v":1,"call":{"hello":7}}"#, "hello is without its fields"),
            (r#"{"v":1,"call":{}}"#, "\"call\" is not one call"),
            (r#"{"v":1,"call":["hello"]}"#, "\"call\" is not one call"),
        ] {
            let said = said(text);
            let right = r#"; a call looks like {"v":1,"call":{"hello":{"client":"NAME"}}}"#;
            assert_eq!(said, format!("not a call of this protocol: {expected}{right}"));
        }
    }

    #[test]
    fn test_wrong_calls_and_fields_are_named() {
        for (text, expected) in [
            (r#"{"v":1,"call":{"fly":{}}}"#, "there is no call `fly`, expected one of `hello`"),
            (r#"{"v":1,"call":"fly"}"#, "there is no call `fly`"),
            (r#"{"v":1,"call":{"hello":{}}}"#, "hello: missing field `client`"),
            (r#"{"v":1,"call":{"hello":{"client":7}}}"#, "hello: found the number `7`, expected"),
            (r#"{"v":1,"call":{"attach":{"port":"vale0:a","x":1}}}"#, "attach: unknown field `x`"),
            (
                r#"{"v":1,"x":2,"call":{"hello":{"client":""}}}"#,
                "unknown field `x`, expected `v` or `call`",
            ),
            (r#"{"v":1,"call":{"attach":{"port":"eth0"}}}"#, "vale0:vm1"),
            (r#"{"v":7,"call":{"attach":{}}}"#, "speaks protocol 1, not 7"),
        ] {
            assert!(said(text).contains(expected), "{text}: {}", said(text));
        }
    }
}

//! Text that somebody else wrote: names, messages, configuration.

use std::path::Path;

use client::api::{CallMessage, ReplyMessage};
use client::name::{PortName, SwitchName};
use daemon::config::Config;
use serde_json::{from_slice, to_vec};

/// A name that parses prints as itself and fits where names are kept; an error is one line.
pub fn port_name(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match text.parse::<PortName>() {
        Ok(name) => {
            assert_eq!(name.to_string(), text);
            assert!(text.len() <= PortName::MAX_BYTES);
            assert_eq!(name.peer().and_then(|peer| peer.peer()), name.peer().map(|_| name));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
    match text.parse::<SwitchName>() {
        Ok(name) => assert_eq!(name.as_str(), text),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// A message that parses means the same after it was written and read again.
pub fn control_message(data: &[u8]) {
    if let Ok(call) = from_slice::<CallMessage>(data) {
        let text = to_vec(&call).expect("what was read can be written");
        assert_eq!(from_slice::<CallMessage>(&text).expect("and read again"), call);
    }
    if let Ok(reply) = from_slice::<ReplyMessage>(data) {
        let text = to_vec(&reply).expect("what was read can be written");
        assert_eq!(from_slice::<ReplyMessage>(&text).expect("and read again"), reply);
    }
}

/// A configuration is taken or refused with one line that names the place.
pub fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    if let Err(error) = Config::parse(text, Path::new("uvala.toml")) {
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.contains("uvala.toml"), "{line}");
    }
}

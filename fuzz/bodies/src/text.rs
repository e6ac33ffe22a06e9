//! Parsers of text: names, messages, configuration, rules.

use std::path::Path;

use daemon::config::Config;
use daemon::model::steering::{Steering, View};
use packet::PortId;
use protocol::name::{PortName, SwitchName};
use protocol::{CallMessage, ReplyMessage, SwitchSettings};
use serde_json::{from_slice, to_vec};
use switch::Role;
use switch::chain::{NUMBERS, Plan};

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

/// Chains and rules are refused with one line, or make a plan whose numbers are all there, whatever
/// ports come and go; and they are taken again.
pub fn rules(data: &[u8]) {
    let Ok(settings) = from_slice::<SwitchSettings>(data) else { return };
    let mut steering = Steering::default();
    let replaced = steering.replace(settings.chains.as_ref(), settings.rules.as_ref());
    let service =
        |service: &str, instance| Role { service: Some(service.to_owned()), instance, chain: None };
    let entry = Role { chain: Some("web".to_owned()), ..Role::default() };
    let roles = [service("fw", 0), service("fw", 1), service("r", 7), entry];
    let named = ["f0", "f1", "r", "a"].iter().zip(&roles);
    let views: Vec<_> =
        named.zip(0..).map(|((name, role), id)| View { name, role, id: PortId::new(id) }).collect();
    let checked = replaced.and_then(|()| steering.check(None));
    if let Err(line) = checked.and_then(|()| steering.check_names(None, &views)) {
        assert!(!line.is_empty() && !line.contains(char::is_control), "{line:?}");
        return;
    }
    for ports in [&views[..], &views[..2], &[], &views] {
        check_plan(&steering.plan(ports), ports.len());
    }
    let (chains, rules) = (steering.chains(), steering.rules());
    let old = steering.clone();
    assert_eq!(steering.replace(Some(&chains), Some(&rules)), Ok(()));
    assert_eq!(steering.check(Some(&old)), Ok(()));
    assert_eq!((steering.chains(), steering.rules()), (chains, rules));
}

fn check_plan(plan: &Plan, ports: usize) {
    let is_there =
        |&service: &u8| plan.services.get(usize::from(service)).is_some_and(Option::is_some);
    assert!(plan.services.len() <= NUMBERS && plan.chains.len() <= NUMBERS);
    assert!(plan.chains.iter().flatten().all(|chain| chain.services.iter().all(is_there)));
    let instances = plan.services.iter().flatten().flat_map(|service| &service.instances);
    assert!(instances.count() <= ports);
}

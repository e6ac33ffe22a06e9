//! The helper's request and its policy, with hostile callers.

use helper::policy::Policy;
use helper::wire::{MESSAGE_MAX, Request, receive_request, send_message};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

/// The user that asks. No name of `/etc/passwd` has this number.
const UID: u32 = 123_456;

/// The first line of the input is the question, the rest the policy. A question that is
/// understood means the same after it was written and read again; a policy allows only what one of
/// its rules names.
pub fn helper_question(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (question, rest) = data.split_at(at);
    // One that cannot be sent is not heard.
    let ask = heard(|socket| {
        let _ = send(socket, question, SendFlags::NOSIGNAL);
    });
    if question.len() > MESSAGE_MAX {
        assert_eq!(ask, None, "it is not cut off");
    }
    if let Some(ask) = &ask {
        let again = heard(|socket| send_message(socket, ask, &[]).expect("as long as before"));
        assert_eq!(again.as_ref(), Some(ask));
    }
    let Ok(text) = str::from_utf8(rest) else { return };
    match (Policy::parse(text), ask) {
        (Ok(policy), Some(ask)) => match policy.judge(UID, &ask) {
            Ok(_) => assert!(is_said(text, &ask), "{ask:?}"),
            Err(error) => assert!(!error.to_string().contains(char::is_control), "{error:?}"),
        },
        (Err(error), _) => assert!(!error.to_string().contains('\n'), "{error}"),
        (Ok(_), None) => {}
    }
}

/// What the helper hears of what is said to it.
fn heard(say: impl FnOnce(&std::os::fd::OwnedFd)) -> Option<Request> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("descriptors");
    say(&ours);
    drop(ours);
    receive_request(&theirs).ok()
}

/// Whether a rule says so. Read without the helper's types.
fn is_said(text: &str, ask: &Request) -> bool {
    let said: toml::Table = toml::from_str(text).expect("it was a policy");
    let rules = said["allow"].as_array().expect("it has rules");
    let words = |rule: &toml::Value, key: &str| -> Vec<String> {
        let list = rule.get(key).and_then(toml::Value::as_array);
        let words = list.into_iter().flatten().filter_map(toml::Value::as_str);
        words.map(str::to_owned).collect()
    };
    let fits = |pattern: &str| match pattern.split_once('*') {
        Some((start, _)) => ask.ifname.starts_with(start),
        None => ask.ifname == pattern,
    };
    let networks = |rule: &toml::Value| !words(rule, "addresses").is_empty();
    rules.iter().any(|rule| {
        rule["user"].as_integer() == Some(UID.into())
            && words(rule, "kinds").iter().any(|kind| kind == ask.kind.name())
            && words(rule, "interfaces").iter().any(|pattern| fits(pattern))
            && (ask.address.is_none() || networks(rule))
    })
}

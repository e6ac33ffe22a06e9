//! How functions start: what is refused says why, and leaves nothing behind.

use std::fs;
use std::time::Duration;

use client::nf::{self, Action, Frame, Generated};
use harness::daemon::{Daemon, Setup};
use harness::process::{OTHER_USER, Scratch, USER};
use harness::{is_root, skip, wait};

/// What a command that fails says, and its exit status.
fn refused(daemon: &Daemon, words: &str, user: Option<u32>) -> (i32, String) {
    let output = daemon.uvala_as(&words.split(' ').collect::<Vec<_>>(), user);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.trim_end().lines().count(), 1, "{words}: {said:?}");
    (output.status.code().unwrap(), said)
}

fn done(daemon: &Daemon, words: &str, user: Option<u32>) {
    let output = daemon.uvala_as(&words.split(' ').collect::<Vec<_>>(), user);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_switch_without_chains_is_refused_with_the_cure() {
    let daemon = Daemon::start();
    let (status, said) = refused(&daemon, "nf run bypass vale0:f", None);
    assert!(status == 5 && said.contains("uvala switch add vale0 --forwarding chain"), "{said}");
    done(&daemon, "switch add vale0", None);
    let (status, said) = refused(&daemon, "nf run bypass vale0:f", None);
    assert!(status == 12 && said.contains("uvala switch set vale0 --forwarding chain"), "{said}");
    assert!(daemon.ports().is_empty());
    done(&daemon, "switch set vale0 --forwarding chain", None);
    done(&daemon, "nf run bypass vale0:f -T 1", None);
}

/// Two functions at such ports would pass one frame to each other for ever.
#[test]
fn a_port_of_no_service_is_refused_with_the_cure_and_becomes_one() {
    let daemon = Setup::new("[switch.vale0]\nforwarding = \"chain\"\n").start();
    done(&daemon, "port add vale0:p", None);
    let (status, said) = refused(&daemon, "nf run bypass vale0:p", None);
    assert!(status == 12 && said.contains("uvala port set vale0:p --service NAME"), "{said}");
    // So does the library, for any function.
    let mut port = daemon.open("vale0:p");
    let mut next = |_: &mut Frame<'_>, _: &mut Generated| Action::Next;
    let error = nf::step(&mut port, &mut next, Some(Duration::ZERO)).unwrap_err();
    assert!(error.to_string().contains("uvala port set vale0:p --service"), "{error}");
    drop(port);
    done(&daemon, "nf run bypass vale0:p --service idle --instance 3 -T 1", None);
    let roles = |port: &str| {
        let output = daemon.uvala(&["port", "show", port, "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        [shown["settings"]["service"].clone(), shown["settings"]["instance"].clone()]
    };
    assert_eq!(roles("vale0:p"), [serde_json::json!("idle"), serde_json::json!(3)]);
    // What the port is not is not ignored.
    for more in ["--service other", "--instance 7", "--service other --instance 7"] {
        let (status, said) = refused(&daemon, &format!("nf run bypass vale0:p {more}"), None);
        assert!(status == 12 && said.contains("is instance 3 of service idle"), "{said}");
    }
    done(&daemon, "nf run bypass vale0:p --service idle --instance 3 -T 1", None);
    done(&daemon, "nf run bypass vale0:p -T 1", None);
    done(&daemon, "nf run bypass vale0:new --service idle -T 1", None);
    assert_eq!(roles("vale0:new")[1], 0, "the lowest that is free");
    let (_, said) = refused(&daemon, "port set vale0:new --instance 3", None);
    assert!(said.contains("instance 3 of service idle is port p"), "{said}");
}

#[test]
fn a_switch_keeps_its_chains_while_functions_run() {
    let daemon = Setup::new(&harness::chain::configuration(1)).start();
    let function = harness::chain::function(&daemon, 0);
    let (status, said) = refused(&daemon, "switch set valenf --forwarding learning", None);
    assert!(status == 6 && said.contains("valenf:f0"), "{status}: {said}");
    let place = Scratch::new("functions_forwarding");
    let file = place.path().join("learning.toml");
    fs::write(&file, "[switch.valenf]\nforwarding = \"learning\"\n").unwrap();
    let words = format!("apply {}", file.display());
    assert!(refused(&daemon, &words, None).1.contains("valenf:f0"));
    drop(function);
    wait::until("its end", || harness::chain::functions(&daemon)[0].pid.is_none());
    done(&daemon, "switch set valenf --forwarding learning", None);
    let output = daemon.uvala(&["chain", "list", "valenf"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("forwarding is learning, not chain"), "{shown}");
}

/// All users may attach to a user's switch on root's daemon; only the user may run its firewall.
#[test]
fn nobody_else_is_the_firewall_of_a_users_switch() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").start();
    for words in [
        "switch add vale0 --forwarding chain --mode 666",
        "port add vale0:f --service f",
        "chain add vale0 c f",
    ] {
        done(&daemon, words, Some(USER));
    }
    let (status, said) = refused(&daemon, "nf run bypass vale0:f -T 1", Some(OTHER_USER));
    assert!(status == 4 && said.contains("mode 600"), "{said}");
    done(&daemon, "nf run bypass vale0:f -T 1", Some(USER));
    done(&daemon, "port set vale0:f --mode 666", Some(USER));
    done(&daemon, "nf run bypass vale0:f -T 1", Some(OTHER_USER));
}

#[test]
fn a_file_that_is_wrong_ends_with_9_and_leaves_no_port() {
    let daemon = Setup::new("[switch.vale0]\nforwarding = \"chain\"\n").start();
    let place = Scratch::new("functions_start");
    let file = place.path().join("wrong.toml");
    for (function, text) in [
        ("firewall", "default = "),
        ("firewall", "rules = 1"),
        ("firewall", "[[rule]]\naction = \"drop\"\nsrc = \"x\""),
        ("firewall", "[[rule]]\naction = \"drop\"\nproto = \"icmp\"\ndport = \"80\""),
        ("router", "port = [[[\n"),
        ("matcher", "[[pattern]]\ntext = \"odd\"\naction = { service = \"nobody\" }\n"),
    ] {
        fs::write(&file, text).unwrap();
        let words = format!("nf run {function} vale0:f -c {}", file.display());
        let (status, said) = refused(&daemon, &words, None);
        assert_eq!(status, 9, "{text}: {said}");
        assert!(daemon.ports().is_empty(), "{text}: {:?}", daemon.ports());
    }
    let (status, said) = refused(&daemon, "nf run firewall vale0:f -c /none/of/that", None);
    assert!(status == 9 && said.contains("/none/of/that"), "{said}");
    // Refused when the port is opened.
    refused(&daemon, "nf run bypass vale0:f --group a/b", None);
    assert!(daemon.ports().is_empty(), "{:?}", daemon.ports());
}

#[test]
fn who_was_given_a_port_runs_a_function_there() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let text = "[socket]\nmode = \"666\"\n\
        [switch.vale0]\nforwarding = \"chain\"\nmode = \"666\"\nnew_ports = \"owner\"\n";
    let daemon = Setup::new(text).start();
    done(&daemon, &format!("port add vale0:fw --service fw --owner {USER}"), None);
    done(&daemon, "port add vale0:other --service fw --instance 1", None);
    done(&daemon, "nf run bypass vale0:fw -T 1", Some(USER));
    let (status, said) = refused(&daemon, "nf run bypass vale0:other -T 1", Some(USER));
    assert!(status == 4 && said.contains("vale0:other"), "{said}");
    let (status, said) = refused(&daemon, "nf run bypass vale0:new -T 1", Some(USER));
    assert!(status == 4, "{said}");
    assert_eq!(daemon.ports(), ["vale0:fw", "vale0:other"]);
}

#[test]
fn a_daemon_that_is_not_believed_is_not_said_to_refuse() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").user(USER).start();
    done(&daemon, "switch list", Some(USER));
    let (status, said) = refused(&daemon, "switch list", Some(OTHER_USER));
    assert_eq!(status, 4);
    for part in ["belongs to user 54321", "every user may write", "uvala daemon --dir"] {
        assert!(said.contains(part), "{said}");
    }
}

//! How functions start: what is refused says why, and leaves nothing behind.

use std::fs;

use harness::daemon::{Daemon, Setup};
use harness::process::{OTHER_STRANGER, STRANGER, Scratch};
use harness::{is_root, skip};

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
    done(&daemon, &format!("port add vale0:fw --service fw --owner {STRANGER}"), None);
    done(&daemon, "port add vale0:other --service fw --instance 1", None);
    done(&daemon, "nf run bypass vale0:fw -T 1", Some(STRANGER));
    let (status, said) = refused(&daemon, "nf run bypass vale0:other -T 1", Some(STRANGER));
    assert!(status == 4 && said.contains("vale0:other"), "{said}");
    let (status, said) = refused(&daemon, "nf run bypass vale0:new -T 1", Some(STRANGER));
    assert!(status == 4, "{said}");
    assert_eq!(daemon.ports(), ["vale0:fw", "vale0:other"]);
}

#[test]
fn a_daemon_that_is_not_believed_is_not_said_to_refuse() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new("[socket]\nmode = \"666\"\n").user(STRANGER).start();
    done(&daemon, "switch list", Some(STRANGER));
    let (status, said) = refused(&daemon, "switch list", Some(OTHER_STRANGER));
    assert_eq!(status, 4);
    for part in ["54321's", "everybody may write", "uvala daemon --dir"] {
        assert!(said.contains(part), "{said}");
    }
}

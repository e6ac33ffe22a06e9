//! Settings on the command line: values outside a list, settings that need others, and commands
//! that a script repeats.

use harness::daemon::Daemon;
use protocol::exit;

fn done(daemon: &Daemon, args: &[&str]) {
    let output = daemon.uvala(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_value_outside_a_list_is_refused_with_the_list() {
    let daemon = Daemon::start();
    for (args, list) in [
        (["port", "add", "vale0:a", "--vlan", "access:9999"], "expected a VLAN, 1 to 4094"),
        (["port", "add", "vale0:a", "--vlan", "vlan7"], "transparent, access:VLAN or trunk:VLANS"),
        (["port", "add", "vale0:a", "--on-full", "block"], "expected drop or wait"),
        (["port", "add", "vale0:a", "--coalesce-usecs", "1001"], "a number from 0 to 1000"),
        (["port", "add", "vale0:a", "--ttl", "0"], "a number from 1 to 255"),
        (
            ["switch", "add", "vale0", "--forwarding", "magic"],
            "expected learning, hub, patch, static, static-flood, chain or program:FILE",
        ),
    ] {
        let output = daemon.uvala(&args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(exit::USAGE.into()) && said.contains(list), "{said}");
    }
    assert_eq!(daemon.ports(), [""; 0]);
}

#[test]
fn a_change_without_a_setting_and_an_instance_without_a_service_are_refused_with_a_hint() {
    let daemon = Daemon::start();
    done(&daemon, &["port", "add", "vale0:a"]);
    for (args, hint) in [
        (&["port", "set", "vale0:a"][..], "no setting given; name one, such as --mode 660"),
        (&["switch", "set", "vale0"], "switch set: no setting given"),
        (&["port", "set", "vale0:a", "--instance", "3"], "set service, too"),
    ] {
        let output = daemon.uvala(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(hint), "{args:?}: {said}");
    }
    done(&daemon, &["port", "add", "vale0:vm", "--kind", "vhost-user", "--queues", "2"]);
    let output = daemon.uvala(&["port", "set", "vale0:vm", "--queue-frames", "8"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("add the port with --queues 1"), "{said}");
    done(&daemon, &["port", "set", "vale0:a", "--service", "fw", "--instance", "3"]);
    done(&daemon, &["port", "set", "vale0:a", "--instance", "4"]);
}

#[test]
fn a_label_says_what_is_behind_a_port_in_lists_and_metrics() {
    let mut daemon = Daemon::start();
    done(&daemon, &["port", "add", "vale0:a"]);
    done(&daemon, &["port", "add", "vale0:kept", "--label", "kept"]);
    daemon.kill();
    daemon.restart();
    let said = |words: &[&str]| String::from_utf8(daemon.uvala(words).stdout).unwrap();
    assert!(said(&["port", "list"]).contains("yes   kept"), "a label is saved");
    done(&daemon, &["port", "set", "vale0:kept", "--label", ""]);
    assert!(!said(&["port", "list"]).contains("LABEL"), "no column for nothing");
    done(&daemon, &["port", "add", "vale0:b", "--label", "web server"]);
    done(&daemon, &["port", "set", "vale0:a", "--label", r#"the "db""#]);
    let list = said(&["port", "list"]);
    let ends = |name: &str, label: &str| {
        list.lines().any(|line| line.starts_with(name) && line.ends_with(label))
    };
    assert!(ends("PORT", "LABEL") && ends("vale0:b ", "web server"), "{list}");
    assert!(said(&["port", "list", "--json"]).contains(r#""label":"web server""#));
    assert!(said(&["port", "show", "vale0:b"]).contains("\nlabel            web server\n"));
    let metrics = said(&["metrics"]);
    let sample = r#"uvala_port_info{switch="vale0",port="a",kind="shm",label="the \"db\""} 1"#;
    assert!(metrics.lines().any(|line| line == sample), "{metrics}");
    for bad in ["a\tb", "\u{1b}[31m", " a", &"x".repeat(65)] {
        let output = daemon.uvala(&["port", "set", "vale0:b", "--label", bad]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("64 characters at most"), "{said}");
    }
    done(&daemon, &["port", "set", "vale0:b", "--isolated"]);
    assert!(said(&["port", "list"]).contains("web server"), "what is not named stays");
    done(&daemon, &["port", "set", "vale0:b", "--label", ""]);
    assert!(!said(&["port", "list"]).contains("web server"));
}

/// What a command says that fails with the status for something that exists.
fn exists(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.uvala(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit::EXISTS.into()), "{args:?}: {said}");
    said
}

#[test]
fn what_a_script_adds_again_is_left_as_it_is_or_the_difference_is_named() {
    let daemon = Daemon::start();
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    for line in [
        "switch add vale0 --forwarding hub --if-absent",
        "port add vale0:a --vlan access:7 --if-absent",
        "port add vale0:vm --kind vhost-user --queues 2 --if-absent",
    ] {
        (0..3).for_each(|_| done(&daemon, &words(line)));
        let again = line.strip_suffix(" --if-absent").unwrap();
        exists(&daemon, &words(again));
    }
    for (line, difference) in [
        ("switch add vale0 --age 60", "--age is 300 there, and 60 here"),
        ("switch add vale0 --mode 666", "--mode is 600 there, and 666 here"),
        ("port add vale0:a --vlan access:8", "--vlan is access:7 there, and access:8 here"),
        ("port add vale0:a --isolated", "--isolated is false there, and true here"),
        ("port add vale0:a --kind null", "--kind is shm there, and null here"),
        ("port add vale0:vm --kind vhost-user", "--queues is 2 there, and not set here"),
    ] {
        let said = exists(&daemon, &[&words(line)[..], &["--if-absent"]].concat());
        assert!(said.contains(difference), "{line}: {said}");
    }
    // Settings that a script does not give may be others by now.
    done(&daemon, &["port", "set", "vale0:a", "--isolated"]);
    done(&daemon, &words("port add vale0:a --vlan access:7 --if-absent"));
    assert_eq!(daemon.port("vale0:a").unwrap().settings.isolated, Some(true));
    let _client = daemon.open("vale0:b");
    let said = exists(&daemon, &words("port add vale0:b --if-absent"));
    assert!(said.contains("it goes with its client"), "{said}");
}

#[test]
fn chains_and_rules_take_the_names_of_ports_as_listings_have_them() {
    let daemon = Daemon::start();
    let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
    for line in [
        "switch add valec --forwarding chain",
        "port add valec:fw --service firewall",
        "port add valec:b",
        "chain add valec two firewall --out valec:b",
        "rule add valec port:valec:b --in valec:b",
    ] {
        done(&daemon, &words(line));
    }
    let listed = |args| String::from_utf8(daemon.uvala(args).stdout).unwrap();
    let (chains, rules) = (listed(&["chain", "list", "valec"]), listed(&["rule", "list", "valec"]));
    assert!(chains.contains("  b  ") && rules.contains("port:b  "), "{chains}{rules}");
    for (line, why) in [
        ("rule add valec port:vale9:b --in valec:b", "no port vale9:b in this switch"),
        ("rule add valec port:vale9:b --in valec:b --priority 7", "no port vale9:b in this switch"),
        ("rule add valec drop --in valec:", "write one such as valec:vm1"),
        ("rule add valec port:", "write one such as valec:vm1"),
        ("chain add valec two firewall --out valec:", "write one such as valec:vm1"),
    ] {
        let output = daemon.uvala(&words(line));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{line}: {said}");
    }
}

//! Settings on the command line: values outside a list, and settings that need others.

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
        (
            ["switch", "add", "vale0", "--forwarding", "magic"],
            "expected learning, hub, patch, static, static-flood or chain",
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
    done(&daemon, &["port", "set", "vale0:a", "--service", "fw", "--instance", "3"]);
    done(&daemon, &["port", "set", "vale0:a", "--instance", "4"]);
}

//! The services of `dist/` under systemd itself.

use std::time::Duration;

use client::{Options, Port};
use harness::frames::announcement;
use harness::systemd::Systemd;
use harness::wait;

const RUNS: &str = "/run/bin/uvala";

/// A client of the service's daemon.
fn open(systemd: &Systemd, name: &str) -> Port {
    let dir = systemd.path("/run/uvala");
    wait::find("a port", || Options::new().dir(dir.to_str()?).open(name).ok())
}

/// One port sends, and the other one gets it.
fn frame_passes(from: &mut Port, to: &mut Port) {
    let mut frame = Vec::new();
    from.send(&announcement(1)).unwrap();
    assert!(to.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap());
}

#[test]
fn the_service_starts_and_clients_keep_their_ports_when_it_is_reloaded() {
    let Some(systemd) = Systemd::start(&["uvala.service"]) else { return };
    std::fs::write(systemd.path("/run/uvala.toml"), "").unwrap();
    systemd.done("systemctl start uvala");
    let (mut a, mut b) = (open(&systemd, "vale0:a"), open(&systemd, "vale0:b"));
    frame_passes(&mut a, &mut b);
    for _ in 0..2 {
        let before = systemd.property("uvala", "MainPID");
        systemd.done("systemctl reload uvala");
        assert_ne!(systemd.property("uvala", "MainPID"), before);
        frame_passes(&mut a, &mut b);
        frame_passes(&mut b, &mut a);
    }
    assert_eq!(systemd.log().matches("took over 2 of 2 ports").count(), 2, "{}", systemd.log());
    // A configuration that is wrong changes nothing.
    std::fs::write(systemd.path("/run/uvala.toml"), "wrong = 1").unwrap();
    let before = systemd.property("uvala", "MainPID");
    assert!(!systemd.run("systemctl reload uvala").status.success());
    assert!(systemd.log().contains("unknown key `wrong`"), "{}", systemd.log());
    assert_eq!(systemd.property("uvala", "MainPID"), before);
    frame_passes(&mut a, &mut b);
    // Only systemd can make a process the service's.
    let refused = systemd.run(&format!("{RUNS} upgrade"));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("`systemctl reload uvala.service`"),
        "{said}"
    );
    drop((a, b));
    systemd.done("systemctl stop uvala");
    let status = systemd.ask("systemctl show uvala --property=ExecMainCode,ExecMainStatus");
    assert_eq!(systemd.property("uvala", "Result"), "success", "{status} {}", systemd.log());
}

#[test]
fn a_service_that_was_reloaded_reports_to_the_watchdog() {
    let Some(systemd) = Systemd::start(&["uvala.service"]) else { return };
    std::fs::write(systemd.path("/run/uvala.toml"), "").unwrap();
    let own = systemd.path("/etc/systemd/system/uvala.service.d");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("watchdog.conf"), "[Service]\nWatchdogSec=2s\n").unwrap();
    systemd.done("systemctl daemon-reload");
    systemd.done("systemctl start uvala");
    for _ in 0..2 {
        systemd.done("systemctl reload uvala");
        let pid = systemd.property("uvala", "MainPID");
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(systemd.property("uvala", "MainPID"), pid, "{}", systemd.log());
    }
    assert_eq!(systemd.property("uvala", "NRestarts"), "0");
}

#[test]
fn the_other_services_start_and_go_on() {
    let units = ["uvala.service", "uvala-metrics.service", "uvala-http.service"];
    let Some(systemd) = Systemd::start(&units) else { return };
    std::fs::write(systemd.path("/run/uvala.toml"), "").unwrap();
    for service in ["uvala", "uvala-metrics", "uvala-http"] {
        systemd.done(&format!("systemctl start {service}"));
    }
    let page = "curl -sS http://127.0.0.1:9776/metrics";
    wait::until("metrics", || systemd.ask(page).contains("uvala_"));
    let api = "curl -sS --unix-socket /run/uvala-http/http.sock http://localhost/v1/switches";
    wait::until("the API", || systemd.run(api).status.success());
    for service in ["uvala", "uvala-metrics", "uvala-http"] {
        assert_eq!(systemd.property(service, "NRestarts"), "0", "{}", systemd.log());
        systemd.done(&format!("systemctl restart {service}"));
    }
}

/// What docs/host.md says that a daemon with interfaces of its own needs.
fn privileges() -> String {
    let page = std::fs::read_to_string(harness::root().join("docs/host.md")).unwrap();
    let (_, section) = page.split_once("## With privileges").unwrap();
    let (_, lines) = section.split_once("```ini\n").unwrap();
    lines.split_once("```").unwrap().0.to_owned()
}

#[test]
fn systemd_keeps_a_tap_until_its_port_is_deleted() {
    let Some(systemd) = Systemd::start(&["uvala.service"]) else { return };
    std::fs::write(systemd.path("/run/uvala.toml"), "").unwrap();
    let own = systemd.path("/etc/systemd/system/uvala.service.d");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("interfaces.conf"), privileges() + "RestartSec=0\n").unwrap();
    systemd.done("systemctl daemon-reload");
    systemd.done("systemctl start uvala");
    systemd.done(&format!("{RUNS} port add vale0:tap --kind tap --ifname lan"));
    systemd.done("ip addr add 10.0.0.1/24 dev lan");
    let network = || systemd.ask("ip -o -4 addr show dev lan");
    let (before, stored) = (network(), || systemd.property("uvala", "NFileDescriptorStore"));
    assert!(before.contains("10.0.0.1/24"), "{before}");
    wait::until("a copy of the TAP", || stored() == "1");
    let pid = || systemd.property("uvala", "MainPID");
    let another = |words: &str| {
        let old = pid();
        systemd.done(words);
        wait::until("another daemon", || {
            pid() != old && systemd.property("uvala", "ActiveState") == "active"
        });
        assert_eq!(network(), before, "{words}: {}", systemd.log());
        wait::until("a copy of the TAP", || stored() == "1");
    };
    another("systemctl kill --signal=KILL uvala");
    another("systemctl reload uvala");
    another("systemctl restart uvala");
    another("systemctl reload uvala");
    another("systemctl kill --signal=KILL uvala");
    systemd.done(&format!("{RUNS} port del vale0:tap"));
    assert_eq!(network(), "");
    wait::until("no copy", || stored() == "0");
}

/// The manager of a user, as a service of the system.
const MANAGER: &str = "\
[Service]
Type=notify
User=nobody
Delegate=yes
Environment=XDG_RUNTIME_DIR=/run/user/65534 HOME=/run/home
ExecStart=/lib/systemd/systemd --user --unit=test.target
";
/// A command of that user.
const USERS: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups \
                     env XDG_RUNTIME_DIR=/run/user/65534";

#[test]
fn the_service_of_a_user_starts_and_is_reloaded() {
    let Some(systemd) = Systemd::start(&["uvala.user.service"]) else { return };
    std::fs::write(systemd.path("/etc/systemd/system/manager.service"), MANAGER).unwrap();
    let target = "[Unit]\nDefaultDependencies=no\n";
    std::fs::write(systemd.path("/etc/systemd/user/test.target"), target).unwrap();
    systemd.done("install -d -m 0700 -o 65534 /run/user/65534 /run/home");
    systemd.done("install -m 0666 /dev/null /run/log");
    // The system's manager makes it for its first service.
    systemd.done("mkdir -p /run/systemd/unit-root");
    systemd.done("systemctl daemon-reload");
    systemd.done("systemctl start manager");
    let user = |words: &str| format!("{USERS} systemctl --user {words}");
    systemd.done(&user("start uvala"));
    let pid = || systemd.ask(&user("show uvala --value --property=MainPID"));
    for _ in 0..2 {
        let before = pid();
        systemd.done(&user("reload uvala"));
        assert_ne!(pid(), before);
    }
    let list = format!("{USERS} {RUNS} switch list");
    systemd.done(&list);
    systemd.done(&user("stop uvala"));
}

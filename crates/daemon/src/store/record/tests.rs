//! Records that are written and read again, and what is left out of them.

use super::*;
use crate::config::Config;
use std::path::Path;

fn plans(text: &str) -> Vec<SwitchPlan> {
    Config::parse(text, Path::new("test.toml")).unwrap().switches
}

fn record(text: &str) -> Result<Checked, String> {
    SwitchRecord::read(text.as_bytes())?.check()
}

fn merged(config: &str, record: SwitchRecord) -> Vec<SwitchPlan> {
    let name = record.switch.clone();
    merge(&plans(config), BTreeMap::from([(name, record.check().unwrap())]))
}

/// A configured switch with its port `a`, isolated by command, and a port `b` made by command.
fn changed(config: &str) -> SwitchRecord {
    let plan = plans(config).remove(0);
    let base = PortText::of(&plan.ports[0]);
    let mut now = base.clone();
    now.settings.isolated = Some(true);
    let made = PortRecord { owner: 7, now: now.clone(), configured: None };
    let configured_port = PortRecord { owner: 0, now, configured: Some(base) };
    SwitchRecord {
        version: VERSION,
        switch: plan.name.clone(),
        persistent: true,
        settings: SwitchSettings { age_s: Some(9), ..configured(&plan) },
        configured: Some(configured(&plan)),
        ports: BTreeMap::from([
            ("vale0:a".parse().unwrap(), configured_port),
            ("vale0:b".parse().unwrap(), made),
        ]),
    }
}

#[test]
fn test_interface_of_one_daemon_is_forgotten_unless_that_left_it() {
    let mut record = changed(CONFIG);
    let text = |host: HostIf| PortText {
        kind: PortKind::Tap,
        host: Some(host),
        ..record.ports[&"vale0:b".parse::<PortName>().unwrap()].now.clone()
    };
    let inside = |netns: &str| HostIf { netns: Some(netns.into()), ..HostIf::default() };
    let ports = [
        ("vale0:c", inside("4711")),
        ("vale0:d", inside("/run/netns/cni-0815")),
        ("vale0:e", HostIf { fds: 1, ..HostIf::default() }),
        ("vale0:f", inside("red")),
        ("vale0:g", HostIf::default()),
    ];
    let ports = ports.map(|(name, host)| {
        (name.parse().unwrap(), PortRecord { owner: 7, now: text(host), configured: None })
    });
    record.ports.extend(ports);
    let names = |left: &'static [&'static str]| {
        let mut checked = record.clone().check().unwrap();
        checked.forget_lost(|port, _, _| left.contains(&port.to_string().as_str()));
        let plan = checked.alone().unwrap();
        plan.ports.iter().map(|port| port.name.port().to_owned()).collect::<Vec<_>>().concat()
    };
    assert_eq!(names(&[]), "bfg");
    assert_eq!(names(&["vale0:c", "vale0:e"]), "bcefg");
}

fn isolated(plan: &SwitchPlan) -> Vec<(String, bool)> {
    let mut ports: Vec<_> =
        plan.ports.iter().map(|p| (p.name.to_string(), p.config.isolated)).collect();
    ports.sort();
    ports
}

const CONFIG: &str = "[switch.vale0]\nage_s = 5\n[switch.vale0.port.a]\nvlan = \"access:3\"\n";

#[test]
fn test_commands_count_while_the_configuration_is_as_it_was() {
    let merged = merged(CONFIG, changed(CONFIG));
    assert_eq!(merged[0].config.ageing_ms, 9000);
    let expected = [("vale0:a".to_owned(), true), ("vale0:b".to_owned(), true)];
    assert_eq!(isolated(&merged[0]), expected);
    assert_eq!(merged[0].ports[0].config.vlan.to_string(), "access:3");
}

#[test]
fn test_configuration_counts_once_it_was_edited() {
    let edited = CONFIG.replace("access:3", "access:4").replace("age_s = 5", "age_s = 6");
    let merged = merged(&edited, changed(CONFIG));
    assert_eq!(merged[0].config.ageing_ms, 6000);
    let expected = [("vale0:a".to_owned(), false), ("vale0:b".to_owned(), true)];
    assert_eq!(isolated(&merged[0]), expected);
}

#[test]
fn test_what_is_no_longer_configured_is_gone_and_what_commands_made_stays() {
    let merged = merged("", changed(CONFIG));
    assert!(!merged[0].persistent);
    assert_eq!(isolated(&merged[0]), [("vale0:b".to_owned(), true)]);
    let mut without = changed(CONFIG);
    without.ports.remove(&"vale0:b".parse().unwrap());
    assert!(self::merged("", without).is_empty());
}

#[test]
fn test_address_that_the_configuration_names_now_is_where_it_says() {
    let mut old = changed(CONFIG);
    let station: StaticAddress = "02:00:00:00:00:01".parse().unwrap();
    let b = old.ports.get_mut(&"vale0:b".parse().unwrap()).unwrap();
    b.now.stations.insert(station);
    let edited = format!("{CONFIG}static = [\"{station}\"]\n");
    let merged = merged(&edited, old);
    let homes = |port: &&PortPlan| port.stations.contains(&station);
    let homes: Vec<_> = merged[0].ports.iter().filter(homes).map(|p| &p.name).collect();
    assert_eq!(homes, [&"vale0:a".parse::<PortName>().unwrap()]);
}

#[test]
fn test_grants_are_kept_and_configured_ones_come_back() {
    let config = format!("{CONFIG}owner = 7\nmode = \"600\"\n")
        .replace("age_s", "new_ports = \"owner\"\nage_s");
    let mut old = changed(&config);
    old.ports.get_mut(&"vale0:b".parse().unwrap()).unwrap().now.settings.group = Some(8);
    let merged = merged(&config, old);
    assert_eq!(merged[0].new_ports, NewPorts::Owner);
    let grants: Vec<_> = merged[0].ports.iter().map(|port| port.grant).collect();
    let (owner, mode) = (Some(7), protocol::Mode::new(0o600));
    let a = Grant { owner, group: None, mode };
    assert_eq!(grants, [a, Grant { group: Some(8), ..a }]);
}

#[test]
fn test_records_survive_their_text() {
    let old = changed(CONFIG);
    let text = serde_json::to_string(&old).unwrap();
    assert_eq!(serde_json::from_str::<SwitchRecord>(&text).unwrap(), old);
}

#[test]
fn test_chains_with_direct_hops_of_an_older_daemon_are_loaded_without() {
    let chain = r#"{"name":"c","services":["s"],"direct":true}"#;
    let settings = format!(r#"{{"forwarding":"chain","chains":[{chain}]}}"#);
    let part = format!(
        r#"{{"version":1,"switch":"vale0","persistent":true,"settings":{settings},
             "configured":{settings},"ports":{{}}}}"#
    );
    for text in [part.clone(), part.clone() + &part] {
        let read = SwitchRecord::read(text.as_bytes()).unwrap();
        assert_eq!(read.configured.as_ref(), Some(&read.settings));
        assert_eq!(read.check().unwrap().plan.chains[0].services, ["s"]);
    }
}

#[test]
fn test_what_stands_behind_a_record_came_later_and_counts() {
    let old = changed(CONFIG);
    let a = old.ports.keys().next().unwrap().clone();
    let mut expected = old.clone();
    expected.persistent = false;
    expected.ports.remove(&a);
    let change = SwitchChange {
        persistent: false,
        ..old.clone().with_ports(|_| BTreeMap::from([(a, None::<PortRecord>)]))
    };
    let whole = serde_json::to_string_pretty(&old).unwrap();
    let later = serde_json::to_string(&change).unwrap();
    let read = |text: String| SwitchRecord::read(text.as_bytes());
    assert_eq!(read(format!("{whole}\n{later}\n")).unwrap(), expected);
    for cut in [1, later.len() / 2, later.len() - 1] {
        assert_eq!(read(format!("{whole}\n{}", &later[..cut])).unwrap(), old);
    }
    assert!(read(whole[..whole.len() - 1].to_owned()).is_err());
    assert!(read(format!("{whole}\n{}", later.replace("\"vale0\"", "\"vale1\""))).is_err());
    assert!(read(format!("{whole}\n\0\n{later}")).is_err());
}

#[test]
fn test_interfaces_are_kept_and_bad_ones_refused() {
    let kept = r#"{"version":1,"switch":"vale0","persistent":true,"settings":{},"ports":{
        "vale0:a":{"owner":1,"now":{"kind":"tap","settings":{},"host":{"ifname":"lan"}}}}}"#;
    let plan = record(kept).unwrap().alone().unwrap();
    assert_eq!(plan.ports[0].host.as_ref().unwrap().ifname.as_deref(), Some("lan"));
    assert!(record(&kept.replace("\"lan\"", "\"../x\"")).is_err());
    assert!(record(&kept.replace("\"tap\"", "\"shm\"")).is_err());
    assert!(record(&kept.replace("ifname", "ifnam")).is_err());
}

#[test]
fn test_taps_of_older_daemons_are_loaded_whichever_way_they_were_read() {
    for uring in [true, false] {
        let tap =
            format!(r#"{{"kind":"tap","settings":{{}},"host":{{"ifname":"a","uring":{uring}}}}}"#);
        let port = format!(r#"{{"owner":1,"now":{tap},"configured":{tap}}}"#);
        let part = |ports: String| {
            format!(
                r#"{{"version":2,"switch":"vale0","persistent":true,"settings":{{}},
                "ports":{ports}}}"#
            )
        };
        let whole = part(format!(r#"{{"vale0:a":{port},"vale0:b":{port}}}"#));
        let later = part(format!(r#"{{"vale0:a":{port},"vale0:b":null}}"#));
        let read = SwitchRecord::read(format!("{whole}\n{later}\n").as_bytes()).unwrap();
        let ports: Vec<_> = read.ports.iter().map(|(name, port)| (name.port(), port)).collect();
        let [("a", record)] = ports[..] else { panic!("{ports:?}") };
        assert_eq!(record.configured.as_ref(), Some(&record.now));
        assert!(!String::from_utf8(read.to_text()).unwrap().contains("uring"));
        // The configuration is as it was, with the key or without it.
        let file = "[switch.vale0.port.a]\nkind = \"tap\"\n";
        for file in [file.to_owned(), format!("{file}uring = {uring}\n")] {
            let plan = plans(&file).remove(0);
            let port = PortText::of(&plan.ports[0]);
            assert_eq!(port.host, record.now.host, "{file}");
        }
    }
}

#[test]
fn test_rules_of_older_daemons_mean_what_they_meant() {
    let rule = |src: &str| format!(r#"{{"id":7,"priority":0,"action":"drop","src":"{src}"}}"#);
    let text = |src: &str| {
        let settings = format!(r#"{{"forwarding":"chain","rules":[{}]}}"#, rule(src));
        format!(
            r#"{{"version":1,"switch":"vale0","persistent":true,"settings":{settings},
            "configured":{settings},"ports":{{}}}}"#
        )
    };
    for (was, is) in [("10.0.0.1/8", "10.0.0.0/8"), ("fd00::1/64", "fd00::/64")] {
        let checked = record(&text(was)).unwrap();
        assert_eq!(checked.plan.rules[0].src.as_deref(), Some(is));
        let configured = checked.configured.unwrap().rules.unwrap();
        assert_eq!(configured[0].src.as_deref(), Some(is));
    }
    let checked = record(&text("10.0.0.1")).unwrap();
    assert_eq!(checked.plan.rules[0].src.as_deref(), Some("10.0.0.1"));
}

#[test]
fn test_a_key_that_stands_twice_is_refused() {
    let port = r#""vale0:a":{"owner":1,"now":{"kind":"shm","settings":{},"static":[]}}"#;
    let good = format!(
        r#"{{"version":1,"switch":"vale0","persistent":true,"settings":{{"age_s":5}},
            "ports":{{{port}}}}}"#
    );
    record(&good).unwrap();
    for (from, to, key) in [
        ("\"version\":1", "\"version\":1,\"version\":1", "version"),
        ("\"age_s\":5", "\"age_s\":5,\"age_s\":6", "age_s"),
        (port, &*format!("{port},{port}"), "vale0:a"),
        ("\"owner\":1", "\"owner\":1,\"owner\":0", "owner"),
    ] {
        assert!(good.contains(from));
        let twice = good.replacen(from, to, 1);
        for text in [twice.clone(), format!("{good}\n{twice}")] {
            let why = record(&text).unwrap_err();
            assert!(why.contains(&format!("key `{key}` stands twice")), "{to}: {why}");
        }
    }
}

#[test]
fn test_ports_of_older_daemons_without_a_limit_of_addresses_have_the_usual_one() {
    let port = |max: u32| {
        format!(r#"{{"owner":1,"now":{{"kind":"shm","settings":{{"max_macs":{max}}}}}}}"#)
    };
    let text = |version: u32| {
        format!(
            r#"{{"version":{version},"switch":"vale0","persistent":true,"settings":{{}},
            "ports":{{"vale0:a":{},"vale0:b":{}}}}}"#,
            port(0),
            port(7)
        )
    };
    for (version, expected) in [(OLD_VERSION, [None, Some(7)]), (VERSION, [Some(0), Some(7)])] {
        let read = SwitchRecord::read(text(version).as_bytes()).unwrap();
        assert_eq!(read.version, VERSION);
        let ports = read.check().unwrap().plan.ports;
        let limits: Vec<_> = ports.iter().map(|port| port.config.security.max_macs).collect();
        assert_eq!(limits, expected);
    }
}

#[test]
fn test_bad_records_are_refused() {
    let good = r#"{"version":1,"switch":"vale0","persistent":true,"settings":{},"ports":{
        "vale0:a":{"owner":1,"now":{"kind":"shm","settings":{},"static":[]}}}}"#;
    record(good).unwrap();
    for (from, to) in [
        ("\"version\":1", "\"version\":3"),
        ("\"vale0\"", "\"eth0\""),
        ("\"vale0:a\"", "\"vale1:a\""),
        ("\"vale0:a\"", "\"vale0:a{1\""),
        ("\"shm\"", "\"pipe\""),
        ("\"static\":[]", "\"static\":[\"ff:ff:ff:ff:ff:ff\"]"),
        ("\"settings\":{}", "\"settings\":{\"fdb_capacity\":0}"),
        ("\"settings\":{},\"s", "\"settings\":{\"vlan\":\"access:0\"},\"s"),
        ("\"settings\":{},\"s", "\"settings\":{\"queue_frames\":8},\"s"),
        ("\"shm\",\"settings\":{}", "\"vhost-user\",\"settings\":{\"queue_frames\":5000}"),
        ("\"persistent\"", "\"staying\""),
        ("}}}}", "}}}"),
    ] {
        assert!(good.contains(from));
        assert!(record(&good.replacen(from, to, 1)).is_err(), "{to}");
    }
}

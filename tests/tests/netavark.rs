//! Containers of podman on a switch: the plugin as netavark calls it.

use std::io::Write;
use std::process::{Command, Stdio};

use harness::daemon::Daemon;
use harness::lab::Lab;
use harness::net::{Namespace, tcp};
use harness::process::{Scratch, uvala_path};

const MEGABYTE: usize = 1 << 20;

/// podman's side of netavark's plugin interface: the plugin under its name, and a network.
struct Netavark {
    place: Scratch,
    network: serde_json::Value,
}

impl Netavark {
    fn new(daemon: &Daemon, options: &[(&str, &str)]) -> Self {
        let place = Scratch::new("netavark");
        std::os::unix::fs::symlink(uvala_path(), place.path().join("uvala-netavark")).unwrap();
        let network = serde_json::json!({
            "name": "lab", "id": "2f259bab93aa", "driver": "uvala-netavark",
            "dns_enabled": true, "internal": false, "ipv6_enabled": true,
            "options": { "dir": daemon.dir() },
            "ipam_options": { "driver": "host-local" },
            "subnets": [
                { "subnet": "10.7.0.0/24", "gateway": "10.7.0.1", "lease_range": null },
                { "subnet": "fd07::/64", "gateway": "fd07::1", "lease_range": null },
            ],
        });
        let mut plugin = Self { place, network };
        for (name, value) in options {
            plugin.network["options"][name] = (*value).into();
        }
        let (good, kept) = plugin.call(&["create"], &plugin.network);
        assert!(
            good && kept["dns_enabled"] == false && kept["id"] == plugin.network["id"],
            "{kept}"
        );
        Self { network: kept, ..plugin }
    }

    /// Whether it succeeded, and what it said.
    fn call(&self, words: &[&str], message: &serde_json::Value) -> (bool, serde_json::Value) {
        let mut plugin = Command::new(self.place.path().join("uvala-netavark"));
        let mut plugin = plugin
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is there");
        plugin.stdin.take().unwrap().write_all(message.to_string().as_bytes()).unwrap();
        let output = plugin.wait_with_output().unwrap();
        let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), said)
    }

    /// Asks for something about the interface of a container, which has this number.
    fn ask(&self, action: &str, guest: &Namespace, number: u8) -> (bool, serde_json::Value) {
        let message = serde_json::json!({
            "container_id": guest.name(), "container_name": format!("web{number}"),
            "port_mappings": null, "network": self.network,
            "network_options": {
                "interface_name": "eth0", "aliases": [guest.name()],
                "static_ips": [format!("10.7.0.{number}"), format!("fd07::{number}")],
                "static_mac": format!("02:00:00:00:07:{number:02}"),
            },
        });
        self.call(&[action, &format!("/proc/{}/ns/net", guest.name())], &message)
    }
}

#[test]
fn netavark_sets_containers_up_and_tears_them_down() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let plugin = Netavark::new(daemon, &[("mtu", "1400"), ("vlan", "access:7")]);
        let [red, blue] = &lab.guests[..] else { panic!() };
        let (good, info) = plugin.call(&["info"], &serde_json::Value::Null);
        assert!(good && info["api_version"] == "1.0.0", "{info}");
        let (good, red_is) = plugin.ask("setup", red, 2);
        assert!(good, "{red_is}");
        let (good, blue_is) = plugin.ask("setup", blue, 3);
        assert!(good, "{blue_is}");
        let eth0 = &red_is["interfaces"]["eth0"];
        assert_eq!(eth0["mac_address"], "02:00:00:00:07:02");
        assert_eq!(eth0["subnets"][0]["ipnet"], "10.7.0.2/24");
        assert_eq!(eth0["subnets"][1]["gateway"], "fd07::1");
        let link = red.seen("link show eth0");
        assert!(link.contains("02:00:00:00:07:02") && link.contains("mtu 1400"), "{link}");
        assert!(red.seen("route").contains("default via 10.7.0.1 dev eth0"));
        assert!(red.seen("-6 route").contains("default via fd07::1 dev eth0"));
        tcp(red, blue, "10.7.0.3", MEGABYTE);
        tcp(blue, red, "fd07::2", MEGABYTE);
        let labels = daemon.ports().into_iter().map(|port| {
            let settings = daemon.port(&port).unwrap().settings;
            assert_eq!(settings.vlan, Some("access:7".parse().unwrap()));
            settings.label.unwrap()
        });
        let mut labels: Vec<_> = labels.collect();
        labels.sort();
        assert_eq!(labels, ["web2", "web3"]);
        let (good, said) = plugin.ask("setup", red, 2);
        assert!(!good && said["error"].as_str().unwrap().contains("exists"), "{said}");
        assert!(red.seen("addr show eth0").contains("10.7.0.2/24"), "it stays");
        for guest in [red, blue, red] {
            let (good, said) = plugin.ask("teardown", guest, 2);
            assert!(good && said.is_null(), "also twice: {said}");
        }
        assert_eq!(daemon.ports(), [""; 0]);
        assert!(!red.seen("link").contains("eth0") && !red.seen("route").contains("10.7"));
    });
}

#[test]
fn what_netavark_cannot_have_leaves_nothing_and_is_said_in_its_way() {
    let Some(mut lab) = Lab::new(2) else { return };
    let blue = lab.guests.remove(1);
    lab.tell(|daemon, lab| {
        let mut plugin = Netavark::new(daemon, &[]);
        let red = &lab.guests[0];
        let refused = |plugin: &Netavark, why: &str| {
            let (good, said) = plugin.ask("setup", red, 2);
            assert!(!good && said["error"].as_str().unwrap().contains(why), "{said}");
            assert!(daemon.ports().is_empty() && !red.seen("link").contains("eth0"));
        };
        let good = plugin.network.clone();
        // The gateway of a route that no address of the interface reaches.
        plugin.network["routes"] = serde_json::json!([
            { "destination": "10.9.0.0/16", "gateway": "10.8.0.1" },
        ]);
        refused(&plugin, "route to 10.9.0.0/16 by 10.8.0.1");
        plugin.network = good.clone();
        plugin.network["options"]["vlna"] = "access:7".into();
        refused(&plugin, "\"vlna\"");
        assert!(!plugin.call(&["create"], &plugin.network).0);
        assert!(plugin.ask("teardown", red, 2).0, "what is there can be taken away");
        plugin.network = good.clone();
        plugin.network["options"]["dir"] = "/nowhere".into();
        refused(&plugin, "/nowhere");
        assert!(plugin.ask("teardown", red, 2).0, "without a daemon there is nothing left");
        plugin.network = good;
        let (good, said) = plugin.ask("setup", &blue, 3);
        assert!(good, "{said}");
        let name = blue.name();
        blue.die();
        let message = serde_json::json!({
            "container_id": name, "container_name": "web3", "network": plugin.network,
            "network_options": { "interface_name": "eth0" },
        });
        assert!(plugin.call(&["teardown", &format!("/proc/{name}/ns/net")], &message).0);
        assert_eq!(daemon.ports(), [""; 0]);
    });
}

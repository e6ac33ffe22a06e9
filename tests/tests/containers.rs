//! Containers on a switch: `uvala ns`, and the CNI plugin as a runtime calls it.

use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use harness::daemon::Daemon;
use harness::fabric::{FABRIC, Underlay};
use harness::lab::{self, Lab, host};
use harness::net::{Namespace, ip, tcp};
use harness::process::{Scratch, uvala_path};
use harness::{is_root, skip, unprivileged, wait};
use protocol::LinkState;

const MEGABYTE: usize = 1 << 20;

fn uvala(daemon: &Daemon, words: &str) -> Output {
    let mut command = Command::new(uvala_path());
    command.arg("--dir").arg(daemon.dir()).args(words.split(' '));
    command.output().expect("built")
}

fn done(daemon: &Daemon, words: &str) {
    let output = uvala(daemon, words);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn namespaces_are_attached_with_addresses_and_routes() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = &lab.guests[..] else { panic!() };
        let addresses = "--address 10.0.0.1/24 --address fd00::1/64 --gateway 10.0.0.254";
        let more = "--gateway fd00::fe --ifname net0 --mtu 1400";
        done(daemon, &format!("ns attach {} vale0:red {addresses} {more}", red.name()));
        done(daemon, &format!("ns attach {} vale0:blue --address 10.0.0.2/24", blue.name()));
        assert_eq!(host(daemon, "vale0:red").mtu, 1400);
        assert!(red.seen("route").contains("default via 10.0.0.254 dev net0"));
        assert!(red.seen("-6 route").contains("default via fd00::fe dev net0"));
        assert!(red.seen("addr show net0").contains("fd00::1/64"));
        tcp(red, blue, "10.0.0.2", MEGABYTE);
        tcp(blue, red, "10.0.0.1", MEGABYTE);
        done(daemon, "ns detach vale0:red");
        assert!(!red.seen("link").contains("net0"));
        // What is in no namespace has not been attached, and stays.
        done(daemon, "port add vale0:lan --kind tap");
        done(daemon, "port add vale0:process --kind shm");
        for port in ["vale0:lan", "vale0:process"] {
            let output = uvala(daemon, &format!("ns detach {port}"));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(12), "{text}");
            assert!(text.contains(&format!("uvala port del {port}")), "{text}");
            assert!(daemon.port(port).is_some());
        }
        let output = uvala(daemon, "ns detach vale0:red");
        assert_eq!(output.status.code(), Some(5), "it is gone");
        // Half of what was asked for is nothing.
        let wrong = "--address 10.0.0.1/24 --gateway 10.0.0.255 --json";
        let output = uvala(daemon, &format!("ns attach {} vale0:red {wrong}", red.name()));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing is done");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("nothing is left"), "{text}");
        assert!(text.contains("route to 0.0.0.0/0 by 10.0.0.255"), "{text}");
        assert!(daemon.port("vale0:red").is_none() && !red.seen("link").contains("eth0"));
        let output = uvala(daemon, "ns attach nowhere vale0:x");
        assert!(String::from_utf8_lossy(&output.stderr).contains("no network namespace nowhere"));
    });
}

#[test]
fn an_address_of_ipv6_can_be_used_at_once() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        done(daemon, &format!("ns attach {} vale0:red --address fd00::1/64", red.name()));
        let bound = red.within(|| UdpSocket::bind(("fd00::1", 0)));
        assert!(bound.is_ok(), "{bound:?}");
    });
}

#[test]
fn a_port_or_an_interface_that_is_there_is_not_attached_again() {
    let Some(lab) = Lab::new(2) else { return };
    let blue_is = lab.guests[1].name();
    lab.tell(|daemon, lab| {
        let red = &lab.guests[0];
        let refused = |words: &str| {
            let output = uvala(daemon, words);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(text.lines().count(), 1, "{text}");
            (output.status.code(), text)
        };
        done(daemon, &format!("ns attach {} vale0:red", red.name()));
        for again in [&red.name(), &blue_is] {
            let (code, text) = refused(&format!("ns attach {again} vale0:red"));
            assert!(code == Some(11) && text.contains("vale0:red"), "{text}");
        }
        let (code, text) = refused(&format!("ns attach {} vale0:other", red.name()));
        assert!(code == Some(6) && text.contains("port vale0:red of this switch"), "{text}");
        assert_eq!(daemon.ports(), ["vale0:red"]);
        // Another name of a namespace means the same one.
        let path = format!("/proc/{}/ns/net", red.name());
        done(daemon, &format!("ns attach {path} vale0:other --ifname eth1"));
        done(daemon, "ns detach vale0:other");
    });
}

#[test]
fn a_namespace_that_dies_leaves_a_port_that_says_so() {
    let Some(mut lab) = Lab::new(1) else { return };
    let red = lab.guests.remove(0);
    lab.tell(|daemon, _| {
        done(daemon, &format!("ns attach {} vale0:red --address 10.0.0.2/24", red.name()));
        let name = red.name();
        red.die();
        lab::becomes(daemon, "vale0:red", LinkState::Gone);
        let output = uvala(daemon, &format!("ns attach {name} vale0:again"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{text}");
        assert!(text.contains(&format!("of a process {name}")) && text.contains("ps"), "{text}");
        done(daemon, "ns detach vale0:red");
        assert_eq!(daemon.ports(), [""; 0]);
    });
}

/// Whether a station answers at this address.
fn answers(address: &str) -> bool {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let _ = socket.send_to(b"x", (address, 9));
    let output = Command::new("ip").args(["neigh", "show", address]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("lladdr")
}

#[test]
fn a_namespace_of_ip_netns_is_found_by_its_name_also_by_the_next_daemon() {
    if !is_root() {
        return skip("mounts of a test's own need root");
    }
    let Some(home) = Namespace::new() else { return };
    home.within(|| {
        harness::mounts::empty_run();
        let mut daemon = Daemon::start();
        let attach = "ns attach red vale0:red --address 10.0.0.2/24 --ifname net0";
        let output = uvala(&daemon, attach);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("ip netns add red"), "{text}");
        ip("netns add red");
        done(&daemon, attach);
        done(&daemon, "port add vale0:lan --kind tap --address 10.0.0.1/24");
        wait::until("an answer", || answers("10.0.0.2"));
        daemon.kill();
        daemon.restart();
        lab::becomes(&daemon, "vale0:red", LinkState::Up);
        lab::becomes(&daemon, "vale0:lan", LinkState::Up);
        ip("neigh flush all");
        wait::until("an answer again", || answers("10.0.0.2"));
        // The daemon waits for a namespace that is created after it starts.
        daemon.kill();
        ip("netns del red");
        daemon.restart();
        let trouble = || host(&daemon, "vale0:red").trouble.unwrap_or_default();
        wait::until("it to be missed", || trouble().contains("no network namespace red"));
        assert_eq!(host(&daemon, "vale0:red").state, LinkState::Gone);
        ip("netns add red");
        lab::becomes(&daemon, "vale0:red", LinkState::Up);
        ip("neigh flush all");
        wait::until("an answer once more", || answers("10.0.0.2"));
        done(&daemon, "ns detach vale0:red");
        ip("netns del red");
    });
}

#[test]
fn an_ordinary_user_has_a_switch_and_namespaces_of_their_own() {
    unprivileged::run("");
}

/// A runtime: the plugin under its name, and the standard plugins.
struct Runtime {
    place: Scratch,
    plugins: PathBuf,
    dir: PathBuf,
}

impl Runtime {
    fn new(daemon: &Daemon) -> Option<Self> {
        let places = ["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from);
        let Some(plugins) = places.into_iter().find(|dir| dir.join("host-local").exists()) else {
            skip("no host-local: apt install containernetworking-plugins, as root");
            return None;
        };
        let place = Scratch::new("cni");
        std::os::unix::fs::symlink(uvala_path(), place.path().join("uvala-cni")).unwrap();
        Some(Self { place, plugins, dir: daemon.dir() })
    }

    fn config(&self, more: &str) -> String {
        format!(
            r#"{{"cniVersion":"1.0.0","name":"lab","type":"uvala-cni","switch":"vale0",
            "dir":{:?},{more}"ipam":{{"type":"host-local","dataDir":{:?},
            "ranges":[[{{"subnet":"10.7.0.0/24"}}],[{{"subnet":"fd07::/64"}}]],
            "routes":[{{"dst":"0.0.0.0/0"}},{{"dst":"::/0"}}]}}}}"#,
            self.dir.to_str().unwrap(),
            self.place.path().join("ipam").to_str().unwrap(),
        )
    }

    /// Whether it succeeded, and what it said.
    fn call(&self, command: &str, guest: &str, config: &str) -> (bool, serde_json::Value) {
        self.call_as(command, guest, "eth0", config)
    }

    fn call_as(
        &self,
        command: &str,
        guest: &str,
        ifname: &str,
        config: &str,
    ) -> (bool, serde_json::Value) {
        let mut plugin = Command::new(self.place.path().join("uvala-cni"));
        plugin
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", format!("container-{guest}"))
            .env("CNI_NETNS", format!("/proc/{guest}/ns/net"))
            .env("CNI_IFNAME", ifname)
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut plugin = plugin.spawn().expect("it is there");
        // VERSION need not read it.
        let _ = plugin.stdin.take().unwrap().write_all(config.as_bytes());
        let output = plugin.wait_with_output().unwrap();
        let said = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), said)
    }
}

fn address(said: &serde_json::Value, at: usize) -> String {
    let text = said["ips"][at]["address"].as_str().unwrap();
    text.split('/').next().unwrap().to_owned()
}

#[test]
fn a_runtime_adds_checks_and_deletes_containers() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let [red, blue] = &lab.guests[..] else { panic!() };
        let config = runtime.config("\"mtu\":1400,");
        let (good, said) = runtime.call("VERSION", "", "{\"cniVersion\":\"1.0.0\"}");
        assert!(good && said["supportedVersions"].as_array().unwrap().contains(&"1.0.0".into()));
        let (good, red_is) = runtime.call("ADD", &red.name(), &config);
        assert!(good, "{red_is}");
        let (good, blue_is) = runtime.call("ADD", &blue.name(), &config);
        assert!(good, "{blue_is}");
        assert_eq!(red_is["cniVersion"], "1.0.0");
        assert_eq!(red_is["interfaces"][0]["name"], "eth0");
        let sandbox = format!("/proc/{}/ns/net", red.name());
        assert_eq!(red_is["interfaces"][0]["sandbox"], sandbox.as_str());
        let mac = red_is["interfaces"][0]["mac"].as_str().unwrap();
        assert!(red.seen("link show eth0").contains(mac));
        assert_eq!(
            (red_is["ips"].as_array().unwrap().len(), &red_is["ips"][0]["interface"]),
            (2, &0.into())
        );
        assert!(red.seen("route").contains("default via 10.7.0.1 dev eth0"));
        assert!(red.seen("link show eth0").contains("mtu 1400"));
        tcp(red, blue, &address(&blue_is, 0), MEGABYTE);
        tcp(blue, red, &address(&red_is, 1), MEGABYTE);
        let again = runtime.call("ADD", &red.name(), &config);
        assert!(!again.0 && again.1["code"].as_u64() >= Some(1), "{}", again.1);
        let port = daemon.ports().into_iter().next().unwrap();
        assert_eq!(host(daemon, &port).state, LinkState::Up);
        let label = daemon.port(&port).unwrap().settings.label.unwrap();
        assert!(label.starts_with("container-"), "{label}");
        let previous = runtime.config(&format!("\"prevResult\":{red_is},"));
        let blue_again = runtime.config(&format!("\"prevResult\":{blue_is},"));
        let (good, said) = runtime.call("CHECK", &blue.name(), &blue_again);
        assert!(good, "{said}");
        blue.ip(&format!("addr del {} dev eth0", blue_is["ips"][0]["address"].as_str().unwrap()));
        let (good, said) = runtime.call("CHECK", &blue.name(), &blue_again);
        assert!(!good && said["code"] == 102, "{said}");
        blue.ip("link set eth0 down");
        let (good, said) = runtime.call("CHECK", &blue.name(), &blue_again);
        assert!(!good && said["code"] == 102, "{said}");
        blue.ip("link del eth0");
        let (good, said) = runtime.call("CHECK", &blue.name(), &blue_again);
        assert!(!good && said["code"] == 102, "{said}");
        for guest in [red, blue, red] {
            let (good, said) = runtime.call("DEL", &guest.name(), &previous);
            assert!(good, "also twice: {said}");
        }
        assert_eq!(daemon.ports(), [""; 0]);
        assert!(!red.seen("link").contains("eth0"));
        let left = std::fs::read_dir(runtime.place.path().join("ipam/lab")).unwrap();
        let left = left.filter(|file| {
            let name = file.as_ref().unwrap().file_name().into_string().unwrap();
            name.starts_with("10.") || name.starts_with("fd")
        });
        assert_eq!(left.count(), 0, "every address was given back");
    });
}

#[test]
fn an_interface_has_the_mac_address_that_its_runtime_asks_for() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let red = &lab.guests[0];
        let mac = "02:00:00:00:0a:0b";
        let asked = format!("\"capabilities\":{{}},\"runtimeConfig\":{{\"mac\":{mac:?}}},");
        let (good, said) = runtime.call("ADD", &red.name(), &runtime.config(&asked));
        assert!(good && said["interfaces"][0]["mac"] == mac, "{said}");
        assert!(red.seen("link show eth0").contains(mac));
    });
}

/// Debian's host-local speaks version 1.0.0, which has no STATUS and no GC.
#[test]
fn a_plugin_for_addresses_is_asked_in_a_version_that_it_speaks() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let red = &lab.guests[0];
        let config = runtime.config("").replace("\"1.0.0\"", "\"1.1.0\"");
        let (good, said) = runtime.call("STATUS", "0", &config);
        assert!(good, "{said}");
        let (good, red_is) = runtime.call("ADD", &red.name(), &config);
        assert!(good && red_is["cniVersion"] == "1.1.0", "{red_is}");
        let with = |more: &str| config.replacen('{', &format!("{{{more}"), 1);
        let (good, said) =
            runtime.call("CHECK", &red.name(), &with(&format!("\"prevResult\":{red_is},")));
        assert!(good, "{said}");
        assert!(runtime.call("GC", "0", &with("\"cni.dev/valid-attachments\":[],")).0);
        assert_eq!(daemon.ports(), [""; 0]);
    });
}

#[test]
fn what_an_add_did_not_make_it_does_not_take_away() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let red = &lab.guests[0];
        let config = runtime.config("");
        let (good, red_is) = runtime.call("ADD", &red.name(), &config);
        assert!(good, "{red_is}");
        let leases = || std::fs::read_dir(runtime.place.path().join("ipam/lab")).unwrap().count();
        let leased = leases();
        for ipam in ["\"ipam\"", "\"cni.dev/none\""] {
            let again = config.replace("\"ipam\"", ipam);
            let (good, said) = runtime.call("ADD", &red.name(), &again);
            assert!(!good && said["code"] == 100, "{said}");
            assert!(red.seen("addr show eth0").contains(&address(&red_is, 0)), "it stays");
            assert_eq!((daemon.ports().len(), leases()), (1, leased));
        }
        // An answer that makes no sense: what was given for it is given back.
        let (good, said) = runtime.call("DEL", &red.name(), &config);
        assert!(good, "{said}");
        let odd = runtime.place.path().join("odd");
        let text = "#!/bin/sh\ntest $CNI_COMMAND = VERSION || echo $CNI_COMMAND >> $0.log\n\
                    echo nonsense\n";
        std::fs::write(&odd, text).unwrap();
        std::fs::set_permissions(&odd, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = config.replace("\"host-local\"", "\"odd\"");
        let runtime = Runtime { plugins: runtime.place.path().to_owned(), ..runtime };
        let (good, said) = runtime.call("ADD", &red.name(), &config);
        assert!(!good && said["code"] == 101, "{said}");
        let config = config.replace("1.0.0", "1.1.0");
        let all = config.replacen('{', "{\"cni.dev/valid-attachments\":[],", 1);
        assert!(daemon.ports().is_empty() && runtime.call("GC", "0", &all).0);
        assert!(runtime.call("STATUS", "0", &config).0);
        let log = std::fs::read_to_string(odd.with_extension("log")).unwrap();
        assert_eq!(log, "ADD\nDEL\nGC\nSTATUS\n");
    });
}

#[test]
fn what_a_runtime_does_wrong_has_its_code() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let red = lab.guests[0].name();
        let code = |command: &str, guest: &str, config: &str| {
            let (good, said) = runtime.call(command, guest, config);
            assert!(!good && said["msg"].is_string(), "{said}");
            said["code"].as_u64().unwrap()
        };
        let config = runtime.config("");
        assert_eq!(code("ADD", &red, &config.replace("1.0.0", "0.1.0")), 1);
        assert_eq!(code("ADD", "0", &config), 3);
        assert_eq!(code("FLY", &red, &config), 4);
        assert_eq!(code("ADD", &red, "{"), 6);
        assert_eq!(code("ADD", &red, &config.replace("\"lab\"", "\"\"")), 7);
        assert_eq!(code("ADD", &red, &config.replace("\"vale0\"", "\"eth0\"")), 7);
        assert_eq!(code("ADD", &red, &config.replace("host-local", "../host-local")), 7);
        let gone = config.replace(daemon.dir().to_str().unwrap(), "/nowhere");
        assert_eq!(code("ADD", &red, &gone), 11);
        assert!(runtime.call("DEL", &red, &gone).0, "without a daemon there is nothing left");
        let refused = runtime.config("\"vlan\":\"access:9999\",");
        assert_eq!(code("ADD", &red, &refused), 7);
        let unknown = runtime.config("\"vlna\":\"access:9\",");
        let (good, said) = runtime.call("ADD", &red, &unknown);
        assert!(!good && said["code"] == 7, "{said}");
        assert!(said["msg"].as_str().unwrap().contains("\"vlna\""), "{said}");
        assert!(runtime.call("DEL", &red, &unknown).0, "what is there can be deleted");
        let odd = runtime.config("\"runtimeConfig\":{\"mac\":\"x\"},");
        assert_eq!(code("ADD", &red, &odd), 7);
        let empty = config.replace("10.7.0.0/24", "10.7.0.0/33");
        assert!(code("ADD", &red, &empty) > 0);
        assert_eq!(daemon.ports(), [""; 0]);
        assert!(Path::new("/proc").join(&red).exists());
    });
}

#[test]
fn what_is_not_as_it_was_added_has_one_code_and_what_cannot_be_checked_others() {
    let Some(mut lab) = Lab::new(2) else { return };
    let blue = lab.guests.remove(1);
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let (red, blue_is) = (&lab.guests[0], blue.name());
        let config = runtime.config("");
        let (good, red_is) = runtime.call("ADD", &red.name(), &config);
        assert!(good, "{red_is}");
        let code = |guest: &str, config: &str| {
            let (good, said) = runtime.call("CHECK", guest, config);
            assert!(good || said["msg"].is_string(), "{said}");
            said["code"].as_u64()
        };
        let previous = runtime.config(&format!("\"prevResult\":{red_is},"));
        assert_eq!(code(&red.name(), &previous), None);
        assert_eq!(code(&red.name(), &config), Some(7), "CHECK goes by prevResult");
        assert_eq!(code("0", &previous), Some(3));
        red.ip("route del default");
        assert_eq!(code(&red.name(), &previous), Some(102), "its route");
        red.ip("route add default via 10.7.0.1");
        red.ip("-6 route del default");
        assert_eq!(code(&red.name(), &previous), Some(102), "its other route");
        assert_eq!(code(&blue_is, &previous), Some(102), "it was never added");
        let gone = previous.replace(daemon.dir().to_str().unwrap(), "/nowhere");
        assert_eq!(code(&red.name(), &gone), Some(11));
        done(daemon, &format!("port del {}", daemon.ports()[0]));
        assert_eq!(code(&red.name(), &previous), Some(102), "its port");
        assert!(runtime.call("ADD", &blue_is, &config).0);
        blue.die();
        assert_eq!(code(&blue_is, &previous), Some(3), "its namespace");
        for config in [&previous, &config] {
            assert!(runtime.call("DEL", &blue_is, config).0, "also twice");
        }
    });
}

#[test]
fn a_version_is_answered_with_the_one_that_was_asked_in() {
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        for (config, version) in [
            ("{\"cniVersion\":\"1.1.0\"}", "1.1.0"),
            ("{\"cniVersion\":\"0.4.0\"}", "0.4.0"),
            ("", "1.0.0"),
        ] {
            let (good, said) = runtime.call("VERSION", "", config);
            assert!(good && said["cniVersion"] == version, "{said}");
            assert_eq!(said["supportedVersions"], serde_json::json!(["1.0.0", "1.1.0"]));
        }
        let mut plugin = Command::new(runtime.place.path().join("uvala-cni"));
        let output = plugin.env("CNI_COMMAND", "ADD").stdin(Stdio::null()).output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
        let named = all.iter().all(|name| said["msg"].as_str().unwrap().contains(name));
        assert!(named && said["code"] == 4 && output.status.code() == Some(1), "{said}");
    });
}

#[test]
fn garbage_is_collected_and_the_status_says_whether_anything_can_be_added() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let Some(runtime) = Runtime::new(daemon) else { return };
        let [red, blue] = &lab.guests[..] else { panic!() };
        let dir = daemon.dir();
        let config = |name: &str, more: &str| {
            format!("{{\"cniVersion\":\"1.1.0\",\"name\":{name:?},{more}\"dir\":{dir:?}}}")
        };
        for (guest, network) in [(red, "lab"), (blue, "lab"), (red, "other")] {
            let config = config(network, "");
            let (good, said) = match network {
                "lab" => runtime.call("ADD", &guest.name(), &config),
                _ => runtime.call_as("ADD", &guest.name(), "eth1", &config),
            };
            assert!(good, "{said}");
        }
        done(daemon, "port add vale0:lan --kind tap");
        let valid = |ids: &str| format!("\"cni.dev/valid-attachments\":[{ids}],");
        let red_is =
            format!("{{\"containerID\":\"container-{}\",\"ifname\":\"eth0\"}}", red.name());
        let gc = |more: &str| runtime.call("GC", "0", &config("lab", more));
        assert_eq!(gc("").1["code"], 7, "everything would be garbage");
        assert!(gc(&valid(&red_is)).0);
        assert!(red.seen("link").contains("eth0") && red.seen("link").contains("eth1"));
        assert!(!blue.seen("link").contains("eth0"));
        assert!(gc(&valid("")).0);
        assert!(!red.seen("link").contains("eth0") && red.seen("link").contains("eth1"));
        assert_eq!(daemon.ports().len(), 2, "that of another network, and the host's");
        let status = |config: &str| runtime.call("STATUS", "0", config);
        assert!(status(&config("lab", "")).0);
        let nowhere = config("lab", "").replace(dir.to_str().unwrap(), "/nowhere");
        assert_eq!(status(&nowhere).1["code"], 51);
        assert!(runtime.call("GC", "0", &nowhere.replacen('{', &format!("{{{}", valid("")), 1)).0);
        let old = config("lab", "").replace("1.1.0", "1.0.0");
        assert_eq!(status(&old).1["code"], 1, "there was no STATUS");
    });
}

/// The configurations of the page for several hosts: a host's own, and a cluster's.
fn of_several_hosts() -> [serde_json::Value; 2] {
    let page = std::fs::read_to_string(harness::root().join("docs/containers.md")).unwrap();
    let section = page.split("## Containers of several hosts").nth(1).unwrap();
    let blocks = section.split("```").filter_map(|block| {
        let (begin, end) = (block.find('{')?, block.rfind('}')?);
        serde_json::from_str(&block[begin..=end]).ok()
    });
    let blocks: Vec<_> = blocks.take(2).collect();
    blocks.try_into().expect("two blocks")
}

/// Each host as the page has it, with addresses of its own.
#[test]
fn containers_of_two_hosts_are_in_one_network() {
    let Some(underlay) = Underlay::new(1500) else { return };
    let hosts = [(1, 2), (2, 1)].map(|(number, other)| underlay.host(number, &[other]));
    let [Some(one), Some(two)] = hosts else { return };
    let mut pods = Vec::new();
    for host in [&one, &two] {
        let Some(runtime) = Runtime::new(&host.daemon) else { return };
        let [list, _] = of_several_hosts();
        let mut config = list["plugins"][0].clone();
        config["cniVersion"] = list["cniVersion"].clone();
        config["name"] = list["name"].clone();
        config["dir"] = runtime.dir.to_str().unwrap().into();
        config["ipam"]["dataDir"] = runtime.place.path().join("ipam").to_str().unwrap().into();
        let text = config.to_string().replace("10.7.1.", &format!("10.7.{}.", host.number));
        let Some(pod) = Namespace::new() else { return };
        let (good, said) = host.home.within(|| runtime.call("ADD", &pod.name(), &text));
        assert!(good, "{said}");
        assert_eq!(address(&said, 0), format!("10.7.{}.1", host.number));
        pods.push((pod, runtime));
    }
    let [(red, _), (blue, _)] = &pods[..] else { panic!() };
    tcp(red, blue, "10.7.2.1", MEGABYTE);
    tcp(blue, red, "10.7.1.1", MEGABYTE);
    let shown = one.done(&["port", "show", FABRIC]);
    let [list, _] = of_several_hosts();
    let line = format!("inner mtu        {}\n", list["plugins"][0]["mtu"]);
    assert!(shown.contains(&line), "as on the page: {shown}");
}

/// whereabouts needs a cluster: a plugin in its place has to be asked as the page says.
#[test]
fn the_definition_of_a_cluster_reaches_the_plugin_for_addresses_as_it_is() {
    let Some(lab) = Lab::new(1) else { return };
    lab.tell(|daemon, lab| {
        let Some(mut runtime) = Runtime::new(daemon) else { return };
        let [_, mut config] = of_several_hosts();
        config["dir"] = runtime.dir.to_str().unwrap().into();
        let (asked, plugin) = (runtime.place.path().join("asked"), "whereabouts");
        let answer = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.7.0.5/16"}]}"#;
        let script = format!("#!/bin/sh\ncat > {}\necho '{answer}'\n", asked.display());
        runtime.plugins = runtime.place.path().to_owned();
        let program = runtime.plugins.join(plugin);
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let red = &lab.guests[0];
        let (good, said) = runtime.call("ADD", &red.name(), &config.to_string());
        assert!(good && address(&said, 0) == "10.7.0.5", "{said}");
        assert!(red.seen("addr show eth0").contains("10.7.0.5/16"));
        let asked = std::fs::read_to_string(asked).unwrap();
        let asked: serde_json::Value = serde_json::from_str(&asked).unwrap();
        assert_eq!(asked["ipam"], config["ipam"]);
    });
}

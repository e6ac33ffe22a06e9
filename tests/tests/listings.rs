//! Listings on a terminal: they fit it.

use std::process::Command;

use harness::daemon::Setup;
use harness::process::uvala_path;
use harness::pty::OnTerminal;

/// Names as people give them to tenants, machines and functions.
const LONG: &str = r#"
[switch.vale_tenant_blue]
mcast_snooping = true
mode = "660"
[switch.vale_tenant_blue.port.web_frontend_production_01]
label = "the web server of the blue tenant"
vlan = "trunk:100-110,200-210,native=1"
static = ["02:00:00:00:00:01", "02:00:00:00:00:02@100"]
mcast_groups = ["239.255.255.250", "ff15::1234:5678:9abc:def0@100"]
[switch.vale_tenant_blue.port.database_replica_02]
[switch.vale_tenant_blue.port.intrusion_detection]
mirror = { from = ["web_frontend_production_01", "database_replica_02"], rate = 1000000 }
[switch.vale_tenant_blue.port.other_data_centre]
kind = "vxlan"
vni = 16777215
local = "127.3.14.15"
neigh_suppress = true
[switch.valenf_production]
forwarding = "chain"
[switch.valenf_production.port.firewall_instance_1]
service = "stateful_firewall"
[switch.valenf_production.port.router_instance_1]
service = "border_router"
[switch.valenf_production.port.customer_uplink]
chain = "customers_to_internet"
[[switch.valenf_production.chain]]
name = "customers_to_internet"
services = ["stateful_firewall@least", "border_router"]
[[switch.valenf_production.rule]]
action = "chain:customers_to_internet"
in = "customer_uplink"
proto = "tcp"
src = "2001:db8:1234:5678::/64"
dport = "8000-8999"
"#;

#[test]
fn listings_fit_a_terminal_of_80_columns() {
    let daemon = Setup::new(LONG).start();
    let names = ["web_frontend_production_01", "database_replica_02"];
    let mut ports = names.map(|name| daemon.open(&format!("vale_tenant_blue:{name}")));
    ports[0].send(&[0xff; 60]).unwrap();
    for words in [
        "switch list",
        "switch show vale_tenant_blue",
        "port list",
        "port show vale_tenant_blue:web_frontend_production_01",
        "port show vale_tenant_blue:other_data_centre",
        "stats",
        "stats --queues",
        "stats --explain",
        "fdb list vale_tenant_blue",
        "mdb list vale_tenant_blue",
        "mirror list",
        "neigh list vale_tenant_blue:other_data_centre",
        "chain list valenf_production",
        "rule list valenf_production",
        "nf list",
        "worker list",
        "audit",
        "doctor",
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\"; echo THE END", "sh"]).arg(uvala_path());
        command.arg("--dir").arg(daemon.dir()).args(words.split(' '));
        // Where a line was broken by the terminal, the text has it whole.
        let text = OnTerminal::start(&command, [80, 500]).until_shown("THE END");
        let wide = text.lines().find(|line| line.chars().count() > 80);
        assert!(wide.is_none(), "uvala {words}:\n{text}");
        assert!(text.lines().count() > 1 || words == "audit", "uvala {words}:\n{text}");
    }
    // What is no terminal gets each row on a line.
    let piped = String::from_utf8(daemon.uvala(&["port", "list"]).stdout).unwrap();
    assert!(piped.lines().count() > 4 && !piped.contains("\n "), "{piped}");
}

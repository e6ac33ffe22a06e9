//! The netavark plugin: containers of podman on a switch.
//!
//! ```text
//!   podman ──► netavark ── setup, container ──► uvala netavark ──► daemon: a TAP in the container
//!      │                                          │        │
//!      └── create, network ───────────────────────┘        └──► inside: addresses, routes
//! ```
//!
//! podman assigns the addresses. A container's port is called after the network, the container and
//! the interface, as the CNI plugin does it, so `teardown` finds what `setup` made without any note
//! of it. `setup` takes back what it cannot finish, and touches nothing where there is a port.
//! `teardown` succeeds also where there is nothing left.

mod message;

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Error, Result, ensure};
use client::control::{Connection, ControlError};
use hostif::namespace;
use protocol::exit;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cni::{inside, port};
use message::{Container, Network, Plan};
use terminal::say;

/// Version of the interface.
const API: &str = "1.0.0";

/// Run as a netavark plugin
///
/// podman and netavark run this command by the name `uvala-netavark`, which is also the driver's
/// name, from a folder of netavark_plugin_dirs (containers.conf). podman 4.5 or newer has plugins.
///
/// The options of a network (--opt) are switch (default vale0; its first port creates it), dir
/// (directory of the daemon's socket), mtu, vlan and isolated (as for `uvala port add`), metric (of
/// the default route; default 101) and no_default_route=true. The plugin refuses other options by
/// name. podman assigns addresses and, if asked, the MAC address. It publishes no ports.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Print the plugin's version, and the interface's
    Info,
    /// Check the network on stdin, and print it
    Create,
    /// Connect the container on stdin
    Setup {
        /// Path of its network namespace
        netns: String,
    },
    /// Disconnect the container on stdin
    Teardown {
        /// Path of its network namespace
        netns: String,
    },
}

const EXAMPLES: &str = "\
Examples:
  ln -s /usr/local/bin/uvala /usr/local/libexec/netavark/uvala-netavark
  podman network create --driver uvala-netavark --opt switch=vale0 \\
      --subnet 10.7.0.0/24 --gateway 10.7.0.1 lab
  uvala port add vale0:lan --kind tap --address 10.7.0.1/24     the gateway, on this host
  podman run --network lab --ip 10.7.0.9 docker.io/library/busybox ip addr";

/// Carries out what netavark asks for; returns the exit status.
pub fn run(args: &Args) -> u8 {
    let (answer, status) = match answer(args) {
        Ok(answer) => (answer, exit::OK),
        Err(error) => (Some(json!({ "error": format!("{error:#}") })), exit::FAILURE),
    };
    match answer.map(|text| say::out(format_args!("{text}\n"))) {
        None | Some(Ok(())) => status,
        Some(Err(_)) => exit::FAILURE,
    }
}

fn answer(args: &Args) -> Result<Option<Value>> {
    match &args.action {
        Action::Info => {
            Ok(Some(json!({ "version": env!("CARGO_PKG_VERSION"), "api_version": API })))
        }
        Action::Create => create(read()?).map(Some),
        Action::Setup { netns } => setup(netns, &read()?).map(Some),
        Action::Teardown { .. } => teardown(&read()?).map(|()| None),
    }
}

/// What is on standard input.
fn read<T: DeserializeOwned>() -> Result<T> {
    let mut text = Vec::new();
    io::stdin().take(1 << 20).read_to_end(&mut text).context("standard input")?;
    serde_json::from_slice(&text).context("standard input")
}

/// The network as podman shall keep it. Nothing here answers its containers' questions for names.
fn create(mut network: Value) -> Result<Value> {
    let asked: Network = serde_json::from_value(network.clone()).context("standard input")?;
    asked.check().map_err(Error::msg)?;
    network["dns_enabled"] = false.into();
    Ok(network)
}

fn setup(netns: &str, container: &Container) -> Result<Value> {
    ensure!(netns.starts_with('/'), "{netns:?} is no path of a network namespace");
    let (port, plan) = (container.port(), container.plan(netns));
    let (port, Plan { host, settings, given, routes }) =
        port.and_then(|port| Ok((port, plan?))).map_err(Error::msg)?;
    let namespace = namespace::open(netns)?;
    let ifname = host.ifname.clone().unwrap_or_default();
    let connection = connect(container.dir().as_deref())?;
    port::add(&connection, &port, host, settings)?;
    let addresses: Vec<_> = given.iter().map(|it| it.address).collect();
    let made = inside::within(&namespace, || inside::set_up(&ifname, &addresses, &routes))
        .with_context(|| format!("{ifname} in {netns}"))
        .and_then(|()| Ok(port::show(&connection, &port)?));
    if made.is_err() {
        // What is not finished is taken back; what the first trouble was matters.
        let _ = port::remove(&connection, &port);
    }
    let mac = made?.host.map(|host| host.mac.to_string()).unwrap_or_default();
    let interface = json!({ "mac_address": mac, "subnets": given });
    Ok(json!({
        "dns_search_domains": [],
        "dns_server_ips": [],
        "interfaces": { ifname: interface },
    }))
}

/// Without a daemon there is no port, and the interface is gone with it.
fn teardown(container: &Container) -> Result<()> {
    let port = container.port().map_err(Error::msg)?;
    match connect(container.dir().as_deref()) {
        Err(ControlError::NoDaemon(_)) => Ok(()),
        connection => Ok(port::remove(&connection?, &port)?),
    }
}

fn connect(dir: Option<&Path>) -> Result<Connection, ControlError> {
    let connection = Connection::open(dir)?;
    connection.hello(concat!("uvala netavark ", env!("CARGO_PKG_VERSION")))?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_network_is_kept_as_podman_says_it_but_for_names() {
        let network = json!({
            "name": "lab", "id": "2f", "driver": "uvala-netavark", "dns_enabled": true,
            "created": "2026-11-28T12:00:00Z", "labels": { "a": "b" }, "options": { "mtu": "1400" },
        });
        let kept = create(network.clone()).unwrap();
        assert_eq!(kept["dns_enabled"], false);
        let mut again = kept;
        again["dns_enabled"] = true.into();
        assert_eq!(again, network);
        let error = create(json!({ "name": "lab", "options": { "mtus": "9" } })).unwrap_err();
        assert!(error.to_string().starts_with("unknown option \"mtus\""), "{error}");
        assert!(create(json!({ "id": "2f" })).is_err());
    }
}

//! A switch with a chain of functions, each in a process of its own.

use std::process::Stdio;

use client::api::{ChainInfo, FunctionInfo, GroupAudit, PortStats, Reply, Request, SteeringQuery};

use crate::daemon::Daemon;
use crate::process::{Owned, uvala};
use crate::role::Become;
use crate::wait;

/// A switch with a chain `c` of services `s0` to the last, each with an instance `f0`…, between
/// `valenf:a` and `valenf:b`.
#[must_use]
pub fn configuration(functions: usize) -> String {
    let mut text = "[switch.valenf]\nforwarding = \"chain\"\n".to_owned();
    text += "[switch.valenf.port.a]\nchain = \"c\"\n[switch.valenf.port.b]\n";
    for n in 0..functions {
        text += &format!("[switch.valenf.port.f{n}]\nservice = \"s{n}\"\n");
    }
    let services: Vec<_> = (0..functions).map(|n| format!("\"s{n}\"")).collect();
    let services = services.join(", ");
    text + &format!("[[switch.valenf.chain]]\nname = \"c\"\nservices = [{services}]\n")
}

/// A function in a process of its own, which passes everything on.
#[must_use]
pub fn function(daemon: &Daemon, number: usize) -> Owned {
    let port = format!("valenf:f{number}");
    let mut command = uvala(Become::default(), &["nf", "run", "bypass", &port], None);
    command.env("UVALA_DIR", daemon.dir());
    let function = Owned::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    wait::until("a function", || runs(daemon, number));
    function
}

/// All functions, as they are listed.
///
/// # Panics
/// If they are not.
#[must_use]
pub fn functions(daemon: &Daemon) -> Vec<FunctionInfo> {
    match daemon.call(Request::FunctionList(query())) {
        Ok(Reply::Functions(page)) => page.items,
        other => panic!("{other:?}"),
    }
}

/// The chain, as it is listed.
///
/// # Panics
/// If it is not.
#[must_use]
pub fn chain(daemon: &Daemon) -> ChainInfo {
    match daemon.call(Request::ChainList(query())) {
        Ok(Reply::Chains(mut page)) => page.items.remove(0),
        other => panic!("{other:?}"),
    }
}

fn query() -> SteeringQuery {
    SteeringQuery { switch: "valenf".parse().expect("a name"), from: None }
}

/// Does somebody run this function?
#[must_use]
pub fn runs(daemon: &Daemon, number: usize) -> bool {
    let name = format!("valenf:f{number}");
    functions(daemon).iter().any(|info| info.port.to_string() == name && info.pid.is_some())
}

/// What `uvala audit` says, which fails where a buffer is lost.
///
/// # Panics
/// If one is.
#[must_use]
pub fn audit(daemon: &Daemon) -> Vec<GroupAudit> {
    let output = daemon.uvala(&["audit", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a listing")
}

/// All drops of a port.
#[must_use]
pub fn drops(stats: &PortStats) -> u64 {
    stats.drops.values().sum()
}

/// Those for one reason.
#[must_use]
pub fn dropped(stats: &PortStats, reason: &str) -> u64 {
    stats.drops.get(reason).copied().unwrap_or(0)
}

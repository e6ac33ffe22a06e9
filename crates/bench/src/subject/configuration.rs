//! The configuration of the private daemon: the switch and the ports that a piece of work needs.

use anyhow::Result;

use super::forwarding;
use crate::daemon::Daemon;
use crate::programs::Scratch;
use crate::work::{Api, Chain, FLOWS, Forwarding, Offer, Path, RULES, Traffic, Wait, Work};

/// Starts a daemon with the ports of the receivers.
pub fn start(work: &Work) -> Result<Daemon> {
    let scratch = Scratch::new("daemon")?;
    let text = configuration(work, scratch.dir());
    let daemon = Daemon::start_in(scratch, &text)?;
    if work.forwarding == Forwarding::Program {
        forwarding::load(daemon.dir(), work.receivers())?;
    }
    Ok(daemon)
}

/// The daemon's configuration for a piece of work.
fn configuration(work: &Work, dir: &std::path::Path) -> String {
    let wait = match work.traffic {
        Traffic::RoundTrip(Wait::Spin) => "spin",
        _ => "auto",
    };
    let (cpu, batch) = (work.placement.switch, work.batch.switch);
    let mut text = String::from("log = \"warn\"\n\n[workers]\ncount = 1\n");
    text += &format!("cpus = [{cpu}]\nbatch = {batch}\nwait = \"{wait}\"\n\n");
    text += "[quota]\nports = 1024\nmemory = \"8 GiB\"\n\n[switch.vale0]\n";
    if let Path::Chain(chain) = work.path {
        return text + &chains(chain);
    }
    if work.path == Path::Guests {
        return text + &guests(work, dir);
    }
    let receivers = (0..work.receivers()).map(|number| format!("r{number}"));
    let sender = (work.traffic == Traffic::Both).then(|| "s".to_owned());
    for port in receivers.chain(sender) {
        text += &format!("\n[switch.vale0.port.{port}]\non_full = \"{}\"\n", work.on_full);
    }
    text
}

/// A switch of two virtual machines.
fn guests(work: &Work, dir: &std::path::Path) -> String {
    let name = match work.forwarding {
        Forwarding::Learning => "learning",
        Forwarding::Patch => "patch",
        Forwarding::Program => unreachable!("no machines in such a scenario"),
    };
    let mut text = format!("forwarding = \"{name}\"\n");
    for number in 0..2 {
        let socket = dir.join(format!("vm{number}.sock"));
        text += &format!("\n[switch.vale0.port.vm{number}]\nkind = \"vhost-user\"\n");
        text += &format!("socket = \"{}\"\n", socket.display());
        // No work is spent on frames that are dropped, unless that is measured.
        if work.api == Api::Driver && work.traffic == Traffic::OneWay {
            text += "on_full = \"wait\"\n";
        }
        if let Traffic::Slow(Offer { gap_usecs: Some(usecs), .. }) = work.traffic {
            text += &format!("coalesce_usecs = {usecs}\n");
        }
    }
    text
}

/// The switch: ports, services, chain and rules.
fn chains(chain: Chain) -> String {
    let mut text = "forwarding = \"chain\"\n".to_owned();
    if chain == Chain::Rules {
        text += &format!("fdb_capacity = {FLOWS}\n");
    }
    let entry = match chain {
        Chain::Rules => "",
        Chain::Box | Chain::BoxTogether | Chain::Bridged(_) => "chain = \"c\"\n",
        _ => "chain = \"c\"\nlearning = false\n",
    };
    let back = if chain.is_box() { entry } else { "" };
    text += &format!("[switch.vale0.port.s]\n{entry}[switch.vale0.port.r0]\n{back}");
    for number in 0..chain.functions() {
        text += &format!("[switch.vale0.port.f{number}]\nservice = \"s{number}\"\n");
    }
    let services: Vec<_> = (0..chain.functions()).map(|n| format!("\"s{n}\"")).collect();
    if chain != Chain::Rules {
        let services = services.join(", ");
        text += &format!("[[switch.vale0.chain]]\nname = \"c\"\nservices = [{services}]\n");
    }
    if entry.contains("learning") {
        text += "out = \"r0\"\n";
    }
    for number in 1..RULES * u16::from(chain == Chain::Rules) {
        // No frame goes to these ports: all rules are looked through for each flow.
        text += "[[switch.vale0.rule]]\naction = \"drop\"\nproto = \"udp\"\npriority = 1\n";
        text += &format!("dport = \"{}\"\n", 20_000 + number);
    }
    if chain == Chain::Rules {
        text += "[[switch.vale0.rule]]\naction = \"forward\"\nproto = \"udp\"\n";
    }
    text
}

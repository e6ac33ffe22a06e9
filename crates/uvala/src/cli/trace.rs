//! `uvala trace`

use std::fs::File;
use std::path::PathBuf;

use anyhow::Context;
use client::control::unexpected;
use packet::MacAddr;
use protocol::parse;
use protocol::{
    DropReason, FdbEntry, FloodClass, GroupScope, Learning, PortRequest, Reply, Request, TagAction,
    Tagging, Trace, TraceQuery, TraceStep,
};

use super::Global;
use super::output::Output;
use crate::expression::{self, Ends};
use crate::pcap;
use terminal::Usage;

/// Show what a switch would do with a frame, step by step, and why
///
/// The switch decides as it does about real frames, but learns nothing, counts nothing and sends
/// nothing. The trace ends where a port gets the frame: it does not say whether the port has room.
/// In a chain it goes on as if each function passed the frame on unchanged.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Port that would send the frame, such as vale0:vm1
    port: String,
    /// The frame: PROTOCOL SOURCE > DESTINATION, or its bytes in hexadecimal digits
    ///
    /// PROTOCOL is arp, icmp, icmpv6, tcp, udp, sctp or a number. tcp, udp and sctp take addresses
    /// with ports: 10.0.0.1:80 or [fd00::1]:80.
    #[arg(required_unless_present = "read")]
    frame: Option<String>,
    /// Source MAC address of the expression
    #[arg(long, value_name = "MAC")]
    src: Option<MacAddr>,
    /// Destination MAC address of the expression; of arp, the default is broadcast
    #[arg(long, value_name = "MAC")]
    dst: Option<MacAddr>,
    /// Tag the frame of the expression with this VLAN ID
    #[arg(long, value_name = "N", value_parser = parse::within(0..=4094_u16))]
    vlan: Option<u16>,
    /// Take the frame from a pcap or pcapng file
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["frame", "src", "dst", "vlan"])]
    read: Option<PathBuf>,
    /// Number of the frame in the file
    #[arg(long = "frame", value_name = "N", default_value_t = 1, requires = "read",
          value_parser = parse::positive)]
    number: u64,
    #[command(flatten)]
    output: Output,
}

/// Runs `uvala trace`.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let query = TraceQuery::new(args.port.parse()?, &args.frame()?);
    match global.connect()?.call(Request::Port(PortRequest::Trace(query)))? {
        Reply::Trace(trace) => args.output.print(&trace, text),
        other => Err(unexpected(&other).into()),
    }
}

impl Args {
    fn frame(&self) -> anyhow::Result<Vec<u8>> {
        if let Some(path) = &self.read {
            let open =
                || pcap::read::frame(std::io::BufReader::new(File::open(path)?), self.number);
            return open().with_context(|| format!("cannot read {}", path.display()));
        }
        let text = self.frame.as_deref().unwrap_or_default();
        if let Some(bytes) = packet::text::hex(text).filter(|bytes| !bytes.is_empty()) {
            return Ok(bytes);
        }
        let ends = Ends { src: self.src, dst: self.dst, vlan: self.vlan };
        Ok(expression::frame(text, ends).map_err(Usage)?)
    }
}

fn text(trace: &Trace) -> String {
    let mut text = String::new();
    for (number, step) in (1..).zip(&trace.steps) {
        text += &format!("{number:>3}. {}\n", line(step));
    }
    if trace.left_out > 0 {
        text += &format!("     and {} more steps\n", trace.left_out);
    }
    text
}

fn line(step: &TraceStep) -> String {
    match step {
        TraceStep::Vlan { vlan, tagging } => {
            let how = match tagging {
                Tagging::Untagged => "no 802.1Q tag",
                Tagging::Payload => "its tag is payload, the port is transparent to VLANs",
                Tagging::Priority => "a tag with a priority only",
                Tagging::Tagged => "tagged",
            };
            format!("VLAN {vlan}: {how}")
        }
        TraceStep::Learn { mac, result, from } => {
            let from = from.as_ref().map(|port| format!(" from {port}")).unwrap_or_default();
            format!("source {mac}: {}{from}", learning(*result))
        }
        TraceStep::Rule { rule } => format!("rule {rule} matches"),
        TraceStep::Chain { chain } => format!("enters chain {chain}"),
        TraceStep::Function { port } => format!("to the function on {port}"),
        TraceStep::Program => "the forwarding program decides".to_owned(),
        TraceStep::Lookup { mac, entry } => format!("destination {mac}: {}", found(entry.as_ref())),
        TraceStep::Flood { class } => {
            let class = match class {
                FloodClass::UnknownUnicast => "unknown unicast",
                FloodClass::Multicast => "multicast",
                FloodClass::Broadcast => "broadcast",
            };
            format!("flooded: {class}")
        }
        TraceStep::Group { mac, scope } => format!("group {mac}: {}", group_scope(*scope)),
        TraceStep::Send { port, tag, vlan } => format!("sent to {port}{}", tag_change(*tag, *vlan)),
        TraceStep::Drop { port, reason } => {
            let known = DropReason::named(reason);
            let why = known.map(|known| format!(": {}", known.explanation)).unwrap_or_default();
            format!("dropped, counted at {port} as {reason}{why}")
        }
    }
}

fn learning(result: Learning) -> &'static str {
    match result {
        Learning::New => "new, would be learned",
        Learning::Refreshed => "known here, would be refreshed",
        Learning::Moved => "would move here",
        Learning::Static => "has a static entry, not learned",
        Learning::PortLimit => "not learned, the port has as many addresses as max_macs",
        Learning::Full => "not learned, static entries fill its places",
    }
}

fn group_scope(scope: GroupScope) -> &'static str {
    match scope {
        GroupScope::Always => "to all ports, whatever members say",
        GroupScope::NoQuerier => "to all ports, because the VLAN has no querier",
        GroupScope::Full => "to all ports, because the multicast database was full",
        GroupScope::Members => "to its members and to router ports",
        GroupScope::NoMember => "no port has a member, to router ports",
        GroupScope::Report => "a report, to router ports",
        GroupScope::Query => "a query, to all ports",
    }
}

fn found(entry: Option<&FdbEntry>) -> String {
    match entry {
        None => "no FDB entry".to_owned(),
        Some(entry) if entry.is_static => format!("static FDB entry, on {}", entry.port),
        Some(entry) if entry.extern_learn => {
            format!("FDB entry of a routing daemon, on {}", entry.port)
        }
        Some(entry) => format!("FDB entry, on {}, seen {} s ago", entry.port, entry.age_s),
    }
}

fn tag_change(tag: TagAction, vlan: Option<u16>) -> String {
    let vlan = vlan.map(|vlan| vlan.to_string()).unwrap_or_default();
    match tag {
        TagAction::Keep => String::new(),
        TagAction::Strip => ", its tag removed".to_owned(),
        TagAction::Insert => format!(", tagged with VLAN {vlan}"),
        TagAction::Replace => format!(", VLAN {vlan} written into its tag"),
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala trace vale0:a 'icmp 10.0.0.1 > 10.0.0.2' \\
      --src 02:00:00:00:00:01 --dst 02:00:00:00:00:02
  uvala trace vale0:a 'arp 10.0.0.1 > 10.0.0.2' --src 02:00:00:00:00:01 --json
  uvala trace vale0:a -r seen.pcap --frame 3";

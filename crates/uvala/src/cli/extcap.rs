//! `uvala extcap`: Wireshark lists the ports and captures them.
//!
//! Wireshark runs the programs of its extcap folders, and asks each for its interfaces, their link
//! types and their options before it has one capture into a FIFO. The answers are lines of
//! `{name=value}`. A port whose name has a brace, as the ends of pipes have, cannot stand in them.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use client::filter::Filter;

use super::{Global, capture, port};
use terminal::{Usage, say};

/// Run as a Wireshark extcap program, which lists each port as an interface
///
/// Link it into a folder of `tshark -G folders` (Extcap path, or Personal Extcap path) under the
/// name uvala-extcap: ln -s $(command -v uvala) FOLDER/uvala-extcap
#[derive(Debug, clap::Args)]
pub struct Args {
    /// List the interfaces
    #[arg(long)]
    extcap_interfaces: bool,
    /// Version of Wireshark; any will do
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,
    /// Interface that the other options are about: a port
    #[arg(long, value_name = "PORT")]
    extcap_interface: Option<String>,
    /// List the link types of the interface
    #[arg(long)]
    extcap_dlts: bool,
    /// List the options of the interface
    #[arg(long)]
    extcap_config: bool,
    /// Capture
    #[arg(long, requires = "fifo")]
    capture: bool,
    /// Write pcapng to this FIFO
    #[arg(long, value_name = "FILE")]
    fifo: Option<PathBuf>,
    /// Capture frames that match this filter only; without --capture, check the filter
    #[arg(long, value_name = "FILTER")]
    extcap_capture_filter: Option<String>,
    /// Frames that enter the switch by the port (in), that leave by it (out), or both
    #[arg(long, value_name = "DIRECTION", default_value = "both",
          value_parser = ["in", "out", "both"])]
    direction: String,
}

/// Runs `uvala extcap`.
pub fn run(global: &Global, args: &Args) -> Result<()> {
    if args.extcap_interfaces {
        return say::out(interfaces(global));
    }
    let Some(port) = &args.extcap_interface else {
        return Err(Usage("Wireshark runs this; name a port with --extcap-interface".into()).into());
    };
    match &args.fifo {
        Some(fifo) if args.capture => {
            let filter = args.extcap_capture_filter.clone();
            let capture = capture::Args::into_fifo(port, filter, fifo, &args.direction);
            capture::run(global, &capture)
        }
        _ if args.extcap_dlts => say::out("dlt {number=1}{name=EN10MB}{display=Ethernet}\n"),
        _ if args.extcap_config => say::out(OPTIONS),
        _ => say::out(args.extcap_capture_filter.as_deref().map_or_else(String::new, fault_of)),
    }
}

/// What is wrong with a filter: nothing, if nothing is.
fn fault_of(filter: &str) -> String {
    Filter::compile(filter).err().unwrap_or_default()
}

/// The program, and an interface for each port. Without a daemon there is none.
fn interfaces(global: &Global) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=uvala}}\n");
    let ports = global.connect().ok().and_then(|connection| port::list(&connection, None).ok());
    for info in ports.unwrap_or_default() {
        let (name, kind) = (info.port.to_string(), info.kind.name());
        if !name.contains(['{', '}']) {
            let _ = writeln!(text, "interface {{value={name}}}{{display=uvala {kind} port}}");
        }
    }
    text
}

const OPTIONS: &str = "\
arg {number=0}{call=--direction}{display=Direction}{type=selector}{tooltip=Seen from the switch}
value {arg=0}{value=both}{display=in and out}{default=true}
value {arg=0}{value=in}{display=in: enters the switch by the port}{default=false}
value {arg=0}{value=out}{display=out: leaves the switch by the port}{default=false}
";

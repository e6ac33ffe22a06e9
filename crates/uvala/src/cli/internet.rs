//! `uvala internet`

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::control::Connection;
use packet::MacAddr;
use protocol::name::{PortName, SwitchName};
use protocol::parse;
use protocol::{Machine, PortAdd, PortKind, PortRequest, PortSettings, Request};

use super::target::{is_there, show};
use super::{Global, program};
use crate::internet::{Forward, Network, Relay, Settings};
use terminal::{process, say};

/// Give the stations of a switch the internet, without privileges
///
/// Adds the port SWITCH:internet, and behind it runs passt (Debian: apt install passt) for each
/// station: DHCP, a name server, IPv4, IPv6 where the host has it, and forwarded ports. To the
/// world, what a station sends comes from this user of the host. A passt that ends is started
/// again; after a restart of the daemon the command adds the port anew. The port goes when the
/// command ends, at the latest by Ctrl-C or SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the switch, or of the port
    #[arg(value_name = "SWITCH|PORT", default_value = "vale0")]
    place: String,
    /// Network of the stations: IP/24. Its number 2 is the router, 3 the name server
    #[arg(long, value_name = "NETWORK", default_value = "10.0.2.0/24")]
    network: Network,
    /// Forward TCP ports of the host, such as 8080:80 or 127.0.0.1/2222:22, to the first station,
    /// or to the one with the address MAC; may be repeated. What else SPEC may be is in passt(1)
    #[arg(short = 't', long, value_name = "SPEC[@MAC]", value_parser = forward)]
    tcp: Vec<(String, Option<MacAddr>)>,
    /// Forward UDP ports of the host, likewise
    #[arg(short = 'u', long, value_name = "SPEC[@MAC]", value_parser = forward)]
    udp: Vec<(String, Option<MacAddr>)>,
    /// MTU of the stations, at least 1280
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
          value_parser = parse::within(1280..=65520_u16))]
    mtu: u16,
    /// Let stations reach the host's own services, also those of 127.0.0.1, by the address of the
    /// router
    #[arg(long)]
    host: bool,
    /// Wait while the port is another process's, instead of failing
    #[arg(long)]
    standby: bool,
    /// passt program [default: passt in the search path]
    #[arg(long, value_name = "PROGRAM")]
    passt: Option<PathBuf>,
}

fn forward(text: &str) -> Result<(String, Option<MacAddr>), String> {
    let (spec, station) = match text.split_once('@') {
        None => (text, None),
        Some((spec, mac)) => {
            (spec, Some(mac.parse::<MacAddr>().map_err(|error| error.to_string())?))
        }
    };
    let (address, ports) = spec.rsplit_once('/').unwrap_or(("", spec));
    let (address, _) = address.split_once('%').unwrap_or((address, ""));
    if !address.is_empty() && address.parse::<IpAddr>().is_err() {
        return Err(format!("{address:?} is no address of the host, such as 127.0.0.1"));
    }
    match ports.split(',').all(are_ports) {
        true => Ok((spec.to_owned(), station)),
        false => Err("name ports from 1 to 65535, such as 8080:80 or 5000-5009".to_owned()),
    }
}

/// Whether the text names ports of the host, and as many of the station if it names those; or ports
/// to leave out.
fn are_ports(text: &str) -> bool {
    let count = |ports: &str| {
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let [first, last] = [first, last].map(|port| port.parse::<NonZeroU16>().ok());
        last?.get().checked_sub(first?.get())
    };
    match text.split_once(':') {
        Some((host, station)) => count(host).is_some_and(|some| count(station) == Some(some)),
        None => count(text.strip_prefix('~').unwrap_or(text)).is_some(),
    }
}

/// How long after a failure the daemon is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs the subcommand.
pub fn run(global: &Global, args: &Args) -> Result<()> {
    let port: PortName = match args.place.contains(':') {
        true => args.place.parse()?,
        false => format!("{}:internet", args.place).parse()?,
    };
    let program = find_passt(args.passt.as_deref())?;
    let mut relay = Relay::new(settings(args, &port, program));
    let mut gate = match args.standby {
        true => Gate::when_possible(global, &port),
        false => Gate::open(global, &port)?,
    };
    let network = args.network;
    say::out(format_args!("{port}: {network}, router {}\n", network.gateway()))?;
    loop {
        if let Err(error) = relay.run(gate.stream.try_clone()?) {
            say::remark(format_args!("uvala: {port}: {error}"));
        }
        if !gate.connection.is_over() && is_deleted(global, &port) {
            bail!("{port} was deleted");
        }
        drop(gate);
        gate = Gate::when_possible(global, &port);
    }
}

/// The passt that was given, or that in the search path; one that runs.
pub fn find_passt(given: Option<&Path>) -> Result<PathBuf> {
    let program = program::find(given.unwrap_or("passt".as_ref()).as_os_str());
    let program = program.context(
        "no passt; install it (Debian: apt install passt), or say where it is (--passt)",
    )?;
    let asked = process::ask(Command::new(&program).arg("--version"));
    let name = program.display();
    match asked {
        Ok(said) if said.status.success() => Ok(program),
        Ok(said) => bail!("{name} --version fails: {}; say where passt is (--passt)", said.status),
        Err(error) => bail!("{name} --version: {error}; say where passt is (--passt)"),
    }
}

/// Runs the command for a switch until the result is dropped. While another process gives the
/// switch the internet, it waits for that one's end.
pub fn beside(global: &Global, switch: &SwitchName) -> Result<Beside> {
    let mut command = process::dependent(&process::exe()?)?;
    command.args(["internet", "--standby", &switch.to_string()]);
    if let Some(dir) = &global.dir {
        command.arg("--dir").arg(dir);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().context("cannot run uvala internet").map(Beside)
}

/// A process of the command.
#[derive(Debug)]
pub struct Beside(Child);

impl Drop for Beside {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn settings(args: &Args, port: &PortName, program: PathBuf) -> Settings {
    let option = |option: &str, forwards: &[(String, Option<MacAddr>)]| -> Vec<Forward> {
        let of = |(spec, station): &(String, Option<MacAddr>)| Forward {
            option: [option.to_owned(), spec.clone()],
            station: *station,
        };
        forwards.iter().map(of).collect()
    };
    Settings {
        program,
        network: args.network,
        mac: port.guest_mac(),
        mtu: args.mtu,
        host: args.host,
        forwards: [option("--tcp-ports", &args.tcp), option("--udp-ports", &args.udp)].concat(),
    }
}

/// Whether an operator has deleted the port.
fn is_deleted(global: &Global, port: &PortName) -> bool {
    let is_gone = |daemon| is_there(&daemon, port).is_ok_and(|there| !there);
    global.connect().is_ok_and(is_gone)
}

/// The port, and the connection that it goes with.
struct Gate {
    connection: Connection,
    stream: UnixStream,
}

impl Gate {
    fn open(global: &Global, port: &PortName) -> Result<Self> {
        let connection = global.connect()?;
        let add = PortAdd {
            port: port.clone(),
            kind: PortKind::Stream,
            settings: PortSettings::default(),
            host: None,
            machine: Some(Machine { held: true, ..Machine::default() }),
            vxlan: None,
        };
        connection.call(Request::Port(PortRequest::Add(Box::new(add))))?;
        let machine = show(&connection, port)?.machine;
        let socket = machine.context("the port has no socket")?.socket;
        let stream = UnixStream::connect(&socket);
        let stream = stream.with_context(|| format!("cannot connect to {socket}"))?;
        Ok(Self { connection, stream })
    }

    /// Tries until it succeeds; says what is in the way, each thing once.
    fn when_possible(global: &Global, port: &PortName) -> Self {
        let mut said = None;
        loop {
            match Self::open(global, port) {
                Ok(gate) => return gate,
                Err(error) => {
                    let text = format!("{error:#}");
                    if said.as_ref() != Some(&text) {
                        say::remark(format_args!("uvala: waiting: {text}"));
                        said = Some(text);
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala internet &                                  all stations of vale0, by DHCP
  uvala internet vale0 -t 127.0.0.1/8080:80         the host's port 8080 is the station's port 80
  uvala internet vale0 -t 2222:22@52:54:00:1a:2b:3c of several stations, this one
  uvala vm run KERNEL --internet                    a machine, with both in one command";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_forwards_are_ports_with_or_without_a_station() {
        assert_eq!(forward("8080:80"), Ok(("8080:80".to_owned(), None)));
        let mac = "02:00:00:00:00:01".parse().unwrap();
        assert_eq!(forward("::1/22@02:00:00:00:00:01"), Ok(("::1/22".to_owned(), Some(mac))));
        for good in ["80,443", "127.0.0.1%lo/80", "%lo/80", "1-65535,~22", "5000-5009:80-89"] {
            assert_eq!(forward(good), Ok((good.to_owned(), None)));
        }
        for bad in ["", "web", "80@", "80@vm1", "-6", "0", "70000", "80:", "9-8", "1-2:3", "lo/80"]
        {
            assert!(forward(bad).is_err(), "{bad}");
        }
    }
}

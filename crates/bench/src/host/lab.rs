//! What the laboratory is furnished with.

use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::Options;

use super::packets::{self, End};
use super::{Contender, Meter};
use crate::daemon::Daemon;
use crate::programs::ip::{bridge, ip, run};
use crate::programs::ovs::Ovs;
use crate::programs::tap::open as open_tap;
use crate::programs::{Killed, find};
use crate::role;
use crate::sample::Reading;
use crate::work::Work;
use terminal::process;

/// A network namespace with one interface; gone when dropped.
struct Namespace(Killed);

impl Namespace {
    fn new() -> Result<Namespace> {
        let mut command = process::dependent(&find("unshare", "util-linux")?)?;
        command.args(["-n", "--", "sleep", "3600"]).stdin(Stdio::null());
        let namespace = Namespace(Killed(command.spawn()?));
        // It is in its namespace when its program has begun.
        for _ in 0..1000 {
            let path = format!("/proc/{}/comm", namespace.process());
            if std::fs::read_to_string(path)?.trim() == "sleep" {
                return Ok(namespace);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("no network namespace")
    }

    fn process(&self) -> u32 {
        self.0.0.id()
    }

    /// A program inside.
    fn command(&self, program: &str, package: &str) -> Result<Command> {
        let mut command = Command::new(find("nsenter", "util-linux")?);
        command.args(["-t", &self.process().to_string(), "-n", "--"]);
        command.arg(find(program, package)?).stdin(Stdio::null());
        Ok(command)
    }

    /// Takes an interface in, gives it an address, and brings it up.
    fn adopt(&self, interface: &str, address: &str) -> Result<()> {
        ip(&format!("link set {interface} netns {}", self.process()))?;
        for line in
            [format!("addr add {address}/24 dev {interface}"), format!("link set {interface} up")]
        {
            run(self.command("ip", "iproute2")?.args(line.split(' ')))
                .with_context(|| format!("ip {line}"))?;
        }
        Ok(())
    }
}

/// Interfaces of the two ends, and their addresses.
const ENDS: [(&str, &str); 2] = [("end0", "10.9.0.1"), ("end1", "10.9.0.2")];

/// Processes and descriptors that are to be there while something is measured.
type Kept = Vec<Box<dyn Send>>;

/// One TCP stream between two namespaces: Gbit/s.
pub fn tcp(contender: Contender, time: Duration) -> Result<Reading> {
    let ends = [Namespace::new()?, Namespace::new()?];
    let mut kept: Kept = Vec::new();
    match contender {
        Contender::Uvala => kept.push(Box::new(tap_switch(&ends)?)),
        Contender::Bridge => {
            for (i, (end, address)) in ENDS.iter().enumerate() {
                ip(&format!("link add {end} type veth peer name port{i}"))?;
                ends[i].adopt(end, address)?;
            }
            bridge(&["port0", "port1"])?;
        }
        Contender::BridgeTap => {
            for (i, (end, address)) in ENDS.iter().enumerate() {
                let (outer, inner) = (open_tap(&format!("port{i}"))?, open_tap(end)?);
                ends[i].adopt(end, address)?;
                kept.push(Box::new(relay(&outer, &inner)?));
                kept.push(Box::new(relay(&inner, &outer)?));
            }
            bridge(&["port0", "port1"])?;
        }
        other => bail!("{other:?} is not compared by TCP"),
    }
    let reading = iperf3(&ends, time.max(Duration::from_secs(2)));
    drop(kept);
    reading
}

/// Our daemon, with the ends' interfaces as TAPs in their namespaces.
fn tap_switch(ends: &[Namespace; 2]) -> Result<Daemon> {
    let mut text = String::from("[switch.vale0]\n");
    for (i, (end, address)) in ENDS.iter().enumerate() {
        text += &format!(
            "[switch.vale0.port.p{i}]\nkind = \"tap\"\nifname = \"{end}\"\n\
             address = \"{address}/24\"\nnetns = \"/proc/{}/ns/net\"\n",
            ends[i].process()
        );
    }
    Daemon::with(&text)
}

/// A process that moves frames from one TAP to another, until it is ended.
fn relay(from: &File, to: &File) -> Result<Killed> {
    let mut command = role::command(&End::Relay, from.try_clone()?.into())?;
    command.stdout(to.try_clone()?);
    Ok(Killed(command.spawn()?))
}

fn iperf3(ends: &[Namespace; 2], time: Duration) -> Result<Reading> {
    let mut server = ends[1].command("iperf3", "iperf3")?;
    server.args(["-s", "-1"]).stdout(Stdio::null());
    let _server = Killed(server.spawn()?);
    let seconds = time.as_secs().to_string();
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let mut client = ends[0].command("iperf3", "iperf3")?;
        client.args(["-J", "-c", ENDS[1].1, "-t", &seconds, "--connect-timeout", "1000"]);
        let meter = Meter::start()?;
        let output = client.output()?;
        let percent = meter.percent()?;
        let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
        if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
            let gbit = rate / 1e9;
            return Ok(Reading { cpu_per_gbit: Some(percent / gbit), ..gbit.into() });
        }
    }
    bail!("iperf3 did not connect")
}

/// Frames from one veth to another, by ports of a kind if we switch them: Mpps.
pub fn small(contender: Contender, kind: &str, work: &Work, time: Duration) -> Result<Reading> {
    for i in 0..2 {
        ip(&format!("link add end{i} type veth peer name port{i}"))?;
        for name in ["end", "port"] {
            ip(&format!("link set {name}{i} up"))?;
        }
    }
    let mut kept: Kept = Vec::new();
    match contender {
        Contender::Uvala => {
            let cpu = work.placement.switch;
            let mut text = format!("[workers]\ncpus = [{cpu}]\n[switch.vale0]\n");
            for i in 0..2 {
                text += &format!("[switch.vale0.port.port{i}]\nkind = \"{kind}\"\n");
            }
            kept.push(Box::new(Daemon::with(&text)?));
        }
        Contender::Bridge => bridge(&["port0", "port1"])?,
        Contender::Ovs => {
            let mut ovs = Ovs::new()?;
            ovs.run(&find("ovs-vswitchd", "openvswitch-switch-dpdk")?)?;
            ovs.add_bridge()?;
            for port in ["port0", "port1"] {
                ovs.tell(&["add-port", "br0", port])?;
            }
            kept.push(Box::new(ovs));
        }
        other => bail!("{other:?} does not switch veths"),
    }
    let receiver = packets::start(&packets::Packets::of(work, "end1", 2, 1, time), true)?;
    let _sender = Killed(packets::start(&packets::Packets::of(work, "end0", 1, 2, time), false)?);
    let reading = role::result(receiver);
    drop(kept);
    reading
}

/// Frames that the host sends to a TAP, by reader: Mpps.
pub fn tap(contender: Contender, work: &Work, time: Duration) -> Result<Reading> {
    let sender = packets::Packets::of(work, "end0", 1, 2, time);
    match contender {
        Contender::Uvala => {
            let cpu = work.placement.switch;
            let daemon = Daemon::with(&format!(
                "[workers]\ncpus = [{cpu}]\n[switch.vale0]\n[switch.vale0.port.end0]\n\
                 kind = \"tap\"\n"
            ))?;
            ip("link set end0 up")?;
            let mut port = Options::new().dir(daemon.dir()).open("vale0:r")?;
            packets::introduce(&mut port)?;
            let _sender = Killed(packets::start(&sender, false)?);
            packets::count_port(&mut port, work, time)
        }
        Contender::Bare => {
            let file = open_tap("end0")?;
            ip("link set end0 up")?;
            let _sender = Killed(packets::start(&sender, false)?);
            packets::count_file(&file, work, time)
        }
        other => bail!("{other:?} does not read a TAP"),
    }
}

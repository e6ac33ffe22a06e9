//! `uvala vm-args`

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use packet::{MacAddr, ParseError};
use protocol::name::PortName;
use protocol::{MachineState, PortInfo, PortKind};
use rustix::io::Errno;

use super::Global;
use super::target::show;
use crate::vm::memory::Memory;
use crate::vm::qemu::{PROGRAM, Qemu};
use crate::vm::{Card, Impossible, device};
use terminal::Usage;
use terminal::say;

/// Print the arguments, or the XML, that connect a virtual machine to a port
///
/// For a port of kind vhost-user, stream or dgram, or the port of a uvala-device. With vhost-user
/// and uvala-device the machine's memory must be shared: the switch, or the device, reads frames
/// from it, and writes them there.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the port
    port: String,
    /// VMM that the arguments are for
    #[arg(long, value_enum, default_value = "qemu")]
    vmm: Vmm,
    /// QEMU program that the arguments are for; options differ between versions [default: the one
    /// in the search path, or the newest]
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// Memory of the machine in MiB, or with a unit [default: 1G, if the VMM needs the option]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Memory>,
    /// MAC address of the machine [default: derived from the port's name]
    #[arg(long, value_parser = one_card)]
    mac: Option<MacAddr>,
    /// Network card by QEMU's name, such as e1000, rtl8139 or vmxnet3 (stream, dgram)
    /// [default: virtio-net-pci, or that of the port's uvala-device]
    #[arg(long, value_name = "MODEL")]
    nic: Option<String>,
    /// Socket of the port's uvala-device [default: PORT.vfio in the daemon's directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Vmm {
    Qemu,
    CloudHypervisor,
    Crosvm,
    Libvirt,
}

/// Prints them.
pub fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let port: PortName = args.port.parse()?;
    let info = show(&global.connect()?, &port)?;
    let text = text(global, args, &port, &info)?;
    if let Some(unsaid) = unsaid(args, &info) {
        say::remark(format_args!("uvala: crosvm has no option for {unsaid}: left out"));
    }
    for warning in warnings(args, &info) {
        say::remark(format_args!("uvala: {warning}"));
    }
    say::out(text)
}

/// An address that one card can have.
fn one_card(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|error: ParseError| error.to_string())?;
    match mac {
        MacAddr::ZERO => Err("an address of zeros belongs to no host".to_owned()),
        mac if mac.is_multicast() => {
            Err("a group's address; a card's has an even first byte, such as 52:…".to_owned())
        }
        mac => Ok(mac),
    }
}

/// What was asked for and cannot be told to the VMM.
fn unsaid(args: &Args, info: &PortInfo) -> Option<&'static str> {
    let queues = info.machine.as_ref().is_some_and(|machine| machine.queues > 1);
    match (args.vmm, args.mac.is_some(), queues) {
        (Vmm::Crosvm, true, true) => Some("the card's address and its queues"),
        (Vmm::Crosvm, true, false) => Some("the card's address"),
        (Vmm::Crosvm, false, true) => Some("the card's queues"),
        _ => None,
    }
}

/// What will not work, though it is what there is to say.
fn warnings(args: &Args, info: &PortInfo) -> Vec<String> {
    let Some(machine) = &info.machine else { return Vec::new() };
    let mut warnings = Vec::new();
    if machine.state == MachineState::Closed {
        let why = machine.complaint.as_deref().unwrap_or("its socket could not be made");
        warnings.push(format!("no VMM can connect to this port: {why}"));
    }
    let peer = machine.peer.as_deref().filter(|_| info.kind == PortKind::Dgram);
    let words = [Some(&*machine.socket), peer, args.nic.as_deref()];
    if !matches!(args.vmm, Vmm::Libvirt) {
        let blank = words.into_iter().flatten().find(|word| word.contains(char::is_whitespace));
        warnings.extend(blank.map(|word| {
            format!("a shell takes {word:?} apart in $(uvala vm-args …): quote it by hand")
        }));
    }
    if let Some(closed) = peer.filter(|peer| !may_make(Path::new(peer))) {
        warnings.push(format!(
            "the VMM creates {closed}, and this user may not: let root add the port with a --peer \
             in a directory of the VMM's user, or use --kind stream"
        ));
    }
    warnings
}

/// Whether this user may create a file there. The daemon's directory belongs to its user alone.
fn may_make(path: &Path) -> bool {
    let dir = path.parent().unwrap_or(path);
    let may = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK);
    !matches!(may, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

fn text(global: &Global, args: &Args, port: &PortName, info: &PortInfo) -> Result<String, Usage> {
    let kind = info.kind;
    if let Some(model) = device::model(info) {
        return device_text(global, args, port, model);
    }
    let Some(machine) = &info.machine else {
        return Err(Usage(format!(
            "{port} is of kind {}: add a port with --kind vhost-user for the machine, or start a \
             uvala-device on one",
            kind.name()
        )));
    };
    let (mac, model) = (args.mac.unwrap_or_else(|| port.guest_mac()), args.nic.as_deref());
    let card = Card { kind, machine, memory: args.memory, mac, model };
    let text = match args.vmm {
        Vmm::Qemu => card.qemu(qemu(args)?).map(|args| lines(&args)),
        Vmm::CloudHypervisor => card.cloud_hypervisor(),
        Vmm::Crosvm => card.crosvm(),
        Vmm::Libvirt => card.libvirt(qemu(args)?),
    };
    text.map_err(|Impossible(why)| Usage(why))
}

/// What connects a machine to the device of a port.
fn device_text(
    global: &Global,
    args: &Args,
    port: &PortName,
    model: &str,
) -> Result<String, Usage> {
    if args.mac.is_some() || args.nic.as_deref().is_some_and(|nic| nic != model) {
        let why = format!("{port} has a uvala-device ({model}): give that another --mac or --nic");
        return Err(Usage(why));
    }
    let default = || device::socket(global.dir.as_deref(), port);
    let socket = args.socket.as_ref().and_then(|path| std::path::absolute(path).ok());
    let socket = socket.unwrap_or_else(default);
    let memory = args.memory.unwrap_or_default();
    match args.vmm {
        Vmm::Qemu => device::qemu(qemu(args)?, &socket, memory)
            .map(|args| lines(&args))
            .map_err(|Impossible(why)| Usage(why)),
        Vmm::CloudHypervisor => Ok(device::cloud_hypervisor(&socket, memory)),
        Vmm::Crosvm | Vmm::Libvirt => {
            Err(Usage("a uvala-device is for QEMU and Cloud Hypervisor".to_owned()))
        }
    }
}

/// The one that the arguments are for.
fn qemu(args: &Args) -> Result<Qemu, Usage> {
    match &args.qemu {
        None => Ok(Qemu::ask(PROGRAM.as_ref(), None).unwrap_or(Qemu::NEWEST)),
        Some(program) => {
            let none = || Usage(format!("--qemu {}: not a QEMU that runs", program.display()));
            Qemu::ask(program, None).ok_or_else(none)
        }
    }
}

fn lines(args: &[(&str, String)]) -> String {
    args.iter().map(|(option, value)| format!("{option} {value}\n")).collect()
}

const EXAMPLES: &str = "\
Examples:
  uvala port add vale0:vm1 --kind vhost-user
  uvala vm-args vale0:vm1
  qemu-system-x86_64 $(uvala vm-args vale0:vm1 --memory 2G) -drive file=disk.qcow2
  uvala vm-args vale0:vm1 --vmm libvirt              XML; also for stream and dgram
  uvala-device --nic e1000 --port vale0:vm2          it says when it listens; then:
  qemu-system-x86_64 $(uvala vm-args vale0:vm2 --nic e1000) -drive file=two.qcow2
  uvala port add vale0:old --kind stream
  qemu-system-x86_64 $(uvala vm-args vale0:old --nic e1000) -drive file=old.qcow2";

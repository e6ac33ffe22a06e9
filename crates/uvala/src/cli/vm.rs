//! `uvala vm`

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use client::control::{Connection, ControlError};
use protocol::name::PortName;
use protocol::parse;
use protocol::{
    ErrorCode, Failure, Machine, MachineInfo, MachineState, PortAdd, PortInfo, PortKind, PortRef,
    PortRequest, PortSet, PortSettings, Request, SessionRequest, check, exit,
};
use rustix::io::Errno;

use super::target::{is_missing, is_there, show};
use super::{Global, internet, run as programs};
use crate::vm::boot::{Boot, find_busybox, find_qemu, held, in_child, new_machine};
use crate::vm::kvm::{self, Access};
use crate::vm::memory::Memory;
use crate::vm::qemu::Qemu;
use crate::vm::remains;
use crate::vm::{Card, Impossible, device, initramfs, kernel};
use terminal::Usage;
use terminal::shell::quoted;
use terminal::{process, say};

/// Run a virtual machine on a switch
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Boot a kernel in QEMU, on a port of its own, with its console on this terminal
    ///
    /// Without --initrd the guest runs a busybox shell, with the drivers of its network card and
    /// the address 10.0.0.N on port vmN. The command adds a missing port, and deletes it at the
    /// end. The exit status is QEMU's, which is 0 even after a panic of the guest; if QEMU did not
    /// run, it is that of uvala (see `uvala --help`). If this command is killed, even by SIGKILL,
    /// QEMU ends, and the daemon deletes the port.
    Run(Run),
    /// Become a program that ends with its parent
    #[command(hide = true)]
    Exec {
        /// The parent's process
        parent: i32,
        /// The program and its arguments. All of them are one: else options of ours that follow
        /// the program, such as --dir, would be taken from it.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Linux kernel for x86-64, such as /boot/vmlinuz-…
    kernel: PathBuf,
    /// Initramfs of the guest [default: built from a static busybox and the kernel's modules in
    /// /lib/modules, or in ../lib/modules beside the kernel]
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// File to put into the guest, several times if needed: a module (FILE.ko), which it loads
    /// instead of the kernel's own, or a program, which is then in /bin, with its libraries
    #[arg(long, value_name = "FILE", conflicts_with = "initrd")]
    add: Vec<PathBuf>,
    /// Kernel parameters to add
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Memory of the guest in MiB, or with a unit, such as 2G
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: Memory,
    /// Number of CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse::within(1..=255_u16))]
    cpus: u16,
    /// Port of the guest [default: the first free one of vale0:vm1, vale0:vm2 …]
    #[arg(long, value_name = "PORT")]
    name: Option<String>,
    /// Label of the port, if this command adds it [default: the kernel's file name]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// QEMU program [default: qemu-system-x86_64 in the search path]
    #[arg(long, value_name = "PROGRAM")]
    qemu: Option<PathBuf>,
    /// Accelerator: kvm, or tcg (emulation) [default: kvm if /dev/kvm opens]
    #[arg(long, value_enum)]
    accel: Option<Accel>,
    /// Give the guest this TAP instead of a port: for comparisons
    #[arg(long, hide = true, value_name = "IFNAME", requires = "name", conflicts_with = "print")]
    tap: Option<String>,
    /// Network card of the guest: virtio, e1000 for guests without virtio, or ptnet, the port
    /// itself, for guests with our driver (both QEMU 10.1 or newer)
    #[arg(long, value_enum, value_name = "CARD", default_value = "virtio")]
    nic: Nic,
    /// Give the guest the internet, by `uvala internet` on its switch, and its address by DHCP
    #[arg(long, conflicts_with_all = ["tap", "print"])]
    internet: bool,
    /// Least time between two interrupts of the card in µs, 0 to 1000 (e1000)
    #[arg(long, value_name = "N", value_parser = parse::within(0..=1000_u16))]
    coalesce_usecs: Option<u16>,
    /// Print QEMU's command line, that of its uvala-device in front of it, and exit
    #[arg(long)]
    print: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Nic {
    Virtio,
    E1000,
    Ptnet,
}

impl Nic {
    /// The modules that drive it.
    fn drivers(self) -> &'static [&'static str] {
        match self {
            Self::Virtio => &["virtio_pci", "virtio_net"],
            Self::E1000 => &["e1000"],
            Self::Ptnet => &["uvala_ptnet"],
        }
    }

    /// The model of the `uvala-device`, if it is one.
    fn device(self) -> Option<&'static str> {
        match self {
            Self::Virtio => None,
            Self::E1000 => Some("e1000"),
            Self::Ptnet => Some("ptnet"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Accel {
    Kvm,
    Tcg,
}

/// Runs the subcommand; returns the exit status.
pub fn run(global: &Global, args: &Args) -> Result<u8> {
    match &args.action {
        Action::Run(args) => boot(global, args),
        Action::Exec { parent, command } => Err(remains::exec(*parent, command)),
    }
}

fn boot(global: &Global, args: &Run) -> Result<u8> {
    if args.coalesce_usecs.is_some() && args.nic != Nic::E1000 {
        let why = "--coalesce-usecs of a virtio card belongs to its port: uvala port add NAME \
                   --kind vhost-user --coalesce-usecs N, and then --name NAME";
        return Err(Usage(why.to_owned()).into());
    }
    let told = args.accel.map(|accel| accel == Accel::Kvm);
    let (program, qemu) = find_qemu(args.qemu.as_deref(), told)?;
    kernel::check_whole(&args.kernel)?;
    if let Some(file) = &args.initrd {
        File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    if args.print {
        return print(global, args, &program, qemu);
    }
    // Before there is a port to delete.
    let _passt = args.internet.then(|| internet::find_passt(None)).transpose()?;
    let busybox = args.initrd.is_none().then(find_busybox).transpose()?;
    let place = match (&args.tap, &args.name) {
        (Some(_), Some(name)) => Place::beside(global, name.parse()?)?,
        _ => match args.nic.device() {
            Some(model) => Place::with_device(global, args, model)?,
            None => Place::take(global, args)?,
        },
    };
    let made = busybox.map(|busybox| {
        let number = (!args.internet).then(|| initramfs::number_of(&place.port));
        // DHCP takes packet sockets.
        let more: &[_] = if args.internet { &["af_packet"] } else { &[] };
        let drivers = [args.nic.drivers(), more].concat();
        let files = initramfs::Files { busybox: &busybox, drivers: &drivers, more: &args.add };
        held(&initramfs::build(&args.kernel, &files, &place.port, number)?)
    });
    let made = made.transpose()?;
    let _internet =
        args.internet.then(|| internet::beside(global, place.port.switch())).transpose()?;
    let path = made.as_ref().map(in_child);
    let initrd = path.as_ref().or(args.initrd.as_ref()).expect("given or made");
    let words = command_line(args, qemu, &place.port, &place.behind, initrd)?;
    if args.accel.is_none() && !qemu.kvm {
        let why = match kvm::access() {
            Access::Usable => "this QEMU is built without KVM",
            Access::Foreign => "/dev/kvm is no KVM that QEMU knows",
            Access::Closed => "no access to /dev/kvm (sudo usermod -aG kvm $USER, and log in anew)",
            Access::Missing => "no /dev/kvm",
        };
        say::remark(format_args!("uvala: {why}: QEMU emulates the processor (TCG), slowly"));
    }
    let terminal = Terminal::remember();
    // Asked before QEMU runs: a terminal that has hung up is none.
    let is_typed = io::stdin().is_terminal();
    let child = process::dependent(&program)?.args(words).spawn();
    let child = child.with_context(|| format!("cannot run {}", program.display()))?;
    if is_typed {
        remains::end_with_terminal(&child)?;
    }
    // A terminal tells both of an interrupt, or hands the guest what is typed.
    let status = programs::wait(child, !is_typed);
    drop(terminal);
    status
}

/// Prints the command lines.
fn print(global: &Global, args: &Run, program: &Path, qemu: Qemu) -> Result<u8> {
    let (port, machine) = match args.nic.device() {
        None => {
            let (port, machine) = imagined(global, args.name.as_deref())?;
            (port, Behind::Port(Box::new(machine)))
        }
        Some(model) => {
            let port = args.name.as_deref().unwrap_or("vale0:vm1").parse()?;
            let socket = device::socket(global.dir.as_deref(), &port);
            say::out(device_line(global, args, model, &port))?;
            (port, Behind::Device(socket))
        }
    };
    let initrd = args.initrd.as_deref().unwrap_or("INITRD".as_ref());
    let words = command_line(args, qemu, &port, &machine, initrd)?;
    let words = std::iter::once(program.display().to_string()).chain(words);
    say::out(words.map(|word| quoted(&word)).collect::<Vec<_>>().join(" ") + "\n")?;
    Ok(exit::OK)
}

/// A port for the machine; gone when this is dropped if it was added, and when the process ends.
struct Place {
    port: PortName,
    behind: Behind,
    /// If it was added: the connection that it goes with.
    held: Option<Connection>,
    /// The process of its device, which has added it.
    _device: Option<device::Running>,
}

/// What a machine's card connects to.
enum Behind {
    /// The port itself.
    Port(Box<MachineInfo>),
    /// The socket of a device.
    Device(PathBuf),
}

impl Place {
    /// The name of a port that no switch has.
    fn beside(global: &Global, port: PortName) -> Result<Self> {
        let behind = Behind::Port(Box::new(new_machine(global.dir.as_deref(), &port)?));
        Ok(Self { port, behind, held: None, _device: None })
    }

    /// A port with a device that this command starts.
    fn with_device(global: &Global, args: &Run, model: &str) -> Result<Self> {
        // A daemon that is missing is said here, once.
        let connection = global.connect()?;
        let dir = global.dir.as_deref();
        let wanted: Option<PortName> = args.name.as_deref().map(str::parse).transpose()?;
        let is_named = wanted.is_some();
        let usecs = args.coalesce_usecs.map(|usecs| ["--coalesce-usecs".into(), usecs.to_string()]);
        let options = usecs.as_ref().map_or(&[][..], |words| words);
        for port in wanted.into_iter().chain(names()) {
            let is_ours = match is_there(&connection, &port) {
                Ok(true) if !is_named => continue,
                Err(error) if !is_named => return Err(error),
                there => there.is_ok_and(|there| !there),
            };
            if let Some(running) = device::start(dir, &port, model, options)? {
                let settings = settings(args);
                if is_ours && settings != PortSettings::default() {
                    let set = PortSet { port: port.clone(), settings, vxlan: None };
                    // Without its label, the machine runs as well.
                    let _ = connection.call(Request::Port(PortRequest::Set(Box::new(set))));
                }
                let behind = Behind::Device(running.socket.clone());
                return Ok(Self { port, behind, held: None, _device: Some(running) });
            }
            if is_named {
                let message = format!("{port} has a client already; choose another --name");
                return Err(Failure { code: ErrorCode::InUse, message }.into());
            }
        }
        Err(all_taken())
    }

    fn take(global: &Global, args: &Run) -> Result<Self> {
        let (connection, settings) = (global.connect()?, settings(args));
        let (port, is_ours) = match &args.name {
            Some(name) => {
                let port: PortName = name.parse()?;
                // Of another's switch, a port may be this user's all the same.
                let is_ours = !is_there(&connection, &port)? && add(&connection, &port, &settings)?;
                (port, is_ours)
            }
            None => (add_free(&connection, &settings)?, true),
        };
        let machine = usable(&port, show(&connection, &port)?)?;
        reachable(&port, &machine)?;
        let behind = Behind::Port(Box::new(machine));
        Ok(Self { port, behind, held: is_ours.then_some(connection), _device: None })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(connection) = &self.held {
            // Another command may have deleted it, or it is gone with the daemon.
            let _ = connection.call(Request::Session(SessionRequest::Detach(PortRef {
                port: self.port.clone(),
            })));
        }
    }
}

/// The settings of a port that this command adds: its label, which is left out if only the default
/// cannot be one.
fn settings(args: &Run) -> PortSettings {
    let kernel = args.kernel.file_name().and_then(|name| name.to_str());
    let kernel = kernel.filter(|name| check::label(Some(name)).is_ok());
    let label = args.label.as_deref().or(kernel).map(str::to_owned);
    PortSettings { label, ..PortSettings::default() }
}

/// Adds a port that goes with the connection; false if there is one already.
fn add(
    connection: &Connection,
    port: &PortName,
    settings: &PortSettings,
) -> Result<bool, ControlError> {
    let (kind, settings) = (PortKind::VhostUser, settings.clone());
    let machine = Some(Machine { held: true, ..Machine::default() });
    let add = PortAdd { port: port.clone(), kind, settings, host: None, machine, vxlan: None };
    match connection.call(Request::Port(PortRequest::Add(Box::new(add)))) {
        Ok(_) => Ok(true),
        Err(error) if is_taken(&error) => Ok(false),
        Err(error) => Err(with_cure(error)),
    }
}

fn is_taken(error: &ControlError) -> bool {
    matches!(error.code(), Some(ErrorCode::Exists | ErrorCode::InUse))
}

/// Fails if QEMU, which runs as this user, cannot connect.
fn reachable(port: &PortName, machine: &MachineInfo) -> Result<(), Failure> {
    let closed =
        rustix::fs::access(&machine.socket, rustix::fs::Access::WRITE_OK) == Err(Errno::ACCESS);
    let message = || {
        let socket = &machine.socket;
        format!("{socket} is closed to this user; add {port} with --owner, --group or --mode")
    };
    if closed { Err(Failure { code: ErrorCode::Permission, message: message() }) } else { Ok(()) }
}

/// A switch of this user's own is the cure where another's may not be changed.
fn with_cure(error: ControlError) -> ControlError {
    match error {
        ControlError::Refused(Failure { code: ErrorCode::Permission, message }) => {
            let user = rustix::process::geteuid().as_raw();
            let message = format!("{message}; take a switch of your own: --name vale{user}:vm1");
            ControlError::Refused(Failure { code: ErrorCode::Permission, message })
        }
        error => error,
    }
}

/// Names of ports for machines that have none.
fn names() -> impl Iterator<Item = PortName> {
    (1..=254).map(|n| format!("vale0:vm{n}").parse().expect("a name"))
}

fn add_free(connection: &Connection, settings: &PortSettings) -> Result<PortName> {
    for port in names() {
        if add(connection, &port, settings)? {
            return Ok(port);
        }
    }
    Err(all_taken())
}

fn all_taken() -> anyhow::Error {
    Usage("all of vale0:vm1 to vale0:vm254 are taken: give --name".to_owned()).into()
}

/// What is said of a port that may not be there yet.
fn imagined(global: &Global, name: Option<&str>) -> Result<(PortName, MachineInfo)> {
    let wanted: Option<PortName> = name.map(str::parse).transpose()?;
    let (connection, is_named) = (global.connect()?, wanted.is_some());
    for port in wanted.into_iter().chain(names()) {
        match show(&connection, &port) {
            Ok(info) if is_named => return Ok((port.clone(), usable(&port, info)?)),
            Err(error) if is_missing(&error) => {
                let machine = new_machine(global.dir.as_deref(), &port)?;
                return Ok((port, machine));
            }
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Err(all_taken())
}

fn usable(port: &PortName, info: PortInfo) -> Result<MachineInfo, Failure> {
    let refused = |code, why: String| {
        let message = format!("{port} {why}; choose another --name");
        Err(Failure { code, message })
    };
    let machine = info.machine.filter(|_| info.kind == PortKind::VhostUser);
    let Some(machine) = machine else {
        let kind = info.kind.name();
        return refused(ErrorCode::Unsupported, format!("exists, and is of kind {kind}"));
    };
    match (machine.state, &machine.complaint) {
        (MachineState::Waiting, _) => Ok(*machine),
        (MachineState::Closed, Some(why)) => {
            refused(ErrorCode::InUse, format!("has no socket: {why}"))
        }
        _ => refused(ErrorCode::InUse, "has a machine already".to_owned()),
    }
}

/// The command of the device, which is to run before QEMU.
fn device_line(global: &Global, args: &Run, model: &str, port: &PortName) -> String {
    let dir = global.dir.as_ref().map(|dir| format!(" --dir {}", quoted(&dir.to_string_lossy())));
    let usecs = args.coalesce_usecs.map(|usecs| format!(" --coalesce-usecs {usecs}"));
    let more = dir.unwrap_or_default() + &usecs.unwrap_or_default();
    format!("uvala-device --nic {model} --port {port}{more} &\n")
}

/// The arguments of QEMU.
fn command_line(
    args: &Run,
    qemu: Qemu,
    port: &PortName,
    behind: &Behind,
    initrd: &Path,
) -> Result<Vec<String>, Usage> {
    let (kind, memory, mac) = (PortKind::VhostUser, Some(args.memory), port.guest_mac());
    let card = match behind {
        Behind::Device(socket) => device::qemu(qemu, socket, args.memory),
        Behind::Port(machine) => {
            let card = Card { kind, machine, memory, mac, model: args.nic.device() };
            args.tap.as_deref().map_or_else(|| card.qemu(qemu), |tap| Ok(card.at_tap(tap)))
        }
    };
    let card = card.map_err(|Impossible(why)| Usage(why))?;
    let Run { kernel, cpus, append, .. } = args;
    Ok(Boot { kernel, initrd, cpus: *cpus, append }.words(qemu, card))
}

/// The terminal, as it was: a QEMU that is killed leaves it without echo and lines.
struct Terminal(Option<rustix::termios::Termios>);

impl Terminal {
    fn remember() -> Self {
        Self(rustix::termios::tcgetattr(io::stdin()).ok())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let now = rustix::termios::OptionalActions::Now;
            // It may be gone, and then there is nothing to mend.
            let _ = rustix::termios::tcsetattr(io::stdin(), now, before);
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala vm run /boot/vmlinuz-$(uname -r)             in one terminal: 10.0.0.1
  uvala vm run /boot/vmlinuz-$(uname -r)             in another: 10.0.0.2; ping 10.0.0.1
  uvala vm run bzImage --initrd root.cpio --append 'rdinit=/bin/sh' --memory 1G
  uvala vm run bzImage --nic e1000                   a card for guests without virtio
  uvala vm run bzImage --internet                    with a way out, by passt
  uvala vm run bzImage --nic ptnet                   the port itself, with our driver
  uvala vm run bzImage --print                       only print the QEMU command line";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: Run,
    }

    fn args(line: &str) -> Run {
        Line::parse_from(line.split(' ')).run
    }

    #[test]
    fn test_a_program_keeps_options_that_are_named_as_ours() {
        let words = ["uvala", "vm", "exec", "1", "/bin/p", "--dir", "/d", "-h", "--", "--dir=e"];
        let cli = Cli::try_parse_from(words).unwrap();
        assert_eq!(cli.global.dir, None);
        let Command::Vm(Args { action: Action::Exec { command, .. } }) = cli.command else {
            panic!("another command")
        };
        assert_eq!(command, words[4..]);
    }

    #[test]
    fn test_qemu_is_told_of_card_kernel_and_console() {
        let port = "vale0:vm1".parse().unwrap();
        let global = Global { dir: Some("/run/x".into()) };
        let machine = Behind::Port(Box::new(new_machine(global.dir.as_deref(), &port).unwrap()));
        let run = args("run /boot/k --append single --cpus 2");
        let words = |kvm| {
            let qemu = Qemu { version: (11, 1), kvm };
            command_line(&run, qemu, &port, &machine, "i d".as_ref()).unwrap().join("|")
        };
        let tcg = words(false);
        assert!(tcg.contains("path=/run/x/vale0:vm1.sock,reconnect"), "{tcg}");
        assert!(tcg.contains("|-smp|2|") && tcg.contains("size=256M,share=on"), "{tcg}");
        assert!(tcg.contains("|-kernel|/boot/k|-initrd|i d|-append|console=ttyS0 "), "{tcg}");
        assert!(
            tcg.contains("|tcg|") && tcg.ends_with("mitigations=off no_timer_check single"),
            "{tcg}"
        );
        assert!(words(true).contains("|-accel|kvm|-cpu|host|"), "{}", words(true));
    }

    #[test]
    fn test_cards_have_one_address_whatever_is_behind_them() {
        let port = "vale0:vm1".parse().unwrap();
        let machine = Behind::Port(Box::new(new_machine(None, &port).unwrap()));
        let run = args("run /boot/k --name vale0:vm1 --tap port0");
        let qemu = Qemu { version: (11, 1), kvm: false };
        let words = command_line(&run, qemu, &port, &machine, "i".as_ref()).unwrap().join("|");
        let card = format!("|-device|virtio-net-pci,netdev=uvala,mac={}|", port.guest_mac());
        assert!(words.contains(&card) && words.contains("ifname=port0,"), "{words}");
        let run = args("run /boot/k --name vale0:vm1 --tap port0 --nic e1000");
        let words = command_line(&run, qemu, &port, &machine, "i".as_ref()).unwrap().join("|");
        assert!(words.contains("|-device|e1000,netdev=uvala,mac="), "{words}");
    }

    #[test]
    fn test_a_machine_is_labelled_by_its_kernel_unless_it_has_a_label() {
        let label = |line: &str| settings(&args(line)).label;
        assert_eq!(label("run /boot/vmlinuz-6.1").as_deref(), Some("vmlinuz-6.1"));
        assert_eq!(label("run /boot/k --label db").as_deref(), Some("db"));
        assert_eq!(label(&format!("run /boot/{}", "k".repeat(100))), None);
    }
}

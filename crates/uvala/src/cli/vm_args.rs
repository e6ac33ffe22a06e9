//! `uvala vm-args`: what to tell a virtual machine's monitor.

use std::fmt::Write as _;

use clap::ValueEnum;
use client::api::{Mac, PortRef, Reply, Request, VhostInfo};
use client::control::unexpected;
use client::name::PortName;

use super::{Global, Usage};
use crate::say;

/// Print the arguments, or the XML, that connect a virtual machine to a port
///
/// For a port of kind vhost-user. The machine's memory must be shared: the switch reads frames from
/// it, and writes them there.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the port
    port: String,
    /// Whose arguments
    #[arg(long, value_enum, default_value = "qemu")]
    vmm: Vmm,
    /// The machine's memory, as its monitor says it
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: String,
    /// Its Ethernet address [default: one that is always the same for this port]
    #[arg(long)]
    mac: Option<Mac>,
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
    let request = Request::PortShow(PortRef { port: port.clone() });
    let info = match global.connect()?.call(request)? {
        Reply::Port(info) => info,
        other => return Err(unexpected(&other).into()),
    };
    let Some(vhost) = info.vhost else {
        let kind = info.kind.name();
        return Err(Usage(format!(
            "{port} is of kind {kind}: add a port with --kind vhost-user for the machine"
        ))
        .into());
    };
    let machine = Machine {
        vhost: &vhost,
        memory: &args.memory,
        mac: args.mac.unwrap_or_else(|| address_of(&port)),
    };
    say::out(machine.args(args.vmm)?)?;
    Ok(())
}

/// An address in QEMU's range that differs between ports.
fn address_of(port: &PortName) -> Mac {
    let hash = port
        .to_string()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, _] = hash.to_le_bytes();
    Mac([0x52, 0x54, 0, a, b, c])
}

struct Machine<'a> {
    vhost: &'a VhostInfo,
    memory: &'a str,
    mac: Mac,
}

impl Machine<'_> {
    fn args(&self, vmm: Vmm) -> Result<String, Usage> {
        match vmm {
            Vmm::Qemu => Ok(self.qemu()),
            Vmm::CloudHypervisor => Ok(self.cloud_hypervisor()),
            Vmm::Crosvm if self.vhost.connect => Err(Usage(
                "crosvm connects to the switch itself: add the port without --connect".to_owned(),
            )),
            Vmm::Crosvm => Ok(format!("--vhost-user net,socket={}\n", self.vhost.socket)),
            Vmm::Libvirt => Ok(self.libvirt()),
        }
    }

    fn qemu(&self) -> String {
        let Self { vhost, memory, mac } = self;
        // A comma ends a value, and two do not.
        let socket = vhost.socket.replace(',', ",,");
        let role = if vhost.connect { "server=on" } else { "reconnect-ms=100" };
        let (queues, device) = match vhost.queues {
            1 => (String::new(), String::new()),
            n => (format!(",queues={n}"), format!(",mq=on,vectors={}", 2 * n + 2)),
        };
        format!(
            "-m {memory}\n\
             -object memory-backend-memfd,id=uvala-memory,size={memory},share=on\n\
             -numa node,memdev=uvala-memory\n\
             -chardev socket,id=uvala-socket,path={socket},{role}\n\
             -netdev vhost-user,id=uvala,chardev=uvala-socket{queues}\n\
             -device virtio-net-pci,netdev=uvala,mac={mac}{device}\n"
        )
    }

    fn cloud_hypervisor(&self) -> String {
        let Self { vhost, memory, mac } = self;
        let mode = if vhost.connect { "server" } else { "client" };
        format!(
            "--memory size={memory},shared=on\n\
             --net mac={mac},vhost_user=true,socket={},num_queues={},vhost_mode={mode}\n",
            vhost.socket,
            2 * vhost.queues
        )
    }

    fn libvirt(&self) -> String {
        let Self { vhost, mac, .. } = self;
        let mut path = String::new();
        for letter in vhost.socket.chars() {
            match letter {
                '&' => path += "&amp;",
                '<' => path += "&lt;",
                '\'' => path += "&apos;",
                letter => path.push(letter),
            }
        }
        let mode = if vhost.connect { "server" } else { "client" };
        let mut xml = format!(
            "<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n\
             </memoryBacking>\n\n<interface type='vhostuser'>\n  <mac address='{mac}'/>\n"
        );
        // Writing to a string cannot fail.
        let _ = if vhost.connect {
            writeln!(xml, "  <source type='unix' path='{path}' mode='{mode}'/>")
        } else {
            writeln!(
                xml,
                "  <source type='unix' path='{path}' mode='{mode}'>\n    \
                 <reconnect enabled='yes' timeout='1'/>\n  </source>"
            )
        };
        xml += "  <model type='virtio'/>\n";
        if vhost.queues > 1 {
            let _ = writeln!(xml, "  <driver queues='{}'/>", vhost.queues);
        }
        xml + "</interface>\n"
    }
}

const EXAMPLES: &str = "\
Examples:
  uvala port add vale0:vm1 --kind vhost-user
  uvala vm-args vale0:vm1
  qemu-system-x86_64 $(uvala vm-args vale0:vm1 --memory 2G) -drive file=disk.qcow2
  uvala vm-args vale0:vm1 --vmm libvirt";

#[cfg(test)]
mod tests {
    use super::*;
    use client::api::MachineState;

    fn args(vmm: Vmm, connect: bool, queues: u16) -> Result<String, Usage> {
        let socket = "/run/uvala/vale0:vm1.sock".to_owned();
        let vhost = VhostInfo { socket, connect, queues, state: MachineState::Waiting, pid: None };
        let port = "vale0:vm1".parse().expect("a name");
        Machine { vhost: &vhost, memory: "1G", mac: address_of(&port) }.args(vmm)
    }

    #[test]
    fn test_qemu_gets_shared_memory_the_role_and_vectors_for_its_queues() {
        let one = args(Vmm::Qemu, false, 1).expect("args");
        assert!(one.contains("share=on") && one.contains("vm1.sock,reconnect-ms=100"), "{one}");
        assert!(one.contains("mac=52:54:00:") && !one.contains("mq=on"), "{one}");
        let many = args(Vmm::Qemu, true, 4).expect("args");
        assert!(many.contains("server=on") && many.contains(",queues=4"), "{many}");
        assert!(many.contains("mq=on,vectors=10"), "{many}");
    }

    #[test]
    fn test_others_get_theirs() {
        let cloud = args(Vmm::CloudHypervisor, true, 2).expect("args");
        assert!(cloud.contains("num_queues=4,vhost_mode=server"), "{cloud}");
        let libvirt = args(Vmm::Libvirt, false, 2).expect("args");
        assert!(libvirt.contains("mode='client'>") && libvirt.contains("queues='2'"), "{libvirt}");
        assert!(args(Vmm::Crosvm, false, 1).expect("args").starts_with("--vhost-user net,"));
        assert!(args(Vmm::Crosvm, true, 1).is_err());
    }
}

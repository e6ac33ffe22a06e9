//! Virtual machines: what their VMMs are told, so that they reach a port.

pub mod boot;
pub mod device;
pub mod initramfs;
pub mod kernel;
pub mod kvm;
pub mod memory;
pub mod qemu;
pub mod remains;

use std::fmt::Write;

use packet::MacAddr;
use protocol::{MachineInfo, PortKind};

use memory::Memory;
use qemu::Qemu;

/// A network card on a port, and the machine around it as far as the card is concerned.
#[derive(Debug)]
pub struct Card<'a> {
    /// How the port is reached.
    pub kind: PortKind,
    /// Where.
    pub machine: &'a MachineInfo,
    /// The machine's memory, if that is said.
    pub memory: Option<Memory>,
    /// The card's address.
    pub mac: MacAddr,
    /// What the card is; by default virtio-net.
    pub model: Option<&'a str>,
}

/// A VMM cannot do what is wanted; the message says what can be done.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Impossible(pub String);

fn impossible<T>(why: &str) -> Result<T, Impossible> {
    Err(Impossible(why.to_owned()))
}

/// QEMU's name for virtio-net.
const VIRTIO: &str = "virtio-net-pci";

impl Card<'_> {
    /// QEMU's options, each with its value.
    pub fn qemu(&self, qemu: Qemu) -> Result<Vec<(&'static str, String)>, Impossible> {
        let mut args = vec![("-m", self.memory().to_string())];
        let device = match self.kind {
            PortKind::VhostUser => self.qemu_vhost_user(qemu, &mut args)?,
            kind => {
                args.push(("-netdev", self.qemu_netdev(kind, qemu)?));
                String::new()
            }
        };
        args.push(("-device", self.device() + &device));
        Ok(args)
    }

    /// QEMU's options for a card that differs in nothing but what is behind it: a TAP.
    pub fn at_tap(&self, tap: &str) -> Vec<(&'static str, String)> {
        let netdev = format!("tap,id=uvala,ifname={tap},script=no,downscript=no,vhost=off");
        vec![("-m", self.memory().to_string()), ("-netdev", netdev), ("-device", self.device())]
    }

    /// The value of QEMU's `-device`, without what depends on the way to the port.
    fn device(&self) -> String {
        format!("{},netdev=uvala,mac={}", self.model.unwrap_or(VIRTIO), self.mac)
    }

    fn memory(&self) -> Memory {
        self.memory.unwrap_or_default()
    }

    /// Returns what the device needs to know.
    fn qemu_vhost_user(
        &self,
        qemu: Qemu,
        args: &mut Vec<(&'static str, String)>,
    ) -> Result<String, Impossible> {
        let (machine, memory) = (self.machine, self.memory());
        if self.model.is_some_and(|model| !model.starts_with("virtio-net")) {
            return impossible(
                "vhost-user is for virtio-net; for another card add a port of --kind stream",
            );
        }
        let role = if machine.connect { "server=on" } else { qemu.reconnect() };
        let socket = doubled(&machine.socket);
        let memory = format!("memory-backend-memfd,id=uvala-memory,size={memory},share=on");
        args.push(("-object", memory));
        args.push(("-numa", "node,memdev=uvala-memory".to_owned()));
        args.push(("-chardev", format!("socket,id=uvala-socket,path={socket},{role}")));
        let (queues, device) = match machine.queues {
            1 => (String::new(), String::new()),
            n => (format!(",queues={n}"), format!(",mq=on,vectors={}", 2 * n + 2)),
        };
        args.push(("-netdev", format!("vhost-user,id=uvala,chardev=uvala-socket{queues}")));
        match (qemu.crashes_with_vectors(), machine.queues) {
            (true, 1) => Ok(",vectors=0".to_owned()),
            (true, _) => impossible(
                "this QEMU crashes with several queues and without KVM; take one of 8 or newer, \
                 or a port with --queues 1",
            ),
            (false, _) => Ok(device),
        }
    }

    fn qemu_netdev(&self, kind: PortKind, qemu: Qemu) -> Result<String, Impossible> {
        if !qemu.knows_netdevs() {
            return impossible("this QEMU has no -netdev stream; take one of 7.2 or newer");
        }
        let (machine, socket) = (self.machine, doubled(&self.machine.socket));
        if kind == PortKind::Dgram {
            let peer = doubled(machine.peer.as_deref().unwrap_or_default());
            return Ok(format!(
                "dgram,id=uvala,local.type=unix,local.path={peer},remote.type=unix,\
                 remote.path={socket}"
            ));
        }
        let role = match (machine.connect, qemu.netdev_reconnect()) {
            (true, _) => "server=on",
            (false, Some(reconnect)) => reconnect,
            (false, None) => "server=off",
        };
        Ok(format!("stream,id=uvala,{role},addr.type=unix,addr.path={socket}"))
    }

    /// Cloud Hypervisor's arguments, an option with its value in each line.
    pub fn cloud_hypervisor(&self) -> Result<String, Impossible> {
        self.check_vhost_user()?;
        self.check_comma()?;
        let (Self { machine, mac, .. }, memory) = (self, self.memory());
        let mode = if machine.connect { "server" } else { "client" };
        Ok(format!(
            "--memory size={memory},shared=on\n\
             --net mac={mac},vhost_user=true,socket={},num_queues={},vhost_mode={mode}\n",
            machine.socket,
            2 * machine.queues
        ))
    }

    /// Crosvm's.
    pub fn crosvm(&self) -> Result<String, Impossible> {
        self.check_vhost_user()?;
        if self.machine.connect {
            return impossible(
                "crosvm connects to the switch itself: add the port without --connect",
            );
        }
        self.check_comma()?;
        let memory = self.memory.map(|memory| format!("--mem {}\n", memory.mib()));
        let memory = memory.unwrap_or_default();
        Ok(format!("{memory}--vhost-user net,socket={}\n", self.machine.socket))
    }

    /// Elements of libvirt's XML; `qemu`: the program that libvirt starts.
    pub fn libvirt(&self, qemu: Qemu) -> Result<String, Impossible> {
        let memory = self.memory.map(|it| format!("<memory unit='MiB'>{}</memory>\n", it.mib()));
        let memory = memory.unwrap_or_default();
        if self.kind != PortKind::VhostUser {
            return self.libvirt_commandline(&memory, qemu);
        }
        self.check_vhost_user()?;
        let Self { machine, mac, .. } = self;
        let path = escaped(&machine.socket);
        let mode = if machine.connect { "server" } else { "client" };
        let mut xml = format!(
            "{memory}<memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n\
             </memoryBacking>\n\n<interface type='vhostuser'>\n  <mac address='{mac}'/>\n"
        );
        // Writing to a string cannot fail.
        let _ = if machine.connect {
            writeln!(xml, "  <source type='unix' path='{path}' mode='{mode}'/>")
        } else {
            writeln!(
                xml,
                "  <source type='unix' path='{path}' mode='{mode}'>\n    \
                 <reconnect enabled='yes' timeout='1'/>\n  </source>"
            )
        };
        xml += "  <model type='virtio'/>\n";
        if machine.queues > 1 {
            let _ = writeln!(xml, "  <driver queues='{}'/>", machine.queues);
        }
        Ok(xml + "</interface>\n")
    }

    /// QEMU's options in libvirt's XML, which has no elements for these sockets.
    fn libvirt_commandline(&self, memory: &str, qemu: Qemu) -> Result<String, Impossible> {
        let netdev = self.qemu_netdev(self.kind, qemu)?;
        let device = self.device() + ",bus=pcie.0,addr=0x10";
        let mut xml = format!(
            "<!-- Below <domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>: -->\n\
             {memory}<!-- addr: one that no other device has. For machine type pc: bus=pci.0. -->\n\
             <qemu:commandline>\n"
        );
        for value in ["-netdev", &netdev, "-device", &device] {
            xml += &format!("  <qemu:arg value='{}'/>\n", escaped(value));
        }
        Ok(xml + "</qemu:commandline>\n")
    }

    fn check_comma(&self) -> Result<(), Impossible> {
        match self.machine.socket.contains(',') {
            true => impossible("a comma ends a path there: add the port with another --socket"),
            false => Ok(()),
        }
    }

    fn check_vhost_user(&self) -> Result<(), Impossible> {
        match (self.kind, self.model) {
            (PortKind::VhostUser, None) => Ok(()),
            (PortKind::VhostUser, Some(_)) => impossible("--nic is for QEMU"),
            _ => impossible("this kind of port is for QEMU; add one of --kind vhost-user"),
        }
    }
}

/// A comma ends one of QEMU's values, and two do not.
fn doubled(path: &str) -> String {
    path.replace(',', ",,")
}

/// A value in XML, between single quotes.
fn escaped(value: &str) -> String {
    value.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::MachineState;
    use protocol::name::PortName;

    fn info(connect: bool, queues: u16) -> MachineInfo {
        let socket = "/run/uvala/vale0:vm1.sock".to_owned();
        let (peer, state) = (Some("/run/a,b.peer".to_owned()), MachineState::Waiting);
        MachineInfo {
            socket,
            connect,
            queues,
            coalesce_usecs: None,
            coalesce_frames: None,
            peer,
            state,
            pid: None,
            complaint: None,
            rejected_peer: None,
            place: None,
        }
    }

    fn card<'a>(kind: PortKind, machine: &'a MachineInfo, model: Option<&'a str>) -> Card<'a> {
        let mac = "vale0:vm1".parse::<PortName>().expect("a name").guest_mac();
        Card { kind, machine, memory: Some(Memory::default()), mac, model }
    }

    fn qemu(card: &Card<'_>, qemu: Qemu) -> Result<String, Impossible> {
        let args = card.qemu(qemu)?;
        Ok(args.iter().map(|(option, value)| format!("{option} {value}\n")).collect())
    }

    const NEW: Qemu = Qemu { version: (11, 1), kvm: false };

    #[test]
    fn test_qemu_gets_shared_memory_the_role_and_vectors_for_its_queues() {
        let (one, many) = (info(false, 1), info(true, 4));
        let one = qemu(&card(PortKind::VhostUser, &one, None), NEW).expect("args");
        assert!(one.contains("share=on") && one.contains("vm1.sock,reconnect-ms=100"), "{one}");
        assert!(one.contains("mac=52:54:00:") && !one.contains("mq=on"), "{one}");
        let many = qemu(&card(PortKind::VhostUser, &many, None), NEW).expect("args");
        assert!(many.contains("server=on") && many.contains(",queues=4"), "{many}");
        assert!(many.contains("mq=on,vectors=10"), "{many}");
    }

    #[test]
    fn test_other_cards_get_frames_by_stream_or_dgram() {
        let (ours, theirs) = (info(false, 1), info(true, 1));
        let of = |kind, info| qemu(&card(kind, info, Some("e1000")), NEW).expect("args");
        let stream = of(PortKind::Stream, &ours);
        assert!(stream.contains("stream,id=uvala,server=off,reconnect-ms=100,"), "{stream}");
        assert!(stream.contains("-device e1000,netdev=uvala,mac=52"), "{stream}");
        assert!(!stream.contains("share=on"), "{stream}");
        assert!(of(PortKind::Stream, &theirs).contains("server=on,addr.type=unix"));
        let dgram = of(PortKind::Dgram, &ours);
        assert!(dgram.contains("local.path=/run/a,,b.peer,remote.type=unix"), "{dgram}");
        assert!(card(PortKind::VhostUser, &ours, Some("e1000")).qemu(NEW).is_err());
    }

    #[test]
    fn test_libvirt_passes_options_of_qemu_for_other_cards() {
        let (ours, socket) = (info(false, 1), "/run/a'<b>&c".to_owned());
        let xml = card(PortKind::Stream, &ours, Some("e1000")).libvirt(NEW).expect("XML");
        let lines: Vec<_> = xml.lines().map(str::trim_start).collect();
        assert!(lines[0].starts_with("<!-- Below <domain xmlns:qemu='http:"), "{xml}");
        assert_eq!(lines[1], "<memory unit='MiB'>1024</memory>");
        assert_eq!((lines[3], lines[4]), ("<qemu:commandline>", "<qemu:arg value='-netdev'/>"));
        assert!(lines[5].starts_with("<qemu:arg value='stream,id=uvala,server=off,"), "{xml}");
        assert!(lines[7].starts_with("<qemu:arg value='e1000,netdev=uvala,mac=52"), "{xml}");
        assert_eq!((lines[8], lines.len()), ("</qemu:commandline>", 9));
        let odd = MachineInfo { socket, ..info(false, 1) };
        let silent = Card { memory: None, ..card(PortKind::Dgram, &odd, None) };
        let xml = silent.libvirt(NEW).expect("XML");
        assert!(xml.contains("remote.path=/run/a&apos;&lt;b>&amp;c'/>"), "{xml}");
        assert!(xml.contains("'virtio-net-pci,netdev") && !xml.contains("<memory"), "{xml}");
        assert!(silent.cloud_hypervisor().is_err() && silent.crosvm().is_err());
    }

    #[test]
    fn test_old_ones_are_told_what_they_know() {
        let (info, old) = (info(false, 1), Qemu { version: (7, 2), kvm: false });
        let vhost = qemu(&card(PortKind::VhostUser, &info, None), old).expect("args");
        assert!(vhost.contains(",reconnect=1\n") && vhost.contains(",vectors=0"), "{vhost}");
        let with_kvm = Qemu { kvm: true, ..old };
        let vhost = qemu(&card(PortKind::VhostUser, &info, None), with_kvm).expect("args");
        assert!(!vhost.contains("vectors"), "{vhost}");
        let stream = qemu(&card(PortKind::Stream, &info, None), old).expect("args");
        assert!(stream.contains("server=off,addr.type"), "{stream}");
        let older = Qemu { version: (6, 2), kvm: false };
        assert!(card(PortKind::Stream, &info, None).qemu(older).is_err());
    }

    #[test]
    fn test_others_get_theirs() {
        let (server, client) = (info(true, 2), info(false, 2));
        let cloud = card(PortKind::VhostUser, &server, None).cloud_hypervisor().expect("args");
        assert!(cloud.contains("num_queues=4,vhost_mode=server"), "{cloud}");
        let libvirt = card(PortKind::VhostUser, &client, None).libvirt(NEW).expect("args");
        assert!(libvirt.contains("mode='client'>") && libvirt.contains("queues='2'"), "{libvirt}");
        let crosvm = card(PortKind::VhostUser, &client, None).crosvm().expect("args");
        assert!(crosvm.starts_with("--mem 1024\n--vhost-user net,"), "{crosvm}");
        assert!(libvirt.starts_with("<memory unit='MiB'>1024</memory>\n"), "{libvirt}");
        let silent = Card { memory: None, ..card(PortKind::VhostUser, &client, None) };
        assert!(silent.crosvm().expect("args").starts_with("--vhost-user"));
        assert!(silent.libvirt(NEW).expect("args").starts_with("<memoryBacking>"));
        let comma = MachineInfo { socket: "/run/a,b".to_owned(), ..info(false, 1) };
        let comma = card(PortKind::VhostUser, &comma, None);
        assert!(comma.crosvm().is_err() && comma.cloud_hypervisor().is_err());
        assert!(card(PortKind::VhostUser, &server, None).crosvm().is_err());
    }
}

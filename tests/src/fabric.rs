//! Hosts that are namespaces, each with a daemon, connected by a bridge that knows only IP.

use protocol::{HostIf, PortKind, PortStats, VxlanInfo};

use crate::daemon::{Daemon, Setup};
use crate::lab::{self, inside, veth};
use crate::net::{Namespace, ip};

/// The port of each switch that leads to the other hosts.
pub const FABRIC: &str = "vale0:fabric";

/// A network that connects hosts, and no stations.
#[derive(Debug)]
pub struct Underlay {
    wire: Namespace,
    mtu: u32,
}

impl Underlay {
    /// `None` where namespaces cannot be made, which is said.
    #[must_use]
    pub fn new(mtu: u32) -> Option<Self> {
        let wire = Namespace::new()?;
        wire.ip(&format!("link add br0 mtu {mtu} type bridge"));
        wire.ip("link set br0 up");
        Some(Self { wire, mtu })
    }

    /// A namespace with the address of host `number` in the underlay.
    #[must_use]
    pub fn home(&self, number: u8) -> Option<Namespace> {
        let home = Namespace::new()?;
        let (name, mtu) = (format!("host{number}"), format!("mtu {}", self.mtu));
        self.wire.within(|| {
            veth(&home, &name, &format!("10.0.0.{number}/24"), &mtu);
            ip(&format!("link set {name} master br0"));
        });
        home.ip(&format!("addr add fd00::{number}/64 dev eth0 nodad"));
        Some(home)
    }

    /// A host with a daemon and a tunnel to these others.
    #[must_use]
    pub fn host(&self, number: u8, others: &[u8]) -> Option<Host> {
        let host = Host::new(self.home(number)?, number)?;
        let remotes: Vec<String> =
            others.iter().map(|other| format!("--remote=10.0.0.{other}")).collect();
        let local = format!("--local=10.0.0.{number}");
        let add = ["port", "add", FABRIC, "--kind=vxlan", "--vni=100", &local];
        let words: Vec<&str> = add.into_iter().chain(remotes.iter().map(String::as_str)).collect();
        host.done(&words);
        Some(host)
    }
}

/// A station behind a TAP, in a VLAN or of a switch without VLANs. All stations of a host have one
/// MAC address.
///
/// # Panics
/// If there is such a port already.
#[must_use]
pub fn station(host: &Host, port: &str, address: &str, vlan: Option<u16>) -> Option<Namespace> {
    let mac = format!("02:00:00:00:00:0{}", host.number);
    let station = host.station_at(port, address, Some(&mac))?;
    if let Some(vlan) = vlan {
        host.done(&["port", "set", port, "--vlan", &format!("access:{vlan}")]);
    }
    Some(station)
}

/// Stations in VLANs 10 and 20, with one address in both.
///
/// # Panics
/// If there are some already.
#[must_use]
pub fn stations(host: &Host) -> Option<[Namespace; 2]> {
    let address = format!("192.168.7.{}/24", host.number);
    let ten = station(host, "vale0:ten", &address, Some(10))?;
    Some([ten, station(host, "vale0:twenty", &address, Some(20))?])
}

/// A host with a daemon.
#[derive(Debug)]
pub struct Host {
    /// The namespace.
    pub home: Namespace,
    /// The daemon.
    pub daemon: Daemon,
    /// The last byte of its address.
    pub number: u8,
}

impl Host {
    /// One in this namespace.
    #[must_use]
    pub fn new(home: Namespace, number: u8) -> Option<Self> {
        let daemon = home.visit(|| Setup::default().start());
        Some(Self { home, daemon, number })
    }

    /// Runs `uvala`, which has to succeed.
    ///
    /// # Panics
    /// If it does not.
    pub fn done(&self, words: &[&str]) -> String {
        let output = self.daemon.uvala(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "host {}: {words:?}: {error}", self.number);
        String::from_utf8(output.stdout).expect("text")
    }

    /// What `uvala` says when it fails.
    ///
    /// # Panics
    /// If it succeeds.
    #[must_use]
    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.daemon.uvala(words);
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// A station with this address, behind a TAP.
    ///
    /// # Panics
    /// If there is one already.
    #[must_use]
    pub fn station(&self, address: &str, mac: Option<&str>) -> Option<Namespace> {
        self.station_at("vale0:station", address, mac)
    }

    /// A station with this address, behind a TAP that is this port.
    ///
    /// # Panics
    /// If there is one already.
    #[must_use]
    pub fn station_at(&self, port: &str, address: &str, mac: Option<&str>) -> Option<Namespace> {
        let station = Namespace::new()?;
        let mac = mac.map(|mac| mac.parse().expect("an address"));
        let host = HostIf { mtu: Some(1450), mac, ..inside(&station, address) };
        lab::add(&self.daemon, port, PortKind::Tap, host).expect("a TAP");
        Some(station)
    }

    /// The tunnel of the port.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn tunnel(&self) -> VxlanInfo {
        *self.daemon.port(FABRIC).expect("a port").vxlan.expect("a tunnel")
    }

    /// The counters of the port.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        self.daemon.stats(FABRIC)
    }

    /// Frames that the port has dropped for this reason.
    #[must_use]
    pub fn dropped(&self, why: &str) -> u64 {
        self.stats().drops.get(why).copied().unwrap_or(0)
    }

    /// Stations that were learned behind a remote.
    ///
    /// # Panics
    /// If it is no remote.
    #[must_use]
    pub fn learned(&self, remote: &str) -> u32 {
        let of = |info: VxlanInfo| {
            info.remotes.iter().find(|it| it.address.to_string() == remote).map(|it| it.learned)
        };
        of(self.tunnel()).expect("a remote")
    }
}

//! Hosts with a daemon, a GoBGP and a `uvala-evpn` each, as `docs/multi-host.md` sets them up.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::fabric::{FABRIC, Host, Underlay};
use crate::net::Namespace;
use crate::process::{Owned, Scratch, uvala_path};
use crate::wait;

/// A host with all three.
#[derive(Debug)]
pub struct Member {
    /// The host, with its daemon.
    pub host: Host,
    /// The directory of its files.
    pub scratch: Scratch,
    /// GoBGP, its BGP speaker.
    pub gobgpd: Owned,
    /// The process between.
    pub evpn: Owned,
}

/// What may end beside the daemon.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// GoBGP.
    Speaker,
    /// `uvala-evpn`.
    Process,
}

/// The page's blocks of this language.
fn blocks(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(crate::root().join("docs/multi-host.md")).expect("a page");
    let section = page.split("## EVPN").nth(1).expect("a section of the page");
    let fence = format!("```{language}\n");
    let blocks = section.split(&fence).skip(1);
    blocks.filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned())).collect()
}

/// The page's file for a host and its neighbours: that of host 1 with neighbour 2, changed.
fn gobgpd_conf(number: u8, others: &[u8]) -> String {
    let text = blocks("toml").swap_remove(0);
    let (own, neighbour) = text.split_at(text.find("[[neighbors]]").expect("a neighbour"));
    let own = own.replace("10.0.0.1", &format!("10.0.0.{number}"));
    let all = others.iter().map(|it| neighbour.replace("10.0.0.2", &format!("10.0.0.{it}")));
    let quick = "\n  [neighbors.timers.config]\n    connect-retry = 1\n    hold-time = 9\n    \
                 keepalive-interval = 3\n    idle-hold-time-after-reset = 1\n";
    own + &all.map(|it| it + quick + "\n").collect::<String>()
}

impl Member {
    /// One whose neighbours are these others. `None` where namespaces cannot be made.
    #[must_use]
    pub fn new(underlay: &Underlay, number: u8, others: &[u8]) -> Option<Self> {
        let host = underlay.host(number, &[])?;
        host.done(&["port", "set", FABRIC, "--learning=false", "--neigh-suppress"]);
        Some(Self::of(host, others))
    }

    /// One of two whose port has a network for each of its VLANs.
    #[must_use]
    pub fn of_vlans(underlay: &Underlay, number: u8, networks: [&str; 2]) -> Option<Self> {
        let host = Host::new(underlay.home(number)?, number)?;
        let local = format!("--local=10.0.0.{number}");
        let add = ["port", "add", FABRIC, "--kind=vxlan", "--learning=false", "--neigh-suppress"];
        host.done(&[&add[..], &[&local], &networks].concat());
        Some(Self::of(host, &[3 - number]))
    }

    fn of(host: Host, others: &[u8]) -> Self {
        let scratch = Scratch::new("evpn");
        std::fs::write(scratch.path().join("gobgpd.conf"), gobgpd_conf(host.number, others))
            .expect("room");
        let gobgpd = start_gobgpd(&host, &scratch);
        let evpn = start_evpn(&host, &scratch, "20");
        Self { host, scratch, gobgpd, evpn }
    }

    /// Kills the process and starts another one, with this hold time; waits until it speaks.
    pub fn restart_evpn(&mut self, hold: &str) {
        let said = |log: String| log.matches("route distinguisher").count();
        let before = said(self.log());
        self.evpn.kill();
        self.evpn = start_evpn(&self.host, &self.scratch, hold);
        wait::until("another process", || said(self.log()) > before);
    }

    /// Starts another GoBGP, after the end of the one before.
    pub fn restart_gobgpd(&mut self) {
        self.gobgpd = start_gobgpd(&self.host, &self.scratch);
    }

    /// Ends one as a crash would.
    pub fn kill(&mut self, part: Part) {
        match part {
            Part::Speaker => self.gobgpd.kill(),
            Part::Process => self.evpn.kill(),
        }
    }

    /// Starts one that was killed.
    pub fn start(&mut self, part: Part) {
        match part {
            Part::Speaker => self.restart_gobgpd(),
            Part::Process => self.evpn = start_evpn(&self.host, &self.scratch, "20"),
        }
    }

    /// What GoBGP's own command says.
    ///
    /// # Panics
    /// If that does not work.
    #[must_use]
    pub fn gobgp(&self, words: &str) -> String {
        let output = self.host.home.within(|| {
            Command::new("gobgp").args(words.split_whitespace()).output().expect("gobgp")
        });
        String::from_utf8(output.stdout).expect("text")
    }

    /// The addresses of the port's remotes.
    #[must_use]
    pub fn remotes(&self) -> Vec<String> {
        let remotes = self.host.tunnel().remotes;
        remotes.iter().map(|it| it.address.to_string()).collect()
    }

    /// The remotes, each with the VLANs whose floods it gets.
    #[must_use]
    pub fn floods(&self) -> Vec<String> {
        let remotes = self.host.tunnel().remotes;
        remotes.iter().map(|it| format!("{} {:?}", it.address, it.vlans)).collect()
    }

    /// Whether the switch knows a station by a route.
    #[must_use]
    pub fn knows(&self, mac: &str) -> bool {
        self.knows_in(mac, 1)
    }

    /// Whether the switch knows a station by a route, in this VLAN.
    #[must_use]
    pub fn knows_in(&self, mac: &str, vlan: u16) -> bool {
        has_by_route(&self.host.done(&["fdb", "list", "vale0"]), mac, vlan)
    }

    /// The IP addresses that the port has by routes.
    #[must_use]
    pub fn neighbours(&self) -> Vec<String> {
        let listed = self.host.done(&["neigh", "list", FABRIC]);
        let named = listed.lines().filter(|line| line.contains("extern_learn"));
        named.filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    }

    /// Whether the port has an IP address by a route, in this VLAN.
    #[must_use]
    pub fn has_neighbour_in(&self, address: &str, vlan: u16) -> bool {
        has_by_route(&self.host.done(&["neigh", "list", FABRIC]), address, vlan)
    }

    /// What its `uvala-evpn` has said.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("evpn.log")).unwrap_or_default()
    }
}

/// Whether a listing has an address in a VLAN, by a route.
fn has_by_route(listed: &str, address: &str, vlan: u16) -> bool {
    let vlan = vlan.to_string();
    let named = listed.lines().filter(|line| line.contains("extern_learn"));
    let mut starts = named.map(|line| line.split_whitespace().take(2));
    starts.any(|start| start.eq([address, &vlan]))
}

/// Where the program of this name writes what it says.
///
/// # Panics
/// If there is no room.
#[must_use]
pub fn log_file(scratch: &Scratch, name: &str) -> Stdio {
    let path = scratch.path().join(name);
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    file.expect("room").into()
}

/// Debian's GoBGP, with the words of the page.
fn start_gobgpd(host: &Host, scratch: &Scratch) -> Owned {
    let words: Vec<String> = blocks("sh")[0]
        .lines()
        .find(|line| line.starts_with("gobgpd "))
        .expect("a command of the page")
        .split_whitespace()
        .skip(1)
        .map(|word| word.replace("/etc/gobgpd.conf", "gobgpd.conf"))
        .collect();
    let mut command = Command::new("gobgpd");
    command.args(words).arg("--pprof-disable").current_dir(scratch.path());
    command.stdout(log_file(scratch, "gobgpd.log")).stderr(log_file(scratch, "gobgpd.log"));
    let found = Command::new("gobgpd").arg("--version").output();
    assert!(found.is_ok(), "gobgpd is missing: apt-get install gobgpd (.ci/prepare does)");
    host.home.visit(|| Owned::spawn(&mut command))
}

/// A `uvala-evpn` for the host's port, with the words of the page and this hold time.
///
/// # Panics
/// If there is no such program.
#[must_use]
pub fn start_evpn(host: &Host, scratch: &Scratch, hold: &str) -> Owned {
    let line = blocks("sh")[0].lines().find(|it| it.starts_with("uvala-evpn ")).map(str::to_owned);
    let line = line.expect("a command of the page");
    let mut command = Command::new(program());
    command.args(line.split_whitespace().skip(1)).args(["--hold", hold, "--dir"]);
    command.arg(host.daemon.dir()).stderr(log_file(scratch, "evpn.log"));
    host.home.visit(|| Owned::spawn(&mut command))
}

fn program() -> PathBuf {
    uvala_path().with_file_name("uvala-evpn")
}

/// Members with one station each, 192.168.7.N with the address 02:00:00:00:00:0N, which each knows
/// of the others.
///
/// # Panics
/// If that does not work.
#[must_use]
pub fn members<const N: usize>(numbers: [u8; N]) -> Option<(Underlay, Vec<(Member, Namespace)>)> {
    let underlay = Underlay::new(1500)?;
    let member = |number: u8| {
        let others: Vec<u8> = numbers.into_iter().filter(|it| *it != number).collect();
        let member = Member::new(&underlay, number, &others)?;
        let mac = format!("02:00:00:00:00:0{number}");
        let station = member.host.station(&format!("192.168.7.{number}/24"), Some(&mac))?;
        Some((member, station))
    };
    let all: Vec<_> = numbers.into_iter().map(member).collect::<Option<_>>()?;
    for (member, _) in &all {
        for number in numbers.into_iter().filter(|it| *it != member.host.number) {
            let what = format!("the station of host {number} at {}", member.host.number);
            wait::until(&what, || member.knows(&format!("02:00:00:00:00:0{number}")));
        }
    }
    Some((underlay, all))
}

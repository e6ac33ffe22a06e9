//! The internet for the stations of a switch, by passt.
//!
//! passt serves one guest: it gives one address, and answers every neighbour query as if it were
//! alone with the guest. So each station has a passt of its own, and this process stands between
//! them and a port of kind `stream`.
//!
//! ```text
//!   switch                 this process                            one for each station
//!  ┌────────┐  stream   ┌────────────────────────────┐  socket   ┌───────┐
//!  │ port   │ ────────► │ relay: which station is    │ ────────► │ passt │ ──► sockets
//!  │internet│           │ it, and is it for passt?   │           └───────┘     of the host
//!  │        │ ◄──────── │ a thread for each passt    │ ◄────────
//!  └────────┘           └────────────────────────────┘
//! ```
//!
//! All of them have one MAC address and one router address: to a station, there is one router. A
//! station is known by its MAC address. Its passt starts with the first frame that is for passt,
//! and again with the next frame after it has ended, at growing intervals where it keeps ending or
//! cannot be started.
//! There are at most [`STATIONS_MAX`]: more take the places of those that have been silent for
//! [`SILENCE`], or find no passt.
//!
//! The port goes with the connection that added it, and each passt with its socket, so nothing is
//! left when this process ends.

mod frames;
mod passt;

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packet::MacAddr;
use terminal::say;

pub use frames::Network;
use frames::{ROUTER, for_passt};
use passt::{Station, Switch, frame, receive};

/// Most stations at a time: each costs a process and two threads.
const STATIONS_MAX: usize = 64;
/// A station that has said nothing for so long loses its place to another.
const SILENCE: Duration = Duration::from_secs(60);

/// What passt is told.
#[derive(Debug)]
pub struct Settings {
    /// The program.
    pub program: PathBuf,
    /// The network of the stations.
    pub network: Network,
    /// MAC address of the router.
    pub mac: MacAddr,
    /// MTU of the stations.
    pub mtu: u16,
    /// Whether the router's address is the host itself.
    pub host: bool,
    /// Ports of the host that are forwarded, as options of passt.
    pub forwards: Vec<Forward>,
}

/// A port of the host that belongs to a station.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// passt's option, and its value.
    pub option: [String; 2],
    /// The station that it belongs to; by default the first one.
    pub station: Option<MacAddr>,
}

impl Settings {
    /// How a station's passt is started.
    fn command(&self, address: Ipv4Addr, forwards: &[&Forward]) -> Command {
        let (network, mut command) = (self.network, Command::new(&self.program));
        let both = [IpAddr::V4(address), IpAddr::V6(network.v6(address))];
        command.args(["--foreground", "--quiet", "--fd", "0", "--netmask", "24"]);
        both.iter().for_each(|ip| _ = command.arg("--address").arg(ip.to_string()));
        let names = network.names().to_string();
        command.args(["--gateway", &network.gateway().to_string()]);
        command.args(["--gateway", &ROUTER.to_string()]);
        command.args(["--dns", &names, "--dns-forward", &names]);
        command.args(["--mac-addr", &self.mac.to_string(), "--mtu", &self.mtu.to_string()]);
        if !self.host {
            command.arg("--no-map-gw");
        }
        command.args(forwards.iter().flat_map(|forward| &forward.option));
        command
    }
}

/// The stations of a switch.
#[derive(Debug)]
pub struct Relay {
    settings: Settings,
    switch: Arc<Switch>,
    stations: BTreeMap<MacAddr, Station>,
    /// The station to which forwards belong that name none.
    first: Option<MacAddr>,
    /// A station that found no place was reported.
    is_full: bool,
    /// Why a passt could not be started, as it was reported.
    trouble: Option<String>,
}

impl Relay {
    /// Without any station.
    pub fn new(settings: Settings) -> Self {
        let (switch, stations) = (Arc::default(), BTreeMap::new());
        Self { settings, switch, stations, first: None, is_full: false, trouble: None }
    }

    /// Carries frames until the switch hangs up.
    pub fn run(&mut self, stream: UnixStream) -> io::Result<()> {
        let mut from = BufReader::new(stream.try_clone()?);
        self.switch.connect(Some(stream));
        let mut message = Vec::new();
        while receive(&mut from, &mut message)? {
            let Settings { mac, network, .. } = self.settings;
            if let Some(station) = for_passt(frame(&message), mac, network) {
                self.carry(station, std::mem::take(&mut message));
            }
        }
        self.switch.connect(None);
        Ok(())
    }

    fn carry(&mut self, mac: MacAddr, message: Vec<u8>) {
        if let Some(started) = self.prepare(mac)
            && let Some(line) = self.report(mac, started)
        {
            say::remark(line);
        }
        if let Some(station) = self.stations.get_mut(&mac) {
            station.send(message);
        }
    }

    /// What there is to say of a start: each change once, also if all stations are concerned.
    fn report(&mut self, mac: MacAddr, started: io::Result<()>) -> Option<String> {
        let program = self.settings.program.display();
        let why = started.err().map(|error| error.to_string());
        let before = std::mem::replace(&mut self.trouble, why.clone());
        match why {
            Some(why) if before.as_ref() == Some(&why) => None,
            Some(why) => Some(format!(
                "uvala: cannot run {program} for {mac}: {why}; it is tried again, at growing \
                 intervals"
            )),
            None => before.map(|_| format!("uvala: {program} runs again, for {mac}")),
        }
    }

    /// Sees that a station has a passt, if there is room for one. `None`: none was started.
    fn prepare(&mut self, mac: MacAddr) -> Option<io::Result<()>> {
        let now = Instant::now();
        let address = match self.stations.get(&mac) {
            Some(station) if !station.is_due(now) => return None,
            Some(station) => station.address,
            None => self.admit(mac)?,
        };
        let first = *self.first.get_or_insert(mac);
        let is_its = |forward: &&Forward| forward.station.unwrap_or(first) == mac;
        let forwards: Vec<_> = self.settings.forwards.iter().filter(is_its).collect();
        let mut command = self.settings.command(address, &forwards);
        let station = self.stations.get_mut(&mac)?;
        Some(station.start(&mut command, mac, &self.switch, now))
    }

    /// Gives a new station its place, which it has whether a passt can be started or not.
    fn admit(&mut self, mac: MacAddr) -> Option<Ipv4Addr> {
        let address = self.place(mac)?;
        self.stations.insert(mac, Station::new(address));
        say::remark(format_args!("uvala: {mac} has {address}"));
        Some(address)
    }

    /// The address of a new station, where there is room for one.
    fn place(&mut self, mac: MacAddr) -> Option<Ipv4Addr> {
        if self.stations.len() >= STATIONS_MAX {
            let (silent, station) = self.stations.iter().min_by_key(|(_, it)| it.heard)?;
            if station.heard.elapsed() < SILENCE {
                if !std::mem::replace(&mut self.is_full, true) {
                    say::remark(format_args!(
                        "uvala: {STATIONS_MAX} stations are served; {mac} and others have to wait \
                         until one is silent for {} s",
                        SILENCE.as_secs()
                    ));
                }
                return None;
            }
            let silent = *silent;
            self.stations.remove(&silent);
        }
        self.is_full = false;
        let is_taken = |ip| self.stations.values().any(|station| station.address == ip);
        self.settings.network.address(mac, is_taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATIONS: [MacAddr; 2] =
        [MacAddr::new([2, 0, 0, 0, 0, 1]), MacAddr::new([2, 0, 0, 0, 0, 2])];

    fn settings(program: &str, forwards: Vec<Forward>) -> Settings {
        Settings {
            program: program.into(),
            network: "10.0.2.0/24".parse().unwrap(),
            mac: STATIONS[1],
            mtu: 1500,
            host: false,
            forwards,
        }
    }

    #[test]
    fn test_a_passt_that_cannot_be_started_is_reported_once_and_not_tried_with_each_frame() {
        let mut relay = Relay::new(settings("/no/such/passt", Vec::new()));
        let [a, b] = STATIONS;
        let failed = relay.prepare(a).expect("it was tried");
        let line = relay.report(a, failed).expect("a line");
        assert!(line.contains("cannot run /no/such/passt for 02:00:00:00:00:01: No "), "{line}");
        let tries = (0..1000).filter(|_| relay.prepare(a).is_some()).count();
        assert!(tries < 20, "{tries}");
        let failed = relay.prepare(b).expect("it was tried");
        assert_eq!(relay.report(b, failed), None, "the same");
        assert_eq!(relay.stations.len(), 2, "they have their places");
        assert!(relay.report(b, Ok(())).is_some_and(|line| line.contains("runs again")));
        assert_eq!(relay.report(b, Ok(())), None);
        assert!(relay.report(b, Err(io::ErrorKind::OutOfMemory.into())).is_some());
    }

    #[test]
    fn test_forwards_are_the_first_stations_unless_they_name_one() {
        let [a, b] = STATIONS;
        let forward = |spec: &str, station| {
            let option = ["--tcp-ports", spec].map(str::to_owned);
            Forward { option, station }
        };
        let forwards = vec![forward("8080:80", None), forward("2222:22", Some(b))];
        // Ends at once, as a passt that cannot start.
        let settings = settings("/bin/false", forwards);
        let words = |settings: &Settings, forwards: &[&Forward]| {
            let command = settings.command("10.0.2.16".parse().unwrap(), forwards);
            let words = command.get_args().map(|word| word.to_str().unwrap().to_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        let said = words(&settings, &[&settings.forwards[0]]);
        assert!(said.contains("--no-map-gw --tcp-ports 8080:80"), "{said}");
        assert!(said.contains("--address 10.0.2.16 --address fd75:"), "{said}");
        let mut relay = Relay::new(settings);
        relay.prepare(a).unwrap().unwrap();
        relay.prepare(b).unwrap().unwrap();
        assert_eq!((relay.first, relay.stations.len()), (Some(a), 2));
        assert_ne!(relay.stations[&a].address, relay.stations[&b].address);
    }
}

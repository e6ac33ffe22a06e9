//! A switch that learns a million stations: the time for each, and the memory of all.
//!
//! One port sends a frame from each of them, to an address behind itself: the switch learns, and
//! delivers nothing. So the time is that of a frame whose sender is new, and of what the daemon
//! does about it later.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use client::Options;
use client::control::Connection;
use packet::build::ethernet_header;
use protocol::{Reply, Request, SwitchInfo, SwitchRef, SwitchRequest, paths};

use super::ends::PATIENCE;
use crate::daemon::Daemon;
use crate::stamp::{ETHERTYPE, address};

/// Stations, which the switch has room for.
const STATIONS: u32 = 1_000_000;
const CAPACITY: u32 = 1 << 20;

/// What learning has taken.
pub struct Learned {
    /// Nanoseconds of the daemon for each station.
    pub nanoseconds: f64,
    /// Megabytes by which it has grown.
    pub megabytes: f64,
}

/// Learns them once, by a worker on this CPU.
pub fn learn(cpu: usize) -> Result<Learned> {
    let daemon = Daemon::with(&format!(
        "[workers]\ncount = 1\ncpus = [{cpu}]\n[switch.vale0]\nfdb_capacity = {CAPACITY}\n\
         [switch.vale0.port.s]\non_full = \"wait\"\nmax_macs = {CAPACITY}\n"
    ))?;
    let mut port = Options::new().dir(daemon.dir()).open("vale0:s")?;
    let ethertype = u16::from_be_bytes(ETHERTYPE);
    let mut frame = [0; 60];
    let header = ethernet_header(address(1), address(1), ethertype);
    frame[..header.len()].copy_from_slice(&header);
    port.send(&frame)?;
    port.drain(Some(PATIENCE))?;
    let (time, memory) = (settled(&daemon)?, daemon.own_megabytes()?);
    for station in 0..STATIONS {
        frame[6..12].copy_from_slice(&mac(station));
        port.send(&frame)?;
    }
    port.drain(Some(PATIENCE))?;
    let time = settled(&daemon)? - time;
    let entries = switch(&daemon)?.fdb_entries;
    ensure!(entries == STATIONS + 1, "the switch knows {entries} stations");
    let megabytes = daemon.own_megabytes()? - memory;
    Ok(Learned { nanoseconds: time.as_secs_f64() * 1e9 / f64::from(STATIONS), megabytes })
}

/// The address of a station.
fn mac(station: u32) -> [u8; 6] {
    let [a, b, c, d] = station.to_be_bytes();
    [2, 1, a, b, c, d]
}

/// What the daemon has used of a core once it rests.
fn settled(daemon: &Daemon) -> Result<Duration> {
    daemon.rest()?;
    daemon.cpu_time()
}

fn switch(daemon: &Daemon) -> Result<SwitchInfo> {
    let connection = Connection::connect(&paths::client_socket(Some(daemon.dir())))?;
    let name = "vale0".parse().context("a name")?;
    match connection.call(Request::Switch(SwitchRequest::Show(SwitchRef { switch: name })))? {
        Reply::Switch(info) => Ok(info),
        other => bail!("no switch: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn test_each_station_has_an_address_that_a_switch_learns() {
        let stations = [0, 1, 255, 256, 65_536, STATIONS - 1];
        let macs: HashSet<_> = stations.iter().map(|station| mac(*station)).collect();
        assert_eq!(macs.len(), stations.len());
        assert!(macs.iter().all(|mac| mac[0] & 1 == 0 && *mac != address(1)));
        const { assert!(STATIONS < CAPACITY) };
    }
}

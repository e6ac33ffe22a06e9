//! A forwarding program with a table of stations, as a user would load it, and its own time.

use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use client::control::Connection;
use packet::build::ethernet_header;
use program::{Decision, Frame, Program};
use protocol::name::SwitchName;
use protocol::{
    Forwarding, ProgramEntry, ProgramEntrySet, ProgramRequest, ProgramSpec, Request, SwitchRequest,
    SwitchSettings, SwitchSpec, paths,
};

use crate::machine;
use crate::stamp::{ETHERTYPE, address};

/// `examples/forwarding/stations.c` as clang 14 compiles it: a look-up of the destination in a hash
/// for each decision. A machine that is measured need not have a compiler.
const STATIONS: &str = include_str!("stations.image");

/// Loads it into the switch, with the receivers' stations.
pub fn load(dir: &Path, receivers: u8) -> Result<()> {
    let program = ProgramSpec { image: STATIONS.into(), entries: vec![] };
    let settings = SwitchSettings {
        forwarding: Some(Forwarding::Program),
        program: Some(program),
        ..SwitchSettings::default()
    };
    let switch: SwitchName = "vale0".parse()?;
    let connection = Connection::connect(&paths::client_socket(Some(dir)))?;
    let spec = SwitchSpec { switch: switch.clone(), settings };
    connection.call(Request::Switch(SwitchRequest::Set(spec)))?;
    for receiver in 0..receivers {
        let set = ProgramEntrySet { switch: switch.clone(), entry: entry(receiver) };
        connection.call(Request::Program(ProgramRequest::MapSet(set)))?;
    }
    Ok(())
}

fn entry(receiver: u8) -> ProgramEntry {
    let key = address(receiver + 1).iter().fold(String::new(), |mut key, byte| {
        let _ = write!(key, "{byte:02x}");
        key
    });
    ProgramEntry { map: "stations".into(), key, value: format!("port:r{receiver}") }
}

/// Nanoseconds of a decision about one of 256 stations in turn, on this CPU.
pub fn decision(cpu: usize, time: Duration) -> Result<f64> {
    machine::pin(cpu);
    let mut program = Program::new(&STATIONS.parse()?, 1)?;
    let ethertype = u16::from_be_bytes(ETHERTYPE);
    let headers: Vec<_> =
        (0..=u8::MAX).map(|to| ethernet_header(address(to), address(0), ethertype)).collect();
    for (port, header) in (0_u16..).zip(&headers) {
        program.set(0, &header[..6], &port.to_le_bytes())?;
    }
    let (mut decisions, start) = (0_u32, Instant::now());
    while start.elapsed() < time {
        for (port, header) in (0..).zip(&headers) {
            let frame = Frame { bytes: black_box(header), port: 0, vlan: 0, now_us: 0 };
            let decided = program.run(&frame);
            ensure!(decided == Ok(Decision::To(port)), "for station {port}: {decided:?}");
            decisions += 1;
        }
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(decisions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_the_program_finds_a_station() {
        let image = STATIONS.parse().expect("an image");
        let mut program = Program::new(&image, 1).expect("it is accepted");
        program.set(0, &address(2), &7_u16.to_le_bytes()).expect("room");
        let bytes = ethernet_header(address(2), address(1), 0x88b5);
        let frame = Frame { bytes: &bytes, port: 0, vlan: 0, now_us: 0 };
        assert_eq!(program.run(&frame), Ok(Decision::To(7)));
    }
}

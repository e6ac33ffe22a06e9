//! What the demo has shown.

use anyhow::{Result, ensure};
use serde::Serialize;

use bench::traffic::latency::Latency;
use bench::traffic::report::Summary;
use terminal::table::{Align, Table};
use terminal::units;

/// Everything, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// One for each length of frames.
    pub transfers: Vec<Transfer>,
    /// There and back, both ends asleep, in microseconds.
    pub round_trip: Latency,
    /// Percent of one core while no frame moves.
    pub idle_cpu_percent: f64,
    /// Memory of the process with the switch, without the ports' own.
    pub daemon_bytes: u64,
    /// Memory of a port.
    pub port_bytes: u64,
}

/// Frames of one length.
#[derive(Debug, Serialize)]
pub struct Transfer {
    /// Bytes of each.
    pub length: usize,
    /// How many the sender sent.
    pub sent: u64,
    /// What the receiver found.
    pub received: Summary,
}

impl Transfer {
    /// Whether every frame arrived as it was sent.
    fn is_whole(&self) -> bool {
        let clean = self.received.checked.is_some_and(|checked| checked.is_clean());
        clean && self.sent > 0 && self.received.frames == self.sent
    }
}

impl Report {
    /// The tables for people.
    pub fn table(&self) -> String {
        let right = |name| (name, Align::Right);
        let mut table = Table::new(&[
            ("FRAMES OF", Align::Left),
            right("SENT"),
            right("RECEIVED"),
            right("LOST"),
            right("CORRUPTED"),
            right("RATE"),
            right("BIT RATE"),
        ]);
        for transfer in &self.transfers {
            let checked = transfer.received.checked.unwrap_or_default();
            table.row([
                format!("{} bytes", transfer.length),
                units::count(transfer.sent),
                units::count(transfer.received.frames),
                units::count(transfer.sent.saturating_sub(transfer.received.frames)),
                units::count(checked.corrupted),
                units::packet_rate(transfer.received.mpps * 1e6),
                units::bit_rate(transfer.received.gbit_s * 1e9),
            ]);
        }
        let trip = &self.round_trip;
        let (median, p99) = (units::micros(trip.p50), units::micros(trip.p99));
        let rows = [
            ("round trip", format!("{median} median, {p99} p99, both ends asleep in between")),
            ("idle switch", format!("{:.2} % of one core", self.idle_cpu_percent)),
            ("memory", {
                let (switch, port) =
                    (units::bytes(self.daemon_bytes), units::bytes(self.port_bytes));
                format!("{switch} the switch, {port} each port")
            }),
        ];
        format!("{table}\n{}", units::table(&rows))
    }

    /// The demo has worked only if every frame arrived.
    pub fn verdict(&self) -> Result<()> {
        for transfer in &self.transfers {
            ensure!(
                transfer.is_whole(),
                "not every frame of {} bytes arrived as it was sent",
                transfer.length
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::traffic::report::Checked;

    fn report(sent: u64, received: u64) -> Report {
        let received =
            Summary { frames: received, checked: Some(Checked::default()), ..Summary::default() };
        let (samples, us) = (500, 9.0);
        let histogram = Vec::new();
        let round_trip =
            Latency { samples, min: us, p50: us, p90: us, p99: us, p999: us, max: us, histogram };
        Report {
            transfers: vec![Transfer { length: 60, sent, received }],
            round_trip,
            idle_cpu_percent: 0.25,
            daemon_bytes: 12_000_000,
            port_bytes: 4_600_000,
        }
    }

    #[test]
    fn test_verdict_needs_every_frame_and_at_least_one() {
        assert!(report(1000, 1000).verdict().is_ok());
        assert!(report(1000, 999).verdict().is_err());
        assert!(report(0, 0).verdict().is_err());
        let mut unchecked = report(10, 10);
        unchecked.transfers[0].received.checked = None;
        assert!(unchecked.verdict().is_err());
    }

    #[test]
    fn test_table_and_json_say_what_was_found() {
        let report = report(1000, 999);
        let table = report.table();
        assert!(table.contains("60 bytes   1,000       999     1          0"), "{table}");
        assert!(table.contains("memory       12.0 MB the switch, 4.60 MB each port"), "{table}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["transfers"][0]["received"]["checked"]["corrupted"], 0);
        assert!(json["round_trip"]["p50"].is_f64());
    }
}

//! `uvala-ladder [ROUNDS [FRAMES]]`: what a frame costs that a guest sends by an e1000, for each
//! way of telling the card of it, as a table. The ways take turns; each value is the median of the
//! rounds, with the least and the greatest rate. `UVALA_DEVICE_OPTIONS` has more options of
//! `uvala-device`.

use std::fmt::Write;

use harness::daemon::Daemon;
use harness::device::{Device, PORT};
use harness::guest::{Boot, Guest, Kit};
use harness::ladder::{Cost, RUNGS, load, send};
use harness::measure::median;

/// Columns beside the rate.
const COUNTED: [(&str, &str); 3] = [
    ("kicks", "tx_kicks"),
    ("interrupts", "interrupts"),
    ("register accesses", "register_accesses"),
];

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u32>().expect("a number"));
    let (rounds, frames) = (numbers.next().unwrap_or(3), numbers.next().unwrap_or(50_000));
    let Some(kit) = Kit::find() else { return };
    let Some(driver) = kit.driver("e1000/e1000.ko") else { return };
    let more: Vec<String> = std::env::var("UVALA_DEVICE_OPTIONS")
        .map(|words| words.split_whitespace().map(str::to_owned).collect())
        .unwrap_or_default();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let daemon = Daemon::start();
    let _device = Device::with(&daemon, "e1000", &more);
    let boot = Boot { port: PORT, nic: Some("e1000"), driver: Some(driver), ..Boot::default() };
    let mut guest = Guest::start(&kit, &daemon, &boot);
    guest.ready();
    let mut costs: [Vec<Cost>; RUNGS.len()] = Default::default();
    for round in 1..=rounds {
        for (rung, costs) in RUNGS.iter().zip(&mut costs) {
            load(&mut guest, rung);
            costs.push(send(&mut guest, &daemon, frames));
        }
        println!("round {round} of {rounds}");
    }
    println!("{}", table(&costs));
}

fn table(costs: &[Vec<Cost>; RUNGS.len()]) -> String {
    let mut text = "| | rate, kpps | of base |".to_owned();
    COUNTED.iter().for_each(|(name, _)| write!(text, " {name} |").expect("memory"));
    text += "\n|---|---|---|---|---|---|\n";
    let base = median(costs[0].iter().map(|cost| cost.rate));
    for (rung, costs) in RUNGS.iter().zip(costs) {
        let rates = || costs.iter().map(|cost| cost.rate / 1e3);
        let (least, most) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
        let rate = median(rates());
        write!(text, "| {} | {rate:.1} ({least:.1} to {most:.1}) |", rung.name).expect("memory");
        write!(text, " {:.1} |", 1e3 * rate / base).expect("memory");
        for (_, what) in COUNTED {
            let cost = median(costs.iter().map(|cost| cost.per_frame(what)));
            write!(text, " {cost:.4} |").expect("memory");
        }
        text.push('\n');
    }
    text
}

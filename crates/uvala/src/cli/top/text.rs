//! Text for files and pipes: what the screen would show.

use protocol::DropReason;
use terminal::table::{Table, left, or_dash, right, short};
use terminal::units::count;

use super::rows::{DropRow, PortRow, WorkerRow, reasons};
use super::state::{Sort, State};

/// Ports as they would be shown, reasons for drops, and workers.
pub fn of(state: &State) -> String {
    let rows = match &state.port {
        Some(_) => state.single().into_iter().collect(),
        None => state.ports(),
    };
    let ports = [
        left(Sort::Port.head(), |row: &PortRow<'_>| row.stats.port.to_string()),
        right(Sort::TxPps.head(), |row| short(row.tx.frames)),
        right(Sort::TxBits.head(), |row| short(row.tx.bits)),
        right(Sort::RxPps.head(), |row| short(row.rx.frames)),
        right(Sort::RxBits.head(), |row| short(row.rx.bits)),
        right(Sort::Drops.head(), |row| short(row.drops_per_s())),
        left("WHY", |row| or_dash(row.reason())),
    ];
    let drops = [
        left("REASON", |row: &DropRow<'_>| row.reason.to_owned()),
        right("DROPS/s", |row| short(row.per_s)),
        right("SINCE START", |row| count(row.frames)),
        left("MOST AT", |row| row.port.to_string()),
    ];
    let workers = [
        right("WORKER", |row: &WorkerRow<'_>| row.info.worker.to_string()),
        right("BUSY", |row| or_dash(row.busy.map(|share| format!("{share:.0} %")))),
        right("PORTS", |row| row.info.ports.to_string()),
        right("STALLS", |row| row.info.stalls.to_string()),
    ];
    let reasons = reasons(&rows);
    let known = reasons.iter().filter_map(|row| DropReason::named(row.reason));
    let told: String =
        known.map(|it| format!("{}: {} {}\n", it.name, it.explanation, it.cure)).collect();
    let drops = match reasons.is_empty() {
        true => String::new(),
        false => format!("\n{}{told}", Table::of(&reasons, &drops)),
    };
    let none = match rows.is_empty() && !state.pair().now.stats.is_empty() {
        true => "no port has all words of the filter\n",
        false => "",
    };
    let (ports, workers) = (Table::of(&rows, &ports), Table::of(&state.pair().workers(), &workers));
    format!("{ports}{none}{drops}\n{workers}")
}

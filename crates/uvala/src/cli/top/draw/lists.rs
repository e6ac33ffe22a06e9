//! The lists.

use protocol::DropReason;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use terminal::table::{or_dash, short};
use terminal::units::{count, micros};

use super::grid::{self, Column, left, put, rest, right};
use super::{DIM, GRAPH, alarm_if};
use crate::cli::nf;
use crate::cli::nf::top::Busy;
use crate::cli::top::rows::{ChainRow, DropRow, PortRow, WorkerRow, reasons};
use crate::cli::top::state::{Sort, State};
use crate::cli::top::trail::{Point, bars};

/// Ports.
pub fn ports(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    rows: &[PortRow<'_>],
    cursor: Option<usize>,
) {
    let longest = rows.iter().map(|row| row.stats.port.to_string().len()).max().unwrap_or(0);
    let most = if area.width >= 120 { 40 } else { 22 };
    let name = u16::try_from(longest.clamp(12, most)).unwrap_or(22);
    let sorted = state.choices.sort.head();
    let columns = port_columns(state, name).map(|column| column.marked(sorted));
    grid::draw(frame, area, &columns, rows, cursor);
    if rows.is_empty() {
        let why = match state.pair().now.stats.is_empty() {
            true => "no ports",
            false => "no port is left: Esc clears the filter, i shows idle ports",
        };
        put(frame, area, 1, &Line::styled(why, DIM));
    }
}

fn port_columns<'a>(state: &'a State, name: u16) -> [Column<'a, PortRow<'a>>; 13] {
    let kind = |row: &PortRow<'_>| or_dash(row.known.map(|known| known.info.kind.name()));
    let worker = |row: &PortRow<'_>| or_dash(row.known.and_then(|known| known.info.worker));
    let drops = |row: &PortRow<'_>| {
        Span::styled(short(row.drops_per_s()), alarm_if(row.drops_per_s() > 0.0))
    };
    [
        left(Sort::Port.head(), name, move |row: &PortRow<'_>| {
            grid::middle(&row.stats.port.to_string(), name.into())
        }),
        left("KIND", 10, kind).from(120),
        left("PROGRAM", 24, |row: &PortRow<'_>| or_dash(row.program())).from(120),
        right("WORKER", 6, worker).from(160),
        right(Sort::TxPps.head(), 6, |row: &PortRow<'_>| short(row.tx.frames)),
        right(Sort::TxBits.head(), 8, |row: &PortRow<'_>| short(row.tx.bits)),
        right(Sort::RxPps.head(), 6, |row: &PortRow<'_>| short(row.rx.frames)),
        right(Sort::RxBits.head(), 8, |row: &PortRow<'_>| short(row.rx.bits)),
        right("FILLED", 6, filled).from(120),
        right(Sort::Drops.head(), 7, drops),
        left("WHY", 16, |row: &PortRow<'_>| or_dash(row.reason())).from(100),
        right(Sort::Total.head(), 9, |row: &PortRow<'_>| short(row.total())).from(100),
        rest("HISTORY", |row: &PortRow<'_>, width| {
            let past = state.trail(&row.stats.port).last(width, Point::total);
            Span::styled(bars(&past), GRAPH)
        }),
    ]
}

/// The share of the receive rings that has frames in it.
fn filled(row: &PortRow<'_>) -> String {
    let fill = row.stats.rx_fill.filter(|fill| fill.capacity > 0);
    or_dash(fill.map(|fill| format!("{} %", fill.slots * 100 / fill.capacity)))
}

/// Reasons for drops, with what they mean and what to do.
pub fn drops(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    ports: &[PortRow<'_>],
    cursor: Option<usize>,
) {
    let [list, told] = Layout::vertical([Constraint::Fill(1), Constraint::Length(5)]).areas(area);
    let rows = reasons(ports);
    let per_s = |row: &DropRow<'_>| Span::styled(short(row.per_s), alarm_if(row.per_s > 0.0));
    let columns = [
        left("REASON", 17, |row: &DropRow<'_>| row.reason.to_owned()),
        right("DROPS/s", 7, per_s),
        right("SINCE START", 13, |row: &DropRow<'_>| count(row.frames)),
        right("PORTS", 5, |row: &DropRow<'_>| row.ports.to_string()).from(70),
        rest("MOST AT", |row: &DropRow<'_>, _| row.port.to_string()),
    ];
    grid::draw(frame, list, &columns, &rows, cursor);
    if rows.is_empty() {
        let none = match state.choices.filter.is_empty() {
            true => "no frame was dropped",
            false => "no frame was dropped at the ports that the filter shows",
        };
        put(frame, list, 1, &Line::styled(none, DIM));
    }
    if let Some(row) = rows.get(cursor.unwrap_or(0)) {
        explain(frame, told, row.reason, row.reason);
    }
}

/// What a reason means, and what to do, below a head.
pub fn explain(frame: &mut Frame<'_>, area: Rect, head: &str, reason: &str) {
    use ratatui::widgets::{Paragraph, Wrap};
    let Some(known) = DropReason::named(reason) else { return };
    let lines = vec![
        Line::from(format!("{head}: {}", known.explanation)),
        Line::styled(known.cure, super::BOLD),
    ];
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

/// Chains, and instances of their services.
pub fn functions(frame: &mut Frame<'_>, area: Rect, state: &State, cursor: Option<usize>) {
    let (chains, rows) = (state.pair().chains(), state.pair().functions());
    let height = u16::try_from(chains.len()).unwrap_or(u16::MAX).min(area.height / 3);
    let height = if height == 0 { 0 } else { height + 2 };
    let [above, below] =
        Layout::vertical([Constraint::Length(height), Constraint::Fill(1)]).areas(area);
    let columns = [
        left("CHAIN", 18, |row: &ChainRow<'_>| format!("{}:{}", row.switch, row.info.chain.name)),
        right("ENTERED/s", 9, |row: &ChainRow<'_>| short(row.entered)),
        right("DROPPED/s", 9, |row: &ChainRow<'_>| {
            Span::styled(short(row.dropped), alarm_if(row.dropped > 0.0))
        }),
        left("SERVICES", 20, |row: &ChainRow<'_>| row.info.chain.services.join(",")).from(76),
        rest("STATE", |row: &ChainRow<'_>, _| chain_state(row)),
    ];
    if height > 0 {
        grid::draw(frame, above, &columns, &chains, None);
    }
    grid::draw(frame, below, &function_columns(), &rows, cursor);
    if rows.is_empty() {
        put(frame, below, 1, &Line::styled("no port is an instance of a service", DIM));
    }
}

fn chain_state(row: &ChainRow<'_>) -> Span<'static> {
    match &row.info.broken {
        Some(why) => Span::styled(why.clone(), alarm_if(true)),
        None => Span::raw("ok"),
    }
}

fn function_columns() -> [Column<'static, Busy>; 10] {
    let state = |row: &Busy| {
        let state = nf::state(&row.info);
        Span::styled(state, alarm_if(state != "up"))
    };
    let dropped =
        |row: &Busy| Span::styled(short(row.dropped_per_s), alarm_if(row.dropped_per_s > 0.0));
    [
        left("SERVICE", 12, |row: &Busy| format!("{}@{}", row.info.service, row.info.instance)),
        left("STATE", 7, state),
        right("CPU", 5, |row: &Busy| or_dash(row.cpu_percent.map(|share| format!("{share:.0} %")))),
        right("WAITING", 7, |row: &Busy| row.info.waiting.to_string()),
        right("IN/s", 6, |row: &Busy| short(row.frames_in_per_s)),
        right("OUT/s", 6, |row: &Busy| short(row.frames_out_per_s)),
        right("NO ROOM/s", 9, |row: &Busy| {
            Span::styled(short(row.no_room_per_s), alarm_if(row.no_room_per_s > 0.0))
        })
        .from(76),
        right("DROP/s", 6, dropped),
        left("CORES", 8, |row: &Busy| or_dash(row.info.cores.as_ref())).from(100),
        rest("PORT", |row: &Busy, _| row.info.port.to_string()),
    ]
}

/// Workers.
pub fn workers(frame: &mut Frame<'_>, area: Rect, state: &State, cursor: Option<usize>) {
    let longest = |row: &WorkerRow<'_>| {
        let ns = u32::try_from(row.info.longest_turn_ns).unwrap_or(u32::MAX);
        if ns == 0 { "-".to_owned() } else { micros(f64::from(ns) / 1e3) }
    };
    let columns = [
        right("WORKER", 6, |row: &WorkerRow<'_>| row.info.worker.to_string()),
        right("CPU", 3, |row: &WorkerRow<'_>| or_dash(row.info.cpu)),
        right("BUSY", 5, |row: &WorkerRow<'_>| {
            or_dash(row.busy.map(|share| format!("{share:.0} %")))
        }),
        right("PORTS", 5, |row: &WorkerRow<'_>| row.info.ports.to_string()),
        right("KICKS/s", 7, |row: &WorkerRow<'_>| short(row.kicks)).from(48),
        right("BATCH", 5, |row: &WorkerRow<'_>| {
            or_dash(row.batch.map(|slots| format!("{slots:.0}")))
        })
        .from(60),
        right("LONGEST TURN", 12, longest).from(60),
        right("STALLS", 6, |row: &WorkerRow<'_>| {
            Span::styled(row.info.stalls.to_string(), alarm_if(row.info.stalls > 0))
        }),
        rest("", |row: &WorkerRow<'_>, width| {
            let filled =
                row.busy.unwrap_or(0.0) / 100.0 * f64::from(u16::try_from(width).unwrap_or(0));
            Span::styled(bar(filled), GRAPH)
        }),
    ];
    grid::draw(frame, area, &columns, &state.pair().workers(), cursor);
}

/// A bar so many characters long.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "columns")]
fn bar(length: f64) -> String {
    "█".repeat(length.round() as usize)
}

//! One port.

use protocol::users;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use terminal::table::short;
use terminal::units::{bit_rate, count, packet_rate};

use super::grid::{self, put, rest, right};
use super::{ALARM, BOLD, DIM, curve, lists};
use crate::cli::nf;
use crate::cli::rates::Rate;
use crate::cli::top::rows::PortRow;
use crate::cli::top::sample::Known;
use crate::cli::top::state::State;
use crate::cli::top::trail::{Point, Trail};
use protocol::Counter;

/// Rows for a reason.
const BLOCK: u16 = 3;

/// Draws the port that the state names.
pub fn draw(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(row) = state.single() else {
        let name = state.port.as_ref().map(ToString::to_string).unwrap_or_default();
        let line = Line::styled(format!("no port {name} now; it is shown when it is back"), ALARM);
        return put(frame, area, 0, &line);
    };
    let trail = state.trail(&row.stats.port);
    let said = about(&row, state);
    let told = u16::try_from(said.len()).unwrap_or(u16::MAX).min(area.height / 3);
    let curves = if area.height >= 30 { 5 } else { 2 };
    let drops = u16::try_from(row.drops.len()).unwrap_or(u16::MAX).saturating_mul(BLOCK);
    let heights = [told, curves, curves, curves].map(Constraint::Length).into_iter();
    let heights = heights.chain([Constraint::Length(drops.min(4 * BLOCK)), Constraint::Fill(1)]);
    let areas = Layout::vertical(heights).split(area);
    said.iter().zip(0..).for_each(|(line, y)| put(frame, areas[0], y, line));
    graph(frame, areas[1], &way("TX", row.tx, row.stats.tx), &trail, Point::tx);
    graph(frame, areas[2], &way("RX", row.rx, row.stats.rx), &trail, Point::rx);
    let dropped: u64 = row.stats.drops.values().sum();
    let line = format!("DROPS {}/s, {} since start", short(row.drops_per_s()), count(dropped));
    graph(frame, areas[3], &line, &trail, Point::drops);
    drops_of(frame, areas[4], &row);
    rings(frame, areas[5], &row);
}

fn way(name: &str, rate: Rate, all: Counter) -> String {
    let (frames, bits) = (packet_rate(rate.frames), bit_rate(rate.bits));
    format!("{name} {frames}, {bits}, {} frames since start", count(all.frames))
}

/// A line, and below it bars of the past.
fn graph(frame: &mut Frame<'_>, area: Rect, line: &str, trail: &Trail, of: fn(Point) -> f32) {
    put(frame, area, 0, &Line::styled(line.to_owned(), BOLD));
    let bars = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if area.height > 1 {
        curve(frame, bars, trail, of);
    }
}

/// What is known of it.
fn about(row: &PortRow<'_>, state: &State) -> Vec<Line<'static>> {
    let name = &row.stats.port;
    let mut lines = vec![Line::styled(name.to_string(), BOLD)];
    lines.extend(row.known.map(described));
    let fill = row
        .stats
        .rx_fill
        .map(|fill| format!("receive rings: {} of {} slots filled, ", fill.slots, fill.capacity));
    let (fill, wakes) = (fill.unwrap_or_default(), short(row.wakes));
    lines.push(Line::from(format!("{fill}woken {wakes}/s, {} resyncs", row.stats.resyncs)));
    lines.extend(row.known.into_iter().flat_map(troubles));
    let functions = state.pair().functions().into_iter().filter(|busy| busy.info.port == *name);
    lines.extend(functions.map(|busy| {
        let info = &busy.info;
        let cpu = busy.cpu_percent.map(|share| format!(", CPU {share:.0} %")).unwrap_or_default();
        Line::from(format!(
            "function {}@{}: {}{cpu}, {} frames wait, IN {}/s, OUT {}/s",
            info.service,
            info.instance,
            nf::state(info),
            info.waiting,
            short(busy.frames_in_per_s),
            short(busy.frames_out_per_s)
        ))
    }));
    lines
}

fn described(known: &Known) -> Line<'static> {
    let Known { info, program } = known;
    let mut text = info.kind.name().to_owned();
    if let Some((pid, name)) = program {
        text += &format!(", program {name} ({pid})");
    }
    if let Some(client) = &info.client {
        text += &format!(" of {}", users::user_name(client.uid));
    }
    if let Some(worker) = info.worker {
        text += &format!(", worker {worker}");
    }
    if let Some(vlan) = &info.settings.vlan {
        text += &format!(", VLAN {vlan}");
    }
    Line::from(text)
}

/// Why it may carry nothing.
fn troubles(known: &Known) -> Vec<Line<'static>> {
    let info = &known.info;
    let disabled = info.disabled.as_ref().map(|cause| {
        format!("disabled by {cause}; after removing the cause: uvala port enable {}", info.port)
    });
    let link = info.host.as_ref().map(|host| format!("interface {}: {}", host.ifname, host.state));
    let trouble = info.host.as_ref().and_then(|host| host.trouble.clone());
    let machine = info.machine.as_ref().map(|machine| format!("machine: {}", machine.state));
    let alarms = disabled.into_iter().chain(trouble).map(|text| Line::styled(text, ALARM));
    link.into_iter().chain(machine).map(Line::from).chain(alarms).collect()
}

/// The reasons for its drops, with what they mean and what to do.
fn drops_of(frame: &mut Frame<'_>, area: Rect, row: &PortRow<'_>) {
    let blocks = area.y..area.bottom();
    for (&(reason, per_s), y) in row.drops.iter().zip(blocks.step_by(usize::from(BLOCK))) {
        let head = format!("{reason} {}/s, {}", short(per_s), count(row.stats.drops[reason]));
        let block = Rect { y, height: BLOCK, ..area };
        lists::explain(frame, block.intersection(area), &head, reason);
    }
}

/// The rings of a port that has several.
fn rings(frame: &mut Frame<'_>, area: Rect, row: &PortRow<'_>) {
    let rings: Vec<_> = row.rings().into_iter().enumerate().collect();
    if rings.len() < 2 || area.height < 2 {
        if row.stats.drops.is_empty() {
            put(frame, area, 0, &Line::styled("no frame was dropped here", DIM));
        }
        return;
    }
    type Ring = (usize, [Rate; 2]);
    let columns = [
        right("RING", 4, |row: &Ring| row.0.to_string()),
        right("TX pps", 6, |(_, [tx, _]): &Ring| short(tx.frames)),
        right("TX bit/s", 8, |(_, [tx, _]): &Ring| short(tx.bits)),
        right("RX pps", 6, |(_, [_, rx]): &Ring| short(rx.frames)),
        right("RX bit/s", 8, |(_, [_, rx]): &Ring| short(rx.bits)),
        rest("", |_: &Ring, _| String::new()),
    ];
    grid::draw(frame, area, &columns, &rings, None);
}

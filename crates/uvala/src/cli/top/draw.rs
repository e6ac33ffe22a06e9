//! Draws the state onto a terminal of any size.
//!
//! ```text
//!  where the samples come from, when they were taken
//!  totals
//!  rates of the past               one row; four on a high terminal
//!  busy shares of workers
//!  lists, and what they are sorted by
//!  the list, or one port           on a large terminal, other lists below the ports
//!  keys
//! ```
//!
//! Colours are of the terminal's own sixteen, so that they suit dark and light ones; nothing is
//! said by colour alone.

mod grid;
mod lists;
mod port;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Sparkline};
use terminal::table::short;
use terminal::units::{bit_rate, packet_rate};

use super::rows::PortRow;
use super::state::{Link, Sort, State, Tab};
use super::trail::{Point, Trail};
use crate::cli::rates::Rate;
use crate::pcap::decode::time_of_day;
use grid::put;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const GRAPH: Style = Style::new().fg(Color::Green);

/// Heights and widths from which there is room for more.
const HIGH: u16 = 40;
const WIDE: u16 = 140;

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    let graph = if area.height >= HIGH { 4 } else { 1 };
    let heights = [1, 1, graph, 1, 1].map(Constraint::Length);
    let heights = heights.into_iter().chain([Constraint::Min(0), Constraint::Length(1)]);
    let rows = Layout::vertical(heights).split(area);
    let ports = state.ports();
    put(frame, rows[0], 0, &title(state, &ports));
    put(frame, rows[1], 0, &totals(state));
    curve(frame, rows[2], &state.totals, Point::total);
    put(frame, rows[3], 0, &workers(state));
    put(frame, rows[4], 0, &tabs(state));
    body(frame, rows[5], state, &ports);
    put(frame, rows[6], 0, &keys(state));
    if state.shows_help {
        help(frame, area);
    }
}

fn title(state: &State, ports: &[PortRow<'_>]) -> Line<'static> {
    let name = Span::styled("uvala top  ", BOLD);
    let told = match state.link() {
        Link::Silent => {
            return Line::from_iter([
                name,
                Span::styled("NO ANSWER from the daemon yet; see: uvala doctor", ALARM),
            ]);
        }
        Link::Down(why) => {
            return Line::from_iter([
                name,
                Span::styled("NO DAEMON, waiting for it: ", ALARM),
                Span::raw(why.clone()),
            ]);
        }
        Link::Missing(switch) => {
            return Line::from_iter([
                name,
                Span::styled(format!("NO SWITCH {switch}, waiting for it"), ALARM),
            ]);
        }
        Link::Up => time_of_day(state.time_ns()),
    };
    let busy = ports.iter().filter(|row| !row.is_idle()).count();
    let time = told.split('.').next().unwrap_or_default();
    let all = state.pair().now.stats.len();
    let text = format!("{time} UTC   {all} ports, {} shown, {busy} busy", ports.len());
    let paused = state.is_paused.then(|| Span::styled("   PAUSED", ALARM));
    Line::from_iter([name, Span::raw(text)].into_iter().chain(paused))
}

/// Rates of all ports together.
fn totals(state: &State) -> Line<'static> {
    if !state.has_rates() {
        return Line::styled("the first rates come with the next sample", DIM);
    }
    let all = state.pair().ports();
    let sum = |rate: fn(&PortRow<'_>) -> Rate| {
        all.iter().map(rate).fold(Rate::default(), |sum, rate| sum + rate)
    };
    let (tx, rx) = (sum(|row| row.tx), sum(|row| row.rx));
    let drops = all.iter().fold(0.0, |sum, row| sum + row.drops_per_s());
    let way = |name: &str, rate: Rate| {
        let (frames, bits) = (packet_rate(rate.frames), bit_rate(rate.bits));
        format!("{name} {frames:>9} {bits:>11}   ")
    };
    let drops = Span::styled(format!("DROPS {}/s", short(drops)), alarm_if(drops > 0.0));
    Line::from_iter([Span::raw(way("TX", tx)), Span::raw(way("RX", rx)), drops])
}

/// The share of a core that each worker is busy with.
fn workers(state: &State) -> Line<'static> {
    let share = |busy: Option<f64>| busy.map_or("-".to_owned(), |share| format!("{share:.0} %"));
    let rows = state.pair().workers();
    let all = rows.iter().map(|row| format!("{}: {}", row.info.worker, share(row.busy)));
    Line::from(format!("workers  {}", all.collect::<Vec<_>>().join("   ")))
}

fn tabs(state: &State) -> Line<'static> {
    let tab = |(number, tab): (usize, Tab)| {
        let is_shown = tab == state.tab && state.port.is_none();
        let style = if is_shown { BOLD.add_modifier(Modifier::REVERSED) } else { Style::new() };
        [Span::styled(format!(" {number} {} ", tab.title()), style), Span::raw(" ")]
    };
    let choices = &state.choices;
    // Names go up where figures go down.
    let is_ascending = choices.reversed != (choices.sort == Sort::Port);
    let order = if is_ascending { "ascending" } else { "descending" };
    let mut told = String::new();
    // First, because a narrow screen cuts the rest.
    if !choices.filter.is_empty() {
        told = format!("filter: {}; ", choices.filter);
    }
    told += &format!("by {}, {order}", choices.sort.head());
    if choices.hide_idle {
        told += "; idle hidden";
    }
    let all = (1..).zip(Tab::ALL).flat_map(tab);
    Line::from_iter(all.chain([Span::styled(told, DIM)]))
}

fn body(frame: &mut Frame<'_>, area: Rect, state: &State, ports: &[PortRow<'_>]) {
    if state.port.is_some() {
        return port::draw(frame, area, state);
    }
    let cursor = Some(state.cursor());
    match state.tab {
        Tab::Ports if area.height >= HIGH - 10 && area.width >= WIDE => {
            let [above, below] =
                Layout::vertical([Constraint::Fill(1), Constraint::Length(16)]).areas(area);
            lists::ports(frame, above, state, ports, cursor);
            below_ports(frame, below, state, ports);
        }
        Tab::Ports => lists::ports(frame, area, state, ports, cursor),
        Tab::Drops => lists::drops(frame, area, state, ports, cursor),
        Tab::Functions => lists::functions(frame, area, state, cursor),
        Tab::Workers => lists::workers(frame, area, state, cursor),
    }
}

/// The other lists, where there is room for them.
fn below_ports(frame: &mut Frame<'_>, area: Rect, state: &State, ports: &[PortRow<'_>]) {
    let framed = |frame: &mut Frame<'_>, area: Rect, title: &'static str| {
        let block = Block::bordered().title(title);
        let inside = block.inner(area);
        frame.render_widget(block, area);
        inside
    };
    let has_functions = !state.pair().now.functions.is_empty();
    let shares = [4, if has_functions { 4 } else { 0 }, 3].map(Constraint::Fill);
    let [drops, functions, workers] = Layout::horizontal(shares).areas(area);
    let inside = framed(frame, drops, " Drops ");
    lists::drops(frame, inside, state, ports, None);
    if has_functions {
        let inside = framed(frame, functions, " Functions ");
        lists::functions(frame, inside, state, None);
    }
    let inside = framed(frame, workers, " Workers ");
    lists::workers(frame, inside, state, None);
}

/// Bars of the past, the newest at the right.
fn curve(frame: &mut Frame<'_>, area: Rect, trail: &Trail, of: fn(Point) -> f32) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "frames")]
    let values = trail.last(area.width.into(), of).into_iter().map(|value| value.ceil() as u64);
    frame.render_widget(Sparkline::default().data(values.collect::<Vec<_>>()).style(GRAPH), area);
}

fn keys(state: &State) -> Line<'static> {
    match (state.is_typing, &state.port, state.tab) {
        (true, ..) => Line::from(format!("/{}_   Enter keep   Esc clear", state.choices.filter)),
        (_, Some(_), _) => Line::from("Esc back   Up Down other port   p pause   ? help   q quit"),
        (_, None, Tab::Ports) => Line::from(
            "Enter port  / filter  < > sort  r reverse  i idle  Tab lists  ? help  q quit",
        ),
        (_, None, _) => Line::from("Tab 1-4 lists   Up Down move   Enter port   ? help   q quit"),
    }
}

/// What keys do.
const HELP: [&str; 18] = [
    "Up Down j k     move the cursor; PgUp PgDn Home End, too",
    "Enter Right     show the port alone",
    "Esc Left        back; in a list, show all ports again",
    "Tab 1 2 3 4     ports, drops, functions, workers",
    "/               filter by name, kind or program; all",
    "                words must be in it",
    "< >  s S        sort by the next column",
    "r               reverse the order",
    "i               hide ports that are idle",
    "p               pause, or go on",
    "Space Ctrl-L    take a sample now",
    "Ctrl-Z          stop; fg goes on",
    "q Ctrl-C        quit",
    "",
    "TX is what a port's program sends, RX what it receives.",
    "A drop counts at the sender, or at the port without room.",
    "A worker's share is processor time; one that polls",
    "(wait = spin) is always busy.",
];

fn help(frame: &mut Frame<'_>, area: Rect) {
    let size = |most: u16, wanted: u16| wanted.min(most);
    let (width, height) = (size(area.width, 62), size(area.height, 20));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    let lines: Vec<_> = HELP.into_iter().map(Line::from).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" Keys ")), area);
}

fn alarm_if(is_alarm: bool) -> Style {
    if is_alarm { ALARM } else { Style::new() }
}

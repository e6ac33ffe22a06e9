//! The state of `uvala top`: samples and keys go in, rows come out.
//!
//! ```text
//!  sample ──► [before, now] ──► rows ──► filter, idle, sort ──► draw
//!  key    ──► choices, cursor ─────────────────┘
//! ```
//!
//! State draws nothing and calls no daemon. Rates are differences of the last two samples. When the
//! daemon goes away the rows stay; the first sample of another daemon replaces both, because it
//! counts from zero. While it is paused the rows stay, and samples go to the trails only.
//!
//! The cursor is on the first row until it is moved. From then on it follows what it is on, by its
//! name, wherever sorting puts that.

use std::collections::HashMap;

use protocol::name::{PortName, SwitchName};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::rows::{Pair, PortRow, reasons};
use super::sample::Sample;
use super::trail::{Point, Trail};

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Name of the port
    Port,
    /// Frames sent in a second
    TxPps,
    /// Bits sent in a second
    TxBits,
    /// Frames received in a second
    RxPps,
    /// Bits received in a second
    RxBits,
    /// Frames dropped in a second
    Drops,
    /// Frames sent and received in a second
    Total,
}

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    Ports,
    Drops,
    Functions,
    Workers,
}

/// What the user has chosen.
#[derive(Clone, Debug)]
pub struct Choices {
    pub sort: Sort,
    pub reversed: bool,
    pub hide_idle: bool,
    pub filter: String,
}

/// The daemon, as far as this program knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// The daemon takes longer for an answer than one that is well.
    Silent,
    /// The daemon does not answer, and why.
    Down(String),
    /// The switch that is shown is not there.
    Missing(SwitchName),
}

/// What the program is to do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Draw,
    /// Take a sample at once.
    Sample,
    /// Stop as a job of the shell.
    Suspend,
    Quit,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct State {
    pub choices: Choices,
    pub tab: Tab,
    /// The port that is shown alone.
    pub port: Option<PortName>,
    /// The filter is being typed.
    pub is_typing: bool,
    pub shows_help: bool,
    pub is_paused: bool,
    link: Link,
    pub totals: Trail,
    trails: HashMap<PortName, Trail>,
    before: Option<Sample>,
    now: Sample,
    /// The newest sample, where rows are those of an older one.
    newest: Option<Sample>,
    /// What the cursor follows, and the row that it was on.
    cursor: (Option<String>, usize),
}

impl Sort {
    const ALL: [Self; 7] = [
        Self::Port,
        Self::TxPps,
        Self::TxBits,
        Self::RxPps,
        Self::RxBits,
        Self::Drops,
        Self::Total,
    ];

    /// The name of the column.
    pub fn head(self) -> &'static str {
        match self {
            Self::Port => "PORT",
            Self::TxPps => "TX pps",
            Self::TxBits => "TX bit/s",
            Self::RxPps => "RX pps",
            Self::RxBits => "RX bit/s",
            Self::Drops => "DROPS/s",
            Self::Total => "TX+RX pps",
        }
    }

    /// The column so many places to the right, or to the left.
    fn beside(self, places: usize) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + places) % Self::ALL.len()]
    }

    fn value(self, row: &PortRow<'_>) -> f64 {
        match self {
            Self::Port => 0.0,
            Self::TxPps => row.tx.frames,
            Self::TxBits => row.tx.bits,
            Self::RxPps => row.rx.frames,
            Self::RxBits => row.rx.bits,
            Self::Drops => row.drops_per_s(),
            Self::Total => row.total(),
        }
    }

    /// Sorts the largest first, and what is alike by name.
    fn sort(self, rows: &mut [PortRow<'_>]) {
        rows.sort_by(|a, b| {
            let by_value = self.value(b).total_cmp(&self.value(a));
            by_value.then_with(|| a.stats.port.cmp(&b.stats.port))
        });
    }
}

impl Tab {
    /// All lists in order.
    pub const ALL: [Self; 4] = [Self::Ports, Self::Drops, Self::Functions, Self::Workers];

    /// The name.
    pub fn title(self) -> &'static str {
        match self {
            Self::Ports => "Ports",
            Self::Drops => "Drops",
            Self::Functions => "Functions",
            Self::Workers => "Workers",
        }
    }

    fn beside(self, places: usize) -> Self {
        let at = Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0);
        Self::ALL[(at + places) % Self::ALL.len()]
    }
}

impl State {
    /// A state with a first sample.
    pub fn new(choices: Choices, port: Option<PortName>, first: Sample) -> Self {
        Self {
            choices,
            tab: Tab::Ports,
            cursor: (port.as_ref().map(PortName::to_string), 0),
            port,
            is_typing: false,
            shows_help: false,
            is_paused: false,
            link: Link::Up,
            totals: Trail::default(),
            trails: HashMap::new(),
            before: None,
            now: first,
            newest: None,
        }
    }

    /// Takes a sample in.
    pub fn take(&mut self, sample: Sample) {
        self.link = Link::Up;
        let before = match self.is_paused {
            true => self.newest.take().unwrap_or_else(|| self.now.clone()),
            false => std::mem::take(&mut self.now),
        };
        self.note(Pair { before: Some(&before), now: &sample });
        match self.is_paused {
            true => self.newest = Some(sample),
            false => (self.before, self.now) = (Some(before), sample),
        }
    }

    /// Begins anew: this is the first sample of another daemon.
    pub fn begin(&mut self, sample: Sample) {
        self.link = Link::Up;
        (self.before, self.newest, self.now) = (None, None, sample);
    }

    /// Shows that no samples come, with the rows of the last one.
    pub fn lose(&mut self, link: Link) {
        self.link = link;
    }

    /// Adds the rates to the trails. Those of ports that went are forgotten.
    fn note(&mut self, pair: Pair<'_>) {
        let (mut total, mut old) = (Point::default(), std::mem::take(&mut self.trails));
        for row in pair.ports() {
            let name = &row.stats.port;
            let (mut trail, point) = (old.remove(name).unwrap_or_default(), Point::from(&row));
            trail.push(point);
            total += point;
            self.trails.insert(name.clone(), trail);
        }
        self.totals.push(total);
    }

    /// Where the samples come from.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The samples that are shown.
    pub fn pair(&self) -> Pair<'_> {
        Pair { before: self.before.as_ref(), now: &self.now }
    }

    /// Whether there are rates.
    pub fn has_rates(&self) -> bool {
        self.before.is_some()
    }

    /// When the sample was taken, in nanoseconds since 1970.
    pub fn time_ns(&self) -> u64 {
        self.now.time_ns
    }

    /// What a port has done in the past.
    pub fn trail(&self, port: &PortName) -> Trail {
        self.trails.get(port).cloned().unwrap_or_default()
    }

    /// The ports that the filter lets through, sorted.
    pub fn ports(&self) -> Vec<PortRow<'_>> {
        let Choices { sort, reversed, hide_idle, filter } = &self.choices;
        let mut rows = self.pair().ports();
        // Nothing is known to be idle before there are rates.
        let hides = *hide_idle && self.has_rates();
        rows.retain(|row| row.has(filter) && !(hides && row.is_idle()));
        sort.sort(&mut rows);
        if *reversed {
            rows.reverse();
        }
        rows
    }

    /// The port that is shown alone, if it is there.
    pub fn single(&self) -> Option<PortRow<'_>> {
        let name = self.port.as_ref()?;
        self.pair().ports().into_iter().find(|row| row.stats.port == *name)
    }

    /// What identifies each row of the list, and the port that Enter shows.
    fn entries(&self) -> Vec<(String, Option<PortName>)> {
        let of_port = |name: &PortName| (name.to_string(), Some(name.clone()));
        match self.tab {
            Tab::Ports => self.ports().iter().map(|row| of_port(&row.stats.port)).collect(),
            Tab::Drops => {
                let (ports, named) = (self.ports(), |name: &PortName| Some(name.clone()));
                let rows = reasons(&ports).into_iter();
                rows.map(|row| (row.reason.to_owned(), named(row.port))).collect()
            }
            Tab::Functions => {
                self.pair().functions().iter().map(|row| of_port(&row.info.port)).collect()
            }
            Tab::Workers => {
                self.now.workers.iter().map(|info| (info.worker.to_string(), None)).collect()
            }
        }
    }

    /// The row that the cursor is on.
    pub fn cursor(&self) -> usize {
        self.place(&self.entries())
    }

    fn place(&self, entries: &[(String, Option<PortName>)]) -> usize {
        let (name, row) = &self.cursor;
        let Some(name) = name else { return 0 };
        let there = entries.iter().position(|(entry, _)| entry == name);
        there.unwrap_or((*row).min(entries.len().saturating_sub(1)))
    }

    /// Moves the cursor by so many rows.
    fn step(&mut self, rows: isize) {
        let entries = self.entries();
        let to = self.place(&entries).saturating_add_signed(rows);
        self.put_cursor(&entries, to);
    }

    fn put_cursor(&mut self, entries: &[(String, Option<PortName>)], to: usize) {
        let to = to.min(entries.len().saturating_sub(1));
        self.cursor = (entries.get(to).map(|(name, _)| name.clone()), to);
    }

    /// Shows the port of the row alone.
    fn enter(&mut self) {
        let entries = self.entries();
        let at = self.place(&entries);
        if let Some((_, Some(port))) = entries.get(at) {
            // From here on the cursor goes from port to port.
            (self.cursor, self.tab) = ((Some(port.to_string()), at), Tab::Ports);
            self.port = Some(port.clone());
        }
    }

    fn show(&mut self, tab: Tab) {
        (self.tab, self.port, self.cursor) = (tab, None, (None, 0));
    }

    /// Pauses, or goes on with the newest sample.
    fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if let Some(newest) = self.newest.take() {
            self.before = Some(std::mem::replace(&mut self.now, newest));
        }
    }

    /// Takes a key in.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            (KeyCode::Char('c'), true) => return Action::Quit,
            (KeyCode::Char('z'), true) => return Action::Suspend,
            (KeyCode::Char('l'), true) => return Action::Sample,
            _ if self.shows_help => self.shows_help = false,
            _ if self.is_typing => self.type_key(key),
            (KeyCode::Char('q'), false) => return Action::Quit,
            (KeyCode::Char(' '), false) => return Action::Sample,
            (KeyCode::Char(_), _) if has_modifier(key) => {}
            (code, _) => self.choose(code),
        }
        Action::Draw
    }

    fn type_key(&mut self, key: KeyEvent) {
        let filter = &mut self.choices.filter;
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Char('u') if has_modifier(key) => filter.clear(),
            // What Backspace is on some terminals.
            KeyCode::Char('h') if has_modifier(key) => {
                filter.pop();
            }
            KeyCode::Char(letter) if !letter.is_control() && !has_modifier(key) => {
                filter.push(letter);
            }
            _ => {}
        }
    }

    fn choose(&mut self, code: KeyCode) {
        let (sorts, tabs) = (Sort::ALL.len(), Tab::ALL.len());
        let choices = &mut self.choices;
        match code {
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.shows_help = true,
            KeyCode::Char('/') => (self.is_typing, self.port) = (true, None),
            KeyCode::Char('i') => choices.hide_idle = !choices.hide_idle,
            KeyCode::Char('r' | 'R') => choices.reversed = !choices.reversed,
            KeyCode::Char('>' | 's') => choices.sort = choices.sort.beside(1),
            KeyCode::Char('<' | 'S') => choices.sort = choices.sort.beside(sorts - 1),
            KeyCode::Char('p') => self.pause(),
            KeyCode::Char(digit @ '1'..='4') => {
                let at = usize::from(u8::try_from(digit).unwrap_or(b'1') - b'1');
                self.show(Tab::ALL[at]);
            }
            KeyCode::Tab => self.show(self.tab.beside(1)),
            KeyCode::BackTab => self.show(self.tab.beside(tabs - 1)),
            KeyCode::Esc if self.port.is_none() => choices.filter.clear(),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => self.port = None,
            KeyCode::Enter | KeyCode::Right if self.port.is_none() => self.enter(),
            _ => self.move_cursor(code),
        }
    }

    /// Moves the cursor; where one port is shown, to the next port.
    fn move_cursor(&mut self, code: KeyCode) {
        const PAGE: isize = 10;
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::PageUp => self.step(-PAGE),
            KeyCode::PageDown => self.step(PAGE),
            KeyCode::Home | KeyCode::Char('g') => self.cursor = (None, 0),
            KeyCode::End | KeyCode::Char('G') => self.step(isize::MAX),
            _ => return,
        }
        if self.port.is_some() {
            self.enter();
        }
    }
}

/// Whether a letter is more than itself: with Control or Alt.
fn has_modifier(key: KeyEvent) -> bool {
    key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
}

//! The process: two sides that come and go, and what is read from one and done on the other.
//!
//! ```text
//!             events                    WatchEvent
//!   switch ───────────► poll, one thread ◄─────────── GoBGP
//!     ▲  read whole ──►  plan::Plan      ◄── read whole  ▲
//!     └───── do ────────  plan::Todo  ──────── do ───────┘
//! ```
//!
//! A side that is lost is tried again, after a time that doubles up to [`RETRY_MAX_MS`]. A port has
//! one such process: one that is restarted waits for the end of the one before it. A side
//! that says that something has changed is read whole, but not again before [`GAP_MS`] have passed,
//! and four times what reading took: a peer that changes its routes all the time costs a fifth of a
//! core at most. Each side is read every [`RESYNC_MS`] even if it says nothing. A port that listens
//! to IP addresses has no events for these: it is looked at every [`LOOK_MS`].
//!
//! Each network of the port has a plan of its own. One that comes or goes leaves the others' plans,
//! and their routes, as they are.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use client::control::ControlError;
use packet::MacAddr;
use protocol::name::PortName;
use protocol::{EXTERN_NEIGH_MAX, EXTERN_REMOTES_MAX, ErrorCode, REMOTES_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use terminal::say;

use crate::fabric::{Fabric, Network};
use crate::plan::{Limits, Plan, Refused, Todo, admit, share};
use crate::session::{BgpSettings, ROUTES_MAX, Session, Table};

/// Time before a side that is lost is tried again, at first and at last.
const RETRY_MS: u64 = 100;
const RETRY_MAX_MS: u64 = 5_000;
/// How long nothing is said of a process that has the port already, and may be ending.
const PREDECESSOR_MS: u64 = 5_000;
/// The least time between two readings of a side.
const GAP_MS: u64 = 100;
/// From the first reading to the second: GoBGP does not say when it begins to tell of changes.
const AGAIN_MS: u64 = 1_000;
/// The most, while it is there.
const RESYNC_MS: u64 = 30_000;
/// Between two looks at a port that listens to IP addresses.
const LOOK_MS: u64 = 1_000;
/// Most stations of this host that are announced.
const ANNOUNCED_MAX: usize = 65_536;
/// IP addresses for each station of [`Settings::stations`], all together.
const ADDRESSES_FOR_STATION: usize = 4;
/// How long messages of GoBGP are read at once; all of them say only that something has changed.
const HEAR_MS: u64 = 100;

/// What the operator wants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The port, of kind vxlan.
    pub port: PortName,
    /// Directory of the daemon's socket.
    pub dir: Option<PathBuf>,
    /// What is wanted of BGP.
    pub bgp: BgpSettings,
    /// Most stations of other hosts.
    pub stations: usize,
    /// How long a side that is lost counts.
    pub hold_ms: u64,
}

/// When a side is tried or read.
#[derive(Debug)]
struct Timing {
    name: &'static str,
    next: u64,
    delay: u64,
    /// When it was had last; one that is lost at once is not tried sooner for that.
    began: u64,
    is_dirty: bool,
    /// The next reading is the first.
    is_first: bool,
    /// The side could not be had, which was said.
    is_lost: bool,
    /// Since when another process has the side.
    held_since: Option<u64>,
}

impl Timing {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            next: 0,
            delay: RETRY_MS,
            began: 0,
            is_dirty: false,
            is_first: true,
            is_lost: false,
            held_since: None,
        }
    }

    fn fail(&mut self, now: u64, why: impl Display) {
        if !self.is_lost {
            remark(format_args!("{}: {why}; it is tried again", self.name));
        }
        if now > self.began + 2 * RETRY_MAX_MS {
            self.delay = RETRY_MS;
        }
        (self.is_lost, self.next) = (true, now + self.delay);
        self.delay = (2 * self.delay).min(RETRY_MAX_MS);
    }

    /// Another process has the side. If it ends soon, as one that is restarted does, that is no
    /// failure.
    fn wait_for_end(&mut self, now: u64, why: impl Display) {
        if now < *self.held_since.get_or_insert(now) + PREDECESSOR_MS {
            self.next = now + RETRY_MS;
        } else {
            self.fail(now, why);
        }
    }

    fn begin(&mut self, now: u64) {
        self.held_since = None;
        if self.is_lost {
            remark(format_args!("{}: connected", self.name));
        }
        (self.next, self.began) = (now, now);
        (self.is_lost, self.is_dirty, self.is_first) = (false, true, true);
    }

    /// Whether it is to be read now.
    fn is_due(&self, now: u64) -> bool {
        now >= self.next && (self.is_dirty || now >= self.next + RESYNC_MS)
    }

    fn was_read(&mut self, from: u64, to: u64) {
        self.is_dirty = std::mem::take(&mut self.is_first);
        let gap = if self.is_dirty { AGAIN_MS } else { GAP_MS };
        self.next = to + gap.max(4 * (to - from));
    }

    /// When it is due at last.
    fn end(&self, is_there: bool) -> u64 {
        if self.is_dirty || !is_there { self.next } else { self.next + RESYNC_MS }
    }
}

/// The process.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    signals: OwnedFd,
    started: Instant,
    fabric: Option<Fabric>,
    fabric_timing: Timing,
    bgp: Option<Session>,
    bgp_timing: Timing,
    /// The networks of the port, each with what is known of it.
    known: Vec<(Network, Plan)>,
    /// What the networks share.
    limits: Limits,
    /// How many remotes the port may have of this process.
    room: usize,
    /// Stations of the switch were read since the process started.
    has_stations: bool,
    /// Something was read since the plan was asked.
    is_new: bool,
    sweep_at: Option<u64>,
    duplicates: BTreeSet<MacAddr>,
    refused: Refused,
    /// Routes of hosts for which the port had no room, at the last reading.
    unadmitted: usize,
    /// GoBGP had too many routes at the last reading, which was said.
    is_flooded: bool,
    /// What the port had of IP addresses when they were read, and when to look again.
    changes: Option<u64>,
    look_at: u64,
}

impl Agent {
    /// One that knows nothing. `signals` is readable when the process is to end.
    #[must_use]
    pub fn new(settings: Settings, signals: OwnedFd) -> Self {
        Self {
            settings,
            signals,
            started: Instant::now(),
            fabric: None,
            fabric_timing: Timing::new("uvala"),
            bgp: None,
            bgp_timing: Timing::new("GoBGP"),
            known: Vec::new(),
            limits: Limits::default(),
            room: 0,
            has_stations: false,
            is_new: false,
            sweep_at: None,
            duplicates: BTreeSet::new(),
            refused: Refused::default(),
            unadmitted: 0,
            is_flooded: false,
            changes: None,
            look_at: 0,
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).expect("584 million years")
    }

    /// Works until a signal comes.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.connect();
            self.work();
            if self.wait()? {
                return Ok(());
            }
        }
    }

    /// Takes back what this process has announced and set.
    pub fn leave(&mut self) {
        let mut known = std::mem::take(&mut self.known);
        if known.is_empty() {
            return;
        }
        self.withdraw(&mut known);
        let taken = self.fabric.as_ref().map(|fabric| {
            for (network, plan) in &known {
                fabric.change(network, &plan.farewell())?;
            }
            fabric.sweep()
        });
        match taken {
            Some(Ok(())) => {}
            Some(Err(error)) => remark(format_args!("uvala: {error}; remotes are left there")),
            None => remark("uvala: no connection; remotes are left there"),
        }
    }

    /// Withdraws the routes of this host in these networks, and ends the session with GoBGP.
    fn withdraw(&mut self, known: &mut [(Network, Plan)]) {
        let now = self.now();
        let bgp = match self.bgp.take() {
            Some(bgp) => Ok(bgp),
            None => Session::open(&self.settings.bgp, &networks(known)),
        };
        let withdrawn = bgp.and_then(|mut bgp| {
            let mut table = bgp.routes()?;
            for (network, plan) in known {
                let routes = table.take(network.vni);
                plan.see_routes(&routes.others, routes.own, now);
                bgp.change(network.vni, &plan.farewell())?;
            }
            Ok(())
        });
        if let Err(error) = withdrawn {
            remark(format_args!("GoBGP: {error}; routes of this host may be left there"));
        }
    }

    fn connect(&mut self) {
        let now = self.now();
        if self.fabric.is_none() && now >= self.fabric_timing.next {
            let opened = Fabric::open(self.settings.dir.as_deref(), &self.settings.port);
            let checked = opened.and_then(|fabric| {
                self.settings.bgp.check(fabric.networks())?;
                Ok(fabric)
            });
            match checked {
                Ok(fabric) => self.begin_fabric(fabric, now),
                Err(error) if is_held(&error) => {
                    self.fabric_timing.wait_for_end(now, format_args!("{error:#}"));
                }
                Err(error) => {
                    self.fabric_timing.held_since = None;
                    self.fabric_timing.fail(now, format_args!("{error:#}"));
                }
            }
        }
        if self.bgp.is_none() && !self.known.is_empty() && now >= self.bgp_timing.next {
            match Session::open(&self.settings.bgp, &networks(&self.known)) {
                Ok(bgp) => {
                    for line in bgp.lines() {
                        remark(format_args!("{}: {line}", self.settings.port));
                    }
                    self.bgp = Some(bgp);
                    self.bgp_timing.begin(now);
                }
                Err(error) => {
                    let address = self.settings.bgp.gobgp;
                    self.bgp_timing.fail(now, format_args!("{error} ({address})"));
                }
            }
        }
    }

    fn begin_fabric(&mut self, fabric: Fabric, now: u64) {
        let networks = fabric.networks();
        let is_gone = |(it, _): &mut (Network, Plan)| !networks.contains(it);
        let mut gone: Vec<_> = self.known.extract_if(.., is_gone).collect();
        if !gone.is_empty() {
            self.withdraw(&mut gone);
        }
        if self.known.len() < networks.len() {
            // For those that come, GoBGP is connected to anew, and heard after the switch.
            (self.bgp, self.has_stations) = (None, false);
        }
        if self.bgp.is_none() {
            // One that does not come back must not count for ever.
            self.known.iter_mut().for_each(|(_, plan)| plan.lose_bgp(now));
        }
        self.limits = limits(&self.settings, &fabric);
        self.room = fabric.room();
        for &network in networks {
            if !self.known.iter().any(|(it, _)| *it == network) {
                self.known.push((network, Plan::new(network.local, self.limits)));
            }
        }
        for (network, plan) in &mut self.known {
            plan.find_port(&fabric.found(network), now);
        }
        self.sweep_at = Some(now + self.settings.hold_ms);
        self.fabric = Some(fabric);
        self.fabric_timing.begin(now);
    }

    fn lose_fabric(&mut self, why: impl Display) {
        let now = self.now();
        self.fabric_timing.fail(now, why);
        self.drop_fabric(now);
    }

    /// What the port has of this process may be gone.
    fn reopen_fabric(&mut self) {
        let now = self.now();
        remark("uvala: the port has changed; it is read again");
        // A change is no failure: the time until the next try stays what it is.
        self.fabric_timing.next = now + RETRY_MS;
        self.drop_fabric(now);
    }

    fn drop_fabric(&mut self, now: u64) {
        self.fabric = None;
        self.known.iter_mut().for_each(|(_, plan)| plan.lose_switch(now));
        self.is_new = true;
    }

    fn lose_bgp(&mut self, why: impl Display) {
        let now = self.now();
        self.bgp = None;
        self.bgp_timing.fail(now, why);
        self.known.iter_mut().for_each(|(_, plan)| plan.lose_bgp(now));
    }

    /// Reads the sides that are due, and does what is to be done. All of that counts for the pause.
    fn work(&mut self) {
        let from = self.now();
        let (fabric, bgp) = (self.read_fabric(from), self.read_bgp(from));
        self.act();
        let to = self.now();
        if fabric && self.fabric.is_some() {
            self.fabric_timing.was_read(from, to);
        }
        if bgp && self.bgp.is_some() {
            self.bgp_timing.was_read(from, to);
        }
    }

    /// Reads the port and its switch, if that is due; returns whether it has.
    fn read_fabric(&mut self, now: u64) -> bool {
        self.look(now);
        let Some(fabric) = self.fabric.as_ref().filter(|_| self.fabric_timing.is_due(now)) else {
            return false;
        };
        match see_fabric(fabric, &mut self.known, self.limits) {
            Ok(changes) => self.changes = changes,
            Err(error) => {
                self.lose_fabric(format_args!("{error:#}"));
                return false;
            }
        }
        self.look_at = now + LOOK_MS;
        (self.has_stations, self.is_new) = (true, true);
        true
    }

    /// Whether the port has heard of other IP addresses.
    fn look(&mut self, now: u64) {
        let is_time = self.changes.is_some() && now >= self.look_at;
        let Some(fabric) = self.fabric.as_ref().filter(|_| is_time) else { return };
        self.look_at = now + LOOK_MS;
        match fabric.look() {
            Ok(shown) => self.fabric_timing.is_dirty |= shown.changes != self.changes,
            Err(error) => self.lose_fabric(format_args!("{error:#}")),
        }
    }

    /// Reads the routes, if that is due; returns whether it has.
    fn read_bgp(&mut self, now: u64) -> bool {
        if self.bgp.is_none() || !self.bgp_timing.is_due(now) {
            return false;
        }
        self.hear_bgp();
        let Some(bgp) = &mut self.bgp else { return false };
        match bgp.routes() {
            Ok(table) if !table.is_whole() => {
                if !std::mem::replace(&mut self.is_flooded, true) {
                    remark(format_args!(
                        "GoBGP has more than {ROUTES_MAX} routes of the network: what was known \
                         before stays as it was; find the host (gobgp global rib -a evpn)"
                    ));
                }
                true
            }
            Ok(table) => {
                self.see_routes(table, now);
                true
            }
            Err(error) => {
                self.lose_bgp(error);
                false
            }
        }
    }

    fn see_routes(&mut self, mut table: Table, now: u64) {
        let known = self.known.iter().flat_map(|(_, plan)| plan.remotes()).collect();
        self.unadmitted = admit(known, self.room, table.routes_mut());
        share(&mut self.known, self.limits, |network, plan| {
            let routes = table.take(network.vni);
            plan.see_routes(&routes.others, routes.own, now);
        });
        (self.is_new, self.is_flooded) = (true, false);
    }

    /// Does what is to be done.
    fn act(&mut self) {
        let now = self.now();
        if self.known.is_empty() {
            return;
        }
        let is_over = self.next_end().is_some_and(|end| end <= now);
        if std::mem::take(&mut self.is_new) || is_over {
            let todo: Vec<Todo> = self.known.iter_mut().map(|(_, plan)| plan.todo(now)).collect();
            self.change_port(&todo);
            self.change_bgp(&todo);
            self.say_what_is_odd();
        }
        if self.sweep_at.is_some_and(|at| at <= now)
            && let Some(fabric) = &self.fabric
        {
            self.sweep_at = None;
            if let Err(error) = fabric.sweep() {
                self.lose_fabric(error);
            }
        }
    }

    /// The next moment at which something is over.
    fn next_end(&self) -> Option<u64> {
        self.known.iter().filter_map(|(_, plan)| plan.next_end()).min()
    }

    /// Does what is to be done for the port in each network.
    fn change_port(&mut self, todo: &[Todo]) {
        let Some(fabric) = &self.fabric else { return };
        let each = self.known.iter_mut().zip(todo).filter(|(_, todo)| todo.is_for_port());
        for ((network, plan), todo) in each {
            if let Err(error) = fabric.change(network, todo) {
                return self.lose_fabric(error);
            }
            plan.did_port(todo);
        }
    }

    /// Not before the stations of this host are known, or the switch is gone for the hold time:
    /// what an earlier process has announced stays so long.
    fn change_bgp(&mut self, todo: &[Todo]) {
        let is_gone = self.known.iter().any(|(_, plan)| !plan.has_switch());
        let Some(bgp) = self.bgp.as_mut().filter(|_| self.has_stations || is_gone) else { return };
        let each = self.known.iter_mut().zip(todo).filter(|(_, todo)| todo.is_for_bgp());
        for ((network, plan), todo) in each {
            match bgp.change(network.vni, todo) {
                Ok(refusal) => {
                    plan.did_bgp(todo);
                    if let Some(why) = refusal {
                        remark(format_args!("GoBGP refuses a route: {why}"));
                    }
                }
                Err(error) => return self.lose_bgp(error),
            }
        }
    }

    fn say_what_is_odd(&mut self) {
        let plans = || self.known.iter().map(|(_, plan)| plan);
        let duplicates: BTreeSet<MacAddr> = plans().flat_map(Plan::duplicates).collect();
        let mut refused = Refused { remotes: self.unadmitted, stations: 0 };
        for Refused { remotes, stations } in plans().map(Plan::refused) {
            refused.remotes += remotes;
            refused.stations += stations;
        }
        for mac in duplicates.difference(&self.duplicates) {
            remark(format_args!(
                "{mac} moves between hosts again and again, and is left as it is for three \
                 minutes: do two stations have this address?"
            ));
        }
        self.duplicates = duplicates;
        let before = std::mem::replace(&mut self.refused, refused);
        let Refused { remotes, stations } = refused;
        if remotes > 0 && before.remotes == 0 {
            let port = &self.settings.port;
            remark(format_args!(
                "{remotes} remotes are beyond a limit, {REMOTES_MAX} of a port or \
                 {EXTERN_REMOTES_MAX} if each is counted for each VLAN: remove some of the \
                 operator's (uvala port set {port} --del-remote IP), or give VLANs to another port"
            ));
        }
        if stations > 0 && before.stations == 0 {
            remark(format_args!(
                "{stations} stations or IP addresses are beyond a limit: see --max-macs"
            ));
        }
    }

    /// Sleeps until there is something to do. `true`: the process is to end.
    fn wait(&mut self) -> io::Result<bool> {
        let now = self.now();
        let ends = [
            Some(self.fabric_timing.end(self.fabric.is_some())),
            (!self.known.is_empty()).then(|| self.bgp_timing.end(self.bgp.is_some())),
            self.next_end(),
            self.sweep_at.filter(|_| self.fabric.is_some()),
            Some(self.look_at).filter(|_| self.fabric.is_some() && self.changes.is_some()),
        ];
        let next = ends.into_iter().flatten().min().expect("the first").saturating_sub(now);
        let timeout = std::time::Duration::from_millis(next);
        let timeout = Timespec::try_from(timeout).expect("a minute at most");
        let (signals, none) = (self.signals.as_fd(), PollFlags::empty());
        let watched = |side: bool| if side { PollFlags::IN } else { none };
        let fabric = self.fabric.as_ref().map_or(signals, AsFd::as_fd);
        let bgp = self.bgp.as_ref().map_or(signals, AsFd::as_fd);
        let mut fds = [
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(fabric, watched(self.fabric.is_some())),
            // What is to be read anyway says no more.
            PollFd::from_borrowed_fd(bgp, watched(self.bgp.is_some() && !self.bgp_timing.is_dirty)),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [ends, has_news, has_events] = fds.map(|fd| !fd.revents().is_empty());
        if has_news && self.fabric.is_some() {
            self.hear_fabric();
        }
        if has_events && self.bgp.is_some() {
            self.hear_bgp();
        }
        Ok(ends)
    }

    fn hear_fabric(&mut self) {
        let Some(fabric) = &self.fabric else { return };
        match fabric.news() {
            Ok(news) if news.port => self.reopen_fabric(),
            Ok(news) => self.fabric_timing.is_dirty |= news.stations,
            Err(error) => self.lose_fabric(error),
        }
    }

    fn hear_bgp(&mut self) {
        let until = self.now() + HEAR_MS;
        while self.now() < until {
            let Some(bgp) = self.bgp.as_mut().filter(is_readable) else { return };
            match bgp.read_event() {
                Ok(has_changed) => self.bgp_timing.is_dirty |= has_changed,
                Err(error) => self.lose_bgp(error),
            }
        }
    }
}

fn networks(known: &[(Network, Plan)]) -> Vec<Network> {
    known.iter().map(|(network, _)| *network).collect()
}

/// Whether there is something to read.
fn is_readable(side: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(side, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// What the networks of a port may have together.
fn limits(settings: &Settings, fabric: &Fabric) -> Limits {
    let is_of_vlans = fabric.networks().iter().any(|it| it.is_of_vlan);
    Limits {
        remotes: if is_of_vlans { EXTERN_REMOTES_MAX } else { fabric.room() },
        stations: settings.stations,
        neighbours: EXTERN_NEIGH_MAX.min(settings.stations * ADDRESSES_FOR_STATION),
        announced: ANNOUNCED_MAX,
        hold_ms: settings.hold_ms,
    }
}

/// Reads the port and its switch whole; returns how often the port has heard of IP addresses.
fn see_fabric(
    fabric: &Fabric,
    known: &mut [(Network, Plan)],
    limits: Limits,
) -> anyhow::Result<Option<u64>> {
    let shown = fabric.look()?;
    if !known.iter().all(|(network, plan)| plan.has_remotes(&shown.remotes(network))) {
        bail!("the port does not have the remotes that it was given");
    }
    let mut stations = fabric.stations()?;
    let mut addresses = match shown.changes {
        None => None,
        Some(_) => Some(fabric.addresses()?),
    };
    share(known, limits, |network, plan| {
        let stations = stations.remove(&network.vlan).unwrap_or_default();
        plan.see_named(&stations.named);
        plan.see_stations(&stations.here);
        let addresses = addresses.as_mut().map(|it| it.remove(&network.vlan).unwrap_or_default());
        plan.see_neighbours(addresses.as_ref().map(|it| (&it.here[..], &it.answered[..])));
    });
    Ok(shown.changes)
}

/// Whether another process tells the port of stations.
fn is_held(error: &anyhow::Error) -> bool {
    let code = error.downcast_ref::<ControlError>().and_then(ControlError::code);
    code == Some(ErrorCode::InUse)
}

/// A line on stderr.
fn remark(line: impl Display) {
    say::remark(format_args!("uvala-evpn: {line}"));
}

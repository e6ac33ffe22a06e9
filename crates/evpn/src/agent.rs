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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use client::control::ControlError;
use packet::MacAddr;
use protocol::name::PortName;
use protocol::{EXTERN_NEIGH_MAX, ErrorCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use terminal::say;

use crate::bgp::{Distinguisher, Export, Import, Mobility, Route, Subject, Target, own};
use crate::fabric::{Fabric, Network};
use crate::gobgp::{Change, GoBgp};
use crate::grpc::CallError;
use crate::plan::{Announced, Limits, Plan, Todo};

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
/// Most routes of the network, whatever host announces them. If there are more, none is looked at.
const ROUTES_MAX: usize = 1 << 18;
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
    /// Address of GoBGP's gRPC interface.
    pub gobgp: SocketAddr,
    /// Route distinguisher; by default of the speaker and the VNI.
    pub distinguisher: Option<Distinguisher>,
    /// Route targets; by default of the VNI.
    pub targets: Vec<Target>,
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

/// A GoBGP, and what this host says and hears by it.
#[derive(Debug)]
struct Speaking {
    gobgp: GoBgp,
    export: Export,
    import: Import,
}

/// What GoBGP has: routes of other hosts, and of this one.
#[derive(Debug)]
struct Table {
    routes: Vec<Route>,
    announced: Announced,
    /// There are no more.
    is_whole: bool,
}

/// The process.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    signals: OwnedFd,
    started: Instant,
    fabric: Option<Fabric>,
    fabric_timing: Timing,
    bgp: Option<Speaking>,
    bgp_timing: Timing,
    known: Option<(Network, Plan)>,
    /// Stations of the switch were read since the process started.
    has_stations: bool,
    /// Something was read since the plan was asked.
    is_new: bool,
    sweep_at: Option<u64>,
    duplicates: BTreeSet<MacAddr>,
    refused: usize,
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
            known: None,
            has_stations: false,
            is_new: false,
            sweep_at: None,
            duplicates: BTreeSet::new(),
            refused: 0,
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
        let now = self.now();
        let Some((network, plan)) = &mut self.known else { return };
        let bgp = match self.bgp.take() {
            Some(bgp) => Ok(bgp),
            None => Speaking::open(&self.settings, *network),
        };
        let withdrawn = bgp.and_then(|mut bgp| {
            let Table { routes, announced, .. } = bgp.routes(*network)?;
            plan.see_routes(&routes, announced, now);
            Ok(bgp.change(&plan.farewell())?)
        });
        if let Err(error) = withdrawn {
            remark(format_args!("GoBGP: {error}; routes of this host may be left there"));
        }
        let todo = plan.farewell();
        let taken = self.fabric.as_ref().map(|it| it.change(&todo).and_then(|()| it.sweep()));
        match taken {
            Some(Ok(())) => {}
            Some(Err(error)) => remark(format_args!("uvala: {error}; remotes are left there")),
            None => remark("uvala: no connection; remotes are left there"),
        }
    }

    fn connect(&mut self) {
        let now = self.now();
        if self.fabric.is_none() && now >= self.fabric_timing.next {
            match Fabric::open(self.settings.dir.as_deref(), &self.settings.port) {
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
        let network = self.known.as_ref().map(|(network, _)| *network);
        if let (None, Some(network)) = (&self.bgp, network)
            && now >= self.bgp_timing.next
        {
            match Speaking::open(&self.settings, network) {
                Ok(bgp) => {
                    self.bgp = Some(bgp);
                    self.bgp_timing.begin(now);
                }
                Err(error) => {
                    let address = self.settings.gobgp;
                    self.bgp_timing.fail(now, format_args!("{error} ({address})"));
                }
            }
        }
    }

    fn begin_fabric(&mut self, fabric: Fabric, now: u64) {
        let network = fabric.network();
        if self.known.as_ref().is_some_and(|(before, _)| *before != network) {
            self.leave();
            (self.bgp, self.known, self.has_stations) = (None, None, false);
        }
        let limits = Limits {
            remotes: fabric.room(),
            stations: self.settings.stations,
            neighbours: EXTERN_NEIGH_MAX.min(self.settings.stations * ADDRESSES_FOR_STATION),
            announced: ANNOUNCED_MAX,
            hold_ms: self.settings.hold_ms,
        };
        let (_, plan) =
            self.known.get_or_insert_with(|| (network, Plan::new(network.local, limits)));
        plan.set_limits(limits);
        plan.find_port(fabric.found(), now);
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
        if let Some((_, plan)) = &mut self.known {
            plan.lose_switch(now);
        }
        self.is_new = true;
    }

    fn lose_bgp(&mut self, why: impl Display) {
        let now = self.now();
        self.bgp = None;
        self.bgp_timing.fail(now, why);
        if let Some((_, plan)) = &mut self.known {
            plan.lose_bgp(now);
        }
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
        let (_, plan) = self.known.as_mut().expect("a port has a network");
        match see_fabric(fabric, plan) {
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
        let (network, plan) = self.known.as_mut().expect("GoBGP comes after the port");
        match bgp.routes(*network) {
            Ok(Table { is_whole: false, .. }) => {
                if !std::mem::replace(&mut self.is_flooded, true) {
                    remark(format_args!(
                        "GoBGP has more than {ROUTES_MAX} routes of the network: what was known \
                         before stays as it was; find the host (gobgp global rib -a evpn)"
                    ));
                }
                true
            }
            Ok(Table { routes, announced, .. }) => {
                plan.see_routes(&routes, announced, now);
                (self.is_new, self.is_flooded) = (true, false);
                true
            }
            Err(error) => {
                self.lose_bgp(error);
                false
            }
        }
    }

    /// Does what is to be done.
    fn act(&mut self) {
        let now = self.now();
        let Some((_, plan)) = &mut self.known else { return };
        let is_over = plan.next_end().is_some_and(|end| end <= now);
        if std::mem::take(&mut self.is_new) || is_over {
            let todo = plan.todo(now);
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

    fn change_port(&mut self, todo: &Todo) {
        let Some(fabric) = self.fabric.as_ref().filter(|_| todo.is_for_port()) else { return };
        match fabric.change(todo) {
            Ok(()) => {
                let (_, plan) = self.known.as_mut().expect("it said what to do");
                plan.did_port(todo);
            }
            Err(error) => self.lose_fabric(error),
        }
    }

    /// Not before the stations of this host are known, or the switch is gone for the hold time:
    /// what an earlier process has announced stays so long.
    fn change_bgp(&mut self, todo: &Todo) {
        let is_gone = self.known.as_ref().is_some_and(|(_, plan)| !plan.has_switch());
        let is_for_bgp = (self.has_stations || is_gone) && todo.is_for_bgp();
        let Some(bgp) = self.bgp.as_mut().filter(|_| is_for_bgp) else { return };
        match bgp.change(todo) {
            Ok(refusal) => {
                let (_, plan) = self.known.as_mut().expect("it said what to do");
                plan.did_bgp(todo);
                if let Some(why) = refusal {
                    remark(format_args!("GoBGP refuses a route: {why}"));
                }
            }
            Err(error) => self.lose_bgp(error),
        }
    }

    fn say_what_is_odd(&mut self) {
        let Some((_, plan)) = &self.known else { return };
        let duplicates: BTreeSet<MacAddr> = plan.duplicates().collect();
        for mac in duplicates.difference(&self.duplicates) {
            remark(format_args!(
                "{mac} moves between hosts again and again, and is left as it is for three \
                 minutes: do two stations have this address?"
            ));
        }
        self.duplicates = duplicates;
        let refused = plan.refused();
        if refused > 0 && self.refused == 0 {
            remark(format_args!("{refused} routes are beyond a limit: see --max-macs"));
        }
        self.refused = refused;
    }

    /// Sleeps until there is something to do. `true`: the process is to end.
    fn wait(&mut self) -> io::Result<bool> {
        let now = self.now();
        let ends = [
            Some(self.fabric_timing.end(self.fabric.is_some())),
            self.known.as_ref().map(|_| self.bgp_timing.end(self.bgp.is_some())),
            self.known.as_ref().and_then(|(_, plan)| plan.next_end()),
            self.sweep_at.filter(|_| self.fabric.is_some()),
            Some(self.look_at).filter(|_| self.fabric.is_some() && self.changes.is_some()),
        ];
        let next = ends.into_iter().flatten().min().expect("the first").saturating_sub(now);
        let timeout = std::time::Duration::from_millis(next);
        let timeout = Timespec::try_from(timeout).expect("a minute at most");
        let (signals, none) = (self.signals.as_fd(), PollFlags::empty());
        let watched = |side: bool| if side { PollFlags::IN } else { none };
        let fabric = self.fabric.as_ref().map_or(signals, AsFd::as_fd);
        let bgp = self.bgp.as_ref().map_or(signals, |it| it.gobgp.as_fd());
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
        let [ends, has_news, is_told] = fds.map(|fd| !fd.revents().is_empty());
        if has_news && self.fabric.is_some() {
            self.hear_fabric();
        }
        if is_told && self.bgp.is_some() {
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
            let Some(bgp) = self.bgp.as_mut().filter(|it| is_readable(&it.gobgp)) else { return };
            match bgp.gobgp.is_told() {
                Ok(is_told) => self.bgp_timing.is_dirty |= is_told,
                Err(error) => self.lose_bgp(error),
            }
        }
    }
}

/// Whether there is something to read.
fn is_readable(side: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(side, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Reads the port and its switch whole; returns how often the port has heard of IP addresses.
fn see_fabric(fabric: &Fabric, plan: &mut Plan) -> anyhow::Result<Option<u64>> {
    let shown = fabric.look()?;
    if !plan.has_remotes(&shown.remotes) {
        bail!("the port does not have the remotes that it was given");
    }
    let stations = fabric.stations()?;
    plan.see_named(&stations.named);
    plan.see_stations(&stations.here);
    match shown.changes {
        None => plan.see_neighbours(None),
        Some(_) => {
            let [local, answered] = fabric.neighbours()?;
            plan.see_neighbours(Some((&local, &answered)));
        }
    }
    Ok(shown.changes)
}

impl Speaking {
    fn open(settings: &Settings, network: Network) -> Result<Self, CallError> {
        let mut gobgp = GoBgp::open(settings.gobgp)?;
        let speaker = gobgp.speaker()?;
        let Network { vni, local, .. } = network;
        let derived = || Distinguisher::of(speaker.router, vni);
        let distinguisher = settings.distinguisher.unwrap_or_else(derived);
        let target = settings.targets.first().copied();
        let target = target.unwrap_or_else(|| Target::of(speaker.asn, vni));
        remark(format_args!(
            "{}: VNI {vni} at {local}, route distinguisher {distinguisher}, route target {target}",
            settings.port
        ));
        let export = Export { vni, local, distinguisher, target };
        let import = Import { vni, targets: settings.targets.clone() };
        Ok(Self { gobgp, export, import })
    }

    /// The routes of other hosts, and what GoBGP has of this one.
    fn routes(&mut self, network: Network) -> Result<Table, CallError> {
        let (mut routes, mut announced, mut seen) = (Vec::new(), Announced::default(), 0);
        let mut hosts = BTreeMap::<IpAddr, bool>::new();
        let Self { gobgp, export, import } = self;
        gobgp.paths(|path| {
            let is_own = path.is_local && own(path.nlri, export.distinguisher).is_some();
            if !is_own && (path.is_local || !path.is_best) {
                return;
            }
            let Ok(Some(route)) = import.route(path.nlri, &path.attributes) else { return };
            if !is_own {
                seen += 1;
                if seen > ROUTES_MAX {
                    return;
                }
                let is_host = || network.has_remote(route.host);
                if *hosts.entry(route.host).or_insert_with(is_host) {
                    routes.push(route);
                }
            } else if route.host == export.local {
                announced.insert(route.subject);
            }
        })?;
        Ok(Table { routes, announced, is_whole: seen <= ROUTES_MAX })
    }

    fn change(&mut self, todo: &Todo) -> io::Result<Option<String>> {
        let export = self.export;
        let change = |is_withdraw| {
            move |subject: &Subject| {
                let subject = match subject {
                    // GoBGP compares the number of a route that goes, too.
                    Subject::Station(mac, _) if is_withdraw => {
                        Subject::Station(*mac, Mobility::default())
                    }
                    Subject::Neighbour(neighbour, _) if is_withdraw => {
                        Subject::Neighbour(*neighbour, Mobility::default())
                    }
                    subject => *subject,
                };
                Change { route: export.encode(subject), is_withdraw }
            }
        };
        let withdraw = todo.withdraw.iter().map(change(true));
        let changes: Vec<Change> =
            withdraw.chain(todo.announce.iter().map(change(false))).collect();
        self.gobgp.change(&changes)
    }
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

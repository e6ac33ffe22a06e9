//! Requests in the log: attaches and changes at info, refusals for lack of permission, quota or
//! memory at warn, every request at debug.
//!
//! Any user that may connect can make the log grow, and the log usually shares a tmpfs with the
//! state. So each user has a [`Budget`] of lines about attaches, leaves, changes and what its ports
//! cause, and one line in [`PAUSE`] about refusals; what is suppressed is counted, and told of when
//! a minute is over. No user spends another one's, unless [`USERS`] others have spent of theirs a
//! moment ago: the rest share one budget then. Changes of a privileged user, the operator's, are
//! all in the log. What a routing daemon finds is not: a router elsewhere can cause any number of
//! such changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use port::log_budget::{Budget, Decision, Kind, NextReport, UserBudgets};
use protocol::name::PortName;
use protocol::{
    ChainRequest, ErrorCode, FdbRequest, InterfaceRequest, MdbChange, MdbRequest, PortRequest,
    ProgramEntrySet, ProgramRequest, Request, RuleRequest, SessionRequest, SwitchRequest,
    SwitchSettings, WorkerRequest,
};
use serde::Serialize;
use tracing::Level;

use super::{Answer, Client, Control};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::Holder;
use crate::log::cut;
use crate::model::keys::ConnKey;
use crate::model::policy::{Caller, is_privileged, shown_process};
use protocol::users::user_name;

/// Least time between two lines about refusals of one user.
const PAUSE: Duration = Duration::from_secs(10);
/// Limit for the number of ordinary users on record.
const USERS: usize = 1024;
/// Least time between two looks for users that need not be on record.
const TIDY: Duration = Duration::from_secs(1);

/// The kinds of lines, by their places. Attaches, leaves and changes are the first.
const KINDS: [Kind; 2] = [
    Kind { name: "of calls", level: Level::INFO },
    Kind { name: "of refused calls", level: Level::WARN },
];
const CHANGES: usize = 0;
const REFUSALS: usize = 1;

/// What the log has of each user.
#[derive(Debug)]
pub(super) struct CallLog {
    /// Users that had lines a short time ago, and others until their room is needed.
    users: BTreeMap<u32, UserBudgets<2>>,
    /// The lines of all users for which `users` has no room.
    others: UserBudgets<2>,
    /// There is no room for another user before.
    full_until: Option<Instant>,
    next: NextReport,
}

impl Default for CallLog {
    fn default() -> Self {
        let next = NextReport::default();
        let others = lines_of("other users".to_owned(), &next);
        Self { users: BTreeMap::new(), others, full_until: None, next }
    }
}

fn lines_of(user: String, next: &NextReport) -> UserBudgets<2> {
    let [changes, refusals] = KINDS;
    let refusals = (refusals, Budget::of_one(PAUSE));
    UserBudgets::new(user, [(changes, Budget::default()), refusals], next)
}

impl CallLog {
    fn of(&mut self, uid: u32, now: Instant) -> &UserBudgets<2> {
        let has_room = self.users.contains_key(&uid) || is_privileged(uid);
        if !has_room && self.is_full(now) {
            return &self.others;
        }
        let next = &self.next;
        self.users.entry(uid).or_insert_with(|| lines_of(user_name(uid), next))
    }

    /// Whether there is no room for another user. Forgets those that have all their lines again;
    /// each tells what was suppressed.
    fn is_full(&mut self, now: Instant) -> bool {
        if self.users.len() >= USERS && self.full_until.is_none_or(|until| until <= now) {
            self.users.retain(|_, lines| !lines.are_whole(now));
            self.full_until = now.checked_add(TIDY);
        }
        self.users.len() >= USERS
    }

    /// `None`: a refusal of this user is not logged `now`. Else what its line says of those that
    /// were not logged since the last one.
    fn logs_refusal(&mut self, uid: u32, now: Instant) -> Option<String> {
        let lines = self.of(uid, now);
        match lines.decide(REFUSALS, now) {
            Decision::Log(0) => Some(String::new()),
            Decision::Log(more) => Some(format!(" ({more} more of {} before)", lines.user())),
            Decision::LogNoMore | Decision::Suppress => None,
        }
    }

    /// True if a line about an attach, a leave or a change of this user, or one about its ports or
    /// its program, is to be logged `now`. Logs the number of those that were not.
    pub(super) fn logs_change(&mut self, uid: u32, now: Instant) -> bool {
        self.of(uid, now).allows(CHANGES, now)
    }

    /// Logs how many lines were suppressed, if it is time.
    fn log_suppressed(&self, now: Instant) {
        if self.next.take_due(now) {
            self.users.values().chain([&self.others]).for_each(|lines| lines.log_suppressed(now));
        }
    }
}

impl<D: Datapath> Control<D> {
    /// How long until the log can have the number of lines of a user that were suppressed.
    #[must_use]
    pub fn next_report(&self, now: Instant) -> Option<Duration> {
        let reports = [self.call_log.next.at(), self.notes.allowances.next_report()];
        reports.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    /// Logs how many lines of users were suppressed, if it is time.
    pub fn log_suppressed(&self, now: Instant) {
        self.call_log.log_suppressed(now);
        self.notes.allowances.log_suppressed(now);
    }

    /// Answers and logs a request.
    pub(super) fn answer(&mut self, client: &mut Client, request: Request) -> Answer {
        let call = || cut(format!("{request:?}"));
        tracing::debug!("{}: {}", who(&client.caller, &client.name), call());
        let info = tracing::enabled!(Level::INFO);
        let change = info.then(|| change(&request)).flatten();
        let limited = !client.caller.privileged
            || matches!(request, Request::Session(SessionRequest::Detach(_)));
        let answer = self.carry_out(client, request);
        match &answer {
            Ok(_) => {
                let uid = client.caller.uid;
                if let Some(change) = change
                    && (!limited || self.call_log.logs_change(uid, Instant::now()))
                {
                    tracing::info!("{} {change}", who(&client.caller, &client.name));
                }
            }
            Err(refusal) => self.note_refusal(&client.caller, &client.name, refusal),
        }
        answer
    }

    /// Logs a refusal.
    pub fn note_refusal(&mut self, caller: &Caller, name: &str, refusal: &Refusal) {
        let text = || cut(refusal.to_string());
        tracing::debug!("{} refused: {}", who(caller, name), text());
        // A netmap program gets an errno: only the log has the reason.
        if !matches!(refusal.code(), ErrorCode::Permission | ErrorCode::Quota | ErrorCode::NoMemory)
        {
            return;
        }
        if let Some(more) = self.call_log.logs_refusal(caller.uid, Instant::now()) {
            tracing::warn!("{} refused: {}{more}", who(caller, name), text());
        }
    }

    /// Logs an attach of a client.
    pub(super) fn note_attached(&mut self, port: &PortName, holder: &Holder) {
        self.note_of(holder, "attached", port);
    }

    /// Logs a bind of a netmap program.
    pub(super) fn note_bound(&mut self, conn: ConnKey, name: &PortName) {
        let Some(shared) = self.state.shared(name) else { return };
        if let Some(holder) = shared.holders.iter().find(|holder| holder.conn == conn)
            && self.call_log.logs_change(shared.uid, Instant::now())
        {
            let process = shown_process(holder.pid, shared.uid);
            tracing::info!("{process} ({}) bound {name}", named(&holder.name));
        }
    }

    /// Logs the ports that a closed connection held.
    pub(super) fn note_leaving(&mut self, conn: ConnKey) {
        if !tracing::enabled!(Level::INFO) {
            return;
        }
        for name in self.state.held_by(conn) {
            let holder = self.state.find_port(&name).and_then(|port| port.holder.clone());
            self.note_of(&holder.expect("each held port has a holder"), "left", &name);
        }
        let Some(name) = self.state.bound_by(conn) else { return };
        let shared = self.state.unswitched_of(conn).map(|unswitched| &unswitched.shared);
        let uid = shared.or_else(|| self.state.shared(name)).map_or(0, |shared| shared.uid);
        if self.call_log.logs_change(uid, Instant::now()) {
            tracing::info!("a netmap descriptor or a capture of {name} was closed");
        }
    }

    fn note_of(&mut self, holder: &Holder, did: &str, port: &PortName) {
        if self.call_log.logs_change(holder.uid, Instant::now()) {
            let process = shown_process(holder.pid, holder.uid);
            tracing::info!("{process} ({}) {did} {port}", named(&holder.name));
        }
    }
}

fn who(caller: &Caller, name: &str) -> String {
    format!("{} ({})", shown_process(caller.pid, caller.uid), named(name))
}

fn named(name: &str) -> &str {
    if name.is_empty() { "unnamed" } else { name }
}

/// The change that a request makes, if it makes one.
fn change(request: &Request) -> Option<String> {
    match request {
        Request::Session(SessionRequest::Detach(port)) => Some(format!("detached {}", port.port)),
        Request::Switch(call) => switch_change(call),
        Request::Port(call) => port_change(call),
        Request::Interface(call) => Some(interface_change(call)),
        Request::Fdb(call) => fdb_change(call),
        Request::Mdb(call) => mdb_change(call),
        Request::Chain(call) => chain_change(call),
        Request::Rule(call) => rule_change(call),
        Request::Program(call) => program_change(call),
        Request::Worker(WorkerRequest::Move(wanted)) => {
            Some(format!("moved {} to worker {}", wanted.port, wanted.worker))
        }
        _ => None,
    }
}

fn switch_change(call: &SwitchRequest) -> Option<String> {
    Some(match call {
        SwitchRequest::Add(spec) => {
            format!("added switch {} with {}", spec.switch, shown(&spec.settings))
        }
        SwitchRequest::Set(spec) => format!("set switch {} {}", spec.switch, shown(&spec.settings)),
        SwitchRequest::Del(switch) => format!("deleted switch {}", switch.switch),
        _ => return None,
    })
}

fn port_change(call: &PortRequest) -> Option<String> {
    Some(match call {
        PortRequest::Add(add) => {
            let host = add.host.as_ref().map(|host| format!(" {}", json(host))).unwrap_or_default();
            let tunnel = add.vxlan.as_ref().map(|vxlan| format!(" {}", json(vxlan)));
            let (kind, settings) = (json(&add.kind), json(&add.settings));
            let (kind, of) = (kind.trim_matches('"'), tunnel.unwrap_or(host));
            format!("added {kind} port {}{of} with {settings}", add.port)
        }
        PortRequest::Set(set) if set.is_of_a_routing_daemon() => return None,
        PortRequest::Set(set) => {
            let tunnel = set.vxlan.as_ref().map(|change| format!(" {}", json(change)));
            format!("set port {} {}{}", set.port, json(&set.settings), tunnel.unwrap_or_default())
        }
        PortRequest::Enable(port) => format!("enabled {}", port.port),
        PortRequest::Del(port) => format!("deleted port {}", port.port),
        _ => return None,
    })
}

fn interface_change(call: &InterfaceRequest) -> String {
    match call {
        InterfaceRequest::Add(add) => format!("added interface {}", add.port),
        InterfaceRequest::Del(port) => format!("deleted interface {}", port.port),
        InterfaceRequest::Attach(attach) => format!("put an interface into {}", attach.port),
        InterfaceRequest::Poll(poll) => format!("changed the polling of {}", poll.port),
        InterfaceRequest::Detach(port) => format!("took the interface {} out", port.port),
    }
}

fn fdb_change(call: &FdbRequest) -> Option<String> {
    Some(match call {
        FdbRequest::Add(add) => {
            format!("added static address {}, VLAN {}, to {}", add.mac, add.vlan, add.port)
        }
        FdbRequest::Del(del) => {
            format!("deleted {} in VLAN {} of {}", del.mac, del.vlan, del.switch)
        }
        FdbRequest::Flush(flush) => format!("flushed addresses of {}", flush.switch),
        _ => return None,
    })
}

fn mdb_change(call: &MdbRequest) -> Option<String> {
    let (what, change) = match call {
        MdbRequest::List(_) => return None,
        MdbRequest::Add(add) => ("added", add),
        MdbRequest::Del(del) => ("deleted", del),
    };
    let MdbChange { port, group, vlan } = change;
    Some(format!("{what} static group {group}, VLAN {vlan}, of {port}"))
}

fn chain_change(call: &ChainRequest) -> Option<String> {
    Some(match call {
        ChainRequest::Add(add) => format!("set chain {} of {}", json(&add.chain), add.switch),
        ChainRequest::Del(del) => format!("deleted chain {} of {}", del.chain, del.switch),
        ChainRequest::List(_) => return None,
    })
}

fn rule_change(call: &RuleRequest) -> Option<String> {
    Some(match call {
        RuleRequest::Add(add) => format!("added {} rules to {}", add.rules.len(), add.switch),
        RuleRequest::Del(del) => format!("deleted rules {:?} of {}", del.rules, del.switch),
        RuleRequest::List(_) => return None,
    })
}

fn program_change(call: &ProgramRequest) -> Option<String> {
    Some(match call {
        ProgramRequest::MapSet(ProgramEntrySet { switch, entry }) => {
            format!("set {} to {} in map {} of {switch}", entry.key, entry.value, entry.map)
        }
        ProgramRequest::MapDel(of) => {
            format!("deleted {} in map {} of {}", of.key, of.map, of.switch)
        }
        _ => return None,
    })
}

/// The settings of a switch, without the code of a program.
fn shown(settings: &SwitchSettings) -> String {
    match settings.program {
        None => json(settings),
        Some(_) => json(&SwitchSettings { program: None, ..settings.clone() }) + " and a program",
    }
}

fn json(settings: &impl Serialize) -> String {
    serde_json::to_string(settings).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line without refusals before it.
    fn first() -> Option<String> {
        Some(String::new())
    }

    #[test]
    fn test_refusals_of_one_user_are_logged_seldom_and_counted() {
        let (mut log, start) = (CallLog::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.logs_refusal(4711, at(0)), first());
        assert_eq!(log.logs_refusal(4711, at(1)), None);
        assert_eq!(log.logs_refusal(2, at(1)), first(), "another user");
        assert_eq!(log.logs_refusal(4711, at(9)), None);
        assert_eq!(log.logs_refusal(4711, at(10)).as_deref(), Some(" (2 more of 4711 before)"));
    }

    #[test]
    fn test_more_users_than_have_room_share_one_budget() {
        let (mut log, start) = (CallLog::default(), Instant::now());
        let (known, other) = (100_000, 100_000 + u32::try_from(USERS).unwrap());
        assert!((known..other).all(|uid| log.logs_change(uid, start)));
        let refused = [0, 1, 2].map(|more| log.logs_refusal(other + more, start));
        assert_eq!(refused, [first(), None, None], "one line of all others");
        assert_eq!((0..100).filter(|more| log.logs_change(other + more, start)).count(), 40);
        assert_eq!(log.logs_refusal(known, start), first(), "a user on record");
        assert_eq!(log.logs_refusal(0, start), first(), "root");
        let more = log.logs_refusal(other, start + PAUSE);
        assert_eq!(more.as_deref(), Some(" (2 more of other users before)"));
        let minute = start + Duration::from_secs(60);
        assert_eq!(log.logs_refusal(other, minute), first(), "on record from now on");
        assert_eq!(log.users.keys().collect::<Vec<_>>(), [&other]);
    }

    #[test]
    fn test_a_record_that_stays_full_is_not_searched_for_each_call() {
        let (mut log, start) = (CallLog::default(), Instant::now());
        let other = 100_000 + u32::try_from(USERS).unwrap();
        assert!((100_000..other).all(|uid| log.logs_change(uid, start)));
        let minute = start + Duration::from_secs(60);
        assert!(log.is_full(minute - TIDY / 2));
        assert!(log.is_full(minute), "not looked at");
        assert!(!log.is_full(minute + TIDY / 2) && log.users.is_empty());
    }

    #[test]
    fn test_what_a_silent_user_has_suppressed_is_told_when_its_minute_is_over() {
        let (mut log, start) = (CallLog::default(), Instant::now());
        assert!((0..40).all(|_| log.logs_change(4711, start)));
        assert_eq!((log.logs_refusal(4711, start), log.next.at()), (first(), None));
        let minute = start + Duration::from_secs(60);
        assert!(!log.logs_change(4711, start) && log.logs_refusal(4711, start).is_none());
        assert_eq!(log.next.at(), Some(minute));
        log.log_suppressed(start + PAUSE);
        assert_eq!(log.next.at(), Some(minute), "it may go on");
        log.log_suppressed(minute);
        assert_eq!(log.next.at(), None);
        assert_eq!(log.logs_refusal(4711, minute), first(), "the number was told");
    }
}

//! Requests in the log: attaches and changes at info, refusals for lack of permission, quota or
//! memory at warn, every request at debug.
//!
//! Any user that may connect can make the log grow, and the log usually shares a tmpfs with the
//! state. So each user has a [`Budget`] of lines about attaches, leaves and changes, and one line
//! in [`PAUSE`] about refusals; what is left out is counted. No user spends another one's, and
//! changes of a privileged user, the operator's, are all in the log. What a routing daemon finds is
//! not: a router elsewhere can cause any number of such changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use port::machine::log::{Budget, Turn};
use protocol::name::PortName;
use protocol::{
    ChainRequest, ErrorCode, FdbRequest, InterfaceRequest, MdbChange, MdbRequest, PortRequest,
    ProgramEntrySet, ProgramRequest, Request, RuleRequest, SessionRequest, SwitchRequest,
    SwitchSettings, WorkerRequest,
};
use serde::Serialize;

use super::{Answer, Client, Control};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::control::state::Holder;
use crate::log::{RateLimit, cut};
use crate::model::keys::ConnKey;
use crate::model::policy::{Caller, shown_process};
use protocol::users::user_name;

/// Least time between two lines about refusals of one user.
const PAUSE: Duration = Duration::from_secs(10);
/// Limit for the number of users on record.
const USERS: usize = 1024;

/// What the log has of each user.
#[derive(Debug, Default)]
pub(super) struct CallLog {
    users: BTreeMap<u32, UserLog>,
}

#[derive(Debug)]
struct UserLog {
    /// Attaches, leaves and changes.
    deeds: Budget,
    /// Refusals, and the number of those that were not logged.
    refusals: (RateLimit, u64),
}

impl CallLog {
    fn of(&mut self, uid: u32, now: Instant) -> &mut UserLog {
        if self.users.len() >= USERS && !self.users.contains_key(&uid) {
            self.users.clear();
        }
        self.users.entry(uid).or_insert_with(|| UserLog {
            deeds: Budget::new(now),
            refusals: (RateLimit::new(PAUSE), 0),
        })
    }

    /// `None`: a refusal of this user is not logged `now`. Else the number of those that were not
    /// logged since the last one.
    fn may_say(&mut self, uid: u32, now: Instant) -> Option<u64> {
        let (limit, silent) = &mut self.of(uid, now).refusals;
        if limit.allows(now) {
            return Some(std::mem::take(silent));
        }
        *silent += 1;
        None
    }

    /// True if a line about an attach, a leave or a change of this user is to be logged `now`.
    /// Logs the number of those that were not.
    fn may_tell(&mut self, uid: u32, now: Instant) -> bool {
        match self.of(uid, now).deeds.turn(now) {
            Turn::Say(0) => return true,
            Turn::Say(unsaid) => {
                tracing::info!("{}: {unsaid} lines of calls were suppressed", user_name(uid));
                return true;
            }
            Turn::SayNoMore => {
                let user = user_name(uid);
                tracing::info!("{user}: more lines of calls are suppressed, and counted");
            }
            Turn::LeaveOut => {}
        }
        false
    }
}

impl Drop for CallLog {
    fn drop(&mut self) {
        for (uid, log) in &self.users {
            let unsaid = u64::from(log.deeds.left_out()) + log.refusals.1;
            if unsaid > 0 {
                tracing::info!("{}: {unsaid} lines of calls were suppressed", user_name(*uid));
            }
        }
    }
}

impl<D: Datapath> Control<D> {
    /// Answers and logs a request.
    pub(super) fn answer(&mut self, client: &mut Client, request: Request) -> Answer {
        let call = || cut(format!("{request:?}"));
        tracing::debug!("{}: {}", who(&client.caller, &client.name), call());
        let info = tracing::enabled!(tracing::Level::INFO);
        let deed = info.then(|| deed(&request)).flatten();
        let limited = !client.caller.privileged
            || matches!(request, Request::Session(SessionRequest::Detach(_)));
        let answer = self.carry_out(client, request);
        match &answer {
            Ok(_) => {
                let uid = client.caller.uid;
                if let Some(deed) = deed
                    && (!limited || self.call_log.may_tell(uid, Instant::now()))
                {
                    tracing::info!("{} {deed}", who(&client.caller, &client.name));
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
        match self.call_log.may_say(caller.uid, Instant::now()) {
            None => {}
            Some(0) => tracing::warn!("{} refused: {}", who(caller, name), text()),
            Some(more) => {
                tracing::warn!("{} refused: {} ({more} more before)", who(caller, name), text());
            }
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
            && self.call_log.may_tell(shared.uid, Instant::now())
        {
            let process = shown_process(holder.pid, shared.uid);
            tracing::info!("{process} ({}) bound {name}", named(&holder.name));
        }
    }

    /// Logs the ports that a closed connection held.
    pub(super) fn note_leaving(&mut self, conn: ConnKey) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        for name in self.state.held_by(conn) {
            let holder = self.state.find_port(&name).and_then(|port| port.holder.clone());
            self.note_of(&holder.expect("each held port has a holder"), "left", &name);
        }
        let Some(name) = self.state.bound_by(conn) else { return };
        let shared = self.state.unswitched_of(conn).map(|unswitched| &unswitched.shared);
        let uid = shared.or_else(|| self.state.shared(name)).map_or(0, |shared| shared.uid);
        if self.call_log.may_tell(uid, Instant::now()) {
            tracing::info!("a netmap descriptor or a capture of {name} was closed");
        }
    }

    fn note_of(&mut self, holder: &Holder, did: &str, port: &PortName) {
        if self.call_log.may_tell(holder.uid, Instant::now()) {
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
fn deed(request: &Request) -> Option<String> {
    let deed = match request {
        Request::Session(SessionRequest::Detach(port)) => format!("detached {}", port.port),
        Request::Interface(InterfaceRequest::Add(add)) => format!("added interface {}", add.port),
        Request::Interface(InterfaceRequest::Del(port)) => {
            format!("deleted interface {}", port.port)
        }
        Request::Interface(InterfaceRequest::Attach(attach)) => {
            format!("put an interface into {}", attach.port)
        }
        Request::Interface(InterfaceRequest::Poll(poll)) => {
            format!("changed the polling of {}", poll.port)
        }
        Request::Interface(InterfaceRequest::Detach(port)) => {
            format!("took the interface {} out", port.port)
        }
        Request::Worker(WorkerRequest::Move(wanted)) => {
            format!("moved {} to worker {}", wanted.port, wanted.worker)
        }
        Request::Switch(SwitchRequest::Add(spec)) => {
            format!("added switch {} with {}", spec.switch, shown(&spec.settings))
        }
        Request::Switch(SwitchRequest::Set(spec)) => {
            format!("set switch {} {}", spec.switch, shown(&spec.settings))
        }
        Request::Switch(SwitchRequest::Del(switch)) => format!("deleted switch {}", switch.switch),
        Request::Port(PortRequest::Add(add)) => {
            let host = add.host.as_ref().map(|host| format!(" {}", json(host))).unwrap_or_default();
            let tunnel = add.vxlan.as_ref().map(|vxlan| format!(" {}", json(vxlan)));
            let (kind, settings) = (json(&add.kind), json(&add.settings));
            let (kind, of) = (kind.trim_matches('"'), tunnel.unwrap_or(host));
            format!("added {kind} port {}{of} with {settings}", add.port)
        }
        Request::Port(PortRequest::Set(set)) if set.is_of_a_routing_daemon() => return None,
        Request::Port(PortRequest::Set(set)) => {
            let tunnel = set.vxlan.as_ref().map(|change| format!(" {}", json(change)));
            format!("set port {} {}{}", set.port, json(&set.settings), tunnel.unwrap_or_default())
        }
        Request::Port(PortRequest::Enable(port)) => format!("enabled {}", port.port),
        Request::Port(PortRequest::Del(port)) => format!("deleted port {}", port.port),
        Request::Fdb(FdbRequest::Add(add)) => {
            format!("added static address {}, VLAN {}, to {}", add.mac, add.vlan, add.port)
        }
        Request::Fdb(FdbRequest::Del(del)) => {
            format!("deleted {} in VLAN {} of {}", del.mac, del.vlan, del.switch)
        }
        Request::Mdb(call) => return group_deed(call),
        Request::Chain(ChainRequest::Add(add)) => {
            format!("set chain {} of {}", json(&add.chain), add.switch)
        }
        Request::Chain(ChainRequest::Del(del)) => {
            format!("deleted chain {} of {}", del.chain, del.switch)
        }
        Request::Rule(RuleRequest::Add(add)) => {
            format!("added {} rules to {}", add.rules.len(), add.switch)
        }
        Request::Rule(RuleRequest::Del(del)) => {
            format!("deleted rules {:?} of {}", del.rules, del.switch)
        }
        Request::Program(ProgramRequest::MapSet(ProgramEntrySet { switch, entry })) => {
            format!("set {} to {} in map {} of {switch}", entry.key, entry.value, entry.map)
        }
        Request::Program(ProgramRequest::MapDel(of)) => {
            format!("deleted {} in map {} of {}", of.key, of.map, of.switch)
        }
        Request::Fdb(FdbRequest::Flush(flush)) => format!("flushed addresses of {}", flush.switch),
        _ => return None,
    };
    Some(deed)
}

/// The change that a call about multicast groups makes.
fn group_deed(call: &MdbRequest) -> Option<String> {
    let (what, change) = match call {
        MdbRequest::List(_) => return None,
        MdbRequest::Add(add) => ("added", add),
        MdbRequest::Del(del) => ("deleted", del),
    };
    let MdbChange { port, group, vlan } = change;
    Some(format!("{what} static group {group}, VLAN {vlan}, of {port}"))
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

    #[test]
    fn test_refusals_of_one_user_are_logged_seldom_and_counted() {
        let (mut log, start) = (CallLog::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.may_say(1, at(0)), Some(0));
        assert_eq!(log.may_say(1, at(1)), None);
        assert_eq!(log.may_say(2, at(1)), Some(0), "another user");
        assert_eq!(log.may_say(1, at(9)), None);
        assert_eq!(log.may_say(1, at(10)), Some(2));
    }
}

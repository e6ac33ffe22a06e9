//! Chains, rules and services: changed, listed, and told to the workers.
//!
//! # Theory of operation
//!
//! ```text
//!  call, settings ──► a changed copy ──► quota, checks ──┬──► refused: nothing has changed
//!                                                        ▼
//!  file, saved state ──► checks ──────────────► Steering of the switch ──┐
//!                                                                        ▼
//!  a port comes, goes or changes ──────────────────────────────► refresh_steering
//!                                                                        │
//!  worker ◄── tables, if they changed ◄── Planner ◄── plan: numbers ◄────┘
//! ```
//!
//! [`Steering`] has everything by the names that operators use, and only it is saved. The worker
//! gets numbers, of ports that carry frames now: so each port that comes or goes means another
//! plan, and a plan that changes nothing does not reach the worker. A switch whose forwarding
//! function is not `chain` keeps its chains and rules, and its worker has none. What a call names
//! must exist; what the file or the saved state names may come later, and frames for it are dropped
//! until then.
//!
//! A listing asks the worker once, for the first page; the pages behind it show the same moment.

pub mod clash;
mod followers;
pub mod refusal;
mod roles;
mod usage;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use packet::PortId;
use protocol::name::{PortName, SwitchName};
use protocol::{
    COUNT_NAME_MAX, COUNTS_MAX, ChainAdd, ChainInfo, ChainRef, ChainRequest, ChainSpec,
    FlowCacheInfo, FunctionInfo, FunctionNote, FunctionRequest, PortStats, Reply, RuleAdd, RuleDel,
    RuleInfo, RuleRequest, RuleSpec, SteeringQuery, SwitchSettings,
};
use switch::chain::Report;
use switch::chain::cache::CacheStats;
use switch::{Counters, DropReason, Forwarding};

use super::{Control, page, parse_port};
use crate::control::chains::refusal::ChainRefusal;
use crate::control::chains::usage::Usage;
use crate::control::datapath::Datapath;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::{Holder, Port, Switch};
use crate::model::choices::show_forwarding;
use crate::model::plan::SwitchPlan;
use crate::model::policy::{Access, Caller};
use crate::model::steering::{Steering, View, closed_exit, deaf};

impl<D: Datapath> Control<D> {
    /// Answers a call about chains.
    pub(super) fn chain_call(
        &mut self,
        caller: &Caller,
        call: ChainRequest,
    ) -> Result<Reply, Refusal> {
        match call {
            ChainRequest::Add(add) => self.chain_add(caller, add),
            ChainRequest::Del(del) => self.chain_del(caller, &del),
            ChainRequest::List(query) => self.chain_list(caller, &query),
        }
    }

    /// Answers a call about rules.
    pub(super) fn rule_call(
        &mut self,
        caller: &Caller,
        call: RuleRequest,
    ) -> Result<Reply, Refusal> {
        match call {
            RuleRequest::Add(add) => self.rule_add(caller, add),
            RuleRequest::Del(del) => self.rule_del(caller, &del),
            RuleRequest::List(query) => self.rule_list(caller, &query),
        }
    }

    /// Answers a call about instances of services.
    pub(super) fn function_call(
        &mut self,
        caller: &Caller,
        call: FunctionRequest,
    ) -> Result<Reply, Refusal> {
        match call {
            FunctionRequest::List(query) => self.function_list(caller, &query),
            FunctionRequest::Note(note) => self.function_note(caller, note),
            FunctionRequest::Next(_) => unreachable!("its answer takes the client"),
        }
    }

    /// After a port has come, gone, or changed.
    pub(super) fn refresh_port(&mut self, name: &PortName) {
        self.refresh_static_addresses(name);
        self.refresh_steering(name.switch());
        self.refresh_programs(name);
        self.refresh_mirrors(name);
        self.refresh_captures(name);
    }

    /// Tells the worker of a switch what there is now.
    pub(super) fn refresh_steering(&mut self, name: &SwitchName) {
        self.refresh_plan(name);
        self.update_followers(name);
    }

    fn refresh_plan(&mut self, name: &SwitchName) {
        let Some(switch) = self.state.find_switch(name) else { return };
        if switch.config.forwarding != Forwarding::Chain {
            return;
        }
        let key = switch.key;
        let mut steering = std::mem::take(&mut self.steered(name).steering);
        let plan = steering.plan(&self.views(name));
        let switch = self.steered(name);
        switch.steering = steering;
        // Most ports that come and go change nothing: a worker is not to stop for these.
        if let Some(tables) = switch.planner.get_or_insert_default().next(plan) {
            self.datapath.set_chains(key, Some(tables));
        }
    }

    fn steered(&mut self, name: &SwitchName) -> &mut Switch {
        self.state.switch_mut(name).expect("it was there just now")
    }

    /// The forwarding function of a switch has changed.
    pub(super) fn refresh_forwarding(&mut self, name: &SwitchName) {
        let Some(switch) = self.state.switch_mut(name) else { return };
        if switch.config.forwarding == Forwarding::Chain {
            self.refresh_steering(name);
        } else if switch.planner.take().is_some() {
            let key = switch.key;
            self.datapath.set_chains(key, None);
            self.update_followers(name);
        }
    }

    pub(super) fn views<'a>(&'a self, switch: &'a SwitchName) -> Vec<View<'a>> {
        let view = |(name, port): (&'a PortName, &'a Port)| View {
            name: name.port(),
            role: &port.config.role,
            id: self.id_of(port),
        };
        self.state.ports_of(switch).filter(|(name, _)| name.pipe().is_none()).map(view).collect()
    }

    pub(super) fn id_of(&self, port: &Port) -> Option<PortId> {
        let number = port.is_live().then(|| self.datapath.number_of(port.key)).flatten();
        number.and_then(|number| PortId::new(number.into()))
    }

    /// Chains and rules as settings ask for them, checked; `None`: they do not.
    pub(super) fn requested_steering(
        &self,
        owner: u32,
        name: &SwitchName,
        settings: &SwitchSettings,
    ) -> Result<Option<Steering>, Refusal> {
        if settings.chains.is_none() && settings.rules.is_none() {
            return Ok(None);
        }
        let (chains, rules) = (settings.chains.as_ref(), settings.rules.as_ref());
        let change = |steering: &mut Steering| steering.replace(chains, rules);
        self.changed(owner, name, change).map(Some)
    }

    /// The chains and rules of a switch after a change, checked. They count against the quota of
    /// the switch's owner.
    fn changed(
        &self,
        owner: u32,
        name: &SwitchName,
        change: impl FnOnce(&mut Steering) -> Result<(), String>,
    ) -> Result<Steering, Refusal> {
        let old = self.state.find_switch(name).map(|switch| &switch.steering);
        let mut new = old.cloned().unwrap_or_default();
        let invalid = |why| Refusal::from(ChainRefusal::Invalid(name.clone(), why));
        change(&mut new).map_err(invalid)?;
        let more = new.size().saturating_sub(old.map_or(0, Steering::size));
        self.state.check_rules(owner, more)?;
        new.check_change(old, &self.views(name)).map_err(invalid)?;
        Ok(new)
    }

    /// The chains and rules that a switch begins with. They may name ports that do not exist yet,
    /// because their programs start later.
    pub(super) fn plan_steering(&mut self, plan: &SwitchPlan) -> Result<(), Refusal> {
        let name = &plan.name;
        let mut steering = Steering::default();
        let refused = |why| Refusal::from(ChainRefusal::Invalid(name.clone(), why));
        steering.replace(Some(&plan.chains), Some(&plan.rules)).map_err(refused)?;
        // Configured ones were looked at when the file was read.
        if steering.check(None).is_err() {
            for why in steering.leave_out() {
                tracing::warn!(
                    "switch {name}: {why}; an older daemon accepted it, this one ignores it"
                );
            }
            steering.check(None).map_err(refused)?;
        }
        let views = self.views(name);
        let checks = [steering.check_ports(None, &views), steering.check_names(None, &views)];
        for why in checks.into_iter().filter_map(Result::err) {
            tracing::warn!("switch {name}: {why}; until it is, frames for it are dropped");
        }
        self.steered(name).steering = steering;
        self.refresh_forwarding(name);
        Ok(())
    }

    fn change_steering(
        &mut self,
        caller: &Caller,
        name: &SwitchName,
        change: impl FnOnce(&mut Steering) -> Result<(), String>,
    ) -> Result<(), Refusal> {
        let switch = self.state.switch(caller, name, Access::Manage)?;
        if switch.config.forwarding != Forwarding::Chain {
            return Err(ChainRefusal::NotForwarding(name.clone()).into());
        }
        let steering = self.changed(switch.permissions.owner, name, change)?;
        self.steered(name).steering = steering;
        self.refresh_steering(name);
        Ok(())
    }

    fn chain_add(&mut self, caller: &Caller, add: ChainAdd) -> Result<Reply, Refusal> {
        self.change_steering(caller, &add.switch, |steering| steering.put_chain(add.chain))?;
        Ok(Reply::Done)
    }

    fn chain_del(&mut self, caller: &Caller, del: &ChainRef) -> Result<Reply, Refusal> {
        let switch = self.state.switch(caller, &del.switch, Access::Manage)?;
        if !switch.steering.has_chain(&del.chain) {
            return Err(ChainRefusal::NoChain(del.switch.clone(), del.chain.clone()).into());
        }
        if let Some(user) = switch.steering.user_of(&del.chain, &self.views(&del.switch)) {
            let why = format!("chain {} is used by {user}; change that first", del.chain);
            return Err(ChainRefusal::Invalid(del.switch.clone(), why).into());
        }
        self.change_steering(caller, &del.switch, |steering| {
            steering.drop_chain(&del.chain);
            Ok(())
        })?;
        Ok(Reply::Done)
    }

    fn rule_add(&mut self, caller: &Caller, add: RuleAdd) -> Result<Reply, Refusal> {
        let mut ids = Vec::new();
        self.change_steering(caller, &add.switch, |steering| {
            ids = steering.put_rules(add.rules)?;
            Ok(())
        })?;
        Ok(Reply::RulesAdded(ids))
    }

    fn rule_del(&mut self, caller: &Caller, del: &RuleDel) -> Result<Reply, Refusal> {
        let switch = self.state.switch(caller, &del.switch, Access::Manage)?;
        if let Some(&id) = del.rules.iter().find(|&&id| !switch.steering.has_rule(id)) {
            return Err(ChainRefusal::NoRule(del.switch.clone(), id).into());
        }
        let all: Vec<u32> = switch.steering.rules().iter().filter_map(|rule| rule.id).collect();
        self.change_steering(caller, &del.switch, |steering| {
            let ids = if del.rules.is_empty() { &all } else { &del.rules };
            ids.iter().for_each(|&id| steering.drop_rule(id));
            Ok(())
        })?;
        Ok(Reply::Done)
    }

    /// What its worker has counted. It is asked where a listing begins: the pages behind the first
    /// say of the same moment, and it goes on moving frames.
    fn report(&mut self, caller: &Caller, query: &SteeringQuery) -> Result<Arc<Report>, Refusal> {
        let switch = self.state.switch(caller, &query.switch, Access::Look)?;
        if let (Some(_), Some(report)) = (&query.from, &switch.listed) {
            return Ok(report.clone());
        }
        let report = Arc::new(self.datapath.chain_report(switch.key).unwrap_or_default());
        self.steered(&query.switch).listed = Some(report.clone());
        Ok(report)
    }

    fn chain_list(&mut self, caller: &Caller, query: &SteeringQuery) -> Result<Reply, Refusal> {
        let (name, report) = (&query.switch, self.report(caller, query)?);
        let lost = self.lost_of(name);
        let switch = self.state.switch(caller, name, Access::Look)?;
        let views = self.views(name);
        let from = query.from.as_deref().unwrap_or("");
        let CacheStats { hits, misses, evicted } = report.cache;
        let flow_cache = FlowCacheInfo { hits, misses, evicted };
        let idle = idle(switch);
        let rows = switch.steering.numbered().filter(|(_, chain)| chain.name.as_str() >= from);
        let rows = rows.map(|(number, chain)| {
            let enters = |port: &&View<'_>| port.role.chain.as_ref() == Some(&chain.name);
            let ports = views.iter().filter(enters).map(|port| port.name.to_owned()).collect();
            let counted = report.chains.get(usize::from(number)).cloned().unwrap_or_default();
            let services: BTreeSet<&str> = chain.service_names().collect();
            let drops = counted.drops.iter().filter(|(_, frames)| *frames > 0);
            let info = ChainInfo {
                chain: chain.clone(),
                number,
                ports,
                entered: counted.entered,
                shed: counted.drops.get(DropReason::ChainFull),
                early: counted.early,
                drops: drops.map(|(reason, frames)| (reason.name().to_owned(), frames)).collect(),
                lost: services.iter().filter_map(|service| lost.get(*service)).sum(),
                flow_cache,
                broken: idle.clone().or_else(|| broken_chain(chain, &views, &report)),
            };
            (chain.name.clone(), info)
        });
        Ok(Reply::Chains(page(rows)))
    }

    /// The chains of a switch that no frame passes, with the reason.
    pub(super) fn broken_chains(&mut self, name: &SwitchName) -> BTreeMap<String, String> {
        let Some(switch) = self.state.find_switch(name) else { return BTreeMap::new() };
        if switch.config.forwarding != Forwarding::Chain {
            return BTreeMap::new();
        }
        let report = self.datapath.chain_report(switch.key).unwrap_or_default();
        let (switch, views) = (self.state.find_switch(name), self.views(name));
        let chains = switch.into_iter().flat_map(|switch| switch.steering.numbered());
        let broken = |(_, chain): (u8, &ChainSpec)| {
            Some((chain.name.clone(), broken_chain(chain, &views, &report)?))
        };
        chains.filter_map(broken).collect()
    }

    /// Frames that functions held when they ended, by service.
    fn lost_of(&self, name: &SwitchName) -> BTreeMap<String, u64> {
        let ports = self.state.ports_of(name);
        let ports = ports.filter_map(|(name, port)| {
            let service = port.config.role.service.clone()?;
            Some((service, (name, port)))
        });
        let (services, ports): (Vec<_>, Vec<_>) = ports.unzip();
        let mut lost = BTreeMap::new();
        for (service, counted) in services.into_iter().zip(self.counters_of(&ports)) {
            *lost.entry(service).or_default() += counted.abandoned;
        }
        lost
    }

    fn rule_list(&mut self, caller: &Caller, query: &SteeringQuery) -> Result<Reply, Refusal> {
        let report = self.report(caller, query)?;
        let switch = self.state.switch(caller, &query.switch, Access::Look)?;
        let views = self.views(&query.switch);
        let from = query.from.as_deref().map(parse_rule).transpose()?;
        let mut rules = switch.steering.rules();
        rules.retain(|rule| from.is_none_or(|from| place_of(rule) >= from));
        rules.sort_by_key(place_of);
        let counted: BTreeMap<u32, Counters> = report.rules.iter().copied().collect();
        let idle = idle(switch);
        let rows = rules.into_iter().map(|rule| {
            let id = rule.id.unwrap_or_default();
            let Counters { frames, bytes } = counted.get(&id).copied().unwrap_or_default();
            let broken = idle.clone().or_else(|| broken_rule(&rule, switch, &views, &report));
            (format!("{}/{id}", rule.priority), RuleInfo { rule, frames, bytes, broken })
        });
        Ok(Reply::Rules(page(rows)))
    }

    fn function_list(&mut self, caller: &Caller, query: &SteeringQuery) -> Result<Reply, Refusal> {
        let (name, report) = (&query.switch, self.report(caller, query)?);
        let switch = self.state.switch(caller, name, Access::Look)?;
        let from = query.from.as_deref().map(parse_port).transpose()?;
        let ports = self
            .state
            .ports_of(name)
            .filter(|(name, _)| from.as_ref().is_none_or(|from| *name >= from));
        let ports: Vec<_> = ports.filter(|(_, port)| port.config.role.service.is_some()).collect();
        let counted = self.counters_of(&ports);
        let rows = ports.into_iter().zip(counted).map(|((name, port), counted)| {
            let info = self.function_info(&switch.steering, name, port, counted, &report);
            (name.to_string(), info)
        });
        Ok(Reply::Functions(page(rows)))
    }

    /// An instance of a service, with what its port and the worker have counted.
    fn function_info(
        &self,
        steering: &Steering,
        name: &PortName,
        port: &Port,
        counted: PortStats,
        report: &Report,
    ) -> FunctionInfo {
        let service = port.config.role.service.clone().unwrap_or_default();
        let number = steering.services().find(|(known, _)| *known == service);
        let id = self.datapath.number_of(port.key).and_then(|n| PortId::new(n.into()));
        let seen = report.instances.iter().find(|seen| Some(seen.port) == id);
        let holder = port.holder.as_ref().filter(|holder| holder.ready);
        let used = holder.map(|holder| Usage::of(holder.pid, holder.thread));
        let drops = |reason: DropReason| counted.drops.get(reason.name()).copied().unwrap_or(0);
        FunctionInfo {
            number: number.map_or(0, |(_, number)| number),
            service,
            instance: port.config.role.instance,
            port: name.clone(),
            pid: holder.map(|holder| holder.pid),
            user: holder.map(|holder| holder.uid),
            trust_group: holder.and_then(Holder::shown_group),
            waiting: seen.map_or(0, |seen| seen.waiting),
            capacity: seen.map_or(0, |seen| seen.capacity),
            cpu_ms: used.as_ref().and_then(|used| used.cpu_ms),
            thread: used.as_ref().and_then(|used| used.thread),
            cores: used.and_then(|used| used.cores),
            stalled: seen.is_some_and(|seen| seen.stalled),
            // A function counts its calls itself, and may write any number.
            frames_in: counted.rx.frames.saturating_add(counted.called_in),
            frames_out: counted
                .tx
                .frames
                .saturating_add(counted.called_out)
                .saturating_sub(drops(DropReason::Function)),
            called_in: counted.called_in,
            called_out: counted.called_out,
            lost: counted.abandoned,
            no_room: drops(DropReason::NoRoom),
            dropped: drops(DropReason::Function),
            drops: counted.drops,
            counts: holder.map(|holder| holder.counts.clone()).unwrap_or_default(),
            gauges: holder.map(|holder| holder.gauges.clone()).unwrap_or_default(),
        }
    }

    /// The process that runs a function says what that has counted.
    fn function_note(&mut self, caller: &Caller, note: FunctionNote) -> Result<Reply, Refusal> {
        let is_name = |name: &String| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            (1..=COUNT_NAME_MAX).contains(&name.len()) && name.bytes().all(is_letter)
        };
        let names = || note.counts.keys().chain(note.gauges.keys());
        if names().count() > COUNTS_MAX || !names().all(is_name) {
            let why = format!(
                "counts and gauges: at most {COUNTS_MAX}, named by letters, digits and '_'"
            );
            return Err(Refusal::bad_value(why));
        }
        let holder = self.state.port_mut(&note.port).and_then(|port| port.holder.as_mut());
        let its_own = |holder: &&mut Holder| {
            holder.ready && (holder.process, holder.uid) == (caller.process, caller.uid)
        };
        let holder =
            holder.filter(its_own).ok_or_else(|| PortRefusal::NotHeld(note.port.clone()))?;
        (holder.counts, holder.gauges) = (note.counts, note.gauges);
        Ok(Reply::Done)
    }
}

/// Where a rule is among those that are tried.
fn place_of(rule: &RuleSpec) -> (Reverse<u32>, u32) {
    (Reverse(rule.priority), rule.id.unwrap_or_default())
}

/// Where a page of rules begins: at this one, or at the next that is there.
fn parse_rule(text: &str) -> Result<(Reverse<u32>, u32), Refusal> {
    let place = text
        .split_once('/')
        .and_then(|(priority, id)| Some((Reverse(priority.parse().ok()?), id.parse().ok()?)));
    place.ok_or_else(|| Refusal::bad_value("from: no place among rules".to_owned()))
}

/// Whether a port carries frames now.
fn is_live(port: &str, views: &[View<'_>]) -> bool {
    views.iter().any(|view| view.name == port && view.id.is_some())
}

/// Why frames cannot pass a chain now.
fn broken_chain(chain: &ChainSpec, views: &[View<'_>], report: &Report) -> Option<String> {
    let stalls = |id| report.instances.iter().any(|seen| seen.port == id && seen.stalled);
    let idle = chain.services.iter().find_map(|service| {
        let name = service.split('@').next();
        let of_it = views.iter().filter(|port| port.role.service.as_deref() == name);
        let mut running = of_it.filter_map(|port| port.id).peekable();
        if running.peek().is_none() {
            return Some(format!("no process runs {service}"));
        }
        let why = || format!("no instance of {service} takes frames; see: uvala nf list");
        running.all(stalls).then(why)
    });
    let out = chain.out.as_ref().filter(|out| !is_live(out, views));
    let idle = idle.or_else(|| closed_exit(chain, views));
    idle.or(out.map(|out| {
        format!("no client holds port {out}: the switch drops frames that leave the chain")
    }))
}

/// Why no frame meets rules and chains of a switch.
fn idle(switch: &Switch) -> Option<String> {
    let name = show_forwarding(switch.config.forwarding);
    let why = || format!("unused: the switch's forwarding is {name}, not chain");
    (switch.config.forwarding != Forwarding::Chain).then(why)
}

/// Why a rule is for no frames now, or drops them.
fn broken_rule(
    rule: &RuleSpec,
    switch: &Switch,
    views: &[View<'_>],
    report: &Report,
) -> Option<String> {
    if let Some(why) = deaf(rule, views) {
        return Some(why);
    }
    let gone = |port: &&str| !is_live(port, views);
    if let Some(port) = rule.port.as_deref().filter(gone) {
        return Some(format!("no client holds port {port}: no frame arrives there"));
    }
    match rule.action.split_once(':')? {
        ("port", to) => {
            let why = || format!("no client holds port {to}: the switch drops the rule's frames");
            gone(&to).then(why)
        }
        (_, to) => {
            let (_, chain) = switch.steering.numbered().find(|(_, chain)| chain.name == to)?;
            broken_chain(chain, views, report).map(|why| format!("chain {to}: {why}"))
        }
    }
}

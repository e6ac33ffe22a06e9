//! Chains of functions: the way of a frame through network functions.
//!
//! # Theory of operation
//!
//! ```text
//!            rules, or the chain of its port         by its address, or to the chain's port
//!  port ──► enter ──► function ──► function ──► function ──► leave ──► port
//!             │          └───── hop ──┘ └─── hop ──┘            ▲
//!             └── no rule, no chain ────────────────────────────┘
//! ```
//!
//! The switch *classifies* a frame that comes in by an ordinary port: the first rule that matches
//! sets its way, else the chain of its port. A [cache] keeps the result for the flow. From then on
//! the switch does not read the frame again. The frame's [metadata] holds its chain and its place
//! in the chain, and moves with it from slot to slot. A port of a *service* may send frames that
//! are in a chain; the switch accepts the metadata of such a frame only within the operator's
//! chains.
//!
//! *Changes.* A chain whose list of services changes gets a new *order* with a number of its own.
//! Frames that are in the chain finish in the order by which they entered, so none skips a function
//! because places were renumbered. The switch knows the last [`PAST`] orders. It drops frames of
//! older ones, and frames with a place that is not their sender's: [`DropReason::Stale`]. Newer
//! frames of the same flows wait until the older ones have left (`gate`).
//!
//! At the end of its chain a frame goes to the chain's port, or by its address as in a learning
//! switch. The switch learns addresses where frames enter, and never forwards to a function by
//! address. The metadata that a function sends names the ingress port, and by it the VLAN; the
//! switch believes only ports by which frames do enter chains.
//!
//! *Overload.* If a later function of the chain has less than half of its ring free, the switch
//! drops the frame before the first function (`chain_full`), so that no function works on a frame
//! that is lost later.
//!
//! Services, chains and ports are numbers here. The control thread knows their names. It makes a
//! whole [`Plan`] whenever one changes, and a [`Planner`] turns the plan into tables, which a
//! worker only exchanges.
//!
//! [cache]: cache::FlowCache

pub mod cache;
pub(crate) mod classified;
mod classifier;
mod gate;
mod instances;
pub mod pace;
mod plan;
mod rule_table;
pub mod service;
pub(crate) mod steer;
mod tally;
mod way;

pub use packet::rule;

use packet::metadata::{self, HOPS_MAX, Metadata, POSITIONS};
use packet::{MAX_PORTS, PortId};

use crate::model::now::Now;
use crate::model::stats::{Counters, DropReason};
use cache::{Flow, FlowCache, MapTable};
use gate::Gate;
use pace::Pace;
use packet::flow::FlowKey;
pub use plan::{Chain, Out, Plan, Planner, ServicePlan, Tables};
use rule::{Action, RULES_MAX};
use rule_table::{Entry, Rules};
use service::{Instance, Service};
pub use tally::{ChainStats, InstanceReport, Report};

/// Most chains, and most services, of a switch.
pub const NUMBERS: usize = 256;
/// Most past orders of services by which frames may still finish.
pub const PAST: usize = 64;
/// Milliseconds without a frame after which the switch forgets a flow.
const IDLE_MS: u32 = 30_000;

impl Chain {
    /// Whether a service can send a frame with this position. The services before it can, too: a
    /// function may call those behind it in its thread. A service outside of the chain can send any
    /// frame, because a function may have sent the frame there.
    #[inline]
    fn has(&self, position: usize, service: u8) -> bool {
        let at = self.services.get(position);
        at == Some(&service) || at.is_some() && self.may_have(position, service)
    }

    fn may_have(&self, position: usize, service: u8) -> bool {
        self.is_before(position, service) || !self.services.contains(&service)
    }

    fn is_before(&self, position: usize, service: u8) -> bool {
        self.services.iter().take(position).any(|before| *before == service)
    }
}

impl Out {
    /// The way out of a frame that counts as coming from a port.
    fn leave(self, from: PortId) -> NextHop {
        match self {
            Self::Address => NextHop::Leave { from, out: None },
            Self::Port(port) => NextHop::Leave { from, out: Some(port) },
            Self::Nowhere => NextHop::Drop(DropReason::DeadPort),
        }
    }
}

/// What a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Role {
    /// Frames enter by it, into no chain unless a rule says otherwise.
    #[default]
    Unassigned,
    /// Frames enter by it, into this chain unless a rule says otherwise.
    Ingress(u8),
    /// An instance of this service.
    Instance(u8),
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// To a function, with this metadata.
    Function(PortId, Metadata),
    /// Out: to a port, or by its address. `from` is the port it counts as coming from.
    Leave { from: PortId, out: Option<PortId> },
    /// Nowhere.
    Drop(DropReason),
}

/// The tables of a switch whose forwarding function is `chain`.
pub struct Steering {
    roles: Box<[Role]>,
    /// Ports by which frames have entered chains: functions may name them as ingress ports.
    ingress: Box<[bool]>,
    services: Vec<Service>,
    chains: Vec<Option<Chain>>,
    past: Vec<(u8, Chain)>,
    /// By number, also of chains that are not there.
    chain_stats: Box<[ChainStats]>,
    rules: Rules,
    /// Frames of rules, by places.
    counted: Box<[Counters]>,
    cache: FlowCache,
    pace: Pace,
    gate: Gate,
    /// Comparisons of the turn with rules.
    compared: u64,
    seed: u64,
}

/// Stands for "no rule" in the flow cache.
const NO_RULE: u16 = u16::MAX;
const _: () = assert!(RULES_MAX < NO_RULE as usize);

impl Steering {
    /// Steers nothing yet; the flow cache has room for this many flows.
    #[must_use]
    pub fn new(seed: u64, flows: usize, map: MapTable) -> Self {
        Self {
            roles: vec![Role::Unassigned; MAX_PORTS].into_boxed_slice(),
            ingress: vec![false; MAX_PORTS].into_boxed_slice(),
            services: Vec::with_capacity(NUMBERS),
            chains: Vec::new(),
            past: Vec::new(),
            chain_stats: vec![ChainStats::default(); NUMBERS].into_boxed_slice(),
            rules: Rules::default(),
            counted: vec![Counters::default(); RULES_MAX].into_boxed_slice(),
            cache: FlowCache::new(flows, IDLE_MS, map),
            pace: Pace::new(),
            gate: Gate::default(),
            compared: 0,
            seed,
        }
    }

    /// The service that a port is an instance of.
    #[inline]
    pub(crate) fn service_of(&self, port: PortId) -> Option<u8> {
        match self.roles[port.index()] {
            Role::Instance(service) => Some(service),
            Role::Unassigned | Role::Ingress(_) => None,
        }
    }

    /// All instances, to update their state.
    pub(crate) fn services_mut(&mut self) -> &mut [Service] {
        &mut self.services
    }

    /// The chain that all frames of a port enter, where no rule could say otherwise and no choice
    /// depends on their flow.
    #[inline]
    pub(crate) fn plain_entry(&self, src: PortId) -> Option<u8> {
        let Role::Ingress(chain) = self.roles[src.index()] else { return None };
        let services = &self.chains.get(usize::from(chain))?.as_ref()?.services;
        let single = |&number: &u8| self.service(number).is_some_and(|s| s.only().is_some());
        if !self.rules.is_empty() || !services.iter().all(single) {
            return None;
        }
        Some(chain)
    }

    /// Changes how many flows the cache remembers. If the number is new, the cache starts empty,
    /// and its old tables are returned.
    pub fn set_flows(&mut self, flows: usize) -> Option<FlowCache> {
        let is_other = self.cache.capacity() != flows;
        is_other.then(|| self.cache.resized(flows))
    }

    /// Whether frames of this port have to wait for older ones. Frames of a function never wait,
    /// also if the port got its service meanwhile: others wait for it. [`Self::refresh_gate`] opens
    /// the gate.
    #[inline]
    pub(crate) fn shuts(&self, src: PortId) -> bool {
        self.gate.shuts(src) && self.service_of(src).is_none()
    }

    /// Opens the gate for ports that need not wait any longer. `look` notes what an instance has
    /// read and sent.
    pub(crate) fn refresh_gate(&mut self, now: Now, look: impl FnMut(&mut Instance)) {
        let Self { gate, services, chain_stats, .. } = self;
        if !gate.is_idle() {
            let early = |chain: u8| chain_stats[usize::from(chain)].early += 1;
            gate.refresh(services, now.as_ms(), look, early);
        }
    }

    /// Opens the gate for all ports.
    pub(crate) fn open_gate(&mut self) {
        self.gate.open();
    }

    /// Begins the turn of a port; returns how many frames it may take.
    #[inline]
    pub(crate) fn begin_turn(&mut self, src: PortId) -> u16 {
        self.compared = 0;
        let most = self.pace.most(src);
        debug_assert!(most > 0, "a port may always send");
        most
    }

    /// Ends the turn of a port that has taken this many frames.
    #[inline]
    pub(crate) fn end_turn(&mut self, src: PortId, frames: u32) {
        self.pace.note(src, frames, self.compared);
    }

    /// Housekeeping: if all flows have been silent for a while, returns the memory of the cache,
    /// which the caller frees.
    pub(crate) fn age(&mut self, now: Now) -> Option<FlowCache> {
        #[allow(clippy::cast_possible_truncation)] // reason: a clock that wraps.
        self.cache.age(now.as_ms() as u32)
    }

    /// The flow with this key, of a frame from an ordinary port.
    #[inline]
    pub(crate) fn flow(&self, key: FlowKey) -> Flow {
        let hash = key.hash(self.seed);
        if !self.rules.is_empty() {
            self.cache.fetch(hash);
        }
        Flow::new(key, hash)
    }

    /// Prefetches the cache entries of flows.
    #[inline]
    pub(crate) fn locate(&self, flows: &mut [Flow]) {
        if !self.rules.is_empty() {
            flows.iter_mut().for_each(|flow| self.cache.locate(flow));
        }
    }

    /// Where a frame goes that comes in by an ordinary port.
    #[inline]
    pub(crate) fn enter(&mut self, src: PortId, flow: &Flow, len: u32, now: Now) -> NextHop {
        let hash = flow.hash;
        let found = if self.rules.is_empty() { NO_RULE } else { self.find(flow, now) };
        let rule = self.rules.get(found);
        if let Some(rule) = rule {
            self.counted[usize::from(rule.place)].add(1, u64::from(len));
        }
        match self.action(src, rule) {
            Action::Drop => NextHop::Drop(DropReason::Rule),
            Action::Port(port) => NextHop::Leave { from: src, out: Some(port) },
            Action::Forward => NextHop::Leave { from: src, out: None },
            Action::Chain(chain) => self.start(chain, hash, src),
        }
    }

    /// What is done with a frame from an ordinary port for which this rule was found.
    #[inline]
    fn action(&self, src: PortId, rule: Option<Entry>) -> Action {
        match (rule, self.roles[src.index()]) {
            (Some(rule), _) => rule.action,
            (None, Role::Ingress(chain)) => Action::Chain(chain),
            (None, Role::Unassigned | Role::Instance(_)) => Action::Forward,
        }
    }

    fn find(&mut self, flow: &Flow, now: Now) -> u16 {
        #[allow(clippy::cast_possible_truncation)] // reason: a clock that wraps.
        let now_ms = now.as_ms() as u32;
        if let Some(found) = self.cache.get(flow, now_ms) {
            return found;
        }
        let (found, compared) = self.rules.find(&flow.key);
        debug_assert!(found.is_none_or(|found| found < NO_RULE), "a rule has a number");
        self.compared += u64::from(compared);
        let found = found.unwrap_or(NO_RULE);
        self.cache.put(flow, found, now_ms);
        found
    }

    /// Into a chain, if all its functions have room.
    #[inline]
    pub(crate) fn start(&mut self, number: u8, hash: u32, src: PortId) -> NextHop {
        let Some(Some(chain)) = self.chains.get(usize::from(number)) else {
            return NextHop::Drop(DropReason::NoInstance);
        };
        if let Some(reason) = self.closed(chain, hash) {
            return self.drop_in(number.into(), reason);
        }
        let Some(&first) = chain.services.first() else {
            return chain.out.leave(src);
        };
        self.chain_stats[usize::from(number)].entered += 1;
        self.ingress[src.index()] = true;
        self.go_to_service(first, Metadata::entering(hash, src, number, chain.order))
    }

    /// Why a frame with this hash may not enter a chain now, if it may not.
    #[inline]
    fn closed(&self, chain: &Chain, hash: u32) -> Option<DropReason> {
        chain.services.iter().enumerate().find_map(|(position, &service)| {
            match self.service(service).and_then(|service| service.owner(hash)) {
                None => Some(DropReason::NoInstance),
                Some(owner) => (position > 0 && owner.crowded).then_some(DropReason::ChainFull),
            }
        })
    }

    /// The chain that a frame is in, as it was when the frame came.
    #[inline]
    fn chain(&self, meta: Metadata) -> Option<&Chain> {
        match self.chains.get(meta.chain()) {
            Some(Some(chain)) if chain.order == meta.order() => Some(chain),
            _ => self.past_chain(meta),
        }
    }

    #[cold]
    fn past_chain(&self, meta: Metadata) -> Option<&Chain> {
        let is_its = |(number, chain): &&(u8, Chain)| {
            usize::from(*number) == meta.chain() && chain.order == meta.order()
        };
        self.past.iter().find(is_its).map(|(_, chain)| chain)
    }

    #[inline]
    fn service(&self, number: u8) -> Option<&Service> {
        self.services.get(usize::from(number))
    }

    #[inline]
    fn go_to_service(&mut self, number: u8, meta: Metadata) -> NextHop {
        let service = self.services.get_mut(usize::from(number));
        match service.and_then(|service| service.pick(meta.hash())) {
            Some(port) => NextHop::Function(port, meta),
            None => self.drop_in(meta.chain(), DropReason::NoInstance),
        }
    }

    /// A frame ends in a chain.
    fn drop_in(&mut self, chain: usize, reason: DropReason) -> NextHop {
        if let Some(stats) = self.chain_stats.get_mut(chain) {
            stats.drops.add(reason, 1);
        }
        NextHop::Drop(reason)
    }

    /// Where a frame goes that the port `src` of a service sends. `named` is the service that it
    /// asks for, where it does.
    #[inline]
    pub(crate) fn hop(&mut self, src: PortId, own: u8, meta: Metadata, named: u8) -> NextHop {
        if meta.hops() >= HOPS_MAX {
            return self.drop_in(meta.chain(), DropReason::ChainLoop);
        }
        let next_hop = match meta.action() {
            metadata::Action::Next => self.next(src, own, meta),
            metadata::Action::Drop => self.drop_in(meta.chain(), DropReason::Function),
            metadata::Action::Service if usize::from(named) >= self.services.len() => {
                self.drop_in(meta.chain(), DropReason::BadAction)
            }
            metadata::Action::Service => {
                let position = self.position(meta, named).unwrap_or(meta.position());
                self.go_to_service(named, meta.moved(position))
            }
            metadata::Action::Port => self.go_to_port(src, meta),
        };
        match next_hop {
            // The function would get its own frame again, for ever.
            NextHop::Function(port, _) if port == src => {
                self.count_sent(port, -1);
                self.drop_in(meta.chain(), DropReason::SamePort)
            }
            next_hop => next_hop,
        }
    }

    /// Whether the next hop of a frame from a service depends on the decision bits of its metadata
    /// only.
    #[inline]
    pub(crate) fn is_single(&self, own: u8, meta: Metadata) -> bool {
        match meta.action() {
            metadata::Action::Next => {}
            metadata::Action::Drop => return true,
            metadata::Action::Port => return self.service_of(meta.port()).is_none(),
            metadata::Action::Service => return false,
        }
        let Some(chain) = self.chain(meta) else { return false };
        let at = meta.position();
        let is_own = chain.services.get(at) == Some(&own);
        if !is_own && (at >= chain.services.len() || !chain.is_before(at, own)) {
            return false;
        }
        let next = chain.services.get(at + 1);
        next.is_none_or(|&next| self.service(next).is_some_and(|next| next.only().is_some()))
    }

    /// A function that names a port of a service has chosen the instance itself. The metadata then
    /// has no room for the ingress port: the frame counts as the function's own.
    fn go_to_port(&mut self, src: PortId, meta: Metadata) -> NextHop {
        let port = meta.port();
        match self.service_of(port) {
            Some(service) => {
                let position = self.position(meta, service).unwrap_or(meta.position());
                let all = self.services.get_mut(usize::from(service));
                let mut instances = all.into_iter().flat_map(Service::instances_mut);
                if let Some(instance) = instances.find(|instance| instance.port == port) {
                    instance.sent = instance.sent.wrapping_add(1);
                }
                NextHop::Function(port, meta.moved(position).with_port(src))
            }
            None => NextHop::Leave { from: src, out: Some(port) },
        }
    }

    /// Where in its chain a service is, seen from where a frame is.
    fn position(&self, meta: Metadata, service: u8) -> Option<usize> {
        let chain = self.chain(meta)?;
        let after = (meta.position() + 1..chain.services.len()).chain(0..=meta.position());
        let mut after = after.filter(|&at| at < POSITIONS);
        after.find(|&at| chain.services.get(at) == Some(&service))
    }

    /// Behind the service that has sent the frame.
    #[inline]
    fn next(&mut self, src: PortId, own: u8, meta: Metadata) -> NextHop {
        let Some(chain) = self.chain(meta).filter(|chain| chain.has(meta.position(), own)) else {
            return self.drop_in(meta.chain(), DropReason::Stale);
        };
        match chain.services.get(meta.position() + 1) {
            Some(&service) => self.go_to_service(service, meta.moved(meta.position() + 1)),
            None => self.leave(src, meta, chain.out),
        }
    }

    /// Out of a chain, in the name of the ingress port. Only the function's metadata says which
    /// port that is; it may name functions, and ports whose frames the operator sends into chains.
    #[inline]
    fn leave(&mut self, src: PortId, meta: Metadata, out: Out) -> NextHop {
        let from = if meta.is_turned() { src } else { meta.port() };
        if from != src && !self.ingress[from.index()] && self.service_of(from).is_none() {
            return self.drop_in(meta.chain(), DropReason::Ingress);
        }
        match out {
            Out::Nowhere => self.drop_in(meta.chain(), DropReason::DeadPort),
            Out::Address | Out::Port(_) => out.leave(from),
        }
    }
}

#[cfg(test)]
mod tests;

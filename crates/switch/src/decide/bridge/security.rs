//! Port security as the bridge enforces it: locked source addresses, limits for floods, disabled
//! ports.
//!
//! A port without such settings has no [`Guard`], and its frames pay for one look at that. For the
//! others the bridge asks the guard once for each verdict, except for the limits: these count the
//! frames of each flood.
//!
//! What a guard says of a header does not change while the bridge's generation stays the same, so
//! verdicts can be cached: a lock that is not full admits a new address, and then goes on admitting
//! it.

use packet::ethernet::Header;
use packet::{MacAddr, MacList, MacLock, PortId};

use super::Bridge;
use crate::decide::forward::FloodClass;
use crate::decide::loops::Loop;
use crate::model::config::PortConfig;
use crate::model::now::Now;
use crate::model::security::{Disabled, PortSecurity, SecurityState};
use crate::model::stats::DropReason;

/// What a port may send, and what it has sent.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    settings: PortSecurity,
    state: SecurityState,
    buckets: [Bucket; FloodClass::COUNT],
    /// The port was disabled, and [`Bridge::take_news`] has not said so yet.
    is_news: bool,
}

impl Guard {
    /// The guard of a port with these settings; none where nothing has to be guarded.
    pub(super) fn new(settings: PortSecurity, state: SecurityState) -> Option<Box<Self>> {
        let is_needed = settings.is_on() || state.disabled.is_some();
        let buckets = [Bucket::default(); FloodClass::COUNT];
        is_needed.then(|| Box::new(Self { settings, state, buckets, is_news: false }))
    }

    /// Why a frame may not enter, if it may not.
    fn refuse(&mut self, header: Header) -> Option<DropReason> {
        if self.settings.bpdu_filter == Some(true) && is_bpdu(header) {
            return Some(DropReason::BpduFilter);
        }
        let is_bpdu = self.settings.bpdu_guard == Some(true) && is_bpdu(header);
        if is_bpdu || self.state.disabled.is_some() {
            return Some(DropReason::Disabled);
        }
        let src = header.src();
        let admitted = match &self.settings.mac_lock {
            None | Some(MacLock::Off) => true,
            Some(MacLock::Only(macs)) => macs.contains(src),
            Some(MacLock::First(most)) => {
                let macs = &mut self.state.first_macs;
                let has_room = macs.as_slice().len() < usize::from(*most);
                macs.contains(src) || has_room && src.is_station() && macs.insert(src)
            }
        };
        (!admitted).then_some(DropReason::MacLock)
    }
}

/// Whether this is a frame of a spanning tree protocol. The address and the length field identify
/// it: what follows is behind the bytes that make a verdict.
pub(super) fn is_bpdu(header: Header) -> bool {
    header.dst() == MacAddr::BRIDGE_GROUP && header.ethertype().is_length()
}

/// What an operator wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The switch has disabled a port.
    Disabled(PortId, Disabled),
    /// A loop has begun.
    Loop(Loop),
}

/// A token bucket: as many frames as the limit at once, and as many in each second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// Thousandths of frames that are gone from a full bucket.
    taken: u64,
    at: Now,
}

impl Bucket {
    /// Takes a token for each of `frames`; false if there are fewer.
    pub(crate) fn take(&mut self, limit: u32, frames: u32, now: Now) -> bool {
        let limit = u64::from(limit);
        self.taken = self.taken.saturating_sub(now.ms_since(self.at).saturating_mul(limit));
        // The clocks of workers are not quite one.
        self.at = self.at.max(now);
        let taken = self.taken + u64::from(frames) * 1000;
        let has_enough = taken <= limit * 1000;
        if has_enough {
            self.taken = taken;
        }
        has_enough
    }
}

impl Bridge {
    /// Why a frame that enters by this port is dropped before anything else is asked.
    #[inline]
    pub(super) fn refuse(&mut self, src: PortId, header: Header) -> Option<DropReason> {
        match self.guards.get(src.index()) {
            Some(Some(_)) => self.refuse_guarded(src, header),
            _ => None,
        }
    }

    #[inline(never)]
    fn refuse_guarded(&mut self, src: PortId, header: Header) -> Option<DropReason> {
        let guard = self.guards[src.index()].as_mut()?;
        let reason = guard.refuse(header);
        if reason == Some(DropReason::Disabled) && guard.state.disabled.is_none() {
            self.disable(src, Disabled::BpduGuard);
        }
        reason
    }

    /// The guard of a port, for the replica whose worker takes the port over.
    pub(crate) fn guard(&self, port: PortId) -> Option<Box<Guard>> {
        let guard = self.guards.get(port.index())?.as_ref()?;
        // This replica reports what it has found.
        Some(Box::new(Guard { is_news: false, ..(**guard).clone() }))
    }

    /// Guards a port as the replica did from which it comes. What this one has heard of the port
    /// stays.
    pub(crate) fn take_guard(&mut self, port: PortId, guard: Option<Box<Guard>>) {
        let disabled = self.security_state(port).disabled;
        if let (Some(place), Some(mut guard)) = (self.guards.get_mut(port.index()), guard) {
            guard.state.disabled = guard.state.disabled.or(disabled);
            *place = Some(guard);
            self.changes += 1;
        }
    }

    /// What [`refuse`](Self::refuse) would say of a frame now. The guard remembers nothing of it.
    pub(crate) fn would_refuse(&self, src: PortId, header: Header) -> Option<DropReason> {
        self.guards.get(src.index())?.as_ref()?.clone().refuse(header)
    }

    /// Disables a port that has a guard, and reports it.
    #[cold]
    fn disable(&mut self, port: PortId, why: Disabled) {
        self.disable_port(port, why);
        if let Some(Some(guard)) = self.guards.get_mut(port.index()) {
            guard.is_news = true;
            self.has_news = true;
        }
    }

    /// Disables a port that has a guard, as another worker's replica of the switch has done.
    pub fn disable_port(&mut self, port: PortId, why: Disabled) {
        if let Some(Some(guard)) = self.guards.get_mut(port.index()) {
            guard.state.disabled = Some(why);
            self.members.remove(port);
            self.changes += 1;
        }
    }

    /// Disables a port of a loop, if one is to be disabled. Of two, that is the one that the
    /// address came to, which is not where its station is.
    fn break_loop(&mut self, found: Loop) {
        let protected = |port: &PortId| {
            let guard = self.guards.get(port.index()).and_then(Option::as_ref);
            guard.is_some_and(|guard| guard.settings.loop_protect == Some(true))
        };
        let is_broken = found.ports.iter().any(|&port| self.is_disabled(port));
        if let Some(&port) = found.ports.iter().rev().find(|port| protected(port))
            && !is_broken
        {
            self.disable(port, Disabled::LoopProtect);
        }
    }

    /// Whether the switch has disabled a port, and [`take_news`](Self::take_news) has not said so.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// What has happened since the last call: a port was disabled, or a loop has begun.
    pub fn take_news(&mut self) -> Option<News> {
        if let Some((found, is_new)) = self.fdb.take_found_loop() {
            self.break_loop(found);
            if is_new {
                return Some(News::Loop(found));
            }
        }
        if !self.has_news {
            return None;
        }
        let told = |(at, guard): (usize, &mut Option<Box<Guard>>)| {
            let guard = guard.as_mut()?;
            let is_news = std::mem::take(&mut guard.is_news);
            Some(News::Disabled(PortId::new(at)?, guard.state.disabled.filter(|_| is_news)?))
        };
        let news = self.guards.iter_mut().enumerate().find_map(told);
        self.has_news = news.is_some();
        news
    }

    /// Enables a port that the switch has disabled.
    pub fn enable_port(&mut self, port: PortId) {
        let Some(Some(guard)) = self.guards.get_mut(port.index()) else { return };
        if guard.state.disabled.take().is_some()
            && let Some(Some(config)) = self.ports.get(port.index())
        {
            self.members.add(port, config);
            self.changes += 1;
        }
    }

    /// Whether the port gets no BPDUs.
    pub(super) fn filters_bpdus(&self, port: PortId) -> bool {
        let guard = self.guards.get(port.index()).and_then(Option::as_ref);
        guard.is_some_and(|guard| guard.settings.bpdu_filter == Some(true))
    }

    /// Whether the switch has disabled the port.
    #[inline]
    pub(super) fn is_disabled(&self, port: PortId) -> bool {
        let guard = self.guards.get(port.index());
        guard.is_some_and(|it| it.as_ref().is_some_and(|guard| guard.state.disabled.is_some()))
    }

    /// Whether floods from this port have a limit.
    #[inline]
    #[must_use]
    pub fn has_flood_limits(&self, src: PortId) -> bool {
        let guard = self.guards.get(src.index()).and_then(Option::as_ref);
        guard.is_some_and(|guard| {
            FloodClass::ALL.iter().any(|&class| guard.settings.flood_limit(class).is_some())
        })
    }

    /// Whether the port may flood one more frame of this class now, which counts for `frames`.
    pub fn may_flood(&mut self, src: PortId, class: FloodClass, frames: u32, now: Now) -> bool {
        let Some(Some(guard)) = self.guards.get_mut(src.index()) else { return true };
        let Some(limit) = guard.settings.flood_limit(class) else { return true };
        guard.buckets[class.index()].take(limit, frames, now)
    }

    /// Whether the port could flood one more frame of this class now; it counts for nothing.
    pub(crate) fn could_flood(&self, src: PortId, class: FloodClass, now: Now) -> bool {
        let Some(Some(guard)) = self.guards.get(src.index()) else { return true };
        let mut bucket = guard.buckets[class.index()];
        guard.settings.flood_limit(class).is_none_or(|limit| bucket.take(limit, 1, now))
    }

    /// What port security remembers of a port.
    #[must_use]
    pub fn security_state(&self, port: PortId) -> SecurityState {
        let guard = self.guards.get(port.index()).and_then(Option::as_ref);
        guard.map_or_else(SecurityState::default, |guard| guard.state)
    }

    /// The settings of a port, with those of the switch where it has none of its own.
    pub(super) fn security_of(&self, config: &PortConfig) -> PortSecurity {
        config.security.or(self.config.security)
    }

    /// Gives a port the guard that its settings ask for. It keeps what the guard before remembers,
    /// but no addresses of another lock.
    pub(super) fn set_guard(&mut self, port: PortId, config: &PortConfig) {
        let settings = self.security_of(config);
        let Some(old) = self.guards[port.index()].take() else {
            self.guards[port.index()] = Guard::new(settings, SecurityState::default());
            return;
        };
        let same_lock = old.settings.mac_lock == settings.mac_lock;
        let first_macs = if same_lock { old.state.first_macs } else { MacList::default() };
        let guard = Guard::new(settings, SecurityState { first_macs, ..old.state });
        let kept = |guard| Box::new(Guard { buckets: old.buckets, is_news: old.is_news, ..guard });
        self.guards[port.index()] = guard.map(|guard| kept(*guard));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_bucket_lets_as_many_pass_in_a_second_as_its_limit() {
        let mut bucket = Bucket::default();
        let mut passed = |ms: u64| bucket.take(10, 1, Now::from_ms(ms));
        assert_eq!((0..100).filter(|_| passed(5000)).count(), 10);
        let later = (0..1000).filter(|&ms| passed(5000 + ms)).count();
        assert!((9..=10).contains(&later), "{later}");
        assert_eq!((0..100).filter(|_| passed(90_000)).count(), 10, "it holds no more");
    }

    #[test]
    fn test_frame_of_many_segments_counts_for_all_of_them() {
        let mut bucket = Bucket::default();
        assert!(!bucket.take(10, 11, Now::START));
        assert!(bucket.take(10, 10, Now::START) && !bucket.take(10, 1, Now::START));
    }
}

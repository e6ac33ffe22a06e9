//! A service: the instances of a function, and the instance that gets a frame.
//!
//! # Theory of operation
//!
//! The hash of a flow selects one of [`BUCKETS`] buckets, and each bucket belongs to one instance,
//! by highest random weight: each pair of bucket and instance number has a weight, and the running
//! instance with the highest weight gets the bucket. So a new instance takes an even share from all
//! others, an instance that ends leaves its buckets to all others, and no other bucket moves. An
//! instance that returns under its old number gets its old flows.
//!
//! *Order.* A bucket moves only when its instance is done with it: the instance has read the
//! bucket's last frame, and the switch has taken what the instance sent. So no frame overtakes
//! another. Buckets of an instance that is gone or stalled move at once.
//!
//! *Least loaded.* With [`Balance::Least`], a bucket that its instance is done with may move to any
//! instance, and moves to the one with the most room.

use std::cmp::Ordering;

use packet::PortId;

use packet::hash::folded_multiply;

/// Buckets over which the flows of a service are distributed.
pub const BUCKETS: usize = 1024;
const _: () = assert!(BUCKETS.is_power_of_two(), "a hash finds its bucket by a mask");
/// Most instances of a service.
pub const INSTANCES_MAX: usize = 64;
const _: () = assert!(INSTANCES_MAX <= 64, "a set of instances is a word");
/// An instance that has frames and reads none for so long is stalled, in milliseconds.
pub const STALL_MS: u64 = 300;

/// How instances are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// By the flow's hash.
    #[default]
    Hash,
    /// New flows, and flows after a pause, go to the instance with the most room.
    Least,
}

/// An instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The port of the instance.
    pub port: PortId,
    /// The number of the instance, which stays the same.
    pub number: u16,
    /// Frames that were delivered to it; wraps.
    pub(crate) sent: u32,
    /// Frames in the ring, as of the last look.
    pub(crate) pending: u32,
    /// Free slots of the ring, as of the last look.
    pub(crate) room: u32,
    /// Slots of the ring.
    pub(crate) capacity: u32,
    /// There is less than half of its ring free.
    pub(crate) crowded: bool,
    /// The switch has taken all frames that it has sent.
    pub(crate) drained: bool,
    /// Whether the instance has frames and reads none.
    pub stalled: bool,
    /// The number of frames read at the last check, and when it changed.
    seen: Option<(u32, u64)>,
}

impl Instance {
    /// An instance that has got no frame yet.
    #[must_use]
    pub fn new(port: PortId, number: u16) -> Self {
        Self {
            port,
            number,
            sent: 0,
            pending: 0,
            room: u32::MAX,
            capacity: 0,
            crowded: false,
            drained: true,
            stalled: false,
            seen: None,
        }
    }

    /// The number of frames that it has read.
    fn read(&self) -> u32 {
        self.sent.wrapping_sub(self.pending)
    }

    /// Whether the instance has finished the frame that was delivered as number `last`.
    pub(super) fn is_past(&self, last: u32) -> bool {
        let read = self.pending == 0 || self.read().wrapping_sub(last) < 1 << 31;
        read && self.drained
    }

    /// Checks whether the instance reads frames; true if `stalled` has changed.
    fn check_stalls(&mut self, now_ms: u64) -> bool {
        let before = self.seen.filter(|&(read, _)| self.pending > 0 && read == self.read());
        let (_, since) = *self.seen.insert(before.unwrap_or((self.read(), now_ms)));
        let stalled = now_ms.saturating_sub(since) >= STALL_MS;
        std::mem::replace(&mut self.stalled, stalled) != stalled
    }
}

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Index of its instance, and of the instance that it should have.
    owner: u16,
    wanted: u16,
    /// The number of its last frame at that instance.
    last: u32,
}

const NONE: u16 = u16::MAX;

/// A service.
pub struct Service {
    balance: Balance,
    instances: Vec<Instance>,
    buckets: Box<[Bucket]>,
    /// The instances that the last weighing considered, one bit each.
    weighed: u64,
    /// Whether a bucket is not at the instance that it should have.
    moving: bool,
}

impl Service {
    /// A service without instances.
    #[must_use]
    pub fn new() -> Self {
        let bucket = Bucket { owner: NONE, wanted: NONE, last: 0 };
        Self {
            balance: Balance::Hash,
            instances: Vec::new(),
            buckets: vec![bucket; BUCKETS].into_boxed_slice(),
            weighed: 0,
            moving: false,
        }
    }

    /// A service with these instances, in their initial state.
    #[must_use]
    pub fn planned(balance: Balance, instances: &[(PortId, u16)]) -> Self {
        let instances = instances.iter().take(INSTANCES_MAX);
        let instances = instances.map(|&(port, number)| Instance::new(port, number)).collect();
        let mut service = Self { balance, instances, ..Self::new() };
        service.rebalance();
        service
    }

    /// Removes an instance: the others get its buckets at once.
    pub(crate) fn remove_port(&mut self, port: PortId) {
        let Some(at) = self.instances.iter().position(|instance| instance.port == port) else {
            return;
        };
        self.instances.remove(at);
        assert!(at < INSTANCES_MAX, "a set of instances is a word");
        let before = (1 << at) - 1;
        self.weighed = self.weighed & before | self.weighed >> 1 & !before;
        let renumber = |index: u16| match usize::from(index).cmp(&at) {
            Ordering::Equal => NONE,
            Ordering::Greater if index != NONE => index - 1,
            _ => index,
        };
        for bucket in &mut self.buckets {
            (bucket.owner, bucket.wanted) = (renumber(bucket.owner), renumber(bucket.wanted));
        }
        self.rebalance();
    }

    /// Replaces another: instances that stay keep their state, and buckets stay with them until
    /// they can move. Only the buckets of stalled instances are weighed again.
    pub(crate) fn take_over(&mut self, old: &Self) {
        assert!(old.instances.len() <= INSTANCES_MAX, "each has a place");
        let mut moved = [NONE; INSTANCES_MAX];
        for (at, new) in (0..).zip(&mut self.instances) {
            let mut others = old.instances.iter();
            let Some(was) = others.position(|instance| instance.port == new.port) else { continue };
            moved[was] = at;
            if old.instances[was].number == new.number {
                *new = old.instances[was];
            }
        }
        let alone = old.only().map(|only| only.sent);
        for (bucket, was) in self.buckets.iter_mut().zip(&old.buckets) {
            bucket.owner = moved.get(usize::from(was.owner)).copied().unwrap_or(NONE);
            // With one instance, the switch does not note the bucket of a frame: any may be its
            // last.
            bucket.last = alone.unwrap_or(was.last);
        }
        self.rebalance();
    }

    /// The instances.
    #[must_use]
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    pub(crate) fn instances_mut(&mut self) -> &mut [Instance] {
        &mut self.instances
    }

    /// The only instance, if there is one only.
    #[inline]
    pub(crate) fn only(&self) -> Option<&Instance> {
        match &self.instances[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Whether the switch needs the exact state of the instances, not only their room.
    pub(crate) fn is_moving(&self) -> bool {
        self.moving || self.balance == Balance::Least && self.instances.len() > 1
    }

    fn rebalance(&mut self) {
        self.weigh();
        self.hand_over();
    }

    /// The instances that may get buckets, one bit each: stalled ones only if all are stalled.
    fn usable(&self) -> u64 {
        let instances = self.instances.iter().enumerate();
        let [all, stalled] = instances.fold([0, 0], |[all, stalled], (at, instance)| {
            [all | 1 << at, stalled | u64::from(instance.stalled) << at]
        });
        if all == stalled { all } else { all & !stalled }
    }

    /// Finds the instance that each bucket should have. Where the winner of the last time is still
    /// there, only new instances are compared with it; else all are.
    fn weigh(&mut self) {
        let usable = self.usable();
        let new = usable & !self.weighed;
        for (number, bucket) in (0u64..).zip(&mut self.buckets) {
            let winner = 1u64.checked_shl(bucket.wanted.into()).unwrap_or(0) & usable;
            let among = if winner == 0 { usable } else { winner | new };
            if among != winner {
                bucket.wanted = heaviest(number, among, &self.instances);
            }
        }
        debug_assert!(
            usable == 0
                || self.buckets.iter().all(|it| usize::from(it.wanted) < self.instances.len()),
            "where there are instances, each bucket has one"
        );
        self.weighed = usable;
    }

    /// Moves buckets without an instance, or with a stalled one, at once.
    fn hand_over(&mut self) {
        let usable = self.usable();
        self.moving = false;
        for bucket in &mut self.buckets {
            let owner = 1u64.checked_shl(bucket.owner.into()).unwrap_or(0);
            if owner & usable == 0 {
                bucket.owner = bucket.wanted;
            }
            self.moving |= bucket.owner != bucket.wanted;
        }
    }

    /// The instance that would get a frame with this hash now.
    #[inline]
    pub(crate) fn owner(&self, hash: u32) -> Option<&Instance> {
        match self.only() {
            Some(only) => Some(only),
            None => {
                let bucket = self.buckets[hash as usize & (BUCKETS - 1)];
                self.instances.get(usize::from(bucket.owner))
            }
        }
    }

    /// Selects the instance for a frame with this hash, and counts the frame.
    #[inline]
    pub(crate) fn pick(&mut self, hash: u32) -> Option<PortId> {
        if self.instances.len() <= 1 {
            let only = self.instances.first_mut()?;
            only.sent = only.sent.wrapping_add(1);
            return Some(only.port);
        }
        debug_assert!(self.instances.len() <= INSTANCES_MAX, "a set of instances is a word");
        let owner = self.next_owner(hash);
        let bucket = &mut self.buckets[hash as usize & (BUCKETS - 1)];
        bucket.owner = owner;
        let instance = self.instances.get_mut(usize::from(bucket.owner))?;
        instance.sent = instance.sent.wrapping_add(1);
        instance.pending = instance.pending.saturating_add(1);
        instance.room = instance.room.saturating_sub(1);
        bucket.last = instance.sent;
        Some(instance.port)
    }

    /// The instance that [`pick`](Self::pick) would select.
    pub(crate) fn peek(&self, hash: u32) -> Option<PortId> {
        let instance = match self.only() {
            Some(only) => Some(only),
            None => self.instances.get(usize::from(self.next_owner(hash))),
        };
        instance.map(|instance| instance.port)
    }

    /// The index of the instance for the next frame of a bucket, which moves to another one when
    /// its instance is done with it.
    #[inline]
    fn next_owner(&self, hash: u32) -> u16 {
        let bucket = self.buckets[hash as usize & (BUCKETS - 1)];
        let least = self.balance == Balance::Least;
        if !least && bucket.owner == bucket.wanted {
            return bucket.owner;
        }
        let owner = self.instances.get(usize::from(bucket.owner));
        match owner.is_none_or(|owner| owner.is_past(bucket.last)) {
            true if least => emptiest(&self.instances),
            true => bucket.wanted,
            false => bucket.owner,
        }
    }

    /// Checks which instances are stalled; true if that has changed.
    pub(crate) fn check_stalls(&mut self, now_ms: u64) -> bool {
        let watch = |changed, instance: &mut Instance| instance.check_stalls(now_ms) | changed;
        let changed = self.instances.iter_mut().fold(false, watch);
        if changed {
            self.rebalance();
        } else if self.moving {
            self.moving = self.buckets.iter().any(|bucket| bucket.owner != bucket.wanted);
        }
        changed
    }
}

impl Default for Service {
    fn default() -> Self {
        Self::new()
    }
}

/// The instance with the most room.
fn emptiest(instances: &[Instance]) -> u16 {
    let usable = instances.iter().enumerate().filter(|(_, instance)| !instance.stalled);
    let most = usable.max_by_key(|(_, instance)| instance.room).map(|(at, _)| at);
    narrow(most.or((!instances.is_empty()).then_some(0)))
}

/// The instance with the highest weight for a bucket, among those whose bits are set.
fn heaviest(bucket: u64, among: u64, instances: &[Instance]) -> u16 {
    let key = bucket.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x51;
    let among = instances.iter().enumerate().filter(|(at, _)| among >> at & 1 == 1);
    let weight =
        |(_, instance): &(usize, &Instance)| folded_multiply(key, weight_of(instance.number));
    narrow(among.max_by_key(weight).map(|(at, _)| at))
}

fn weight_of(number: u16) -> u64 {
    folded_multiply(u64::from(number) + 1, 0xd6e8_feb8_6659_fd93) | 1
}

fn narrow(index: Option<usize>) -> u16 {
    index.and_then(|index| u16::try_from(index).ok()).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(index: usize) -> PortId {
        PortId::new(index).unwrap()
    }

    fn service(numbers: &[u16]) -> Service {
        let mut service = Service::new();
        set(&mut service, numbers);
        service
    }

    /// Instance `n` is on port `n + 10`.
    fn set(service: &mut Service, numbers: &[u16]) {
        let instances: Vec<_> = numbers.iter().map(|&n| (port(usize::from(n) + 10), n)).collect();
        plan(service, Balance::Hash, &instances);
    }

    /// Control has planned it.
    fn plan(service: &mut Service, balance: Balance, instances: &[(PortId, u16)]) {
        let mut new = Service::planned(balance, instances);
        new.take_over(service);
        *service = new;
    }

    fn map(service: &mut Service) -> Vec<usize> {
        (0..1024).map(|hash| service.pick(hash).unwrap().index()).collect()
    }

    /// All have read everything.
    fn drain(service: &mut Service) {
        service.instances_mut().iter_mut().for_each(|instance| instance.pending = 0);
    }

    #[test]
    fn test_one_that_comes_takes_its_share_and_moves_nothing_else() {
        let mut service = service(&[0, 1, 2, 3]);
        let before = map(&mut service);
        for number in 0..4 {
            let share = before.iter().filter(|&&at| at == number + 10).count();
            assert!((190..330).contains(&share), "{number} has {share}");
        }
        drain(&mut service);
        set(&mut service, &[0, 1, 2, 3, 4]);
        let after = map(&mut service);
        let moved: Vec<_> = before.iter().zip(&after).filter(|(a, b)| a != b).collect();
        assert!(moved.iter().all(|&(_, &now)| now == 14), "only to the new one");
        assert!((140..270).contains(&moved.len()), "{} moved", moved.len());
        drain(&mut service);
        set(&mut service, &[0, 1, 2, 3]);
        assert_eq!(map(&mut service), before, "it goes, and all is as it was");
    }

    /// What docs/functions.md says of it: `--nocapture` shows the figures.
    #[test]
    fn test_how_much_moves_when_one_comes_is_what_it_has_to_get() {
        for count in [1, 2, 3, 4, 8, 16, 32, 63] {
            let numbers: Vec<u16> = (0..=count).collect();
            let mut service = service(&numbers[..numbers.len() - 1]);
            let before = map(&mut service);
            drain(&mut service);
            set(&mut service, &numbers);
            let after = map(&mut service);
            let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            let new = usize::from(count) + 10;
            let to_others = before.iter().zip(&after).filter(|&(a, b)| a != b && *b != new);
            let even = BUCKETS / (usize::from(count) + 1);
            println!("{count} and one: {moved} of {BUCKETS} move, {even} would be even");
            assert_eq!(to_others.count(), 0);
            assert!((6 * even..15 * even).contains(&(10 * moved)), "{count}: {moved}");
        }
    }

    #[test]
    fn test_a_bucket_stays_until_its_frames_are_read_and_taken() {
        let mut service = service(&[0]);
        set(&mut service, &[0, 1]);
        let before = map(&mut service);
        set(&mut service, &[1]);
        set(&mut service, &[0, 1]);
        let wanted = map(&mut service);
        assert_ne!(before, wanted);
        let mut service = self::service(&[0, 7]);
        set(&mut service, &[0]);
        map(&mut service);
        set(&mut service, &[0, 7]);
        let first = &mut service.instances_mut()[0];
        (first.pending, first.drained) = (1024, true);
        assert!(map(&mut service).iter().all(|&at| at == 10), "its frames wait");
        let first = &mut service.instances_mut()[0];
        (first.pending, first.drained) = (0, false);
        assert!(map(&mut service).iter().all(|&at| at == 10), "what it sent waits");
        service.instances_mut()[0].drained = true;
        service.instances_mut()[0].pending = 0;
        assert!(map(&mut service).contains(&17));
    }

    #[test]
    fn test_flows_of_a_stalled_instance_move_and_come_back() {
        let mut service = service(&[0, 1]);
        let before = map(&mut service);
        drain(&mut service);
        service.instances_mut()[1].pending = 5;
        assert!(!service.check_stalls(1000), "it has just got something");
        assert!(service.check_stalls(1000 + STALL_MS));
        assert!(map(&mut service).iter().all(|&at| at == 10));
        drain(&mut service);
        assert!(service.check_stalls(2000));
        assert_eq!(map(&mut service), before);
    }

    #[test]
    fn test_who_comes_while_another_stalls_gets_no_flow_moved_to_the_stalled_one() {
        let mut service = service(&[0, 1]);
        map(&mut service);
        drain(&mut service);
        service.instances_mut()[1].pending = 5;
        service.check_stalls(1000);
        assert!(service.check_stalls(1000 + STALL_MS));
        map(&mut service);
        drain(&mut service);
        service.instances_mut()[1].pending = 5;
        set(&mut service, &[0, 1, 2]);
        let owners = map(&mut service);
        assert!(owners.contains(&12) && !owners.contains(&11));
    }

    /// The instance that is to have each bucket, by the bucket's number.
    fn wanted(service: &Service) -> Vec<Option<u16>> {
        let number = |bucket: &Bucket| {
            service.instances.get(usize::from(bucket.wanted)).map(|instance| instance.number)
        };
        service.buckets.iter().map(number).collect()
    }

    proptest! {
        /// However instances go, stall, go on and come: buckets are whose they would be if all were
        /// weighed anew, and none has moved that need not.
        #[test]
        fn prop_what_is_not_weighed_again_would_have_come_out_the_same(
            steps in prop::collection::vec((0..4u8, 0..64u16), 1..40),
        ) {
            let mut service = service(&[0, 1, 2, 3, 4, 5]);
            for (step, number) in steps {
                let before = wanted(&service);
                let at = service.instances.iter().position(|it| it.number == number % 8);
                match (step, at) {
                    (0, Some(at)) => service.remove_port(service.instances[at].port),
                    (1, None) => {
                        let numbers = service.instances.iter().map(|it| it.number);
                        let mut numbers: Vec<_> = numbers.chain([number % 8]).collect();
                        numbers.sort_unstable();
                        set(&mut service, &numbers);
                    }
                    (2 | 3, Some(at)) => {
                        service.instances[at].stalled ^= true;
                        service.rebalance();
                    }
                    _ => continue,
                }
                let usable = service.usable();
                let numbers: Vec<_> = (0..).zip(&service.instances)
                    .filter(|(at, _)| usable >> at & 1 == 1)
                    .map(|(_, instance)| instance.number)
                    .collect();
                let after = wanted(&service);
                prop_assert_eq!(&after, &wanted(&self::service(&numbers)));
                let all_stalled = service.instances.iter().all(|instance| instance.stalled);
                let moved = before.iter().zip(&after).filter(|(was, is)| was != is);
                for (was, is) in moved.filter(|_| !all_stalled) {
                    let gone = was.is_none_or(|was| !numbers.contains(&was));
                    prop_assert!(gone || *is == Some(number % 8), "{:?} to {:?}", was, is);
                }
                for bucket in &service.buckets {
                    let owner = 1u64.checked_shl(bucket.owner.into()).unwrap_or(0);
                    prop_assert!(usable == 0 || owner & usable != 0, "one that can have it");
                }
            }
        }
    }

    #[test]
    fn test_it_is_settled_when_the_last_bucket_has_moved() {
        let mut service = service(&[0, 1]);
        map(&mut service);
        set(&mut service, &[0, 1, 2]);
        service.instances_mut().iter_mut().for_each(|instance| instance.pending = 1);
        service.check_stalls(1);
        assert!(service.is_moving());
        drain(&mut service);
        map(&mut service);
        service.check_stalls(2);
        assert!(!service.is_moving());
    }

    #[test]
    fn test_least_loaded_gets_what_begins() {
        let mut service = Service::new();
        plan(&mut service, Balance::Least, &[(port(10), 0), (port(11), 1)]);
        for (room, instance) in [3, 900].into_iter().zip(service.instances_mut()) {
            (instance.room, instance.pending) = (room, 0);
        }
        assert_eq!(service.pick(5), Some(port(11)));
        service.instances_mut()[0].room = 1000;
        assert_eq!(service.pick(5), Some(port(11)), "it has a frame there");
        assert_eq!(service.pick(6), Some(port(10)));
    }
}

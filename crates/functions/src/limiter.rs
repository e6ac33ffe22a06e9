//! `limiter`: limits frames and bits per second.
//!
//! ```toml
//! [[limit]]                        # the first that matches counts
//! match = { proto = "udp", dport = "53" }
//! frames_per_s = 1000
//! per = "src"                      # each sender; or "flow", "dst", "all"
//! [[limit]]                        # everything else, together
//! bits_per_s = 100_000_000
//! burst_s = 0.05
//! ```
//!
//! A token bucket: `burst_s` seconds' worth may come at once (a tenth by default, and always one
//! frame). It is kept as the time at which it would be full again, which each frame puts off by
//! what it costs (ITU-T I.371, the generic cell rate algorithm): a bucket is two numbers, and needs
//! no refilling. What finds no room is dropped. Where buckets for each would be more than
//! `buckets`, the rest share one.

use std::net::IpAddr;
use std::time::Instant;

use client::nf::{Action, Frame, Generated, Handler};
use packet::fields::Fields;
use packet::flow::{FlowKey, WORDS};
use serde::{Deserialize, Deserializer, de::Error};
use toml::Spanned;

use super::Counts;
use super::table::{Table, places};
use super::text::{Match, entries, hidden, key_of, parse, wrong};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    limit: Vec<Spanned<LimitText>>,
    #[serde(default = "buckets", deserialize_with = "entries")]
    buckets: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitText {
    #[serde(rename = "match")]
    matches: Option<Match>,
    #[serde(default, deserialize_with = "rate")]
    frames_per_s: Option<u64>,
    #[serde(default, deserialize_with = "rate")]
    bits_per_s: Option<u64>,
    #[serde(default = "burst_s", deserialize_with = "burst")]
    burst_s: u64,
    #[serde(default)]
    per: Per,
}

/// The frames that share a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Per {
    /// All frames share a bucket.
    #[default]
    All,
    /// Both directions between two ends.
    Flow,
    /// Packets from one address.
    Src,
    /// To one.
    Dst,
}

fn buckets() -> u32 {
    1 << 16
}

fn burst_s() -> u64 {
    SECOND / 10
}

const SECOND: u64 = 1_000_000_000;

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match u64::deserialize(from)? {
        rate @ 1..=1_000_000_000_000 => Ok(Some(rate)),
        rate => Err(D::Error::custom(format!("{rate} is not between 1 and 1000000000000"))),
    }
}

/// In nanoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn burst<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match f64::deserialize(from)? {
        seconds if (0.0..=60.0).contains(&seconds) => Ok((seconds * 1e9) as u64),
        seconds => Err(D::Error::custom(format!("{seconds} is not between 0 and 60"))),
    }
}

/// When its frames and its bits would be full again, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket([u64; 2]);

impl Bucket {
    /// Takes what a frame costs, if both have it. A bucket that is full has always enough.
    fn take(&mut self, costs: [u64; 2], burst: u64, now: u64) -> bool {
        let has = |full_at: u64, cost: u64| {
            full_at <= now || full_at.saturating_add(cost) <= now.saturating_add(burst)
        };
        let pairs = || self.0.into_iter().zip(costs);
        let takes = pairs().all(|(full_at, cost)| has(full_at, cost));
        if takes {
            let [frames, bits] = [0, 1].map(|i| self.0[i].max(now).saturating_add(costs[i]));
            self.0 = [frames, bits];
        }
        takes
    }

    fn is_full(&self, now: u64) -> bool {
        self.0.iter().all(|full_at| *full_at <= now)
    }
}

struct Limit {
    text: LimitText,
    bucket: Bucket,
    passed: u64,
    dropped: u64,
}

impl Limit {
    /// What a frame of this many bytes costs, in nanoseconds.
    fn costs(&self, bytes: usize) -> [u64; 2] {
        let bits = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(8);
        let bits = self.text.bits_per_s.map_or(0, |rate| bits.saturating_mul(SECOND) / rate);
        [self.text.frames_per_s.map_or(0, |rate| SECOND / rate), bits]
    }
}

/// Whose bucket: which limit, and two ends or one.
type Whose = (usize, [u64; WORDS]);

/// The function.
pub struct Limiter {
    limits: Vec<Limit>,
    each: Table<Whose, Bucket>,
    since: Instant,
    /// Nanoseconds since then.
    now: u64,
}

impl Limiter {
    /// Why two could not share the work: packets of one sender, or of all, go to both of them.
    pub fn why_alone(&self) -> Option<String> {
        let apart = |limit: &Limit| limit.text.per == Per::Flow;
        let number = 1 + self.limits.iter().position(|limit| !apart(limit))?;
        Some(format!(
            "each would let as much through as limit {number} says; make it per = \"flow\""
        ))
    }

    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        for (number, one) in (1..).zip(&config.limit) {
            let limit = one.get_ref();
            if limit.frames_per_s.is_none() && limit.bits_per_s.is_none() {
                let why = format_args!("limit {number}: say frames_per_s or bits_per_s, or both");
                return Err(wrong(text, one, why));
            }
        }
        check_order(text, &config.limit)?;
        let limits = config.limit.into_iter().map(Spanned::into_inner);
        let limit = |text| Limit { text, bucket: Bucket::default(), passed: 0, dropped: 0 };
        let limits = limits.map(limit).collect();
        Ok(Self { limits, each: Table::new(config.buckets), since: Instant::now(), now: 0 })
    }

    /// Is from now on what another file says: all buckets are full, and nothing is counted yet.
    pub fn replace(&mut self, new: Self) {
        *self = new;
    }

    /// What it has counted, limit by limit.
    pub fn counts(&self) -> Counts {
        let limits = (1..).zip(&self.limits).flat_map(|(number, limit)| {
            let name = |what| format!("limit_{number}_{what}").into();
            [(name("passed"), limit.passed), (name("dropped"), limit.dropped)]
        });
        limits.chain([("buckets".into(), self.each.len() as u64)]).collect()
    }

    fn may_pass(&mut self, key: &FlowKey, bytes: usize) -> bool {
        let is_for = |limit: &Limit| limit.text.matches.as_ref().is_none_or(|m| m.may_be_for(key));
        let Some(number) = self.limits.iter().position(is_for) else { return true };
        let now = self.now;
        let limit = &mut self.limits[number];
        let (costs, burst) = (limit.costs(bytes), limit.text.burst_s);
        let whose = ends(key, limit.text.per).map(|ends| (number, ends));
        let bucket = whose.and_then(|whose| {
            let place = self.each.find(&whose);
            let place = place.or_else(|| self.each.insert(whose, Bucket::default()))?;
            self.each.at(place)
        });
        let passes = bucket.unwrap_or(&mut limit.bucket).take(costs, burst, now);
        *if passes { &mut limit.passed } else { &mut limit.dropped } += 1;
        passes
    }
}

/// Whether each limit can be reached.
fn check_order(text: &str, limits: &[Spanned<LimitText>]) -> anyhow::Result<()> {
    let all = Match::from(&Fields::default());
    let matches: Vec<_> =
        limits.iter().map(|limit| limit.get_ref().matches.as_ref().unwrap_or(&all)).collect();
    for (at, limit) in limits.iter().enumerate() {
        if let Some(before) = matches[..at].iter().position(|before| before.covers(matches[at])) {
            return Err(wrong(text, limit, hidden("limit", at + 1, before + 1)));
        }
    }
    Ok(())
}

/// The bucket of this frame; `None`: the one of all others.
fn ends(key: &FlowKey, per: Per) -> Option<[u64; WORDS]> {
    let one = |ip: IpAddr| {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let [high, low] = [ip.to_bits() >> 64, ip.to_bits() & u128::from(u64::MAX)];
        let half = |half| u64::try_from(half).unwrap_or(u64::MAX);
        [half(high), half(low), 0, 0, 0, 0, 0]
    };
    match per {
        Per::All => None,
        Per::Flow => key.conversation(),
        Per::Src => key.five_tuple().map(|way| one(way.src)),
        Per::Dst => key.five_tuple().map(|way| one(way.dst)),
    }
}

impl Handler for Limiter {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        let key = key_of(frame);
        // Of one that lies in several buffers only the first is seen: it costs what it may be.
        let bytes = if frame.is_whole() { frame.bytes().len() } else { LONGEST };
        if self.may_pass(&key, bytes) { Action::Next } else { Action::Drop }
    }

    fn batch(&mut self, frames: u32, _: &mut Generated) {
        let elapsed = Instant::now().duration_since(self.since);
        let now = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.now = now;
        for _ in 0..places(frames) {
            self.each.turn(|bucket| bucket.is_full(now));
        }
    }
}

/// Bytes of the longest frame: an IP packet, an Ethernet header, a VLAN tag.
const LONGEST: usize = 65_553;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use packet::build::{ethernet, ipv4};

    const CONFIG: &str = "[[limit]]\nmatch = { proto = \"udp\" }\nframes_per_s = 100\n\
        burst_s = 0.1\nper = \"src\"\n[[limit]]\nbits_per_s = 800_000\nburst_s = 0.01\n";

    fn udp(src: [u8; 4], len: usize) -> Vec<u8> {
        let packet = ipv4(17, src.into(), [10, 0, 0, 9].into(), &vec![0; len - 34]);
        ethernet([2; 6], [4; 6], 0x0800, &packet)
    }

    fn passes(limiter: &mut Limiter, frame: &[u8]) -> bool {
        let mut buffer = frame.to_vec();
        limiter.frame(&mut Frame::new(&mut buffer), &mut Generated::default()) == Action::Next
    }

    fn burst(limiter: &mut Limiter, frame: &[u8], tries: usize) -> usize {
        (0..tries).filter(|_| passes(limiter, frame)).count()
    }

    #[test]
    fn test_a_burst_passes_and_then_the_rate() {
        let mut limiter = Limiter::new(CONFIG).unwrap();
        let one = udp([10, 0, 0, 1], 60);
        assert_eq!(burst(&mut limiter, &one, 50), 10, "a tenth of a second of 100");
        limiter.now += SECOND / 100;
        assert_eq!(burst(&mut limiter, &one, 50), 1);
        limiter.now += 100 * SECOND;
        assert_eq!(burst(&mut limiter, &one, 50), 10, "a bucket is never more than full");
        assert_eq!(limiter.counts()[..2].iter().map(|(_, n)| *n).sum::<u64>(), 150);
    }

    #[test]
    fn test_each_sender_has_its_own_and_the_rest_share_one() {
        let mut limiter = Limiter::new(&format!("buckets = 2\n{CONFIG}")).unwrap();
        for last in 1..=2 {
            assert_eq!(burst(&mut limiter, &udp([10, 0, 0, last], 60), 50), 10);
        }
        assert_eq!(burst(&mut limiter, &udp([10, 0, 0, 3], 60), 50), 10);
        assert_eq!(burst(&mut limiter, &udp([10, 0, 0, 4], 60), 50), 0, "3 has had it");
        limiter.now += SECOND;
        assert!((0..2).all(|_| limiter.each.turn(|bucket| bucket.is_full(SECOND)).is_some()));
    }

    #[test]
    fn test_bits_are_counted_and_the_first_limit_counts() {
        let mut limiter = Limiter::new(CONFIG).unwrap();
        let frame = ethernet([2; 6], [4; 6], 0x88b5, &[0; 86]);
        assert_eq!(burst(&mut limiter, &frame, 50), 10, "a hundredth of 800,000 bits");
        let long = ethernet([2; 6], [4; 6], 0x88b5, &[0; 8900]);
        limiter.now += SECOND;
        assert_eq!(burst(&mut limiter, &long, 50), 1, "longer than a burst, and not for ever");
        assert_eq!(burst(&mut limiter, &frame, 50), 0);
        let mut none = Limiter::new("limit = []").unwrap();
        assert_eq!(burst(&mut none, &frame, 50), 50);
    }

    #[test]
    fn test_pieces_are_limited_by_rules_for_ports_too() {
        let text = "[[limit]]\nmatch = { proto = \"udp\", dport = \"53\" }\nframes_per_s = 1\n";
        let mut limiter = Limiter::new(text).unwrap();
        let mut whole = udp([10, 0, 0, 1], 60);
        whole[34..38].copy_from_slice(&[5, 0, 0, 80]);
        assert_eq!(burst(&mut limiter, &whole, 9), 9, "to another port");
        whole[20] = 0x20;
        assert_eq!(burst(&mut limiter, &whole, 9), 1, "more of it follows");
        whole[23] = 6;
        assert_eq!(burst(&mut limiter, &whole, 9), 9, "of another protocol");
        whole[23] = 51;
        assert_eq!(burst(&mut limiter, &whole, 9), 0, "of any");
    }

    #[test]
    fn test_nonsense_is_refused() {
        for (text, said) in [
            ("[[limit]]\nper = \"src\"", "limit 1: say"),
            ("[[limit]]\nframes_per_s = 0", "line 2"),
            ("[[limit]]\nbits_per_s = 1\nburst_s = -1.0", "line 3"),
            ("[[limit]]\nbits_per_s = 1\nmatch = { port = \"1\" }", "unknown key"),
            ("[[limit]]\nbits_per_s = 1\nmatch = { proto = \"x\" }", "line 3"),
            ("[[limit]]\nbits_per_s = 1\nper = \"mac\"", "line 3"),
        ] {
            let error = format!("{:#}", Limiter::new(text).err().expect(text));
            assert!(error.contains(said), "{error}");
        }
    }

    proptest! {
        #[test]
        fn test_never_more_than_burst_and_rate(
            steps in prop::collection::vec((0..SECOND / 4, 0usize..40), 1..50),
        ) {
            let mut limiter = Limiter::new(CONFIG).unwrap();
            let (frame, mut passed) = (udp([10, 0, 0, 1], 60), 0u64);
            for (pause, tries) in steps {
                limiter.now += pause;
                passed += burst(&mut limiter, &frame, tries) as u64;
                prop_assert!(passed <= 10 + limiter.now * 100 / SECOND + 1);
            }
        }

        #[test]
        fn test_any_bytes_pass_or_do_not(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut limiter = Limiter::new(CONFIG).unwrap();
            limiter.batch(1, &mut Generated::default());
            passes(&mut limiter, &bytes);
        }
    }

    #[test]
    fn test_time_goes_on_by_the_clock() {
        let mut limiter = Limiter::new(CONFIG).unwrap();
        limiter.since = limiter.since.checked_sub(Duration::from_secs(5)).unwrap();
        limiter.batch(1, &mut Generated::default());
        assert!(limiter.now >= 5 * SECOND);
    }
}

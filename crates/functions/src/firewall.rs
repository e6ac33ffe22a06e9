//! `firewall`: drops what rules say; answers to what was let through pass.
//!
//! ```toml
//! default = "drop"
//! pass = ["arp"]                   # types of frames that pass, whatever the rules say
//! [[rule]]                         # the first that matches counts
//! action = "accept"
//! src = "10.0.1.0/24"
//! proto = "tcp"
//! dport = "80"
//! ```
//!
//! Once a rule has let a packet through, those of its connection pass in both directions, until
//! none has come for `idle_s` seconds; what begins one passes by rules from the other side
//! ([`packet`]). One source begins at most `max_per_source` of the `connections`, a quarter by
//! default, so no host can fill the table for all others.
//!
//! Rules are for IP packets that can be read. What hides its ports (fragments, long chains of
//! headers) is dropped by a rule that would drop it with some ports, accepted only by one that
//! asks for none, and opens no connection. What cannot be read as an IP packet (other types, a
//! third tag, tunnels) is dropped or accepted as `default` says; a frame that is cut within its
//! headers is dropped.

mod packet;

use std::collections::HashMap;
use std::time::Duration;

use ::packet::fields::{Fields, Matcher, Network};
use ::packet::flow::{FlowKey, PREFIX};
use ::packet::text::ethertype;
use client::nf::{Action, Frame, Generated, Handler};
use serde::Deserialize;
use toml::Spanned;

use super::Counts;
use super::shares::{Entries, Shares};
use super::table::Seed;
use super::text::{
    Match, Ports, a_network, a_protocol, entries, for_none, hidden, parse, seconds, wrong,
};
use super::time::Ms;
use packet::{Connection, Ends, Packet};
use terminal::say;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    default: Verdict,
    #[serde(default = "pass")]
    pass: Vec<Spanned<String>>,
    #[serde(default = "idle_s", deserialize_with = "seconds")]
    idle_s: Duration,
    #[serde(default = "connections", deserialize_with = "entries")]
    connections: u32,
    max_per_source: Option<Spanned<Entries>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleText>>,
}

fn pass() -> Vec<Spanned<String>> {
    vec![Spanned::new(0..0, "arp".to_owned())]
}

fn idle_s() -> Duration {
    Duration::from_secs(120)
}

fn connections() -> u32 {
    1 << 18
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    #[default]
    Drop,
    Accept,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    action: Verdict,
    #[serde(default, deserialize_with = "a_network")]
    src: Option<Network>,
    #[serde(default, deserialize_with = "a_network")]
    dst: Option<Network>,
    #[serde(default, deserialize_with = "a_protocol")]
    proto: Option<u8>,
    sport: Option<Ports>,
    dport: Option<Ports>,
}

/// A rule, ready to be asked.
struct Rule {
    action: Verdict,
    matches: Match,
    asks_for_ports: bool,
    /// Packets that it decided about.
    packets: u64,
}

impl Rule {
    fn new(text: &RuleText) -> Result<Self, String> {
        let fields = Fields {
            src: text.src,
            dst: text.dst,
            protocol: text.proto,
            src_ports: text.sport.as_ref().map(|ports| ports.0.clone()),
            dst_ports: text.dport.as_ref().map(|ports| ports.0.clone()),
            ..Fields::default()
        };
        if let Some(why) = fields.mistake() {
            return Err(for_none(why));
        }
        let asks_for_ports = fields.src_ports.is_some() || fields.dst_ports.is_some();
        let (action, matches) = (text.action, Match::from(&fields));
        Ok(Self { action, matches, asks_for_ports, packets: 0 })
    }

    /// Whether the rule is for this packet. Hidden ports are taken to be the worse ones.
    fn is_for(&self, key: &FlowKey, hides_ports: bool) -> bool {
        match self.action {
            Verdict::Drop => self.matches.may_be_for(key),
            Verdict::Accept => !(hides_ports && self.asks_for_ports) && self.matches.is_for(key),
        }
    }
}

/// All rules, if each of them can be reached.
fn rules(text: &str, wanted: &[Spanned<RuleText>]) -> anyhow::Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    for (number, one) in (1..).zip(wanted) {
        let refuse = |why| wrong(text, one, format_args!("rule {number}: {why}"));
        let rule = Rule::new(one.get_ref()).map_err(refuse)?;
        if let Some(before) = rules.iter().position(|before| before.matches.covers(&rule.matches)) {
            return Err(wrong(text, one, hidden("rule", number, before + 1)));
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// Packets by what decided about them, where no rule did.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    /// Packets of known connections.
    known: u64,
    /// Frames of types that pass.
    passed: u64,
    /// As `default` says.
    default: u64,
    /// Packets that passed by a rule and were not noted: the table was full.
    table_full: u64,
    /// Packets that passed by a rule and were not noted: their source had its share.
    source_full: u64,
}

/// The function.
pub struct Firewall {
    default: Verdict,
    pass: Vec<Matcher>,
    rules: Vec<Rule>,
    others: Others,
    dropped: u64,
    known: HashMap<Ends, Connection, Seed>,
    /// How many of them each source began.
    sources: Shares,
    idle: Ms,
    most: usize,
    now: Ms,
    /// When the silent were forgotten last.
    swept: Option<Ms>,
}

/// Between two sweeps of a full table: each costs a look at every connection.
const SWEEP: Ms = Ms::from_secs(1);

impl Firewall {
    /// Reads its file.
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let pass = config.pass.iter().map(|kind| {
            let ethertype = ethertype(kind.get_ref());
            let ethertype =
                ethertype.map_err(|why| wrong(text, kind, format_args!("pass: {why}")))?;
            Ok(Matcher::from(&Fields { ethertype: Some(ethertype), ..Fields::default() }))
        });
        Ok(Self {
            default: config.default,
            pass: pass.collect::<anyhow::Result<_>>()?,
            rules: rules(text, &config.rule)?,
            others: Others::default(),
            dropped: 0,
            known: HashMap::default(),
            sources: Shares::new(text, config.max_per_source.as_ref(), config.connections)?,
            idle: config.idle_s.into(),
            most: config.connections as usize,
            now: Ms::now(),
            swept: None,
        })
    }

    /// Is from now on what another file says; connections that were accepted go on. Rules, which
    /// are others now, count from the beginning.
    pub fn replace(&mut self, new: Self) {
        let old = std::mem::replace(self, new);
        (self.known, self.others, self.dropped) = (old.known, old.others, old.dropped);
        self.sources.take_counts(old.sources);
    }

    /// What it knows, and packets by what decided about them.
    pub fn counts(&self) -> Counts {
        let Others { known, passed, default, table_full, source_full } = self.others;
        let by = [("by_connection", known), ("by_type", passed), ("by_default", default)];
        let full = [("table_full", table_full), ("source_full", source_full)];
        let all = by.into_iter().chain(full);
        let all = [("connections", self.known.len() as u64), ("dropped", self.dropped)]
            .into_iter()
            .chain(all);
        let rules =
            (1..).zip(&self.rules).map(|(n, rule)| (format!("rule_{n}").into(), rule.packets));
        all.map(|(name, count)| (name.into(), count)).chain(rules).collect()
    }

    fn verdict(&mut self, packet: &Packet) -> Verdict {
        let key = &packet.key;
        if self.pass.iter().any(|matcher| matcher.matches(key)) {
            self.others.passed += 1;
            return Verdict::Accept;
        }
        if key.five_tuple().is_none() {
            self.others.default += 1;
            return self.default;
        }
        if self.is_known(packet) {
            self.others.known += 1;
            return Verdict::Accept;
        }
        let hides_ports = packet.hidden.is_some();
        let found = self.rules.iter_mut().find(|rule| rule.is_for(key, hides_ports));
        let (verdict, count) = match found {
            Some(rule) => (rule.action, &mut rule.packets),
            None => (self.default, &mut self.others.default),
        };
        *count += 1;
        if verdict == Verdict::Accept
            && let Some((ends, connection)) = packet.begins(self.now)
        {
            self.note(ends, connection);
        }
        verdict
    }

    /// Whether the packet belongs to a connection that has not timed out.
    fn is_known(&mut self, packet: &Packet) -> bool {
        let Some((ends, part)) = packet.part else { return false };
        let known = self.known.get_mut(&ends);
        known.is_some_and(|known| known.takes(packet, part, self.now, self.idle))
    }

    /// A table that is full forgets silent connections, as one whose source has its share does;
    /// what is new passes by its rule alone.
    fn note(&mut self, ends: Ends, connection: Connection) {
        let source = connection.source;
        let is_full = |firewall: &Self| firewall.known.len() >= firewall.most;
        let has_share = |firewall: &Self| firewall.sources.is_used_up(source);
        let now = self.now;
        if (is_full(self) || has_share(self)) && self.swept.is_none_or(|at| now - at >= SWEEP) {
            self.sweep();
            if is_full(self) {
                let most = self.most;
                say::remark(format_args!(
                    "firewall: {most} connections are open: answers to further ones pass by rules"
                ));
            }
        }
        if is_full(self) {
            self.others.table_full += 1;
        } else if has_share(self) {
            self.others.source_full += 1;
        } else {
            if let Some(before) = self.known.insert(ends, connection) {
                self.sources.remove(before.source);
            }
            self.sources.add(source);
        }
    }

    /// Forgets the silent.
    fn sweep(&mut self) {
        let (now, idle) = (self.now, self.idle);
        self.known.retain(|_, known| known.lives(now, idle));
        self.sources.count_anew(self.known.values().map(|known| known.source));
        self.swept = Some(now);
    }
}

impl Handler for Firewall {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        // A sender that cuts a frame there wants it not to be read.
        let is_cut = !frame.is_whole() && frame.bytes().len() < PREFIX;
        if is_cut || self.verdict(&Packet::of(frame.bytes())) == Verdict::Drop {
            self.dropped += 1;
            return Action::Drop;
        }
        Action::Next
    }

    fn batch(&mut self, _: u32, _: &mut Generated) {
        self.now = Ms::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::packet::build::{ethernet, ipv4};

    fn key_of(frame: &[u8]) -> Packet {
        Packet::of(frame)
    }

    fn tcp(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let tcp = [&ports[0].to_be_bytes()[..], &ports[1].to_be_bytes()[..], &[0; 16]].concat();
        ethernet([2; 6], [4; 6], 0x0800, &ipv4(6, src.into(), dst.into(), &tcp))
    }

    fn key(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) -> Packet {
        key_of(&tcp(src, dst, ports))
    }

    /// A TCP packet that says that it is a first fragment.
    fn fragment(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) -> Packet {
        let mut frame = tcp(src, dst, ports);
        frame[14 + 6] = 0x20;
        key_of(&frame)
    }

    const CONFIG: &str = "[[rule]]\naction = \"drop\"\nsrc = \"10.0.0.9\"\n[[rule]]\n\
        action = \"accept\"\nsrc = \"10.0.0.0/24\"\nproto = \"tcp\"\ndport = \"80\"\n";

    #[test]
    fn test_rules_decide_and_answers_pass_while_the_connection_lives() {
        let mut firewall = Firewall::new(CONFIG).unwrap();
        let (client, server) = ([10, 0, 0, 1], [10, 0, 1, 1]);
        let (there, back) = (key(client, server, [5, 80]), key(server, client, [80, 5]));
        assert_eq!(firewall.verdict(&back), Verdict::Drop, "without a connection");
        assert_eq!(firewall.verdict(&there), Verdict::Accept);
        assert_eq!(firewall.verdict(&back), Verdict::Accept);
        assert_eq!(firewall.verdict(&key(client, server, [5, 81])), Verdict::Drop);
        assert_eq!(firewall.verdict(&key([10, 0, 0, 9], server, [5, 80])), Verdict::Drop);
        firewall.now += Ms::from_secs(121);
        assert_eq!(firewall.verdict(&back), Verdict::Drop, "it was silent too long");
    }

    #[test]
    fn test_a_full_table_forgets_only_the_silent() {
        let mut firewall =
            Firewall::new(&format!("connections = 2\nmax_per_source = 2\n{CONFIG}")).unwrap();
        for port in 1..5 {
            let there = key([10, 0, 0, 1], [10, 0, 1, 1], [port, 80]);
            assert_eq!(firewall.verdict(&there), Verdict::Accept);
        }
        assert_eq!(firewall.known.len(), 2);
        firewall.now += Ms::from_secs(200);
        firewall.verdict(&key([10, 0, 0, 1], [10, 0, 1, 1], [9, 80]));
        assert_eq!(firewall.known.len(), 1);
    }

    #[test]
    fn test_one_source_has_its_share_of_the_table() {
        let config = format!("connections = 8\n{CONFIG}");
        let mut firewall = Firewall::new(&config).unwrap();
        let come = |firewall: &mut Firewall, host, port| {
            let there = key([10, 0, 0, host], [10, 0, 1, 1], [port, 80]);
            assert_eq!(firewall.verdict(&there), Verdict::Accept, "by its rule");
            firewall.known.contains_key(&there.part.unwrap().0)
        };
        let noted = (1..=20).filter(|port| come(&mut firewall, 1, *port)).count();
        assert_eq!((noted, firewall.others.source_full), (2, 18), "a quarter of the table");
        assert!(come(&mut firewall, 2, 1) && come(&mut firewall, 3, 1), "others have theirs");
        firewall.now += Ms::from_secs(121);
        assert!(come(&mut firewall, 1, 30), "what it had is silent");
        assert_eq!((firewall.known.len(), firewall.sources.entries()), (1, vec![1]));
        // One that was silent begins again, and counts once.
        firewall.now += Ms::from_secs(121);
        assert!(come(&mut firewall, 1, 30));
        assert_eq!(firewall.sources.entries(), [1]);
    }

    #[test]
    fn test_addresses_of_one_ipv6_network_are_one_source() {
        let source = |host: u8| {
            let mut ip = [0; 40];
            (ip[0], ip[5], ip[6], ip[8], ip[23], ip[24]) = (0x60, 8, 17, 0xfd, host, 0xfd);
            let frame =
                ethernet([2; 6], [4; 6], 0x86dd, &[&ip[..], &[0, 5, 0, 80, 0, 8, 0, 0]].concat());
            key_of(&frame).begins(Ms::from_secs(1)).unwrap().1.source
        };
        assert_eq!(source(1), source(2));
        assert_eq!(source(1), 0xfd << 56);
    }

    #[test]
    fn test_a_full_table_is_swept_once_a_second() {
        let config = format!("connections = 1\n{CONFIG}");
        let mut firewall = Firewall { idle: Ms::from_secs(0), ..Firewall::new(&config).unwrap() };
        let come = |firewall: &mut Firewall, port| {
            let there = key([10, 0, 0, 1], [10, 0, 1, 1], [port, 80]);
            assert_eq!(firewall.verdict(&there), Verdict::Accept, "by its rule");
            firewall.known.contains_key(&there.part.unwrap().0)
        };
        assert!(come(&mut firewall, 1) && come(&mut firewall, 2), "the first is forgotten");
        assert!(!come(&mut firewall, 3), "not again at once");
        firewall.now += SWEEP;
        assert!(come(&mut firewall, 4));
    }

    #[test]
    fn test_what_cannot_be_read_is_for_the_default() {
        let arp = ethernet([255; 6], [4; 6], 0x0806, &[0; 46]);
        let inner = &tcp([10, 0, 0, 1], [10, 0, 1, 1], [5, 80])[14..];
        let tagged = [&[0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0][..], inner].concat();
        let mut short_header = tcp([10, 0, 0, 1], [10, 0, 1, 1], [5, 80]);
        short_header[14] = 0x44;
        let opaque = [
            ethernet([2; 6], [4; 6], 0x8100, &tagged),
            ethernet([2; 6], [4; 6], 0x8864, inner),
            ethernet([2; 6], [4; 6], 0x8847, inner),
            short_header,
            vec![0; 14],
        ];
        for (default, expected) in [("drop", Verdict::Drop), ("accept", Verdict::Accept)] {
            let text = format!("default = {default:?}\n[[rule]]\naction = \"accept\"\n");
            let mut firewall = Firewall::new(&text).unwrap();
            assert_eq!(firewall.verdict(&key_of(&arp)), Verdict::Accept);
            for frame in &opaque {
                assert_eq!(firewall.verdict(&key_of(frame)), expected, "{frame:02x?}");
            }
        }
        let mut strict = Firewall::new("pass = [\"0x88cc\"]").unwrap();
        assert_eq!(strict.verdict(&key_of(&arp)), Verdict::Drop);
        let lldp = ethernet([2; 6], [4; 6], 0x88cc, &[0; 46]);
        assert_eq!(strict.verdict(&key_of(&lldp)), Verdict::Accept);
    }

    #[test]
    fn test_fragments_open_nothing_and_pass_no_rule_for_ports() {
        let (client, server) = ([10, 0, 0, 1], [10, 0, 1, 1]);
        let mut firewall = Firewall::new(CONFIG).unwrap();
        assert_eq!(firewall.verdict(&fragment(client, server, [5, 80])), Verdict::Drop);
        let open = "[[rule]]\naction = \"drop\"\nproto = \"tcp\"\ndport = \"22\"\n\
            [[rule]]\naction = \"accept\"\nsrc = \"10.0.0.0/24\"\n";
        let mut firewall = Firewall::new(open).unwrap();
        assert_eq!(firewall.verdict(&key(client, server, [5, 80])), Verdict::Accept);
        let hidden = fragment(client, server, [5, 80]);
        assert_eq!(firewall.verdict(&hidden), Verdict::Drop, "it may be for port 22");
        let mut frame =
            ethernet([2; 6], [4; 6], 0x0800, &ipv4(51, client.into(), server.into(), &[0; 40]));
        frame.resize(80, 0);
        assert_eq!(firewall.verdict(&key_of(&frame)), Verdict::Drop, "behind AH there may be TCP");
        let open = "[[rule]]\naction = \"accept\"\nsrc = \"10.0.0.0/24\"\n";
        let mut firewall = Firewall::new(open).unwrap();
        assert_eq!(firewall.verdict(&fragment(client, server, [5, 80])), Verdict::Accept);
        assert_eq!(firewall.verdict(&fragment(server, client, [80, 5])), Verdict::Drop);
    }

    #[test]
    fn test_nonsense_is_refused() {
        for text in [
            "default = \"maybe\"",
            "[[rule]]\naction = \"drop\"\nsrc = \"x\"",
            "rules = 1",
            "pass = [\"x\"]",
            "idle_s = 0",
            "connections = 0",
            "connections = 99999999999",
            "max_per_source = 0",
            "connections = 4\nmax_per_source = 5",
        ] {
            assert!(Firewall::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn test_rules_for_no_packet_and_rules_that_others_hide_are_refused() {
        let rule = |fields: &str| format!("[[rule]]\naction = \"accept\"\n{fields}\n");
        for (first, second, why) in [
            ("proto = \"icmp\"\ndport = \"80\"", "", "rule 1: it is for no packet"),
            ("src = \"10.0.0.0/8\"\ndst = \"fd00::1\"", "", "rule 1: it is for no packet"),
            ("src = \"10.0.0.0/8\"", "src = \"10.1.0.0/16\"", "rule 2 would never be reached"),
            ("", "proto = \"tcp\"", "rule 2 would never be reached: rule 1"),
        ] {
            let refused = Firewall::new(&(rule(first) + &rule(second))).err().unwrap();
            assert!(refused.to_string().contains(why), "{refused}");
        }
        let texts = rule("proto = \"tcp\"\ndport = \"80\"") + &rule("proto = \"tcp\"");
        assert!(Firewall::new(&texts).is_ok());
    }

    #[test]
    fn test_each_packet_is_counted_by_what_decided_about_it() {
        let mut firewall = Firewall::new(CONFIG).unwrap();
        let (client, server) = ([10, 0, 0, 1], [10, 0, 1, 1]);
        let arp = ethernet([255; 6], [4; 6], 0x0806, &[0; 46]);
        let bad = tcp([10, 0, 0, 9], server, [5, 80]);
        let [there, back] = [tcp(client, server, [5, 80]), tcp(server, client, [80, 5])];
        for frame in [&arp, &bad, &there, &back, &there, &tcp(server, client, [7, 7])] {
            firewall.frame(&mut Frame::new(&mut frame.clone()), &mut Generated::default());
        }
        let counted =
            |name: &str| firewall.counts().into_iter().find(|(known, _)| known == name).unwrap().1;
        let names = ["dropped", "by_connection", "by_type", "by_default", "rule_1", "rule_2"];
        assert_eq!(names.map(counted), [2, 2, 1, 1, 1, 1]);
    }
}

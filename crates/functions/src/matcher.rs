//! `matcher`: what becomes of a packet depends on what is in it.
//!
//! ```toml
//! match = { proto = "tcp", dport = "80" }    # others are not looked into
//! ignore_case = true
//! [[pattern]]                      # the first of those that are found counts
//! text = "/etc/passwd"
//! action = "drop"
//! [[pattern]]
//! hex = "7f454c46"
//! action = { service = "scanner" } # its chain goes on behind that one
//! [[pattern]]
//! text = "user-agent: curl"
//! action = "count"
//! ```
//!
//! All patterns are looked for at once, in one pass over the payload of TCP and UDP, or over all
//! that is behind the Ethernet header of other frames (Aho and Corasick, 1975). What is spread over
//! two packets is not found: a function that must be sure has to look at streams, which this one
//! does not.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use client::nf::{Action, Frame, Generated, Handler};
use serde::Deserialize;
use toml::Spanned;

use super::text::{Match, Name, key_of, parse, wrong};
use super::{Counts, Names};
use packet::ethernet::ETHERNET_HEADER;
use packet::ipv4::{Fragment, Packet, Protocol};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(rename = "match")]
    matches: Option<Match>,
    #[serde(default)]
    ignore_case: bool,
    pattern: Vec<Spanned<Pattern>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pattern {
    text: Option<Spanned<String>>,
    hex: Option<Spanned<String>>,
    action: Deed,
}

/// What is done when a pattern is found.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Deed {
    /// The packet is.
    Drop,
    /// Nothing else.
    Count,
    /// The frame goes to this service.
    Service(Spanned<String>),
}

impl Pattern {
    /// What to look for; refuses with what is wrong, and where.
    fn bytes(&self, all: Range<usize>) -> Result<Vec<u8>, Spanned<String>> {
        let (at, bytes) = match (&self.text, &self.hex) {
            (Some(text), None) => (text.span(), Some(text.get_ref().clone().into_bytes())),
            (None, Some(hex)) => (hex.span(), packet::text::hex(hex.get_ref())),
            _ => return Err(Spanned::new(all, "say either text or hex".to_owned())),
        };
        let refuse = |why: &str| Err(Spanned::new(at, why.to_owned()));
        match bytes {
            None => refuse("it is no hex, as \"7f 45\""),
            Some(bytes) if bytes.is_empty() => refuse("it is empty, and everywhere"),
            Some(bytes) => Ok(bytes),
        }
    }
}

/// A pattern, ready to be looked for.
struct Known {
    decides: bool,
    /// What its action is about.
    service: Option<Name>,
    action: Action,
    found: u64,
    /// The last frame in which it was found, by its number.
    last: u64,
}

/// The function.
pub struct Matcher {
    matches: Option<Match>,
    automaton: AhoCorasick,
    patterns: Vec<Known>,
    looked: u64,
    /// Frames of which only the first buffer was looked into.
    partly: u64,
}

impl Matcher {
    /// Reads its file. Services are unknown until [`Self::know`].
    pub fn new(text: &str) -> anyhow::Result<Self> {
        let config: Config = parse(text)?;
        let bytes = (1..).zip(&config.pattern).map(|(number, one)| {
            let refuse = |why: Spanned<String>| {
                wrong(text, &why, format_args!("pattern {number}: {}", why.get_ref()))
            };
            one.get_ref().bytes(one.span()).map_err(refuse)
        });
        let bytes = bytes.collect::<anyhow::Result<Vec<_>>>()?;
        let automaton =
            AhoCorasick::builder().ascii_case_insensitive(config.ignore_case).build(&bytes)?;
        check_order(text, &config.pattern, &bytes, &automaton)?;
        let known = |pattern: Spanned<Pattern>| {
            let (decides, action, service) = match pattern.into_inner().action {
                Deed::Count => (false, Action::Next, None),
                Deed::Drop => (true, Action::Drop, None),
                Deed::Service(name) => (true, Action::Next, Some(Name::new(text, &name))),
            };
            Known { decides, service, action, found: 0, last: 0 }
        };
        let patterns = config.pattern.into_iter().map(known).collect();
        Ok(Self { matches: config.matches, automaton, patterns, looked: 0, partly: 0 })
    }

    /// Learns the numbers of the switch's services.
    pub fn know(&mut self, names: &Names) -> anyhow::Result<()> {
        for pattern in &mut self.patterns {
            if let Some(wanted) = &pattern.service {
                pattern.action = Action::Service(names.service(wanted)?);
            }
        }
        Ok(())
    }

    /// Whether the rule names services, whose numbers it has to know.
    pub fn asks_for_services(&self) -> bool {
        self.patterns.iter().any(|pattern| pattern.service.is_some())
    }

    /// Is from now on what another file says, and has counted nothing yet.
    pub fn replace(&mut self, new: Self) {
        *self = new;
    }

    /// What it has counted: frames looked into, and those in which each pattern was found.
    pub fn counts(&self) -> Counts {
        let found = (1..).zip(&self.patterns);
        let found = found.map(|(number, known)| (format!("pattern_{number}").into(), known.found));
        let all = [("looked_into".into(), self.looked), ("only_partly".into(), self.partly)];
        all.into_iter().chain(found).collect()
    }

    fn look(&mut self, bytes: &[u8]) -> Action {
        self.looked += 1;
        let mut first = usize::MAX;
        for found in self.automaton.find_overlapping_iter(bytes) {
            let number = found.pattern().as_usize();
            let known = &mut self.patterns[number];
            known.found += u64::from(known.last != self.looked);
            known.last = self.looked;
            if known.decides {
                first = first.min(number);
            }
        }
        self.patterns.get(first).map_or(Action::Next, |known| known.action)
    }
}

/// Whether each pattern is another, and each action can be.
fn check_order(
    text: &str,
    patterns: &[Spanned<Pattern>],
    bytes: &[Vec<u8>],
    automaton: &AhoCorasick,
) -> anyhow::Result<()> {
    let decides = |at: usize| patterns[at].get_ref().action != Deed::Count;
    for (at, pattern) in bytes.iter().enumerate() {
        let number = at + 1;
        let found = automaton.find_overlapping_iter(pattern).map(|found| found.pattern());
        for before in found.map(|found| found.as_usize()).filter(|&before| before < at) {
            let first = before + 1;
            let why = if bytes[before].len() == pattern.len() {
                format!("pattern {number} is pattern {first} once more; delete one")
            } else if decides(before) && decides(at) {
                format!(
                    "pattern {number} would decide nothing: pattern {first} is in it, and comes \
                     first; put {number} before it, or delete one"
                )
            } else {
                continue;
            };
            return Err(wrong(text, &patterns[at], why));
        }
    }
    Ok(())
}

/// Where what is looked into begins and ends.
fn payload(frame: &Frame<'_>) -> Range<usize> {
    let bytes = frame.bytes();
    let all = ETHERNET_HEADER.min(bytes.len())..bytes.len();
    let Ok(packet) = Packet::in_frame(frame.bytes(), frame.is_whole()) else { return all };
    let begin = match Protocol::new(packet.protocol(bytes)) {
        Some(Protocol::Tcp) if packet.has_header(Protocol::Tcp) => {
            packet.l4 + usize::from(bytes[packet.l4 + 12] >> 4) * 4
        }
        Some(Protocol::Udp) => packet.l4 + 8,
        _ => return all,
    };
    // Later pieces have no header, and a header that is longer than its packet hides nothing.
    let is_odd = packet.fragment == Fragment::Later || begin > packet.end;
    if is_odd { all } else { begin..packet.end }
}

impl Handler for Matcher {
    fn frame(&mut self, frame: &mut Frame<'_>, _: &mut Generated) -> Action {
        if self.matches.as_ref().is_some_and(|wanted| !wanted.may_be_for(&key_of(frame))) {
            return Action::Next;
        }
        self.partly += u64::from(!frame.is_whole());
        self.look(&frame.bytes()[payload(frame)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use packet::build::{ethernet, ipv4};

    const CONFIG: &str = "ignore_case = true\n[[pattern]]\ntext = \"curl\"\naction = \"count\"\n\
        [[pattern]]\ntext = \"passwd\"\naction = \"drop\"\n\
        [[pattern]]\nhex = \"7f 45 4c46\"\naction = { service = \"scanner\" }\n";

    fn udp(payload: &[u8]) -> Vec<u8> {
        let udp = [&[0, 7, 0, 9, 0, 0, 0, 0], payload].concat();
        ethernet(
            [2; 6],
            [4; 6],
            0x0800,
            &ipv4(17, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), &udp),
        )
    }

    fn act(matcher: &mut Matcher, frame: &[u8]) -> Action {
        matcher.frame(&mut Frame::new(&mut frame.to_vec()), &mut Generated::default())
    }

    fn known() -> Matcher {
        let mut matcher = Matcher::new(CONFIG).unwrap();
        let services = vec![("web".to_owned(), 1), ("scanner".to_owned(), 7)];
        matcher.know(&Names { services, ..Names::default() }).unwrap();
        matcher
    }

    #[test]
    fn test_what_is_found_says_what_becomes_of_a_packet() {
        let mut matcher = known();
        assert_eq!(act(&mut matcher, &udp(b"nothing")), Action::Next);
        assert_eq!(act(&mut matcher, &udp(b"cat /etc/PassWD twice: passwd")), Action::Drop);
        assert_eq!(act(&mut matcher, &udp(b"a curl and a \x7fELF")), Action::Service(7));
        assert_eq!(act(&mut matcher, &udp(b"\x7fELF before passwd")), Action::Drop, "it is first");
        let counts: Vec<u64> = matcher.counts().iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [4, 0, 1, 2, 2]);
    }

    #[test]
    fn test_headers_and_padding_are_not_looked_into() {
        let mut matcher = known();
        let mut frame = udp(b"x");
        frame[26..30].copy_from_slice(b"\x7fELF");
        frame.extend(b"passwd");
        assert_eq!(act(&mut matcher, &frame), Action::Next);
        let other = ethernet([2; 6], [4; 6], 0x88b5, b"passwd");
        assert_eq!(act(&mut matcher, &other), Action::Drop);
        let text = format!("match = {{ dport = \"80\" }}\n{CONFIG}");
        assert_eq!(act(&mut Matcher::new(&text).unwrap(), &udp(b"passwd")), Action::Next);
        let mut piece = udp(b"passwd");
        piece[20] = 0x20;
        let action = act(&mut Matcher::new(&text).unwrap(), &piece);
        assert_eq!(action, Action::Drop, "it may be for port 80");
    }

    #[test]
    fn test_nonsense_is_refused() {
        for (text, said) in [
            (CONFIG.replace("count", "shout"), "line 4"),
            (CONFIG.replace("hex = \"7f 45 4c46\"", "hex = \"7\""), "pattern 3"),
            (CONFIG.replace("text = \"curl\"", "text = \"\""), "pattern 1"),
            (CONFIG.replace("text = \"curl\"", "text = \"a\"\nhex = \"00\""), "either"),
            (format!("patterns = 3\n{CONFIG}"), "unknown key"),
        ] {
            let error = Matcher::new(&text).err().expect(&text);
            assert!(format!("{error:#}").contains(said), "{error:#}");
        }
        let error = Matcher::new(CONFIG).unwrap().know(&Names::default()).unwrap_err();
        assert!(error.to_string().contains("--service scanner"), "{error}");
    }

    proptest! {
        #[test]
        fn test_it_finds_what_a_naive_search_finds(
            payload in prop::collection::vec(prop::sample::select(b"pasw".to_vec()), 0..40),
            cut in 0usize..90,
        ) {
            let text = "[[pattern]]\ntext = \"pass\"\naction = \"drop\"\n";
            let mut matcher = Matcher::new(text).unwrap();
            let mut frame = udp(&payload);
            let found = payload.windows(4).any(|window| window == b"pass");
            prop_assert_eq!(act(&mut matcher, &frame) == Action::Drop, found);
            frame.truncate(cut);
            act(&mut matcher, &frame);
        }
    }
}

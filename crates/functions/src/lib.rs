//! The network functions that come with uvala: firewall, NAT, router, load balancer and others.
//!
//! Each is a [`Handler`] with a configuration in TOML, short enough to copy and change. This crate
//! knows nothing of the command line; `uvala nf run` knows a function only by this crate's
//! interface.

mod balancer;
mod bypass;
mod exporter;
mod firewall;
mod limiter;
mod matcher;
mod nat;
pub mod requests;
mod router;
mod shares;
mod table;
mod text;
mod time;
mod tunnel;

use std::borrow::Cow;
use std::time::{Duration, Instant};

use client::nf::{Action, Frame, Generated, Handler, Metric, step_all};
use client::{Error, Port};

use terminal::say;

/// What a function has counted, by names.
pub type Counts = Vec<(Cow<'static, str>, u64)>;

/// Where other instances of a function's service are to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// In threads of its process.
    Threads,
    /// In other processes.
    Processes,
}

/// How long functions sleep at most.
pub const TICK: Duration = Duration::from_secs(1);
/// The longest sleep of a function that waits for what another thread may hear.
const TICK_WAITING: Duration = Duration::from_millis(10);

/// Names in a switch, with their numbers in the frames' metadata.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Numbers of the services.
    pub services: Vec<(String, u8)>,
    /// Numbers of the chains.
    pub chains: Vec<(String, u8)>,
}

impl Names {
    /// The number of a chain that a function's file names.
    fn chain(&self, wanted: &text::Name) -> anyhow::Result<u8> {
        wanted.find("chain", &self.chains, "uvala chain add SWITCH NAME SERVICE")
    }

    /// The number of a service that it names.
    fn service(&self, wanted: &text::Name) -> anyhow::Result<u8> {
        wanted.find("service", &self.services, "uvala port add SWITCH:PORT --service NAME")
    }
}

/// Counters with their names.
fn named<const N: usize>(names: [&'static str; N], counts: [u64; N]) -> Counts {
    names.into_iter().map(Cow::from).zip(counts).collect()
}

/// Makes the type of all functions: each has a module, a type in it, and a line of what it does.
macro_rules! functions {
    ($count:literal: $($name:ident :: $Type:ident, $what:literal;)*) => {
        /// A network function.
        pub enum Function {
            $(#[doc = $what] $Type(Box<$name::$Type>),)*
        }

        /// Names of functions, each with a description.
        pub const NAMES: [(&str, &str); $count] = [$((stringify!($name), $what)),*];

        impl Function {
            /// Creates a function by its name, with the text of its file.
            pub fn new(name: &str, config: &str) -> anyhow::Result<Self> {
                match name {
                    $(stringify!($name) => {
                        Ok(Self::$Type(Box::new($name::$Type::new(config)?)))
                    })*
                    _ => anyhow::bail!("there is no function {name:?}; see: uvala nf run --help"),
                }
            }

            /// Takes the configuration of another function of its kind, and keeps its connections.
            pub fn replace(&mut self, new: Self) {
                match (self, new) {
                    $((Self::$Type(this), Self::$Type(new)) => this.replace(*new),)*
                    (this, new) => *this = new,
                }
            }
        }

        /// Does the same with each kind of function.
        macro_rules! each {
            ($this:expr, $function:ident => $do:expr) => {
                match $this {
                    $(Function::$Type($function) => $do,)*
                }
            };
        }
    };
}

functions! { 9:
    balancer::Balancer, "distributes connections over servers by rendezvous hashing";
    bypass::Bypass, "forwards every frame";
    exporter::Exporter, "counts flows and exports them by IPFIX";
    firewall::Firewall, "filters packets by rules, and tracks connections";
    limiter::Limiter, "limits rates, in frames and bits per second";
    matcher::Matcher, "drops, counts or redirects packets by patterns in their payload";
    nat::Nat, "translates addresses and ports: NAT44";
    router::Router, "routes IPv4 by longest prefix, with ARP and ICMP";
    tunnel::Tunnel, "tunnels frames to a remote host by VXLAN";
}

impl Function {
    /// Counters of the function, beside those of the switch.
    pub fn counts(&self) -> Counts {
        each!(self, function => function.counts())
    }

    /// Counters and gauges: a gauge grows and shrinks.
    pub fn numbers(&self) -> impl Iterator<Item = (Cow<'static, str>, Metric)> {
        let gauges: &[&str] = match self {
            Self::Balancer(_) | Self::Firewall(_) => &["connections"],
            Self::Limiter(_) => &["buckets"],
            Self::Exporter(_) => &["flows"],
            Self::Nat(_) => &["bindings"],
            Self::Router(_) => &["neighbours", "held"],
            Self::Bypass(_) | Self::Matcher(_) | Self::Tunnel(_) => &[],
        };
        self.counts().into_iter().map(|(name, number)| {
            let is_gauge = gauges.contains(&&*name);
            (name, if is_gauge { Metric::Gauge(number) } else { Metric::Count(number) })
        })
    }

    /// Why there can be one instance of it only, where that is so: instances of a service know
    /// nothing of each other, and a flow's hash is of the packet as it came in.
    pub fn why_alone(&self, others: Others) -> Option<String> {
        let why = match self {
            Self::Balancer(_) => {
                "answers come from a server's address, and would meet another instance than the \
                 one that knows their connection"
            }
            Self::Nat(_) => {
                "two would give one port to two hosts, and answers, which are for an address \
                 outside, would meet the other one"
            }
            Self::Router(_) if others == Others::Threads => return None,
            Self::Router(_) => {
                "an ARP answer reaches one process, and another would ask for ever (in threads of \
                 one process they tell each other: --threads)"
            }
            Self::Tunnel(_) => {
                "an ARP answer reaches one of them, and the others would ask for ever"
            }
            Self::Limiter(limiter) => return limiter.why_alone(),
            _ => return None,
        };
        Some(why.to_owned())
    }

    /// Has those know each other that are to run in threads of one process.
    pub fn join(all: &mut [Self]) {
        let count = all.len();
        for (function, board) in all.iter_mut().zip(router::Board::among(count)) {
            if let Self::Router(router) = function {
                router.join(board);
            }
        }
    }

    /// How long it may sleep at most.
    pub fn tick(&self) -> Duration {
        match self {
            Self::Router(router) if router.awaits_news() => TICK_WAITING,
            _ => TICK,
        }
    }

    /// Whether it makes sense to begin with what its file says, which one that runs may be told.
    pub fn check_start(&self) -> anyhow::Result<()> {
        if let Self::Balancer(balancer) = self { balancer.check_start() } else { Ok(()) }
    }

    /// Whether its rules name services or chains, whose numbers it has to [know](Self::know).
    pub fn asks_for_names(&self) -> bool {
        match self {
            Self::Matcher(matcher) => matcher.asks_for_services(),
            Self::Nat(nat) => nat.asks_for_chains(),
            Self::Tunnel(_) => true,
            _ => false,
        }
    }

    /// Tells it what the switch has.
    pub fn know(&mut self, names: &Names) -> anyhow::Result<()> {
        match self {
            Self::Matcher(matcher) => matcher.know(names),
            Self::Nat(nat) => nat.know(names),
            Self::Tunnel(tunnel) => tunnel.know(names),
            _ => Ok(()),
        }
    }

    /// The end has come: what it has to say is said.
    pub fn finish(&mut self) {
        if let Self::Exporter(exporter) = self {
            exporter.finish();
        }
    }
}

impl Handler for Function {
    fn frame(&mut self, frame: &mut Frame<'_>, made: &mut Generated) -> Action {
        each!(self, function => function.frame(frame, made))
    }

    fn batch(&mut self, frames: u32, made: &mut Generated) {
        each!(self, function => function.batch(frames, made));
    }
}

/// Runs functions of one thread as long as they may go on, which is asked between two batches, and
/// when they have slept as long as was said then.
pub fn run<F: Handler>(
    ports: &mut [Port],
    functions: &mut [F],
    mut may_go_on: impl FnMut(&mut [F]) -> Option<Duration>,
) -> Result<(), Error> {
    let mut mended = Mended::default();
    while let Some(tick) = may_go_on(functions) {
        match step_all(ports, functions, Some(tick)) {
            Ok(_) => {}
            // `may_go_on` says so, too.
            Err(Error::Stopped) => {}
            // A neighbour has spoilt a ring, which is mended: no reason to leave the chain.
            Err(Error::Resynced { times }) => {
                if let Some(error) = mended.note(times, Instant::now()) {
                    say::remark(format_args!("uvala: {error}"));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Rings that were mended, said once a second at most: a neighbour may spoil them all the time.
#[derive(Default)]
struct Mended {
    times: u32,
    said: Option<Instant>,
}

impl Mended {
    /// What is to be said now.
    fn note(&mut self, times: u32, now: Instant) -> Option<Error> {
        self.times = self.times.saturating_add(times);
        if self.said.is_some_and(|said| now.duration_since(said) < Duration::from_secs(1)) {
            return None;
        }
        self.said = Some(now);
        Some(Error::Resynced { times: std::mem::take(&mut self.times) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_mended_rings_are_spoken_of_once_a_second() {
        let (mut mended, now) = (Mended::default(), Instant::now());
        let mut note = |times, ms| match mended.note(times, now + Duration::from_millis(ms)) {
            Some(Error::Resynced { times }) => times,
            _ => 0,
        };
        assert_eq!([note(1, 0), note(2, 10), note(u32::MAX, 999)], [1, 0, 0]);
        assert_eq!([note(1, 1000), note(1, 1001), note(1, 2000)], [u32::MAX, 0, 2]);
    }

    const NAT: &str = "# who\ninside = [\"10.0.1.0/24\"]\noutside = [\n\"10.0.2.1\"]\n";
    const BACKEND: &str = "[[service]]\naddress = \"10.0.0.1:80\"\n[[service.backend]]\n\
        address = \"10.0.0.2:80\"\n[[service.backend]]\naddress = \"10.0.0.1:80\"\n";
    const INTERFACE: &str = "[[interface]]\naddress = \"10.0.1.1/24\"\n";

    fn rule(src: &str) -> String {
        format!("\n[[rule]]\naction = \"drop\"\nsrc = \"{src}\"\n")
    }

    /// A file is refused, with one line that names a line of it.
    fn check_refusal(function: &str, text: &str, line: usize, says: &str) {
        let error = format!("{:#}", Function::new(function, text).err().expect(text));
        let place = format!("line {line}: ");
        assert!(error.starts_with(&place) && error.contains(says), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn test_addresses_and_ports_that_are_nobodys_are_said_with_their_line() {
        let (nat, interface, backend) = (NAT, INTERFACE, BACKEND);
        let forward = |outside: &str, inside: &str| {
            let ends = format!("outside = \"10.0.2.1:{outside}\"\ninside = \"10.0.1.1:{inside}\"");
            format!("{nat}[[forward]]\nproto = \"tcp\"\n{ends}\n")
        };
        let way =
            |via: &str| format!("{interface}[[route]]\nto = \"10.9.0.0/16\"\nvia = {via:?}\n");
        for (function, text, line, says) in [
            ("nat", nat.replace("10.0.2.1", "224.0.0.1"), 4, "a group's"),
            ("nat", nat.replace("10.0.2.1", "0.0.0.0"), 4, "no host is"),
            ("nat", nat.replace("10.0.2.1", "127.0.0.1"), 4, "finds itself"),
            ("nat", nat.replace("10.0.2.1", "255.255.255.255"), 4, "the broadcast address"),
            (
                "nat",
                nat.replace("10.0.1.0/24\"", "10.9.0.0/16\",\n\"10.0.1.7/24\""),
                3,
                "did you mean",
            ),
            ("nat", nat.replace("1\"]", "1\",\n\"10.0.2.1\"]"), 5, "stands there twice"),
            ("nat", forward("0", "1"), 7, "port 0 is none"),
            ("nat", forward("1", "0"), 8, "port 0 is none"),
            ("nat", format!("bindings = 9\nbindings_per_host = 10\n{nat}"), 2, "would have 10"),
            ("nat", forward("1", "1").replace("tcp", "icmp"), 6, "neither"),
            ("router", interface.replace("10.0.1.1", "127.0.1.1"), 2, "finds itself"),
            ("router", interface.replace("10.0.1.1", "239.0.1.1"), 2, "a group's"),
            ("router", interface.replace("10.0.1.1", "0.0.1.1"), 2, "no host is"),
            ("router", interface.replace("1.1/24", "1.1/16") + interface, 4, "overlap"),
            ("router", interface.to_owned() + &interface.replace("1.1/24", "9.1/8"), 4, "overlap"),
            ("router", way("224.0.0.9"), 5, "a group's"),
            ("router", way("10.0.1.255"), 5, "is no host's"),
            ("router", way("127.0.0.2").replace("10.0.1.1/24", "10.0.0.1/0"), 5, "finds itself"),
            ("balancer", backend.replace("2:80", "2:0"), 4, "port 0 is none"),
            ("balancer", backend.replace("0.2:80", "0.2:x"), 4, "none like 10.0.1.1:80"),
            ("exporter", "\ncollector = \"192.0.2.9:0\"\n".to_owned(), 2, "port 0 is none"),
        ] {
            check_refusal(function, &text, line, says);
        }
    }

    #[test]
    fn test_what_others_hide_or_no_packet_is_is_said_with_its_line() {
        let limit = |more: &str| format!("[[limit]]\nframes_per_s = 9\n{more}\n");
        let pattern =
            |text: &str, does: &str| format!("[[pattern]]\ntext = {text:?}\naction = {does:?}\n");
        for (function, text, line, says) in [
            (
                "limiter",
                limit("") + &limit("match = { proto = \"udp\" }"),
                4,
                "limit 2 would never",
            ),
            ("limiter", limit("") + &limit(""), 4, "limit 2 would never"),
            ("limiter", limit("match = {\nproto = \"x\" }"), 4, "proto \"x\": expected"),
            ("matcher", pattern("a", "drop") + &pattern("a", "count"), 4, "pattern 1 once more"),
            (
                "matcher",
                "ignore_case = true\n".to_owned() + &pattern("a", "count") + &pattern("A", "drop"),
                5,
                "pattern 1 once more",
            ),
            ("matcher", pattern("a", "drop") + &pattern("bar", "drop"), 4, "decide nothing"),
            ("matcher", pattern("", "drop"), 2, "it is empty"),
            ("matcher", "[[pattern]]\naction = \"drop\"\nhex = \"7\"\n".to_owned(), 3, "no hex"),
            ("firewall", rule("10.0.0.0/8") + "proto = \"icmpv6\"\n", 2, "icmpv6 of IPv6"),
            ("firewall", rule("fd00::/8") + "proto = \"icmp\"\n", 2, "icmp is of IPv4"),
            ("firewall", "\nrules = 1\n".to_owned(), 2, "unknown key"),
        ] {
            check_refusal(function, &text, line, says);
        }
    }

    #[test]
    fn test_what_cannot_be_meant_is_said_with_its_line() {
        let (nat, interface, backend) = (NAT, INTERFACE, BACKEND);
        for (function, text, line, says) in [
            ("nat", nat.replace(".2.1", ".1.9"), 4, "10.0.1.9 lies in 10.0.1.0/24"),
            ("nat", nat.replace("\n\"10.0.2.1\"", ""), 3, "name an address"),
            ("nat", nat.replace(".1.0/24", ".1.7/24"), 2, "did you mean 10.0.1.0/24"),
            (
                "nat",
                format!(
                    "{nat}[[forward]]\nproto = \"tcp\"\noutside = \"10.0.2.9:1\"\n\
                     inside = \"10.0.1.1:1\"\n"
                ),
                7,
                "forward 1: 10.0.2.9",
            ),
            ("firewall", rule("10.0.0.0/8") + &rule("10.1.0.0/16"), 6, "never be reached"),
            ("firewall", rule("10.0.0.0/8") + &rule("10.0.0.1/8"), 8, "did you mean 10.0.0.0/8"),
            ("firewall", "\npass = [\n\"arp\",\n\"rap\"]\n".to_owned(), 4, "rap"),
            ("router", format!("{interface}\n{interface}"), 5, "has an interface already"),
            ("router", format!("mac = \"03:00:00:00:00:01\"\n{interface}"), 1, "a group's"),
            (
                "router",
                format!("{interface}[[route]]\nto = \"10.9.0.1/16\"\nvia = \"10.0.1.2\"\n"),
                4,
                "did you mean 10.9.0.0/16",
            ),
            ("balancer", backend.to_owned(), 6, "the service itself"),
            ("limiter", "\n[[limit]]\nper = \"flow\"\n".to_owned(), 2, "say frames_per_s"),
            ("matcher", "[[pattern]]\naction = \"drop\"\n".to_owned(), 1, "text or hex"),
            (
                "tunnel",
                "inside = \"c\"\nvni = 1\nlocal = \"10.0.0.1\"\nremote = \"10.0.0.1\"\n".to_owned(),
                4,
                "one address",
            ),
        ] {
            check_refusal(function, &text, line, says);
        }
        // So is what the switch does not have.
        for (function, text, line) in [
            ("nat", format!("{nat}from_inside = \"out\"\n"), 5),
            ("matcher", "[[pattern]]\ntext = \"x\"\naction = { service = \"s\" }\n".to_owned(), 3),
        ] {
            let error = Function::new(function, &text).unwrap().know(&Names::default());
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}: the switch has no")), "{error}");
        }
    }

    #[test]
    fn test_what_one_that_runs_may_be_told_can_be_no_beginning() {
        let text = "[[service]]\naddress = \"10.0.0.1:80\"\n[[service.backend]]\n\
            address = \"10.0.0.2:80\"\nweight = 1\n";
        let mut runs = Function::new("balancer", text).unwrap();
        assert!(runs.check_start().is_ok());
        let closed =
            || Function::new("balancer", &text.replace("weight = 1", "weight = 0")).unwrap();
        let refused = closed().check_start().unwrap_err().to_string();
        assert!(refused.starts_with("line 2: service 1: no backend has a weight"), "{refused}");
        runs.replace(closed());
    }

    #[test]
    fn test_the_examples_are_what_their_functions_take() {
        for (function, text) in [
            ("firewall", include_str!("../../../examples/nf/firewall.toml")),
            ("firewall", include_str!("../../../examples/nf/firewall-forward.toml")),
            ("balancer", include_str!("../../../examples/nf/balancer.toml")),
            ("limiter", include_str!("../../../examples/nf/limiter.toml")),
            ("matcher", include_str!("../../../examples/nf/matcher.toml")),
            ("exporter", include_str!("../../../examples/nf/exporter.toml")),
            ("nat", include_str!("../../../examples/nf/nat.toml")),
            ("router", include_str!("../../../examples/nf/router.toml")),
            ("tunnel", include_str!("../../../examples/nf/tunnel.toml")),
        ] {
            let mut made = Function::new(function, text).unwrap();
            made.replace(Function::new(function, text).unwrap());
            assert!(Function::new(function, "nonsense = 1").is_err(), "{function}");
        }
    }
}

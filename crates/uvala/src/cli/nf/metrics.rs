//! `uvala nf metrics`: what functions, chains and rules have counted, as Prometheus reads it.
//!
//! A family is a name with its help and its type, and then a sample for each set of labels. Which
//! there can be is bounded by what a switch can have: reasons are 27 words, chains 255, instances
//! as many as its ports; of rules, which are thousands, those behind the first [`RULES`] are one.

use std::collections::BTreeMap;
use std::fmt::Write;

use protocol::name::SwitchName;
use protocol::{ChainInfo, FunctionInfo, RuleInfo};

use super::{functions, switches};
use crate::cli::{Global, chain, rule};
use terminal::say;

/// Rules of a switch that have samples of their own.
const RULES: usize = 256;

/// What there is to say of a switch.
struct Seen {
    switch: SwitchName,
    functions: Vec<FunctionInfo>,
    chains: Vec<ChainInfo>,
    rules: Vec<RuleInfo>,
}

/// Prints them once.
pub fn run(global: &Global, switch: Option<&SwitchName>) -> anyhow::Result<()> {
    let connection = global.connect()?;
    let switches = match switch {
        Some(switch) => vec![switch.clone()],
        None => switches::list(&connection)?.into_iter().map(|info| info.switch).collect(),
    };
    let see = |switch: SwitchName| {
        let functions = functions(&connection, Some(&switch))?;
        let chains = chain::chains(&connection, &switch)?;
        let rules = rule::rules(&connection, &switch)?;
        anyhow::Ok(Seen { switch, functions, chains, rules })
    };
    let seen = switches.into_iter().map(see).collect::<anyhow::Result<Vec<_>>>()?;
    say::out(text(&seen))
}

fn text(seen: &[Seen]) -> String {
    let mut page = Page::default();
    for Seen { switch, functions, chains, rules } in seen {
        let of_switch = [("switch", switch.to_string())];
        functions.iter().for_each(|info| page.function(&of_switch, info));
        chains.iter().for_each(|info| page.chain(&of_switch, info));
        if let Some(info) = chains.first() {
            let flows = info.flow_cache;
            page.add("flow_cache_hits_total", &of_switch, flows.hits);
            page.add("flow_cache_misses_total", &of_switch, flows.misses);
            page.add("flow_cache_evictions_total", &of_switch, flows.evicted);
        }
        page.rules(&of_switch, rules);
    }
    page.text()
}

/// Names, without the program's own in front, and what they count, in order.
const FAMILIES: [(&str, &str); 21] = [
    ("function_received_frames_total", "Frames that an instance was given."),
    ("function_sent_frames_total", "Frames that an instance sent."),
    ("function_dropped_frames_total", "Frames that ended at an instance, by reason."),
    ("function_lost_frames_total", "Frames that an instance held when its process ended."),
    ("function_waiting_frames", "Frames that wait for an instance."),
    ("function_capacity_frames", "Frames that have room at an instance."),
    (
        "function_cpu_seconds_total",
        "Processor time of an instance: of its thread, or of its process.",
    ),
    ("function_running", "Whether a process runs an instance."),
    ("function_stalled", "Whether an instance has frames and reads none."),
    ("function_events_total", "What an instance's function has counted itself, by name."),
    ("function_values", "What an instance's function has now, by name."),
    ("chain_entered_frames_total", "Frames that entered a chain."),
    ("chain_dropped_frames_total", "Frames that ended in a chain, by reason."),
    (
        "chain_early_total",
        "How often frames were let in after a change although older ones were in a chain.",
    ),
    ("chain_broken", "Whether no frame can pass a chain now."),
    ("flow_cache_hits_total", "Frames whose flow was known."),
    ("flow_cache_misses_total", "Frames whose flow was looked for in the rules."),
    ("flow_cache_evictions_total", "Live flows that made room for others."),
    ("rule_frames_total", "Frames that a rule was for."),
    ("rule_bytes_total", "Bytes that a rule was for."),
    ("rules", "Rules of a switch."),
];

type Labels = [(&'static str, String)];

/// Samples by their family.
#[derive(Default)]
struct Page(BTreeMap<&'static str, String>);

impl Page {
    fn add(&mut self, family: &'static str, labels: &Labels, value: impl ToString) {
        debug_assert!(FAMILIES.iter().any(|(name, _)| *name == family), "{family} has no help");
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let samples = self.0.entry(family).or_default();
        samples.push_str(&format!("uvala_{family}{{{labels}}} {}\n", value.to_string()));
    }

    fn function(&mut self, of_switch: &Labels, info: &FunctionInfo) {
        let FunctionInfo { service, instance, port, .. } = info;
        let own = [("service", service.clone()), ("instance", instance.to_string())];
        let own = [of_switch, &own[..], &[("port", port.port().to_owned())]].concat();
        self.add("function_received_frames_total", &own, info.frames_in);
        self.add("function_sent_frames_total", &own, info.frames_out);
        self.drops("function_dropped_frames_total", &own, &info.drops);
        self.add("function_lost_frames_total", &own, info.lost);
        self.add("function_waiting_frames", &own, info.waiting);
        self.add("function_capacity_frames", &own, info.capacity);
        if let Some(ms) = info.cpu_ms {
            let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
            self.add("function_cpu_seconds_total", &own, seconds);
        }
        self.add("function_running", &own, u8::from(info.pid.is_some()));
        self.add("function_stalled", &own, u8::from(info.stalled));
        let named = |name: &String| [&own, &[("name", name.clone())][..]].concat();
        for (name, count) in &info.counts {
            self.add("function_events_total", &named(name), count);
        }
        for (name, gauge) in &info.gauges {
            self.add("function_values", &named(name), gauge);
        }
    }

    fn chain(&mut self, of_switch: &Labels, info: &ChainInfo) {
        let own = [of_switch, &[("chain", info.chain.name.clone())]].concat();
        self.add("chain_entered_frames_total", &own, info.entered);
        self.drops("chain_dropped_frames_total", &own, &info.drops);
        self.add("chain_early_total", &own, info.early);
        self.add("chain_broken", &own, u8::from(info.broken.is_some()));
    }

    fn drops(&mut self, family: &'static str, own: &Labels, drops: &BTreeMap<String, u64>) {
        for (reason, frames) in drops {
            self.add(family, &[own, &[("reason", reason.clone())]].concat(), frames);
        }
    }

    /// Each by its number; the last ones, which are many, together.
    fn rules(&mut self, of_switch: &Labels, rules: &[RuleInfo]) {
        if rules.is_empty() {
            return;
        }
        self.add("rules", of_switch, rules.len());
        // By number: what is new comes last, and moves none of the others.
        let mut rules: Vec<&RuleInfo> = rules.iter().collect();
        rules.sort_by_key(|info| info.rule.id);
        let (own, others) = rules.split_at(rules.len().min(RULES));
        let own = own
            .iter()
            .map(|info| (info.rule.id.unwrap_or_default().to_string(), info.frames, info.bytes));
        let sum = |of: fn(&RuleInfo) -> u64| {
            others.iter().map(|info| of(info)).fold(0, u64::wrapping_add)
        };
        let others = (!others.is_empty())
            .then(|| ("others".to_owned(), sum(|info| info.frames), sum(|info| info.bytes)));
        for (rule, frames, bytes) in own.chain(others) {
            let own = [of_switch, &[("rule", rule)]].concat();
            self.add("rule_frames_total", &own, frames);
            self.add("rule_bytes_total", &own, bytes);
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, help) in FAMILIES {
            let Some(samples) = self.0.get(name) else { continue };
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            // A string takes everything.
            let _ =
                write!(text, "# HELP uvala_{name} {help}\n# TYPE uvala_{name} {kind}\n{samples}");
        }
        text
    }
}

/// A label's value.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use protocol::{ChainSpec, FlowCacheInfo, RuleSpec};

    use super::*;

    fn function(port: &str, cpu_ms: Option<u64>) -> FunctionInfo {
        FunctionInfo {
            service: "fw".to_owned(),
            number: 1,
            instance: 0,
            port: port.parse().unwrap(),
            pid: cpu_ms.map(|_| 1),
            user: None,
            trust_group: None,
            waiting: 3,
            capacity: 1023,
            cpu_ms,
            thread: None,
            cores: None,
            stalled: false,
            frames_in: 9,
            frames_out: 8,
            called_in: 0,
            called_out: 0,
            lost: 0,
            no_room: 0,
            dropped: 1,
            drops: BTreeMap::from([("function".to_owned(), 1), ("bad_index".to_owned(), 2)]),
            counts: BTreeMap::from([("rule_1".to_owned(), 5)]),
            gauges: BTreeMap::from([("connections".to_owned(), 2)]),
        }
    }

    fn seen(rules: u32) -> Seen {
        let chain = ChainSpec { name: "web".to_owned(), services: Vec::new(), out: None };
        let flow_cache = FlowCacheInfo { hits: 4, misses: 5, evicted: 6 };
        let chains = vec![ChainInfo {
            chain,
            number: 0,
            ports: Vec::new(),
            entered: 7,
            shed: 0,
            early: 0,
            drops: BTreeMap::from([("no_instance".to_owned(), 1)]),
            lost: 0,
            flow_cache,
            broken: None,
        }];
        let rule = |id| {
            let rule = RuleSpec { id: Some(id), ..RuleSpec::default() };
            RuleInfo { rule, frames: 1, bytes: 60, broken: None }
        };
        let functions = vec![function("vale0:f0", Some(1234)), function("vale0:f1", None)];
        let switch = "vale0".parse().unwrap();
        Seen { switch, functions, chains, rules: (1..=rules).map(rule).collect() }
    }

    #[test]
    fn test_each_family_is_explained_once_and_has_no_sample_twice() {
        let text = text(&[seen(2), Seen { switch: "vale1".parse().unwrap(), ..seen(1) }]);
        let mut known = BTreeSet::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().unwrap().to_owned();
                assert!(known.insert(family.clone()), "{family} stands in two places");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!((name, kind == "counter"), (&*family, family.ends_with("_total")));
            } else {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                assert!(sample.starts_with(&format!("{family}{{")) && sample.ends_with('}'));
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(known.insert(sample.to_owned()), "{sample} stands twice");
            }
        }
        assert_eq!(known.iter().filter(|name| !name.contains('{')).count(), FAMILIES.len());
        for sample in [
            r#"function_stalled{switch="vale0",service="fw",instance="0",port="f1"} 0"#,
            r#"chain_dropped_frames_total{switch="vale1",chain="web",reason="no_instance"} 1"#,
            r#"rule_bytes_total{switch="vale0",rule="2"} 60"#,
        ] {
            // Its value of f1 is unknown.
            assert!(text.contains(r#"port="f0"} 1.234"#));
            let is_it = |line: &str| line.strip_prefix("uvala_") == Some(sample);
            assert!(text.lines().any(is_it), "{text}");
        }
    }

    #[test]
    fn test_rules_behind_the_first_are_one_and_the_sum_stays() {
        let text = text(&[seen(4096)]);
        let samples = text.lines().filter(|line| line.starts_with("uvala_rule_frames_total{"));
        let frames = samples.clone().map(|line| line.rsplit_once(' ').unwrap().1);
        assert_eq!(frames.map(|frames| frames.parse::<u64>().unwrap()).sum::<u64>(), 4096);
        assert_eq!(samples.count(), RULES + 1);
        assert!(text.contains(r#"uvala_rules{switch="vale0"} 4096"#));
    }

    #[test]
    fn test_a_label_may_have_any_letter() {
        assert_eq!(escaped("a\"b\\c\n"), r#"a\"b\\c\n"#);
    }
}

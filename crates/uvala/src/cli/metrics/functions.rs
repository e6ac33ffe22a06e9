//! What functions, chains and rules have counted.
//!
//! What there can be is bounded by what a switch can have: chains are 255, instances as many as its
//! ports; of rules, which are thousands, those behind the first [`RULES`] are one.

use protocol::{ChainInfo, FunctionInfo, RuleInfo};

use super::Steering;
use super::page::Kind::{Counter, Gauge};
use super::page::{Family, Labels, Page, thousandths};

/// Rules of a switch that have samples of their own.
const RULES: usize = 256;

/// The families, in order.
pub const FAMILIES: [Family; 21] = [
    ("function_received_frames_total", Counter, "Frames that an instance was given."),
    ("function_sent_frames_total", Counter, "Frames that an instance sent on."),
    ("function_dropped_frames_total", Counter, "Frames that ended at an instance, by reason."),
    ("function_lost_frames_total", Counter, "Frames that an instance held when its process ended."),
    ("function_waiting_frames", Gauge, "Frames that wait for an instance."),
    ("function_capacity_frames", Gauge, "Frames that have room at an instance."),
    (
        "function_cpu_seconds_total",
        Counter,
        "Processor time of an instance: of its thread, or of its process.",
    ),
    ("function_running", Gauge, "Whether a process runs an instance."),
    ("function_stalled", Gauge, "Whether an instance has frames and reads none."),
    ("function_events_total", Counter, "What an instance's function has counted itself, by name."),
    ("function_values", Gauge, "What an instance's function has now, by name."),
    ("chain_entered_frames_total", Counter, "Frames that entered a chain."),
    ("chain_dropped_frames_total", Counter, "Frames that ended in a chain, by reason."),
    (
        "chain_early_total",
        Counter,
        "How often frames were let in after a change although older ones were in a chain.",
    ),
    ("chain_broken", Gauge, "Whether no frame can pass a chain now."),
    ("flow_cache_hits_total", Counter, "Frames whose flow was known."),
    ("flow_cache_misses_total", Counter, "Frames whose flow was looked for in the rules."),
    ("flow_cache_evictions_total", Counter, "Live flows that made room for others."),
    ("rule_frames_total", Counter, "Frames that a rule was for."),
    ("rule_bytes_total", Counter, "Bytes that a rule was for."),
    ("rules", Gauge, "Rules of a switch."),
];

/// Adds samples of a switch.
pub fn add(page: &mut Page, own: &Labels, steering: &Steering) {
    let Steering { functions, chains, rules } = steering;
    functions.iter().for_each(|info| function(page, own, info));
    chains.iter().for_each(|info| chain(page, own, info));
    if let Some(info) = chains.first() {
        let flows = info.flow_cache;
        page.add("flow_cache_hits_total", own, flows.hits);
        page.add("flow_cache_misses_total", own, flows.misses);
        page.add("flow_cache_evictions_total", own, flows.evicted);
    }
    add_rules(page, own, rules);
}

fn function(page: &mut Page, of_switch: &Labels, info: &FunctionInfo) {
    let FunctionInfo { service, instance, port, .. } = info;
    // Prometheus has a label "instance" of its own.
    let own = of_switch.and("service", service).and("service_instance", instance.to_string());
    let own = own.and("port", port.port());
    page.add("function_received_frames_total", &own, info.frames_in);
    page.add("function_sent_frames_total", &own, info.frames_out);
    page.by_reason("function_dropped_frames_total", &own, &info.drops);
    page.add("function_lost_frames_total", &own, info.lost);
    page.add("function_waiting_frames", &own, info.waiting);
    page.add("function_capacity_frames", &own, info.capacity);
    if let Some(ms) = info.cpu_ms {
        page.add("function_cpu_seconds_total", &own, thousandths(ms));
    }
    page.add("function_running", &own, u8::from(info.pid.is_some()));
    page.add("function_stalled", &own, u8::from(info.stalled));
    for (name, count) in &info.counts {
        page.add("function_events_total", &own.and("name", name), count);
    }
    for (name, gauge) in &info.gauges {
        page.add("function_values", &own.and("name", name), gauge);
    }
}

fn chain(page: &mut Page, of_switch: &Labels, info: &ChainInfo) {
    let own = of_switch.and("chain", &info.chain.name);
    page.add("chain_entered_frames_total", &own, info.entered);
    page.by_reason("chain_dropped_frames_total", &own, &info.drops);
    page.add("chain_early_total", &own, info.early);
    page.add("chain_broken", &own, u8::from(info.broken.is_some()));
}

/// Each by its number; the last ones, which are many, together.
fn add_rules(page: &mut Page, of_switch: &Labels, rules: &[RuleInfo]) {
    if rules.is_empty() {
        return;
    }
    page.add("rules", of_switch, rules.len());
    // By number: what is new comes last, and moves none of the others.
    let mut rules: Vec<&RuleInfo> = rules.iter().collect();
    rules.sort_by_key(|info| info.rule.id);
    let (own, others) = rules.split_at(rules.len().min(RULES));
    let own = own
        .iter()
        .map(|info| (info.rule.id.unwrap_or_default().to_string(), info.frames, info.bytes));
    let sum =
        |of: fn(&RuleInfo) -> u64| others.iter().map(|info| of(info)).fold(0, u64::wrapping_add);
    let others = (!others.is_empty())
        .then(|| ("others".to_owned(), sum(|info| info.frames), sum(|info| info.bytes)));
    for (rule, frames, bytes) in own.chain(others) {
        let own = of_switch.and("rule", rule);
        page.add("rule_frames_total", &own, frames);
        page.add("rule_bytes_total", &own, bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

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

    fn seen(rules: u32) -> Steering {
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
        Steering { functions, chains, rules: (1..=rules).map(rule).collect() }
    }

    fn text(all: &[(&str, Steering)]) -> String {
        let mut page = Page::default();
        for (switch, steering) in all {
            add(&mut page, &Labels::of("switch", switch), steering);
        }
        page.text(FAMILIES.into_iter())
    }

    #[test]
    fn test_each_family_is_explained_once_and_has_no_sample_twice() {
        let text = text(&[("vale0", seen(2)), ("vale1", seen(1))]);
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
            r#"function_stalled{switch="vale0",service="fw",service_instance="0",port="f1"} 0"#,
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
        let text = text(&[("vale0", seen(4096))]);
        let samples = text.lines().filter(|line| line.starts_with("uvala_rule_frames_total{"));
        let frames = samples.clone().map(|line| line.rsplit_once(' ').unwrap().1);
        assert_eq!(frames.map(|frames| frames.parse::<u64>().unwrap()).sum::<u64>(), 4096);
        assert_eq!(samples.count(), RULES + 1);
        assert!(text.contains(r#"uvala_rules{switch="vale0"} 4096"#));
    }
}

//! Chains and rules in more than one message.

use super::*;

fn spec(call: &str, switch: &str, settings: &str) -> String {
    format!(r#"{{"{call}":{{"switch":"{switch}","settings":{{{settings}}}}}}}"#)
}

fn rule(vlan: u16) -> String {
    format!(r#""rules":[{{"action":"drop","vlan":{vlan}}}]"#)
}

impl Bench {
    /// A switch of root's, and one of user 7's.
    fn with_switches() -> Self {
        let mut bench = Self::new();
        for (uid, switch) in [(0, "vale0"), (7, "vale7")] {
            let add = spec("switch_add", switch, r#""forwarding":"chain""#);
            bench.ask(uid.into(), uid, &add).unwrap();
        }
        bench
    }

    fn vlans(&self) -> Vec<u16> {
        let switch = self.control.state.find_switch(&"vale0".parse().unwrap()).unwrap();
        switch.steering.rules().iter().filter_map(|rule| rule.vlan).collect()
    }

    fn draft(&mut self, conn: u64, settings: &str) {
        self.ask(conn, 0, &spec("switch_draft", "vale0", settings)).unwrap();
    }

    fn set(&mut self, conn: u64, settings: &str) -> Result<Reply, Refusal> {
        self.ask(conn, 0, &spec("switch_set", "vale0", settings))
    }
}

#[test]
fn test_a_draft_is_in_force_with_the_last_part_and_not_before() {
    let mut bench = Bench::with_switches();
    bench.set(1, &rule(1)).unwrap();
    bench.control.datapath.steered.clear();
    bench.draft(1, &rule(2));
    bench.draft(1, r#""chains":[]"#);
    bench.draft(1, &rule(3));
    assert_eq!(bench.vlans(), [1]);
    assert!(bench.control.datapath.steered.is_empty());
    bench.set(2, r#""age_s":7"#).unwrap();
    assert_eq!(bench.vlans(), [1], "another connection's is no part of it");
    bench.set(1, r#""rules":[]"#).unwrap();
    assert_eq!(bench.vlans(), [2, 3]);
    bench.set(1, &rule(4)).unwrap();
    assert_eq!(bench.vlans(), [4], "it was for one call");
}

#[test]
fn test_a_draft_goes_with_its_connection_and_with_a_refusal() {
    let mut bench = Bench::with_switches();
    bench.draft(1, &rule(2));
    bench.control.hang_up(ConnKey(1));
    bench.set(1, &rule(3)).unwrap();
    assert_eq!(bench.vlans(), [3]);
    bench.draft(1, r#""rules":[{"action":"chain:none","vlan":9}]"#);
    assert!(bench.set(1, &rule(4)).unwrap_err().to_string().contains("no chain none"));
    assert_eq!(bench.vlans(), [3], "all or nothing");
    bench.set(1, &rule(5)).unwrap();
    assert_eq!(bench.vlans(), [5]);
}

#[test]
fn test_what_is_no_draft_is_refused() {
    let mut bench = Bench::with_switches();
    let draft = |switch: &str, settings: &str| spec("switch_draft", switch, settings);
    let (code, why) = bench.refused(1, 0, &draft("vale0", r#""age_s":1"#));
    assert!(code == ErrorCode::BadRequest && why.contains("only chains and rules"), "{why}");
    assert_eq!(bench.refused(1, 0, &draft("vale9", "")).0, ErrorCode::NotFound);
    assert_eq!(bench.refused(1, 7, &draft("vale0", "")).0, ErrorCode::Permission);
    bench.draft(1, "");
    assert!(bench.refused(1, 0, &draft("vale7", "")).1.contains("another switch"));
}

/// A client cannot make the daemon keep more than a few parts.
#[test]
fn test_a_user_has_few_drafts_and_these_few_parts() {
    let mut bench = Bench::with_switches();
    (0..64).for_each(|_| bench.draft(1, &rule(2)));
    let more = spec("switch_draft", "vale0", &rule(2));
    assert!(bench.refused(1, 0, &more).1.contains("more than 64 parts"));
    bench.set(1, &rule(3)).unwrap();
    assert_eq!(bench.vlans(), [3], "what is too long is forgotten");
    (1..5).for_each(|conn| bench.draft(conn, ""));
    assert_eq!(bench.refused(5, 0, &more).0, ErrorCode::Quota);
    bench.draft(4, "");
    bench.ask(9, 7, &spec("switch_draft", "vale7", "")).unwrap();
    bench.control.hang_up(ConnKey(1));
    bench.draft(5, "");
}

/// Rules that differ in their ports, the first with this number.
fn rules(first: Option<u32>, dports: std::ops::Range<u16>) -> String {
    let one = |dport: u16| {
        let id = first.filter(|_| dport == dports.start).map(|id| format!(r#""id":{id},"#));
        format!(r#"{{{}"action":"drop","dport":"{dport}"}}"#, id.unwrap_or_default())
    };
    format!(r#""rules":[{}]"#, dports.clone().map(one).collect::<Vec<_>>().join(","))
}

#[test]
fn test_a_draft_holds_the_rules_of_a_switch_and_no_more() {
    let mut bench = Bench::with_switches();
    let ids = |bench: &Bench| {
        let switch = bench.control.state.find_switch(&"vale0".parse().unwrap()).unwrap();
        switch.steering.rules().iter().filter_map(|rule| rule.id).collect::<Vec<_>>()
    };
    // Behind the last number, all get those that are free.
    bench.draft(1, &rules(Some(u32::MAX), 0..1000));
    bench.draft(1, &rules(None, 1000..4000));
    bench.set(1, &rules(None, 4000..4096)).unwrap();
    let all: Vec<u32> = (1..4096).chain([u32::MAX]).collect();
    assert_eq!(ids(&bench), all);
    for parts in [[0..4000, 4000..4097], [0..4097, 0..0]] {
        let parts = parts.map(|part| spec("switch_draft", "vale0", &rules(None, part)));
        let refused: Vec<_> = parts.iter().filter_map(|part| bench.ask(1, 0, part).err()).collect();
        assert_eq!(refused.len(), 1);
        let why = refused[0].to_string();
        assert!(why.contains("more than 4096 rules") && why.contains("is forgotten"), "{why}");
        bench.control.hang_up(ConnKey(1));
    }
    bench.draft(1, &rules(None, 0..4000));
    let last = spec("switch_set", "vale0", &rules(None, 4000..4097));
    assert!(bench.refused(1, 0, &last).1.contains("more than 4096 rules"));
    let add = format!(r#"{{"rule_add":{{"switch":"vale0",{}}}}}"#, rules(None, 0..4097));
    assert!(bench.refused(1, 0, &add).1.contains("more than 4096 rules"));
    assert_eq!(ids(&bench), all, "what was in force still is");
}

#[test]
fn test_a_draft_holds_the_chains_of_a_switch_and_no_more() {
    let mut bench = Bench::with_switches();
    let chains = |count: usize, services: usize| {
        let services = vec![r#""s""#; services].join(",");
        let chain = format!(r#"{{"name":"c","services":[{services}]}}"#);
        format!(r#""chains":[{}]"#, vec![chain; count].join(","))
    };
    bench.draft(1, &chains(200, 8));
    bench.draft(1, &chains(55, 1));
    for (part, says) in [(chains(1, 1), "at most 255 chains"), (chains(1, 9), "8 services")] {
        let why = bench.refused(1, 0, &spec("switch_draft", "vale0", &part)).1;
        assert!(why.contains(says) && why.contains("is forgotten"), "{why}");
        assert!(bench.control.pending.drafts.is_empty());
    }
}

//! Chains and rules, and the ports that they name: these come and go.

use protocol::{GroupAudit, GroupRequest, PageFrom, RuleRequest, SteeringQuery};
use switch::chain::rule::Action;
use switch::chain::{Plan, Planner};

use super::*;

impl Bench {
    /// vale0 with two instances of service fw, a chain of it, and a rule for a port of a client.
    pub(super) fn with_chain() -> Self {
        let mut bench = Self::new();
        bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"forwarding":"chain"}}}"#);
        for port in ["f1", "f2"] {
            let settings = r#"{"service":"fw"}"#;
            bench.done(&format!(
                r#"{{"port_add":{{"port":"vale0:{port}","settings":{settings}}}}}"#
            ));
        }
        bench.done(r#"{"chain_add":{"switch":"vale0","chain":{"name":"web","services":["fw"]}}}"#);
        bench.attach(1, 0, "vale0:vm").unwrap();
        let rule = r#"{"switch":"vale0","rules":[{"action":"drop","in":"vm"}]}"#;
        bench.ask(0, 0, &format!(r#"{{"rule_add":{rule}}}"#)).unwrap();
        bench
    }

    fn plan(&self) -> &Plan {
        let switch = self.control.state.find_switch(&"vale0".parse().unwrap()).unwrap();
        switch.planner.as_ref().and_then(Planner::last).expect("it was told")
    }
}

#[test]
fn test_what_names_a_port_that_has_gone_stays_and_others_are_added() {
    let mut bench = Bench::with_chain();
    assert_eq!(bench.plan().rules.len(), 1);
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.plan().rules, [], "for no frame");
    bench.done(r#"{"port_del":{"port":"vale0:f1"}}"#);
    bench.done(r#"{"port_del":{"port":"vale0:f2"}}"#);
    let more = r#"{"rule_add":{"switch":"vale0","rules":[{"action":"drop","vlan":7}]}}"#;
    bench.ask(0, 0, more).unwrap();
    // What is new is looked at.
    let typo =
        r#"{"rule_add":{"switch":"vale0","rules":[{"action":"port:vmm","vlan":8,"priority":9}]}}"#;
    assert!(bench.refused(0, 0, typo).1.contains("no port vmm"));
    let again = r#"{"name":"x","services":["fw"]}"#;
    let again = format!(r#"{{"chain_add":{{"switch":"vale0","chain":{again}}}}}"#);
    assert!(bench.refused(0, 0, &again).1.contains("no service fw"));
    bench.attach(1, 0, "vale0:vm").unwrap();
    assert_eq!(bench.plan().rules.len(), 2);
}

#[test]
fn test_who_runs_a_function_stays_in_its_service() {
    let mut bench = Bench::with_chain();
    let set = |service: &str| {
        format!(r#"{{"port_set":{{"port":"vale0:f1","settings":{{"service":"{service}"}}}}}}"#)
    };
    bench.done(&set("other"));
    bench.done(&set("fw"));
    bench.attach(2, 0, "vale0:f1").unwrap();
    bench.done(&set("fw"));
    for service in ["", "other"] {
        let (code, why) = bench.refused(0, 0, &set(service));
        assert!(code == ErrorCode::InUse && why.contains("stop it first"), "{why}");
    }
    bench.control.hang_up(ConnKey(2));
    bench.done(&set(""));
}

#[test]
fn test_a_switch_starts_with_chains_and_rules_whose_ports_are_not_there() {
    let text = "[switch.vale0]\nforwarding = \"chain\"\n\
        [[switch.vale0.chain]]\nname = \"web\"\nservices = [\"fw\"]\nout = \"c\"\n\
        [[switch.vale0.rule]]\naction = \"drop\"\nin = \"vm\"\npriority = 9\n\
        [[switch.vale0.rule]]\naction = \"port:b\"\nvlan = 3\n\
        [[switch.vale0.rule]]\naction = \"chain:web\"\nvlan = 4\n\
        [switch.vale0.port.a]\nchain = \"gone\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).unwrap();
    let mut control = Control::new(&config, Fake::default());
    control.make_planned(&client(0, 0).caller, &config.switches[0]).unwrap();
    let mut bench = Bench { control };
    let actions = |plan: &Plan| plan.rules.iter().map(|rule| rule.action).collect::<Vec<_>>();
    assert_eq!(actions(bench.plan()), [Action::Drop, Action::Chain(0)], "and none for vm");
    bench.attach(1, 0, "vale0:a").unwrap();
    let [(_, chain)] = bench.plan().ingress[..] else { panic!("its chain is not there") };
    assert_eq!(bench.plan().chains.get(usize::from(chain)), None, "its frames are dropped");
}

#[test]
fn test_ports_that_nobody_names_come_and_go_without_another_plan() {
    let mut bench = Bench::with_chain();
    bench.control.datapath.steered.clear();
    bench.attach(2, 0, "vale0:other").unwrap();
    bench.control.hang_up(ConnKey(2));
    assert!(bench.control.datapath.steered.is_empty(), "its worker was stopped for nothing");
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.control.datapath.steered.len(), 1);
    assert_eq!(bench.plan().rules, []);
}

#[test]
fn test_pages_of_rules_have_each_once_while_others_come_and_go() {
    let mut bench = Bench::with_chain();
    bench.ask(0, 0, r#"{"rule_del":{"switch":"vale0","rules":[]}}"#).unwrap();
    let rule = |id: u32, priority: u32| {
        format!(r#"{{"id":{id},"action":"drop","dport":"{id}","priority":{priority}}}"#)
    };
    let add = |bench: &mut Bench, rules: &[String]| {
        let rules = rules.join(",");
        let text = format!(r#"{{"rule_add":{{"switch":"vale0","rules":[{rules}]}}}}"#);
        bench.ask(0, 0, &text).unwrap();
    };
    let all: Vec<_> = (1..=3000).map(|id| rule(id, 10 + id % 2)).collect();
    add(&mut bench, &all);
    let (mut seen, mut from, mut pages) = (Vec::new(), None, 0);
    loop {
        let query = SteeringQuery { switch: "vale0".parse().unwrap(), from };
        let (reply, _) = bench.answer(0, 0, Request::Rule(RuleRequest::List(query))).unwrap();
        let Reply::Rules(page) = reply else { panic!("{reply:?}") };
        seen.extend(page.items.iter().filter_map(|info| info.rule.id));
        from = page.next;
        if from.is_none() {
            break;
        }
        // One that comes before all, and the first of the next page goes.
        pages += 1;
        add(&mut bench, &[rule(5000 + pages, 99)]);
        let next = from.as_ref().and_then(|from| from.split('/').next_back()).unwrap();
        let del = format!(r#"{{"rule_del":{{"switch":"vale0","rules":[{next}]}}}}"#);
        bench.ask(0, 0, &del).unwrap();
    }
    assert!(pages > 1);
    assert_eq!(bench.control.datapath.reports, 1, "the worker is asked once for a listing");
    assert_eq!(seen.len(), 3000 - usize::try_from(pages).unwrap());
    let odd = seen.iter().filter(|id| *id % 2 == 1).count();
    assert!(seen[..odd].is_sorted() && seen[odd..].is_sorted(), "each once, in order");
    let from = r#"{"rule_list":{"switch":"vale0","from":"7"}}"#;
    assert!(bench.refused(0, 0, from).1.contains("no place"));
}

/// One more would be an ordinary port, by which frames enter chains.
#[test]
fn test_a_service_has_64_instances_and_no_more() {
    let mut bench = Bench::with_chain();
    let add = |n: u32, service: &str| {
        let settings = format!(r#"{{"service":"{service}","instance":{n}}}"#);
        format!(r#"{{"port_add":{{"port":"vale0:i{n}","settings":{settings}}}}}"#)
    };
    (2..64).for_each(|n| bench.done(&add(n, "fw")));
    assert!(bench.refused(0, 0, &add(64, "fw")).1.contains("another service"));
    bench.done(&add(64, "other"));
    let set = r#"{"port_set":{"port":"vale0:i64","settings":{"service":"fw"}}}"#;
    assert!(bench.refused(0, 0, set).1.contains("another service"));
    let set = r#"{"port_set":{"port":"vale0:i63","settings":{"instance":99}}}"#;
    bench.done(set);
}

#[test]
fn test_only_ports_with_slots_are_functions() {
    let mut bench = Bench::with_chain();
    let null = r#"{"port_add":{"port":"vale0:n","kind":"null","settings":{"service":"fw"}}}"#;
    assert!(bench.refused(0, 0, null).1.contains("kind shm"));
    bench.done(r#"{"port_add":{"port":"vale0:n","kind":"null"}}"#);
    let set = r#"{"port_set":{"port":"vale0:n","settings":{"service":"fw"}}}"#;
    assert!(bench.refused(0, 0, set).1.contains("kind shm"));
    let text = "[switch.vale0.port.n]\nkind = \"null\"\nservice = \"fw\"\n";
    let refusal = Config::parse(text, std::path::Path::new("test.toml")).unwrap_err();
    assert!(refusal.to_string().contains("kind shm"));
}

/// Pages of an audit until the last: groups and ports, in the order in which they came.
fn audit(bench: &mut Bench, uid: u32) -> Vec<(u32, String, Vec<String>)> {
    let (mut rows, mut from) = (Vec::new(), None);
    loop {
        let request = Request::Group(GroupRequest::Audit(PageFrom { from }));
        let (reply, _) = bench.answer(0, uid, request).unwrap();
        let Reply::Audit(page) = reply else { panic!("{reply:?}") };
        assert!(page.items.len() <= 8);
        let ports = |part: &GroupAudit| part.members.iter().map(|m| m.port.to_string()).collect();
        rows.extend(page.items.iter().map(|part| (part.uid, part.group.clone(), ports(part))));
        from = page.next;
        if from.is_none() {
            return rows;
        }
    }
}

#[test]
fn test_pages_of_an_audit_have_each_member_once_and_look_at_nobody_elses() {
    let mut bench = Bench::new();
    let mut ports = (0..).map(|number| format!("vale0:p{number}"));
    let mut wanted = Vec::new();
    // As text, 1000 comes before 2.
    for uid in [2, 30, 1000] {
        for group in 0..5 {
            let names: Vec<_> = ports.by_ref().take(3).collect();
            names.iter().for_each(|name| drop(bench.attach(1, 0, name).unwrap()));
            let key =
                |name: &String| bench.control.state.find_port(&name.parse().unwrap()).unwrap().key;
            let keys = names.iter().map(key).collect();
            let group = format!("g{group}");
            bench.control.datapath.groups.insert((uid, group.clone()), keys);
            wanted.push((uid, group.clone(), names[..2].to_vec()));
            wanted.push((uid, group, names[2..].to_vec()));
        }
    }
    assert_eq!(audit(&mut bench, 0), wanted);
    let looks = std::mem::take(&mut bench.control.datapath.audited);
    assert_eq!(looks.len(), wanted.len(), "what stands on another page is not looked at");
    wanted.retain(|(uid, ..)| *uid == 30);
    assert_eq!(audit(&mut bench, 30), wanted);
    assert!(bench.control.datapath.audited.iter().all(|(uid, _)| *uid == 30));
    let from = r#"{"audit":{"from":"x"}}"#;
    assert!(bench.refused(0, 0, from).1.contains("no place"));
}

#[test]
fn test_who_runs_a_function_says_what_it_has_counted_and_nobody_else() {
    let mut bench = Bench::with_chain();
    bench.attach(2, 0, "vale0:f1").unwrap();
    let note =
        |counts: &str| format!(r#"{{"function_note":{{"port":"vale0:f1","counts":{counts}}}}}"#);
    // Another connection of the same process.
    bench.done(&note(r#"{"rule_1":7}"#));
    let counts = |bench: &mut Bench| {
        let list = r#"{"function_list":{"switch":"vale0"}}"#;
        let Reply::Functions(page) = bench.ask(0, 0, list).unwrap() else { panic!("another") };
        page.items[0].counts.clone()
    };
    assert_eq!(counts(&mut bench), [("rule_1".to_owned(), 7)].into());
    let half: Vec<_> = (0..129).map(|n| format!(r#""c{n}":1"#)).collect();
    let both = format!(r#"{{{0}}},"gauges":{{{0}}}"#, half.join(","));
    assert_eq!(bench.refused(2, 0, &note(&both)).0, ErrorCode::BadRequest, "258 of both");
    bench.done(&note(r#"{"rule_1":7},"gauges":{"connections":2}"#));
    for bad in [r#"{"a b":1}"#, r#"{"":1}"#, r#"{"\u001b":1}"#] {
        assert_eq!(bench.refused(2, 0, &note(bad)).0, ErrorCode::BadRequest);
    }
    let many: Vec<_> = (0..257).map(|n| format!(r#""c{n}":1"#)).collect();
    bench.refused(2, 0, &note(&format!("{{{}}}", many.join(","))));
    assert_eq!(bench.refused(3, 1000, &note("{}")).0, ErrorCode::NotFound);
    bench.control.hang_up(ConnKey(2));
    assert_eq!(counts(&mut bench), [].into());
    assert_eq!(bench.refused(2, 0, &note("{}")).0, ErrorCode::NotFound);
}

/// Else a daemon that is newer than what commands made would not start.
#[test]
fn test_a_switch_begins_without_the_rules_that_only_an_older_daemon_took() {
    let text = "[switch.vale0]\nforwarding = \"chain\"\n";
    let config = Config::parse(text, std::path::Path::new("test.toml")).unwrap();
    let mut control = Control::new(&config, Fake::default());
    let mut plan = config.switches[0].clone();
    let rule = |text: &str| serde_json::from_str(text).unwrap();
    plan.rules = vec![
        rule(r#"{"id":1,"priority":0,"action":"drop","proto":"icmp","dport":"80"}"#),
        rule(r#"{"id":2,"priority":0,"action":"drop","vlan":7}"#),
        rule(r#"{"id":3,"priority":0,"action":"drop","vlan":7,"proto":"tcp"}"#),
    ];
    control.make_planned(&client(0, 0).caller, &plan).unwrap();
    let left = control.state.find_switch(&plan.name).unwrap().steering.rules();
    assert_eq!(left.iter().map(|rule| rule.id).collect::<Vec<_>>(), [Some(2)]);
    // A chain that cannot be meant would be a gap.
    let name = "vale1".parse().unwrap();
    let chain = serde_json::from_str(r#"{"name":"c","services":["a","a"]}"#).unwrap();
    let plan = SwitchPlan { name, chains: vec![chain], rules: Vec::new(), ..plan };
    assert!(control.make_planned(&client(0, 0).caller, &plan).is_err());
}

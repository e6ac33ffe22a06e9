//! Rules, chains and static addresses of a user, over all of its switches.

use super::*;

const UID: u32 = 1000;

impl Bench {
    /// A user may have four rules and chains, and three static addresses.
    fn with_few() -> Self {
        let mut config = Config::default();
        (config.quota.rules, config.quota.static_addresses) = (4, 3);
        Self { control: Control::new(&config, Fake::default()) }
    }

    /// Rules and chains, and static addresses, as users are shown them.
    fn kept_of(&mut self, uid: u32) -> (u64, u64) {
        let list = self.ask(9, uid, r#"{"user_list":{}}"#).unwrap();
        let Reply::Users(users) = list else { panic!("{list:?}") };
        let of_user = users.items.iter().find(|usage| usage.uid == uid).unwrap();
        (of_user.rules, of_user.static_addresses)
    }
}

fn rules(vlans: &[u16]) -> String {
    let rule = |vlan| format!(r#"{{"action":"drop","vlan":{vlan}}}"#);
    vlans.iter().map(rule).collect::<Vec<_>>().join(",")
}

fn switch(call: &str, name: &str, vlans: &[u16]) -> String {
    let settings = format!(r#"{{"forwarding":"chain","rules":[{}]}}"#, rules(vlans));
    format!(r#"{{"switch_{call}":{{"switch":"{name}","settings":{settings}}}}}"#)
}

fn rule_add(name: &str, vlans: &[u16]) -> String {
    format!(r#"{{"rule_add":{{"switch":"{name}","rules":[{}]}}}}"#, rules(vlans))
}

fn fdb_add(port: &str, host: u8) -> String {
    format!(r#"{{"fdb_add":{{"port":"{port}","mac":"02:00:00:00:00:{host:02x}"}}}}"#)
}

#[test]
fn test_rules_of_all_switches_of_a_user_are_bounded() {
    let mut bench = Bench::with_few();
    bench.ask(1, UID, &switch("add", "vale0", &[1, 2])).unwrap();
    bench.ask(1, UID, &switch("add", "vale1", &[1])).unwrap();
    assert_eq!(bench.kept_of(UID), (3, 0));
    for more in [
        rule_add("vale1", &[2, 3]),
        switch("set", "vale1", &[1, 2, 3]),
        switch("add", "vale2", &[1, 2]),
    ] {
        let (code, text) = bench.refused(1, UID, &more);
        assert_eq!(code, ErrorCode::Quota, "{more}");
        assert!(text.contains("2 rules and chains more"), "{text}");
        assert!(text.contains("3 of 4 (quota.rules)"), "{text}");
        // Rules count for the owner of their switch, also those that root adds.
        if !more.contains("switch_add") {
            assert_eq!(bench.refused(0, 0, &more).0, ErrorCode::Quota, "{more}");
        }
    }
    assert_eq!((bench.kept_of(UID), bench.control.state.counts()), ((3, 0), (2, 0)));
    bench.ask(1, UID, &rule_add("vale1", &[2])).unwrap();
    // Others in the place of these are no more; of another user's none count.
    bench.ask(1, UID, &switch("set", "vale0", &[7, 8])).unwrap();
    bench.ask(2, UID + 1, &switch("add", "vale3", &[1, 2, 3, 4])).unwrap();
    bench.ask(1, UID, r#"{"switch_del":{"switch":"vale0"}}"#).unwrap();
    bench.ask(1, UID, &rule_add("vale1", &[4, 5])).unwrap();
}

#[test]
fn test_chains_count_as_rules() {
    let mut bench = Bench::with_few();
    bench.ask(1, UID, &switch("add", "vale0", &[1, 2, 3])).unwrap();
    bench.ask(1, UID, r#"{"port_add":{"port":"vale0:f","settings":{"service":"fw"}}}"#).unwrap();
    let chain = |name: &str| {
        format!(
            r#"{{"chain_add":{{"switch":"vale0","chain":{{"name":"{name}","services":["fw"]}}}}}}"#
        )
    };
    bench.ask(1, UID, &chain("web")).unwrap();
    assert_eq!(bench.refused(1, UID, &chain("mail")).0, ErrorCode::Quota);
    bench.ask(1, UID, &chain("web")).expect("that one is there");
}

#[test]
fn test_static_addresses_of_all_switches_of_a_user_are_bounded() {
    let mut bench = Bench::with_few();
    bench.attach(1, UID, "vale0:a").unwrap();
    bench.attach(1, UID, "vale1:a").unwrap();
    bench.ask(1, UID, &fdb_add("vale0:a", 1)).unwrap();
    bench.ask(1, UID, &fdb_add("vale0:a", 2)).unwrap();
    bench.ask(1, UID, &fdb_add("vale1:a", 1)).unwrap();
    let (code, text) = bench.refused(1, UID, &fdb_add("vale1:a", 2));
    assert_eq!(code, ErrorCode::Quota);
    assert!(text.contains("quota.static_addresses"), "{text}");
    assert_eq!(bench.kept_of(UID), (0, 3));
    bench.ask(1, UID, &fdb_add("vale0:a", 2)).expect("that one is there");
    bench.attach(2, UID + 1, "vale2:a").unwrap();
    bench.ask(2, UID + 1, &fdb_add("vale2:a", 1)).unwrap();
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.control.static_addresses_of(UID), 0);
}

/// What a daemon finds at its start stays, whatever the quota is now, and counts.
#[test]
fn test_what_is_restored_counts_and_is_not_refused() {
    let mut bench = Bench::with_few();
    let rules = (1..=6).map(|vlan| format!("[[switch.vale0.rule]]\naction='drop'\nvlan={vlan}\n"));
    let text = format!(
        "[switch.vale0]\nforwarding = \"chain\"\nowner = {UID}\n{}\
         [switch.vale0.port.a]\nstatic = [{}]\n",
        rules.collect::<String>(),
        (1..=5).map(|host| format!("\"02:00:00:00:00:0{host}\"")).collect::<Vec<_>>().join(","),
    );
    let config = Config::parse(&text, std::path::Path::new("test.toml")).unwrap();
    bench.control.make_planned(&client(0, 0).caller, &config.switches[0]).unwrap();
    assert_eq!(bench.kept_of(UID), (6, 5));
    assert_eq!(bench.refused(1, UID, &rule_add("vale0", &[7])).0, ErrorCode::Quota);
    assert_eq!(bench.refused(1, UID, &fdb_add("vale0:a", 9)).0, ErrorCode::Quota);
    // Fewer than now are allowed, though they are more than the quota.
    bench.ask(1, UID, &switch("set", "vale0", &[1, 2, 3, 4, 5])).unwrap();
}

//! Trust groups: which user pays for their memory, how much, and until when.

use std::path::Path;

use protocol::{GroupAccess, GroupAudit, Mode};

use super::*;
use protocol::users::{group_name, user_name};

const MIB: u64 = 1 << 20;

impl Bench {
    fn with_quota(memory: u64) -> Self {
        let mut config = Config::default();
        config.quota.memory = memory;
        Self { control: Control::new(&config, Fake::default()) }
    }

    /// With "nf" declared as it says.
    fn declared(more: &str) -> Self {
        let text = format!("[group.nf]\nowner = 1000\n{more}\n");
        let config = Config::parse(&text, Path::new("test.toml")).unwrap();
        Self { control: Control::new(&config, Fake::default()) }
    }

    /// A port with few slots in the group "nf" of a user.
    fn member(&mut self, conn: u64, uid: u32, more: &str) -> Result<Reply, Refusal> {
        let sizes = r#""tx_slots":64,"rx_slots":64"#;
        let port = format!("vale{uid}:p{conn}");
        let attach = format!(r#"{{"attach":{{"port":"{port}","group":"nf",{sizes}{more}}}}}"#);
        self.ask(conn, uid, &attach)
    }

    /// A port of root's with an interface that receives in a group.
    fn receiver(&mut self, port: &str, group: &str) -> Result<Reply, Refusal> {
        let host = format!(r#"{{"trust_group":"{group}"}}"#);
        let add = format!(r#"{{"port":"{port}","kind":"xdp","host":{host}}}"#);
        self.ask(0, 0, &format!(r#"{{"port_add":{add}}}"#))
    }

    fn charged(&self, uids: [u32; 2]) -> [u64; 2] {
        uids.map(|uid| self.control.state.memory_of(uid))
    }

    fn shown(&mut self) -> Vec<(u32, u64)> {
        let Reply::Audit(page) = self.ask(9, 0, r#"{"audit":{}}"#).unwrap() else { panic!() };
        let shown = |group: GroupAudit| (group.charged_to, group.memory / MIB);
        page.items.into_iter().map(shown).collect()
    }
}

#[test]
fn test_who_makes_a_group_pays_for_all_of_it_and_members_for_nothing() {
    let mut bench = Bench::new();
    bench.member(1, 1000, r#","group_memory":8388608"#).unwrap();
    assert_eq!(bench.charged([1000, 1001]), [8 * MIB, 0]);
    bench.member(2, 1000, "").unwrap();
    bench.member(3, 1000, r#","group_memory":8388608"#).unwrap();
    assert_eq!(bench.charged([1000, 1001]), [8 * MIB, 0]);
    // As one that comes back after a restart, and not first.
    bench.member(4, 1000, r#","group_memory":16777216"#).unwrap();
    assert_eq!(bench.charged([1000, 1001]), [8 * MIB, 0]);
    // The group's creator goes, and others stay: the group is as large as before.
    (1..=2).chain([4]).for_each(|conn| bench.control.hang_up(ConnKey(conn)));
    assert_eq!(bench.charged([1000, 1001]), [8 * MIB, 0]);
    bench.control.hang_up(ConnKey(3));
    assert_eq!(bench.charged([1000, 1001]), [0, 0]);
    assert!(bench.is_empty());
}

#[test]
fn test_groups_of_one_name_are_each_their_users() {
    let mut bench = Bench::new();
    let usual = Config::default().new_group().bytes;
    bench.member(1, 1000, "").unwrap();
    bench.member(2, 1001, r#","group_memory":2097152"#).unwrap();
    assert_eq!(bench.charged([1000, 1001]), [usual, 2 * MIB]);
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.charged([1000, 1001]), [0, 2 * MIB]);
}

#[test]
fn test_a_group_that_cannot_be_paid_for_is_refused_and_leaves_nothing() {
    let mut bench = Bench::with_quota(100 * MIB);
    for asked in [101 * MIB, 4000 * MIB] {
        let refused = bench.member(1, 7, &format!(r#","group_memory":{asked}"#)).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Quota);
        let (text, asked) = (refused.to_string(), format!("takes {}.0 MiB", asked / MIB));
        assert!(text.contains("--group-memory") && text.contains(&asked), "{text}");
        assert!(bench.is_empty());
    }
    assert_eq!(bench.charged([7, 0]), [0, 0]);
    // The default is a quarter of the quota.
    bench.member(1, 7, "").unwrap();
    assert_eq!(bench.charged([7, 0]), [25 * MIB, 0]);
    for (text, why) in [
        (r#","group_memory":1048575"#, "1MiB to 4095MiB"),
        (r#","group_memory":18446744073709551615"#, "1MiB to 4095MiB"),
    ] {
        let refused = bench.member(2, 8, text).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let alone = r#"{"attach":{"port":"vale8:x","group_memory":8388608}}"#;
    assert!(bench.refused(2, 8, alone).1.contains("needs a trust group: name one"));
    let large = r#"{"attach":{"port":"vale8:x","group":"g","group_memory":1048576}}"#;
    assert!(bench.refused(2, 8, large).1.contains("for trust group g: this port alone takes"));
}

#[test]
fn test_a_group_that_is_not_made_in_the_end_costs_nothing() {
    let mut bench = Bench::new();
    bench.done(r#"{"switch_add":{"switch":"vale0"}}"#);
    bench.control.datapath.out_of_memory = true;
    bench.member(1, 0, "").unwrap_err();
    assert_eq!(bench.charged([0, 1]), [0, 0]);
    bench.control.datapath.build_fails = true;
    bench.member(1, 0, "").unwrap_err();
    assert_eq!(bench.charged([0, 1]), [0, 0]);
}

#[test]
fn test_of_an_interface_in_anothers_group_its_own_user_pays() {
    let mut bench = Bench::new();
    let usual = Config::default().new_group().bytes;
    bench.receiver("vale0:x", "1000/nf").unwrap();
    assert_eq!(bench.charged([0, 1000]), [usual, 0]);
    bench.member(1, 1000, "").unwrap();
    assert_eq!(bench.charged([0, 1000]), [usual, 0]);
    let key = (1000, "nf".to_owned());
    bench.control.datapath.groups.insert(key.clone(), Vec::new());
    assert_eq!(bench.shown(), [(0, usual / MIB)]);
    bench.control.datapath.groups.remove(&key);
    bench.done(r#"{"port_del":{"port":"vale0:x"}}"#);
    assert_eq!(bench.charged([0, 1000]), [usual, 0], "a member is there");
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.charged([0, 1000]), [0, 0]);
}

/// The kernel returns an interface's buffers at any time, without notice.
#[test]
fn test_a_group_that_went_by_itself_is_paid_by_who_makes_it_again() {
    let usual = Config::default().new_group().bytes;
    for elsewhere in [false, true] {
        let mut bench = Bench::new();
        bench.control.datapath.opens_elsewhere = elsewhere;
        bench.member(1, 1000, r#","group_memory":8388608"#).unwrap();
        assert_eq!(bench.charged([0, 1000]), [0, 8 * MIB]);
        bench.control.datapath.grouped.clear();
        bench.receiver("vale0:x", "1000/nf").unwrap();
        assert_eq!(bench.charged([0, 1000]), [usual, 0], "{elsewhere}");
    }
}

#[test]
fn test_a_declared_group_is_one_for_all_and_its_owner_pays() {
    let mut bench = Bench::declared("mode = \"666\"\nmemory = \"8MiB\"");
    bench.member(1, 1001, "").unwrap();
    assert_eq!(bench.charged([1000, 1001]), [8 * MIB, 0]);
    bench.member(2, 1000, "").unwrap();
    bench.member(3, 1002, r#","group_memory":1048576"#).unwrap();
    assert_eq!(bench.charged([1000, 1001]), [8 * MIB, 0]);
    let groups: Vec<_> = bench.control.datapath.grouped.values().cloned().collect();
    assert_eq!(groups, vec![(1000, "nf".to_owned()); 3]);
    // No member makes the owner pay for more than the declaration says.
    let refused = bench.member(4, 1001, r#","group_memory":8388609"#).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::BadRequest);
    assert!(refused.to_string().contains("raise memory of [group.nf]"), "{refused}");
    let group = |bench: &mut Bench, port: &str| {
        let show = format!(r#"{{"port_show":{{"port":"{port}"}}}}"#);
        let Reply::Port(port) = bench.ask(9, 0, &show).unwrap() else { panic!() };
        port.trust_group
    };
    assert_eq!(group(&mut bench, "vale1000:p2").as_deref(), Some("nf"));
    assert_eq!(group(&mut bench, "vale1001:p1").as_deref(), Some("1000/nf"));
    (1..=3).for_each(|conn| bench.control.hang_up(ConnKey(conn)));
    assert_eq!(bench.charged([1000, 1001]), [0, 0]);
    let refused = bench.member(4, 1001, r#","group_memory":8388609"#).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::BadRequest, "nor before it is there");
    assert!(bench.is_empty());
}

#[test]
fn test_who_may_not_be_in_a_declared_group_gets_none_of_his_own() {
    let mut bench = Bench::declared("mode = \"640\"\ngroup = 1001");
    for uid in [1001, 1002] {
        let refused = bench.member(1, uid, "").unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Permission);
        let whose = [user_name(1000), group_name(1001)];
        let whose = format!("belongs to {}, group {}, with mode 640", whose[0], whose[1]);
        assert!(refused.to_string().contains(&whose), "{refused}");
        assert!(bench.is_empty());
    }
    bench.member(1, 1000, "").unwrap();
    bench.member(2, 0, "").unwrap();
    bench.control.datapath.groups.insert((1000, "nf".to_owned()), Vec::new());
    let mut seen = |uid| match bench.ask(9, uid, r#"{"audit":{}}"#).unwrap() {
        Reply::Audit(page) => page.items.into_iter().map(|group| group.access).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let access = GroupAccess { group: Some(1001), mode: Mode::new(0o640).unwrap() };
    assert_eq!([0, 1000, 1001].map(&mut seen), [[Some(access)]; 3].map(Vec::from));
    assert_eq!(seen(1002), []);
}

#[test]
fn test_a_declared_group_that_its_owner_cannot_pay_for_is_refused() {
    let mut bench =
        Bench::declared("mode = \"666\"\nmemory = \"8MiB\"\n[quota]\nmemory = \"9MiB\"");
    let own = r#"{"attach":{"port":"vale0:own","tx_slots":64,"rx_slots":64,"group":"own",
        "group_memory":2097152}}"#;
    bench.ask(9, 1000, own).unwrap();
    let refused = bench.member(1, 1001, "").unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Quota);
    let text = refused.to_string();
    assert!(text.contains("8.0 MiB from the quota of ") && text.contains("[group.nf]"), "{text}");
    assert!(text.contains("2.0 of 9.0 MiB are in use"), "{text}");
    bench.control.hang_up(ConnKey(9));
    assert!(bench.is_empty());
    let mut bench = Bench::declared("mode = \"666\"\nmemory = \"1MiB\"");
    let large = r#"{"attach":{"port":"vale0:a","group":"nf"}}"#;
    assert!(bench.refused(1, 1001, large).1.contains("for trust group nf: this port alone takes"));
}

#[test]
fn test_of_an_interface_in_a_declared_group_its_owner_pays() {
    let mut bench = Bench::declared("memory = \"8MiB\"");
    bench.receiver("vale0:x", "nf").unwrap();
    let groups: Vec<_> = bench.control.datapath.grouped.values().cloned().collect();
    assert_eq!(groups, [(1000, "nf".to_owned())]);
    assert_eq!(bench.charged([0, 1000]), [0, 8 * MIB]);
    bench.member(1, 1000, "").unwrap();
    assert_eq!(bench.charged([0, 1000]), [0, 8 * MIB]);
}

#[test]
fn test_an_interface_of_the_file_is_in_the_group_that_the_file_declares() {
    let text = "[group.nf]\nowner = 1000\n[switch.vale0.port.x]\nkind = \"xdp\"\n";
    for (group, expected) in [("nf", "1000/nf"), ("7/nf", "7/nf")] {
        let text = format!("{text}trust_group = \"{group}\"\n");
        let config = Config::parse(&text, Path::new("test.toml")).unwrap();
        let control = Control::new(&config, Fake::default());
        let host = control.with_declared(&config.switches[0].ports[0]).host.unwrap();
        assert_eq!(host.trust_group.as_deref(), Some(expected));
    }
}

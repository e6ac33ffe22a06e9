//! Direct hops: who asks for them, and who is told.

use protocol::{ChainInfo, FunctionInfo, HopEnd, HopState};

use super::*;

impl Bench {
    /// vale0 with a direct chain of two services, whose functions (connections 1 and 2) are there
    /// in these groups.
    fn with_functions(groups: [&str; 2]) -> Self {
        let mut bench = Self::new();
        bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"forwarding":"chain"}}}"#);
        for n in [1, 2] {
            let add = format!(r#"{{"port":"vale0:f{n}","settings":{{"service":"s{n}"}}}}"#);
            bench.done(&format!(r#"{{"port_add":{add}}}"#));
        }
        bench.set_direct(true);
        for (n, group) in (1..).zip(groups) {
            bench.join(n, group);
        }
        bench
    }

    fn join(&mut self, n: u64, group: &str) {
        let attach = format!(r#"{{"attach":{{"port":"vale0:f{n}","group":"{group}"}}}}"#);
        self.ask(n, 0, &attach).unwrap();
    }

    fn set_direct(&mut self, direct: bool) {
        let chain = format!(r#"{{"name":"c","services":["s1","s2"],"direct":{direct}}}"#);
        self.done(&format!(r#"{{"chain_add":{{"switch":"vale0","chain":{chain}}}}}"#));
    }

    fn hops(&mut self, n: u64) -> Vec<HopEnd> {
        let list = format!(r#"{{"hop":{{"list":{{"port":"vale0:f{n}"}}}}}}"#);
        let Reply::Hops(hops) = self.ask(n, 0, &list).unwrap() else { panic!("another answer") };
        hops
    }

    fn with_hop(&mut self, n: u64, what: &str, hop: u32) {
        let call = format!(r#"{{"hop":{{"{what}":{{"port":"vale0:f{n}","hop":{hop}}}}}}}"#);
        assert_eq!(self.ask(n, 0, &call).unwrap(), Reply::Done);
    }

    fn opened() -> Self {
        let mut bench = Self::with_functions(["nf", "nf"]);
        assert!(bench.hops(1).is_empty(), "the other has not asked");
        assert_eq!(bench.hops(2).len(), 1);
        assert!(!bench.control.datapath.told.is_empty());
        bench.with_hop(1, "open", 1);
        bench.with_hop(2, "open", 1);
        assert_eq!(bench.hops(1)[0].routes, [(0, 0, 0)]);
        bench
    }

    fn chain(&mut self) -> ChainInfo {
        let list = r#"{"chain_list":{"switch":"vale0"}}"#;
        let Reply::Chains(page) = self.ask(0, 0, list).unwrap() else { panic!("another answer") };
        page.items[0].clone()
    }

    fn functions(&mut self) -> Vec<FunctionInfo> {
        let list = r#"{"function_list":{"switch":"vale0"}}"#;
        let Reply::Functions(page) = self.ask(0, 0, list).unwrap() else { panic!("another") };
        page.items
    }
}

#[test]
fn test_a_hop_is_made_when_both_have_asked_and_goes_when_both_have_let_go() {
    let mut bench = Bench::opened();
    assert!(bench.chain().hops[0].open);
    bench.control.datapath.told.clear();
    bench.set_direct(false);
    assert_eq!(bench.control.datapath.told.len(), 1, "the sender");
    assert_eq!(bench.hops(1)[0].state, HopState::Closing);
    bench.with_hop(1, "close", 1);
    assert_eq!(bench.hops(2)[0].state, HopState::Ended);
    bench.with_hop(2, "close", 1);
    assert!(bench.control.datapath.hops.is_empty());
    let carried: Vec<_> = bench.functions().iter().map(|f| (f.direct_in, f.direct_out)).collect();
    assert_eq!(carried, [(0, 10), (10, 0)], "what it carried is remembered");
}

#[test]
fn test_memory_of_a_hop_whose_sender_died_stays_until_its_receiver_has_read_it() {
    let mut bench = Bench::opened();
    bench.control.hang_up(ConnKey(1));
    assert_eq!(bench.control.datapath.hops.len(), 1);
    bench.join(1, "nf");
    assert_eq!(bench.hops(1)[0].hop, 2, "who comes again has another");
    let [old, new] = &bench.hops(2)[..] else { panic!("two") };
    assert_eq!((old.state, new.state), (HopState::Ended, HopState::Open));
    bench.with_hop(2, "close", 1);
    assert_eq!(bench.control.datapath.hops.len(), 1);
    bench.control.hang_up(ConnKey(1));
    bench.control.hang_up(ConnKey(2));
    assert!(bench.control.datapath.hops.is_empty());
    assert_eq!(bench.functions()[1].direct_lost, 2, "one frame waited in each");
}

#[test]
fn test_no_hop_between_two_groups_and_none_for_strangers() {
    let mut bench = Bench::with_functions(["nf", "other"]);
    assert!(bench.hops(1).is_empty() && bench.hops(2).is_empty());
    let mut bench = Bench::opened();
    for call in ["list", "open", "close"] {
        let hop = if call == "list" { "" } else { r#","hop":1"# };
        let text = format!(r#"{{"hop":{{"{call}":{{"port":"vale0:f1"{hop}}}}}}}"#);
        assert_eq!(bench.refused(2, 0, &text).0, ErrorCode::NotFound);
    }
    let (_, why) = bench.refused(1, 0, r#"{"hop":{"open":{"port":"vale0:f1","hop":7}}}"#);
    assert!(why.contains("no hop 7"));
}

#[test]
fn test_without_memory_frames_go_by_the_switch() {
    let mut bench = Bench::with_functions(["nf", "nf"]);
    bench.hops(1);
    bench.control.datapath.out_of_memory = true;
    assert!(bench.hops(2).is_empty());
    assert!(bench.chain().hops.is_empty());
}

#[test]
fn test_hops_are_in_their_group_which_is_charged_whole() {
    let mut bench = Bench::opened();
    let memory = |bench: &Bench| bench.control.state.memory_of(0);
    let whole = Config::default().new_group().bytes;
    assert_eq!(memory(&bench), whole);
    bench.set_direct(false);
    for n in [1, 2] {
        bench.with_hop(n, "close", 1);
    }
    assert!(bench.chain().hops.is_empty());
    assert_eq!(memory(&bench), whole);
}

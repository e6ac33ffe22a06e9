//! Which functions follow each other: what they are told, and when.

use protocol::NextFunction;

use super::*;

impl Bench {
    /// vale0 with a chain of two services, whose functions (connections 1 and 2) are there in these
    /// groups.
    fn with_functions(groups: [&str; 2]) -> Self {
        let mut bench = Self::new();
        bench.done(r#"{"switch_add":{"switch":"vale0","settings":{"forwarding":"chain"}}}"#);
        for (n, service) in [(1, "s1"), (2, "s2"), (3, "s2")] {
            let add = format!(r#"{{"port":"vale0:f{n}","settings":{{"service":"{service}"}}}}"#);
            bench.done(&format!(r#"{{"port_add":{add}}}"#));
        }
        bench.set_chain(r#"["s1","s2"]"#);
        for (n, group) in (1..).zip(groups) {
            bench.join(n, group);
        }
        bench
    }

    fn join(&mut self, n: u64, group: &str) {
        let attach = format!(r#"{{"attach":{{"port":"vale0:f{n}","group":"{group}"}}}}"#);
        self.ask(n, 0, &attach).unwrap();
    }

    fn set_chain(&mut self, services: &str) {
        let chain = format!(r#"{{"name":"c","services":{services}}}"#);
        self.done(&format!(r#"{{"chain_add":{{"switch":"vale0","chain":{chain}}}}}"#));
    }

    fn next(&mut self, n: u64) -> Vec<NextFunction> {
        let call = format!(r#"{{"next_functions":{{"port":"vale0:f{n}"}}}}"#);
        let Reply::NextFunctions(next) = self.ask(n, 0, &call).unwrap() else { panic!("another") };
        next
    }

    fn told(&mut self) -> usize {
        std::mem::take(&mut self.control.datapath.told).len()
    }
}

#[test]
fn test_a_function_asks_again_when_another_follows() {
    let mut bench = Bench::with_functions(["nf", "nf"]);
    let [next] = &bench.next(1)[..] else { panic!("one follows") };
    assert_eq!((next.chain, next.position, next.port.to_string().as_str()), (0, 0, "vale0:f2"));
    assert!(bench.next(2).is_empty(), "the last one");
    assert_eq!(bench.told(), 0);
    bench.join(3, "nf");
    assert_eq!(bench.told(), 1, "the first one: the switch balances now");
    assert!(bench.next(1).is_empty());
    bench.control.hang_up(ConnKey(3));
    assert_eq!(bench.told(), 1);
    let order = bench.next(1)[0].order;
    bench.set_chain(r#"["s2","s1"]"#);
    assert_eq!(bench.told(), 2);
    assert!(bench.next(1).is_empty());
    assert_ne!(bench.next(2)[0].order, order, "of frames that enter from now on");
    bench.control.hang_up(ConnKey(2));
    bench.told();
    bench.set_chain(r#"["s1","s2"]"#);
    assert_eq!(bench.told(), 0, "none follows, as before");
}

#[test]
fn test_functions_of_two_groups_follow_by_the_switch_and_the_holder_alone_is_answered() {
    let mut bench = Bench::with_functions(["nf", "other"]);
    assert!(bench.next(1).is_empty() && bench.next(2).is_empty());
    let call = r#"{"next_functions":{"port":"vale0:f1"}}"#;
    assert_eq!(bench.refused(2, 0, call).0, ErrorCode::NotFound);
}

#[test]
fn test_buffers_are_put_in_order_for_the_holder_of_the_port_alone() {
    let mut bench = Bench::with_functions(["nf", "nf"]);
    let call = r#"{"recover":{"port":"vale0:f1"}}"#;
    assert_eq!(bench.refused(2, 0, call).0, ErrorCode::NotFound, "root, but another's");
    assert!(bench.control.datapath.recovered.is_empty());
    assert_eq!(bench.ask(1, 0, call).unwrap(), Reply::Done);
    let port = bench.control.state.find_port(&"vale0:f1".parse().unwrap()).unwrap().key;
    assert_eq!(bench.control.datapath.recovered, [port]);
}

#[test]
fn test_a_chain_with_direct_hops_is_refused_with_what_to_do() {
    let mut bench = Bench::with_functions(["nf", "nf"]);
    let chain = |direct: bool| {
        let chain = format!(r#"{{"name":"c","services":["s1","s2"],"direct":{direct}}}"#);
        format!(r#"{{"chain_add":{{"switch":"vale0","chain":{chain}}}}}"#)
    };
    let error = serde_json::from_str::<Request>(&chain(true)).unwrap_err().to_string();
    assert!(error.contains("--with"), "{error}");
    bench.done(&chain(false));
}

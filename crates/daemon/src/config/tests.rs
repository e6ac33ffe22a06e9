//! What is refused, and in which words; the sample in `docs`.

use super::*;
use crate::model::policy::Grant;
use proptest::prelude::*;
use protocol::Queues;

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("test.toml"))
}

fn error(text: &str) -> String {
    let error = parse(text).expect_err(text).to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

const SAMPLE: &str = include_str!("../../../../docs/uvala.toml");

#[test]
fn test_sample_shows_the_defaults() {
    let mut sample = parse(SAMPLE).unwrap();
    assert!(sample.switches.is_empty());
    (sample.dir, sample.state_dir) = (None, None);
    assert_eq!(format!("{sample:?}"), format!("{:?}", Config::default()));
}

/// With every comment mark removed from its settings, the sample is still a configuration.
#[test]
fn test_sample_parses_with_everything_switched_on() {
    let text = SAMPLE.replace("\n#! ", "\n");
    let config = parse(&text).unwrap();
    assert_eq!(config.switches.len(), 1);
    let (group, mode) = (Some(0), Mode::new(0o660));
    let grant = Grant { owner: Some(0), group, mode };
    let nf = GroupPlan { grant, memory: Some(256 << 20) };
    assert_eq!(config.groups, BTreeMap::from([("nf".to_owned(), nf)]));
    let switch = &config.switches[0];
    assert_eq!(switch.mode, Mode::new(0o660));
    let names: Vec<_> = switch.ports.iter().map(|port| port.name.port()).collect();
    let shown = "eth1 eth2 fabric fw ids lan sink uplink vm1 vm2 vm3 vxlan";
    assert_eq!(names.join(" "), shown);
    assert_eq!((switch.chains.len(), switch.rules.len()), (1, 1));
    let socket = switch.ports[9].machine.as_ref().unwrap().socket.as_deref();
    assert_eq!(socket, Some("/run/uvala/vm2.sock"));
    assert_eq!(switch.ports[8].config.vlan, "access:10".parse().unwrap());
    let mirror = switch.ports[4].config.mirror.as_deref().unwrap();
    assert_eq!(mirror.from, ["vm1", "vm2"]);
    let host = |port: usize| switch.ports[port].host.clone().unwrap();
    assert_eq!(host(0).ifname.as_deref(), Some("eth1"), "as the port");
    assert_eq!((host(1).queues, host(1).filter.unwrap().vlans), (Some(Queues::First(4)), vec![10]));
    assert_eq!(host(5).address.unwrap().to_string(), "10.0.0.1/24");
}

/// `docs/uvala.toml` shows every key that the daemon reads.
#[test]
fn test_sample_shows_every_key_that_is_read() {
    /// Keys of earlier builds. If `direct` is true, it is refused, with what to write instead;
    /// `uring` does nothing.
    const GONE: [&str; 2] = ["direct", "uring"];
    let shown = SAMPLE.replace("\n#! ", "\n");
    let is_shown = |key: &str| {
        shown.lines().any(|line| match line.strip_prefix('[') {
            Some(table) => table.split(['[', ']', '.']).any(|word| word == key),
            None => line.strip_prefix(key).is_some_and(|rest| rest.starts_with(" = ")),
        })
    };
    for table in [
        "",
        "[socket]",
        "[workers]",
        "[quota]",
        "[rings]",
        "[new_switch]",
        "[new_group]",
        "[group.nf]",
        "[switch.vale0]",
        "[switch.vale0.port.a]",
        "[[switch.vale0.chain]]",
        "[[switch.vale0.rule]]",
    ] {
        let refused = error(&format!("{table}\nno_such_key = 1\n"));
        let (_, known) = refused.split_once("expected").expect(&refused);
        let keys = known.split('`').skip(1).step_by(2).filter(|key| !GONE.contains(key));
        let keys: Vec<_> = keys.collect();
        assert!(!keys.is_empty(), "{refused}");
        assert!(keys.iter().all(|key| is_shown(key)), "{table}: {keys:?}");
    }
}

#[test]
fn test_chains_and_rules_that_cannot_be_meant_are_refused_with_their_line() {
    let chain = |name: &str, services: &str| {
        format!("[[switch.vale0.chain]]\nname = \"{name}\"\nservices = [{services}]\n")
    };
    let rule = |action: &str, more: &str| {
        format!("[[switch.vale0.rule]]\naction = \"{action}\"\n{more}\n")
    };
    let good = chain("web", "\"fw\"") + &rule("chain:web", "dport = \"80\"");
    assert!(parse(&good).is_ok());
    assert!(parse(&(chain("web", "\"fw\"") + "direct = false\n")).is_ok());
    for (bad, line, says) in [
        (chain("c", ""), 7, "vale0: chain c: it has 0 services"),
        (chain("web", "\"r\""), 7, "two chains are named web;"),
        ("[[switch.vale0.rule]]\nvlan = 3\n".to_owned(), 7, "rule 2: action is missing: drop, "),
        (rule("chain:no", ""), 7, "rule 2: there is no chain no"),
        (rule("drop", "src = \"10.0.0.0/33\""), 7, "rule 2: "),
        (rule("drop", "id = 1"), 7, "two rules 1"),
        (rule("drop", "dport = \"80\""), 7, "rule"),
        (rule("drop", "sprot = \"80\""), 9, "unknown key `sprot`"),
        (chain("c", "\"r\"") + "direct = true\n", 10, "direct hops are gone: leave `direct` out"),
        (rule("forward", "vlan = 3\npriority = 5") + &rule("drop", "vlan = 4095"), 11, "rule 3: "),
    ] {
        // The table stands behind the good ones, and before others.
        let text = error(&(good.clone() + &bad + &rule("port:a", "priority = 9")));
        assert!(text.starts_with(&format!("config test.toml:{line}: ")), "{bad}{text}");
        assert!(text.contains(says), "{bad}{text}");
    }
    let text = error("[switch.vale0]\n[switch.vale0.port.a]\nservice = \"a b\"\n");
    assert!(text.starts_with("config test.toml:2: vale0:a: service: only letters"), "{text}");
    let deaf = "[switch.vale0.port.f]\nservice = \"fw\"\n".to_owned() + &rule("drop", "in = \"f\"");
    let text = error(&deaf);
    assert!(text.starts_with("config test.toml:3: vale0: port f is an instance of"), "{text}");
    let both = "[switch.vale0.port.a]\nservice = \"fw\"\nchain = \"web\"\n";
    assert!(
        error(both).contains(":1: vale0:a: chain: not for an instance of a service"),
        "{}",
        error(both)
    );
}

/// A file may hold everything that the daemon reads, and `uvala apply` reads its switches.
#[test]
fn test_top_keys_are_those_that_the_daemon_reads() {
    let refused = error("no_such_key = 1\n");
    let (_, known) = refused.split_once("expected").expect(&refused);
    let keys: Vec<_> = known.split('`').skip(1).step_by(2).collect();
    assert_eq!(keys, config::TOP_KEYS);
}

#[test]
fn test_an_instance_number_without_a_service_is_refused() {
    let text = error("[switch.vale0.port.a]\ninstance = 3\n");
    assert!(text.starts_with("config test.toml:1: vale0:a: instance: only a port of"), "{text}");
}

#[test]
fn test_instances_without_a_number_get_the_lowest_free_one() {
    let port = |name, more| format!("[switch.vale0.port.{name}]\nservice = \"fw\"\n{more}");
    let text = port("a", "") + &port("b", "instance = 0\n") + &port("c", "");
    let ports = &parse(&text).unwrap().switches[0].ports;
    let numbers: Vec<_> = ports.iter().map(|port| port.config.role.instance).collect();
    assert_eq!(numbers, [1, 0, 2]);
    let text = error(&(text + &port("d", "instance = 0\n")));
    assert!(text.contains("instance 0 of service fw is port b already"), "{text}");
}

#[test]
fn test_interfaces_are_for_ports_that_have_one() {
    let text = error("[switch.vale0.port.a]\nkind = \"vhost-user\"\nqueues = \"0-3\"\n");
    assert!(text.contains("tap, packet, xdp"), "{text}");
    let text = error("[switch.vale0.port.a]\nkind = \"xdp\"\nqueues = \"3-0\"\n");
    assert!(text.starts_with("config test.toml:3: bad queues '3-0'"), "{text}");
    let text = error("[switch.vale0.port.a]\nkind = \"tap\"\nqueues = \"0-3\"\n");
    assert!(text.contains("a tap takes a number of queues"), "{text}");
    let text = error("[switch.vale0.port.a]\nmtu = 9000\n");
    assert!(text.starts_with("config test.toml:1: vale0:a: mtu: not for kind shm"), "{text}");
    let text = error("[switch.vale0.port.a]\nkind = \"packet\"\nmtu = 9000\n");
    assert!(text.contains("use ip link"), "{text}");
    let text = error("[switch.vale0.port.a]\nkind = \"tap\"\nifname = \"a/b\"\n");
    assert!(text.contains("not a name of an interface"), "{text}");
    let text = error("[switch.vale0.port.a]\nkind = \"tap\"\naddress = \"10.0.0.1\"\n");
    assert!(text.starts_with("config test.toml:3: bad address"), "{text}");
}

#[test]
fn test_unknown_key_is_refused_with_line_and_known_keys() {
    let text = error("[workers]\ncount = 2\nwiat = \"spin\"\n");
    assert!(text.starts_with("config test.toml:3: unknown key `wiat`"), "{text}");
    assert!(text.contains("`wait`"), "{text}");
    assert!(error("[swich.vale0]\n").contains("unknown key `swich`"));
    assert!(error("[switch.vale0.port.a]\nvlam = \"access:1\"\n").contains(":2: unknown"));
}

#[test]
fn test_bad_value_is_refused_with_line_and_good_values() {
    let text = error("[workers]\n\nwait = \"lazy\"\n");
    assert_eq!(text, "config test.toml:3: expected auto, spin, yield or block, found \"lazy\"");
    assert!(error("[rings]\ntx_slots = 4\n").contains("from 8 to 16384, found 4"));
    assert!(error("[switch.vale0]\nfdb_capacity = 4294967295\n").contains("1 to 1048576"));
    let text = error("[switch.vale0]\ngroup_fwd_mask = \"0x4002\"\n");
    assert!(text.contains(":2: bit 1 is PAUSE") && text.contains("take 0x4000"), "{text}");
    let text = error("[switch.vale0.port.a]\nstatic = [\"03:00:00:00:00:01\"]\n");
    assert!(text.contains(":2: 03:00:00:00:00:01 is a multicast address"), "{text}");
    let text = error("[switch.vale0.port.a]\nstatic = [\"00:00:00:00:00:00\"]\n");
    assert!(text.contains(":2: 00:00:00:00:00:00 is not the address of a station"), "{text}");
    assert!(error("[rings]\nbuffer_stride = 2049\n").contains("multiple of 64"));
    assert!(error("[quota]\nmemory = \"much\"\n").contains("512MiB"));
    assert!(error("[workers]\ncount = 0\n").contains("from 1 to 64"));
    assert!(error("[workers]\nbatch = 0\n").contains("from 1 to 1024"));
    assert!(error("[switch.eth0]\n").contains("'vale'"));
    let text = error("[switch.vale0]\n[switch.vale0.port.a-b]\n");
    assert!(
        text.starts_with("config test.toml:2: ") && text.contains("'-' (character 8)"),
        "{text}"
    );
    assert!(error("[switch.vale0]\nmode = \"999\"\n").contains("bad mode"));
    assert!(error("[switch.vale0]\nowner = \"nobody there\"\n").contains("no user"));
    assert!(error("[switch.vale0.port.a]\nvlan = \"access:0\"\n").contains("1 to 4094"));
    assert!(error("log = \"loud\"\n").contains("error, warn"));
    assert!(error("state_dir = \"\"\n").contains("state_dir is empty"));
    assert!(error("= 3").starts_with("config test.toml:1:"));
}

#[test]
fn test_rings_that_no_region_holds_are_refused() {
    let text = "[rings]\ntx_rings = 64\nrx_rings = 64\ntx_slots = 16384\nrx_slots = 16384\n\
                buffer_stride = 65472\n";
    let text = error(&format!("[workers]\n{text}"));
    assert!(
        text.starts_with("config test.toml:2: [rings]: a port with these rings takes more"),
        "{text}"
    );
}

#[test]
fn test_a_static_address_has_one_port() {
    let port = |name, address| format!("[switch.vale0.port.{name}]\nstatic = [\n{address}]\n");
    let (one, other) = ("\"02:00:00:00:00:01\"", "\"02:00:00:00:00:01@2\"");
    assert!(parse(&(port("a", one) + &port("b", other))).is_ok());
    let again = format!("{other},\n{one}");
    assert_eq!(
        error(&(port("a", one) + &port("b", &again))),
        "config test.toml:7: 02:00:00:00:00:01 is on vale0:a and on vale0:b; remove one of \
         the two"
    );
}

#[test]
fn test_groups_that_cannot_be_meant_are_refused_with_their_line() {
    for (text, line, says) in [
        ("\n[group.nf]\nowner = \"nobody-at-all\"\n", 3, "no user \"nobody-at-all\""),
        ("[group.nf]\ngroup = \"nobody-at-all\"\n", 2, "no group \"nobody-at-all\""),
        ("[group.nf]\nmode = \"rw\"\n", 2, "mode"),
        ("[group.nf]\nmode = \"1666\"\n", 2, "mode"),
        ("[group.nf]\nmemory = \"4GiB\"\n", 2, "expected 1MiB to 4095MiB"),
        ("[group.nf]\nmemory = 7\n", 2, "expected 1MiB to 4095MiB"),
        ("[group.nf]\nsize = 7\n", 2, "unknown key `size`"),
        (
            "[quota]\nmemory = \"7MiB\"\n[group.nf]\nowner = 0\nmemory = \"8MiB\"\n",
            5,
            "exceeds quota.memory (7 MiB)",
        ),
        ("[group]\n\n[group.\"a/b\"]\n", 3, "[group.a/b]: the name has only letters"),
        ("[group]\nnf = 3\n", 2, "expected a table"),
    ] {
        let said = error(text);
        let at = format!("config test.toml:{line}: ");
        assert!(said.starts_with(&at) && said.contains(says), "{text}: {said}");
    }
    let groups = parse("[group.a]\n[group.b]\nmemory = \"1MiB\"\n").unwrap().groups;
    assert_eq!(groups["a"], GroupPlan { grant: Grant::default(), memory: None });
    assert_eq!(groups["b"].memory, Some(1 << 20));
}

#[test]
fn test_a_file_without_end_is_no_configuration() {
    let error = Config::load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(error.contains("16 MiB or more"), "{error}");
}

#[test]
fn test_pipes_are_refused_as_the_control_socket_refuses_them() {
    let text = error("[switch.vale0.port.\"a{1\"]\n");
    assert!(text.starts_with("config test.toml:1: vale0:a{1 is the end of a pipe"), "{text}");
    let text = error("[switch.vale0.port.a]\nkind = \"pipe\"\n");
    assert_eq!(
        text,
        "config test.toml:2: expected shm, null, tap, packet, xdp, stack, vhost-user, stream, \
         dgram or vxlan, found \"pipe\""
    );
}

#[test]
fn test_wrong_kinds_of_values_are_named_in_plain_words() {
    for (text, expected) in [
        ("workers = 3\n", "found the number `3`, expected a table"),
        ("[switch]\nvale0 = \"x\"\n", "found the text \"x\", expected a table"),
        ("switch = 1\n", "found the number `1`, expected a table"),
        ("[quota]\nports = \"many\"\n", "expected a number from 0 to 4294967295, found many"),
        ("[quota]\nports = -1\n", "expected a number from 0 to 4294967295, found -1"),
        ("[quota]\nports = true\n", "found `true`, expected a number or a text"),
        ("[quota]\nports = 1.5\n", "found the number `1.5`, expected a number or a text"),
        ("[quota]\nports = []\n", "found a list, expected a number or a text"),
        ("[workers]\ncpus = 3\n", "found the number `3`, expected a list such as [2, 3]"),
        ("[workers]\ncpus = [\"a\"]\n", "expected a number from 0 to 4294967295, found a"),
        ("[workers]\nwait = 3\n", "found the number `3`, expected a text in quotes"),
        ("[socket]\ndir = 3\n", "found the number `3`, expected a path in quotes"),
        ("[switch.vale0.port.a]\nisolated = 1\n", "expected true or false"),
        ("[switch.vale0]\nage_s = 1e3\n", "expected a number or a text"),
    ] {
        let said = error(text);
        assert!(said.contains(expected), "{text}: {said}");
        let trade = ["struct", "Raw", "u32", "u64", "sequence", "map", "boolean", "invalid"];
        assert!(trade.iter().all(|word| !said.contains(word)), "{text}: {said}");
    }
}

proptest! {
    #[test]
    fn test_no_text_makes_the_parser_panic(text in "[\\[\\]a-z0-9_.=\"\n ]{0,80}") {
        let _ = parse(&text);
    }
}

#[test]
fn test_instances_of_a_service_have_a_number_each() {
    let port =
        |name: &str, more: &str| format!("[switch.vale0.port.{name}]\nservice = \"fw\"\n{more}");
    let text = [port("a", ""), port("b", "instance = 0\n"), port("c", "")].concat();
    let config = Config::parse(&text, Path::new("test.toml")).unwrap();
    let ports = config.switches[0].ports.iter();
    assert_eq!(ports.map(|port| port.config.role.instance).collect::<Vec<_>>(), [1, 0, 2]);
    let text = [port("a", "instance = 3\n"), port("b", "instance = 3\n")].concat();
    let refusal = Config::parse(&text, Path::new("test.toml")).unwrap_err().to_string();
    assert!(refusal.contains(":4: instance 3 of service fw is port a already"), "{refusal}");
}

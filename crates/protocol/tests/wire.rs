//! Grouping calls by subject changes nothing in a message: a flat enum of all calls is the measure.

use proptest::prelude::*;
use protocol::{
    Attach, Bind, ChainAdd, ChainRef, FdbAdd, FdbDel, FdbFlush, FdbList, FunctionNote,
    GeometryQuery, Hello, InterfaceAdd, InterfaceAttach, InterfacePoll, PageFrom, PortAdd,
    PortList, PortRef, PortSet, Request, RuleAdd, RuleDel, StatsQuery, SteeringQuery, SwitchRef,
    SwitchSpec,
};
use serde::{Deserialize, Serialize};

/// The messages as they are documented, one name for each call.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Flat {
    Hello(Hello),
    SwitchAdd(SwitchSpec),
    SwitchSet(SwitchSpec),
    SwitchDraft(SwitchSpec),
    SwitchDel(SwitchRef),
    SwitchList(PageFrom),
    SwitchShow(SwitchRef),
    PortAdd(Box<PortAdd>),
    PortSet(PortSet),
    PortDel(PortRef),
    PortList(PortList),
    PortShow(PortRef),
    FdbList(FdbList),
    FdbAdd(FdbAdd),
    FdbDel(FdbDel),
    FdbFlush(FdbFlush),
    Stats(StatsQuery),
    Attach(Attach),
    Detach(PortRef),
    Bind(Bind),
    Resume,
    PortGeometry(GeometryQuery),
    InterfaceAdd(InterfaceAdd),
    InterfaceDel(PortRef),
    InterfaceAttach(InterfaceAttach),
    InterfaceDetach(PortRef),
    InterfacePoll(InterfacePoll),
    ChainAdd(ChainAdd),
    ChainDel(ChainRef),
    ChainList(SteeringQuery),
    RuleAdd(RuleAdd),
    RuleDel(RuleDel),
    RuleList(SteeringQuery),
    FunctionList(SteeringQuery),
    FunctionNote(FunctionNote),
    Audit(PageFrom),
    NextFunctions(PortRef),
}

/// A message of each call.
const MESSAGES: [&str; 37] = [
    r#"{"hello":{"client":"x"}}"#,
    r#"{"switch_add":{"switch":"vale0","settings":{"age_s":7}}}"#,
    r#"{"switch_set":{"switch":"vale0","settings":{"mode":"660"}}}"#,
    r#"{"switch_draft":{"switch":"vale0","settings":{"chains":[]}}}"#,
    r#"{"switch_del":{"switch":"vale0"}}"#,
    r#"{"switch_list":{"from":"vale0"}}"#,
    r#"{"switch_show":{"switch":"vale0"}}"#,
    r#"{"port_add":{"port":"vale0:a","kind":"tap","settings":{"vlan":"access:7"}}}"#,
    r#"{"port_set":{"port":"vale0:a","settings":{"isolated":true}}}"#,
    r#"{"port_del":{"port":"vale0:a"}}"#,
    r#"{"port_list":{"switch":"vale0"}}"#,
    r#"{"port_show":{"port":"vale0:a"}}"#,
    r#"{"fdb_list":{"switch":"vale0"}}"#,
    r#"{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01","vlan":1}}"#,
    r#"{"fdb_del":{"switch":"vale0","mac":"02:00:00:00:00:01","vlan":1}}"#,
    r#"{"fdb_flush":{"switch":"vale0"}}"#,
    r#"{"stats":{"switch":"vale0"}}"#,
    r#"{"attach":{"port":"vale0:a","tx_rings":2}}"#,
    r#"{"detach":{"port":"vale0:a"}}"#,
    r#"{"bind":{"port":"vale0:a"}}"#,
    r#""resume""#,
    r#"{"port_geometry":{"port":"vale0:a"}}"#,
    r#"{"interface_add":{"port":"netmap:v0"}}"#,
    r#"{"interface_del":{"port":"netmap:v0"}}"#,
    r#"{"interface_attach":{"port":"vale0:v0"}}"#,
    r#"{"interface_detach":{"port":"vale0:v0"}}"#,
    r#"{"interface_poll":{"port":"vale0:v0"}}"#,
    r#"{"chain_add":{"switch":"vale0","chain":{"name":"c","services":["s@least"]}}}"#,
    r#"{"chain_del":{"switch":"vale0","chain":"c"}}"#,
    r#"{"chain_list":{"switch":"vale0"}}"#,
    r#"{"rule_add":{"switch":"vale0","rules":[{"priority":3,"action":"drop"}]}}"#,
    r#"{"rule_del":{"switch":"vale0","rules":[3]}}"#,
    r#"{"rule_list":{"switch":"vale0"}}"#,
    r#"{"function_list":{"switch":"vale0"}}"#,
    r#"{"function_note":{"port":"vale0:a","counts":{"x":3}}}"#,
    r#"{"audit":{}}"#,
    r#"{"next_functions":{"port":"vale0:a"}}"#,
];

/// What a reader makes of a text: the message written anew, or why it is none. The list of names
/// behind an unknown one has another order.
fn read<'a, T: Serialize + Deserialize<'a>>(text: &'a str) -> Result<String, String> {
    let message: T = serde_json::from_str(text).map_err(|error| {
        let said = error.to_string();
        match said.split_once("`, expected one of `hello`, ") {
            Some((name, list)) => {
                format!("{name} {}", list.rsplit("` ").next().unwrap_or_default())
            }
            None => said,
        }
    })?;
    Ok(serde_json::to_string(&message).unwrap())
}

#[test]
fn each_call_reads_and_writes_as_in_the_flat_form() {
    for text in MESSAGES {
        assert!(read::<Flat>(text).is_ok(), "{text}: {:?}", read::<Flat>(text));
        assert_eq!(read::<Request>(text), read::<Flat>(text), "{text}");
    }
}

#[test]
fn an_unknown_name_is_refused_with_all_names() {
    for from in [r#"{"fly":{}}"#, r#"{"add":{}}"#, r#"{"":1}"#, r#""attach_""#] {
        let (flat, ours) = (
            serde_json::from_str::<Flat>(from).unwrap_err().to_string(),
            serde_json::from_str::<Request>(from).unwrap_err().to_string(),
        );
        let names = |said: &str| {
            let mut names: Vec<String> =
                said.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&ours), names(&flat));
        assert_eq!(read::<Request>(from), read::<Flat>(from));
    }
}

proptest! {
    #[test]
    fn a_text_with_errors_reads_as_in_the_flat_form(
        which in 0..MESSAGES.len(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), "[ -~]{0,2}"), 1..4),
    ) {
        let mut text = MESSAGES[which].to_owned();
        for (at, with) in edits {
            let at = at.index(text.len());
            text.replace_range(at..at + 1, &with);
            if text.is_empty() {
                break;
            }
        }
        prop_assert_eq!(read::<Request>(&text), read::<Flat>(&text), "{}", text);
    }

    #[test]
    fn fields_of_other_calls_read_as_in_the_flat_form(
        a in 0..MESSAGES.len(),
        b in 0..MESSAGES.len(),
    ) {
        let body = MESSAGES[b].split_once(':').map_or("null}", |(_, body)| body);
        let name = MESSAGES[a].split_once(':').map_or(r#"{"resume""#, |(name, _)| name);
        let text = format!("{name}:{body}");
        prop_assert_eq!(read::<Request>(&text), read::<Flat>(&text), "{}", text);
    }
}

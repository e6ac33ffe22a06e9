//! Grouping calls by subject changes nothing in a message: a flat enum of all calls is the measure.

use proptest::prelude::*;
use protocol::{
    Attach, Bind, ChainAdd, ChainRef, EventsQuery, ExternLearn, FdbAdd, FdbDel, FdbFlush, FdbList,
    FunctionNote, GeometryQuery, Hello, InterfaceAdd, InterfaceAttach, InterfacePoll, MdbChange,
    MdbList, NeighList, PageFrom, PortAdd, PortList, PortRef, PortSet, ProgramEntryRef,
    ProgramEntrySet, ProgramMapQuery, Request, RuleAdd, RuleDel, StatsQuery, SteeringQuery,
    SwitchRef, SwitchSpec, TraceQuery, WorkerMove,
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
    SwitchCompare(SwitchSpec),
    SwitchDel(SwitchRef),
    SwitchList(PageFrom),
    SwitchShow(SwitchRef),
    PortAdd(Box<PortAdd>),
    PortSet(PortSet),
    PortCompare(Box<PortAdd>),
    PortEnable(PortRef),
    PortDel(PortRef),
    PortList(PortList),
    PortShow(PortRef),
    FdbList(FdbList),
    FdbAdd(FdbAdd),
    FdbDel(FdbDel),
    FdbFlush(FdbFlush),
    ExternLearn(ExternLearn),
    NeighList(NeighList),
    MdbList(MdbList),
    MdbAdd(MdbChange),
    MdbDel(MdbChange),
    Stats(StatsQuery),
    Trace(TraceQuery),
    Attach(Attach),
    Detach(PortRef),
    Recover(PortRef),
    Bind(Bind),
    Resume,
    Missed,
    Events(EventsQuery),
    HandOver(PageFrom),
    HandOverPort(PageFrom),
    End,
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
    ProgramShow(SwitchRef),
    ProgramMapList(ProgramMapQuery),
    ProgramMapGet(ProgramEntryRef),
    ProgramMapSet(ProgramEntrySet),
    ProgramMapDel(ProgramEntryRef),
    Audit(PageFrom),
    NextFunctions(PortRef),
    WorkerList(PageFrom),
    WorkerMove(WorkerMove),
    Usage,
    UserList(PageFrom),
}

/// Messages of each call, one on each line.
const MESSAGES: &str = include_str!("calls.txt");

fn messages() -> Vec<&'static str> {
    MESSAGES.lines().collect()
}

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
    for text in messages() {
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
        which in 0..messages().len(),
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), "[ -~]{0,2}"), 1..4),
    ) {
        let mut text = messages()[which].to_owned();
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
        a in 0..messages().len(),
        b in 0..messages().len(),
    ) {
        let body = messages()[b].split_once(':').map_or("null}", |(_, body)| body);
        let name = messages()[a].split_once(':').map_or(r#"{"resume""#, |(name, _)| name);
        let text = format!("{name}:{body}");
        prop_assert_eq!(read::<Request>(&text), read::<Flat>(&text), "{}", text);
    }
}

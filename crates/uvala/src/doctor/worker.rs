//! Checks workers: whether one of them stood still lately.

use protocol::{StallCause, StallStage, WorkerInfo};

use super::{Finding, problem};

/// Stalls older than this are history, in seconds.
const RECENT_S: u64 = 3600;

/// Names workers that stood still within the last hour.
pub fn stalls(workers: &[WorkerInfo]) -> Vec<Finding> {
    workers.iter().filter_map(stall).collect()
}

fn stall(worker: &WorkerInfo) -> Option<Finding> {
    let last = worker.last_stall.as_ref().filter(|last| last.ago_s < RECENT_S)?;
    let times = match worker.stalls {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let what = format!("worker {} stood still {times}, last {}", worker.worker, last.describe());
    let cure = match (&last.port, last.cause) {
        (_, StallCause::NoCpu) => {
            "give the worker a CPU of its own (uvala daemon --cpu), or the machine less to do"
                .to_owned()
        }
        (Some(port), _) if last.stage == StallStage::Memory => format!(
            "end the program behind {port}: one of its threads punches holes into the port's \
             memory, or moves it to huge pages, and has no CPU for that"
        ),
        (Some(port), _) => format!("look at the program or interface behind {port}"),
        (None, _) => "look at the daemon's log for the port, as its user or root".to_owned(),
    };
    Some(problem("daemon", what, cure))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::StallInfo;

    fn worker(last_stall: Option<StallInfo>) -> WorkerInfo {
        WorkerInfo {
            worker: 0,
            cpu: None,
            switches: 1,
            ports: 2,
            steps: 0,
            turns_ns_log2: Vec::new(),
            turns_ns: 0,
            batches_log2: Vec::new(),
            batch_slots: 0,
            cpu_ms: 0,
            kicks: 0,
            longest_turn_ns: 0,
            longest_turn_port: None,
            stalls: u64::from(last_stall.is_some()),
            last_stall,
        }
    }

    fn stall(ago_s: u64, cause: StallCause) -> StallInfo {
        let port = Some("vale0:a".parse().expect("a name"));
        StallInfo { ago_s, lasted_ms: 60, stage: StallStage::Wake, cause, port }
    }

    #[test]
    fn test_a_stall_is_named_with_its_port_for_an_hour() {
        let found = stalls(&[worker(None), worker(Some(stall(5, StallCause::Busy)))]);
        let [Finding { what, cure, .. }] = &found[..] else { panic!("{found:?}") };
        assert!(what.contains("stood still once, last") && what.contains("vale0:a"), "{what}");
        assert!(cure.contains("vale0:a"), "{cure}");
        assert_eq!(stalls(&[worker(Some(stall(RECENT_S, StallCause::Busy)))]), []);
    }

    #[test]
    fn test_slow_memory_is_named_with_what_makes_it_slow() {
        let slow = StallInfo { stage: StallStage::Memory, ..stall(5, StallCause::Blocked) };
        let found = stalls(&[worker(Some(slow))]);
        let [Finding { what, cure, .. }] = &found[..] else { panic!("{found:?}") };
        assert!(what.contains("reading the memory of vale0:a"), "{what}");
        assert!(cure.contains("vale0:a") && cure.contains("punches holes"), "{cure}");
    }

    #[test]
    fn test_the_port_of_a_stall_may_be_gone() {
        let gone = StallInfo { port: None, ..stall(5, StallCause::Busy) };
        let found = stalls(&[worker(Some(gone))]);
        let [Finding { what, .. }] = &found[..] else { panic!("{found:?}") };
        assert!(what.contains("waking the client of a port that is gone, or"), "{what}");
    }

    #[test]
    fn test_a_busy_machine_is_not_blamed_on_a_port() {
        let found = stalls(&[worker(Some(stall(5, StallCause::NoCpu)))]);
        assert!(found[0].cure.contains("--cpu"), "{found:?}");
    }
}

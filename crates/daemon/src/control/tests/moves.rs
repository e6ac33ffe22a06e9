//! Ports that an operator moves to other workers.

use protocol::{PortSet, PortSettings, PortWorker, WorkerMove, WorkerRequest};

use super::*;

impl Bench {
    fn move_port(&mut self, uid: u32, port: &str, worker: u32) -> Result<(), String> {
        let wanted = WorkerMove { port: port.parse().unwrap(), worker };
        let request = Request::Worker(WorkerRequest::Move(wanted));
        self.answer(9, uid, request).map(drop).map_err(|refusal| refusal.to_string())
    }
}

#[test]
fn test_only_ports_that_can_move_are_moved_and_only_by_users_that_manage_them() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    let refused = |bench: &mut Bench, uid, worker| {
        bench.move_port(uid, "vale0:a", worker).expect_err("refused")
    };
    assert!(refused(&mut bench, 0, 0).contains("runs on one worker"));
    bench.control.state.switch_mut(&"vale0".parse().unwrap()).unwrap().config.is_spread = true;
    assert!(refused(&mut bench, 0, 1).contains("the daemon has 1, from 0 on"));
    let stranger = refused(&mut bench, 4242, 0);
    assert!(stranger.contains("belongs to"), "{stranger}");
    bench.move_port(0, "vale0:a", 0).unwrap();
    assert_eq!(bench.control.datapath.moved.values().collect::<Vec<_>>(), [&0]);
}

#[test]
fn test_a_change_of_settings_with_a_move_that_fails_changes_nothing() {
    let mut bench = Bench::new();
    bench.attach(1, 1000, "vale0:a").unwrap();
    bench.control.state.switch_mut(&"vale0".parse().unwrap()).unwrap().config.is_spread = true;
    let set = |bench: &mut Bench| {
        let settings = PortSettings {
            isolated: Some(true),
            worker: Some(PortWorker::Number(0)),
            ..PortSettings::default()
        };
        let set = PortSet { port: "vale0:a".parse().unwrap(), settings, vxlan: None };
        bench.answer(9, 0, Request::Port(PortRequest::Set(Box::new(set)))).map(drop)
    };
    let is_isolated = |bench: &Bench| {
        let port = bench.control.state.find_port(&"vale0:a".parse().unwrap()).unwrap();
        [port.config.isolated, bench.control.datapath.ports[&port.key].1.isolated]
    };
    bench.control.datapath.out_of_memory = true;
    set(&mut bench).expect_err("the move fails");
    assert_eq!(is_isolated(&bench), [false; 2]);
    set(&mut bench).unwrap();
    assert_eq!(is_isolated(&bench), [true; 2]);
}

//! Ports that an operator moves to other workers.

use protocol::{WorkerMove, WorkerRequest};

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

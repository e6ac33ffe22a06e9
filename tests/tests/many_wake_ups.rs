//! A user with many ports to wake. By itself, because other tests take the time that is measured.

use std::time::Duration;

use harness::daemon::Setup;
use harness::process::{Peer, USER};
use harness::role::{Report, Role, WakeCrowd};
use harness::round_trips::RoundTrips;
use harness::{is_root, skip};

/// Another user may attach, and the pair loses nothing.
const CONFIG: &str = r#"
[socket]
mode = "666"
[switch.vale0]
mode = "666"
[switch.vale0.port.ping]
on_full = "wait"
[switch.vale0.port.pong]
on_full = "wait"
"#;
/// The attacker ends after so many seconds.
const ATTACK: u64 = 20;

#[test]
fn wake_ups_of_many_ports_that_add_up_leave_others_their_time() {
    if !is_root() {
        return skip("only root can be another user, and one that is alone waits for nothing");
    }
    let daemon = Setup::new(CONFIG).start();
    let trips = RoundTrips::start(&daemon, "vale0");
    let ((), before) = trips.beside(|| std::thread::sleep(Duration::from_secs(1)));
    let at = daemon.at("vale0:hostile");
    let crowd = WakeCrowd { at, ports: 90, watches: 800, seconds: ATTACK };
    let mut hostile = Peer::launch(&Role::WakeCrowd(crowd), Some(USER));
    assert_eq!(hostile.report(), Report::Ready);
    let ((), during) = trips.beside(|| std::thread::sleep(Duration::from_secs(3)));
    trips.look_twice("wake-ups of many ports", before, during);
    trips.finish();
    for port in ["vale0:hostile", "vale0:hostile89"] {
        assert!(daemon.stats(port).wakes > 0, "{port} is woken, if later");
    }
    let log = daemon.log();
    assert!(!log.contains("stalls the switch"), "no wake-up was slow: {log}");
    hostile.process().kill();
}

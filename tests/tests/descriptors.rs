//! A daemon that may have few descriptors, and users that take as many as they get.

use std::path::Path;

use client::control::{Connection, ControlError};
use harness::daemon::{Daemon, Setup};
use harness::process::USER;
use harness::{is_root, skip};
use protocol::{Attach, ErrorCode, PageFrom, Reply, Request, Usage, UsageRequest, UserUsage, exit};
use rustix::process::Uid;

const LIMIT: u64 = 1024;
const CONFIG: &str = "[socket]\nmode = \"666\"\n[switch.vale9]\n[switch.vale9.port.a]\n";

/// What a user got, and the error that ended each row of tries.
struct Crowd {
    connections: Vec<Connection>,
    ports: u64,
    refusals: Vec<(Option<ErrorCode>, String)>,
}

fn said(error: &ControlError) -> (Option<ErrorCode>, String) {
    (error.code(), error.to_string())
}

/// A user that opens connections until one is refused, and then ports over the first.
fn crowd(dir: &Path, user: u32) -> Crowd {
    let mut crowd = Crowd { connections: Vec::new(), ports: 0, refusals: Vec::new() };
    loop {
        let connection = Connection::open(Some(dir)).expect("a daemon");
        match connection.hello("crowd") {
            Ok(_) => crowd.connections.push(connection),
            Err(error) => break crowd.refusals.push(said(&error)),
        }
    }
    let Some(first) = crowd.connections.first() else { return crowd };
    loop {
        let name = format!("vale{user}:p{}", crowd.ports);
        // The descriptors are closed here; the daemon keeps its own.
        match first.attach(Attach::new(name.parse().expect("a name"))) {
            Ok(_) => crowd.ports += 1,
            Err(error) => break crowd.refusals.push(said(&error)),
        }
    }
    crowd
}

fn crowd_of(daemon: &Daemon, user: u32) -> Crowd {
    let dir = daemon.dir();
    let run = move || {
        rustix::thread::set_thread_uid(Uid::from_raw(user)).expect("root may");
        crowd(&dir, user)
    };
    std::thread::spawn(run).join().expect("no panic")
}

/// Root lists users, has the daemon examined and deletes a port, each over a connection of its own.
fn root_is_served(daemon: &Daemon) -> Vec<UserUsage> {
    let list = Request::Usage(UsageRequest::Users(PageFrom::default()));
    let connection = Connection::open(Some(&daemon.dir())).expect("a daemon");
    let Reply::Users(users) = connection.call(list).expect("an answer") else { panic!("users") };
    let doctor = daemon.uvala(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(!said.contains("did not answer"), "{said}");
    let deleted = daemon.uvala(&["port", "del", "vale9:a"]);
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    let added = daemon.uvala(&["port", "add", "vale9:a"]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    users.items
}

#[test]
fn a_user_has_a_share_of_the_descriptors_and_keeps_no_other_out() {
    if !is_root() {
        return skip("only root can be two users");
    }
    let daemon = Setup::new(CONFIG).descriptors(LIMIT).start();
    let Reply::Usage(Usage { descriptors_max: Some(limit), .. }) =
        daemon.call(Request::Usage(UsageRequest::Show)).unwrap()
    else {
        panic!("it has a limit")
    };
    let first = crowd_of(&daemon, USER);
    let got = (first.connections.len() as u64, first.ports);
    assert_eq!(got, (limit / 4, limit / 16), "{:?}", first.refusals);
    for (code, message) in &first.refusals {
        assert_eq!(*code, Some(ErrorCode::Quota), "{message}");
        assert!(message.contains(&format!("{limit} descriptors")), "{message}");
    }
    let of_user = root_is_served(&daemon).into_iter().find(|usage| usage.uid == USER);
    assert_eq!(of_user.map(|usage| (usage.connections, usage.ports)), Some(got));
    let other = daemon.uvala_as(&["port", "list"], Some(USER + 1));
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
}

#[test]
fn the_last_descriptors_are_for_root_however_many_users_take_the_others() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let daemon = Setup::new(CONFIG).descriptors(LIMIT).start();
    let crowds: Vec<Crowd> = (0..6).map(|more| crowd_of(&daemon, USER + more)).collect();
    let refused = |crowd: &Crowd| crowd.refusals.iter().any(|(_, why)| why.contains("for root"));
    assert!(crowds.iter().any(refused), "none was told");
    root_is_served(&daemon);
    let other = daemon.uvala_as(&["port", "list"], Some(USER + 9));
    assert_eq!(other.status.code(), Some(i32::from(exit::QUOTA)));
    // What they have works on, and they may give it back.
    drop(crowds);
    root_is_served(&daemon);
}

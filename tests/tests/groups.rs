//! Memory of trust groups: what members can commit is charged, to who made the group, until it is
//! gone.

use client::api::{GroupAudit, PageFrom, Reply, Request, exit};
use harness::daemon::{Daemon, Setup};
use harness::process::{Peer, STRANGER};
use harness::role::{At, Report, Role, Scribble};
use harness::{is_root, skip, wait};

const MIB: u64 = 1 << 20;

/// Bytes that the memory of a group takes, as the kernel says: of the daemon's own descriptor.
fn committed(daemon: &Daemon, group: &str) -> Vec<u64> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let paths = files.filter_map(|file| Some(file.ok()?.path()));
    let name = format!("/memfd:{group} (deleted)");
    let of_it = paths.filter(|path| std::fs::read_link(path).is_ok_and(|to| *to == *name));
    let sizes = of_it.filter_map(|path| std::fs::metadata(path).ok());
    sizes.map(|file| 512 * std::os::unix::fs::MetadataExt::blocks(&file)).collect()
}

/// All groups; whoever scribbles over one may have spoilt its buffers.
fn audit(daemon: &Daemon) -> Vec<GroupAudit> {
    match daemon.call(Request::Audit(PageFrom { from: None })).unwrap() {
        Reply::Audit(page) => page.items,
        other => panic!("{other:?}"),
    }
}

/// The one group that there is.
fn only(daemon: &Daemon) -> GroupAudit {
    let mut groups = audit(daemon);
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups.remove(0)
}

fn member(daemon: &Daemon, port: &str, mib: Option<u64>) -> At {
    let (group, group_memory) = (Some("nf".to_owned()), mib.map(|mib| mib * MIB));
    At { group, group_memory, ..daemon.at(port) }
}

/// One that writes into every page that it can map.
fn hostile(daemon: &Daemon, port: &str, mib: u64, user: Option<u32>) -> Peer {
    let at = member(daemon, port, Some(mib));
    let peer = Peer::launch(&Role::Scribble(Scribble { at, seed: 7, fill: true }), user);
    assert_eq!(peer.report(), Report::Ready);
    peer
}

#[test]
fn what_a_hostile_member_commits_is_charged_and_comes_back_when_the_last_one_goes() {
    let daemon = Setup::new("[quota]\nmemory = \"40MiB\"\n").start();
    let before = daemon.holdings();
    let mut peer = hostile(&daemon, "vale0:bad", 24, None);
    let group = only(&daemon);
    let [bytes] = committed(&daemon, "nf")[..] else { panic!("one region") };
    assert_eq!((group.memory, group.committed), (24 * MIB, bytes));
    assert!(bytes > 23 * MIB && bytes <= group.memory, "{bytes}");
    // Others of the group cost nothing; what is outside of it has what is left.
    let honest = member(&daemon, "vale0:good", None).options().open("vale0:good").unwrap();
    let alone = daemon.open("vale0:alone");
    let refused = daemon.options().slots(4096).open("vale1:large").unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA, "{refused}");
    let refused = daemon.options().group("other").group_memory(16 * MIB).open("vale1:x");
    let refused = refused.unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA, "{refused}");
    assert!(refused.to_string().contains("--group-memory"), "{refused}");
    assert_eq!((daemon.switch("vale1"), audit(&daemon).len()), (None, 1));
    peer.process().kill();
    wait::until("the port to go", || daemon.port("vale0:bad").is_none());
    assert_eq!(only(&daemon).memory, 24 * MIB, "a member is there");
    drop((honest, alone));
    wait::until("the group to go", || audit(&daemon).is_empty());
    wait::until("its memory to go", || committed(&daemon, "nf").is_empty());
    wait::until("all ports to go", || daemon.ports().is_empty());
    daemon.assert_holds(before);
    // It can all be had again.
    drop(hostile(&daemon, "vale0:again", 36, None));
}

#[test]
fn a_group_is_charged_to_who_made_it_and_to_nobody_else() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let config = "[socket]\nmode = \"666\"\n[quota]\nmemory = \"40MiB\"\n\
                  [switch.vale0]\nmode = \"666\"\n";
    let daemon = Setup::new(config).start();
    let theirs = hostile(&daemon, "vale0:theirs", 32, Some(STRANGER));
    // Of the same name, and another's.
    let ours = hostile(&daemon, "vale0:ours", 32, None);
    let mut groups = audit(&daemon);
    groups.sort_by_key(|group| group.uid);
    let shown = |group: &GroupAudit| (group.uid, group.charged_to, group.members.len());
    let shown: Vec<_> = groups.iter().map(shown).collect();
    assert_eq!(shown, [(0, 0, 1), (STRANGER, STRANGER, 1)]);
    let all: u64 = groups.iter().map(|group| group.memory).sum();
    assert!(committed(&daemon, "nf").iter().sum::<u64>() <= all);
    let refused = daemon.options().slots(4096).open("vale0:more").unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA, "{refused}");
    drop(theirs);
    wait::until("theirs to go", || audit(&daemon).len() == 1);
    let refused = daemon.options().slots(4096).open("vale0:more").unwrap_err();
    assert_eq!(refused.exit_code(), exit::QUOTA, "what is theirs was never ours: {refused}");
    drop(ours);
    wait::until("ours to go", || audit(&daemon).is_empty());
    drop(daemon.options().slots(4096).open("vale0:more").unwrap());
}

#[test]
fn a_group_that_is_full_says_what_to_raise() {
    let daemon = Daemon::start();
    let open = |port: &str| member(&daemon, port, Some(10)).options().open(port);
    let ports = [open("vale0:a").unwrap(), open("vale0:b").unwrap()];
    let before = daemon.holdings();
    let refused = open("vale1:c").unwrap_err();
    assert_eq!(refused.exit_code(), exit::NO_MEMORY, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("10.0 MiB") && text.contains("--group-memory"), "{text}");
    daemon.assert_holds(before);
    assert_eq!(daemon.switch("vale1"), None);
    let [first, _second] = ports;
    drop(first);
    wait::until("room again", || daemon.port("vale0:a").is_none());
    drop(open("vale1:c").unwrap());
}

//! Trust groups. The creator of a group pays for what its members can commit, until the group is
//! gone; a declared group admits the users that the configuration names.

use std::collections::BTreeSet;

use client::Interest;
use harness::daemon::{Daemon, Setup};
use harness::frames::{announcement, mac};
use harness::process::{OTHER_USER, Peer, USER};
use harness::role::{At, Receive, Report, Role, Scribble, Send};
use harness::{is_root, skip, wait};
use protocol::{GroupAudit, GroupRequest, PageFrom, Reply, Request, exit};

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

/// All groups; a member that scribbles may have spoilt the buffers of its own.
fn audit(daemon: &Daemon) -> Vec<GroupAudit> {
    match daemon.call(Request::Group(GroupRequest::Audit(PageFrom { from: None }))).unwrap() {
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
    let theirs = hostile(&daemon, "vale0:theirs", 32, Some(USER));
    // Of the same name, and another's.
    let ours = hostile(&daemon, "vale0:ours", 32, None);
    let mut groups = audit(&daemon);
    groups.sort_by_key(|group| group.uid);
    let shown = |group: &GroupAudit| (group.uid, group.charged_to, group.members.len());
    let shown: Vec<_> = groups.iter().map(shown).collect();
    assert_eq!(shown, [(0, 0, 1), (USER, USER, 1)]);
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

/// A group of USER's, in which OTHER_USER may be by group.
fn declared() -> Daemon {
    let config = format!(
        "[socket]\nmode = \"666\"\n[switch.vale0]\nmode = \"666\"\n\
         [switch.vale0.port.sink]\non_full = \"wait\"\n\
         [group.nf]\nowner = {USER}\ngroup = {OTHER_USER}\nmode = \"660\"\n\
         memory = \"24MiB\"\n"
    );
    Setup::new(&config).start()
}

/// A process that holds a port in a group.
fn hold(daemon: &Daemon, port: &str, group: &str, user: u32) -> Result<Peer, (u8, String)> {
    let at = At { group: Some(group.to_owned()), ..daemon.at(port) };
    let peer = Peer::launch(&Role::Hold(at), Some(user));
    match peer.report() {
        Report::Ready => Ok(peer),
        Report::Failed { exit, message } => Err((exit, message)),
        other => panic!("{other:?}"),
    }
}

/// A group's owner, payer, memory and members.
fn shown(group: &GroupAudit) -> (u32, u32, u64, Vec<&str>) {
    let members = group.members.iter().map(|member| member.port.port()).collect();
    (group.uid, group.charged_to, group.memory, members)
}

#[test]
fn a_declared_group_is_for_those_whom_its_owner_group_and_mode_name() {
    if !is_root() {
        return skip("only root can be several users");
    }
    const THIRD: u32 = OTHER_USER + 1;
    let daemon = declared();
    let before = daemon.holdings();
    let (exit, text) = hold(&daemon, "vale0:third", "nf", THIRD).unwrap_err();
    let whose = format!("belongs to {USER}, group {OTHER_USER}, with mode 660");
    assert_eq!(exit, exit::PERMISSION, "{text}");
    assert!(text.contains(&whose) && text.contains("[group.nf] in uvala.toml"), "{text}");
    assert_eq!(audit(&daemon).len(), 0, "nor one of his own");
    daemon.assert_holds(before);
    // The first member creates it; its owner pays.
    let other = hold(&daemon, "vale0:other", "nf", OTHER_USER).unwrap();
    assert_eq!(shown(&only(&daemon)), (USER, USER, 24 * MIB, vec!["other"]));
    let owner = hold(&daemon, "vale0:owner", "nf", USER).unwrap();
    let root = member(&daemon, "vale0:root", None).options().open("vale0:root").unwrap();
    let group = only(&daemon);
    assert_eq!(shown(&group), (USER, USER, 24 * MIB, vec!["other", "owner", "root"]));
    assert_eq!(committed(&daemon, "nf").len(), 1);
    let access = group.access.unwrap();
    assert_eq!((access.group, access.mode.to_string()), (Some(OTHER_USER), "660".to_owned()));
    // A name that is not declared is each user's own.
    let own = [USER, OTHER_USER, THIRD]
        .map(|user| hold(&daemon, &format!("vale0:own{user}"), "own", user).unwrap());
    let groups = audit(&daemon);
    let own_of = groups.iter().filter(|group| group.group == "own");
    let users: BTreeSet<_> = own_of.map(|group| (group.uid, group.charged_to)).collect();
    assert_eq!(users, [USER, OTHER_USER, THIRD].map(|user| (user, user)).into());
    drop((other, owner, root, own));
    wait::until("all groups to go", || audit(&daemon).is_empty());
    wait::until("all ports to go", || daemon.ports().len() == 1);
    daemon.assert_holds(before);
}

#[test]
fn users_of_a_declared_group_exchange_frames_without_a_copy() {
    if !is_root() {
        return skip("only root can be several users");
    }
    let (daemon, count) = (declared(), 2000);
    let receive = |station| Receive { station: Some(station), ..Receive::default() };
    let at = member(&daemon, "vale0:sink", None);
    let role = Role::Receive(Receive { at, count: Some(count), ..receive(9) });
    let receiver = Peer::launch(&role, Some(USER));
    assert_eq!(receiver.report(), Report::Ready);
    let send = |port: &str, to: u32, count: Option<u64>| {
        let (at, to, lens) = (member(&daemon, port, None), mac(to), vec![60, 1514]);
        let role = Role::Send(Send { at, stream: 1, to, count, lens, batch: 16 });
        let peer = Peer::launch(&role, Some(OTHER_USER));
        assert_eq!(peer.report(), Report::Ready);
        peer
    };
    assert_eq!(send("vale0:source", 9, Some(count)).sent(), count);
    receiver.received().assert_whole(1, count);
    // Copies would all come in the same buffers, those of this ring.
    let at = At { slots: Some(64), ..member(&daemon, "vale0:root", None) };
    let mut root = at.options().open("vale0:root").unwrap();
    root.send(&announcement(8)).unwrap();
    assert!(root.drain(Some(wait::PATIENCE)).unwrap());
    let _sender = send("vale0:more", 8, None);
    let mut buffers = BTreeSet::new();
    for frame in 0.. {
        assert!(frame < 10_000, "in {} buffers only", buffers.len());
        if buffers.len() > 64 {
            break;
        }
        assert!(root.wait(Interest::Rx, Some(wait::PATIENCE)).unwrap());
        let ring = root.rx(0);
        ring.available();
        buffers.insert(ring.frame(0).as_ptr() as usize);
        ring.release(1).unwrap();
    }
}

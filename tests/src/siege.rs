//! A pair of clients that may lose nothing, and attackers beside it, which are killed and begin
//! anew again and again.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::name::SwitchName;
use protocol::{
    FdbAdd, FdbRequest, InterfaceRequest, MachineState, PageFrom, PortRef, PortRequest, Reply,
    Request, SwitchRef, SwitchRequest,
};

use crate::daemon::{Daemon, Setup};
use crate::frames::{BROADCAST, Tally, mac};
use crate::machine::Machine;
use crate::process::{Peer, USER};
use crate::role::{
    At, Crowd, Flood, Hoard, HostileClient, HostileGuest, HostilePeer, Receive, Role, Send,
};
use crate::{Random, is_root, wait};

/// The pair's receiver is waited for. The switch, and the port of a machine, are open to all users.
const CONFIG: &str = "[socket]\nmode = \"666\"\n\
                      [switch.vale0]\nmode = \"666\"\n\
                      [switch.vale0.port.honest]\non_full = \"wait\"\n\
                      [switch.vale0.port.guest]\nkind = \"vhost-user\"\nmode = \"666\"\n";
/// The station of the pair's receiver, and the stream of its sender.
const RECEIVER: u32 = 9;
const SENDER: u32 = 1;
/// The station of a crowd.
const CROWD: u32 = 2;

/// A daemon to be attacked.
///
/// # Panics
/// If it does not start.
#[must_use]
pub fn daemon() -> Daemon {
    let daemon = Setup::new(CONFIG).start();
    // A sender can claim any address, except that of a static entry.
    let (port, mac) = ("vale0:honest".parse().expect("a name"), mac(RECEIVER).into());
    let add = Request::Fdb(FdbRequest::Add(FdbAdd { port, mac, vlan: 1 }));
    daemon.call(add).expect("room for one");
    // What the daemon makes with the first machine and keeps, it has from now on.
    drop(Machine::boot(&socket_of(&daemon, "vale0:guest")));
    wait::until("the machine's end", || {
        let machine = daemon.port("vale0:guest").and_then(|port| port.machine);
        machine.is_some_and(|machine| machine.state == MachineState::Waiting)
    });
    let mut last = daemon.holdings();
    wait::until("rest", || {
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut last, daemon.holdings()) == last
    });
    daemon
}

fn socket_of(daemon: &Daemon, port: &str) -> PathBuf {
    let machine = daemon.port(port).and_then(|port| port.machine);
    machine.expect("a machine's port").socket.into()
}

/// Deletes what attackers have left behind that is theirs to leave: switches, ports, interfaces.
///
/// # Panics
/// If it stays.
pub fn clear(daemon: &Daemon) {
    let is_own = |port: &str| ["vale0:honest", "vale0:guest"].contains(&port);
    wait::until("what attackers left to go", || {
        let foreign: Vec<_> = daemon.ports().into_iter().filter(|port| !is_own(port)).collect();
        for port in foreign.iter().filter_map(|port| port.parse().ok()) {
            let at = PortRef { port };
            // It may be gone already, and is one or the other.
            let _ = daemon.call(Request::Port(PortRequest::Del(at.clone())));
            let _ = daemon.call(Request::Interface(InterfaceRequest::Del(at)));
        }
        let switches = switches(daemon);
        let foreign_switches = switches.iter().filter(|switch| switch.to_string() != "vale0");
        for switch in foreign_switches.clone().cloned() {
            let _ = daemon.call(Request::Switch(SwitchRequest::Del(SwitchRef { switch })));
        }
        foreign.is_empty() && foreign_switches.count() == 0
    });
}

fn switches(daemon: &Daemon) -> Vec<SwitchName> {
    match daemon.call(Request::Switch(SwitchRequest::List(PageFrom::default()))) {
        Ok(Reply::Switches(page)) => page.items.into_iter().map(|info| info.switch).collect(),
        other => panic!("{other:?}"),
    }
}

/// Frames per second that the pair exchanges.
#[must_use]
pub fn rate(daemon: &Daemon, time: Duration) -> f64 {
    let frames = || u32::try_from(daemon.stats("vale0:honest").rx.frames & 0xffff_ffff);
    let (before, start) = (frames().expect("masked"), Instant::now());
    std::thread::sleep(time);
    let count = frames().expect("masked").wrapping_sub(before);
    f64::from(count) / start.elapsed().as_secs_f64()
}

/// A sender, and a receiver for which the switch lets it wait.
#[derive(Debug)]
pub struct Pair {
    sender: Peer,
    receiver: Peer,
}

impl Pair {
    /// Starts both.
    ///
    /// # Panics
    /// If one fails.
    #[must_use]
    pub fn start(daemon: &Daemon) -> Self {
        let at = daemon.at("vale0:honest");
        let receive = Receive { at, station: Some(RECEIVER), ..Receive::default() };
        let receiver = Peer::start(&Role::Receive(receive));
        let (at, to, lens) = (daemon.at("vale0:sender"), mac(RECEIVER), vec![60, 1514, 200, 5000]);
        let send = Send { at, stream: SENDER, to, count: None, lens, batch: 16 };
        Self { sender: Peer::start(&Role::Send(send)), receiver }
    }

    /// Ends both: the frames that were sent, and what was received.
    ///
    /// # Panics
    /// If one failed.
    #[must_use]
    pub fn finish(mut self) -> Outcome {
        self.sender.finish();
        let sent = self.sender.sent();
        self.receiver.finish();
        Outcome { sent, tally: self.receiver.received() }
    }
}

/// What became of the frames of a pair.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that were received.
    pub tally: Tally,
}

impl Outcome {
    /// Frames that did not arrive whole, or not in their order. What else comes is not the pair's:
    /// attackers send frames of others again, with other bytes.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let stream = self.tally.stream(SENDER);
        self.sent.saturating_sub(stream.frames) + stream.disorder
    }

    /// All frames arrived, whole and in order.
    ///
    /// # Panics
    /// If not.
    pub fn assert_whole(&self) {
        self.tally.assert_whole(SENDER, self.sent);
    }
}

/// Something that attacks, or only comes and goes.
pub struct Attacker {
    user: Option<u32>,
    is_idle: bool,
    /// What a life of it is.
    role: Box<dyn Fn(&mut Random) -> Role + std::marker::Send>,
}

impl fmt::Debug for Attacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attacker").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Attacker {
    fn new(
        user: Option<u32>,
        role: impl Fn(&mut Random) -> Role + std::marker::Send + 'static,
    ) -> Self {
        Self { user, is_idle: false, role: Box::new(role) }
    }

    /// A hostile client: another user, where the test can be two. Its calls then name the pair's
    /// ports, too.
    #[must_use]
    pub fn client(daemon: &Daemon) -> Self {
        let ports: &[&str] = match other_user() {
            Some(_) => &["vale0:bad", "vale0:worse", "valebad:a", "vale0:honest", "vale0:sender"],
            None => &["valebad:a", "valebad:b"],
        };
        let (dir, ports) = (daemon.dir(), ports.iter().map(|&port| port.to_owned()).collect());
        let client = HostileClient { dir, ports, seed: 0 };
        let role = move |random: &mut Random| {
            Role::HostileClient(HostileClient { seed: random.any(), ..client.clone() })
        };
        Self::new(other_user(), role)
    }

    /// A hostile guest and its VMM, at the port that is for them.
    ///
    /// # Panics
    /// If there is no such port.
    #[must_use]
    pub fn guest(daemon: &Daemon) -> Self {
        let socket = socket_of(daemon, "vale0:guest");
        let role = move |random: &mut Random| {
            Role::HostileGuest(HostileGuest { socket: socket.clone(), seed: random.any() })
        };
        Self::new(other_user(), role)
    }

    /// A hostile peer of a stream port, which is made for it.
    ///
    /// # Panics
    /// If there is no room for the port.
    #[must_use]
    pub fn stream_peer(daemon: &Daemon) -> Self {
        Self::peer(daemon, "stream", None)
    }

    /// A hostile peer of a dgram port, which is made for it.
    ///
    /// # Panics
    /// If there is no room for the port.
    #[must_use]
    pub fn dgram_peer(daemon: &Daemon) -> Self {
        let place = daemon.dir().join("peers");
        std::fs::create_dir_all(&place).expect("room");
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&place, open_to_all).expect("ours");
        Self::peer(daemon, "dgram", Some(place.join("hostile")))
    }

    fn peer(daemon: &Daemon, kind: &str, peer: Option<PathBuf>) -> Self {
        let port = format!("vale0:{kind}");
        let mut add = vec!["port", "add", &port, "--kind", kind, "--mode", "666"];
        let path = peer.as_deref().map(|peer| peer.to_str().expect("UTF-8"));
        add.extend(path.into_iter().flat_map(|path| ["--peer", path]));
        // Another attacker may have added the port.
        let _ = daemon.uvala(&add);
        let hostile = HostilePeer { socket: socket_of(daemon, &port), peer, seed: 0 };
        let role = move |random: &mut Random| {
            Role::HostilePeer(HostilePeer { seed: random.any(), ..hostile.clone() })
        };
        Self::new(other_user(), role)
    }

    /// Clients that come, send, receive or hoard in one way or another, and are killed.
    #[must_use]
    pub fn passer_by(daemon: &Daemon) -> Self {
        let dir = daemon.dir();
        Self::new(None, move |random| passer_by(&dir, random))
    }

    /// Another user, where the test can be two, that floods the pair's switch by up to 300 ports.
    #[must_use]
    pub fn crowd(daemon: &Daemon) -> Self {
        let dir = daemon.dir();
        Self::new(other_user(), move |random| {
            let ports = 1 + u32::try_from(random.below(300)).expect("few");
            let (dir, switch) = (dir.clone(), "vale0".to_owned());
            Role::Crowd(Crowd { dir, switch, ports, station: CROWD })
        })
    }

    /// Runs only where nothing else would: what it costs the pair then is the switch's time, not a
    /// share of the processor that any busy program takes.
    #[must_use]
    pub fn idly(self) -> Self {
        Self { is_idle: true, ..self }
    }

    /// Lives and dies until the end.
    fn run(&self, mut random: Random, ended: &AtomicBool) -> Lives {
        /// An attach may wait for seconds. An attacker may be caught in what it did itself.
        const REPORT: Duration = Duration::from_secs(15);
        let mut all = Lives::default();
        let is_needed = |all: &Lives| all.attacks == 0 && all.lives < 4;
        while !ended.load(Ordering::Relaxed) || is_needed(&all) {
            let mut peer = Peer::launch(&(self.role)(&mut random), self.user);
            if self.is_idle {
                peer.process().run_idly();
            }
            let end = Instant::now() + Duration::from_millis(1 + random.below(3000));
            while Instant::now() < end && !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1 + random.below(10)));
            }
            all.lives += 1;
            // Some are asked how much they did; the others die at any instant.
            if random.below(4) == 0 || all.attacks == 0 {
                peer.finish();
                let last = peer.last_report(REPORT);
                if let Some(crate::role::Report::Attacked(count)) = last {
                    all.attacks += count;
                }
            }
            peer.process().kill();
        }
        all
    }
}

/// A life of an ordinary client, one of whose kinds is a member of a trust group.
fn passer_by(dir: &Path, random: &mut Random) -> Role {
    // Streams are counted by number, and each is sent from its beginning.
    let stream = 1000 + u32::try_from(random.below(1 << 31)).expect("31 bits");
    let group = (random.below(2) == 0).then(|| "soak".to_owned());
    let (port, sleepy) = (format!("vale0:v{stream}"), random.below(2) == 0);
    let at = At { dir: dir.to_owned(), port, group, sleepy, ..At::default() };
    let to = *random.one_of(&[mac(RECEIVER), BROADCAST, mac(stream)]);
    let batch = 1 + random.index(64);
    let send = Send { at: at.clone(), stream, to, count: None, lens: vec![60, 1514, 4000], batch };
    let receive = Receive { at: at.clone(), station: Some(stream), ..Receive::default() };
    match random.below(8) {
        0 => Role::Hold(at),
        1 => Role::Hoard(Hoard { at, station: stream, extra_bufs: 5000 }),
        2 => Role::Flood(Flood { dir: dir.to_owned(), connections: 40 }),
        3 | 4 => Role::Receive(receive),
        _ => Role::Send(send),
    }
}

/// Another user, where the test can be one.
fn other_user() -> Option<u32> {
    is_root().then_some(USER)
}

/// How much attackers did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lives {
    /// Processes that were started.
    pub lives: u64,
    /// Attacks of those that were asked for their number.
    pub attacks: u64,
}

/// Attackers at work.
#[derive(Debug)]
pub struct Siege {
    ended: Arc<AtomicBool>,
    attackers: Vec<JoinHandle<Lives>>,
}

impl Siege {
    /// Sets them on.
    #[must_use]
    pub fn start(attackers: Vec<Attacker>, random: &mut Random) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let start = |attacker: Attacker| {
            let (ended, random) = (ended.clone(), Random::new(random.any()));
            std::thread::spawn(move || attacker.run(random, &ended))
        };
        let attackers = attackers.into_iter().map(start).collect();
        Self { ended, attackers }
    }

    /// Ends all of them; what each did, in the order in which they were given.
    ///
    /// # Panics
    /// If one could not be started.
    #[must_use]
    pub fn end(self) -> Vec<Lives> {
        self.ended.store(true, Ordering::Relaxed);
        self.attackers.into_iter().map(|one| one.join().expect("they only start peers")).collect()
    }
}

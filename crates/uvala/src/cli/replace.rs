//! `uvala daemon --replace`: takes over from the daemon that runs.
//!
//! ```text
//!   next daemon                         the daemon that runs
//!     hello, hand_over ───────────────►   same user, same protocol
//!     checks the state, starts its threads
//!     hand_over … ────────────────────►   copies of descriptors; it goes on
//!     end ────────────────────────────►   saves, leaves lock and socket, ends
//!     lock, state, socket ◄───────────
//! ```
//!
//! Until `end`, the death of either changes nothing for the other. From then on the copies here are
//! the last ones, so the next daemon waits for the end as long as that takes.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, bail};
use client::control::{Connection, ControlError, unexpected};
use protocol::users::user_name;
use protocol::{ErrorCode, HandedOver, PageFrom, Reply, Request, SessionRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use terminal::say;

/// Time after which the log says that the next daemon still waits.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// The descriptors of interfaces, and the names that say which ports they are of.
pub type Interfaces = Vec<(String, Vec<OwnedFd>)>;

/// The daemon that runs.
pub struct Predecessor {
    connection: Connection,
    pid: Pid,
    /// Readable when it has ended.
    process: OwnedFd,
}

impl Predecessor {
    /// The daemon behind a socket; `None` if none runs.
    pub fn find(socket: &Path) -> anyhow::Result<Option<Self>> {
        let connection = match Connection::connect(socket) {
            Err(ControlError::NoDaemon(_)) => return Ok(None),
            connection => connection?,
        };
        // The kernel's word, not the peer's.
        let peer = connection.peer().context("the daemon that runs")?;
        if peer.uid != geteuid().as_raw() {
            let (socket, user) = (socket.display(), user_name(peer.uid));
            bail!("the daemon at {socket} is {user}'s: only a daemon of {user} can replace it");
        }
        connection.hello("uvala daemon --replace")?;
        let pid = peer.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.context("the daemon that runs is in another PID namespace")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("the daemon that runs")?;
        match ask(&connection, None) {
            Ok(_) => {}
            Err(ControlError::Refused(why)) if why.code == ErrorCode::InUse => {
                return Err(why).context("the daemon that runs goes on");
            }
            // It is of a version that knows no such call.
            Err(why) => {
                let what = "the daemon that runs hands nothing over; stop it instead";
                return Err(why).context(what);
            }
        }
        Ok(Some(Self { connection, pid, process }))
    }

    /// Takes its interfaces, and ends it.
    pub fn end(self) -> anyhow::Result<Interfaces> {
        let interfaces = interfaces(&self.connection)?;
        // Whether it has heard is not known after an error, so that waits, too.
        let told = self.connection.call(Request::Session(SessionRequest::End));
        if let Err(error @ ControlError::Refused(_)) = told {
            return Err(error.into());
        }
        let mut ended = [PollFd::new(&self.process, PollFlags::IN)];
        while !matches!(poll(&mut ended, Some(&PATIENCE)), Ok(1)) {
            say::remark(format_args!("uvala: waiting for the end of process {}", self.pid));
        }
        Ok(interfaces)
    }
}

fn ask(
    connection: &Connection,
    from: Option<String>,
) -> Result<(HandedOver, Vec<OwnedFd>), ControlError> {
    let call = Request::Session(SessionRequest::HandOver(PageFrom { from }));
    match connection.call_with_fds(call)? {
        (Reply::HandedOver(one), fds) => Ok((one, fds)),
        (other, _) => Err(unexpected(&other)),
    }
}

fn interfaces(connection: &Connection) -> Result<Interfaces, ControlError> {
    let (mut all, mut from) = (Vec::new(), None);
    while let (HandedOver { name: Some(name), next }, fds) = ask(connection, from)? {
        all.push((name, fds));
        from = next;
    }
    Ok(all)
}

//! `uvala daemon --replace`: takes over from the daemon that runs.
//!
//! ```text
//!   next daemon                         the daemon that runs
//!     hello, hand_over ───────────────►   same user, same protocol
//!     checks the state, starts its threads
//!     hand_over … ────────────────────►   copies of descriptors; it goes on
//!     hand_over_port … ───────────────►   copies of a client's port, likewise; maps its memory
//!     end ────────────────────────────►   stops workers, says where, saves, leaves lock and
//!                                         socket, ends
//!     lock, state, socket ◄───────────
//! ```
//!
//! Until `end`, the death of either changes nothing for the other. From then on the copies here are
//! the last ones, so the next daemon waits for the lock, for longer than any disk takes. An old
//! daemon that has not left it by then hangs, or is stopped, and still has its own copies. One that
//! has left it has no worker any more, and the kernel may take a while to unmap its memory: the
//! next daemon does not wait for that.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use client::control::{Connection, ControlError, unexpected};
use protocol::users::user_name;
use protocol::{ErrorCode, HandedOver, HandedPort, PageFrom, Reply, Request, SessionRequest};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use terminal::process::ends;
use terminal::say;

/// Time after which the log says that the next daemon still waits.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest wait for the end of the daemon that was told to end.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The descriptors of interfaces, and the names that say which ports they are of.
pub type Interfaces = Vec<(String, Vec<OwnedFd>)>;
/// What the daemon that has ended leaves: its interfaces, and a file about ports of clients.
pub type Legacy = (Interfaces, Option<OwnedFd>);

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
        match connection.hello("uvala daemon --replace") {
            Err(error @ ControlError::Timeout(_)) => {
                let cure = peer.pid.map(cure).unwrap_or_default();
                let what = format!("the daemon that runs is stopped, or hangs{cure}");
                return Err(error).context(what);
            }
            known => known?,
        };
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

    /// Takes its interfaces and its clients' ports, of which `add` is told; ends it, and waits
    /// until it has ended or `has_left`. Returns also the file in which it says where its workers
    /// have stopped, if it does.
    pub fn end(
        self,
        add: impl FnMut(HandedPort, Vec<OwnedFd>),
        has_left: impl Fn() -> bool,
    ) -> anyhow::Result<Legacy> {
        let interfaces = interfaces(&self.connection)?;
        ports(&self.connection, add);
        // Whether it has heard is not known after an error, so that waits, too.
        let told = self.connection.call_with_fds(Request::Session(SessionRequest::End));
        if let Err(error @ ControlError::Refused(_)) = told {
            return Err(error.into());
        }
        self.await_end(has_left, PATIENCE, LIMIT)?;
        Ok((interfaces, told.ok().and_then(|(_, mut fds)| fds.pop())))
    }

    /// Waits until it has left or ended, and says so now and then.
    fn await_end(
        &self,
        has_left: impl Fn() -> bool,
        patience: Duration,
        limit: Duration,
    ) -> anyhow::Result<()> {
        const LOOK: Duration = Duration::from_millis(1);
        let begin = Instant::now();
        let mut next_remark = begin + patience;
        while !matches!(ends(&self.process, LOOK), Ok(true)) && !has_left() {
            if begin.elapsed() >= limit {
                let (limit, cure) = (limit.as_secs(), cure(self.pid));
                bail!("the daemon that was told to end has not ended within {limit} s{cure}");
            }
            if Instant::now() >= next_remark {
                next_remark += patience;
                say::remark(format_args!("uvala: waiting for the end of process {}", self.pid));
            }
        }
        Ok(())
    }
}

/// Asks for the ports of clients. A daemon of a version that knows no such call has none.
fn ports(connection: &Connection, mut add: impl FnMut(HandedPort, Vec<OwnedFd>)) {
    let mut from = None;
    loop {
        let call = Request::Session(SessionRequest::HandOverPort(PageFrom { from }));
        let Ok((Reply::HandedPort(page), fds)) = connection.call_with_fds(call) else { return };
        if let Some(port) = page.items.into_iter().next() {
            add(port, fds);
        }
        let Some(next) = page.next else { return };
        from = Some(next);
    }
}

/// What ends a daemon that does not answer.
fn cure(pid: impl fmt::Display) -> String {
    format!(
        " (process {pid}); continue it (kill -CONT {pid}) or end it (kill -KILL {pid}), then \
             start this one again"
    )
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn test_a_process_that_does_not_end_is_waited_for_no_longer_than_the_limit() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        // No calls are made.
        let connection = Connection::from_fd(process.try_clone().unwrap(), Path::new("none"));
        let before = Predecessor { connection, pid, process };
        let pause = Duration::from_millis(1);
        let why = before.await_end(|| false, pause, 3 * pause).unwrap_err().to_string();
        assert!(why.contains(&format!("kill -CONT {pid}")) && why.contains("-KILL"), "{why}");
        before.await_end(|| true, PATIENCE, LIMIT).unwrap();
        child.kill().unwrap();
        before.await_end(|| false, PATIENCE, LIMIT).unwrap();
        child.wait().unwrap();
    }
}

//! Connections that have ended with a descriptor that their frontend has not read.
//!
//! The kernel counts descriptors on their way through sockets against the user of the daemon.
//! Beyond `RLIMIT_NOFILE` it lets the daemon send none (`ETOOMANYREFS`), to no frontend and no
//! client. So a connection has one at a time. One that ends stays here while the descriptor is on
//! its way, and until the port looks for its next frontend: a frontend could otherwise keep its end
//! and begin anew.
//!
//! ```text
//!            answer with a descriptor            the frontend reads it
//!  (settled) ───────────────────────► (owing) ─────────────────────────► (settled)
//!                                        │
//!                                        │ end of the connection
//!                                        ▼               the frontend reads it, or closes its end
//!                                     (unread) ────────────────────────────────────► (closed)
//! ```
//!
//! Each of them is charged to the port's user. The port admits no frontend while a charge is
//! lacking, or while there are [`UNREAD_MAX`] of them: a frontend that ends in earnest closes its
//! end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};

use crate::machine::RETRY_MS;
use crate::machine::quota::{Charge, Quota, Resource};
use crate::sys::unread::is_read;

/// The most such connections of a port.
pub(super) const UNREAD_MAX: usize = 4;

/// The connections of a port that have ended unread.
#[derive(Debug, Default)]
pub(super) struct Unread(Vec<Ended>);

/// A connection that has ended.
#[derive(Debug)]
struct Ended {
    socket: OwnedFd,
    /// `None`: the quota was used up.
    charge: Option<Charge>,
}

impl Unread {
    /// Takes over a connection that ends. The frontend sees its end at once.
    pub(super) fn keep(&mut self, socket: OwnedFd) {
        if is_read(&socket) {
            return;
        }
        let _ = shutdown(&socket, Shutdown::Both);
        self.0.push(Ended { socket, charge: None });
    }

    /// Closes the connections whose frontends have read all or have closed their ends, and charges
    /// the others. Returns whether the port may admit a frontend.
    pub(super) fn makes_room(&mut self, quota: &Arc<Quota>) -> bool {
        self.0.retain(|ended| !is_read(&ended.socket));
        for ended in self.0.iter_mut().filter(|ended| ended.charge.is_none()) {
            ended.charge = quota.take(Resource::Descriptors, 1).ok();
        }
        self.0.len() < UNREAD_MAX && self.0.iter().all(|ended| ended.charge.is_some())
    }

    /// Waits until none is left. A port that was deleted is charged for them, too.
    pub(super) fn outlast(&mut self, quota: &Arc<Quota>) {
        loop {
            self.makes_room(quota);
            if self.0.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(RETRY_MS.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::quota::Limits;
    use crate::sys::descriptors::fixture::send_beside;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Read;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    /// A connection with a descriptor in it, which has ended; returns the frontend's end.
    fn end_unread(unread: &mut Unread) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        let event = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors");
        send_beside(&ours, b"answer", &event, 1).expect("room");
        unread.keep(ours.into());
        theirs
    }

    #[test]
    fn a_connection_is_charged_until_its_frontend_reads_or_closes() {
        let quota = Quota::new(7, Limits { descriptors: 1, ..Limits::NONE });
        let mut unread = Unread::default();
        assert!(unread.makes_room(&quota));
        let mut first = end_unread(&mut unread);
        assert!(unread.makes_room(&quota), "one is charged");
        assert!(quota.take(Resource::Descriptors, 1).is_err());
        let second = end_unread(&mut unread);
        assert!(!unread.makes_room(&quota), "no charge is left for another");
        second.shutdown(Shutdown::Both).expect("connected");
        assert!(!unread.makes_room(&quota), "it can still be read");
        assert_eq!(first.read(&mut [0; 9]).expect("an answer"), 6);
        assert!(unread.makes_room(&quota), "the charge of the first is the second's");
        assert_eq!(first.read(&mut [0]).expect("the end"), 0);
        drop(second);
        assert!(unread.makes_room(&quota) && unread.0.is_empty());
        assert!(quota.take(Resource::Descriptors, 1).is_ok());
        unread.outlast(&quota);
    }

    #[test]
    fn a_port_has_few_unread_connections_whatever_its_quota() {
        let (quota, mut unread) = (Quota::new(0, Limits::NONE), Unread::default());
        let mut theirs = Vec::new();
        while unread.makes_room(&quota) {
            theirs.push(end_unread(&mut unread));
        }
        assert_eq!(theirs.len(), UNREAD_MAX);
        theirs.pop();
        assert!(unread.makes_room(&quota));
        let (ours, _theirs) = UnixStream::pair().expect("descriptors");
        unread.keep(ours.into());
        assert_eq!(unread.0.len(), UNREAD_MAX - 1, "nothing is in it");
    }
}

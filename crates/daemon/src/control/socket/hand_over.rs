//! Connections that go from a daemon to the next one: with the port that they hold.
//!
//! A call that has not been read yet is read by the next daemon: the kernel has it in the socket.

use std::os::fd::{AsFd, OwnedFd};

use protocol::{Page, Reply};

use super::{After, Server, sys};
use crate::control::Answer;
use crate::control::datapath::Datapath;
use crate::handed::Successor;
use crate::model::keys::ConnKey;

impl<D: Datapath> Server<D> {
    /// Adds its connection to a port that the answer hands over. One that owes is the daemon's
    /// account, so its client attaches again.
    pub(super) fn with_connection(&mut self, answer: Answer) -> Answer {
        let Some(ConnKey(key)) = self.control.take_handed() else { return answer };
        let connection = self.connections.get_mut(&key);
        let copy = connection.and_then(|connection| {
            let is_free = !connection.gone && connection.account(&mut self.unread, &self.epoll);
            is_free.then(|| connection.socket.try_clone().ok()).flatten()
        });
        match (answer, copy) {
            (Ok((reply, mut fds)), Some(copy)) => {
                fds.push(copy);
                Ok((reply, fds))
            }
            (Ok((Reply::HandedPort(Page { next, .. }), _)), None) => {
                Ok((Reply::HandedPort(Page { items: Vec::new(), next }), Vec::new()))
            }
            (answer, _) => answer,
        }
    }

    /// Goes on with the clients of the daemon before this one; returns how many attach again. The
    /// workers wait for them.
    pub fn succeed(&mut self, all: Vec<(OwnedFd, Successor)>) -> usize {
        let go_on = all.into_iter().map(|(socket, one)| self.succeed_one(socket, one));
        let lost = go_on.filter(Option::is_none).count();
        self.control.go_on();
        lost
    }

    /// Goes on with a client, or closes its connection.
    fn succeed_one(&mut self, socket: OwnedFd, one: Successor) -> Option<()> {
        let name = one.port.attach.port.clone();
        let caller = sys::caller(socket.as_fd(), ConnKey(self.next_key)).ok()?;
        let key = self.enter(socket, caller)?;
        let connection = self.connections.get_mut(&key)?;
        connection.client.name.clone_from(&one.port.client);
        let client = connection.client.clone();
        if let Err(why) = self.control.succeed(&client, one) {
            tracing::warn!("{name}: its client attaches again: {why}");
            self.close_if(After::Closes, key);
            return None;
        }
        Some(())
    }
}

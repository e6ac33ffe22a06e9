//! Connections that go from a daemon to the next one: with the port that they hold.
//!
//! A call that has not been read yet is read by the next daemon: the kernel has it in the socket.

use std::os::fd::AsFd;

use port::sys::ClosedElsewhere;
use protocol::{Page, Reply};

use super::{After, Server, sys};
use crate::control::Answer;
use crate::control::datapath::Datapath;
use crate::handed::{Clients, Successor};
use crate::model::keys::ConnKey;

/// A port that is not taken over.
struct LostPort {
    why: String,
    /// The connection of its client, if it has been entered: it is to be closed.
    entered: Option<u64>,
}

impl LostPort {
    fn of(why: &impl ToString, entered: Option<u64>) -> Self {
        Self { why: why.to_string(), entered }
    }
}

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
    pub fn succeed(&mut self, all: Clients) -> usize {
        let go_on = all.into_iter().map(|(socket, one)| {
            let name = one.port.attach.port.clone();
            let lost = self.succeed_one(socket, one).err()?;
            tracing::warn!("{name}: its client attaches again: {}", lost.why);
            Some(lost)
        });
        let lost: Vec<_> = go_on.flatten().collect();
        self.control.go_on();
        // The clients may make that slow, and the others wait no more.
        let entered: Vec<u64> = lost.iter().filter_map(|lost| lost.entered).collect();
        entered.into_iter().for_each(|key| self.close_if(After::Closes, key));
        lost.len()
    }

    /// Goes on with a client.
    fn succeed_one(&mut self, socket: ClosedElsewhere, one: Successor) -> Result<(), LostPort> {
        let caller = sys::caller(socket.get().as_fd(), ConnKey(self.next_key));
        let caller = caller.map_err(|error| LostPort::of(&error, None))?;
        let closer = socket.closer().clone();
        let key = self.enter(socket.into_inner(), caller).map_err(|socket| {
            closer.close(socket);
            LostPort::of(&"no memory to listen to it", None)
        })?;
        let connection = self.connections.get_mut(&key).expect("it has just been entered");
        connection.client.name.clone_from(&one.port.client);
        let client = connection.client.clone();
        self.control.succeed(&client, one).map_err(|error| LostPort::of(&error, Some(key)))
    }
}

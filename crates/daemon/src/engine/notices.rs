//! Notices of workers for the control thread: loops, and ports that switches have disabled.
//!
//! A worker sends a notice seldom, at most one for each switch in a millisecond: a loop is one
//! until it ends, and a disabled port is one until an operator enables it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use port::sys::Waker;
use switch::News;

/// What a worker says of the switch at a place.
#[derive(Debug)]
struct Sent {
    at: usize,
    news: News,
}

/// A worker's end.
#[derive(Debug)]
pub struct NoticeSender {
    notices: Sender<Sent>,
    bell: Arc<Waker>,
}

impl NoticeSender {
    /// Sends a notice about the switch at this place, and wakes the control thread.
    pub fn send(&self, at: usize, news: News) {
        if self.notices.send(Sent { at, news }).is_ok() {
            self.bell.wake();
        }
    }
}

/// The control thread's end.
#[derive(Debug)]
pub struct Notices {
    notices: Receiver<Sent>,
    sender: Sender<Sent>,
}

impl Default for Notices {
    fn default() -> Self {
        let (sender, notices) = channel();
        Self { notices, sender }
    }
}

impl Notices {
    /// The end for a worker, which rings this bell.
    pub fn sender(&self, bell: Arc<Waker>) -> NoticeSender {
        NoticeSender { notices: self.sender.clone(), bell }
    }

    /// What workers have sent since the last call: the place of a switch, and what happened there.
    pub fn take(&self) -> impl Iterator<Item = (usize, News)> + '_ {
        self.notices.try_iter().map(|Sent { at, news }| (at, news))
    }
}

//! Datagrams handed to the kernel, many in a call, and what becomes of those that it refuses.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use switch::{DropReason, Now};

use super::answers::Answers;
use super::networks::Networks;
use super::outbox::{Outbox, Run};
use super::remotes::Remotes;
use crate::sys::udp::{self, BATCH, Message, SEGMENTS_MAX};

/// What sending needs beside the frames.
pub(super) struct Way<'a> {
    pub networks: &'a Networks,
    pub remotes: &'a Remotes,
    /// Messages that the kernel may still refuse in this turn.
    pub failures: &'a mut u32,
    pub answers: &'a mut Answers,
    pub now: Now,
}

/// Sends runs in order, and notes what became of each.
pub(super) fn send_runs(
    socket: &OwnedFd,
    mut runs: &[Run],
    outbox: &mut Outbox,
    way: &mut Way<'_>,
) {
    while let Some((&first, others)) = runs.split_first() {
        let done = match send_some(socket, runs, outbox, way.remotes) {
            Ok(count) => {
                runs[..count].iter().for_each(|&run| outbox.note(run, Ok(())));
                count
            }
            Err(Errno::INTR) => 0,
            // If one finds no room, the next one does not either; and a turn has an end.
            Err(errno) if is_full(errno) || *way.failures == 0 => {
                runs.iter().for_each(|&run| outbox.note(run, Err(DropReason::NoRoom)));
                return;
            }
            Err(errno) => {
                *way.failures -= 1;
                give_up(socket, first, errno, outbox, way);
                1
            }
        };
        runs = if done == 1 { others } else { &runs[done..] };
    }
}

/// What is left to do about a run that the kernel refused: its frames may go one by one, and the
/// sender of one that is too long is told.
fn give_up(socket: &OwnedFd, run: Run, why: Errno, outbox: &mut Outbox, way: &mut Way<'_>) {
    // Too long for the path; or the kernel cannot cut it for this one.
    let may_be_cut = matches!(why, Errno::MSGSIZE | Errno::INVAL | Errno::IO);
    if run.split().is_some() && may_be_cut {
        return send_split(socket, run, outbox, way);
    }
    if why == Errno::MSGSIZE {
        let message = message(run, outbox, way.remotes);
        way.answers.answer_refused(message, way.networks, way.remotes, way.now);
    }
    outbox.note(run, Err(refused(why)));
}

fn is_full(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)
}

/// The drop reason for a message that the kernel refused.
fn refused(errno: Errno) -> DropReason {
    match errno {
        Errno::MSGSIZE => DropReason::TooLong,
        // No route, no neighbour, a firewall, no local address any more.
        _ => DropReason::LinkDown,
    }
}

/// Sends the frames of a run one by one.
fn send_split(socket: &OwnedFd, run: Run, outbox: &mut Outbox, way: &mut Way<'_>) {
    let mut parts = [run; SEGMENTS_MAX];
    let mut count = 0;
    for (place, part) in parts.iter_mut().zip(run.split().into_iter().flatten()) {
        *place = part;
        count += 1;
    }
    send_runs(socket, &parts[..count], outbox, way);
}

/// Sends the first of these runs, at least one; returns how many.
fn send_some(
    socket: &OwnedFd,
    runs: &[Run],
    outbox: &Outbox,
    remotes: &Remotes,
) -> Result<usize, Errno> {
    let mut messages = [message(runs[0], outbox, remotes); BATCH];
    messages.iter_mut().zip(runs).for_each(|(place, &run)| *place = message(run, outbox, remotes));
    udp::send(socket, &messages[..runs.len().min(BATCH)])
}

fn message<'a>(run: Run, outbox: &'a Outbox, remotes: &'a Remotes) -> Message<'a> {
    let (bytes, segment) = outbox.datagrams(run);
    // Remotes come and go between two batches.
    let to = remotes.target(run.remote).expect("it was there when the frame was pushed");
    Message { to, bytes, segment }
}

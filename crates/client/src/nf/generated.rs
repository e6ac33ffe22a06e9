//! Frames that a function sends beside those of the batch: held ones, and new ones.

use ring::abi::slot_flag;

use super::{Action, Metadata, OWN_BYTES};
use crate::{Error, Port, Tx};

/// A copy of a frame that goes on later, as the frame that it was.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// The frame.
    pub bytes: Vec<u8>,
    /// The frame's metadata.
    pub meta: Metadata,
    /// The functions' own bytes, where it had room for them.
    pub own: Option<[u8; OWN_BYTES]>,
}

/// Frames that a function sends beside those of the batch, behind it.
#[derive(Debug, Default)]
pub struct Generated {
    all: Vec<(Held, Action, usize)>,
    /// The place of the function that makes them now.
    by: usize,
}

impl Generated {
    /// Sends a copy of this as a new frame, which leaves by its address.
    pub fn send(&mut self, frame: &[u8]) {
        self.send_on(Held { bytes: frame.to_vec(), ..Held::default() });
    }

    /// Sends a frame that was held on in its chain.
    pub fn send_on(&mut self, held: Held) {
        self.send_as(held, Action::Next);
    }

    /// Sends a held frame with another action. A frame that is in no chain leaves by its address or
    /// by a port that is named; dropped, or held once more, it is gone.
    pub fn send_as(&mut self, held: Held, action: Action) {
        self.all.push((held, action.told(), self.by));
    }

    /// Takes what was to be sent.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.all.drain(..).map(|(held, ..)| held.bytes).collect()
    }

    /// Sends what another has, behind its own.
    pub fn append(&mut self, other: &mut Self) {
        self.all.extend(other.all.drain(..).map(|(held, action, _)| (held, action, self.by)));
    }

    /// The function at this place of the thread makes the next ones.
    #[inline]
    pub(super) fn by(&mut self, place: usize) {
        self.by = place;
    }
}

/// Sends what was made between two batches, after waiting for room.
///
/// # Errors
/// The daemon is gone, or a frame is too short or too long: the first of these, after the others
/// were sent.
pub fn send(port: &mut Port, mut made: Generated) -> Result<(), Error> {
    made.all.iter_mut().for_each(|(.., by)| *by = 0);
    send_all(std::slice::from_mut(port), made)
}

/// Sends what functions that share a thread made between two batches.
pub(super) fn send_all(ports: &mut [Port], made: Generated) -> Result<(), Error> {
    let mut send = |(held, action, by): &(Held, Action, usize)| match action {
        Action::Hold => Ok(()),
        Action::Drop if !held.meta.is_valid() => Ok(()),
        _ if !action.write_to(held.meta).is_valid() => ports[*by].send(&held.bytes),
        _ => send_on(ports[*by].parts().0.tx(0), held, *action),
    };
    let mut first = Ok(());
    for made in &made.all {
        let sent = send(made);
        first = first.and(sent);
    }
    first
}

/// Sends a frame on in its chain. What another daemon has said of a frame means nothing to this
/// one: such a frame is lost. That the daemon is gone, the next wait finds.
fn send_on(tx: &mut Tx, held: &Held, action: Action) -> Result<(), Error> {
    let frame = &held.bytes[..];
    let sent = tx.slots_for(frame.len()).and_then(|slots| {
        tx.wait(slots, None)?;
        if let Some(slots) = tx.put(0, frame)? {
            let more = if slots > 1 { slot_flag::MOREFRAG } else { 0 };
            let first = u16::try_from(frame.len().min(tx.stride())).unwrap_or(u16::MAX);
            tx.set(0, first, more | action.slot_flags());
            tx.set_mark(0, action.write_to(held.meta).word());
            put_own(tx.buffer(0), frame.len(), held.own);
            tx.submit(slots)?;
        }
        Ok(())
    });
    match sent {
        Err(Error::Lost(_)) => Ok(()),
        sent => sent,
    }
}

/// Writes the functions' own bytes, if the frame does not reach into them.
fn put_own(buffer: &mut [u8], len: usize, own: Option<[u8; OWN_BYTES]>) {
    let at = buffer.len().checked_sub(OWN_BYTES).filter(|&at| len <= at);
    if let (Some(at), Some(own)) = (at, own) {
        buffer[at..].copy_from_slice(&own);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Frame;
    use super::*;

    #[test]
    fn test_own_bytes_go_with_a_held_frame_where_both_buffers_have_room() {
        let mut buffer = [1; 80];
        let mut frame = Frame::new(&mut buffer);
        assert_eq!(frame.to_held().own, None, "it reaches into them");
        assert!(frame.resize(64));
        frame.own().unwrap().fill(7);
        let held = frame.to_held();
        assert_eq!((held.bytes.len(), held.own), (64, Some([7; OWN_BYTES])));
        for (size, has) in [(80, true), (100, true), (79, false), (64, false), (3, false)] {
            let mut other = vec![2; size];
            put_own(&mut other, held.bytes.len(), held.own);
            assert_eq!(other.ends_with(&[7; OWN_BYTES]), has, "{size}");
            assert!(other.iter().take(64).all(|byte| *byte == 2));
        }
    }
}

//! A cable between two switches: what one end is sent comes out of the other.
//!
//! ```text
//!   switch A ── end ═══ socket pair ═══ end ── switch B
//! ```
//!
//! The switches may run on two workers, and each watches its end as it watches a network interface.
//! A frame costs one `write` and one `read`; frames for which the socket has no room are dropped.
//! When one end is dropped, the other carries no more frames. A virtio-net header precedes each
//! frame, so that partial checksums and unsegmented frames cross a cable as they are.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;

use packet::offload::{Offloads, PendingOffload, VNET_LEN};
use ring::frame::FRAME_MAX;
use ring::intake::{FRAMES, Intake, STANDARD_FRAME};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair, sockopt};
use switch::receive::batch::{Batch, Delivery};
use switch::{Adapter, DropReason, Drops, Notify, Sent};

use crate::sys::PortBell;

/// The most bytes that wait in the cable, in each direction, if the limit allows it.
const ROOM: usize = 4 << 20;

/// One end of a cable.
#[derive(Debug)]
pub struct CableEnd {
    /// Closed when the other end is gone, so that the worker stops watching it.
    socket: Option<OwnedFd>,
    intake: Intake,
    read: Box<[u8]>,
    write: Vec<u8>,
}

/// Both ends of a new cable.
///
/// # Errors
/// `ENOMEM`, or too many files.
pub fn cable() -> io::Result<[CableEnd; 2]> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    Ok([CableEnd::new(a)?, CableEnd::new(b)?])
}

impl CableEnd {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        if sockopt::set_socket_send_buffer_size_force(&socket, ROOM).is_err() {
            sockopt::set_socket_send_buffer_size(&socket, ROOM)?;
        }
        let (read, write) = (vec![0; VNET_LEN + FRAME_MAX as usize].into(), Vec::new());
        Ok(Self { socket: Some(socket), intake: Intake::new(FRAMES, STANDARD_FRAME)?, read, write })
    }

    fn write(&mut self, batch: &Batch, delivery: Delivery) -> Result<usize, DropReason> {
        let socket = self.socket.as_ref().ok_or(DropReason::LinkDown)?;
        self.write.clear();
        self.write.extend(batch.offload(delivery).map_or([0; VNET_LEN], PendingOffload::bytes));
        batch.append(delivery, &mut self.write);
        if self.write.len() > self.read.len() {
            return Err(DropReason::TooLong);
        }
        loop {
            match send(socket, &self.write, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(self.write.len() - VNET_LEN),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(DropReason::LinkDown),
                Err(_) => return Err(DropReason::NoRoom),
            }
        }
    }
}

impl Adapter for CableEnd {
    fn recv(&mut self, batch: &mut Batch, drops: &mut Drops) {
        self.intake.clear();
        batch.restart(self.intake.region());
        let Some(socket) = &self.socket else { return };
        while batch.has_room() && self.intake.fits(FRAME_MAX as usize) {
            match rustix::io::read(socket, &mut self.read[..]) {
                Ok(len @ 1..) => {
                    let (head, frame) = self.read[..len].split_at(VNET_LEN);
                    let first = batch.frags().len();
                    self.intake.push(&[frame], batch.frags());
                    batch.push_received(first, u32::try_from(frame.len()).expect("a frame"));
                    let head = *head.first_chunk().expect("the other end writes it");
                    if let Ok(Some(left)) = PendingOffload::read(head, frame.len())
                        && batch.push_offload(left).is_err()
                    {
                        drops.add(DropReason::Offload, 1);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(0) | Err(_) => {
                    self.socket = None;
                    return;
                }
            }
        }
    }

    fn send(&mut self, batch: &Batch, list: &[Delivery]) -> Sent {
        Sent::each(list, |delivery| self.write(batch, delivery))
    }

    fn accepts(&self) -> Offloads {
        Offloads::ALL
    }
}

impl Notify for CableEnd {
    fn watch(&mut self, bell: &dyn Any) -> bool {
        PortBell::of(bell).watch_all(&self.socket)
    }

    fn unwatch(&mut self, bell: &dyn Any) {
        PortBell::of(bell).unwatch_all(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Doorbell;
    use switch::TagAction;

    /// A batch with frames of these lengths, each filled with its number.
    fn batch(intake: &mut Intake, lens: &[usize]) -> Batch {
        let mut batch = Batch::new(256);
        intake.clear();
        batch.restart(intake.region());
        for (i, len) in lens.iter().enumerate() {
            let first = batch.frags().len();
            intake.push(&[&vec![u8::try_from(i).expect("few"); *len]], batch.frags());
            batch.push_received(first, u32::try_from(*len).expect("short"));
        }
        batch
    }

    fn all(batch: &Batch) -> Vec<Delivery> {
        let count = u16::try_from(batch.frames().len()).expect("few");
        (0..count).map(|frame| Delivery { frame, tag: TagAction::Keep }).collect()
    }

    fn received(end: &mut CableEnd) -> Vec<Vec<u8>> {
        let mut batch = Batch::new(256);
        end.recv(&mut batch, &mut Drops::default());
        let bytes = |delivery| {
            let mut out = Vec::new();
            batch.append(delivery, &mut out);
            out
        };
        all(&batch).into_iter().map(bytes).collect()
    }

    #[test]
    fn frames_of_any_length_go_both_ways_in_order() {
        let [mut a, mut b] = cable().expect("descriptors");
        let mut intake = Intake::new(64, STANDARD_FRAME).expect("memory");
        let lens = [14, 60, 1514, 2112, 9000, 65535];
        let sent = batch(&mut intake, &lens);
        for _ in 0..2 {
            assert_eq!(a.send(&sent, &all(&sent)).delivered.frames, 6);
            let mut got = received(&mut b);
            got.extend(received(&mut b));
            assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), lens);
            assert!(
                got.iter().enumerate().all(|(i, frame)| frame.iter().all(|b| usize::from(*b) == i))
            );
            std::mem::swap(&mut a, &mut b);
        }
    }

    #[test]
    fn what_a_tag_makes_too_long_is_dropped_and_the_rest_goes_on() {
        let [mut a, mut b] = cable().expect("descriptors");
        let mut intake = Intake::new(64, STANDARD_FRAME).expect("memory");
        let longest = FRAME_MAX as usize;
        let sent = batch(&mut intake, &[longest]);
        let tag = TagAction::Insert(packet::VlanId::new(7).expect("one of them"));
        let list = [tag, TagAction::Keep].map(|tag| Delivery { frame: 0, tag });
        let Sent { delivered, drops } = a.send(&sent, &list);
        assert_eq!((delivered.frames, drops.get(DropReason::TooLong)), (1, 1));
        assert_eq!(received(&mut b).iter().map(Vec::len).collect::<Vec<_>>(), [longest]);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_an_end_that_is_gone_takes_nothing() {
        let [mut a, b] = cable().expect("descriptors");
        let mut intake = Intake::new(64, STANDARD_FRAME).expect("memory");
        let sent = batch(&mut intake, &[1514; 64]);
        let mut left = 1 << 16;
        let dropped = loop {
            let Sent { drops, .. } = a.send(&sent, &all(&sent));
            left -= 1;
            assert!(left > 0, "a socket holds what it holds");
            if drops.total() > 0 {
                break drops;
            }
        };
        assert_eq!(dropped.get(DropReason::NoRoom), dropped.total());
        drop(b);
        assert_eq!(a.send(&sent, &all(&sent)).drops.get(DropReason::LinkDown), 64);
        let bell = Doorbell::new().expect("descriptors").bell(1);
        assert!(received(&mut a).is_empty() && !a.watch(&bell));
    }
}

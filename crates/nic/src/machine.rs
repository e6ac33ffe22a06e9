//! A VMM that is connected.

use std::fmt::Display;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use vfio::{Client, Description, Device, Ended};

use crate::log::Log;
use crate::socket::Listener;

/// Requests of a VMM that are served before frames get their turn.
const REQUESTS: usize = 32;
/// Refusals of one VMM's requests that are logged.
const REFUSALS: u32 = 8;

/// The VMM of a device.
pub struct Machine<'a> {
    pub client: Client<'a>,
    refusals: u32,
}

impl<'a> Machine<'a> {
    /// Serves requests of the VMM.
    ///
    /// # Errors
    /// [`Ended`]: it has gone.
    pub fn serve(
        &mut self,
        device: &mut impl Device,
        log: &mut Log,
        now_ns: u64,
    ) -> Result<(), Ended> {
        let progress = self.client.serve(device, REQUESTS)?;
        if let Some(refused) = progress.refused
            && self.refusals < REFUSALS
        {
            self.refusals += 1;
            log.line(now_ns, format_args!("refused the VMM {}", refused.why));
        }
        Ok(())
    }

    /// What to wait for: its requests, or room for what it is told.
    pub fn watch(&self) -> PollFd<'_> {
        let flags = if self.client.wants_room() { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(self.client.as_fd(), flags)
    }

    /// A VMM connects. It takes the place of one that has said nothing yet, and no other.
    pub fn accept(
        now: &mut Option<Self>,
        listener: &Listener,
        description: &'a Description,
        mut tell: impl FnMut(&dyn Display),
    ) {
        let is_taken = |machine: &Self| machine.client.session().is_open();
        match listener.next() {
            Ok(Some(_)) if now.as_ref().is_some_and(is_taken) => {
                tell(&"another VMM was turned away: the device has one");
            }
            Ok(Some(socket)) => {
                tell(&"a VMM has connected");
                *now = Some(Self { client: Client::new(socket, description), refusals: 0 });
            }
            Ok(None) => {}
            Err(error) => {
                tell(&format_args!("a VMM cannot connect: {error}"));
                // The listener stays readable: no more attempts than this.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }
}

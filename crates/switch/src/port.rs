//! What the switch asks of a port.

use ring::host::HostPort;

use crate::batch::{Batch, Delivery};
use crate::stats::{Counters, Drops};

/// One port of a switch. Dispatch through this trait is dynamic, once per batch or run.
///
/// Ports whose frames lie in netmap rings hand them out through [`Port::rings`], and the switch
/// moves frames between two such ports without any call per frame. Other kinds adapt their own
/// queues to [`Batch`] in `recv` and `send`.
pub trait Port: Send {
    /// The port's rings, where it has native ones.
    fn rings(&mut self) -> Option<&mut HostPort> {
        None
    }

    /// Moves frames that have arrived into `batch`, as many as it has room for. Ports with native
    /// rings leave this to the switch.
    fn recv(&mut self, _batch: &mut Batch) {}

    /// Sends the listed frames, in order. What does not fit is dropped and counted. Ports with
    /// native rings leave this to the switch.
    fn send(&mut self, _batch: &Batch, _list: &[Delivery]) -> Sent {
        Sent::default()
    }

    /// Rings the peer's doorbell.
    fn kick(&mut self) {}

    /// Asks the peer to ring the worker's doorbell when it has something. The worker fences and
    /// looks at [`Port::pending`] before it sleeps.
    fn arm(&mut self) {}

    /// Takes that request back.
    fn disarm(&mut self) {}

    /// Is there anything to receive?
    fn pending(&mut self) -> bool {
        false
    }

    /// Must the worker run its process-wide barrier on this peer's behalf before it sleeps? See
    /// [`ring::doorbell`].
    fn is_light(&self) -> bool {
        false
    }

    /// How often the peer's rings had to be re-synchronised.
    fn resyncs(&self) -> u32 {
        0
    }

    /// Queues in each direction: how many rows of counters the port needs.
    fn queues(&self) -> usize {
        1
    }
}

/// What became of a list of frames.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Delivered.
    pub delivered: Counters,
    /// Not delivered.
    pub drops: Drops,
}

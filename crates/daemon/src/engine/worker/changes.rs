//! Changes that control makes to a worker, in jobs: switches, ports and mirrors come and go.

use std::time::Duration;

use packet::PortId;
use ring::leaver::Leaver;
use switch::{Adapter, GivenPort, Mirror, MirrorSource, Now, Plug, PortConfig, Switch};

use super::peers::Peers;
use super::{Plugged, Worker};

impl Worker {
    /// Puts a switch at `at`.
    pub fn add_switch(&mut self, at: usize, switch: Switch) {
        if self.switches.len() <= at {
            self.switches.resize_with(at + 1, || None);
        }
        assert!(self.switches[at].is_none(), "one switch at a place");
        self.switches[at] = Some(switch);
    }

    /// Removes the switch at `at`; its ports are gone already.
    pub fn remove_switch(&mut self, at: usize) -> Option<Switch> {
        self.switches[at].take()
    }

    /// The switch at `at`.
    ///
    /// # Panics
    /// If there is none.
    pub fn switch(&mut self, at: usize) -> &mut Switch {
        self.switches[at].as_mut().expect("control knows which switches there are")
    }

    /// Plugs a port in, which has this number at the doorbell.
    pub fn plug(&mut self, number: u32, switch: usize, id: PortId, plug: Plug, config: PortConfig) {
        self.switch(switch).add_port(id, plug, config);
        self.own(number, switch, id);
    }

    /// Takes frames from a port from here on, whose switch knows it.
    fn own(&mut self, number: u32, switch: usize, id: PortId) {
        let at = number as usize;
        if self.ports.len() <= at {
            self.ports.resize_with(at + 1, || None);
        }
        assert!(self.ports[at].is_none(), "one port for each number");
        let Self { switches, doorbell, shares, .. } = self;
        let mut switch_of = switches[switch].as_mut();
        let user = switch_of.as_ref().and_then(|switch| switch.bridge().user_of(id));
        let user = shares.join(user.unwrap_or_default());
        let plug = switch_of.as_mut().and_then(|switch| switch.plug_mut(id));
        let watched = plug.is_some_and(|plug| plug.watch(&doorbell.bell(number)));
        self.numbers.insert((switch, id), number);
        self.ports[at] = Some(Plugged {
            switch,
            id,
            user,
            active: false,
            watched,
            unwatched: false,
            busy: 0,
            quiet: 0,
            waits_for: None,
            longest: Duration::ZERO,
        });
        // Not armed yet: the first turns find what its client has published meanwhile.
        self.activate(number);
    }

    /// Wakes a client of this worker's after the next round, or when it may be woken.
    pub fn owe_wake(&mut self, switch: usize, id: PortId) {
        self.switch(switch).owe_wake(id);
        self.owing.push_back((switch, id));
    }

    /// Unplugs a port. Ports that wait for room at it find out that it is gone. The caller drops
    /// the plug and with it the memory, so that the worker does not spend the time.
    pub fn unplug(&mut self, number: u32) -> Option<Plug> {
        let port = self.disown(number)?;
        let plug = self.switch(port.switch).remove_port(port.id);
        debug_assert!(plug.is_some());
        plug
    }

    /// Takes no frames from a port any more, which its switch still knows.
    fn disown(&mut self, number: u32) -> Option<Plugged> {
        self.unblock(number);
        self.deactivate(number);
        self.blocked.retain(|(waiting, ..)| *waiting != number);
        let Self { ports, switches, doorbell, shares, .. } = self;
        let port = ports[number as usize].take()?;
        shares.leave(port.user);
        let plug = switches[port.switch].as_mut().and_then(|switch| switch.plug_mut(port.id));
        if let Some(plug) = plug.filter(|_| port.watched && !port.unwatched) {
            plug.unwatch(&doorbell.bell(number));
        }
        self.numbers.remove(&(port.switch, port.id));
        self.scratch.release();
        Some(port)
    }

    /// Gives a port to another worker. This one delivers to it from here on.
    pub fn give_port(&mut self, number: u32) -> Option<GivenPort> {
        let port = self.disown(number)?;
        self.switch(port.switch).give_port(port.id)
    }

    /// Takes a port over from another worker, under this number at the doorbell.
    pub fn take_port(&mut self, number: u32, switch: usize, id: PortId, given: GivenPort) {
        self.switch(switch).take_port(id, given);
        self.own(number, switch, id);
        // A kick for room may have come here before the port.
        self.unblock(number);
    }

    /// Replaces the adapter of a port; the switch keeps all that it knows of the port. Returns the
    /// old one, or the new one if the port is gone.
    pub fn replug(&mut self, number: u32, adapter: Box<dyn Adapter>) -> Box<dyn Adapter> {
        let Self { ports, switches, doorbell, .. } = self;
        let Some(Some(port)) = ports.get_mut(number as usize) else { return adapter };
        let switch = switches[port.switch].as_mut();
        let Some(plug) = switch.and_then(|switch| switch.plug_mut(port.id)) else { return adapter };
        let is_unwatched = std::mem::take(&mut port.unwatched);
        if port.watched && !is_unwatched {
            plug.unwatch(&doorbell.bell(number));
        }
        let old = plug.replace_adapter(adapter);
        port.watched = plug.watch(&doorbell.bell(number));
        self.scratch.release();
        self.activate(number);
        old
    }

    /// Adds a port of another worker, to which this one only delivers.
    pub fn add_elsewhere(&mut self, switch: usize, id: PortId, plug: Plug, config: PortConfig) {
        self.switch(switch).add_port(id, plug, config);
    }

    /// Removes a port of another worker. Ports that wait for room at it find out that it is gone.
    pub fn remove_elsewhere(&mut self, switch: usize, id: PortId) -> Option<Plug> {
        self.unblock_ring(switch, id);
        self.scratch.release();
        self.switch(switch).remove_port(id)
    }

    /// Adds a mirror of these ports to the switch at `switch`; returns the mirror's place.
    pub fn add_mirror(
        &mut self,
        switch: usize,
        mirror: Mirror,
        sources: Vec<(PortId, MirrorSource)>,
    ) -> usize {
        let place = self.switch(switch).add_mirror(mirror);
        for (id, source) in sources {
            self.switch(switch).mirror_port(id, place, source);
            // An armed port rings for the frames that it sends only.
            if let Some(&number) = self.numbers.get(&(switch, id)) {
                self.activate(number);
            }
        }
        place
    }

    /// Takes the leaver's buffers out of the rings of its group's other members, from this switch
    /// and port on, as many as fit between two turns. `Some`: the place to go on from.
    pub fn reconcile(&mut self, leaver: &Leaver, from: (usize, usize)) -> Option<(usize, usize)> {
        const WORK: u32 = 32_768;
        let (mut work, (first, mut port)) = (WORK, from);
        for (at, switch) in self.switches.iter().enumerate().skip(first) {
            if let Some(next) = switch.as_ref().and_then(|it| it.reconcile(leaver, port, &mut work))
            {
                return Some((at, next));
            }
            port = 0;
        }
        None
    }

    /// Makes the worker known to its peers, and them to it.
    pub fn join(&mut self, number: u32, peers: Peers) {
        (self.number, self.peers) = (number, peers);
    }

    /// Takes no frame after this job, so that another process can go on with the ports. What was
    /// published is delivered before, for some milliseconds: other ports end with the daemon.
    pub fn halt(&mut self) {
        /// The clients that go on wait meanwhile.
        const LIMIT: Duration = Duration::from_millis(5);
        self.drain(LIMIT);
        self.wait();
    }

    /// Takes no frame until [`Worker::go_on`].
    pub fn wait(&mut self) {
        self.waits = true;
    }

    /// Takes frames again.
    pub fn go_on(&mut self) {
        self.waits = false;
    }

    /// Ends the thread after this job.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// The time, as the switches count it.
    #[must_use]
    pub fn now(&self) -> Now {
        self.now
    }
}

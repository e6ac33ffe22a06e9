//! How a thread of functions waits: for frames of any of its ports and hops, or for room.

use std::time::Duration;

use ring::user::News;

use super::hops::{In, Ways};
use crate::link::Links;
use crate::wait::{WaitPolicy, Waits, wait};
use crate::{Error, Lost, Port, Rx, Tx};

/// How long a thread that has several functions waits for one of them: somebody else may wait for
/// room that another would make.
const NAP: Duration = Duration::from_millis(1);

/// How long it looks for the daemon of one of them before it serves the others again.
const AWAY: Duration = Duration::from_millis(10);

/// How long a thread of so many functions waits for room.
pub(super) fn patience(functions: usize) -> Option<Duration> {
    (functions > 1).then_some(NAP)
}

/// Waits until so many slots of the port and of each hop are free, or all if there are fewer; or
/// until there is news. `false`: `timeout` is over.
pub(super) fn for_room(
    port: &mut Port,
    count: u32,
    timeout: Option<Duration>,
) -> Result<bool, Error> {
    port.persist(timeout, |port, left| {
        let (sender, receiver, hops) = port.parts();
        let (link, policy) = (sender.link().clone(), sender.policy());
        let (links, ways) = (&hops.links, &mut hops.ways);
        let on = &mut Room { tx: sender.tx(0), ways, news: &receiver.news, count };
        wait(on, &Links { port: &link, hops: links }, policy, left)
    })
}

/// Waits for a frame, from the switch or by a hop, for news, or until there is something else to
/// do. `false`: `timeout` is over.
pub(super) fn for_frames(ports: &mut [Port], timeout: Option<Duration>) -> Result<bool, Error> {
    if let [port] = ports {
        let call = |port: &mut Port, left| for_frames_of(std::slice::from_mut(port), left);
        return port.persist(timeout, call);
    }
    let awaits = ports.iter().any(|port| port.hops.awaits());
    let nap = if awaits { NAP } else { AWAY };
    let nap = timeout.map_or(nap, |timeout| timeout.min(nap));
    match for_frames_of(ports, if awaits { Some(nap) } else { timeout }) {
        Ok(false) if awaits => {}
        Err(Error::Lost(Lost)) => {
            // Whoever has lost his daemon looks for it, and the others go on meanwhile.
            for port in ports {
                port.persist(Some(nap), |port, _| port.check().map_err(Error::from))?;
            }
        }
        result => return result,
    }
    Ok(timeout.is_none_or(|timeout| timeout > nap))
}

fn for_frames_of(ports: &mut [Port], timeout: Option<Duration>) -> Result<bool, Error> {
    let (mut all, mut links, mut policy) = (Vec::new(), Vec::new(), WaitPolicy::default());
    for port in ports {
        let (sender, receiver, hops) = port.parts();
        policy = sender.policy();
        let (doorbells, hops) = hops.sleepers();
        links.push(Links { port: sender.link(), hops: doorbells });
        all.push(Frames { news: &receiver.news, rings: &mut receiver.rings, hops });
    }
    match &links[..] {
        [one] => wait(&mut All(all), one, policy, timeout),
        several => wait(&mut All(all), several, policy, timeout),
    }
}

/// Room for frames.
struct Room<'a> {
    tx: &'a mut Tx,
    ways: &'a mut Ways,
    news: &'a News,
    count: u32,
}

impl Room<'_> {
    fn rings(&mut self) -> impl Iterator<Item = &mut Tx> {
        self.ways.rings().chain([&mut *self.tx])
    }
}

impl Waits for Room<'_> {
    fn ready(&mut self) -> bool {
        let count = self.count;
        self.news.is_new() || self.rings().all(|tx| tx.space() >= count.min(tx.capacity()))
    }

    fn arm(&mut self) -> bool {
        let count = self.count;
        let lacks = |tx: &mut Tx| tx.space() < count.min(tx.capacity()) && tx.arm(count);
        let waits = self.rings().fold(false, |waits, tx| lacks(tx) | waits) && !self.news.is_new();
        if !waits {
            self.disarm();
        }
        waits
    }

    fn disarm(&mut self) {
        self.rings().for_each(|tx| tx.ring().disarm());
    }

    fn new_resyncs(&mut self) -> u32 {
        self.tx.new_resyncs()
    }
}

/// A frame for one of the functions.
struct Frames<'a> {
    news: &'a News,
    rings: &'a mut [Rx],
    hops: &'a mut [In],
}

impl Frames<'_> {
    fn all(&mut self) -> impl Iterator<Item = &mut Rx> {
        self.rings.iter_mut().chain(self.hops.iter_mut().map(In::ring))
    }
}

/// A frame anywhere.
struct All<'a>(Vec<Frames<'a>>);

impl Waits for All<'_> {
    fn ready(&mut self) -> bool {
        self.0.iter_mut().any(|of| of.news.is_new() || of.all().any(|rx| rx.available() > 0))
    }

    fn arm(&mut self) -> bool {
        let armed = self.0.iter_mut().all(|of| of.all().all(Rx::arm) && !of.news.is_new());
        if !armed {
            self.disarm();
        }
        armed
    }

    fn disarm(&mut self) {
        self.0.iter_mut().flat_map(Frames::all).for_each(|rx| rx.stop_waiting());
    }

    fn new_resyncs(&mut self) -> u32 {
        let all = self.0.iter_mut().flat_map(|of| &mut *of.rings).map(Rx::new_resyncs);
        all.fold(0, u32::wrapping_add)
    }
}

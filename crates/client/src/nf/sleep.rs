//! How a thread of functions waits: for frames of any of its ports, or for room.

use std::time::Duration;

use ring::user::News;

use crate::wait::{WaitPolicy, Waits, wait};
use crate::{Error, Lost, Port, Rx, Tx};

/// How long a thread that has several functions waits for the room of one: others may have frames.
const NAP: Duration = Duration::from_millis(1);

/// How long such a thread looks for the daemon of one function before it serves the others again.
const AWAY: Duration = Duration::from_millis(10);

/// How long a thread of this many functions waits for room.
pub(super) fn patience(functions: usize) -> Option<Duration> {
    (functions > 1).then_some(NAP)
}

/// Waits until this many slots of the port are free, or all if there are fewer. `false`: `timeout`
/// is over.
pub(super) fn for_room(
    port: &mut Port,
    count: u32,
    timeout: Option<Duration>,
) -> Result<bool, Error> {
    port.persist(timeout, |port, left| {
        let (link, policy) = (port.sender.link().clone(), port.sender.policy());
        wait(&mut Room { tx: port.sender.tx(0), count }, &link, policy, left)
    })
}

/// Waits for a frame, or until other functions follow one of these. `false`: `timeout` is over.
pub(super) fn for_frames(ports: &mut [Port], timeout: Option<Duration>) -> Result<bool, Error> {
    if let [port] = ports {
        let call = |port: &mut Port, left| for_frames_of(std::slice::from_mut(port), left);
        return port.persist(timeout, call);
    }
    let nap = timeout.map_or(AWAY, |timeout| timeout.min(AWAY));
    match for_frames_of(ports, timeout) {
        Err(Error::Lost(Lost)) => {
            // A function whose daemon is gone looks for it, and the others go on meanwhile.
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
        let (sender, receiver, _) = port.parts();
        policy = sender.policy();
        links.push(sender.link().clone());
        all.push(Frames { news: &receiver.news, rings: &mut receiver.rings });
    }
    match &links[..] {
        [one] => wait(&mut All(all), one, policy, timeout),
        several => wait(&mut All(all), several, policy, timeout),
    }
}

/// Room for frames.
struct Room<'a> {
    tx: &'a mut Tx,
    count: u32,
}

impl Waits for Room<'_> {
    fn ready(&mut self) -> bool {
        self.tx.space() >= self.count.min(self.tx.capacity())
    }

    fn arm(&mut self) -> bool {
        !self.ready() && self.tx.arm(self.count)
    }

    fn disarm(&mut self) {
        self.tx.ring().disarm();
    }

    fn new_resyncs(&mut self) -> u32 {
        self.tx.new_resyncs()
    }
}

/// A frame for one of the functions.
struct Frames<'a> {
    news: &'a News,
    rings: &'a mut [Rx],
}

/// A frame anywhere.
struct All<'a>(Vec<Frames<'a>>);

impl All<'_> {
    fn rings(&mut self) -> impl Iterator<Item = &mut Rx> {
        self.0.iter_mut().flat_map(|of| &mut *of.rings)
    }

    fn has_news(&self) -> bool {
        self.0.iter().any(|of| of.news.is_new())
    }
}

impl Waits for All<'_> {
    fn ready(&mut self) -> bool {
        self.has_news() || self.rings().any(|rx| rx.available() > 0)
    }

    fn arm(&mut self) -> bool {
        let armed = self.rings().all(Rx::arm) && !self.has_news();
        if !armed {
            self.disarm();
        }
        armed
    }

    fn disarm(&mut self) {
        self.rings().for_each(|rx| rx.stop_waiting());
    }

    fn new_resyncs(&mut self) -> u32 {
        self.rings().map(Rx::new_resyncs).fold(0, u32::wrapping_add)
    }
}

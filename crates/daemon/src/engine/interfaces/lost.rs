//! Lost netlink events: another thread looks the interfaces up again.
//!
//! ```text
//!              netlink loses events               answers arrive
//!  (nothing) ──────────────────────► lost ──► asked ──────────► (nothing), or lost: netlink lost
//!                                      ▲        │ no thread                 more meanwhile
//!                                      └────────┘
//! ```
//!
//! The kernel answers only while no program changes an interface. That takes long when programs
//! change many of them, and just then netlink loses events. So a thread of its own asks: one at a
//! time, at most once in a second.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostif::netlink::{Event, Interface, Netlink};
use port::sys::Waker;

/// Least time between two lookups.
const PAUSE: Duration = Duration::from_secs(1);

/// An interface to look up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sought {
    /// An interface that was there, by its number.
    Number(u32),
    /// An interface that may have appeared, by its name.
    Name(String),
}

type Slot = Arc<Mutex<Option<Vec<Event>>>>;

/// Whether events were lost, and the lookup that is under way.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// Netlink has lost events since the last lookup began.
    is_lost: bool,
    asked: Option<Slot>,
    /// Interfaces with an event since the thread asked: the event is newer than the answer.
    heard: BTreeSet<u32>,
    last: Option<Instant>,
}

impl Lost {
    /// Notes that netlink has lost events.
    pub fn note(&mut self) {
        self.is_lost = true;
    }

    /// Whether a lookup is due and has not begun.
    pub fn waits(&self) -> bool {
        self.is_lost && self.asked.is_none()
    }

    /// Notes an event, which is newer than the answers of a lookup under way.
    pub fn hear(&mut self, event: &Event) {
        if self.asked.is_some() {
            self.heard.extend(event.index());
        }
    }

    /// Takes the answers of a finished lookup, without those that an event has overtaken.
    pub fn found(&mut self) -> Option<Vec<Event>> {
        let mut found =
            self.asked.as_ref()?.lock().expect("no thread panics with the lock").take()?;
        self.asked = None;
        let heard = std::mem::take(&mut self.heard);
        found.retain(|event| !event.index().is_some_and(|it| heard.contains(&it)));
        Some(found)
    }

    /// Begins a lookup if one is due; the thread rings `bell` when the answers are there.
    pub fn ask(
        &mut self,
        now: Instant,
        bell: &Arc<Waker>,
        sought: impl FnOnce() -> BTreeSet<Sought>,
    ) {
        let rests = self.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE);
        if !self.waits() || rests {
            return;
        }
        let (slot, sought, bell) = (Slot::default(), sought(), bell.clone());
        let answers = slot.clone();
        let body = move || {
            confine::narrow(confine::Thread::Looker);
            // Without a netlink socket, no answer: the state stays as it was.
            let found = look_up(&sought).unwrap_or_default();
            *answers.lock().expect("no thread panics with the lock") = Some(found);
            bell.wake();
        };
        self.last = Some(now);
        if std::thread::Builder::new().name("looker".to_owned()).spawn(body).is_ok() {
            (self.is_lost, self.asked) = (false, Some(slot));
        }
    }
}

fn look_up(sought: &BTreeSet<Sought>) -> io::Result<Vec<Event>> {
    let netlink = Netlink::open()?;
    let is = |found: Option<Interface>| found.map(Event::Is);
    let look = |it: &Sought| match it {
        Sought::Number(index) => {
            netlink.get(*index).ok().map(|found| is(found).unwrap_or(Event::Gone(*index)))
        }
        Sought::Name(name) => netlink.find(name).ok().and_then(is),
    };
    Ok(sought.iter().filter_map(look).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_is_asked_for_once_in_a_second_by_another_thread() {
        let (read, bell) = port::host::bell().expect("descriptors");
        let mut lost = Lost::default();
        let start = Instant::now();
        lost.ask(start, &bell, || panic!("nothing was lost"));
        lost.note();
        let number = Sought::Number;
        let sought = [number(1), number(999_998), number(999_999), Sought::Name("no-such".into())];
        lost.ask(start, &bell, || sought.clone().into());
        assert!(lost.asked.is_some() && !lost.waits());
        lost.hear(&Event::Gone(999_998));
        lost.note();
        lost.ask(start + 2 * PAUSE, &bell, || panic!("one at a time"));
        let found = loop {
            let mut ready = [rustix::event::PollFd::new(&read, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ready, None).expect("ours");
            if let Some(found) = lost.found() {
                break found;
            }
        };
        let [Event::Is(lo), Event::Gone(999_999)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((lo.name.as_str(), lost.found()), ("lo", None));
        assert!(lost.waits(), "more was lost meanwhile");
        lost.ask(start + PAUSE / 2, &bell, || panic!("not yet"));
        lost.ask(start + PAUSE, &bell, || sought.clone().into());
        assert!(lost.asked.is_some());
    }
}

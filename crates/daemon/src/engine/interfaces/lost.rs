//! Interfaces are looked up where it was lost what has happened to them.
//!
//! ```text
//!              events are lost                    found
//!  (nothing) ──────────────────► lost ──► asked ────────► (nothing), or lost: more were meanwhile
//!                                  ▲        │ no thread
//!                                  └────────┘
//! ```
//!
//! The kernel answers when nobody changes an interface, which takes long when many are changed, and
//! just then events are lost. So another thread asks, one at a time, and at most once in a second.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostif::netlink::{Event, Interface, Netlink};
use port::sys::Waker;
use switch::Wake;

/// Between two times that the kernel is asked.
const PAUSE: Duration = Duration::from_secs(1);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sought {
    /// One that was there.
    Number(u32),
    /// One that may have appeared.
    Name(String),
}

type Slot = Arc<Mutex<Option<Vec<Event>>>>;

/// What was lost, and is looked up.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// Something was, since it was asked for last.
    is_lost: bool,
    asked: Option<Slot>,
    /// Of which something was heard since it was asked: that is newer than what will be found.
    heard: BTreeSet<u32>,
    last: Option<Instant>,
}

impl Lost {
    /// Something was lost.
    pub fn note(&mut self) {
        self.is_lost = true;
    }

    /// Is there something to ask for still, but not now?
    pub fn waits(&self) -> bool {
        self.is_lost && self.asked.is_none()
    }

    /// Something was heard.
    pub fn hear(&mut self, event: &Event) {
        if self.asked.is_some() {
            self.heard.extend(event.index());
        }
    }

    /// What was found, once, where nothing newer was heard.
    pub fn found(&mut self) -> Option<Vec<Event>> {
        let mut found = self.asked.as_ref()?.lock().expect("nobody panics with it").take()?;
        self.asked = None;
        let heard = std::mem::take(&mut self.heard);
        found.retain(|event| !event.index().is_some_and(|it| heard.contains(&it)));
        Some(found)
    }

    /// Asks, if there is something to ask for and it is time; rings when the answers are there.
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
            // Without a socket, it is as it was.
            let found = look_up(&sought).unwrap_or_default();
            *answers.lock().expect("nobody panics with it") = Some(found);
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

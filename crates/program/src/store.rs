//! The maps of a program, which all workers that run it have in common.
//!
//! # Theory of operation
//!
//! ```text
//!   worker 0: Program ── Maps, places 0 and 2 ─┐
//!   worker 1: Program ── Maps, places 0 and 2 ─┼──► lock ──► map │ free │ map │ map
//!   control, at one of the workers ────────────┘              0            2     3
//! ```
//!
//! A run is a transaction: it sees the maps as they are at one moment, and changes them as if no
//! other run went on. So a program that is right for one worker is right for all. Most runs change
//! nothing, and share the lock. A run that comes to a change ends there, and begins again with the
//! lock for itself: until then it has done nothing that others see. A run takes no other lock, and
//! its steps are bounded; so is the time for which it keeps others waiting.
//!
//! A worker whose last run has changed maps, whether it ended well or in a fault, takes the lock
//! for itself without an attempt to share it. That saves the first attempt where each run writes,
//! and costs where writing and reading runs alternate: there, a run that only reads keeps all
//! others out, once after each that has written.
//!
//! While a program is replaced, some workers run the old one, and others the new one. Both have
//! their maps here, and those that they declare alike are the same ones: a program knows its maps
//! by their *places*.
//!
//! A switch of one worker has no lock.
//!
//! | word | writer | reader | ordering |
//! |---|---|---|---|
//! | `changes` | the worker with the lock | all | Relaxed: exact under the lock, else late |

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::maps::{Map, MapDef};

/// Maps, and places without one.
type Places = Vec<Option<Map>>;

/// A program's handle of maps.
#[derive(Debug)]
pub(crate) struct Maps {
    access: Access,
    /// Where each map of the program is.
    places: Vec<usize>,
    /// How often a map was changed.
    changes: Arc<AtomicU64>,
    /// The number of changes when the last run had the maps.
    seen: u64,
    /// The last run has changed a map.
    is_writer: bool,
}

#[derive(Debug)]
enum Access {
    /// The only handle there is. It is borrowed for a call of this module, and no longer.
    Sole(RefCell<Places>),
    /// One of several.
    Common(Arc<RwLock<Places>>),
}

/// The maps that a run may use.
pub(crate) enum Reach<'a> {
    /// Other runs read them, too.
    Read(&'a [Option<Map>]),
    /// No other run goes on.
    Alone(&'a mut [Option<Map>]),
}

/// What a run has done to the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The run has done nothing.
    Read,
    /// The run has changed them.
    Changed,
    /// The run would have changed them, and has ended before that.
    NeedsAlone,
}

impl Reach<'_> {
    #[inline(always)]
    pub(crate) fn map(&self, place: usize) -> Option<&Map> {
        let maps = match self {
            Self::Read(maps) => maps,
            Self::Alone(maps) => &**maps,
        };
        maps.get(place)?.as_ref()
    }
}

impl Maps {
    /// Empty maps. The seed of their hashes should be random.
    pub(crate) fn new(defs: &[MapDef], seed: u64) -> Self {
        let maps: Places = defs.iter().map(|def| Some(Map::new(def, seed))).collect();
        let places = (0..maps.len()).collect();
        let (access, changes) = (Access::Sole(maps.into()), Arc::default());
        Self { access, places, changes, seen: 0, is_writer: false }
    }

    /// Puts a lock around the maps, so that there may be [other handles](Self::handle).
    pub(crate) fn into_common(self) -> Self {
        match self.access {
            Access::Sole(maps) => {
                Self { access: Access::Common(Arc::new(RwLock::new(maps.into_inner()))), ..self }
            }
            Access::Common(_) => self,
        }
    }

    /// Another worker's handle.
    ///
    /// # Panics
    /// If the maps have no lock: see [`Maps::into_common`].
    pub(crate) fn handle(&self) -> Self {
        let Access::Common(lock) = &self.access else { panic!("maps without a lock: one handle") };
        let (access, places) = (Access::Common(lock.clone()), self.places.clone());
        Self { access, places, changes: self.changes.clone(), seen: 0, is_writer: false }
    }

    /// Takes over the maps of the program before that are declared alike. If all workers have
    /// these in common, the others stay, for workers that run that program still.
    pub(crate) fn adopt(&mut self, before: &mut Self) {
        self.changes = before.changes.clone();
        match (&mut self.access, &mut before.access) {
            (Access::Sole(mine), Access::Sole(theirs)) => {
                for map in mine.get_mut() {
                    let alike = |old: &&mut Option<Map>| is_alike(old.as_ref(), map.as_ref());
                    if let Some(old) = theirs.get_mut().iter_mut().find(alike) {
                        std::mem::swap(map, old);
                    }
                }
            }
            (Access::Common(mine), Access::Common(theirs)) => {
                if Arc::ptr_eq(mine, theirs) {
                    return;
                }
                let new =
                    std::mem::take(&mut *mine.write().unwrap_or_else(PoisonError::into_inner));
                *mine = theirs.clone();
                let mut maps = mine.write().unwrap_or_else(PoisonError::into_inner);
                // Also what is not needed has a place, and is freed by the sweep.
                let place = |map: Option<Map>| {
                    let mine = put(&mut maps, map);
                    let mut old = before.places.iter().copied();
                    let alike = |&at: &usize| is_alike(maps[at].as_ref(), maps[mine].as_ref());
                    old.find(alike).unwrap_or(mine)
                };
                self.places = new.into_iter().map(place).collect();
            }
            _ => panic!("a switch has one worker, or several"),
        }
    }

    /// Takes out the maps that no program has any more, because this one has replaced the others.
    pub(crate) fn sweep(&mut self) -> Vec<Map> {
        let places = &self.places;
        let Access::Common(lock) = &self.access else { return Vec::new() };
        let mut maps = lock.write().unwrap_or_else(PoisonError::into_inner);
        let others = maps.iter_mut().enumerate().filter(|(at, _)| !places.contains(at));
        others.filter_map(|(_, map)| map.take()).collect()
    }

    /// How often a map was changed.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// The number of changes when the last run had the maps.
    #[inline]
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Lets `run` use the maps, whose places it gets, once or twice. Returns what it returned at
    /// last, and whether it has changed a map.
    pub(crate) fn run<R>(
        &mut self,
        mut run: impl FnMut(Reach<'_>, &[usize]) -> (R, Touch),
    ) -> (R, bool) {
        if let (Access::Common(lock), false) = (&self.access, self.is_writer) {
            let maps = lock.read().unwrap_or_else(PoisonError::into_inner);
            let (result, touch) = run(Reach::Read(&maps), &self.places);
            if touch == Touch::Read {
                self.seen = self.changes.load(Ordering::Relaxed);
                return (result, false);
            }
            debug_assert!(touch == Touch::NeedsAlone, "it could not change them");
        }
        let (result, is_changed) = self.alone(|maps, places| {
            let (result, touch) = run(Reach::Alone(maps), places);
            debug_assert!(touch != Touch::NeedsAlone, "it had what it needs");
            (result, touch == Touch::Changed)
        });
        self.is_writer = is_changed;
        (result, is_changed)
    }

    /// Calls `change` with the maps and their places while no run goes on; it says whether it has
    /// changed one.
    fn alone<R>(&mut self, change: impl FnOnce(&mut Places, &[usize]) -> (R, bool)) -> (R, bool) {
        let mut guard;
        let maps = match &mut self.access {
            Access::Sole(maps) => maps.get_mut(),
            Access::Common(lock) => {
                guard = lock.write().unwrap_or_else(PoisonError::into_inner);
                &mut *guard
            }
        };
        let (result, is_changed) = change(maps, &self.places);
        // No other worker writes it: this one has the lock.
        self.seen = self.changes.load(Ordering::Relaxed) + u64::from(is_changed);
        self.changes.store(self.seen, Ordering::Relaxed);
        (result, is_changed)
    }

    /// Lets `run` use the maps as [`Maps::run`] does, and undoes what it changes. Others wait no
    /// longer than for a run.
    pub(crate) fn peek<R>(&self, mut run: impl FnMut(Reach<'_>, &[usize]) -> (R, Touch)) -> R {
        let places = &self.places;
        let (result, touch) = self.read(|maps| run(Reach::Read(maps), places));
        if touch == Touch::Read {
            return result;
        }
        let mut undone = |maps: &mut Places| {
            places.iter().for_each(|&at| maps[at].as_mut().expect(HAS).keep());
            let (result, _) = run(Reach::Alone(maps), places);
            places.iter().for_each(|&at| maps[at].as_mut().expect(HAS).undo());
            result
        };
        match &self.access {
            Access::Sole(maps) => undone(&mut maps.borrow_mut()),
            Access::Common(lock) => {
                undone(&mut lock.write().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Calls `change` with a map of the program while no run goes on.
    pub(crate) fn change<T, E>(
        &mut self,
        map: usize,
        change: impl FnOnce(&mut Map) -> Result<T, E>,
    ) -> Result<T, E> {
        let (changed, _) = self.alone(|maps, places| {
            let changed = change(maps[places[map]].as_mut().expect(HAS));
            let is_changed = changed.is_ok();
            (changed, is_changed)
        });
        changed
    }

    /// Calls `look` with a map of the program.
    pub(crate) fn look<R>(&self, map: usize, look: impl FnOnce(&Map) -> R) -> R {
        self.read(|maps| look(maps[self.places[map]].as_ref().expect(HAS)))
    }

    fn read<R>(&self, read: impl FnOnce(&Places) -> R) -> R {
        match &self.access {
            Access::Sole(maps) => read(&maps.borrow()),
            Access::Common(lock) => read(&lock.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// Why there is a map at a place.
const HAS: &str = "a program has its maps";

fn is_alike(one: Option<&Map>, other: Option<&Map>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.def() == other.def())
}

/// Puts a map into a free place, and returns this.
fn put(maps: &mut Places, map: Option<Map>) -> usize {
    let free = maps.iter().position(Option::is_none).unwrap_or(maps.len());
    if free == maps.len() {
        maps.push(None);
    }
    maps[free] = map;
    free
}

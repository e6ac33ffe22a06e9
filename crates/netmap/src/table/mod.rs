//! Which descriptors are ours: a table by number, read by every call of the program.
//!
//! # Theory of operation
//!
//! ```text
//!  fd 5 ─┐
//!        ├──► Entry   counts: 2 descriptors, 1 user   content: a netmap descriptor
//!  fd 9 ─┘            (dup, dup2: one entry)                   or an epoll set
//! ```
//!
//! Looking up takes no lock: load the slot, count oneself in as a user, look whether the slot still
//! says the same. Entries are never given back to the allocator, so a late look at one that was
//! closed meanwhile touches an entry, if a free one. The descriptor or user that takes the last
//! count away empties the entry; a call that is under way when another thread closes its descriptor
//! ends in peace.
//!
//! The table follows `close`, `dup` and their like. A child made by `vfork` shares this memory and
//! not the descriptors: what it closes is still open here, so its calls change nothing in the
//! table ([`Table::may_change`]). A child made by `fork` has a table of its own; threads that were
//! users do not exist there, and [`Table::after_fork`] forgets them.
//!
//! A descriptor that is closed behind our back (a raw system call) leaves a stale slot, which the
//! next call that makes a descriptor of that number puts right, if it comes through here.
//!
//! | word | writers | readers | ordering |
//! |---|---|---|---|
//! | a slot | calls that make, copy or close a descriptor | every call | AcqRel / Acquire |
//! | `Entry::counts` | every call | every call | Acquire to use, AcqRel to give back |
//! | `Entry::free` | the last user; its next taker | calls that make one | Release / AcqRel |

#![allow(unsafe_code)] // UNSAFETY: entries are shared by counting, not by the borrow checker.

pub mod epoll_set;

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::descriptor::Descriptor;
use crate::own;

pub use epoll_set::EpollSet;

/// What a descriptor of ours is.
#[derive(Debug)]
pub enum Kind {
    /// `/dev/netmap`.
    Netmap(Descriptor),
    /// An epoll set that netmap descriptors are in.
    Epoll(EpollSet),
}

/// One open file, however many descriptors name it.
#[derive(Debug)]
pub struct Entry {
    /// Descriptors in the upper half, users in the lower one.
    counts: AtomicU64,
    /// May be taken for another open file.
    free: AtomicBool,
    content: UnsafeCell<Option<Kind>>,
    /// The entry made before this one.
    next: *const Entry,
}

// SAFETY: `content` is written while `counts` is 0 and one thread has taken the entry or is about
// to free it, and only read by threads that are counted.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

const DESCRIPTOR: u64 = 1 << 32;
const USER: u64 = 1;

/// Descriptors of one page of the table.
const PAGE: usize = 1024;
/// Pages: numbers up to a million, the most that Linux gives by default.
const PAGES: usize = 1024;

type Page = [AtomicPtr<Entry>; PAGE];

/// The table.
#[derive(Debug)]
pub struct Table {
    pages: [AtomicPtr<Page>; PAGES],
    /// Slots that are not empty: 0 lets every call pass at once.
    used: AtomicU32,
    /// The entry made last.
    entries: AtomicPtr<Entry>,
    /// The process that the table belongs to.
    owner: AtomicU32,
}

/// The table of this process.
pub static TABLE: Table = Table {
    pages: [const { AtomicPtr::new(std::ptr::null_mut()) }; PAGES],
    used: AtomicU32::new(0),
    entries: AtomicPtr::new(std::ptr::null_mut()),
    owner: AtomicU32::new(0),
};

/// A use of an entry: as long as it lives, the entry's content does.
#[derive(Debug)]
pub struct Use(&'static Entry);

impl Use {
    /// The netmap descriptor, if it is one.
    #[inline]
    #[must_use]
    pub fn netmap(&self) -> Option<&Descriptor> {
        match self.kind() {
            Kind::Netmap(descriptor) => Some(descriptor),
            Kind::Epoll(_) => None,
        }
    }

    /// The epoll set, if it is one.
    #[must_use]
    pub fn epoll(&self) -> Option<&EpollSet> {
        match self.kind() {
            Kind::Netmap(_) => None,
            Kind::Epoll(set) => Some(set),
        }
    }

    /// Whether both name one open file.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }

    fn kind(&self) -> &Kind {
        // SAFETY: counted: no thread writes the content.
        unsafe { &*self.0.content.get() }.as_ref().expect("an entry in use is not empty")
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        self.0.give_back(USER);
    }
}

impl Entry {
    /// Counts a user in, unless no descriptor names the entry any more.
    #[inline]
    fn take(&self) -> bool {
        let mut counts = self.counts.load(Ordering::Relaxed);
        while counts >= DESCRIPTOR {
            // Acquire: pairs with the Release that put the content there.
            let new = (Ordering::Acquire, Ordering::Relaxed);
            match self.counts.compare_exchange_weak(counts, counts + USER, new.0, new.1) {
                Ok(_) => return true,
                Err(now) => counts = now,
            }
        }
        false
    }

    #[inline]
    fn give_back(&self, count: u64) {
        // AcqRel: what others did with the content comes before its end.
        if self.counts.fetch_sub(count, Ordering::AcqRel) == count {
            self.empty();
        }
    }

    #[cold]
    fn empty(&self) {
        // SAFETY: the last count is gone, and no thread takes an entry that is not free.
        let content = unsafe { &mut *self.content.get() };
        *content = None;
        self.free.store(true, Ordering::Release);
    }
}

impl Table {
    /// Whether the table holds no descriptor.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used.load(Ordering::Relaxed) == 0
    }

    /// What `fd` is, if it is one of ours.
    #[inline]
    #[must_use]
    pub fn get(&self, fd: RawFd) -> Option<Use> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(fd)?;
        loop {
            let at = slot.load(Ordering::Acquire);
            if at.is_null() {
                return None;
            }
            // SAFETY: entries live for ever.
            let entry = unsafe { &*at };
            if !entry.take() {
                // Closed between the two looks: the slot says so by now, or will soon.
                if std::ptr::eq(slot.load(Ordering::Acquire), at) {
                    return None;
                }
                continue;
            }
            let used = Use(entry);
            if std::ptr::eq(slot.load(Ordering::Acquire), at) {
                return Some(used);
            }
        }
    }

    /// Says what `fd` is from now on. `false`: there is no room for that number.
    pub fn insert(&self, fd: RawFd, kind: Kind) -> bool {
        let Some(slot) = self.slot_or_new(fd) else { return false };
        own::clear(fd);
        let entry = self.free_entry();
        // SAFETY: just taken: no counts, and no other thread may take it.
        unsafe { *entry.content.get() = Some(kind) };
        entry.counts.store(DESCRIPTOR, Ordering::Release);
        self.replace(slot, std::ptr::from_ref(entry).cast_mut());
        true
    }

    /// `to` names what `from` names, or nothing of ours.
    pub fn copy(&self, from: RawFd, to: RawFd) {
        let Some(used) = self.get(from) else { return self.remove(to) };
        let Some(slot) = self.slot_or_new(to) else { return };
        own::clear(to);
        used.0.counts.fetch_add(DESCRIPTOR, Ordering::Relaxed);
        self.replace(slot, std::ptr::from_ref(used.0).cast_mut());
    }

    /// `fd` is closed, or about to be.
    pub fn remove(&self, fd: RawFd) {
        own::clear(fd);
        if let Some(slot) = self.slot(fd) {
            self.replace(slot, std::ptr::null_mut());
        }
    }

    fn replace(&self, slot: &AtomicPtr<Entry>, new: *mut Entry) {
        let old = slot.swap(new, Ordering::AcqRel);
        match (old.is_null(), new.is_null()) {
            (true, false) => drop(self.used.fetch_add(1, Ordering::Relaxed)),
            (false, true) => drop(self.used.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        if !old.is_null() {
            // SAFETY: entries live for ever.
            unsafe { &*old }.give_back(DESCRIPTOR);
        }
    }

    #[inline]
    fn slot(&self, fd: RawFd) -> Option<&AtomicPtr<Entry>> {
        let fd = usize::try_from(fd).ok()?;
        let page = self.pages.get(fd / PAGE)?.load(Ordering::Acquire);
        // SAFETY: null, or a page that lives for ever.
        unsafe { page.as_ref() }.map(|page| &page[fd % PAGE])
    }

    fn slot_or_new(&self, fd: RawFd) -> Option<&AtomicPtr<Entry>> {
        let at = self.pages.get(usize::try_from(fd).ok()? / PAGE)?;
        if at.load(Ordering::Acquire).is_null() {
            let page: Box<Page> = Box::new([const { AtomicPtr::new(std::ptr::null_mut()) }; PAGE]);
            let (page, null) = (Box::into_raw(page), std::ptr::null_mut());
            if at.compare_exchange(null, page, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // SAFETY: ours alone: another thread has put its page there.
                drop(unsafe { Box::from_raw(page) });
            }
        }
        self.slot(fd)
    }

    /// An empty entry that belongs to the caller.
    fn free_entry(&self) -> &'static Entry {
        let reuse = |entry: &&'static Entry| {
            let (free, taken) = (true, false);
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            entry.free.compare_exchange(free, taken, order.0, order.1).is_ok()
        };
        if let Some(entry) = self.entries().find(reuse) {
            return entry;
        }
        let mut next = self.entries.load(Ordering::Acquire);
        let entry = Box::leak(Box::new(Entry {
            counts: AtomicU64::new(0),
            free: AtomicBool::new(false),
            content: UnsafeCell::new(None),
            next,
        }));
        loop {
            entry.next = next;
            let (new, order) = (&raw mut *entry, (Ordering::AcqRel, Ordering::Acquire));
            match self.entries.compare_exchange(next, new, order.0, order.1) {
                Ok(_) => return entry,
                Err(now) => next = now,
            }
        }
    }

    /// All entries there ever were.
    fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        let mut at = self.entries.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: null, or an entry, which lives for ever.
            let entry = unsafe { at.as_ref() }?;
            at = entry.next;
            Some(entry)
        })
    }

    /// The numbers from `first` to `last` whose slots are not empty.
    pub fn occupied(&self, first: u32, last: u32) -> impl Iterator<Item = RawFd> {
        let end = u32::try_from(PAGES * PAGE).expect("a million") - 1;
        let mut at = first;
        std::iter::from_fn(move || {
            while at <= last.min(end) {
                let fd = RawFd::try_from(at).ok()?;
                let Some(slot) = self.slot(fd) else {
                    // A page that is not there has nothing.
                    at = (at / 1024 + 1) * 1024;
                    continue;
                };
                at += 1;
                if !slot.load(Ordering::Relaxed).is_null() {
                    return Some(fd);
                }
            }
            None
        })
    }

    /// The table belongs to this process.
    pub fn own(&self) {
        self.owner.store(process(), Ordering::Relaxed);
    }

    /// Whether this process's descriptors are in the table: not those of a child made by `vfork`.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == process()
    }

    /// In the child of a `fork`: its only thread uses nothing.
    pub fn after_fork(&self) {
        self.own();
        for entry in self.entries() {
            let counts = entry.counts.load(Ordering::Relaxed);
            entry.counts.store(counts / DESCRIPTOR * DESCRIPTOR, Ordering::Relaxed);
            let has_content = counts >= DESCRIPTOR;
            // SAFETY: one thread; content changes only while there are no counts.
            let content = unsafe { &*entry.content.get() };
            if let Some(Kind::Netmap(descriptor)) = content.as_ref().filter(|_| has_content) {
                descriptor.after_fork();
            }
        }
    }
}

fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

//! Work in the background, for which no other thread waits: unmapping large memory, and closing.
//!
//! ```text
//!   control, workers ──► reclaimer: unmaps memory, closes what only the daemon has
//!         │                  └─ starts ─┐
//!         └──► line of a user ──► closer of the user: closes what its programs have, too
//! ```
//!
//! The last process to close a file takes it out of all epoll sets that it is in, and waits for the
//! lock of each. A program can watch in its own set what the daemon gave it, hold the lock of the
//! set for ever and close its copy, and then the thread that closes the daemon's hangs. So what a
//! user's programs may have, too, is closed by a thread of that user, which ends when the line is
//! empty. What waits in the line is counted ([`Closings`]), and control gives the user no more.
//!
//! While a daemon takes over from another one, no closer is started (`Workers::wait`).
//!
//! The reclaimer starts the closers, after each of its chores. If the system has no thread left,
//! the line waits until the reclaimer's next chore: no other thread may close instead.
//!
//! No thread waits for the reclaimer or a closer to end, not even when the daemon ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use port::sys::Closer;

use super::Workers;
use crate::control::datapath::closings::{Closings, Unclosed};

type Chore = Box<dyn FnOnce() + Send>;

/// A thread that does its chores in order, and ends with its last handle; and the closers of users.
#[derive(Clone)]
pub struct Reclaimer {
    chores: Sender<Chore>,
    closers: Arc<Closers>,
}

impl Reclaimer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No threads left.
    pub fn start() -> io::Result<Self> {
        let (sender, chores) = channel::<Chore>();
        let closers = Arc::<Closers>::default();
        let own = closers.clone();
        let body = move || {
            confine::narrow(confine::Thread::Opener);
            for chore in chores {
                chore();
                own.start_threads();
            }
        };
        std::thread::Builder::new().name("reclaimer".to_owned()).spawn(body)?;
        Ok(Self { chores: sender, closers })
    }

    /// Queues a chore for the thread. No peer can make it wait.
    pub fn run(&self, chore: impl FnOnce() + Send + 'static) {
        // Only a bug ends the thread, and then the chore with what it holds is dropped here.
        let _ = self.chores.send(Box::new(chore));
    }

    /// Queues a chore that programs of this user can make wait for ever.
    pub fn run_for(&self, user: u32, chore: impl FnOnce() + Send + 'static) {
        self.closers.queue(user, Box::new(chore));
        // After any chore, the reclaimer starts the threads that are missing.
        self.run(|| {});
    }

    /// Closes in the thread descriptors of files that only the daemon has.
    #[must_use]
    pub fn closer(&self) -> Closer {
        let reclaimer = self.clone();
        Closer::new(move |closing| reclaimer.run(closing))
    }

    /// Takes descriptors of files that programs of this user have, too, out of epoll sets of the
    /// daemon, and closes them.
    #[must_use]
    pub fn closer_for(&self, user: u32) -> Closer {
        let reclaimer = self.clone();
        Closer::new(move |closing| reclaimer.run_for(user, closing))
    }

    /// Starts no closers until [`let_closers_go`](Self::let_closers_go).
    pub fn hold_closers(&self) {
        self.closers.lines().are_held = true;
    }

    /// Starts those that are missing.
    pub fn let_closers_go(&self) {
        self.closers.lines().are_held = false;
        self.run(|| {});
    }

    /// How many chores of a user are not done yet, now and later; `None`: none now.
    #[must_use]
    pub fn undone(&self, user: u32) -> Option<Unclosed> {
        self.closers.lines().of.get(&user).map(|line| line.undone.clone())
    }

    /// Drops a value that holds `bytes` bytes: here if they are few, else in the thread.
    pub fn drop<T: Send + 'static>(&self, thing: T, bytes: usize) {
        if bytes >= LARGE {
            self.run(move || drop(thing));
        }
    }
}

/// Bytes from which on the thread drops them. Memory that is dropped here can be reserved again
/// at once.
const LARGE: usize = 32 << 20;

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").finish_non_exhaustive()
    }
}

/// Chores of users that have any, each done by a thread of the user.
#[derive(Default)]
struct Closers(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    /// By user.
    of: BTreeMap<u32, Line>,
    /// None of them gets a thread now.
    are_held: bool,
}

/// What one user's thread has to do. The line is there as long as the thread is.
#[derive(Default)]
struct Line {
    chores: VecDeque<Chore>,
    /// The length of `chores`, and the one that the thread is at.
    undone: Unclosed,
    has_thread: bool,
}

impl Lines {
    /// The users whose lines get a thread now.
    fn take_waiting(&mut self) -> Vec<u32> {
        let lines = self.of.iter_mut().filter(|(_, line)| !self.are_held && !line.has_thread);
        lines.map(|(&user, line)| (line.has_thread = true, user).1).collect()
    }
}

impl Closers {
    /// No thread holds the lock while it does a chore or starts a thread.
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, user: u32, chore: Chore) {
        let mut lines = self.lines();
        let line = lines.of.entry(user).or_default();
        line.undone.fetch_add(1, Ordering::Relaxed);
        line.chores.push_back(chore);
    }

    /// Starts the threads of lines that have none.
    fn start_threads(self: &Arc<Self>) {
        for user in self.lines().take_waiting() {
            let own = self.clone();
            let body = move || own.serve(user);
            if std::thread::Builder::new().name("closer".to_owned()).spawn(body).is_err()
                && let Some(line) = self.lines().of.get_mut(&user)
            {
                line.has_thread = false;
            }
        }
    }

    /// The thread of a user. It has the filter of the reclaimer, which starts it.
    fn serve(&self, user: u32) {
        while let Some((chore, undone)) = self.next(user) {
            chore();
            undone.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The next chore of a user; removes the line if there is none.
    fn next(&self, user: u32) -> Option<(Chore, Unclosed)> {
        let mut lines = self.lines();
        let line = lines.of.get_mut(&user)?;
        match line.chores.pop_front() {
            Some(chore) => Some((chore, line.undone.clone())),
            None => {
                lines.of.remove(&user);
                None
            }
        }
    }
}

impl Closings for Workers {
    fn unclosed(&self, user: u32) -> Option<Unclosed> {
        self.reclaimer.undone(user)
    }

    fn closer_for(&self, user: u32) -> Closer {
        self.reclaimer.closer_for(user)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Far more than a chore takes that nothing holds up.
    const LONG: Duration = Duration::from_secs(10);

    /// A reclaimer in which a chore of user 1 waits until the sender is dropped.
    fn held_up() -> (Reclaimer, Sender<()>) {
        let reclaimer = Reclaimer::start().expect("threads");
        let ((let_go, wait), (began, begins)) = (channel::<()>(), channel());
        reclaimer.run_for(1, move || {
            began.send(()).expect("listening");
            wait.recv().expect_err("nothing is sent");
        });
        begins.recv_timeout(LONG).expect("the user has a thread");
        (reclaimer, let_go)
    }

    /// Waits until a chore of a user is done; of none: of the daemon.
    fn is_done(reclaimer: &Reclaimer, user: Option<u32>) -> bool {
        let (done, wait) = channel();
        let chore = move || done.send(()).expect("listening");
        match user {
            None => reclaimer.run(chore),
            Some(user) => reclaimer.run_for(user, chore),
        }
        wait.recv_timeout(LONG).is_ok()
    }

    #[test]
    fn closers_that_are_held_do_their_chores_when_they_are_let_go() {
        let reclaimer = Reclaimer::start().expect("threads");
        reclaimer.hold_closers();
        let (done, wait) = channel();
        reclaimer.run_for(1, move || done.send(()).expect("listening"));
        // The reclaimer has looked for lines without a thread since.
        assert!(is_done(&reclaimer, None) && is_done(&reclaimer, None));
        assert!(wait.try_recv().is_err() && undone(&reclaimer, 1) == 1);
        reclaimer.let_closers_go();
        wait.recv_timeout(LONG).expect("it is done");
        assert!(is_empty_soon(&reclaimer, 1));
    }

    fn undone(reclaimer: &Reclaimer, user: u32) -> u32 {
        reclaimer.undone(user).map_or(0, |undone| undone.load(Ordering::Relaxed))
    }

    fn is_empty_soon(reclaimer: &Reclaimer, user: u32) -> bool {
        let end = Instant::now() + LONG;
        while reclaimer.undone(user).is_some() && Instant::now() < end {
            std::thread::yield_now();
        }
        reclaimer.undone(user).is_none()
    }

    #[test]
    fn a_chore_of_a_user_that_never_ends_holds_up_only_that_user() {
        let (reclaimer, let_go) = held_up();
        let (done, behind) = channel();
        reclaimer.run_for(1, move || done.send(()).expect("listening"));
        assert!(is_done(&reclaimer, None), "the daemon's own");
        assert!(is_done(&reclaimer, Some(2)), "another user's");
        assert_eq!((undone(&reclaimer, 1), behind.try_recv().is_err()), (2, true));
        drop(let_go);
        behind.recv_timeout(LONG).expect("in order");
        assert!(is_empty_soon(&reclaimer, 1) && is_empty_soon(&reclaimer, 2));
        assert!(is_done(&reclaimer, Some(1)), "the user gets another thread");
    }

    #[test]
    fn what_users_have_not_closed_is_counted_for_each() {
        let (reclaimer, let_go) = held_up();
        let counted = reclaimer.undone(1).expect("one");
        let files = (0..9).map(|_| std::fs::File::open("/dev/null").expect("descriptors"));
        let closer = reclaimer.closer_for(1);
        files.for_each(|file| closer.close(file));
        assert_eq!((undone(&reclaimer, 1), undone(&reclaimer, 2)), (10, 0));
        drop(let_go);
        assert!(is_empty_soon(&reclaimer, 1));
        assert_eq!(counted.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_waits_outlives_its_handle_and_nobody_waits_for_it() {
        let (reclaimer, let_go) = held_up();
        let (done, behind) = channel();
        reclaimer.run_for(1, move || done.send(()).expect("listening"));
        drop(reclaimer);
        drop(let_go);
        behind.recv_timeout(LONG).expect("the thread goes on");
    }
}

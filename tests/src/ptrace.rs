//! Stops one thread of another process, as a debugger does.

#![allow(unsafe_code)] // UNSAFETY: ptrace(2) is in no safe wrapper that we use.

use std::io::Error;
use std::ptr::null_mut;

/// A thread that stands still as long as this value lives. Belongs to the thread that made it.
#[derive(Debug)]
pub struct StoppedThread {
    thread: i32,
    /// The kernel takes ptrace calls of the tracing thread only.
    _here: std::marker::PhantomData<*mut ()>,
}

impl StoppedThread {
    /// Stops a thread of a process that this user may trace.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn stop(thread: u32) -> Self {
        let thread = i32::try_from(thread).expect("a thread's number");
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: neither request reads or writes our memory.
            let done = unsafe { libc::ptrace(request, thread, null_mut::<u8>(), null_mut::<u8>()) };
            assert_eq!(done, 0, "ptrace: {}", Error::last_os_error());
        }
        // SAFETY: no status is asked for.
        let stopped = unsafe { libc::waitpid(thread, null_mut(), libc::__WALL) };
        assert_eq!(stopped, thread, "waitpid: {}", Error::last_os_error());
        Self { thread, _here: std::marker::PhantomData }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // SAFETY: the thread goes on; our memory is not touched.
        unsafe {
            libc::ptrace(libc::PTRACE_DETACH, self.thread, null_mut::<u8>(), null_mut::<u8>())
        };
    }
}

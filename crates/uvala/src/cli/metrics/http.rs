//! A small server of one page, for scrapers.
//!
//! # Theory of operation
//!
//! ```text
//!   accept ──► at most 16 open; one more closes the oldest ──► a thread for each:
//!              head of at most 8 KiB, in 5 s ──► answer, in 5 s ──► close
//! ```
//!
//! Each client is hostile. It gets one answer: the server reads no body, keeps no connection, and
//! parses of the head no more than the first line and the `Host`. Slow clients lose their
//! connection to new ones, so they hold up no others for long. However many ask, the daemon is
//! asked at most four times a second: answers younger than that are shared.
//!
//! A web page can make its reader's browser ask a server on the reader's own machine, under a name
//! that the page's owner points there (DNS rebinding). So a server that listens on a loopback
//! address answers only to addresses and to `localhost`.

mod head;

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use head::{HEAD_MAX, Head, Status};
use terminal::place::{self, Place, is_own};

/// Connections that are open at once.
const OPEN_MAX: usize = 16;
/// Threads at once: those of open connections, and those that still wait for the daemon.
const THREADS_MAX: usize = 2 * OPEN_MAX;
/// The time that a client has for its request, and then for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// For so long an answer is as good as new.
const FRESH: Duration = Duration::from_millis(250);
/// After an accept that failed, usually for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The next connection. Its family does not matter from here on: reads, writes and time limits
    /// are the same calls.
    fn accept(&self) -> io::Result<UnixStream> {
        match self {
            Self::Tcp(listener) => Ok(OwnedFd::from(listener.accept()?.0).into()),
            Self::Unix(listener) => Ok(listener.accept()?.0),
        }
    }
}

/// The server.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    /// Where it listens: an address with the port that the system chose.
    place: Place,
}

impl Server {
    /// Listens there. A socket that no process listens at is replaced.
    pub fn bind(place: Place) -> io::Result<Self> {
        Ok(match place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                let place = Place::Tcp(listener.local_addr()?);
                Self { listener: Listener::Tcp(listener), place }
            }
            Place::Unix(path) => {
                let listener = Listener::Unix(place::bind_unix(&path)?);
                Self { listener, place: Place::Unix(path) }
            }
        })
    }

    /// Where it listens.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Serves what `ask` says, for ever. An error of it is answered with status 503.
    pub fn run(
        self,
        content_type: &'static str,
        ask: impl Fn() -> Result<String, String> + Send + Sync + 'static,
    ) {
        let checks_host = self.place.is_local() && matches!(self.place, Place::Tcp(_));
        let page = Arc::new(Source { ask, content_type, checks_host, last: Mutex::default() });
        let open = Arc::new(Open::default());
        for key in 0_u64.. {
            // Each thread has a handle. Those that wait for a daemon that does not answer do not
            // find that their connection was closed.
            while Arc::strong_count(&open) > THREADS_MAX {
                thread::sleep(REST);
            }
            let Ok(stream) = self.listener.accept() else {
                thread::sleep(REST);
                continue;
            };
            let (page, entry) = (page.clone(), Open::enter(&open, key, &stream));
            let serve = move || {
                let _entry = entry;
                // The client may be gone, which is no concern of others.
                let _ = page.serve(stream);
            };
            // Without a thread the connection closes with its closure.
            let _ = thread::Builder::new().name("client".to_owned()).spawn(serve);
        }
    }
}

/// The connections that are open, oldest first.
#[derive(Debug, Default)]
struct Open(Mutex<VecDeque<(u64, UnixStream)>>);

impl Open {
    /// Notes a connection until its entry goes, and closes the oldest if there are too many.
    fn enter(open: &Arc<Self>, key: u64, stream: &UnixStream) -> Entry {
        let mut all = lock(&open.0);
        if let Some((_, oldest)) = (all.len() >= OPEN_MAX).then(|| all.pop_front()).flatten() {
            // The thread of that connection finds it closed.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        if let Ok(stream) = stream.try_clone() {
            all.push_back((key, stream));
        }
        Entry { open: open.clone(), key }
    }
}

/// The place of a connection among those that are open.
struct Entry {
    open: Arc<Open>,
    key: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.open.0).retain(|(other, _)| *other != self.key);
    }
}

/// The metrics, or why there are none.
type Page = Result<Arc<String>, String>;

/// What is served.
struct Source<A> {
    ask: A,
    content_type: &'static str,
    /// The `Host` of a request has to be an address, or `localhost`.
    checks_host: bool,
    last: Mutex<Option<(Instant, Page)>>,
}

impl<A: Fn() -> Result<String, String>> Source<A> {
    fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        let head = read_head(&mut stream, Instant::now() + PATIENCE)?;
        let (status, body) = self.answer(head.as_deref());
        let is_head = head.as_ref().is_ok_and(|head| head.starts_with(b"HEAD "));
        let head = self.head(status, body.len());
        let body = if is_head { "" } else { &**body };
        let deadline = Instant::now() + PATIENCE;
        // One message, and no copy of the text, which is long.
        let mut message = [head.as_bytes(), body.as_bytes()].map(IoSlice::new);
        write_all(&mut stream, &mut message, deadline)?;
        stream.shutdown(Shutdown::Write)?;
        // A close with unread bytes resets the connection, and the client may lose the answer.
        drain(&mut stream, deadline);
        Ok(())
    }

    fn answer(&self, head: Result<&[u8], &Status>) -> (Status, Arc<String>) {
        let path = head.map_err(|status| *status).and_then(Head::parse).and_then(|head| {
            let is_allowed = !self.checks_host || head.host.is_none_or(is_own);
            if is_allowed { Ok(head.path) } else { Err(Status::MISDIRECTED) }
        });
        let said = |status: Status| (status, Arc::new(format!("{status}\n")));
        match path {
            Ok("/metrics") => match self.page() {
                Ok(text) => (Status::OK, text),
                Err(why) => (Status::UNAVAILABLE, Arc::new(why + "\n")),
            },
            Ok("/") => (Status::OK, Arc::new("uvala: the metrics are at /metrics\n".to_owned())),
            Ok(_) => said(Status::NOT_FOUND),
            Err(status) => said(status),
        }
    }

    /// The text, or why there is none. Another client may have asked for it a moment ago.
    fn page(&self) -> Page {
        let mut last = lock(&self.last);
        if let Some((_, page)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return page.clone();
        }
        let page = (self.ask)().map(Arc::new);
        *last = Some((Instant::now(), page.clone()));
        page
    }

    fn head(&self, status: Status, len: usize) -> String {
        let kind = self.content_type;
        let allow = if status == Status::NOT_ALLOWED { "Allow: GET, HEAD\r\n" } else { "" };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Connection: close\r\n\r\n"
        )
    }
}

/// Reads the head of a request; `Ok(Err(…))`: it is none.
fn read_head(stream: &mut UnixStream, deadline: Instant) -> io::Result<Result<Vec<u8>, Status>> {
    let (mut head, mut chunk) = (Vec::new(), [0; 1024]);
    loop {
        let Some(left) = left(deadline) else { return Ok(Err(Status::TIMEOUT)) };
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if count == 0 {
            return Ok(Err(Status::BAD));
        }
        // The end may stand across two reads.
        let from = head.len().saturating_sub(3);
        head.extend_from_slice(&chunk[..count]);
        if head[from..].windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            return Ok(Ok(head));
        }
        if head.len() > HEAD_MAX {
            return Ok(Err(Status::TOO_LARGE));
        }
    }
}

fn write_all(
    stream: &mut UnixStream,
    mut parts: &mut [IoSlice<'_>],
    deadline: Instant,
) -> io::Result<()> {
    while parts.iter().any(|part| !part.is_empty()) {
        let left = left(deadline).ok_or(io::ErrorKind::TimedOut)?;
        stream.set_write_timeout(Some(left))?;
        match stream.write_vectored(parts) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            written => IoSlice::advance_slices(&mut parts, written?),
        }
    }
    Ok(())
}

/// Reads what the client still sends, within limits.
fn drain(stream: &mut UnixStream, deadline: Instant) {
    const MOST: usize = 64 * 1024;
    let (mut chunk, mut read) = ([0; 1024], 0);
    while let Some(left) = left(deadline).filter(|_| read < MOST) {
        let _ = stream.set_read_timeout(Some(left.min(Duration::from_secs(1))));
        match stream.read(&mut chunk) {
            Ok(count @ 1..) => read += count,
            _ => return,
        }
    }
}

/// The time that is left, if any.
fn left(deadline: Instant) -> Option<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    // The kernel counts in microseconds, and zero means no limit.
    (left >= Duration::from_millis(1)).then_some(left)
}

/// What stands there is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

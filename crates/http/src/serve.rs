//! Connections: accepted, counted, ended.
//!
//! At most [`OPEN_MAX`] that were let in are open, and as many that were not: strangers, which have
//! shown no token yet. One more ends the oldest of its kind, so strangers cost no other caller its
//! connection. Callers with the user's own rights are let in at once. A caller has [`PATIENCE`] for
//! the head of each request, and between two of them.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use protocol::peer::Peer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::AbortHandle;
use tower::ServiceExt;

use crate::guard::{Caller, Visitor};
use crate::listen::Listener;

/// Connections of each kind that are open at once.
const OPEN_MAX: usize = 64;
/// The time for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head, with its number of fields.
const HEAD_MAX: usize = 16 * 1024;
const FIELDS_MAX: usize = 64;
/// After an accept that failed, usually for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// Serves connections.
#[derive(Debug)]
pub struct Server {
    router: Router,
    http: Builder,
    /// Oldest first.
    open: Mutex<Vec<(AbortHandle, Arc<Visitor>)>>,
}

impl Server {
    /// Serves what the router says.
    pub fn new(router: Router) -> Self {
        let mut http = Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
        http.max_buf_size(HEAD_MAX).max_headers(FIELDS_MAX);
        Self { router, http, open: Mutex::default() }
    }

    /// Accepts connections, for ever.
    pub async fn accept(self: Arc<Self>, listener: Listener) {
        loop {
            let accepted = match &listener {
                Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    self.clone().begin(stream, Caller::Unknown);
                }),
                Listener::Unix(listener) => listener.accept().await.and_then(|(stream, _)| {
                    let caller = caller(&stream)?;
                    self.clone().begin(stream, caller);
                    Ok(())
                }),
            };
            if accepted.is_err() {
                tokio::time::sleep(REST).await;
            }
        }
    }

    fn begin<I>(self: Arc<Self>, stream: I, caller: Caller)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let known = AtomicBool::new(caller == Caller::Own);
        let visitor = Arc::new(Visitor { caller, known });
        let server = self.clone();
        let connection = server.serve(stream, visitor.clone());
        self.note(tokio::spawn(connection).abort_handle(), visitor);
    }

    async fn serve<I>(self: Arc<Self>, stream: I, visitor: Arc<Visitor>)
    where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let service = service_fn(|mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(visitor.clone());
            let router = self.router.clone();
            async move { Ok::<_, Infallible>(router.oneshot(request).await.unwrap_or_default()) }
        });
        // The client may be gone, which is no concern of others.
        let _ = self.http.serve_connection(TokioIo::new(stream), service).await;
    }

    /// Notes a connection, and ends the oldest ones of a kind that has too many. A stranger that
    /// was let in meanwhile is none any more.
    fn note(&self, connection: AbortHandle, visitor: Arc<Visitor>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(connection, _)| !connection.is_finished());
        open.push((connection, visitor));
        let mut left = [OPEN_MAX; 2];
        for (connection, visitor) in open.iter().rev() {
            let left = &mut left[usize::from(visitor.known.load(Ordering::Relaxed))];
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => connection.abort(),
            }
        }
    }
}

/// The user that has connected, as the kernel noted it then.
fn caller(stream: &UnixStream) -> io::Result<Caller> {
    let user = Peer::of(stream)?.uid;
    let is_own = user == 0 || user == rustix::process::geteuid().as_raw();
    Ok(if is_own { Caller::Own } else { Caller::Foreign(user) })
}

#[cfg(test)]
mod tests {
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    #[test]
    fn strangers_end_strangers_and_no_connection_that_was_let_in() {
        let ended =
            |all: &[JoinHandle<()>]| all.iter().take_while(|task| task.is_finished()).count();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let server = Server::new(Router::new());
            let open = |is_known| {
                let task = tokio::spawn(std::future::pending::<()>());
                let known = AtomicBool::new(is_known);
                let visitor = Visitor { caller: Caller::Unknown, known };
                server.note(task.abort_handle(), Arc::new(visitor));
                task
            };
            // What was ended is seen when the runtime has had its turns.
            let settle = async || {
                for _ in 0..OPEN_MAX {
                    yield_now().await;
                }
            };
            let known: Vec<_> = (0..OPEN_MAX).map(|_| open(true)).collect();
            let strangers: Vec<_> = (0..OPEN_MAX + 2).map(|_| open(false)).collect();
            settle().await;
            assert_eq!((ended(&known), ended(&strangers)), (0, 2));
            open(true);
            settle().await;
            assert_eq!((ended(&known), ended(&strangers)), (1, 2));
        });
    }
}

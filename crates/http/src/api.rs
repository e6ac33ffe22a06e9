//! The API: each operation is one call of the control API, with its types in JSON.
//!
//! ```text
//!   GET /v1/switches/vale0/fdb?from=7  ──►  FdbList { switch: vale0, from: 7 }
//!   path and query are its fields           its reply, without the name in front, is the answer
//! ```
//!
//! Listings come in pages as the daemon makes them, so no answer is larger than one of its
//! messages. The description of the operations stands beside them, and that of the types is made
//! of the types (`protocol`, feature `schema`).

mod calls;
mod daemon;
pub mod document;
mod ports;
mod programs;
mod steering;
mod switches;

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use client::control::{Connection, ControlError};
use protocol::{PortRequest, Reply, Request, SwitchRequest};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;

use crate::history::History;
use crate::problem::Problem;

/// Calls that wait for the daemon at once; more of them wait for these.
pub const CALLS_MAX: usize = 16;
/// The program, as the daemon's log and listings name it.
pub const CLIENT: &str = concat!("uvala-http ", env!("CARGO_PKG_VERSION"));
/// Answers without an end at once.
pub const STREAMS_MAX: usize = 32;
/// Captures at once. Each has a thread, and a ring of the daemon's.
pub const CAPTURES_MAX: usize = 4;

/// What operations need.
#[derive(Debug)]
pub struct Api {
    /// Directory of the daemon's socket, if it was chosen.
    pub dir: Option<PathBuf>,
    /// A permit for each call that waits for the daemon.
    calls: Arc<Semaphore>,
    /// A permit for each answer without an end.
    pub streams: Arc<Semaphore>,
    /// A permit for each capture.
    pub captures: Arc<Semaphore>,
    /// The last hour.
    pub history: History,
}

/// State that all operations share.
pub type Shared = Arc<Api>;
/// How an operation ends.
pub type Answer = Result<Response, Problem>;

/// The operations, without those that stream.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(document::head())
        .merge(daemon::operations())
        .merge(switches::operations())
        .merge(steering::operations())
        .merge(programs::operations())
        .merge(ports::operations())
        .merge(calls::operations())
}

impl Api {
    /// For the daemon whose socket is in `dir`, or where clients look for it.
    pub fn new(dir: Option<PathBuf>) -> Self {
        let limits = [CALLS_MAX, STREAMS_MAX, CAPTURES_MAX];
        let [calls, streams, captures] = limits.map(|most| Arc::new(Semaphore::new(most)));
        Self { dir, calls, streams, captures, history: History::default() }
    }

    /// Makes a call, by a connection of its own.
    pub async fn call(&self, request: Request) -> Result<Reply, Problem> {
        if belongs_to_a_connection(&request) {
            let detail = "this call is for a connection to the control socket, which ends with the \
                          request; use a client library, or GET /v1/events";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unsupported", detail));
        }
        self.connect(move |connection| connection.call(request)).await
    }

    /// Makes a call, and answers what the daemon does.
    pub async fn answer(&self, request: Request) -> Answer {
        self.call(request).await.map(|reply| answer(&reply))
    }

    /// Makes a call that adds something, which is then at `place`.
    pub async fn create(&self, request: Request, place: String) -> Answer {
        self.call(request).await?;
        let place = HeaderValue::try_from(place);
        let place = place.map_err(|error| Problem::bad_request(error.to_string()))?;
        Ok((StatusCode::CREATED, [(LOCATION, place)]).into_response())
    }

    /// Does something with a connection of its own. That waits for the daemon, so a thread beside
    /// does it.
    pub async fn connect<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, Problem> {
        self.open(what).await.map(|(_, done)| done)
    }

    /// Does something with a new connection, and hands both over.
    pub async fn open<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<(Connection, T), Problem> {
        let dir = self.dir.clone();
        let work = move || {
            let connection = Connection::open(dir.as_deref())?;
            connection.hello(CLIENT)?;
            let done = what(&connection)?;
            Ok((connection, done))
        };
        self.block(work).await?.map_err(|error: ControlError| error.into())
    }

    /// Does what blocks in a thread beside, with a permit.
    pub async fn block<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let ended = |_| Problem::busy("the server ends; ask the next one");
        // A caller that goes while it waits here leaves nothing to do behind.
        let permit = self.calls.clone().acquire_owned().await.map_err(ended)?;
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        done.await.map_err(|_| Problem::busy("the call failed; ask again"))
    }
}

/// Whether what the call does ends with its connection.
fn belongs_to_a_connection(request: &Request) -> bool {
    match request {
        Request::Session(_) | Request::Switch(SwitchRequest::Draft(_)) => true,
        Request::Port(PortRequest::Add(add)) => add.machine.as_ref().is_some_and(|it| it.held),
        _ => false,
    }
}

/// A reply without its name in front.
fn answer(reply: &Reply) -> Response {
    match serde_json::to_value(reply) {
        Ok(Value::Object(named)) if named.len() == 1 => named.values().next().map(json),
        _ => None,
    }
    .unwrap_or_else(|| StatusCode::NO_CONTENT.into_response())
}

/// JSON as an answer.
pub fn json(value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

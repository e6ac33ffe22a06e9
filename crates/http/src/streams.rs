//! Answers without an end, as server-sent events.
//!
//! ```text
//!   /v1/events         the daemon sends what changes, by a connection for each listener
//!   /v1/stats/stream   the server asks for counters, once a second for each listener
//! ```
//!
//! The data of a message is JSON. A message of type `problem` says why nothing comes: counters go
//! on when the daemon is back, events end. A listener that reads slowly gets fewer counters, which
//! are totals; for events, a message of type `lost` has the number of those that are missing.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event as Message, KeepAlive, Sse};
use client::control::Connection;
use futures_util::stream::{Stream, unfold};
use protocol::{Event, Events, EventsQuery, StatsPage, StatsQuery};
use serde::Serialize;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{Answer, Api, STREAMS_MAX, Shared};
use crate::counters;
use crate::extract::Parameters;
use crate::problem::Problem;

/// The time between two looks at counters.
const PERIOD: Duration = Duration::from_secs(1);

fn permit(api: &Api) -> Result<OwnedSemaphorePermit, Problem> {
    let busy = |_| Problem::busy(format!("{STREAMS_MAX} streams are open; close one"));
    api.streams.clone().try_acquire_owned().map_err(busy)
}

/// The operations that stream events and counters.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(events)).routes(routes!(stats))
}

/// Says what changes, as it changes. The data of a message is an Event.
#[utoipa::path(
    get, path = "/v1/events", tag = "streams",
    params(("switch" = Option<String>, Query)),
    responses((status = 200, content_type = "text/event-stream", body = Event))
)]
async fn events(State(api): State<Shared>, Parameters(query): Parameters<EventsQuery>) -> Answer {
    let permit = permit(&api)?;
    let listener = Listener::start(&api, query, permit).await?;
    Ok(answer(unfold(listener, |mut listener| async {
        listener.next().await.map(|message| (Ok(message), listener))
    })))
}

/// Shows counters every second; rates are what two of them differ in the time `at_ns` between. The
/// data of a message is a StatsPage of all ports.
#[utoipa::path(
    get, path = "/v1/stats/stream", tag = "streams", operation_id = "counters",
    params(("switch" = Option<String>, Query), ("port" = Option<String>, Query)),
    responses((status = 200, content_type = "text/event-stream", body = StatsPage))
)]
async fn stats(State(api): State<Shared>, Parameters(query): Parameters<StatsQuery>) -> Answer {
    let permit = permit(&api)?;
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let sampler = Sampler { api, query, ticks, _permit: permit };
    Ok(answer(unfold(sampler, |mut sampler| async {
        let message = sampler.next().await;
        Some((Ok(message), sampler))
    })))
}

/// Messages as an answer.
pub fn answer(
    messages: impl Stream<Item = Result<Message, Infallible>> + Send + 'static,
) -> axum::response::Response {
    Sse::new(messages).keep_alive(KeepAlive::default()).into_response()
}

/// A message with this data, in JSON.
pub fn message(data: &impl Serialize) -> Message {
    Message::default().data(serde_json::to_string(data).unwrap_or_default())
}

/// Asks for counters.
struct Sampler {
    api: Shared,
    query: StatsQuery,
    ticks: Interval,
    _permit: OwnedSemaphorePermit,
}

impl Sampler {
    async fn next(&mut self) -> Message {
        self.ticks.tick().await;
        let query = self.query.clone();
        match self.api.connect(|connection| counters::all(connection, query)).await {
            Ok(page) => message(&page),
            Err(problem) => message(&problem).event("problem"),
        }
    }
}

/// Listens to the daemon.
struct Listener {
    connection: Connection,
    /// A copy of its socket, to wait for the daemon. Its type does not matter for that.
    socket: UnixStream,
    messages: VecDeque<Message>,
    /// The connection has ended.
    is_over: bool,
    _permit: OwnedSemaphorePermit,
}

impl Listener {
    async fn start(
        api: &Api,
        query: EventsQuery,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, Problem> {
        let (connection, ()) = api.open(|connection| connection.listen(query)).await?;
        let lost = |error: io::Error| Problem::busy(format!("cannot listen: {error}"));
        let socket = watch(&connection).map_err(lost)?;
        let messages = VecDeque::new();
        Ok(Self { connection, socket, messages, is_over: false, _permit: permit })
    }

    /// The next message; `None` after the last.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Some(message);
            }
            if self.is_over {
                return None;
            }
            self.receive().await;
        }
    }

    async fn receive(&mut self) {
        self.is_over |= self.socket.readable().await.is_err();
        let heard = self.socket.try_io(Interest::READABLE, || {
            match self.connection.events(Duration::ZERO) {
                // The runtime waits again.
                Ok(none) if none == Events::default() => Err(io::ErrorKind::WouldBlock.into()),
                heard => Ok(heard),
            }
        });
        match heard {
            Ok(Ok(Events { lost, events })) => {
                self.messages.extend((lost > 0).then(|| message(&lost).event("lost")));
                self.messages.extend(events.iter().map(message));
            }
            Ok(Err(error)) => {
                self.is_over = true;
                self.messages.push_back(message(&Problem::from(error)).event("problem"));
            }
            Err(_) => {}
        }
    }
}

fn watch(connection: &Connection) -> io::Result<UnixStream> {
    let socket = std::os::unix::net::UnixStream::from(connection.as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

//! Frames of a port as they pass, as server-sent events.
//!
//! ```text
//!   daemon ──ring──► a thread: filter, decode ──queue──► a caller
//!            full: missed             too many, full: lost
//! ```
//!
//! Each caller has a capture of its own, as `uvala capture` makes one. The thread looks at what has
//! arrived once in a [`TURN`], so a fast port costs it no more than that. The frames that are left
//! out are counted, at each stage, and a message of type `lost` has their number. The capture ends
//! with its caller: the daemon then copies no more.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::Event as Message;
use client::Stop;
use client::capture::{Capture, Captured};
use client::filter::Filter;
use futures_util::stream::unfold;
use packet::MacAddr;
use packet::ethernet::Header;
use packet::summary::summary;
use protocol::name::PortName;
use protocol::{CaptureOf, Direction};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::{Answer, CAPTURES_MAX, Shared};
use crate::extract::Parameters;
use crate::problem::Problem;
use crate::streams::{answer, message};
use crate::tokens::Right;

/// The time between two looks at the ring, and the frames that are sent of each.
const TURN: Duration = Duration::from_millis(20);
const SENT_MAX: u32 = 20;
/// Slots of the ring: frames of one turn.
const SLOTS: u32 = 1024;
/// Messages that a slow caller may leave waiting.
const QUEUE: usize = 256;
/// How often the switch is asked how many frames it had no room for.
const ASK: Duration = Duration::from_secs(1);
/// The longest filter: libpcap's compiler takes long for longer ones.
const FILTER_MAX: usize = 512;

/// The operation that streams the frames of a port.
pub fn operations() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(frames))
}

/// What a caller asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FramesQuery {
    port: PortName,
    #[serde(default)]
    filter: String,
    direction: Option<Direction>,
    limit: Option<u64>,
}

/// A frame that passed a port.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct SeenFrame {
    /// Time at which the switch saw it, in nanoseconds since 1970.
    time_ns: u64,
    /// The way it took: in, into the switch, or out.
    #[schema(value_type = String)]
    direction: Direction,
    /// Source address.
    src: String,
    /// Destination address.
    dst: String,
    /// Length in bytes.
    bytes: usize,
    /// What it is, as `uvala capture` prints it.
    text: String,
}

/// Shows frames of a port as they pass, each as the data of a message.
///
/// A message of type `lost` has the number of frames that were left out: of those that match the
/// filter at most 1,000 in a second are sent, and of all that pass about 50,000 are looked at. The
/// stream ends after `limit` frames. Tokens that may only look do not see frames.
#[utoipa::path(
    get, path = "/v1/ports/{port}/frames", tag = "streams",
    params(
        ("port" = String, Path),
        ("filter" = Option<String>, Query, description = "In tcpdump's language, with numbers for \
            names of hosts and services"),
        ("direction" = Option<String>, Query, description = "in, out or both"),
        ("limit" = Option<u64>, Query),
    ),
    responses((status = 200, content_type = "text/event-stream", body = SeenFrame))
)]
async fn frames(
    State(api): State<Shared>,
    Extension(right): Extension<Right>,
    Parameters(query): Parameters<FramesQuery>,
) -> Answer {
    if right != Right::Write {
        let detail = "this token may look at counters, and not at frames; make one that may change \
                      things with: uvala-http token NAME --write FILE";
        return Err(Problem::new(StatusCode::FORBIDDEN, "token", detail));
    }
    let busy = |_| Problem::busy(format!("{CAPTURES_MAX} captures run; end one"));
    let permit = api.captures.clone().try_acquire_owned().map_err(busy)?;
    let stop = Stop::new().map_err(|error| Problem::busy(format!("cannot capture: {error}")))?;
    // The capture ends with this call, too.
    let until = Until(stop.clone());
    let (to, from) = channel(QUEUE);
    let dir = api.dir.clone();
    // The permit goes along: a caller that hangs up leaves no more compilers behind than captures.
    let open = move || Watch::open(dir.as_deref(), &query, stop, to, permit);
    let watch = api.block(open).await??;
    tokio::task::spawn_blocking(move || watch.run());
    Ok(answer(unfold((from, until), |(mut from, until): (Receiver<Message>, _)| async move {
        from.recv().await.map(|message| (Ok(message), (from, until)))
    })))
}

/// Ends the capture when it goes.
struct Until(Stop);

impl Drop for Until {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A capture for one caller.
struct Watch {
    capture: Capture,
    filter: Option<Filter>,
    stop: Stop,
    queue: Queue,
    /// Frames that the switch had no room for, and when it said so.
    missed: (u64, Instant),
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    fn open(
        dir: Option<&std::path::Path>,
        query: &FramesQuery,
        stop: Stop,
        to: Sender<Message>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Self, Problem> {
        let filter = filter(&query.filter)?;
        let direction = query.direction.unwrap_or(Direction::Both);
        let of = CaptureOf {
            entering: direction != Direction::Out,
            leaving: direction != Direction::In,
        };
        let capture = Capture::open(dir, query.port.clone(), of, SLOTS, &stop)?;
        let queue = Queue { to, left: query.limit.unwrap_or(u64::MAX), lost: 0 };
        let missed = (0, Instant::now());
        Ok(Self { capture, filter, stop, queue, missed, _permit: permit })
    }

    /// Captures until the caller has gone, or has what it wanted.
    fn run(mut self) {
        let ended = self.capture();
        self.queue.end(ended.err());
    }

    fn capture(&mut self) -> Result<(), client::Error> {
        while self.queue.left > 0 && !self.stop.is_said() {
            if self.turn()? > 0 {
                let _ = self.stop.wait(TURN);
            } else {
                match self.capture.wait(Some(ASK)) {
                    Ok(_) | Err(client::Error::Stopped) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Takes what has arrived. Returns the number of frames.
    fn turn(&mut self) -> Result<u64, client::Error> {
        if self.missed.1.elapsed() >= ASK {
            let missed = self.capture.missed()?;
            self.queue.lost += missed.saturating_sub(self.missed.0);
            self.missed = (missed, Instant::now());
        }
        let Self { capture, filter, queue, .. } = self;
        let (mut sent, mut bytes) = (0, Vec::new());
        let taken = capture.take(|seen| {
            // What is only counted is not read.
            if filter.is_some() || sent < SENT_MAX {
                bytes.clear();
                seen.frame.parts().for_each(|part| bytes.extend_from_slice(part));
            }
            if filter.as_ref().is_none_or(|filter| filter.passes(&bytes)) {
                sent += 1;
                queue.put((sent <= SENT_MAX).then(|| describe(seen, &bytes)));
            }
            queue.left > 0
        });
        queue.say_lost();
        taken
    }
}

/// Compiles a filter, if there is one.
fn filter(text: &str) -> Result<Option<Filter>, Problem> {
    if text.len() > FILTER_MAX {
        let detail = format!("the filter is longer than {FILTER_MAX} bytes");
        return Err(Problem::bad_request(detail));
    }
    let compile = |text| Filter::compile(text).map_err(Problem::bad_request);
    Some(text.trim()).filter(|text| !text.is_empty()).map(compile).transpose()
}

fn describe(seen: Captured<'_>, bytes: &[u8]) -> SeenFrame {
    let [src, dst] = match bytes.first_chunk::<16>() {
        Some(head) => [Header::new(*head).src(), Header::new(*head).dst()],
        None => [MacAddr::new([0; 6]); 2],
    };
    SeenFrame {
        time_ns: seen.time_ns,
        direction: if seen.is_entering { Direction::In } else { Direction::Out },
        src: src.to_string(),
        dst: dst.to_string(),
        bytes: bytes.len(),
        text: summary(bytes),
    }
}

/// The way to the caller, which may be slow.
struct Queue {
    to: Sender<Message>,
    /// Frames still wanted.
    left: u64,
    /// Frames that were left out, of which the caller does not know yet.
    lost: u64,
}

impl Queue {
    /// Sends a frame. `None`, or one without room: it is lost. Nothing is wanted once the caller is
    /// gone.
    fn put(&mut self, frame: Option<SeenFrame>) {
        if self.left == 0 {
            return;
        }
        match frame.map(|frame| self.to.try_send(message(&frame))) {
            Some(Ok(())) => self.left -= 1,
            Some(Err(TrySendError::Closed(_))) => self.left = 0,
            Some(Err(TrySendError::Full(_))) | None => self.lost += 1,
        }
    }

    /// Says how many frames were lost, once there is room for that.
    fn say_lost(&mut self) {
        if self.lost > 0 && self.to.try_send(message(&self.lost).event("lost")).is_ok() {
            self.lost = 0;
        }
    }

    /// Says what is left to say. A caller that is too slow to hear it finds the stream ended: one
    /// that reads nothing keeps no thread.
    fn end(mut self, error: Option<client::Error>) {
        self.say_lost();
        if let Some(error) = error {
            let _ = self.to.try_send(message(&Problem::from(error)).event("problem"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Option<SeenFrame> {
        let [src, dst, text] = ["", "", ""].map(str::to_owned);
        Some(SeenFrame { time_ns: 0, direction: Direction::In, src, dst, bytes: 60, text })
    }

    fn queue_of(room: usize, left: u64) -> (Queue, Receiver<Message>) {
        let (to, from) = channel(room);
        (Queue { to, left, lost: 0 }, from)
    }

    #[test]
    fn what_a_slow_caller_has_no_room_for_is_counted_and_said_later() {
        let (mut queue, mut from) = queue_of(2, 100);
        (0..5).for_each(|_| queue.put(frame()));
        queue.say_lost();
        assert_eq!((queue.left, queue.lost), (98, 3), "no room to say it");
        drop(from.try_recv().unwrap());
        queue.say_lost();
        assert_eq!(queue.lost, 0);
        queue.put(None);
        assert_eq!((queue.left, queue.lost), (98, 1), "too many in one turn");
    }

    #[test]
    fn nothing_is_wanted_after_the_last_frame_and_without_a_caller() {
        let (mut queue, _from) = queue_of(8, 2);
        (0..5).for_each(|_| queue.put(frame()));
        assert_eq!((queue.left, queue.lost), (0, 0));
        let (mut queue, from) = queue_of(8, 2);
        drop(from);
        queue.put(frame());
        assert_eq!((queue.left, queue.lost), (0, 0));
    }

    #[test]
    fn filters_are_checked_and_short() {
        assert!(filter("  ").unwrap().is_none());
        assert!(filter("udp port 53").unwrap().is_some());
        for wrong in ["udp prt 53", &"udp or ".repeat(100), "udp\0"] {
            assert!(filter(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! The control socket: one thread, one epoll loop, every client bounded.
//!
//! One connection is one client process. Users take turns (`fair_queue`), a call each, so a flood
//! of one delays another by one call and no more, over however many connections it comes; and
//! between two calls it is looked who else has something to say, and whether the daemon is to stop.
//! Epoll is asked for edges, so it tells once of each connection that has something to say, however
//! long that waits for its turn.
//!
//! A reply is sent at once or not at all: a client that does not read its replies is closed, so
//! nothing is queued for it here. Hang-up, half-close and empty message are the same to the daemon:
//! everything that the connection held is taken back at once, and calls that are still unread are
//! dropped. Before a call is judged, every hang-up that came before it has been heard: who closes
//! one connection and asks over another is not told that the first one still has what it had.
//!
//! A handler does nothing that takes long. Ports are built (`builders`) on other threads, and
//! changes [written down](crate::store::writer) on one; they are answered when that is done, and
//! meanwhile nothing more is read from that connection.
//!
//! | what a client may waste | bound |
//! |---|---|
//! | connections | `quota.connections` for each user |
//! | bytes of a message | [`MAX_MESSAGE`] |
//! | messages in flight | the kernel's socket buffer |
//! | descriptors sent to us | none, since Linux 6.16; before, the kernel closes them meanwhile |
//! | the same of who may make ports of interfaces | [`MAX_GIVEN`] a call |
//! | descriptors of the daemon | at their end the listener rests, those who are connected go on |

mod builders;
mod fair_queue;
mod nonsense;
mod sys;

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use protocol::{
    CallMessage, ErrorCode, Failure, MAX_FDS, MAX_GIVEN, MAX_MESSAGE, Outcome, PROTOCOL_VERSION,
    ReplyMessage, Request,
};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, acceptfrom_with, recvmsg, sendmsg,
};

use super::datapath::Datapath;
use super::refusal::{MessageRefusal, QuotaRefusal, Refusal};
use super::{Answer, Client, Control, Step};
use crate::log::RateLimit;
use crate::model::keys::ConnKey;
use crate::model::opening::Build;
use crate::model::policy::Caller;
use builders::Builders;
use fair_queue::FairQueue;

/// The socket and its connections.
#[derive(Debug)]
pub struct Server<D> {
    epoll: OwnedFd,
    /// The connections once more, and nothing of them but that they hang up.
    farewells: OwnedFd,
    listener: OwnedFd,
    /// Readable when there was a SIGHUP.
    hangups: Option<OwnedFd>,
    builders: Builders,
    listening: bool,
    /// Limits the warning about descriptors, which would otherwise come with every try.
    warning: RateLimit,
    control: Control<D>,
    connections: HashMap<u64, Connection>,
    queue: FairQueue,
    /// How many of them each user has.
    users: HashMap<u32, u32>,
    max_connections: u32,
    next_key: u64,
    buffer: Box<[u8]>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    client: Client,
    /// A port is built for it, or a change of it written; nothing is read from it until then.
    waits: bool,
    /// The connection has a request: it is in the queue, unless it waits.
    ready: bool,
}

/// What a client has to wait for.
enum Wait {
    Build(Build),
    Keep,
}

/// A call, or why it is none, and what came with it.
type Received = (Result<Request, Refusal>, Vec<OwnedFd>);

/// What becomes of a connection after a message.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
enum After {
    Stays,
    Closes,
}

impl<D: Datapath> Server<D> {
    /// Serves a listening, non-blocking socket until `stop` becomes readable or is closed.
    pub fn new(
        listener: OwnedFd,
        stop: BorrowedFd<'_>,
        control: Control<D>,
        max_connections: u32,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), readable)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), readable)?;
        // Before any client is known: who may send some is told so when it is.
        let _ = sys::take_descriptors(listener.as_fd(), false);
        let builders = Builders::new()?;
        epoll::add(&epoll, &builders, epoll::EventData::new_u64(BUILT), readable)?;
        if let Some(writer) = control.writer() {
            epoll::add(&epoll, writer, epoll::EventData::new_u64(KEPT), readable)?;
        }
        if let Some(bell) = control.host_bell() {
            epoll::add(&epoll, bell, epoll::EventData::new_u64(HOST), readable)?;
        }
        Ok(Self {
            epoll,
            farewells: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener,
            hangups: None,
            builders,
            listening: true,
            warning: RateLimit::new(Duration::from_secs(60)),
            control,
            connections: HashMap::new(),
            queue: FairQueue::default(),
            users: HashMap::new(),
            max_connections,
            next_key: FIRST_CONNECTION,
            buffer: vec![0; MAX_MESSAGE].into_boxed_slice(),
        })
    }

    /// Says in the log when there was a SIGHUP: then `hangups`, which does not block, is readable.
    pub fn note_hangups(&mut self, hangups: OwnedFd) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(HANGUP);
        epoll::add(&self.epoll, &hangups, data, epoll::EventFlags::IN)?;
        self.hangups = Some(hangups);
        Ok(())
    }

    /// Serves until told to stop. What is owed then is done: changes are written down, and those
    /// who wait for that are answered.
    pub fn run(&mut self) -> Result<(), Errno> {
        while self.look_around()? {
            if let Some(key) = self.queue.pop() {
                self.serve(key);
            }
        }
        let answers = self.control.save_all();
        self.answer_all(answers);
        Ok(())
    }

    /// Takes note of everything that happened; waits for something to happen, unless a client has
    /// something to say already. False: it is time to stop.
    fn look_around(&mut self) -> Result<bool, Errno> {
        // A listener that rests is tried again when the time is over or something happened.
        let mut timeout = (!self.listening).then_some(&REST);
        for _ in 0..LOOKS {
            if !self.queue.is_empty() {
                timeout = Some(&NOW);
            }
            let mut space = [MaybeUninit::uninit(); EVENTS];
            let events = match epoll::wait(&self.epoll, &mut space, timeout) {
                Ok((events, _)) => &*events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            self.listen(true);
            for event in events {
                match event.data.u64() {
                    STOP => return Ok(false),
                    LISTENER => self.accept(),
                    BUILT => self.finish(),
                    KEPT => self.answer_written(),
                    HANGUP => self.log_hangup(),
                    HOST => self.control.poll_host(),
                    key => self.note(key, event.flags),
                }
            }
            if events.len() < EVENTS {
                return Ok(true);
            }
            timeout = Some(&NOW);
        }
        Ok(true)
    }

    /// A connection has something to say, or hung up.
    fn note(&mut self, key: u64, flags: epoll::EventFlags) {
        let gone = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if flags.intersects(gone) {
            return self.close_if(After::Closes, key);
        }
        // An event of a connection that an earlier event of the same turn closed.
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if !std::mem::replace(&mut connection.ready, true) && !connection.waits {
            self.queue.push(connection.client.caller.uid, key);
        }
    }

    fn log_hangup(&mut self) {
        if let Some(hangups) = &self.hangups
            && matches!(rustix::io::read(hangups, &mut [0; 64]), Ok(1..))
        {
            tracing::info!(
                "SIGHUP does not reload the configuration: run uvala apply FILE for switches and \
                 ports; other keys take a restart"
            );
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match acceptfrom_with(&self.listener, flags) {
                Ok((socket, _)) => self.welcome(socket),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    if self.warning.allows(Instant::now()) {
                        tracing::warn!(
                            "no descriptors left for new clients; raise the limit: LimitNOFILE in \
                             the unit, or ulimit -n"
                        );
                    }
                    return self.listen(false);
                }
                // The client has gone, or a client that left while it waited.
                Err(_) => return,
            }
        }
    }

    /// Makes the listener rest, so that one which cannot accept does not keep the loop awake.
    fn listen(&mut self, listening: bool) {
        if listening == self.listening {
            return;
        }
        let flags = if listening { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(LISTENER);
        if epoll::modify(&self.epoll, &self.listener, data, flags).is_ok() {
            self.listening = listening;
        }
    }

    fn welcome(&mut self, socket: OwnedFd) {
        let Ok(caller) = sys::caller(socket.as_fd()) else { return };
        if let Err(refusal) = self.admit(&caller) {
            self.control.note_refusal(&caller, "", &refusal);
            // The client hears why, unless it is gone already.
            let _ = reply(socket.as_fd(), Err(refusal));
            return;
        }
        let _ = sys::take_descriptors(socket.as_fd(), caller.privileged);
        let (key, gone) = (self.next_key, epoll::EventFlags::RDHUP);
        self.next_key += 1;
        let spoken = epoll::EventFlags::IN | gone | epoll::EventFlags::ET;
        let listened = [(&self.epoll, spoken), (&self.farewells, gone)];
        let data = epoll::EventData::new_u64(key);
        if listened.iter().all(|(epoll, flags)| epoll::add(epoll, &socket, data, *flags).is_ok()) {
            let client = Client { conn: ConnKey(key), caller, name: String::new() };
            *self.users.entry(client.caller.uid).or_default() += 1;
            let connection = Connection { socket, client, waits: false, ready: false };
            self.connections.insert(key, connection);
        }
    }

    fn admit(&self, caller: &Caller) -> Result<(), Refusal> {
        let have = self.users.get(&caller.uid).copied().unwrap_or(0);
        if have < self.max_connections {
            return Ok(());
        }
        Err(QuotaRefusal::Count { uid: caller.uid, what: "connections", have: have.into() }.into())
    }

    /// Answers the next call of a connection, if there is one.
    fn serve(&mut self, key: u64) {
        // It may have been closed while it was in line.
        let Some(connection) = self.connections.get_mut(&key) else { return };
        let uid = connection.client.caller.uid;
        let (call, given) = match connection.receive(&mut self.buffer) {
            Ok(call) => call,
            Err(fate) => return self.close_if(fate, key),
        };
        self.close_hung_up();
        let Some(connection) = self.connections.get_mut(&key) else { return };
        match connection.answer(&mut self.control, call, given) {
            Ok(After::Stays) => self.queue.push(uid, key),
            Ok(After::Closes) => self.close_if(After::Closes, key),
            Err(Wait::Build(build)) => {
                connection.waits = true;
                self.builders.start(uid, ConnKey(key), build);
            }
            Err(Wait::Keep) => connection.waits = true,
        }
    }

    /// Closes the connections that have been hung up until now.
    fn close_hung_up(&mut self) {
        loop {
            let mut space = [MaybeUninit::uninit(); EVENTS];
            let gone = match epoll::wait(&self.farewells, &mut space, Some(&NOW)) {
                Ok((gone, _)) => &*gone,
                Err(_) => return,
            };
            gone.iter().for_each(|event| self.close_if(After::Closes, event.data.u64()));
            if gone.len() < EVENTS {
                return;
            }
        }
    }

    /// Answers those whose ports were built.
    fn finish(&mut self) {
        self.close_hung_up();
        for (conn, built) in self.builders.finished() {
            // Those who left meanwhile had everything taken back.
            let Some(connection) = self.connections.get(&conn.0) else { continue };
            match self.control.finish(conn, built) {
                Step::Answer(answer) => self.answer_all(vec![(conn, answer)]),
                Step::Build(build) => {
                    self.builders.start(connection.client.caller.uid, conn, build);
                }
                Step::Save => {}
            }
        }
    }

    /// Answers those whose changes were written down.
    fn answer_written(&mut self) {
        let answers = self.control.saved();
        self.answer_all(answers);
    }

    /// Answers some who waited, and hears them again.
    fn answer_all(&mut self, answers: Vec<(ConnKey, Answer)>) {
        for (ConnKey(key), answer) in answers {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            connection.waits = false;
            if reply(connection.socket.as_fd(), answer).is_err() {
                self.close_if(After::Closes, key);
            } else if connection.ready {
                self.queue.push(connection.client.caller.uid, key);
            }
        }
    }

    fn close_if(&mut self, fate: After, key: u64) {
        if fate == After::Closes
            && let Some(Connection { client, .. }) = self.connections.remove(&key)
        {
            let uid = client.caller.uid;
            let left = self.users.get_mut(&uid).expect("a connection is counted");
            *left -= 1;
            if *left == 0 {
                self.users.remove(&uid);
            }
            self.control.hang_up(ConnKey(key));
        }
    }
}

impl Connection {
    /// Reads one message, with the descriptors that came with it.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Received, After> {
        // TRUNC: the true length of a message that is longer than the buffer.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_GIVEN))];
        // Before Linux 6.16 others can send some, too.
        let room = if self.client.caller.privileged { &mut space[..] } else { &mut [] };
        let mut beside = RecvAncillaryBuffer::new(room);
        let heard = recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut beside, flags);
        let length = match heard.map(|heard| heard.bytes) {
            Ok(0) => return Err(After::Closes),
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => {
                self.ready = false;
                return Err(After::Stays);
            }
            Err(_) => return Err(After::Closes),
        };
        let given = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let given = given.flatten().collect();
        Ok((buffer.get(..length).map_or_else(too_long, parse), given))
    }

    /// Answers it, or says what has to be done first.
    fn answer<D: Datapath>(
        &mut self,
        control: &mut Control<D>,
        call: Result<Request, Refusal>,
        given: Vec<OwnedFd>,
    ) -> Result<After, Wait> {
        let (answer, fate) = match call {
            Ok(request) => match control.call_given(&mut self.client, request, given) {
                Step::Build(build) => return Err(Wait::Build(build)),
                Step::Save => return Err(Wait::Keep),
                Step::Answer(answer) => (answer, After::Stays),
            },
            Err(refusal @ Refusal::Message(MessageRefusal::Unknown(_))) => {
                (Err(refusal), After::Stays)
            }
            // A client that sends nonsense once will not get better.
            Err(refusal) => (Err(refusal), After::Closes),
        };
        Ok(reply(self.socket.as_fd(), answer).map_or(After::Closes, |()| fate))
    }
}

fn too_long() -> Result<Request, Refusal> {
    Err(MessageRefusal::Malformed(format!("more than {MAX_MESSAGE} bytes")).into())
}

fn parse(text: &[u8]) -> Result<Request, Refusal> {
    match serde_json::from_slice(text) {
        Ok(CallMessage { v: PROTOCOL_VERSION, call }) => Ok(call),
        Ok(CallMessage { v, .. }) => Err(MessageRefusal::Version(v).into()),
        Err(error) => Err(nonsense::explain(text, &error)),
    }
}

fn reply(socket: BorrowedFd<'_>, answer: Answer) -> Result<(), Errno> {
    let (result, fds) = match answer {
        Ok((reply, fds)) => (Outcome::Ok(reply), fds),
        Err(refusal) => (Outcome::Err(refusal.into()), Vec::new()),
    };
    let text = encode(result);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
        assert!(fits, "no reply has more than {MAX_FDS} descriptors");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(&text)], &mut ancillary, flags).map(drop)
}

fn encode(result: Outcome) -> Vec<u8> {
    let encode = |result| serde_json::to_vec(&ReplyMessage { v: PROTOCOL_VERSION, result });
    let text = encode(result).expect("replies are plain data");
    if text.len() <= MAX_MESSAGE {
        return text;
    }
    tracing::error!(bytes = text.len(), "a reply does not fit its message; please report this");
    let failure = Failure::new(ErrorCode::Internal, "the reply is too long for a message");
    encode(Outcome::Err(failure)).expect("replies are plain data")
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const HANGUP: u64 = 2;
const BUILT: u64 = 3;
const HOST: u64 = 4;
const KEPT: u64 = 5;
const FIRST_CONNECTION: u64 = 6;
/// Events of one turn.
const EVENTS: usize = 64;
/// How often it is looked for more of them, however many there are.
const LOOKS: usize = 64;
/// New clients of one turn.
const ACCEPTS: usize = 16;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long a listener rests when descriptors are used up.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

#[cfg(test)]
mod tests;

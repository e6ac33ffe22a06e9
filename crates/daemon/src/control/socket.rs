//! The control socket: one thread, one epoll loop, every client bounded.
//!
//! One connection is one client process. Users take turns (`fair_queue`), one call each, so a flood
//! of one user delays another by one call, over however many connections it comes. Between two
//! calls the thread looks for other connections with calls, and for a request to stop. The epoll
//! set is edge-triggered: it reports a connection once, however long its call waits for a turn.
//!
//! A reply is sent at once or not at all: the daemon closes a client that does not read its
//! replies, so it queues nothing but events (`super::events`), for clients that listen. Hang-up,
//! half-close and empty message are the same to the daemon: it takes back everything that the
//! connection held, and drops calls that are still unread. Before a call is judged, every hang-up
//! that came before it has been handled: a program that closes one connection and calls over
//! another finds that the first has given up what it had.
//!
//! A handler does nothing that takes long. Other threads build ports (`builders`), and one thread
//! [writes changes to disk](crate::store::writer); the daemon answers when that is done, and reads
//! nothing more from that connection meanwhile.
//!
//! | what a client may waste | bound |
//! |---|---|
//! | connections | `quota.connections` for each user, and a share of the descriptors (`shares`) |
//! | time of the thread, at users that are not privileged | `allowance` |
//! | bytes of a message | [`MAX_MESSAGE`] |
//! | messages in flight | the kernel's socket buffer |
//! | events that are not read | `events`: 256 for each listener, 16 listeners for each user |
//! | descriptors in flight | one reply for each connection, and a share for each user (`unread`) |
//! | descriptors sent to us | none, since Linux 6.16; before, the kernel closes them meanwhile |
//! | the same from users that may create ports for interfaces | [`MAX_GIVEN`] a call |
//! | descriptors of the daemon | the last are for root and the daemon's user (`shares`); at their |
//! | | end the listener pauses, and connected clients go on |

mod allowance;
mod builders;
mod fair_queue;
mod hand_over;
mod malformed;
mod message;
mod sys;
mod unread;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use port::host::TapQueues;
use port::log_budget::Budget;
use port::sys::descriptors;
use protocol::name::SwitchName;
use protocol::users::user_name;
use protocol::{MAX_GIVEN, MAX_MESSAGE, Outcome, Reply, Request};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, acceptfrom_with, recvmsg,
};
use rustix::process::{Resource, getrlimit};

use switch::{Heartbeat, Stage};

use super::datapath::Datapath;
use super::refusal::{MessageRefusal, QuotaRefusal, Refusal};
use super::shares::{CONNECTION, Shares};
use super::{Answer, Client, Control, Step};
use crate::cpu_time::caused_time;
use crate::model::error::DatapathError;
use crate::model::keys::ConnKey;
use crate::model::opening::Build;
use crate::model::policy::Caller;
use crate::store::writer::NotWritten;
use allowance::{Allowance, Payer};
use builders::Builders;
use fair_queue::FairQueue;
use message::{parse, send, too_long};
use unread::Unread;

/// The socket and its connections.
#[derive(Debug)]
pub struct Server<D> {
    epoll: OwnedFd,
    /// A second epoll set of the connections, for hang-ups only.
    farewells: OwnedFd,
    listener: OwnedFd,
    /// Readable when there was a SIGHUP.
    hangups: Option<OwnedFd>,
    builders: Builders,
    listening: bool,
    /// Limits the warning about descriptors, which would otherwise come with every try.
    warning: Budget,
    control: Control<D>,
    connections: HashMap<u64, Connection>,
    queue: FairQueue,
    allowance: Allowance,
    /// The time that users were charged for inside of what is done now.
    charged: Duration,
    unread: Unread,
    max_connections: u32,
    shares: Shares,
    next_key: u64,
    buffer: Box<[u8]>,
    heartbeat: Heartbeat,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    client: Client,
    /// A port is being built for it, or a change written; nothing is read from it meanwhile.
    waits: bool,
    /// The connection has a request: it is in the queue, unless it waits or is parked.
    ready: bool,
    /// The connection was sent descriptors, and may not have read them.
    owes: bool,
    /// The connection has a request that is not read while it owes.
    parked: bool,
    /// The connection has hung up, and is kept because it owes.
    gone: bool,
}

/// What a client has to wait for.
enum Wait {
    Build(Build),
    Save,
}

/// A call, or why it is none, and what came with it.
type Received = (Result<Request, Refusal>, Vec<OwnedFd>);

/// What happens to a connection after a message.
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
        mut control: Control<D>,
        max_connections: u32,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), readable)?;
        epoll::add(&epoll, stop, epoll::EventData::new_u64(STOP), readable)?;
        // No client is known yet; one that may send descriptors is allowed to when it is known.
        let _ = descriptors::refuse(&listener);
        let builders = Builders::new()?;
        epoll::add(&epoll, &builders, epoll::EventData::new_u64(BUILT), readable)?;
        if let Some(writer) = control.writer() {
            epoll::add(&epoll, writer, epoll::EventData::new_u64(SAVED), readable)?;
        }
        if let Some(bell) = control.stall_bell() {
            epoll::add(&epoll, bell, epoll::EventData::new_u64(STALLS), readable)?;
        }
        for bell in control.host_bells() {
            epoll::add(&epoll, bell, epoll::EventData::new_u64(HOST), readable)?;
        }
        let heartbeat = control.take_heartbeat().unwrap_or_default();
        let shares = Shares::of_process();
        control.share_descriptors(shares);
        Ok(Self {
            epoll,
            farewells: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener,
            hangups: None,
            builders,
            listening: true,
            warning: Budget::of_one(Duration::from_secs(60)),
            control,
            connections: HashMap::new(),
            queue: FairQueue::default(),
            allowance: Allowance::default(),
            charged: Duration::ZERO,
            unread: Unread::new(getrlimit(Resource::Nofile).current),
            max_connections,
            shares,
            next_key: FIRST_CONNECTION,
            heartbeat,
            buffer: vec![0; MAX_MESSAGE].into_boxed_slice(),
        })
    }

    /// Logs each SIGHUP: `hangups`, which does not block, is readable then.
    pub fn note_hangups(&mut self, hangups: OwnedFd) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(HANGUP);
        epoll::add(&self.epoll, &hangups, data, epoll::EventFlags::IN)?;
        self.hangups = Some(hangups);
        Ok(())
    }

    /// Waits until each interface is open or has failed, for a bounded time.
    pub fn await_interfaces(&mut self) {
        self.control.await_interfaces();
    }

    /// Serves until told to stop. Changes that are pending then are written to disk, and the
    /// clients that wait for them are answered. Returns also what could not be written.
    pub fn run(&mut self) -> (Result<(), Errno>, BTreeMap<SwitchName, NotWritten>) {
        let served = self.serve_all();
        let answers = self.control.save_all();
        self.answer_all(answers);
        (served, self.control.end_saving())
    }

    /// The process of the daemon that takes over.
    pub fn successor(&self) -> Option<u32> {
        self.control.successor()
    }

    /// Gives up what the next daemon makes anew; whether there is one that has asked for the rest.
    pub fn leave(&mut self) -> bool {
        self.control.leave()
    }

    fn serve_all(&mut self) -> Result<(), Errno> {
        while self.look_around()? {
            let (Self { queue, allowance, .. }, now) = (&mut *self, Instant::now());
            if let Some(key) = queue.pop(|uid| allowance.wait(uid, now).is_zero()) {
                self.serve(key);
            }
            self.tell_listeners();
            self.control.log_suppressed(Instant::now());
            if self.control.successor().is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Handles all events; waits for one unless a client has a call already. `false`: it is time to
    /// stop.
    fn look_around(&mut self) -> Result<bool, Errno> {
        // A paused listener is tried again after the time, or after any event.
        let mut timeout = (!self.listening).then_some(REST);
        for _ in 0..LOOKS {
            let now = Instant::now();
            let (look, report) = (self.control.next_look(now), self.control.next_report(now));
            timeout = [timeout, self.next_call(), look, report].into_iter().flatten().min();
            let limit = timeout.map(timespec);
            let mut space = [MaybeUninit::uninit(); EVENTS];
            self.heartbeat.rest(Stage::Asleep);
            let events = epoll::wait(&self.epoll, &mut space, limit.as_ref());
            self.heartbeat.rest(Stage::Control);
            let events = match events {
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
                    SAVED => self.answer_written(),
                    HANGUP => self.log_hangup(),
                    HOST => self.control.poll_host(),
                    STALLS => self.control.poll_stalls(),
                    key => self.note(key, event.flags),
                }
            }
            if events.len() < EVENTS {
                return Ok(true);
            }
            timeout = Some(Duration::ZERO);
        }
        Ok(true)
    }

    /// The time until a call may be served, if one waits.
    fn next_call(&self) -> Option<Duration> {
        let now = Instant::now();
        self.queue.users().map(|uid| self.allowance.wait(uid, now)).min()
    }

    /// Does something for a client, and charges its user for the time: not for what is done for
    /// others meanwhile.
    fn charged<T>(&mut self, payer: Payer, work: impl FnOnce(&mut Self) -> T) -> T {
        let begin = caused_time();
        let before = std::mem::take(&mut self.charged);
        let done = work(self);
        let took = caused_time().saturating_sub(begin);
        let own = took.saturating_sub(self.charged);
        self.charged = before + took;
        if !payer.privileged {
            self.allowance.charge(payer.uid, own, Instant::now());
        }
        done
    }

    /// Sends events to the clients that listen. Those of a client that does not read, or whose user
    /// has used up its allowance, wait.
    fn tell_listeners(&mut self) {
        let now = Instant::now();
        for conn in self.control.find_events(now) {
            let Some(connection) = self.connections.get(&conn.0) else { continue };
            let payer = Payer::of(&connection.client.caller);
            if !connection.gone && self.allowance.wait(payer.uid, now).is_zero() {
                self.charged(payer, |server| server.tell(conn));
            }
        }
    }

    fn tell(&mut self, conn: ConnKey) {
        let Some(connection) = self.connections.get(&conn.0) else { return };
        let Some(events) = self.control.next_events(conn) else { return };
        let reply = Outcome::Ok(Reply::Events(events.clone()));
        if send(connection.socket.as_fd(), reply, &[]).is_ok() {
            self.control.note_told(conn, &events);
        }
    }

    /// A connection has a call, or hung up.
    fn note(&mut self, key: u64, flags: epoll::EventFlags) {
        let gone = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        // An event of a connection that an earlier event of the same turn closed.
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if connection.gone || flags.intersects(gone) {
            return self.close_if(After::Closes, key);
        }
        let uid = connection.client.caller.uid;
        if connection.parked && connection.account(&mut self.unread, &self.epoll) {
            connection.parked = false;
            self.queue.push(uid, key);
        }
        if flags.contains(epoll::EventFlags::IN)
            && !std::mem::replace(&mut connection.ready, true)
            && !connection.waits
        {
            self.queue.push(uid, key);
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
                    if self.warning.decide(Instant::now()).is_to_log() {
                        tracing::warn!(
                            "no descriptors left for new clients; raise the limit: LimitNOFILE in \
                             the unit, or ulimit -n"
                        );
                    }
                    return self.listen(false);
                }
                // No other client waits, or the one that did has left.
                Err(_) => return,
            }
        }
    }

    /// Pauses the listener, so that a listener that cannot accept does not keep the loop awake.
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
        let conn = ConnKey(self.next_key);
        let Ok(caller) = sys::caller(socket.as_fd(), conn) else { return };
        if let Err(refusal) = self.admit(&caller, socket.as_fd()) {
            let refusal = refusal.into();
            self.control.note_refusal(&caller, "", &refusal);
            // The client gets the reason, unless it is gone already.
            let _ = send(socket.as_fd(), Outcome::Err(refusal.into()), &[]);
            return;
        }
        if caller.privileged {
            let _ = descriptors::accept(&socket);
        }
        drop(self.enter(socket, caller));
    }

    /// Listens to a connection; returns its key, the next one.
    ///
    /// # Errors
    /// No memory to listen to it: the socket.
    fn enter(&mut self, socket: OwnedFd, caller: Caller) -> Result<u64, OwnedFd> {
        let (key, gone) = (self.next_key, epoll::EventFlags::RDHUP);
        self.next_key += 1;
        let listened = [(&self.epoll, SPOKEN), (&self.farewells, gone)];
        let data = epoll::EventData::new_u64(key);
        if !listened.iter().all(|(epoll, flags)| epoll::add(epoll, &socket, data, *flags).is_ok()) {
            return Err(socket);
        }
        let client = Client { conn: ConnKey(key), caller, name: String::new() };
        *self.control.connections.entry(client.caller.uid).or_default() += 1;
        let (waits, ready, owes, parked, gone) = (false, false, false, false, false);
        let connection = Connection { socket, client, waits, ready, owes, parked, gone };
        self.connections.insert(key, connection);
        Ok(key)
    }

    fn admit(&self, caller: &Caller, socket: BorrowedFd<'_>) -> Result<(), QuotaRefusal> {
        let have = self.control.connections.get(&caller.uid).copied().unwrap_or(0);
        self.shares.admit(caller, CONNECTION, have.into(), self.max_connections)?;
        self.shares.keep_reserve(caller.privileged, socket)
    }

    /// Answers the next call of a connection, if there is one.
    fn serve(&mut self, key: u64) {
        // It may have been closed while it was in line.
        let Some(connection) = self.connections.get(&key).filter(|it| !it.gone) else { return };
        let payer = Payer::of(&connection.client.caller);
        self.charged(payer, |server| server.serve_call(key, payer));
    }

    fn serve_call(&mut self, key: u64, payer: Payer) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if !connection.account(&mut self.unread, &self.epoll) {
            connection.parked = true;
            return;
        }
        let (call, given) = match connection.receive(&mut self.buffer) {
            Ok(call) => call,
            Err(after) => return self.close_if(after, key),
        };
        let given = self.control.given(payer.uid, given);
        self.close_hung_up();
        let call =
            call.and_then(|call| Ok(self.shares.afford(payer.privileged, call, &self.listener)?));
        let Some(connection) = self.connections.get_mut(&key) else { return };
        match connection.answer(&mut self.control, call, given) {
            Ok((answer, after)) => {
                let answer = self.with_connection(answer);
                match self.reply(key, answer) {
                    After::Stays if after == After::Stays => self.queue.push(payer.uid, key),
                    _ => self.close_if(After::Closes, key),
                }
            }
            Err(Wait::Build(build)) => {
                connection.waits = true;
                self.builders.start(payer.uid, ConnKey(key), build);
            }
            Err(Wait::Save) => connection.waits = true,
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

    /// Answers the clients whose ports were built.
    fn finish(&mut self) {
        self.close_hung_up();
        for (conn, built) in self.builders.finished() {
            // Connections that closed meanwhile had everything taken back.
            let Some(connection) = self.connections.get(&conn.0) else { continue };
            let payer = Payer::of(&connection.client.caller);
            let finish = |server: &mut Self| server.control.finish(conn, built);
            match self.charged(payer, finish) {
                Step::Answer(answer) => self.answer_all(vec![(conn, answer)]),
                Step::Build(build) => self.builders.start(payer.uid, conn, build),
                Step::Save => {}
            }
        }
    }

    /// Answers the clients whose changes are on disk.
    fn answer_written(&mut self) {
        let answers = self.control.saved();
        self.answer_all(answers);
    }

    /// Answers some of the waiting connections, and reads them again.
    fn answer_all(&mut self, answers: Vec<(ConnKey, Answer)>) {
        for (ConnKey(key), answer) in answers {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            connection.waits = false;
            let (uid, ready) = (connection.client.caller.uid, connection.ready);
            match self.reply(key, answer) {
                After::Closes => self.close_if(After::Closes, key),
                After::Stays if ready => self.queue.push(uid, key),
                After::Stays => {}
            }
        }
    }

    /// Sends an answer to a connection, or an error where it has descriptors that may not be sent.
    fn reply(&mut self, key: u64, answer: Answer) -> After {
        let Some(connection) = self.connections.get_mut(&key) else { return After::Closes };
        let (reply, fds) = match answer {
            Ok((reply, fds)) if !fds.is_empty() => (reply, fds),
            answer => return connection.tell(answer.map(|(reply, _)| reply)),
        };
        let uid = connection.client.caller.uid;
        let refusal = match self.unread.admit(uid) {
            Err(refusal) => refusal.into(),
            Ok(()) => match send(connection.socket.as_fd(), Outcome::Ok(reply.clone()), &fds) {
                Ok(()) => {
                    self.unread.add(uid);
                    return connection.owe(&self.epoll);
                }
                Err(Errno::TOOMANYREFS) => {
                    self.warn_of_unread();
                    Refusal::from(DatapathError::Full(IN_FLIGHT))
                }
                Err(_) => return After::Closes,
            },
        };
        self.refuse_descriptors(key, &reply, refusal)
    }

    /// Takes back what a client was to get descriptors for, and tells it why.
    fn refuse_descriptors(&mut self, key: u64, reply: &Reply, refusal: Refusal) -> After {
        let Some(connection) = self.connections.get_mut(&key) else { return After::Closes };
        let (conn, Client { caller, name, .. }) = (ConnKey(key), &connection.client);
        if matches!(reply, Reply::Done) {
            // The daemon ends all the same: only the file is missing that says where.
            return connection.tell(Ok(Reply::Done));
        }
        self.control.note_refusal(caller, name, &refusal);
        let told = connection.tell(Err(refusal));
        match reply {
            Reply::Attached(port) if self.control.detach(conn, &port.port).is_ok() => told,
            // What it has bound goes with the connection.
            _ => After::Closes,
        }
    }

    fn warn_of_unread(&mut self) {
        if let Some((uid, replies)) = self.unread.most()
            && self.warning.decide(Instant::now()).is_to_log()
        {
            let user = user_name(uid);
            tracing::warn!(
                "the kernel sends no more descriptors: clients do not read their replies ({user}: \
                 {replies} replies); stop these clients, or raise LimitNOFILE"
            );
        }
    }

    /// Takes back what a connection held, and closes it; while it owes, the socket stays.
    fn close_if(&mut self, after: After, key: u64) {
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if after == After::Stays {
            return;
        }
        if !std::mem::replace(&mut connection.gone, true) {
            // Epoll would report it again and again.
            let _ = epoll::delete(&self.farewells, &connection.socket);
            let payer = Payer::of(&connection.client.caller);
            self.charged(payer, |server| server.control.hang_up(ConnKey(key)));
        }
        let Some(connection) = self.connections.get_mut(&key) else { return };
        if !connection.account(&mut self.unread, &self.epoll) {
            return;
        }
        let uid = connection.client.caller.uid;
        self.connections.remove(&key);
        let left = self.control.connections.get_mut(&uid).expect("a connection is counted");
        *left -= 1;
        if *left == 0 {
            self.control.connections.remove(&uid);
        }
    }
}

impl Connection {
    /// Sends an answer without descriptors.
    fn tell(&self, answer: Result<Reply, Refusal>) -> After {
        let outcome = answer.map_or_else(|refusal| Outcome::Err(refusal.into()), Outcome::Ok);
        send(self.socket.as_fd(), outcome, &[]).map_or(After::Closes, |()| After::Stays)
    }

    /// Notes that the connection was sent descriptors: from now on epoll reports when it reads.
    fn owe(&mut self, epoll: &OwnedFd) -> After {
        self.owes = true;
        self.listen(epoll, SPOKEN | epoll::EventFlags::OUT).map_or(After::Closes, |()| After::Stays)
    }

    /// True if the connection has read the descriptors that it was sent.
    fn account(&mut self, unread: &mut Unread, epoll: &OwnedFd) -> bool {
        if self.owes && port::sys::unread::is_read(&self.socket) {
            self.owes = false;
            unread.remove(self.client.caller.uid);
            // If this fails, epoll reports more than needed.
            let _ = self.listen(epoll, SPOKEN);
        }
        !self.owes
    }

    fn listen(&self, epoll: &OwnedFd, flags: epoll::EventFlags) -> Result<(), Errno> {
        epoll::modify(epoll, &self.socket, epoll::EventData::new_u64(self.client.conn.0), flags)
    }

    /// Reads one message, with the descriptors that came with it.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Received, After> {
        // TRUNC: the true length of a message that is longer than the buffer.
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_GIVEN))];
        // Before Linux 6.16 other users can send some, too.
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
        given: Option<TapQueues>,
    ) -> Result<(Answer, After), Wait> {
        match call {
            Ok(request) => match control.call_given(&mut self.client, request, given) {
                Step::Build(build) => Err(Wait::Build(build)),
                Step::Save => Err(Wait::Save),
                Step::Answer(answer) => Ok((answer, After::Stays)),
            },
            Err(refusal @ (Refusal::Message(MessageRefusal::Unknown(_)) | Refusal::Quota(_))) => {
                Ok((Err(refusal), After::Stays))
            }
            // A client that sends one invalid message will send more.
            Err(refusal) => Ok((Err(refusal), After::Closes)),
        }
    }
}

/// A time as epoll takes it; what no clock can say is a long time.
fn timespec(time: Duration) -> Timespec {
    time.try_into().unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const HANGUP: u64 = 2;
const BUILT: u64 = 3;
const HOST: u64 = 4;
const STALLS: u64 = 6;
const SAVED: u64 = 5;
const FIRST_CONNECTION: u64 = 7;
/// Events of one turn.
const EVENTS: usize = 64;
/// How often the thread looks for more of them, however many there are.
const LOOKS: usize = 64;
/// New clients of one turn.
const ACCEPTS: usize = 16;
/// The events that epoll reports for a connection.
const SPOKEN: epoll::EventFlags =
    epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP).union(epoll::EventFlags::ET);
/// The resource that is used up when the kernel sends no descriptors.
const IN_FLIGHT: &str = "descriptors on their way to clients that do not read their replies";
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long the listener pauses when descriptors are used up.
const REST: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;

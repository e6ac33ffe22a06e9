//! Calls that wait for the kernel: it changes one network interface at a time, so opening or
//! closing one waits for all others. They wait on other threads, and the daemon answers other
//! requests meanwhile.
//!
//! ```text
//!   port_add, interface_attach, bind
//!            ── checked ──► opened (a builder) ──► the call is judged and carried out, with that
//!   port_del ── carried out ──► closed (a builder) ──► written down ──► answered
//! ```

use std::io;
use std::os::fd::OwnedFd;

use port::host::TapQueues;
use protocol::name::SwitchName;
use protocol::{HostIf, InterfaceRequest, PortKind, PortRequest, Reply, Request, SessionRequest};

use super::interfaces::host;
use super::save::Changed;
use super::{Client, Control, Step};
use crate::control::datapath::Datapath;
use crate::control::refusal::Refusal;
use crate::model::keys::ConnKey;
use crate::model::opening::{Build, Opening};

/// A network interface that another thread opens for the port that a call makes.
#[derive(Debug)]
pub(super) struct Opened {
    kind: PortKind,
    host: HostIf,
    opening: Opening,
}

/// A call that waits.
#[derive(Debug)]
pub(super) enum Deferred {
    /// To be carried out when its interfaces are open.
    Open(Client, Box<Request>, Vec<Opened>),
    /// Carried out; to be written down and answered when what it removed is closed.
    Close(Vec<(SwitchName, Changed)>, Box<(Reply, Vec<OwnedFd>)>),
}

impl<D: Datapath> Control<D> {
    /// Begins what a call needs that waits; `None`: it needs nothing, or will be refused.
    pub(super) fn begin_open(&mut self, client: &Client, request: &Request) -> Option<Build> {
        let caller = &client.caller;
        let (to, wanted) = match request {
            Request::Port(PortRequest::Add(add)) => {
                let host = host::request_of(caller, add, &self.defaults.declared).ok()??;
                self.state.check_persistent(caller, &add.port).ok()?;
                self.check_group_of(caller.uid, &host).ok()?;
                (&add.port, vec![(add.kind, host)])
            }
            Request::Interface(InterfaceRequest::Attach(attach)) => {
                (&attach.port, self.attached_host(caller, attach)?)
            }
            Request::Session(SessionRequest::Bind(bind)) => {
                (&bind.port, self.bound_host(caller, bind)?)
            }
            _ => return None,
        };
        let switch = self.state.find_switch(to.switch()).map(|switch| switch.key);
        let (mut openings, mut builds) = (Vec::new(), Vec::new());
        for (kind, host) in wanted {
            let given = self.pending.given.take();
            let Some((opening, build)) = self.datapath.begin_opening(switch, kind, &host, given)
            else {
                self.cancel_openings(openings);
                return None;
            };
            self.charge_group_of(caller.uid, &host);
            openings.push(Opened { kind, host, opening });
            builds.push(build);
        }
        let call = Deferred::Open(client.clone(), Box::new(request.clone()), openings);
        self.pending.deferred.insert(client.conn, call);
        Some(Box::new(move || builds.into_iter().try_for_each(|build| build())))
    }

    /// Begins a call when every interface that it takes is open.
    pub(super) fn begin(&mut self, client: &mut Client, request: Request) -> Step {
        match request {
            Request::Session(SessionRequest::Attach(attach)) => {
                let build = self.attach(client, &attach);
                self.start_opening(client, build)
            }
            Request::Session(SessionRequest::Bind(bind)) => {
                let build = self.bind(client, &bind);
                self.start_opening(client, build)
            }
            request => self.step(client, request),
        }
    }

    /// Descriptors that came with a message of this user. What no request wants of them its closer
    /// closes: another process may have them, too, and make that take long.
    pub fn given(&self, user: u32, fds: Vec<OwnedFd>) -> Option<TapQueues> {
        (!fds.is_empty()).then(|| TapQueues::new(fds, &self.datapath.closer_for(user)))
    }

    /// As [`Control::call`], for one with which descriptors came.
    pub fn call_given(
        &mut self,
        client: &mut Client,
        request: Request,
        given: Option<TapQueues>,
    ) -> Step {
        self.pending.given = given;
        let step = self.call(client, request);
        self.pending.given = None;
        step
    }

    /// What was opened for a port of the call that is answered, if anything was. What the port does
    /// not take of it is closed by another thread.
    pub(super) fn opened(&self, kind: PortKind, host: &HostIf) -> Option<Opening> {
        let opening = self.pending.opened.iter().find(|it| it.kind == kind && it.host == *host);
        opening.map(|it| it.opening.clone())
    }

    fn cancel_openings(&mut self, openings: Vec<Opened>) {
        openings.into_iter().for_each(|it| self.datapath.cancel_opening(it.opening));
    }

    /// What comes of a call for which something is built.
    pub(super) fn start_opening(&mut self, client: &Client, build: Result<Build, Refusal>) -> Step {
        build.map_or_else(
            |refusal| {
                self.note_refusal(&client.caller, &client.name, &refusal);
                Step::Answer(Err(refusal))
            },
            Step::Build,
        )
    }

    /// Answers a call for which everything is there.
    pub(super) fn step(&mut self, client: &mut Client, request: Request) -> Step {
        let changed = self.changes_of(&request);
        let answer = match self.answer(client, request) {
            Ok(answer) => answer,
            refused => {
                // No client waits for the end of a port that was made for nothing.
                self.datapath.close_in_background();
                return Step::Answer(refused);
            }
        };
        match self.datapath.take_closing() {
            None => self.save(client.conn, changed, answer),
            Some(close) => {
                self.pending
                    .deferred
                    .insert(client.conn, Deferred::Close(changed, Box::new(answer)));
                Step::Build(close)
            }
        }
    }

    /// What a client waited for was built, or could not be.
    pub fn finish(&mut self, conn: ConnKey, built: io::Result<()>) -> Step {
        match self.pending.deferred.remove(&conn) {
            None => Step::Answer(self.finish_attach(conn, built)),
            Some(Deferred::Close(changed, answer)) => self.save(conn, changed, *answer),
            Some(Deferred::Open(mut client, request, openings)) => {
                // Without a thread to open them, they are opened here.
                self.pending.opened = if built.is_ok() { openings } else { Vec::new() };
                let step = self.begin(&mut client, *request);
                let left = std::mem::take(&mut self.pending.opened);
                self.cancel_openings(left);
                step
            }
        }
    }

    /// No client waits for a call any more; what it has changed is written down all the same.
    pub(super) fn forget_deferred(&mut self, conn: ConnKey) {
        match self.pending.deferred.remove(&conn) {
            Some(Deferred::Open(_, _, openings)) => self.cancel_openings(openings),
            Some(Deferred::Close(changed, answer)) => {
                let _ = self.save(conn, changed, *answer);
            }
            None => {}
        }
    }

    /// The daemon stops: no client waits for anything to be closed.
    pub(super) fn forget_all_deferred(&mut self) -> Vec<(ConnKey, super::Answer)> {
        let all: Vec<ConnKey> = self.pending.deferred.keys().copied().collect();
        let mut answers = Vec::new();
        for conn in all {
            if let Some(Deferred::Close(changed, answer)) = self.pending.deferred.remove(&conn)
                && let Step::Answer(answer) = self.save(conn, changed, *answer)
            {
                answers.push((conn, answer));
            }
        }
        answers
    }
}

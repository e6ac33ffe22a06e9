//! Null ports and monitors: rings that a connection has for itself.
//!
//! *Permission to monitor.* A monitor reads everything that its port sends and receives. So its
//! caller is the user that opened the port, or is privileged. A zero-copy monitor maps the port's
//! own memory, which is shared between processes of one user only.

use std::io;

use protocol::name::{PortName, SwitchName};
use protocol::{Bind, BindKind, BoundRings, CaptureOf, DropReasonName, DropsOf, MonitorOf, Reply};
use ring::cursor::RingSize;
use ring::layout::{MAX_RINGS, RingCounts};
use switch::{DropReason, DropReasons, MirrorPoint, MirrorSource};

use crate::control::datapath::Datapath;
use crate::control::netmap::refusal::NetmapRefusal;
use crate::control::netmap::regions::{needs_of, refused};
use crate::control::netmap::{binder, claim, new_shared};
use crate::control::ports::attach::Building;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::{AccessRefusal, Refusal};
use crate::control::state::shared::{COMMON, Region, Shared};
use crate::control::state::unswitched::{CaptureFor, CaptureKind, Open, UnswitchedPort};
use crate::control::state::{Port, Switch};
use crate::control::{Answer, Client, Control};
use crate::model::error::DatapathError;
use crate::model::keys::{ConnKey, PortKey, SwitchKey};
use crate::model::opening::Build;
use crate::model::policy::{Access, Caller, Grant};
use crate::model::settings;
use crate::model::settings::RequestedRings;
use crate::model::specs::{Mirrored, RingSpec, UnswitchedSpec};

/// What is to be made.
struct Plan {
    label: String,
    rings: RingSpec,
    /// The region, if not a new one.
    region: Option<Region>,
    /// The region becomes its user's common one.
    common: bool,
    mirrored: Mirrored,
    capture: Option<CaptureFor>,
}

impl<D: Datapath> Control<D> {
    /// Reserves rings for a connection; [`Control::finish`] is to be called when they are built.
    pub(in crate::control) fn bind_unswitched(
        &mut self,
        client: &Client,
        bind: &Bind,
    ) -> Result<Build, Refusal> {
        let plan = match bind.kind {
            BindKind::Monitor(of) => self.plan_monitor(client, bind, of)?,
            BindKind::Capture(of) => self.plan_capture(client, bind, of)?,
            BindKind::Drops(of) => self.plan_drops(client, bind, of)?,
            BindKind::Null | BindKind::Port => self.plan_null(client, bind)?,
        };
        let claim = claim(bind, plan.rings.counts)?;
        let memory = self.datapath.memory_of(&plan.rings);
        let memory = memory.ok_or_else(|| PortRefusal::TooLarge(bind.port.clone()))?;
        self.state.check_number(&client.caller)?;
        let key = PortKey(self.state.new_key());
        let (uid, extra) = (client.caller.uid, bind.extra_bufs);
        let Plan { label, rings, region, common, mirrored, capture } = plan;
        let is_stamped = capture.is_some();
        let place = self.place(uid, region, &needs_of(&rings, extra), None)?;
        let (name, region) = (bind.port.clone(), place.spec());
        let spec =
            UnswitchedSpec { key, name: name.clone(), label, rings, region, mirrored, is_stamped };
        let made = self.datapath.reserve_unswitched(&spec).map_err(|error| place.refused(error));
        let region = place.region(made?);
        let held = self.datapath.reserve_holder(&[(key, claim)], &[key], client.conn, extra);
        let held = held.inspect_err(|_| self.datapath.remove_unswitched(key));
        let (build, granted) = held.map_err(|error| refused(error, &region))?;
        let build = self.build_when_paid(&region, build);
        let holder = binder(client, claim, granted, rings.stride);
        let shared = new_shared(region, uid);
        let shared = Shared { common, memory, holders: vec![holder], ..shared };
        let port = UnswitchedPort { key, name: name.clone(), shared, capture };
        self.state.add_unswitched(client.conn, port);
        self.pending.building.insert(client.conn, Building { name, key, bound: true });
        Ok(build)
    }

    /// The answer for a program whose rings were built, or could not be.
    pub(in crate::control) fn finish_unswitched(
        &mut self,
        conn: ConnKey,
        key: PortKey,
        built: io::Result<()>,
    ) -> Answer {
        let uid = self.state.unswitched_of(conn).map_or(0, |port| port.shared.uid);
        let started = built.map_err(DatapathError::from).and_then(|()| {
            self.datapath.attach_unswitched(key);
            self.datapath.open_bound(key, conn, uid)
        });
        if started.is_err() {
            self.unbind(conn);
        }
        let binding = started?;
        self.state.note_unswitched_ready(conn);
        // Its port may have gone meanwhile.
        self.refresh_capture(conn);
        let name = self.state.unswitched_of(conn).expect("it was bound").name.clone();
        Ok(self.bound_answer(conn, &name, binding))
    }

    /// Rings as they are asked for, none where none is, in a region that there is.
    fn plan_null(&self, client: &Client, bind: &Bind) -> Result<Plan, Refusal> {
        if bind.mem_id == 0 {
            return Err(NetmapRefusal::NullWithoutRegion.into());
        }
        let region = self.state.region(&client.caller, bind.mem_id)?;
        let rings = [bind.tx_rings, bind.rx_rings].map(Option::unwrap_or_default);
        if rings.iter().any(|rings| *rings > MAX_RINGS) {
            return Err(DatapathError::Full("rings of a null port: 64 are the limit").into());
        }
        let slots = [bind.tx_slots, bind.rx_slots]
            .map(|slots| slots.unwrap_or(0).clamp(RingSize::MIN, RingSize::MAX))
            .map(|slots| RingSize::new(slots).expect("it is in range"));
        let [(tx_rings, tx_slots), (rx_rings, rx_slots)] = [0, 1].map(|i| (rings[i], slots[i]));
        let counts = RingCounts { tx_rings, rx_rings, tx_slots, rx_slots };
        let rings = RingSpec { counts, extra_bufs: 0, stride: self.defaults.rings.stride };
        let label = format!("null:{}", bind.port.netmap_name());
        let common = bind.mem_id == COMMON;
        Ok(Plan { label, rings, region, common, mirrored: Mirrored::Nothing, capture: None })
    }

    /// One receive ring for copies of the frames of a port, and one transmit ring, which leads
    /// nowhere.
    fn plan_capture(&self, client: &Client, bind: &Bind, of: CaptureOf) -> Result<Plan, Refusal> {
        self.check_capture(&client.caller, &bind.port)?;
        // One without a client is captured from its next client on.
        let key = self.state.find_port(&bind.port).expect("looked at just now").key;
        let mirrored = Mirrored::Ports(captured(key, of));
        Ok(self.capture_into_a_ring(client, bind, mirrored, CaptureKind::Port(of)))
    }

    /// One receive ring for the frames that a switch drops.
    fn plan_drops(&self, client: &Client, bind: &Bind, of: DropsOf) -> Result<Plan, Refusal> {
        let key = self.check_drops(&client.caller, &bind.port)?;
        let mirrored = Mirrored::Drops(key, reasons(of));
        Ok(self.capture_into_a_ring(client, bind, mirrored, CaptureKind::Drops))
    }

    fn capture_into_a_ring(
        &self,
        client: &Client,
        bind: &Bind,
        mirrored: Mirrored,
        of: CaptureKind,
    ) -> Plan {
        let one = RingCounts { tx_rings: 1, rx_rings: 1, ..self.defaults.rings.counts };
        let requested =
            RequestedRings { tx_rings: None, rx_rings: None, ..RequestedRings::from(bind) };
        let rings = RingSpec { counts: one, ..self.defaults.rings };
        let rings = settings::bound_rings(&requested, &rings);
        let label = format!("{}/c", bind.port.netmap_name());
        let capture = Some(CaptureFor { caller: client.caller.clone(), of });
        Plan { label, rings, region: None, common: false, mirrored, capture }
    }

    /// Whether the caller may see all that a switch drops: frames of all its ports. So it is for
    /// those that may change the switch.
    fn check_drops(&self, caller: &Caller, name: &PortName) -> Result<SwitchKey, Refusal> {
        Ok(self.state.switch(caller, name.switch(), Access::Manage)?.key)
    }

    /// After a switch has changed: captures of its drops end if their callers may see them no more.
    pub(in crate::control) fn refresh_drop_captures(&mut self, name: &SwitchName) {
        for conn in self.state.drop_captures_of(name) {
            self.refresh_capture(conn);
        }
    }

    /// Whether there is such a port for the caller to capture; its key, while it carries frames.
    fn check_capture(&self, caller: &Caller, name: &PortName) -> Result<Option<PortKey>, Refusal> {
        let port = self.state.port(caller, name, Access::Look)?;
        let switch = self.state.find_switch(name.switch()).expect("a port has a switch");
        self.may_capture(caller, name, port, switch)?;
        port.check_switched(name)?;
        if port.config.vnet_header != 0 {
            return Err(NetmapRefusal::HasHeader(name.clone()).into());
        }
        let carries_frames = port.is_live() && self.datapath.number_of(port.key).is_some();
        Ok(carries_frames.then_some(port.key))
    }

    /// After a port has come, gone or changed: those that capture it get the frames of its next
    /// client, if they may. Their captures end with the port.
    pub(in crate::control) fn refresh_captures(&mut self, name: &PortName) {
        for conn in self.state.captures_of(name) {
            self.refresh_capture(conn);
        }
    }

    fn refresh_capture(&mut self, conn: ConnKey) {
        let Some(capture) = self.state.unswitched_of(conn) else { return };
        let (key, name) = (capture.key, &capture.name);
        let Some(CaptureFor { caller, of }) = &capture.capture else { return };
        let CaptureKind::Port(of) = of else {
            if self.check_drops(caller, name).is_err() {
                self.datapath.end_capture(key);
            }
            return;
        };
        match self.check_capture(caller, name) {
            Ok(Some(port)) => self.datapath.resume_capture(key, &captured(port, *of)),
            Ok(None) => {}
            Err(_) => self.datapath.end_capture(key),
        }
    }

    /// A capture reads all that its port sends and receives. So its caller may change the switch,
    /// has the port, or is one of those that the port's owner lets attach to it.
    fn may_capture(
        &self,
        caller: &Caller,
        name: &PortName,
        port: &Port,
        switch: &Switch,
    ) -> Result<(), Refusal> {
        let user = port.holder.as_ref().map(|holder| holder.uid);
        let user = user.or(port.bound.as_ref().map(|shared| shared.uid)).unwrap_or(port.owner);
        let is_granted = port.persistent
            && port.grant != Grant::default()
            && switch.permissions.allow(caller, Access::Attach)
            && port.permissions(switch).allow(caller, Access::Attach);
        match user == caller.uid || is_granted || switch.permissions.allow(caller, Access::Manage) {
            true => Ok(()),
            false => Err(AccessRefusal::Monitor { port: name.clone(), owner: user }.into()),
        }
    }

    /// How many frames a connection's monitor or capture has missed.
    pub(in crate::control) fn missed(&self, conn: ConnKey) -> Result<Reply, Refusal> {
        let port = self.state.unswitched_of(conn).ok_or(NetmapRefusal::NothingBound)?;
        Ok(Reply::Missed(self.datapath.missed(port.key)))
    }

    /// Receive rings for what there is to see in rings of a port, and one transmit ring, as netmap
    /// has it, which leads nowhere.
    fn plan_monitor(&self, client: &Client, bind: &Bind, of: MonitorOf) -> Result<Plan, Refusal> {
        let caller = &client.caller;
        self.state.region(caller, bind.mem_id)?;
        let port = self.state.open(&bind.port)?;
        if port.uid != caller.uid && (of.zero_copy || !caller.privileged) {
            let (port, owner) = (bind.port.clone(), port.uid);
            return Err(AccessRefusal::Monitor { port, owner }.into());
        }
        let switch = self.state.find_switch(bind.port.switch());
        if switch.is_some_and(|switch| switch.config.is_spread) {
            return Err(NetmapRefusal::MonitorOfAllWorkers(bind.port.clone()).into());
        }
        let rings = self.datapath.rings_of(port.key);
        let rings = rings.ok_or_else(|| NetmapRefusal::NotMonitorable(bind.port.clone()))?;
        if of.zero_copy && port.region.is_none() {
            return Err(NetmapRefusal::NotMonitorable(bind.port.clone()).into());
        }
        let sources = sources(&port, of, bind, rings.counts)?;
        let RingCounts { tx_rings, rx_rings, .. } = rings.counts;
        let all = RingCounts { tx_rings: 1, rx_rings: tx_rings.max(rx_rings), ..rings.counts };
        let requested =
            RequestedRings { tx_rings: None, rx_rings: None, ..RequestedRings::from(bind) };
        let rings = settings::bound_rings(&requested, &RingSpec { counts: all, ..rings });
        let letters = [("z", of.zero_copy), ("r", of.rx), ("t", of.tx)];
        let letters = letters.iter().filter(|(_, has)| *has).map(|(letter, _)| *letter);
        let label = format!("{}/{}", bind.port.netmap_name(), letters.collect::<String>());
        let region = port.region.clone().filter(|_| of.zero_copy);
        let mirrored = Mirrored::Ports(sources);
        Ok(Plan { label, rings, region, common: false, mirrored, capture: None })
    }
}

/// The reasons of the switch that a capture is for.
fn reasons(of: DropsOf) -> DropReasons {
    let named = |name: DropReasonName| {
        let found = DropReason::ALL.into_iter().find(|reason| reason.name() == name.as_str());
        DropReasons::only(found.expect("both lists have the same names"))
    };
    of.reason.map_or(DropReasons::ALL, named)
}

/// What a capture mirrors.
fn captured(port: PortKey, of: CaptureOf) -> Vec<(PortKey, MirrorSource)> {
    let points = [(of.entering, MirrorPoint::Sent), (of.leaving, MirrorPoint::Received)];
    let points = points.into_iter().filter(|(is_requested, _)| *is_requested);
    let source = |(_, point)| (port, MirrorSource { point, rings: 0..MAX_RINGS });
    points.map(source).collect()
}

/// What a monitor mirrors: the rings that a program which opens the port like this would bind.
fn sources(
    port: &Open,
    of: MonitorOf,
    bind: &Bind,
    counts: RingCounts,
) -> Result<Vec<(PortKey, MirrorSource)>, Refusal> {
    let rings = claim(bind, counts)?;
    let range = |rings: BoundRings| rings.first..rings.first + rings.count;
    let received = if of.zero_copy { MirrorPoint::Returned } else { MirrorPoint::Received };
    let sent = match port.peer.filter(|_| of.zero_copy) {
        Some(peer) => (peer, MirrorPoint::SentReturned),
        None => (port.key, MirrorPoint::Sent),
    };
    let both = [(of.rx, (port.key, received), rings.rx), (of.tx, sent, rings.tx)];
    let seen = both.into_iter().filter(|(is_requested, _, rings)| *is_requested && rings.count > 0);
    let source =
        |(_, (key, moment), rings)| (key, MirrorSource { point: moment, rings: range(rings) });
    Ok(seen.map(source).collect())
}

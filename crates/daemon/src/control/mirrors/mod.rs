//! Mirror ports: which may be, and what the worker of their switch is told.
//!
//! The setting of a mirror port names the ports that it mirrors. They come and go, as the mirror
//! port itself does; whenever one of them has, the worker hears which of them are there:
//!
//! ```text
//!  refresh_port(a) ──► the mirror ports of the switch: a itself, and those that mirror a
//!                           └──► Datapath::set_mirror(mirror port, the ports that are there)
//! ```
//!
//! *Permission.* A mirror port gets all that other ports send and receive, so only those that may
//! change the switch may set it: they may capture every port of the switch, too.

pub mod refusal;

use protocol::PortKind;
use protocol::name::{PortName, SwitchName};
use switch::{MirrorConfig, MirrorPoint, PortConfig};

use super::Control;
use crate::control::datapath::Datapath;
use crate::control::netmap::refusal::NetmapRefusal;
use crate::control::ports::refusal::PortRefusal;
use crate::control::refusal::Refusal;
use crate::control::state::Port;
use crate::model::keys::PortKey;
use crate::model::plan::Origin;
use refusal::{MIRRORS_MAX, MirrorRefusal};

impl<D: Datapath> Control<D> {
    /// Checks the mirror of a new port. When the daemon starts, it is left out if state and
    /// configuration, each of which is right, contradict each other.
    pub(super) fn admit_mirror(
        &self,
        name: &PortName,
        config: &mut PortConfig,
        origin: Origin,
    ) -> Result<(), Refusal> {
        match self.check_mirror(name, config) {
            Err(error) if origin == Origin::Plan => {
                config.mirror = None;
                tracing::warn!("{name} takes no part in a mirror: {error}");
                Ok(())
            }
            checked => checked,
        }
    }

    /// Whether a permanent port may have these settings, as far as mirrors go.
    pub(super) fn check_mirror(&self, name: &PortName, config: &PortConfig) -> Result<(), Refusal> {
        let Some(mirror) = &config.mirror else { return self.check_mirrored(name, config) };
        if name.is_interface() {
            return Err(MirrorRefusal::NoSwitch(name.clone()).into());
        }
        let role = &config.role;
        if role.service.is_some() || role.chain.is_some() || self.statics.has(name) {
            return Err(MirrorRefusal::Busy(name.clone()).into());
        }
        for from in &mirror.from {
            let from = name.switch().join(from)?;
            self.check_source(name, &from)?;
        }
        match self.mirrors_of(name).next() {
            Some(to) => {
                let (port, to) = (name.clone(), Box::new(to.clone()));
                Err(MirrorRefusal::Mirrored { port, to }.into())
            }
            None => Ok(()),
        }
    }

    /// Whether a port that is no mirror port may have these settings.
    fn check_mirrored(&self, name: &PortName, config: &PortConfig) -> Result<(), Refusal> {
        match self.mirrors_of(name).next() {
            Some(_) if config.vnet_header != 0 => {
                Err(NetmapRefusal::HasHeader(name.clone()).into())
            }
            _ => Ok(()),
        }
    }

    /// Whether a port can be mirrored; one that is not there yet can.
    fn check_source(&self, name: &PortName, from: &PortName) -> Result<(), Refusal> {
        if from.pipe().is_some() {
            return Err(PortRefusal::PipeFrames(from.clone()).into());
        }
        let port = self.state.find_port(from);
        if from == name || port.is_some_and(|port| port.config.mirror.is_some()) {
            return Err(MirrorRefusal::OfMirror(from.clone()).into());
        }
        if port.is_some_and(|port| port.config.vnet_header != 0) {
            return Err(NetmapRefusal::HasHeader(from.clone()).into());
        }
        if self.mirrors_of(from).filter(|mirror| *mirror != name).count() >= MIRRORS_MAX {
            return Err(MirrorRefusal::TooMany(from.clone()).into());
        }
        Ok(())
    }

    /// Refuses a use of a port that mirror ports do not have.
    pub(super) fn check_no_mirror(&self, name: &PortName) -> Result<(), Refusal> {
        match self.mirror_at(name) {
            Some(_) => Err(MirrorRefusal::CopiesOnly(name.clone()).into()),
            None => Ok(()),
        }
    }

    /// After a port has come, gone or changed.
    pub(super) fn refresh_mirrors(&mut self, name: &PortName) {
        match self.mirror_at(name) {
            Some(_) => self.notes.mirrors.insert(name.clone()),
            None => self.notes.mirrors.remove(name),
        };
        let all: Vec<PortName> = self.mirrors_of(name).cloned().collect();
        for mirror in all.iter().chain([name]) {
            self.tell_mirror(mirror);
        }
    }

    /// The mirror ports that mirror a port.
    fn mirrors_of<'a>(&'a self, name: &'a PortName) -> impl Iterator<Item = &'a PortName> {
        let all = self.mirrors_in(name.switch());
        all.filter(|mirror| {
            let mirror = self.mirror_at(mirror);
            mirror.is_some_and(|it| it.from.iter().any(|from| from == name.port()))
        })
    }

    fn mirrors_in<'a>(&'a self, switch: &'a SwitchName) -> impl Iterator<Item = &'a PortName> {
        let from = self.notes.mirrors.range(PortName::first_of(switch)..);
        from.take_while(move |mirror| mirror.switch() == switch)
    }

    fn mirror_at(&self, name: &PortName) -> Option<&MirrorConfig> {
        self.state.find_port(name)?.config.mirror.as_deref()
    }

    /// Tells the worker which ports of a mirror are there, if the mirror port is.
    fn tell_mirror(&mut self, name: &PortName) {
        let Some(mirror) = self.mirror_at(name) else { return };
        let points =
            [(mirror.entering, MirrorPoint::Sent), (mirror.leaving, MirrorPoint::Received)];
        let from = mirror.from.iter().filter_map(|from| {
            let port = self.state.find_port(&name.switch().join(from).ok()?)?;
            self.carries_frames(port).filter(|_| port.config.vnet_header == 0)
        });
        let from = from.flat_map(|port| {
            let points = points.into_iter().filter(|(is_asked, _)| *is_asked);
            points.map(move |(_, point)| (port, point))
        });
        let (from, rate): (Vec<_>, u32) = (from.collect(), mirror.rate);
        let key = self.state.find_port(name).and_then(|port| self.carries_frames(port));
        if let Some(key) = key {
            self.datapath.set_mirror(key, rate, &from);
        }
    }

    /// The key of a port whose frames pass the switch now.
    fn carries_frames(&self, port: &Port) -> Option<PortKey> {
        let is_direct = port.kind == PortKind::Pipe;
        let is_there = port.is_live() && self.datapath.number_of(port.key).is_some();
        (is_there && !is_direct).then_some(port.key)
    }
}

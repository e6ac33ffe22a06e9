//! Ports with a network interface of the host.

use port::host::TapQueues;
use protocol::name::PortName;
use protocol::{HostIf, HostIfInfo, PortKind};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::model::error::MakeHostError;
use crate::model::keys::{PortKey, SwitchKey};
use crate::model::opening::{Build, Opening};
use crate::model::specs::HostSpec;

/// Copies of an interface's descriptors, and the name that says which port it is of.
pub type Copies = (String, Vec<OwnedFd>);

/// Ports with a network interface of the host.
pub trait Interfaces {
    /// Starts to open a network interface for a port of `switch`, if that switch exists; `given`
    /// descriptors are open already. `None`: the interface is opened when the port is made.
    fn begin_opening(
        &mut self,
        _switch: Option<SwitchKey>,
        _kind: PortKind,
        _host: &HostIf,
        _given: Option<TapQueues>,
    ) -> Option<(Opening, Build)> {
        None
    }

    /// No port takes the interface: another thread closes it.
    fn cancel_opening(&mut self, _opening: Opening) {}

    /// Work that closes the interfaces of ports that are gone, if there are any.
    fn take_closing(&mut self) -> Option<Build> {
        None
    }

    /// Closes these interfaces in another thread; no call waits for it.
    fn close_in_background(&mut self) {}

    /// Adds a port with a network interface of the host.
    fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError>;

    /// Adds the port without its interface, which another thread opens. An interface that does not
    /// exist is opened when it appears.
    fn add_host_later(&mut self, spec: &HostSpec) -> Result<(), MakeHostError>;

    /// Whether the daemon before this one left the interface of a port that is to be restored.
    fn inherits(&self, _port: &PortName, _kind: PortKind, _wanted: &HostIf) -> bool {
        false
    }

    /// Copies of the descriptors of the first interface from this port on that the next daemon can
    /// go on with, and its port.
    fn hand_over(&self, _from: PortKey) -> io::Result<Option<(PortKey, Copies)>> {
        Ok(None)
    }

    /// Closes interfaces that the daemon before this one left and no port has: all are made.
    fn discard_inherited(&mut self) {}

    /// Waits until each interface is open or has failed, and for `patience` at most.
    fn await_interfaces(&mut self, _patience: Duration) {}

    /// What `port show` says of the interface of a port.
    fn host_info(&self, port: PortKey) -> Option<HostIfInfo>;

    /// One is readable when an interface has changed: then call [`Interfaces::take_host_events`].
    /// The descriptors are the same for as long as the daemon runs.
    fn host_bells(&self) -> Vec<BorrowedFd<'_>>;

    /// Handles what has happened to the interfaces.
    fn take_host_events(&mut self);
}

#[cfg(test)]
mod fake {
    use hostif::HostError;
    use port::host::TapQueues;
    use protocol::{HostIf, HostIfInfo, PortKind};
    use std::os::fd::BorrowedFd;

    use super::Interfaces;
    use crate::control::datapath::ports::Ports;
    use crate::control::fake::Fake;
    use crate::model::error::MakeHostError;
    use crate::model::groups::trust_group;
    use crate::model::keys::{PortKey, SwitchKey};
    use crate::model::opening::{Build, Opening};
    use crate::model::specs::HostSpec;

    impl Interfaces for Fake {
        fn begin_opening(
            &mut self,
            _: Option<SwitchKey>,
            _: PortKind,
            _: &HostIf,
            _: Option<TapQueues>,
        ) -> Option<(Opening, Build)> {
            let opening = Opening::default();
            opening.put(Err(HostError::NoTun));
            self.opens_elsewhere.then(|| (opening, self.build()))
        }

        fn cancel_opening(&mut self, opening: Opening) {
            self.unwanted += usize::from(opening.take().is_some());
        }

        fn add_host(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
            self.allocate()?;
            drop(spec.opening.as_ref().and_then(Opening::take));
            if spec.host.ifname.as_deref() == Some("missing") {
                return Err(HostError::Missing("missing".to_owned()).into());
            }
            self.add_host_later(spec)
        }

        fn add_host_later(&mut self, spec: &HostSpec) -> Result<(), MakeHostError> {
            let group = spec.host.trust_group.as_deref().and_then(trust_group);
            self.grouped.extend(group.map(|group| (spec.key, group)));
            Ok(self.add_null(spec.key, spec.switch, spec.config.clone())?)
        }

        fn host_info(&self, _: PortKey) -> Option<HostIfInfo> {
            None
        }

        fn host_bells(&self) -> Vec<BorrowedFd<'_>> {
            Vec::new()
        }

        fn take_host_events(&mut self) {}
    }
}

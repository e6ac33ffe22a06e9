//! Instances of a service that do not go together.

use std::fmt;

use protocol::name::PortName;

use crate::model::policy::shown_process;

/// An instance that is in the way of another.
#[derive(Debug)]
pub struct Clash {
    /// The service.
    pub service: String,
    /// The instance's port.
    pub port: PortName,
    /// PID of that instance.
    pub pid: u32,
    /// User that runs that instance.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, port, pid, uid, name } = self;
        let process = shown_process(*pid, *uid);
        write!(f, "{name}, {process}, runs at {port} of service {service}")
    }
}

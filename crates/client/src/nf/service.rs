//! Ports of a function, as instances of a service: made where they are not there.

use protocol::name::PortName;
use protocol::{
    ErrorCode, Failure, PortAdd, PortKind, PortRef, PortRequest, PortSettings, Reply, Request,
};

use crate::control::{Connection, ControlError, unexpected};
use crate::{Error, Options, Port};

/// What became of a port that was to be there.
#[derive(Debug)]
enum Added {
    /// The port was created.
    New,
    /// The port exists and stays as it is, or the caller asked for none.
    Known,
    /// Others make the ports of this switch; they may have made this one.
    Refused(Failure),
}

/// The ports of a function that is to start.
#[derive(Debug)]
pub(super) struct Ports {
    connection: Option<Connection>,
    all: Vec<(PortName, Added)>,
}

impl Ports {
    /// Has them be there, if a service is named, counting its instances from a number.
    pub(super) fn add(
        options: &Options,
        service: Option<&(String, u16)>,
        names: &[PortName],
    ) -> Result<Self, Error> {
        let Some((service, first)) = service else {
            return Ok(Self { connection: None, all: Vec::new() });
        };
        let Some(last) = u16::try_from(names.len()).ok().and_then(|n| first.checked_add(n - 1))
        else {
            let why = format!("instances are counted to {}: begin with less", u16::MAX);
            return Err(ControlError::Refused(Failure::new(ErrorCode::BadRequest, why)).into());
        };
        let mut ports = Self { connection: None, all: Vec::new() };
        for (number, name) in (*first..=last).zip(names) {
            ports = ports.and(options, name, service, (*first > 0).then_some(number))?;
        }
        Ok(ports)
    }

    /// Has another one be there.
    pub(super) fn and(
        mut self,
        options: &Options,
        name: &PortName,
        service: &str,
        number: Option<u16>,
    ) -> Result<Self, Error> {
        if name.pci_address().is_some() {
            // `uvala-device` has it already, outside of this machine.
            return Ok(self);
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = Connection::open(options.dir.as_deref())?;
                connection.hello(&options.introduction())?;
                connection
            }
        };
        let added = add_port(&connection, name, service, number);
        self.connection = Some(connection);
        match added {
            Ok(added) => self.all.push((name.clone(), added)),
            Err(error) => {
                self.undo();
                return Err(error.into());
            }
        }
        Ok(self)
    }

    /// Opens one of them.
    pub(super) fn open(&self, options: Options, name: &PortName) -> Result<Port, Error> {
        match self.all.iter().find(|(known, _)| known == name) {
            Some((_, Added::Refused(failure))) => {
                let opened = options.existing(true).open(&name.to_string());
                opened.map_err(|error| match error.code() {
                    Some(ErrorCode::NotFound) => ControlError::Refused(failure.clone()).into(),
                    _ => error,
                })
            }
            _ => options.open(&name.to_string()),
        }
    }

    /// The function could not start: what was made for it goes.
    pub(super) fn undo(self) {
        let Some(connection) = self.connection else { return };
        for (port, _) in self.all.into_iter().filter(|(_, added)| matches!(added, Added::New)) {
            drop(connection.call(Request::Port(PortRequest::Del(PortRef { port }))));
        }
    }
}

fn add_port(
    connection: &Connection,
    port: &PortName,
    service: &str,
    instance: Option<u16>,
) -> Result<Added, ControlError> {
    let settings =
        PortSettings { service: Some(service.to_owned()), instance, ..PortSettings::default() };
    let (port, kind) = (port.clone(), PortKind::Shm);
    let add = PortAdd { port, kind, settings, host: None, machine: None, vxlan: None };
    match connection.call(Request::Port(PortRequest::Add(Box::new(add)))) {
        Ok(Reply::Done) => Ok(Added::New),
        Ok(other) => Err(unexpected(&other)),
        Err(ControlError::Refused(failure)) => match failure.code {
            ErrorCode::Exists => Ok(Added::Known),
            ErrorCode::Permission => Ok(Added::Refused(failure)),
            _ => Err(ControlError::Refused(failure)),
        },
        Err(error) => Err(error),
    }
}

//! The switches of a configuration file as plans: with defaults, for a daemon that starts.

use std::collections::BTreeMap;

use protocol::config::{FileAt, InvalidValue, PortText, SwitchText, ValidationError};
use protocol::name::SwitchName;
use protocol::{ProgramSpec, check};
use switch::SwitchConfig;

use crate::model::plan::{PortPlan, SwitchPlan};
use crate::model::policy::Grant;
use crate::model::settings::{change_grant, change_switch, new_port};
use crate::model::steering::lowest_free;

/// Why no value is refused here.
const CHECKED: &str = "each value was checked where it stands";

/// The plan of a switch.
pub fn plan(text: SwitchText) -> Result<SwitchPlan, InvalidValue> {
    let SwitchText { spec, ports, chains, rules, program, .. } = text;
    let program = program.map(|file| read_program(&spec.switch, file)).transpose()?;
    let settings = spec.settings;
    let instances = instances(&ports);
    let ports = ports.into_iter().map(|port| {
        let instance = instances.get(port.add.port.port()).copied();
        plan_port(port, instance)
    });
    Ok(SwitchPlan {
        config: change_switch(SwitchConfig::default(), &settings).expect(CHECKED),
        persistent: true,
        owner: settings.owner,
        group: settings.group,
        mode: settings.mode,
        new_ports: settings.new_ports.unwrap_or_default(),
        ports: ports.collect(),
        chains,
        rules,
        program,
        name: spec.switch,
    })
}

/// Reads the object file of a forwarding program.
fn read_program(switch: &SwitchName, file: FileAt) -> Result<ProgramSpec, InvalidValue> {
    let FileAt { at, path } = file;
    let read = protocol::file::read_bytes(&path, program::object::FILE_MAX);
    let image = read.map_err(|error| error.to_string());
    let image = image.and_then(|it| program::object::read(&it).map_err(|error| error.to_string()));
    match image {
        Ok(image) => Ok(ProgramSpec { image: image.to_string(), entries: Vec::new() }),
        Err(why) => {
            let why = format!("{}: {why}", path.display());
            let error = ValidationError::Program(switch.clone(), why);
            Err(InvalidValue { at, error })
        }
    }
}

fn plan_port(text: PortText, instance: Option<u16>) -> PortPlan {
    let PortText { add, stations } = text;
    let mut config = new_port(add.kind, &add.settings).expect(CHECKED);
    config.role.instance = instance.unwrap_or(config.role.instance);
    PortPlan {
        host: check::host(&add.port, add.kind, add.host.as_ref()).expect(CHECKED),
        machine: check::machine(add.kind, add.machine.as_ref()).expect(CHECKED),
        vxlan: check::vxlan(add.kind, add.vxlan.as_ref()).expect(CHECKED),
        grant: change_grant(Grant::default(), &add.settings).expect(CHECKED),
        name: add.port,
        kind: add.kind,
        config,
        interface: None,
        stations,
        owner: None,
    }
}

/// Numbers of all instances of services, by port. An instance without a number in the file gets the
/// lowest free one.
fn instances(ports: &[PortText]) -> BTreeMap<String, u16> {
    let all = ports.iter().filter_map(|port| {
        let settings = &port.add.settings;
        Some((port.add.port.port(), settings.service.as_deref()?, settings.instance))
    });
    let set = all.clone().filter_map(|(port, service, number)| Some(((service, number?), port)));
    let mut taken: BTreeMap<(&str, u16), &str> = set.collect();
    for (port, service, _) in all.filter(|(.., number)| number.is_none()) {
        let number = lowest_free(|number| taken.contains_key(&(service, number)));
        taken.insert((service, number), port);
    }
    taken.into_iter().map(|((_, number), port)| (port.to_owned(), number)).collect()
}

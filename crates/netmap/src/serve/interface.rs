//! Interfaces: made, put into switches, taken out, deleted.

use protocol::name::{PortName, SwitchName};
use protocol::{
    InterfaceAdd, InterfaceAttach, InterfacePoll, InterfaceRequest, PollThreads, PortRef, Reply,
    Request as Call,
};
use rustix::io::Errno;

use super::{NO_PORT, chosen, interface_name, list, port_name, shown};
use crate::abi::{
    Name, POLLING_MULTI_CPU, POLLING_SINGLE_CPU, ValeAttach, ValeDetach, ValeList, ValeNewif,
    ValePolling,
};
use crate::daemon::call;

pub(super) fn add(name: &Name, body: &mut ValeNewif) -> Result<(), Errno> {
    let text = str::from_utf8(name.bytes()).map_err(|_| Errno::INVAL)?;
    if text.starts_with(SwitchName::PREFIX) {
        return Err(Errno::INVAL);
    }
    let port = interface_name(text).filter(|name| name.pipe().is_none()).ok_or(Errno::INVAL)?;
    let add = InterfaceAdd {
        port,
        tx_rings: chosen(body.nr_tx_rings),
        rx_rings: chosen(body.nr_rx_rings),
        tx_slots: chosen(body.nr_tx_slots),
        rx_slots: chosen(body.nr_rx_slots),
        mem_id: body.nr_mem_id,
    };
    let Reply::PortGeometry(sizes) = call(Call::Interface(InterfaceRequest::Add(add)))? else {
        return Err(Errno::PROTO);
    };
    (body.nr_tx_rings, body.nr_rx_rings) = (sizes.tx_rings, sizes.rx_rings);
    (body.nr_tx_slots, body.nr_rx_slots) = (sizes.tx_slots, sizes.rx_slots);
    body.nr_mem_id = sizes.mem_id;
    Ok(())
}

pub(super) fn delete(name: &Name) -> Result<(), Errno> {
    let text = str::from_utf8(name.bytes()).map_err(|_| Errno::INVAL)?;
    let port = interface_name(text).ok_or(Errno::NXIO)?;
    call(Call::Interface(InterfaceRequest::Del(PortRef { port }))).map(|_| ())
}

pub(super) fn attach(name: &Name, body: &mut ValeAttach) -> Result<(), Errno> {
    let port = in_a_switch(name)?;
    let (host, mem_id) = (body.reg.nr_mode == crate::abi::mode::NIC_SW, body.reg.nr_mem_id);
    let attach = InterfaceAttach { port, host, mem_id };
    // There is no such interface, and nothing else can be put into a switch.
    call(Call::Interface(InterfaceRequest::Attach(attach))).map_err(no_such(Errno::INVAL))?;
    body.port_index = index_of(name);
    Ok(())
}

pub(super) fn detach(name: &Name, body: &mut ValeDetach) -> Result<(), Errno> {
    let port = in_a_switch(name)?;
    let index = index_of(name);
    call(Call::Interface(InterfaceRequest::Detach(PortRef { port })))?;
    body.port_index = index;
    Ok(())
}

/// Threads that poll an interface of the system; for other ports netmap has none either.
pub(super) fn poll(name: &Name, body: Option<&ValePolling>) -> Result<(), Errno> {
    let port = in_a_switch(name)?;
    let threads = body.map(|body| PollThreads {
        per_ring: body.nr_mode == POLLING_MULTI_CPU,
        first: body.nr_first_cpu_id,
        count: body.nr_num_polling_cpus,
    });
    let known =
        |body: &ValePolling| [POLLING_SINGLE_CPU, POLLING_MULTI_CPU].contains(&body.nr_mode);
    // Of what it is asked for, netmap looks at the port first.
    let polled = match body.is_none_or(known) {
        true => call(Call::Interface(InterfaceRequest::Poll(InterfacePoll { port, threads }))),
        false => shown(name).and(Err(Errno::INVAL)),
    };
    match polled {
        Err(Errno::BUSY) => Err(Errno::FAULT),
        other => other.map(drop),
    }
}

/// `EINVAL` for an interface by its own name.
fn in_a_switch(name: &Name) -> Result<PortName, Errno> {
    let port = port_name(name).map_err(no_such(Errno::INVAL))?;
    if port.is_interface() { Err(Errno::INVAL) } else { Ok(port) }
}

fn no_such(instead: Errno) -> impl Fn(Errno) -> Errno {
    move |error| if error == Errno::NXIO { instead } else { error }
}

/// The number that a listing gives to a port.
fn index_of(name: &Name) -> u32 {
    let (mut name, mut body) = (*name, ValeList::default());
    list(&mut name, &mut body).map_or(NO_PORT, |()| body.nr_port_idx)
}

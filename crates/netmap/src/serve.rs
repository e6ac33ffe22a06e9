//! Requests, carried out by the daemon.
//!
//! A REGISTER goes over the program's own descriptor, which then *is* the port's holder. Everything
//! else goes over a connection of its own that lives for one request: processes that share a
//! descriptor cannot get each other's answers, and nothing stays behind.
//!
//! A request that the daemon cannot serve is refused as netmap refuses what it was built without
//! (`EOPNOTSUPP`), never accepted and ignored; the crate's documentation lists these requests.

mod extmem;
mod extras;
mod interface;

use std::os::fd::RawFd;

use client::ptnet;
use protocol::name::{PortName, SwitchName};
use protocol::{
    Bind, BindKind, Bound, GeometryQuery, HostRings, MonitorOf, Page, PortGeometry,
    PortInfo as ListedPort, PortList, PortRef, PortRequest, PortSet, PortSettings, Reply,
    Request as Call, RingChoice,
};
use rustix::io::Errno;

use crate::abi::{Name, PoolsInfo, PortHdr, PortInfo, Register, ValeList, flag, mode, option};
use crate::daemon::{call, errno_of_port};
use crate::descriptor::Descriptor;
use crate::kloop;
use crate::request::{Body, Request, Server};

use extmem::Memory;
use extras::Extras;

/// Carries out the requests of one descriptor.
#[derive(Debug)]
pub struct Service<'a> {
    descriptor: &'a Descriptor,
    fd: RawFd,
}

/// Number that netmap gives for "no port".
const NO_PORT: u32 = 254;
/// The common region, for requests that name neither port nor region.
const DEFAULT_REGION: u16 = 1;

impl Server for Service<'_> {
    fn serve(&mut self, request: &mut Request) -> Result<(), Errno> {
        let name = request.name;
        match &mut request.body {
            Body::Register(body) => {
                if self.descriptor.binding(self.fd).is_some() {
                    return Err(Errno::BUSY);
                }
                let extras = Extras::read(&mut request.options, &name, body)?;
                request.options.check_all_known()?;
                self.register(&name, body, extras.memory.as_ref())?;
                extras.begin(self.descriptor, self.fd, &mut request.options)
            }
            Body::PortInfoGet(body) => port_info(&name, body),
            Body::PoolsInfoGet(body) => pools_info(&name, body),
            Body::ValeList(body) => list(&mut request.name, body),
            Body::PortHdrGet(body) => {
                body.nr_hdr_len = header_of(&name)?;
                Ok(())
            }
            Body::PortHdrSet(body) => set_header(&name, body),
            Body::ValeAttach(body) => interface::attach(&name, body),
            Body::ValeDetach(body) => interface::detach(&name, body),
            Body::ValeNewif(body) => interface::add(&name, body),
            Body::ValeDelif => interface::delete(&name),
            Body::PollingEnable(body) => interface::poll(&name, Some(body)),
            Body::PollingDisable(_) => interface::poll(&name, None),
            Body::KloopStart(body) => {
                kloop::start((self.descriptor, self.fd), body, &mut request.options)
            }
            Body::KloopStop => self.bound().map(|()| self.descriptor.csb.stop()),
            Body::CsbEnable => {
                let csb = request.options.get(option::CSB).ok_or(Errno::INVAL)?;
                let outcome = self.descriptor.enable_csb(self.fd, &csb);
                request.options.set_status(option::CSB, outcome);
                outcome
            }
            Body::Unknown => Err(Errno::INVAL),
        }
    }
}

impl<'a> Service<'a> {
    /// For the descriptor whose number is `fd`.
    #[must_use]
    pub fn new(descriptor: &'a Descriptor, fd: RawFd) -> Self {
        Self { descriptor, fd }
    }

    /// `ENXIO` unless a port is bound.
    fn bound(&self) -> Result<(), Errno> {
        self.descriptor.binding(self.fd).map(|_| ()).ok_or(Errno::NXIO)
    }

    fn register(
        &self,
        name: &Name,
        body: &mut Register,
        memory: Option<&Memory>,
    ) -> Result<(), Errno> {
        let kind = kind_of(body);
        let rings = match body.nr_mode {
            mode::ALL_NIC | mode::SW | mode::NIC_SW | mode::NULL => RingChoice::All,
            mode::ONE_NIC | mode::ONE_SW => RingChoice::One(body.nr_ringid),
            _ => return port_name(name).and(Err(Errno::INVAL)),
        };
        let side = Side::of(body.nr_mode);
        let mut port = match kind {
            BindKind::Null => {
                port_name(name).or_else(|_| interface_name("null").ok_or(Errno::INVAL))?
            }
            BindKind::Port | BindKind::Monitor(_) | BindKind::Capture(_) | BindKind::Drops(_) => {
                port_name(name)?
            }
        };
        // Ports of a switch, and pipes, have no other side.
        if side != Side::Nic && (!port.is_interface() || port.pipe().is_some()) {
            return Err(Errno::INVAL);
        }
        let other = if kind == BindKind::Null { NO_RINGS } else { other_side(&port) };
        let mut wanted = (body.nr_tx_rings, body.nr_rx_rings);
        let [tx_rings, rx_rings] = [body.nr_host_tx_rings, body.nr_host_rx_rings].map(chosen);
        let host = (side == Side::Both).then_some(HostRings { tx_rings, rx_rings });
        if side == Side::Host {
            port = port.host_side().map_err(|_| Errno::NXIO)?;
            wanted = (body.nr_host_tx_rings, body.nr_host_rx_rings);
        }
        if host.is_some() && kind != BindKind::Port {
            return Err(Errno::OPNOTSUPP);
        }
        let bind = Bind {
            tx_rings: chosen(wanted.0),
            rx_rings: chosen(wanted.1),
            tx_slots: chosen(body.nr_tx_slots),
            rx_slots: chosen(body.nr_rx_slots),
            extra_bufs: body.nr_extra_bufs,
            mem_id: memory.map_or(body.nr_mem_id, Memory::mem_id),
            room: memory.and_then(Memory::room),
            rings,
            tx_only: body.nr_flags & flag::TX_RINGS_ONLY != 0,
            rx_only: body.nr_flags & flag::RX_RINGS_ONLY != 0,
            exclusive: body.nr_flags & flag::EXCLUSIVE != 0,
            no_tx_poll: body.nr_flags & flag::NO_TX_POLL != 0,
            accepts_header: body.nr_flags & flag::ACCEPT_VNET_HDR != 0,
            kind,
            host,
            ..Bind::new(port)
        };
        let accepts = bind.accepts_header;
        let bound = self.descriptor.bind(self.fd, bind).map_err(|error| {
            let kept_away = !accepts && header_of(name).is_ok_and(|bytes| bytes != 0);
            if error == Errno::OPNOTSUPP && kept_away { Errno::IO } else { error }
        });
        registered(body, bound?.bound(), side, other);
        Ok(())
    }
}

/// Which sides of an interface a program opens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Nic,
    Host,
    Both,
}

impl Side {
    fn of(nr_mode: u32) -> Self {
        match nr_mode {
            mode::SW | mode::ONE_SW => Self::Host,
            mode::NIC_SW => Self::Both,
            _ => Self::Nic,
        }
    }
}

/// How many rings, transmit and receive.
type Pair = (u16, u16);

const NO_RINGS: Pair = (0, 0);

/// Rings of the side that is not bound: of an interface a pair is counted, though it is not there.
/// Ports of a switch, and pipes, have no other side; in their netmap_if a pair is counted too.
fn other_side(port: &PortName) -> Pair {
    if port.is_interface() && port.pipe().is_none() { (1, 1) } else { NO_RINGS }
}

/// The reply to a program that has registered; `other`: of the side that it has not bound.
fn registered(body: &mut Register, bound: &Bound, side: Side, other: Pair) {
    let port = &bound.attached;
    (body.nr_offset, body.nr_memsize) = (bound.nifp, port.region_bytes);
    let here = (port.tx_rings, port.rx_rings);
    let host = bound.host.as_ref().map(|host| &host.attached);
    let (nic, stack) = match side {
        Side::Host => (other, here),
        Side::Nic | Side::Both => (here, host.map_or(other, |it| (it.tx_rings, it.rx_rings))),
    };
    (body.nr_tx_rings, body.nr_rx_rings) = nic;
    (body.nr_host_tx_rings, body.nr_host_rx_rings) = stack;
    // Without rings, the number of slots that the program asked for stays.
    if port.tx_rings > 0 {
        body.nr_tx_slots = port.tx_slots;
    }
    if port.rx_rings > 0 {
        body.nr_rx_slots = port.rx_slots;
    }
    // A program that asked for the common region has got it, whatever that region's number is.
    if body.nr_mem_id != DEFAULT_REGION {
        body.nr_mem_id = bound.mem_id;
    }
    body.nr_extra_bufs = port.extra_bufs;
}

/// What a program opens. A monitor without copies sees both directions; the reply says so.
fn kind_of(body: &mut Register) -> BindKind {
    const BOTH: u64 = flag::MONITOR_TX | flag::MONITOR_RX;
    if body.nr_mode == mode::NULL {
        return BindKind::Null;
    }
    let zero_copy = body.nr_flags & flag::ZCOPY_MON != 0;
    if zero_copy {
        body.nr_flags |= BOTH;
    }
    if body.nr_flags & BOTH == 0 {
        return BindKind::Port;
    }
    let [tx, rx] = [flag::MONITOR_TX, flag::MONITOR_RX].map(|bit| body.nr_flags & bit != 0);
    BindKind::Monitor(MonitorOf { tx, rx, zero_copy })
}

/// 0 stands for the default.
fn chosen<T: Default + PartialEq>(number: T) -> Option<T> {
    (number != T::default()).then_some(number)
}

/// The name as one of a port in a switch, or of an interface: netmap leaves out what its libraries
/// write before that. `ENXIO`: no interface has such a name.
fn port_name(name: &Name) -> Result<PortName, Errno> {
    let text = str::from_utf8(name.bytes()).map_err(|_| Errno::INVAL)?;
    match text.starts_with(SwitchName::PREFIX) {
        true => text.parse().map_err(|_| Errno::INVAL),
        false => interface_name(text).ok_or(Errno::NXIO),
    }
}

/// An interface, or the end of a pipe of one.
fn interface_name(text: &str) -> Option<PortName> {
    format!("{}{text}", SwitchName::INTERFACE).parse().ok()
}

/// The port as the daemon lists it.
fn shown(name: &Name) -> Result<ListedPort, Errno> {
    match call(Call::Port(PortRequest::Show(PortRef { port: port_name(name)? })))? {
        Reply::Port(port) => Ok(port),
        _ => Err(Errno::PROTO),
    }
}

fn geometry(query: GeometryQuery) -> Result<PortGeometry, Errno> {
    match call(Call::Port(PortRequest::Geometry(query)))? {
        Reply::PortGeometry(geometry) => Ok(geometry),
        _ => Err(Errno::PROTO),
    }
}

/// What a port with these rings and slots, transmit and receive, is or would be like; 0 stands for
/// the default.
fn port_geometry(
    port: PortName,
    mem_id: u16,
    rings: (u16, u16),
    slots: (u32, u32),
) -> Result<PortGeometry, Errno> {
    if let Some(address) = port.pci_address() {
        return ptnet::geometry(&port, address).map_err(|error| errno_of_port(&error));
    }
    geometry(GeometryQuery {
        port: Some(port),
        mem_id,
        tx_rings: chosen(rings.0),
        rx_rings: chosen(rings.1),
        tx_slots: chosen(slots.0),
        rx_slots: chosen(slots.1),
    })
}

fn port_info(name: &Name, body: &mut PortInfo) -> Result<(), Errno> {
    let mem_id = body.nr_mem_id;
    if name.bytes().is_empty() {
        let mem_id = if mem_id == 0 { DEFAULT_REGION } else { mem_id };
        let region = geometry(GeometryQuery { mem_id, ..GeometryQuery::default() });
        let region = region.map_err(unknown_region)?;
        (body.nr_memsize, body.nr_mem_id) = (region.region_bytes, region.mem_id);
        return Ok(());
    }
    let port = port_name(name)?;
    (body.nr_host_tx_rings, body.nr_host_rx_rings) = other_side(&port);
    let rings = (body.nr_tx_rings, body.nr_rx_rings);
    let slots = (body.nr_tx_slots, body.nr_rx_slots);
    let port = port_geometry(port, mem_id, rings, slots)?;
    (body.nr_memsize, body.nr_mem_id) = (port.region_bytes, port.mem_id);
    (body.nr_tx_rings, body.nr_rx_rings) = (port.tx_rings, port.rx_rings);
    (body.nr_tx_slots, body.nr_rx_slots) = (port.tx_slots, port.rx_slots);
    Ok(())
}

/// What netmap says about a number that no region has.
fn unknown_region(error: Errno) -> Errno {
    if error == Errno::NXIO { Errno::INVAL } else { error }
}

fn pools_info(name: &Name, body: &mut PoolsInfo) -> Result<(), Errno> {
    let port = port_geometry(port_name(name)?, body.nr_mem_id, NO_RINGS, (0, 0))?;
    *body = PoolsInfo { pad1: body.pad1, ..pools(&port) };
    Ok(())
}

fn pools(port: &PortGeometry) -> PoolsInfo {
    PoolsInfo {
        nr_memsize: port.region_bytes,
        nr_mem_id: port.mem_id,
        nr_if_pool_offset: port.ifs.offset,
        nr_if_pool_objtotal: port.ifs.count,
        nr_if_pool_objsize: port.ifs.size,
        nr_ring_pool_offset: port.rings.offset,
        nr_ring_pool_objtotal: port.rings.count,
        nr_ring_pool_objsize: port.rings.size,
        nr_buf_pool_offset: port.buffers.offset,
        nr_buf_pool_objtotal: port.buffers.count,
        nr_buf_pool_objsize: port.buffers.size,
        ..PoolsInfo::default()
    }
}

/// Bytes of the virtio-net header in front of a port's frames.
fn header_of(name: &Name) -> Result<u32, Errno> {
    if port_name(name)?.pci_address().is_some() {
        return Ok(0);
    }
    Ok(shown(name)?.settings.vnet_header.unwrap_or(0).into())
}

/// Sets the length of the header of a port in a switch; pipes and interfaces by their own names
/// have none.
fn set_header(name: &Name, body: &PortHdr) -> Result<(), Errno> {
    let bytes = match body.nr_hdr_len {
        0 => 0,
        10 => 10,
        12 => 12,
        _ => return Err(Errno::INVAL),
    };
    let port = port_name(name)?;
    if port.is_interface() || port.pipe().is_some() {
        return Err(Errno::NXIO);
    }
    let settings = PortSettings { vnet_header: Some(bytes), ..PortSettings::default() };
    call(Call::Port(PortRequest::Set(Box::new(PortSet { port, settings, vxlan: None }))))
        .map(|_| ())
}

/// All ports that the program may see, in order.
fn ports() -> Result<Vec<PortName>, Errno> {
    let mut names = Vec::new();
    let mut from = None;
    loop {
        let query = PortList { from, ..PortList::default() };
        let Reply::Ports(Page { items, next }) = call(Call::Port(PortRequest::List(query)))? else {
            return Err(Errno::PROTO);
        };
        let is_listed = |name: &PortName| name.pipe().is_none() && !name.is_interface();
        let port = |listed: ListedPort| Some(listed.port).filter(is_listed);
        names.extend(items.into_iter().filter_map(port));
        from = next;
        if from.is_none() {
            return Ok(names);
        }
    }
}

/// Numbers switches and ports in the order of the daemon's list.
fn list(name: &mut Name, body: &mut ValeList) -> Result<(), Errno> {
    let wanted = if name.bytes().is_empty() { None } else { Some(vale_switch(name)?) };
    let ports = ports()?;
    let mut switches: Vec<_> = ports.iter().map(PortName::switch).collect();
    switches.dedup();
    let switches = &switches[..];
    let members = |at: usize| ports.iter().filter(move |port| port.switch() == switches[at]);
    let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let bridge = |at: usize| u16::try_from(at).unwrap_or(u16::MAX);
    if let Some(switch) = wanted {
        let at = switches.iter().position(|known| known.as_str() == switch);
        let at = at.ok_or(Errno::NOENT)?;
        let port = members(at).position(|port| port.to_string().as_bytes() == name.bytes());
        (body.nr_bridge_idx, body.nr_port_idx) = (bridge(at), port.map_or(NO_PORT, number));
        return Ok(());
    }
    let mut from = usize::try_from(body.nr_port_idx).unwrap_or(usize::MAX);
    for at in usize::from(body.nr_bridge_idx)..switches.len() {
        if let Some((i, port)) = members(at).enumerate().nth(from) {
            name.set(port.to_string().as_bytes());
            (body.nr_bridge_idx, body.nr_port_idx) = (bridge(at), number(i));
            return Ok(());
        }
        from = 0;
    }
    Err(Errno::NOENT)
}

/// The switch of a name, port or not.
fn vale_switch(name: &Name) -> Result<String, Errno> {
    let text = str::from_utf8(name.bytes()).map_err(|_| Errno::INVAL)?;
    let switch = text.split(':').next().unwrap_or_default();
    if switch.starts_with("vale") { Ok(switch.to_owned()) } else { Err(Errno::INVAL) }
}

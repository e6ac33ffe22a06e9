//! A port in a guest: the region of a ptnet device, found through sysfs.
//!
//! # Theory of operation
//!
//! A client of a daemon gets its port's memory and doorbells as descriptors. In a guest there is no
//! daemon. `uvala-device`, outside, has attached to the port and lends the guest the same memory as
//! BAR 4 of a PCI device. So a port is opened by the address of its device, `netmap:0000:00:04.0`,
//! and what a daemon would have told stands in the device's registers:
//!
//! ```text
//!                 a daemon's reply        /sys/bus/pci/devices/ADDRESS/
//!   numbers       Attached, Bound         resource0: registers
//!   region        memfd                   resource4
//!   kick          eventfd                 resource0: a write to a doorbell
//!   wake          socket                  a timer
//! ```
//!
//! *Waiting.* The device's interrupts need a driver, and none is loaded. A thread that would sleep
//! sleeps until the next tick of a timer (`crate::ticks`), and looks at its rings. Threads yield
//! before they sleep, as everywhere ([`crate::wait`]).
//!
//! *The end of the switch.* The device counts `EPOCH` up when the rings are no longer those that
//! were started. A port looks at it now and then, and is lost as when a daemon ends. It may be
//! opened again at once.
//!
//! *One program.* A program that opens the port locks `resource0` (`flock`). Another program, or
//! another descriptor of the same one, is refused: the rings have one owner. The lock goes with its
//! last copy, and closing that stops the rings. One that is killed leaves them
//! running, and full, until the next one takes them over.
//!
//! *Trust.* What the registers say is checked as a daemon's reply is (`geometry`).

use protocol::name::PortName;
use protocol::{Attached, Bind, BindKind, Bound, Pool, PortGeometry};
use ring::abi::{NetmapRing, Slot};
use ring::layout::PAGE;
use ring::ptnet::{register, status};

use crate::control::PortFds;
use crate::geometry::Geometry;
use crate::kick::Kick;
pub use crate::registers::{DeviceError, devices, directory};
use crate::registers::{Registers, open};
use crate::ticks::timer;
use crate::{Error, Lost};

/// Opens the port, as a daemon's client does.
pub(crate) fn attach(name: &PortName, address: &str) -> Result<(Attached, PortFds), Error> {
    check(name, address)?;
    let mut registers = Registers::open(address)?;
    registers.start()?;
    let attached = attached(&registers, name)?;
    if !registers.are_those_of_the_start() {
        return Err(Lost.into());
    }
    let region = open(&directory(address).join("resource4"))?;
    let wake = timer().map_err(Error::Doorbell)?;
    Ok((attached, PortFds { region, kick: Kick::Device(registers), wake }))
}

/// Opens the port as a netmap program does.
///
/// # Errors
/// There is no such port, it is in use, or the request is for something else than a port.
pub fn bind(bind: &Bind, address: &str) -> Result<(Bound, PortFds), Error> {
    let unsupported = |what| Err(DeviceError::Unsupported(address.to_owned(), what).into());
    if bind.kind != BindKind::Port {
        return unsupported("monitors");
    }
    if bind.host.is_some() {
        return unsupported("rings of a host's side");
    }
    if bind.room.is_some() || ![0, COMMON, mem_id(address)].contains(&bind.mem_id) {
        return unsupported("memory other than its own");
    }
    let (attached, fds) = attach(&bind.port, address)?;
    let Some([tx, rx]) = bind.rings_of(attached.tx_rings, attached.rx_rings) else {
        return unsupported("a ring of this number");
    };
    let bound = Bound {
        nifp: attached.block,
        attached,
        mem_id: mem_id(address),
        peer_block: None,
        tx,
        rx,
        exclusive: bind.exclusive,
        no_tx_poll: bind.no_tx_poll,
        host: None,
    };
    Ok((bound, fds))
}

/// Sizes of the port and of its region.
///
/// # Errors
/// There is no such port.
pub fn geometry(name: &PortName, address: &str) -> Result<PortGeometry, Error> {
    check(name, address)?;
    let attached = attached(&Registers::open(address)?, name)?;
    let port = Geometry::new(&attached)?.port;
    let slots = attached.tx_slots.max(attached.rx_slots) as usize;
    let pool = |offset: u64, count: u32, size: usize| Pool {
        offset,
        count,
        size: u32::try_from(size).expect("smaller than a region"),
    };
    Ok(PortGeometry {
        mem_id: mem_id(address),
        region_bytes: attached.region_bytes,
        tx_rings: attached.tx_rings,
        rx_rings: attached.rx_rings,
        tx_slots: attached.tx_slots,
        rx_slots: attached.rx_slots,
        ifs: pool(attached.block, 1, PAGE),
        rings: pool(
            port.ring(0) as u64,
            u32::from(attached.tx_rings) + u32::from(attached.rx_rings),
            size_of::<NetmapRing>() + slots * size_of::<Slot>(),
        ),
        buffers: pool(attached.pool, attached.buffers, attached.stride as usize),
    })
}

/// A device has one port, and nothing beside it.
fn check(name: &PortName, address: &str) -> Result<(), DeviceError> {
    let unsupported = |what| Err(DeviceError::Unsupported(address.to_owned(), what));
    match (name.pipe(), name.is_host_side()) {
        (Some(_), _) => unsupported("pipes"),
        (None, true) => unsupported("rings of a host's side"),
        (None, false) => Ok(()),
    }
}

/// What a daemon would say of the port.
fn attached(registers: &Registers, name: &PortName) -> Result<Attached, Error> {
    let rings = |register| {
        let count = registers.read(register)?;
        u16::try_from(count).map_err(|_| Error::Geometry("number of rings"))
    };
    let attached = Attached {
        port: name.clone(),
        region_bytes: registers.read(register::REGION_LEN)?.into(),
        block: registers.read(register::NIFP_OFS)?.into(),
        pool: registers.read(register::BUF_OFS)?.into(),
        stride: registers.read(register::BUF_SIZE)?,
        buffers: registers.read(register::NUM_BUFS)?,
        tx_rings: rings(register::NUM_TX_RINGS)?,
        rx_rings: rings(register::NUM_RX_RINGS)?,
        tx_slots: registers.read(register::NUM_TX_SLOTS)?,
        rx_slots: registers.read(register::NUM_RX_SLOTS)?,
        extra_bufs: 0,
        peer_block: None,
        function: registers.read(register::STATUS)? & status::FUNCTION != 0,
    };
    let port = Geometry::new(&attached)?.port;
    let words = [
        (register::BELL_OFS, port.bell()),
        (register::ATOK_OFS, port.atok(0)),
        (register::KTOA_OFS, port.ktoa(0)),
    ];
    for (register, place) in words {
        if usize::try_from(registers.read(register)?).ok() != Some(place) {
            return Err(Error::Geometry("place of the status blocks"));
        }
    }
    Ok(attached)
}

/// The number by which netmap programs ask for the common region.
const COMMON: u16 = 1;

/// A number for the region, by which programs tell those of several devices apart: bus, device and
/// function, with the domain mixed in.
fn mem_id(address: &str) -> u16 {
    let mut numbers = address.split([':', '.']);
    let mut next = || u32::from_str_radix(numbers.next().unwrap_or_default(), 16).unwrap_or(0);
    let (domain, bus, device, function) = (next(), next(), next(), next());
    let id = (bus & 0xff) << 8 | (device & 0x1f) << 3 | function & 7;
    let mixed = id ^ domain.wrapping_mul(0x9e37_79b1) >> 16;
    u16::try_from(mixed).unwrap_or(u16::MAX).max(COMMON + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_device_has_a_number_that_no_other_of_its_domain_has() {
        let numbers = ["0000:00:01.0", "0000:00:04.0", "0000:00:04.7", "0000:ff:1f.7"].map(mem_id);
        assert_eq!(numbers, [8, 32, 39, 0xffff]);
        assert_eq!(["0000:00:00.0", "0000:00:00.1"].map(mem_id), [2; 2], "neither none nor common");
        assert_ne!(mem_id("10000:00:01.0"), mem_id("0000:00:01.0"));
    }

    #[test]
    fn test_a_device_has_no_pipes_and_no_host_side() {
        for (name, what) in [("{1", "pipes"), ("^", "rings of a host's side")] {
            let name: PortName = format!("netmap:0000:7f:1f.7{name}").parse().unwrap();
            let error = attach(&name, name.pci_address().unwrap()).unwrap_err().to_string();
            assert_eq!(error, format!("0000:7f:1f.7 is a port of a device, without {what}"));
        }
    }
}

//! A ptnet device as its VMM sees it: registers, vectors, and the port's region as a BAR.
//!
//! | region | holds |
//! |---|---|
//! | BAR 0 | registers and doorbells, as I/O ports |
//! | BAR 2 | the table of vectors; behind it the doorbells once more, whose writes are posted |
//! | BAR 4 | the port's region, which the VMM maps |
//!
//! An access moves no frame. It notes what is to be done after the reply, but for a start of the
//! rings, which has ended when its reply is sent.
//!
//! *One program after another.* The rings stay where they are when a program in the guest ends,
//! also if it is killed. The next one finds them as a program on a host finds new ones: empty, and
//! with a buffer in each slot that is in no other. The former is done here; for the latter the
//! daemon is asked, which knows whose the buffers of a trust group are.

mod relay;
mod serve;

use std::os::fd::AsFd;

use client::PortMemory;
use device::ptnet::{Effect, Geometry, IO_LEN, KICK, Ptnet, RINGS_MAX};
use packet::MacAddr;
use ring::doorbell::WakeBy;
use ring::lent::LentRings;
use ring::user::RxRing;
use ring::wake::PortWake;
use rustix::io::Errno;
use terminal::say;
use vfio::{Area, Description, Device, Irq, Mappable, Region, irq, region};

use crate::pci::{CONFIG_LEN, ConfigSpace, Identity};
use relay::Relay;
pub use serve::Server;

/// The regions of vectors and of memory.
const VECTORS: u32 = region::BAR0 + 2;
const MEMORY: u32 = region::BAR0 + 4;
/// Offsets in the former: the table of vectors, the bits that pend, and the doorbells.
const TABLE: u32 = 0;
const PENDING: u32 = 0x800;
const DOORBELLS: u32 = 0x1000;
const VECTORS_LEN: u64 = 0x2000;

/// netmap's ptnet. The card is another one, for its driver finds the memory elsewhere.
const IDENTITY: Identity = Identity {
    device: ring::ptnet::IDENTITY,
    subsystem: [0x1b36, 0x0001],
    revision: 0,
    class: [2, 0, 0],
    regions: [0, 0],
};

/// Where everything lies in a port's memory.
fn geometry(memory: &PortMemory) -> Geometry {
    let (region, port) = (memory.region().layout(), memory.layout());
    let counts = port.counts();
    let at = |offset: usize| u32::try_from(offset).expect("a region is below 4 GiB");
    Geometry {
        region_len: at(region.size()),
        buffers: region.buffers,
        pool: at(region.pool),
        stride: region.stride,
        nifp: at(port.nifp()),
        bell: at(port.bell()),
        atok: at(port.atok(0)),
        ktoa: at(port.ktoa(0)),
        rings: [counts.tx_rings, counts.rx_rings],
        slots: [counts.tx_slots.slots(), counts.rx_slots.slots()],
    }
}

/// Bytes of the BAR with a port's memory.
fn memory_len(geometry: &Geometry) -> u64 {
    u64::from(geometry.region_len).next_power_of_two()
}

/// Vectors: one for each ring, and one for changes.
fn vectors(geometry: &Geometry) -> u16 {
    let [tx, rx] = geometry.rings;
    tx + rx + 1
}

/// Checks that each ring has a doorbell and a vector. The port was asked for with so few, but the
/// daemon says what it has.
fn check_rings([tx, rx]: [u16; 2]) -> std::io::Result<()> {
    if u32::from(tx) + u32::from(rx) <= u32::from(RINGS_MAX) {
        return Ok(());
    }
    Err(std::io::Error::other(format!(
        "it has {tx} + {rx} rings, and a ptnet has {RINGS_MAX} at most; ask for another --port, or \
         for fewer --queues; is the daemon another version of uvala?"
    )))
}

/// The regions and interrupts of a device with this memory.
///
/// # Errors
/// The port has more rings than a ptnet can have; no descriptors left.
pub fn description(memory: &PortMemory) -> std::io::Result<Description> {
    let (geometry, mut description) = (geometry(memory), Description::default());
    check_rings(geometry.rings)?;
    let size = u64::from(geometry.region_len);
    let areas = vec![Area { offset: 0, size }];
    let fd = memory.as_fd().try_clone_to_owned()?;
    let mappable = Some(Mappable { fd, offset: 0, areas });
    let regions = &mut description.regions;
    regions[region::BAR0 as usize] = Region::of(IO_LEN.into());
    regions[VECTORS as usize] = Region::of(VECTORS_LEN);
    regions[MEMORY as usize] = Region { size: memory_len(&geometry), mappable };
    regions[region::CONFIG as usize] = Region::of(CONFIG_LEN as u64);
    description.irqs[irq::MSIX as usize] = Irq::Vectors(vectors(&geometry));
    Ok(description)
}

/// Which process is the switch's side of the guest's rings.
#[derive(Debug)]
enum Rings {
    /// The switch: the region is that of the port.
    Switch,
    /// While no driver has them, this one takes frames out and drops them.
    Drain(Vec<RxRing>),
    /// No process: the port has another region by now, or there is none. The driver has not
    /// started them since.
    Lost,
    /// This one.
    Relay(Box<Relay>),
}

/// The device.
#[derive(Debug)]
pub struct Nic {
    config: ConfigSpace,
    model: Ptnet,
    memory: PortMemory,
    rings: Rings,
    sleepers: LentRings,
    /// The memory is that of a trust group.
    is_shared: bool,
    /// A program has had the rings.
    is_used: bool,
    /// The driver has kicked since the last look.
    kicked: bool,
    kicks: u64,
}

impl Nic {
    /// A device after its reset, on a port whose memory it has; [`description`] has accepted that.
    pub fn new(mac: MacAddr, memory: PortMemory, is_shared: bool) -> Self {
        let geometry = geometry(&memory);
        let config = ConfigSpace::new(IDENTITY)
            .with_io(0, IO_LEN)
            .with_memory(2, VECTORS_LEN)
            .with_memory(4, memory_len(&geometry))
            .with_vectors(vectors(&geometry), 2, [TABLE, PENDING]);
        let model = Ptnet::new(mac.octets(), &geometry);
        let rings = Rings::Drain(drain(&memory));
        let sleepers = LentRings::new(memory.region(), memory.layout());
        let (is_used, kicked, kicks) = (false, false, 0);
        Self { config, model, memory, rings, sleepers, is_shared, is_used, kicked, kicks }
    }

    /// The port is gone, and with it the switch's side of the rings.
    fn lose_port(&mut self) {
        if matches!(self.rings, Rings::Switch | Rings::Drain(_)) {
            self.model.lose_rings();
            self.rings = Rings::Lost;
        }
    }

    /// Whether no switch and no relay will be the other side of these rings again.
    fn is_at_its_end(&self) -> bool {
        self.is_shared && matches!(self.rings, Rings::Lost)
    }

    fn obey(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Kick => (self.kicked, self.kicks) = (true, self.kicks + 1),
            Effect::Start => self.start(),
            Effect::Stop => self.stop(),
        }
    }

    fn start(&mut self) {
        self.rings = match std::mem::replace(&mut self.rings, Rings::Lost) {
            Rings::Switch => Rings::Switch,
            Rings::Drain(rings) => {
                self.hand_over(rings);
                Rings::Switch
            }
            // Other members have their buffers there, and perhaps a process like this one.
            Rings::Lost | Rings::Relay(_) if self.is_shared => {
                self.model.refuse_start(Errno::NODEV.raw_os_error().unsigned_abs());
                Rings::Lost
            }
            Rings::Lost | Rings::Relay(_) => match Relay::new(&self.memory) {
                Ok(relay) => Rings::Relay(Box::new(relay)),
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(Errno::NOMEM.raw_os_error());
                    self.model.refuse_start(errno.unsigned_abs());
                    Rings::Lost
                }
            },
        };
    }

    /// Makes the rings of the port ready for a program.
    fn hand_over(&mut self, rings: Vec<RxRing>) {
        for mut ring in rings {
            let count = ring.refresh();
            self.kicked |= ring.release(count);
        }
        if std::mem::replace(&mut self.is_used, true)
            && let Err(error) = self.memory.recover()
        {
            say::remark(format_args!(
                "uvala-device: the rings are as a program left them: {error}"
            ));
        }
        self.sleepers.begin();
    }

    fn stop(&mut self) {
        match self.rings {
            Rings::Switch => self.rings = Rings::Drain(drain(&self.memory)),
            Rings::Relay(_) => self.rings = Rings::Lost,
            Rings::Drain(_) | Rings::Lost => {}
        }
    }
}

/// The receive rings where the driver has left them.
fn drain(memory: &PortMemory) -> Vec<RxRing> {
    let (region, port) = (memory.region(), memory.layout());
    PortWake::new(region, port).words().sleep_by(WakeBy::Descriptor);
    (0..port.counts().rx_rings).map(|ring| RxRing::new(region, port, ring)).collect()
}

/// A word of an access, if it is one.
fn word(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_le_bytes)
}

impl Device for Nic {
    fn read(&mut self, region: u32, offset: u64, to: &mut [u8]) {
        match (region, u32::try_from(offset), to.len()) {
            (region::CONFIG, Ok(offset), _) => self.config.read(offset as usize, to, false),
            (region::BAR0, Ok(offset), 4) => {
                to.copy_from_slice(&self.model.read(offset, 4).to_le_bytes());
            }
            // What the VMM does not map it may read, as zeros.
            _ => to.fill(0),
        }
    }

    fn write(&mut self, region: u32, offset: u64, from: &[u8]) {
        let Ok(at) = u32::try_from(offset) else { return };
        let effect = match (region, word(from)) {
            (region::CONFIG, _) => return self.config.write(at as usize, from),
            (region::BAR0, Some(value)) => self.model.write(at, 4, value),
            (VECTORS, Some(_)) if at >= DOORBELLS && at.is_multiple_of(4) => {
                self.model.kick((at - DOORBELLS) / 4)
            }
            _ => Effect::None,
        };
        self.obey(effect);
    }

    fn reset(&mut self) {
        self.config.reset();
        self.model.reset();
        self.stop();
    }

    fn line(&self) -> bool {
        false
    }
}

const _: () = assert!(KICK + 4 * RINGS_MAX as u32 <= IO_LEN);
const _: () = assert!(16 * (RINGS_MAX as u32 + 1) <= PENDING);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_more_rings_than_there_are_doorbells_is_refused() {
        for few in [[1, 1], [RINGS_MAX / 2; 2], [1, RINGS_MAX - 1]] {
            assert!(check_rings(few).is_ok(), "{few:?}");
        }
        for many in [[RINGS_MAX, 1], [RINGS_MAX / 2 + 1; 2], [u16::MAX; 2]] {
            let error = check_rings(many).expect_err("too many").to_string();
            assert!(error.contains("--queues"), "{error}");
        }
    }
}

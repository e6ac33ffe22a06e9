//! What a VMM may say to a vfio-user device.

use ::vfio::message::{BODY_MAX, HEADER, Header, Request};
use ::vfio::{Area, Description, Device, Irq, MAPS_MAX, Mappable, Region, Session, irq, region};
use ring::guest::{Reader, Writer};

use crate::Input;
use crate::machine::descriptor;

const BAR: usize = 64;
/// Every command, and some that are not.
const COMMANDS: u8 = 16;

/// A device whose registers keep what is written.
struct Scratchpad([u8; 2 * BAR]);

impl Device for Scratchpad {
    fn read(&mut self, _: u32, offset: u64, to: &mut [u8]) {
        let at = usize::try_from(offset).expect("bounded");
        to.copy_from_slice(&self.0[at..at + to.len()]);
    }

    fn write(&mut self, _: u32, offset: u64, from: &[u8]) {
        let at = usize::try_from(offset).expect("bounded");
        self.0[at..at + from.len()].copy_from_slice(from);
    }

    fn reset(&mut self) {
        self.0.fill(0);
    }

    fn line(&self) -> bool {
        self.0[0] & 1 != 0
    }
}

fn description() -> Description {
    let mut description = Description::default();
    description.regions[region::BAR0 as usize] = Region::of(BAR as u64);
    let areas = vec![Area { offset: 0, size: 4096 }];
    let mappable = Some(Mappable { fd: descriptor(0), offset: 0, areas });
    description.regions[2] = Region { size: BAR as u64, mappable };
    description.regions[region::CONFIG as usize] = Region::of(2 * BAR as u64);
    description.irqs[irq::INTX as usize] = Irq::Line;
    description.irqs[irq::MSIX as usize] = Irq::Vectors(3);
    description
}

/// Whatever a VMM says, its device is accessed within its regions, its memory is reached where it
/// was mapped, and each request has a reply that says no more than it may.
pub fn vfio_user_message(data: &[u8]) {
    let mut input = Input(data);
    let header = Header::parse(input.bytes::<HEADER>());
    if let Ok(header) = &header {
        assert!(header.body <= BODY_MAX);
    }
    let header = Header { id: 1, command: 1, body: 0, no_reply: false };
    let (description, mut device) = (description(), Scratchpad([0; 2 * BAR]));
    let mut session = opened(&description, &mut device);
    for _ in 0..60 {
        if input.is_empty() {
            break;
        }
        let command = u16::from(input.u8() % COMMANDS);
        let body = body(&mut input);
        let fds = (0..input.below(4)).map(|_| descriptor(input.u8())).collect();
        let Ok(request) = Request::parse(command, &body, fds) else { continue };
        let most = most(&request);
        match session.handle(&mut device, request) {
            Err(_) => session = opened(&description, &mut device),
            Ok(Ok((body, fd))) => {
                assert!(body.len() <= most, "{command}: {} bytes", body.len());
                assert!(fd.is_none() || command == 5, "only a region has a descriptor");
                assert_eq!(header.reply(&body).len(), HEADER + body.len());
            }
            Ok(Err(refused)) => {
                assert!(refused.errno.raw_os_error() > 0 && !refused.why.is_empty());
                assert_eq!(header.error(refused.errno).len(), HEADER);
            }
        }
        use_it(&mut session, &mut input);
    }
}

/// A session that has begun.
fn opened<'a>(description: &'a Description, device: &mut Scratchpad) -> Session<'a> {
    let mut session = Session::new(description);
    let version = Request::parse(1, &[0; 4], Vec::new()).expect("a version");
    session.handle(device, version).expect("the first").expect("ours").0.clear();
    session
}

/// The most bytes that a request's reply may have.
fn most(request: &Request) -> usize {
    match request {
        Request::RegionRead { count, .. } => 16 + *count as usize,
        Request::RegionInfo { room, .. } => (*room as usize).max(32),
        Request::DmaMap(_) | Request::SetIrqs(_) | Request::Reset => 0,
        Request::Version { .. } => 200,
        _ => 24,
    }
}

/// Words, most of them small or a number of pages, and some bytes.
fn body(input: &mut Input<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..input.below(10) {
        let shift = [0, 0, 0, 12][input.below(4)];
        body.extend((u32::from(input.u16()) << shift).to_ne_bytes());
    }
    body.extend((0..input.below(8)).map(|_| input.u8()));
    body
}

/// What a device does with what it was given.
fn use_it(session: &mut Session<'_>, input: &mut Input<'_>) {
    let (all, unreached) = session.dma().counts();
    let memory = session.dma().memory();
    assert!(all <= MAPS_MAX && memory.extents().len() + unreached == all);
    let mut slices = Vec::new();
    if memory.slices(u64::from(input.u16()) << 4, 40, &mut slices, 9) {
        let mut bytes = [0; 40];
        Reader::new(memory, &slices).read(&mut bytes);
        Writer::new(memory, &slices).write(&bytes);
    }
    let bits = input.u8();
    let interrupts = session.interrupts_mut();
    interrupts.send(u16::from(bits >> 1 & 3));
    if bits & 8 != 0 {
        interrupts.unmasked();
    }
}

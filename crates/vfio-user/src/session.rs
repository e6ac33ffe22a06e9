//! A session: what a VMM has passed since it connected, and the answers to its requests.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::connection::Ended;
use crate::device::{Description, Device, Irq};
use crate::dma::{DmaTable, MAPS_MAX};
use crate::interrupts::Interrupts;
use crate::message::{
    self, Request, TRANSFER_MAX, access_reply, device_reply, irq_reply, region_reply, unmap_reply,
    version_reply,
};
use crate::refused::Refused;

/// The body of a reply, and the descriptor beside it.
pub type Reply<'a> = (Vec<u8>, Option<BorrowedFd<'a>>);

/// A session with a VMM.
#[derive(Debug)]
pub struct Session<'a> {
    description: &'a Description,
    /// The version was agreed on.
    is_open: bool,
    dma: DmaTable,
    interrupts: Interrupts,
}

impl<'a> Session<'a> {
    /// A session that has not begun.
    #[must_use]
    pub fn new(description: &'a Description) -> Self {
        let interrupts = Interrupts::new(description);
        Self { description, is_open: false, dma: DmaTable::default(), interrupts }
    }

    /// Whether the VMM has said which version it speaks.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The guest's memory.
    #[must_use]
    pub fn dma(&self) -> &DmaTable {
        &self.dma
    }

    /// The interrupts of the device.
    #[must_use]
    pub fn interrupts(&self) -> &Interrupts {
        &self.interrupts
    }

    /// The interrupts of the device, to raise them.
    pub fn interrupts_mut(&mut self) -> &mut Interrupts {
        &mut self.interrupts
    }

    /// Serves a request. The inner error is the answer.
    ///
    /// # Errors
    /// [`Ended`]: the session cannot go on.
    pub fn handle(
        &mut self,
        device: &mut impl Device,
        request: Request,
    ) -> Result<Result<Reply<'a>, Refused>, Ended> {
        match request {
            Request::Version { major, minor, capabilities } if !self.is_open => {
                if !message::is_served(major) {
                    return Err(Ended::Version(major));
                }
                self.is_open = true;
                Ok(Ok((version_reply(minor, &capabilities, MAPS_MAX), None)))
            }
            Request::Version { .. } => Err(Ended::Order("a second version")),
            _ if !self.is_open => Err(Ended::Order("a request in front of the version")),
            request => {
                // The VMM unmasks the line right behind an access that lowers it.
                self.interrupts.set_line(device.line());
                let answer = self.answer(device, request);
                self.interrupts.set_line(device.line());
                Ok(answer)
            }
        }
    }

    fn answer(&mut self, device: &mut impl Device, request: Request) -> Result<Reply<'a>, Refused> {
        let Description { regions, irqs } = self.description;
        let body = match request {
            Request::DmaMap(map) => {
                self.dma.map(map)?;
                Vec::new()
            }
            Request::DmaUnmap { address, size, all } => {
                if all {
                    self.dma.clear();
                } else {
                    self.dma.unmap(address, size)?;
                }
                unmap_reply(address, size)
            }
            Request::DeviceInfo => device_reply(regions.len(), irqs.len()),
            Request::RegionInfo { room, index } => {
                let region = at(regions, index, "region")?;
                return Ok(region_reply(room, index, region));
            }
            Request::IrqInfo(index) => {
                let irq = *at(irqs, index, "kind of interrupts")?;
                irq_reply(index, irq.count(), irq == Irq::Line)
            }
            Request::SetIrqs(request) => {
                self.interrupts.set(request)?;
                Vec::new()
            }
            Request::RegionRead { region, offset, count } => {
                self.check(region, offset, count)?;
                let mut body = access_reply(region, offset, count);
                let data = body.len();
                body.resize(data + count as usize, 0);
                device.read(region, offset, &mut body[data..]);
                body
            }
            Request::RegionWrite { region, offset, data } => {
                let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
                self.check(region, offset, count)?;
                device.write(region, offset, &data);
                access_reply(region, offset, count)
            }
            Request::Reset => {
                device.reset();
                Vec::new()
            }
            Request::Version { .. } | Request::Unknown => {
                return Err(Refused::new(Errno::OPNOTSUPP, "a command that is not served"));
            }
        };
        Ok((body, None))
    }

    /// Checks the bounds of an access.
    fn check(&self, region: u32, offset: u64, count: u32) -> Result<(), Refused> {
        let size = at(&self.description.regions, region, "region")?.size;
        let end = offset.checked_add(count.into());
        if count <= TRANSFER_MAX && end.is_some_and(|end| end <= size) {
            return Ok(());
        }
        let why = format!("an access of {count} bytes at {offset:#x} of region {region}");
        Err(Refused::new(Errno::INVAL, why))
    }
}

fn at<'a, T>(all: &'a [T], index: u32, what: &str) -> Result<&'a T, Refused> {
    let found = usize::try_from(index).ok().and_then(|index| all.get(index));
    found.ok_or_else(|| Refused::new(Errno::INVAL, format!("{what} {index}, which is not there")))
}

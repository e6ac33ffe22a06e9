//! What the options of a REGISTER ask for beside the port.
//!
//! netmap binds first, looks at its options then, and unbinds where they are wrong. A daemon's port
//! would be seen to come and go, so here the options are judged first, against what the port will
//! be, and nothing is bound where they are wrong.

use std::os::fd::RawFd;

use protocol::PortGeometry;
use ring::sync::offsets::Offsets;
use rustix::io::Errno;

use super::extmem::Memory;
use super::{port_geometry, port_name};
use crate::abi::{Name, OptCsb, OptExtmem, OptOffsets, Register, flag, mode, option};
use crate::csb::CsbMode;
use crate::descriptor::Descriptor;
use crate::request::Options;

/// What a REGISTER asks for.
pub struct Extras {
    csb: Option<OptCsb>,
    offsets: Option<Offsets>,
    /// The program's own memory.
    pub memory: Option<Memory>,
}

impl Extras {
    /// Reads the options that are known, and says in them how they fare.
    ///
    /// # Errors
    /// What netmap says of the first that is wrong.
    pub fn read(options: &mut Options, name: &Name, body: &Register) -> Result<Self, Errno> {
        let mut memory = None;
        if let Some(asked) = options.get::<OptExtmem>(option::EXTMEM) {
            let checked = Memory::read(&asked, body);
            options.set_status(option::EXTMEM, checked.as_ref().map(drop).map_err(|error| *error));
            memory = Some(checked?);
        }
        let mut offsets = None;
        if let Some(asked) = options.get::<OptOffsets>(option::OFFSETS) {
            let checked = check_offsets(&asked, name, body);
            options.set_status(option::OFFSETS, checked.map(drop));
            offsets = Some(checked?);
        }
        let csb: Option<OptCsb> = options.get(option::CSB);
        if let Some(csb) = &csb {
            let outcome = check_csb(csb, name, body);
            options.set_status(option::CSB, outcome);
            outcome?;
        }
        Ok(Self { csb, offsets, memory })
    }

    /// Does what was asked for, once the port is bound.
    ///
    /// # Errors
    /// `EBUSY`: others use the same rings with other offsets; or the program has changed its memory
    /// since it asked. The descriptor stays bound, for nothing but to be closed.
    pub fn begin(
        &self,
        descriptor: &Descriptor,
        fd: RawFd,
        options: &mut Options,
    ) -> Result<(), Errno> {
        if let (Some(memory), Some(binding)) = (&self.memory, descriptor.binding(fd)) {
            let placed = memory.place(binding);
            options.set_status(option::EXTMEM, placed.map(drop));
            options.set(option::EXTMEM, &placed?);
        }
        if let (Some(offsets), Some(binding)) = (self.offsets, descriptor.binding(fd)) {
            let outcome = binding.rings().set_offsets(offsets).map_err(|_| Errno::BUSY);
            options.set_status(option::OFFSETS, outcome.map(drop));
            let max = outcome?.into();
            let asked = options.get::<OptOffsets>(option::OFFSETS).unwrap_or_default();
            options.set(option::OFFSETS, &OptOffsets { nro_max_offset: max, ..asked });
        }
        self.csb.as_ref().map_or(Ok(()), |csb| descriptor.enable_csb(fd, csb))
    }
}

fn check_csb(csb: &OptCsb, name: &Name, body: &Register) -> Result<(), Errno> {
    let port = expected(name, body)?;
    let (tx, rx) = match body.nr_mode {
        mode::ONE_NIC | mode::ONE_SW => (1, 1),
        _ => (usize::from(port.tx_rings), usize::from(port.rx_rings)),
    };
    // Those of the host's side, where both are opened.
    let host = |asked: u16| match body.nr_mode {
        mode::NIC_SW => usize::from(asked.max(1)),
        _ => 0,
    };
    let (tx, rx) = (tx + host(body.nr_host_tx_rings), rx + host(body.nr_host_rx_rings));
    let only = |flags| body.nr_flags & flags != 0;
    let tx = if only(flag::RX_RINGS_ONLY) { 0 } else { tx };
    let rx = if only(flag::TX_RINGS_ONLY) { 0 } else { rx };
    if !only(flag::EXCLUSIVE) {
        return Err(Errno::INVAL);
    }
    CsbMode::check(csb, tx + rx)
}

/// netmap's rules for offsets.
fn check_offsets(asked: &OptOffsets, name: &Name, body: &Register) -> Result<Offsets, Errno> {
    let buffer = expected(name, body)?.buffers.size;
    let mask = match asked.nro_offset_bits {
        0 | u64::BITS => u64::MAX,
        bits @ 1..u64::BITS => (1 << bits) - 1,
        _ => return Err(Errno::INVAL),
    };
    let max = u32::try_from(asked.nro_max_offset).ok().filter(|&max| max <= buffer);
    let max = max.filter(|&max| u64::from(max) & !mask == 0).ok_or(Errno::INVAL)?;
    let initial = u32::try_from(asked.nro_initial_offset).ok().filter(|&first| first <= max);
    Ok(Offsets { mask, max, initial: initial.ok_or(Errno::INVAL)? })
}

/// What the port that is asked for will be like.
fn expected(name: &Name, body: &Register) -> Result<PortGeometry, Errno> {
    let rings = (body.nr_tx_rings, body.nr_rx_rings);
    let slots = (body.nr_tx_slots, body.nr_rx_slots);
    port_geometry(port_name(name)?, body.nr_mem_id, rings, slots)
}

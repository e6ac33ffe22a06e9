//! What the options of a REGISTER ask for beside the port.
//!
//! netmap binds first, looks at its options then, and unbinds where they are wrong. A daemon's port
//! would be seen to come and go, so here the options are judged first, against what the port will
//! be, and nothing is bound where they are wrong.

use std::os::fd::RawFd;

use client::api::{GeometryQuery, PortGeometry};
use rustix::io::Errno;

use super::{chosen, geometry, port_name};
use crate::abi::{Name, OptCsb, Register, flag, mode, option};
use crate::descriptor::Descriptor;
use crate::kloop::Kloop;
use crate::request::Options;

/// What a REGISTER asks for.
pub struct Extras {
    csb: Option<OptCsb>,
}

impl Extras {
    /// Reads the options that are known, and says in them how they fare.
    ///
    /// # Errors
    /// What netmap says of the first that is wrong.
    pub fn read(options: &mut Options, name: &Name, body: &Register) -> Result<Self, Errno> {
        let csb: Option<OptCsb> = options.get(option::CSB);
        if let Some(csb) = &csb {
            let outcome = check_csb(csb, name, body);
            options.set_status(option::CSB, outcome);
            outcome?;
        }
        Ok(Self { csb })
    }

    /// Does what was asked for, once the port is bound.
    ///
    /// # Errors
    /// Where the program has changed its memory since it asked.
    pub fn begin(&self, descriptor: &Descriptor, fd: RawFd) -> Result<(), Errno> {
        self.csb.as_ref().map_or(Ok(()), |csb| descriptor.enable_csb(fd, csb))
    }
}

fn check_csb(csb: &OptCsb, name: &Name, body: &Register) -> Result<(), Errno> {
    let port = expected(name, body)?;
    let (tx, rx) = match body.nr_mode {
        mode::ONE_NIC | mode::ONE_SW => (1, 1),
        _ => (usize::from(port.tx_rings), usize::from(port.rx_rings)),
    };
    let only = |flags| body.nr_flags & flags != 0;
    let tx = if only(flag::RX_RINGS_ONLY) { 0 } else { tx };
    let rx = if only(flag::TX_RINGS_ONLY) { 0 } else { rx };
    if !only(flag::EXCLUSIVE) {
        return Err(Errno::INVAL);
    }
    Kloop::check(csb, tx + rx)
}

/// What the port that is asked for will be like.
fn expected(name: &Name, body: &Register) -> Result<PortGeometry, Errno> {
    geometry(GeometryQuery {
        port: Some(port_name(name)?),
        mem_id: body.nr_mem_id,
        tx_rings: chosen(body.nr_tx_rings),
        rx_rings: chosen(body.nr_rx_rings),
        tx_slots: chosen(body.nr_tx_slots),
        rx_slots: chosen(body.nr_rx_slots),
    })
}

//! The legacy calls: `NIOCGINFO` and `NIOCREGIF` with one flat structure.
//!
//! Each is turned into a request of today; of the answer only those fields go back that the
//! old programs expect there.

use rustix::io::Errno;

use super::{Body, Options, Request, Server};
use crate::abi::{
    LEGACY_NAME_SIZE, Legacy, NAME_SIZE, NETMAP_MIN_API, Name, POLLING_MULTI_CPU,
    POLLING_SINGLE_CPU, PortHdr, PortInfo, Register, ValeAttach, ValeDetach, ValeList, ValeNewif,
    ValePolling, command, flag, mode, ringid,
};
use crate::memory::UserMemory;

/// Which of the two calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegacyCall {
    /// `NIOCGINFO`
    Info,
    /// `NIOCREGIF`
    Regif,
}

/// Reads the request at `address`, has it served, and writes the answer back.
///
/// # Errors
/// netmap's errno for a malformed request, or what `server` says.
pub fn legacy(
    memory: &impl UserMemory,
    call: LegacyCall,
    address: u64,
    server: &mut impl Server,
) -> Result<(), Errno> {
    if address == 0 {
        return Err(Errno::INVAL);
    }
    let mut old: Legacy = memory.read_struct(address)?;
    let outcome = exchange(call, &mut old, server);
    memory.write_struct(address, &old)?;
    outcome
}

fn exchange(call: LegacyCall, old: &mut Legacy, server: &mut impl Server) -> Result<(), Errno> {
    if old.nr_version < u32::from(NETMAP_MIN_API) {
        return Err(Errno::INVAL);
    }
    old.nr_name[LEGACY_NAME_SIZE - 1] = 0;
    let mut name = Name::default();
    name.0[..LEGACY_NAME_SIZE].copy_from_slice(&old.nr_name);
    // Nothing behind the end of the text.
    let text = name;
    name.set(text.bytes());
    let body = match call {
        LegacyCall::Info => info(old),
        LegacyCall::Regif => regif(old, &mut name)?,
    };
    if body == Body::Unknown {
        return Err(Errno::INVAL);
    }
    let mut request = Request { name, body, options: Options::default() };
    server.serve(&mut request)?;
    answer(&request, old);
    Ok(())
}

fn info(old: &Legacy) -> Body {
    if old.nr_cmd == command::BDG_LIST {
        let (nr_bridge_idx, nr_port_idx) = (old.nr_arg1, u32::from(old.nr_arg2));
        return Body::ValeList(ValeList { nr_bridge_idx, nr_port_idx, ..ValeList::default() });
    }
    Body::PortInfoGet(PortInfo {
        nr_memsize: old.nr_memsize.into(),
        nr_tx_slots: old.nr_tx_slots,
        nr_rx_slots: old.nr_rx_slots,
        nr_tx_rings: old.nr_tx_rings,
        nr_rx_rings: old.nr_rx_rings,
        nr_mem_id: old.nr_arg2,
        ..PortInfo::default()
    })
}

fn regif(old: &Legacy, name: &mut Name) -> Result<Body, Errno> {
    Ok(match old.nr_cmd {
        0 => Body::Register(register(old, name)),
        command::BDG_ATTACH => {
            let mut reg = register(old, name);
            let host = old.nr_arg1 & command::BDG_HOST != 0;
            reg.nr_mode = if host { mode::NIC_SW } else { mode::ALL_NIC };
            Body::ValeAttach(ValeAttach { reg, ..ValeAttach::default() })
        }
        command::BDG_DETACH => Body::ValeDetach(ValeDetach::default()),
        command::BDG_VNET_HDR => Body::PortHdrSet(header(old)),
        command::VNET_HDR_GET => Body::PortHdrGet(header(old)),
        command::BDG_NEWIF => Body::ValeNewif(ValeNewif {
            nr_tx_slots: old.nr_tx_slots,
            nr_rx_slots: old.nr_rx_slots,
            nr_tx_rings: old.nr_tx_rings,
            nr_rx_rings: old.nr_rx_rings,
            nr_mem_id: old.nr_arg2,
            pad1: 0,
        }),
        command::BDG_DELIF => Body::ValeDelif,
        command::BDG_POLLING_ON => Body::PollingEnable(polling(old)),
        command::BDG_POLLING_OFF => Body::PollingDisable(polling(old)),
        // netmap's own answer to what it never had.
        command::PT_HOST_CREATE | command::PT_HOST_DELETE => return Err(Errno::NOMEM),
        _ => Body::Unknown,
    })
}

fn header(old: &Legacy) -> PortHdr {
    PortHdr { nr_hdr_len: old.nr_arg1.into(), pad1: 0 }
}

fn polling(old: &Legacy) -> ValePolling {
    ValePolling {
        nr_mode: match old.nr_flags & mode::MASK {
            mode::ONE_NIC => POLLING_MULTI_CPU,
            mode::ALL_NIC => POLLING_SINGLE_CPU,
            _ => 0,
        },
        nr_first_cpu_id: (old.nr_ringid & ringid::MASK).into(),
        nr_num_polling_cpus: old.nr_arg1.into(),
        pad1: 0,
    }
}

fn register(old: &Legacy, name: &mut Name) -> Register {
    let mut register = Register {
        nr_offset: old.nr_offset.into(),
        nr_memsize: old.nr_memsize.into(),
        nr_tx_slots: old.nr_tx_slots,
        nr_rx_slots: old.nr_rx_slots,
        nr_tx_rings: old.nr_tx_rings,
        nr_rx_rings: old.nr_rx_rings,
        nr_mem_id: old.nr_arg2,
        nr_ringid: old.nr_ringid & ringid::MASK,
        nr_extra_bufs: old.nr_arg3,
        nr_flags: (old.nr_flags & !mode::MASK).into(),
        nr_mode: match old.nr_flags & mode::MASK {
            mode::DEFAULT if old.nr_ringid & ringid::SW_RING != 0 => mode::SW,
            mode::DEFAULT if old.nr_ringid & ringid::HW_RING != 0 => mode::ONE_NIC,
            mode::DEFAULT => mode::ALL_NIC,
            mode => mode,
        },
        ..Register::default()
    };
    let brace = match register.nr_mode {
        mode::PIPE_MASTER => Some('{'),
        mode::PIPE_SLAVE => Some('}'),
        _ => None,
    };
    if let Some(brace) = brace {
        let end = format!("{brace}{}", register.nr_ringid);
        let whole = [name.bytes(), end.as_bytes()].concat();
        assert!(whole.len() < NAME_SIZE, "15 bytes and 5 have room");
        name.set(&whole);
        (register.nr_mode, register.nr_ringid) = (mode::ALL_NIC, 0);
    }
    if old.nr_ringid & ringid::NO_TX_POLL != 0 {
        register.nr_flags |= flag::NO_TX_POLL;
    }
    if old.nr_ringid & ringid::DO_RX_POLL != 0 {
        register.nr_flags |= flag::DO_RX_POLL;
    }
    register
}

/// Writes what old programs expect back.
fn answer(request: &Request, old: &mut Legacy) {
    match &request.body {
        Body::Register(register) => registered(register, old),
        Body::ValeAttach(attach) => registered(&attach.reg, old),
        Body::PortInfoGet(info) => {
            old.nr_memsize = low(info.nr_memsize);
            (old.nr_tx_slots, old.nr_rx_slots) = (info.nr_tx_slots, info.nr_rx_slots);
            (old.nr_tx_rings, old.nr_rx_rings) = (info.nr_tx_rings, info.nr_rx_rings);
            old.nr_arg2 = info.nr_mem_id;
        }
        Body::ValeList(list) => {
            let name = request.name.bytes();
            old.nr_name = [0; LEGACY_NAME_SIZE];
            for (to, from) in old.nr_name[..LEGACY_NAME_SIZE - 1].iter_mut().zip(name) {
                *to = *from;
            }
            (old.nr_arg1, old.nr_arg2) = (list.nr_bridge_idx, low(list.nr_port_idx.into()));
        }
        Body::PortHdrSet(header) | Body::PortHdrGet(header) => {
            old.nr_arg1 = low(header.nr_hdr_len.into());
        }
        Body::ValeNewif(newif) => {
            (old.nr_tx_slots, old.nr_rx_slots) = (newif.nr_tx_slots, newif.nr_rx_slots);
            (old.nr_tx_rings, old.nr_rx_rings) = (newif.nr_tx_rings, newif.nr_rx_rings);
            old.nr_arg2 = newif.nr_mem_id;
        }
        _ => {}
    }
}

fn registered(register: &Register, old: &mut Legacy) {
    (old.nr_offset, old.nr_memsize) = (low(register.nr_offset), low(register.nr_memsize));
    (old.nr_tx_slots, old.nr_rx_slots) = (register.nr_tx_slots, register.nr_rx_slots);
    (old.nr_tx_rings, old.nr_rx_rings) = (register.nr_tx_rings, register.nr_rx_rings);
    (old.nr_arg2, old.nr_arg3) = (register.nr_mem_id, register.nr_extra_bufs);
}

/// A number in fewer bits: what has no room there is no number that the daemon gives.
fn low<T: TryFrom<u64> + Default>(number: u64) -> T {
    T::try_from(number).unwrap_or_default()
}

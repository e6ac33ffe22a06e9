//! A program's memory that is not ours, and requests in it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::abi::{Header, Legacy, OptCsb, OptionHeader, Pod, command, flag, mode, option, ringid};
use crate::memory::UserMemory;

/// Pieces of memory by their addresses; everything between them faults.
#[derive(Default)]
struct Pieces(RefCell<BTreeMap<u64, Vec<u8>>>);

impl Pieces {
    fn put<T: Pod>(&self, address: u64, value: &T) {
        self.0.borrow_mut().insert(address, bytes_of(value).to_vec());
    }

    fn get<T: Pod>(&self, address: u64) -> T {
        self.read_struct(address).unwrap()
    }

    fn within<R>(
        &self,
        address: u64,
        len: usize,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Errno> {
        let mut pieces = self.0.borrow_mut();
        let (start, piece) = pieces.range_mut(..=address).next_back().ok_or(Errno::FAULT)?;
        let at = usize::try_from(address - start).unwrap();
        piece.get_mut(at..at.saturating_add(len)).map(access).ok_or(Errno::FAULT)
    }
}

impl UserMemory for Pieces {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.within(address, to.len(), |bytes| to.copy_from_slice(bytes))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        self.within(address, from.len(), |bytes| bytes.copy_from_slice(from))
    }
}

const HEADER: u64 = 0x1000;
const BODY: u64 = 0x2000;
const OPTION: u64 = 0x3000;

/// A REGISTER of "vale0:a" with this list of option types.
fn register(options: &[u32]) -> Pieces {
    let memory = Pieces::default();
    let mut header = Header {
        nr_version: 14,
        nr_reqtype: reqtype::REGISTER,
        nr_options: if options.is_empty() { 0 } else { OPTION },
        nr_body: BODY,
        ..Header::default()
    };
    header.nr_name.set(b"vale0:a");
    memory.put(HEADER, &header);
    memory.put(BODY, &Register { nr_mode: mode::ALL_NIC, ..Register::default() });
    for (i, &nro_reqtype) in options.iter().enumerate() {
        let address = OPTION + i as u64 * 0x100;
        let nro_next = if i + 1 < options.len() { address + 0x100 } else { 0 };
        let header = OptionHeader { nro_next, nro_reqtype, nro_status: 99, nro_size: 0 };
        let bytes = [bytes_of(&header), &[0; 128]].concat();
        memory.0.borrow_mut().insert(address, bytes);
    }
    memory
}

fn change<T: Pod>(memory: &Pieces, address: u64, change: impl FnOnce(&mut T)) {
    let mut value = memory.get::<T>(address);
    change(&mut value);
    memory.write_struct(address, &value).unwrap();
}

fn refuses(memory: &Pieces, error: Errno) {
    let mut never = |_: &mut Request| -> Result<(), Errno> { panic!("served") };
    assert_eq!(control(memory, HEADER, &mut never), Err(error));
}

fn statuses(memory: &Pieces, count: u64) -> Vec<u32> {
    let status = |i| memory.get::<OptionHeader>(OPTION + i * 0x100).nro_status;
    (0..count).map(status).collect()
}

const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;

#[test]
fn a_request_is_served_and_answered() {
    let memory = register(&[]);
    let mut server = |request: &mut Request| {
        assert_eq!(request.name.bytes(), b"vale0:a");
        let Body::Register(body) = &mut request.body else { panic!("a REGISTER") };
        body.nr_memsize = 77;
        Ok(())
    };
    assert_eq!(control(&memory, HEADER, &mut server), Ok(()));
    assert_eq!(memory.get::<Register>(BODY).nr_memsize, 77);
    let mut fails = |request: &mut Request| {
        request.body = Body::Register(Register::default());
        Err(Errno::BUSY)
    };
    assert_eq!(control(&memory, HEADER, &mut fails), Err(Errno::BUSY));
    assert_eq!(memory.get::<Register>(BODY).nr_memsize, 77, "an error changes nothing");
}

#[test]
fn malformed_headers_are_refused() {
    for version in [0, 13, 16, u16::MAX] {
        let memory = register(&[]);
        change(&memory, HEADER, |header: &mut Header| header.nr_version = version);
        refuses(&memory, Errno::INVAL);
    }
    let broken: [fn(&mut Header); 4] = [
        |header| header.nr_reserved = 1,
        |header| header.nr_body = 0,
        |header| header.nr_reqtype = reqtype::VALE_DELIF,
        |header| (header.nr_reqtype, header.nr_body) = (99, 0),
    ];
    for breaks in broken {
        let memory = register(&[]);
        change(&memory, HEADER, breaks);
        refuses(&memory, Errno::INVAL);
    }
    let mut never = |_: &mut Request| -> Result<(), Errno> { panic!("served") };
    assert_eq!(control(&register(&[]), 0, &mut never), Err(Errno::INVAL));
    assert_eq!(control(&register(&[]), 0x50, &mut never), Err(Errno::FAULT));
    let memory = register(&[]);
    change(&memory, HEADER, |header: &mut Header| header.nr_body = 0x50);
    refuses(&memory, Errno::FAULT);
}

#[test]
fn a_name_without_an_end_gets_one() {
    let memory = register(&[]);
    change(&memory, HEADER, |header: &mut Header| header.nr_name.0 = [b'x'; 64]);
    let mut server = |request: &mut Request| {
        assert_eq!(request.name.bytes(), [b'x'; 63]);
        Ok(())
    };
    assert_eq!(control(&memory, HEADER, &mut server), Ok(()));
}

#[test]
fn options_that_nobody_knows_are_marked() {
    let memory = register(&[option::CSB, 1234, option::OFFSETS]);
    let mut server = |request: &mut Request| {
        request.options.set_status(option::CSB, Ok(()));
        let csb = OptCsb { csb_atok: 1, csb_ktoa: 2 };
        assert_eq!(request.options.get::<OptCsb>(option::CSB), Some(OptCsb::default()));
        request.options.set(option::CSB, &csb);
        assert!(request.options.has(option::OFFSETS) && !request.options.has(option::EXTMEM));
        request.options.check_all_known()
    };
    assert_eq!(control(&memory, HEADER, &mut server), Err(Errno::OPNOTSUPP));
    assert_eq!(statuses(&memory, 3), [0, EOPNOTSUPP, EOPNOTSUPP]);
    assert_eq!(memory.get::<OptCsb>(OPTION + 24), OptCsb::default(), "no body after an error");
    let memory = register(&[option::CSB]);
    let mut server = |request: &mut Request| {
        request.options.set_status(option::CSB, Ok(()));
        request.options.set(option::CSB, &OptCsb { csb_atok: 1, csb_ktoa: 2 });
        request.options.check_all_known()
    };
    assert_eq!(control(&memory, HEADER, &mut server), Ok(()));
    assert_eq!(memory.get::<OptCsb>(OPTION + 24), OptCsb { csb_atok: 1, csb_ktoa: 2 });
}

#[test]
fn twins_and_zeros_are_refused_by_name() {
    let memory = register(&[option::EXTMEM, option::CSB, option::EXTMEM]);
    refuses(&memory, Errno::INVAL);
    assert_eq!(statuses(&memory, 3), [EINVAL, 0, EINVAL]);
    let memory = register(&[option::CSB, 0, option::CSB]);
    refuses(&memory, Errno::INVAL);
    assert_eq!(statuses(&memory, 3), [0, EINVAL, 99]);
}

#[test]
fn endless_lists_end() {
    // An option of an unknown type: no status is written, the list may be one option for ever.
    let memory = register(&[1234]);
    change(&memory, OPTION, |header: &mut OptionHeader| header.nro_next = OPTION);
    refuses(&memory, Errno::MSGSIZE);
    assert_eq!(statuses(&memory, 1), [99]);
    // Of a known one: its own twin.
    let memory = register(&[option::CSB]);
    change(&memory, OPTION, |header: &mut OptionHeader| header.nro_next = OPTION);
    refuses(&memory, Errno::INVAL);
}

#[test]
fn options_that_are_too_long_are_refused() {
    for size in [4097, 4080, u64::MAX] {
        let memory = register(&[option::SYNC_KLOOP_EVENTFDS]);
        change(&memory, OPTION, |header: &mut OptionHeader| header.nro_size = size);
        refuses(&memory, Errno::MSGSIZE);
        assert_eq!(statuses(&memory, 1), [0]);
    }
    let memory = register(&[option::CSB, option::SYNC_KLOOP_EVENTFDS]);
    change(&memory, OPTION, |header: &mut OptionHeader| header.nro_next = 0x50);
    refuses(&memory, Errno::FAULT);
    assert_eq!(statuses(&memory, 1), [0]);
}

/// A legacy request that is served as `expected`.
fn served_as(call: LegacyCall, old: Legacy, name: &[u8], expected: Body) -> Legacy {
    let memory = Pieces::default();
    memory.put(HEADER, &old);
    let mut server = |request: &mut Request| {
        assert_eq!((request.name.bytes(), request.body), (name, expected));
        Ok(())
    };
    assert_eq!(legacy(&memory, call, HEADER, &mut server), Ok(()));
    memory.get(HEADER)
}

fn old(name: &[u8]) -> Legacy {
    let mut old = Legacy { nr_version: 14, ..Legacy::default() };
    old.nr_name[..name.len()].copy_from_slice(name);
    old
}

#[test]
fn legacy_modes_become_modes() {
    let all = Register { nr_mode: mode::ALL_NIC, ..Register::default() };
    let reg = |old| served_as(LegacyCall::Regif, old, b"em0", Body::Register(all));
    reg(old(b"em0"));
    reg(Legacy { nr_version: 16, ..old(b"em0") });
    for (ringid, flags, nr_mode, nr_ringid, nr_flags) in [
        (ringid::SW_RING, 0, mode::SW, 0, 0),
        (ringid::HW_RING | 3, 0, mode::ONE_NIC, 3, 0),
        (ringid::NO_TX_POLL, mode::ONE_NIC, mode::ONE_NIC, 0, flag::NO_TX_POLL),
        (ringid::DO_RX_POLL | 2, mode::ONE_SW, mode::ONE_SW, 2, flag::DO_RX_POLL),
        (0, mode::NIC_SW | 0x800, mode::NIC_SW, 0, flag::EXCLUSIVE),
        (0, 9, 9, 0, 0),
    ] {
        let expected = Register { nr_mode, nr_ringid, nr_flags, ..Register::default() };
        let old = Legacy { nr_ringid: ringid, nr_flags: flags, ..old(b"em0") };
        served_as(LegacyCall::Regif, old, b"em0", Body::Register(expected));
    }
}

#[test]
fn legacy_pipes_are_named() {
    let all = Register { nr_mode: mode::ALL_NIC, ..Register::default() };
    for (nr_flags, name) in [(mode::PIPE_MASTER, b"vale0:a{12"), (mode::PIPE_SLAVE, b"vale0:a}12")]
    {
        let old = Legacy { nr_flags, nr_ringid: 12, ..old(b"vale0:a") };
        served_as(LegacyCall::Regif, old, name, Body::Register(all));
    }
}

#[test]
fn legacy_commands_become_requests() {
    let cmd = |nr_cmd, nr_arg1| Legacy { nr_cmd, nr_arg1, ..old(b"v0") };
    let header = PortHdr { nr_hdr_len: 12, pad1: 0 };
    let reg = Register { nr_mode: mode::NIC_SW, ..Register::default() };
    for (old, body) in [
        (
            cmd(command::BDG_ATTACH, command::BDG_HOST),
            Body::ValeAttach(ValeAttach { reg, ..ValeAttach::default() }),
        ),
        (cmd(command::BDG_DETACH, 0), Body::ValeDetach(ValeDetach::default())),
        (cmd(command::BDG_VNET_HDR, 12), Body::PortHdrSet(header)),
        (cmd(command::VNET_HDR_GET, 12), Body::PortHdrGet(header)),
        (cmd(command::BDG_NEWIF, 0), Body::ValeNewif(ValeNewif::default())),
        (cmd(command::BDG_DELIF, 0), Body::ValeDelif),
    ] {
        served_as(LegacyCall::Regif, old, b"v0", body);
    }
    let list = ValeList { nr_bridge_idx: 3, pad1: 0, nr_port_idx: 4 };
    let asked = Legacy { nr_arg2: 4, ..cmd(command::BDG_LIST, 3) };
    served_as(LegacyCall::Info, asked, b"v0", Body::ValeList(list));
    let asked = Legacy { nr_tx_slots: 64, nr_arg2: 5, ..old(b"v0") };
    let info = PortInfo { nr_tx_slots: 64, nr_mem_id: 5, ..PortInfo::default() };
    served_as(LegacyCall::Info, asked, b"v0", Body::PortInfoGet(info));
}

#[test]
fn legacy_nonsense_is_refused() {
    let cmd = |nr_cmd| Legacy { nr_cmd, ..old(b"v0") };
    for (old, error) in [
        (Legacy { nr_version: 13, ..old(b"v0") }, Errno::INVAL),
        (cmd(99), Errno::INVAL),
        (cmd(command::BDG_REGOPS), Errno::INVAL),
        (cmd(command::PT_HOST_CREATE), Errno::NOMEM),
    ] {
        let memory = Pieces::default();
        memory.put(HEADER, &old);
        let mut never = |_: &mut Request| -> Result<(), Errno> { panic!("served") };
        assert_eq!(legacy(&memory, LegacyCall::Regif, HEADER, &mut never), Err(error));
        assert_eq!(memory.get::<Legacy>(HEADER), old);
    }
}

#[test]
fn legacy_answers_hold_what_old_programs_expect() {
    let memory = Pieces::default();
    memory.put(HEADER, &Legacy { nr_flags: 1, nr_cmd: 0, ..old(b"vale0:a") });
    let mut server = |request: &mut Request| {
        let Body::Register(body) = &mut request.body else { panic!("a REGISTER") };
        (body.nr_offset, body.nr_memsize, body.nr_mem_id) = (4096, 1 << 20, 7);
        (body.nr_tx_rings, body.nr_rx_slots, body.nr_extra_bufs) = (2, 512, 58);
        Ok(())
    };
    assert_eq!(legacy(&memory, LegacyCall::Regif, HEADER, &mut server), Ok(()));
    let answer: Legacy = memory.get(HEADER);
    assert_eq!((answer.nr_offset, answer.nr_memsize, answer.nr_arg2), (4096, 1 << 20, 7));
    assert_eq!((answer.nr_tx_rings, answer.nr_rx_slots, answer.nr_arg3), (2, 512, 58));
    assert_eq!((answer.nr_flags, &answer.nr_name[..8]), (1, &b"vale0:a\0"[..]));
}

proptest! {
    /// Whatever stands in the program's memory, a request is served once or refused.
    #[test]
    fn no_bytes_are_too_strange(
        header in proptest::collection::vec(any::<u8>(), 88),
        reqtype in 0u16..18,
        options in proptest::collection::vec((0u32..9, 0u64..5000, 0usize..6), 0..6),
        has_body: bool,
    ) {
        let types: Vec<u32> = options.iter().map(|option| option.0).collect();
        let memory = register(&types);
        memory.write(HEADER, &header).unwrap();
        change(&memory, HEADER, |header: &mut Header| {
            (header.nr_version, header.nr_reserved, header.nr_reqtype) = (15, 0, reqtype);
            header.nr_body = if has_body { BODY } else { 0 };
            header.nr_options = if types.is_empty() { 0 } else { OPTION };
        });
        for (i, (_, size, next)) in options.iter().enumerate() {
            change(&memory, OPTION + i as u64 * 0x100, |header: &mut OptionHeader| {
                header.nro_size = *size;
                header.nro_next = if *next == 5 { 0 } else { OPTION + *next as u64 * 0x100 };
            });
        }
        memory.0.borrow_mut().insert(BODY, vec![0xa5; 4096]);
        let mut served = 0;
        let mut server = |_: &mut Request| { served += 1; Ok(()) };
        let outcome = control(&memory, HEADER, &mut server);
        prop_assert!(served <= 1);
        prop_assert!(outcome.is_err() || served == 1);
    }
}

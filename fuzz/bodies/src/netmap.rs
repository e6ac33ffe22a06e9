//! Requests of a netmap program: ioctl bodies, option lists, the legacy form.

use std::cell::RefCell;

use rustix::io::Errno;
use uvala_netmap::abi::{Header, Legacy, bytes_of, bytes_of_mut, option, reqtype};
use uvala_netmap::memory::UserMemory;
use uvala_netmap::request::{LegacyCall, Request, control, legacy};

use crate::Input;

/// A program's memory: one piece, of which everything else faults.
struct Piece(RefCell<Vec<u8>>);

/// Where it lies.
const BASE: u64 = 0x1000;

impl Piece {
    fn within<R>(
        &self,
        address: u64,
        len: usize,
        access: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Errno> {
        let at = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let at = at.ok_or(Errno::FAULT)?;
        let end = at.checked_add(len).ok_or(Errno::FAULT)?;
        self.0.borrow_mut().get_mut(at..end).map(access).ok_or(Errno::FAULT)
    }
}

impl UserMemory for Piece {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        self.within(address, to.len(), |bytes| to.copy_from_slice(bytes))
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        self.within(address, from.len(), |bytes| bytes.copy_from_slice(from))
    }
}

/// A request is served at most once and never after an error; options that are asked for are
/// found with their size; whatever is refused leaves the name as it was.
pub fn netmap_request(data: &[u8]) {
    let mut input = Input(data);
    let (call, serve) = (input.u8(), input.u8());
    let given = input.0;
    let memory = Piece(RefCell::new(given.to_vec()));
    // Addresses that a fuzzer would look for a long time.
    if let Ok(mut header) = memory.read_struct::<Header>(BASE) {
        header.nr_body = header.nr_body % 512 + if header.nr_body == 0 { 0 } else { BASE };
        header.nr_options = header.nr_options % 512 + if serve & 2 == 0 { 0 } else { BASE };
        header.nr_reserved &= u32::from(serve & 4);
        memory.write_struct(BASE, &header).expect("just read");
    }
    let mut served = 0;
    let mut server = |request: &mut Request| {
        served += 1;
        let _ = request.options.get::<uvala_netmap::abi::OptCsb>(option::CSB);
        request.options.set_status(option::CSB, Ok(()));
        request.name.set(b"answer");
        if serve & 1 == 0 { Ok(()) } else { Err(Errno::BUSY) }
    };
    let outcome = match call % 3 {
        0 => control(&memory, BASE, &mut server),
        1 => legacy(&memory, LegacyCall::Info, BASE, &mut server),
        _ => legacy(&memory, LegacyCall::Regif, BASE, &mut server),
    };
    assert!(served <= 1);
    assert!(outcome.is_err() || served == 1);
    let is_answered = |name: &[u8]| name.starts_with(b"answer\0");
    if outcome.is_err() && call.is_multiple_of(3) && !given.windows(6).any(|w| w == b"answer") {
        let header = memory.read_struct::<Header>(BASE);
        assert!(!header.is_ok_and(|header| is_answered(&header.nr_name.0)));
    }
}

/// Inputs that get far: a register with two options, a legacy request.
#[must_use]
pub fn netmap_samples() -> Vec<Vec<u8>> {
    let mut header = Header { nr_version: 14, nr_reqtype: reqtype::REGISTER, ..Header::default() };
    (header.nr_body, header.nr_options) = (88, 200);
    header.nr_name.set(b"vale0:a");
    let mut memory = vec![0u8; 400];
    memory[..88].copy_from_slice(bytes_of(&header));
    memory[208] = 3;
    let mut old = Legacy { nr_version: 14, ..Legacy::default() };
    bytes_of_mut(&mut old)[..7].copy_from_slice(b"vale0:a");
    vec![
        [&[0, 2][..], &memory].concat(),
        [&[3, 3][..], &memory].concat(),
        [&[1, 0][..], bytes_of(&old)].concat(),
        [&[2, 0][..], bytes_of(&old)].concat(),
    ]
}

//! The list of options behind a request.
//!
//! netmap copies body and options into one buffer of fixed size, and that buffer decides when a
//! list is too long. Its room is counted here without being there: a list that runs in a circle
//! ends where netmap's would.

use rustix::io::Errno;

use crate::abi::{
    NETMAP_REQ_MAXSIZE, OptCsb, OptExtmem, OptKloopMode, OptOffsets, OptionHeader, Pod, bytes_of,
    bytes_of_mut, option,
};
use crate::memory::UserMemory;

/// The options of a request, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Where the program has it.
    address: u64,
    header: OptionHeader,
    body: Vec<u8>,
}

const HEADER: usize = size_of::<OptionHeader>();
/// netmap's table of options.
const TABLE: usize = option::MAX as usize * size_of::<u64>();
/// netmap's buffer: pointers, body and options, the table.
const BUFFER: usize = (2 + option::MAX as usize) * size_of::<u64>() + NETMAP_REQ_MAXSIZE + TABLE;

/// Why a list was not taken, and whether the program is told in its options.
struct Refusal {
    error: Errno,
    tell: bool,
}

impl Options {
    /// Reads the list that begins at `first`, behind a body of `body` bytes. A list that is refused
    /// has the reasons in its options, and nothing else has happened.
    pub(super) fn read(memory: &impl UserMemory, first: u64, body: usize) -> Result<Self, Errno> {
        let mut options = Self::default();
        if let Err(refusal) = options.collect(memory, first, body) {
            if refusal.tell {
                options.write(memory, Err(refusal.error))?;
            }
            return Err(refusal.error);
        }
        // The server says which options it knows.
        for entry in &mut options.0 {
            entry.header.nro_status = status(Errno::OPNOTSUPP);
        }
        Ok(options)
    }

    fn collect(
        &mut self,
        memory: &impl UserMemory,
        first: u64,
        body: usize,
    ) -> Result<(), Refusal> {
        let refuse = |error| Refusal { error, tell: true };
        let (mut next, mut size) = (first, body);
        let mut used = 2 * size_of::<u64>() + body + TABLE;
        while next != 0 {
            if used + size_of::<u64>() + HEADER > BUFFER {
                return Err(Refusal { error: Errno::MSGSIZE, tell: false });
            }
            let address = next;
            let mut header: OptionHeader = memory.read_struct(address).map_err(refuse)?;
            header.nro_status = 0;
            next = header.nro_next;
            size += HEADER;
            used += size_of::<u64>() + HEADER;
            self.0.push(Entry { address, header, body: Vec::new() });
            self.check(header.nro_reqtype).map_err(refuse)?;
            if header.nro_reqtype >= option::MAX {
                continue;
            }
            let length = body_size(&header);
            let too_long = length.max(header.nro_size) > NETMAP_REQ_MAXSIZE as u64;
            let length = usize::try_from(length).ok().filter(|_| !too_long);
            let length = length.ok_or(refuse(Errno::MSGSIZE))?;
            if size + length > NETMAP_REQ_MAXSIZE || used + length > BUFFER {
                return Err(refuse(Errno::MSGSIZE));
            }
            size += length;
            used += length;
            let mut bytes = vec![0; length];
            if length > 0 {
                memory.read(address + HEADER as u64, &mut bytes).map_err(refuse)?;
            }
            self.0.last_mut().expect("just pushed").body = bytes;
        }
        Ok(())
    }

    /// Checks that the last option's type is allowed with this request.
    fn check(&mut self, reqtype: u32) -> Result<(), Errno> {
        let (last, before) = self.0.split_last_mut().expect("just pushed");
        let twin = before.iter_mut().find(|entry| entry.header.nro_reqtype == reqtype);
        let twin = twin.filter(|_| reqtype < option::MAX);
        if reqtype != 0 && twin.is_none() {
            return Ok(());
        }
        last.header.nro_status = status(Errno::INVAL);
        if let Some(twin) = twin {
            twin.header.nro_status = status(Errno::INVAL);
        }
        Err(Errno::INVAL)
    }

    /// Tells the program how its options fared.
    pub(super) fn write(
        &self,
        memory: &impl UserMemory,
        outcome: Result<(), Errno>,
    ) -> Result<(), Errno> {
        for entry in &self.0 {
            memory.write_struct(entry.address, &entry.header)?;
            if outcome.is_ok() && entry.header.nro_status == 0 && !entry.body.is_empty() {
                memory.write(entry.address + HEADER as u64, &entry.body)?;
            }
        }
        outcome
    }

    /// The option of this type.
    #[must_use]
    pub fn get<T: Pod>(&self, reqtype: u32) -> Option<T> {
        let mut value = T::default();
        let entry = self.0.iter().find(|entry| entry.header.nro_reqtype == reqtype)?;
        let bytes = bytes_of_mut(&mut value);
        assert_eq!(bytes.len(), entry.body.len(), "one type has one size");
        bytes.copy_from_slice(&entry.body);
        Some(value)
    }

    /// What follows the header of the option of this type.
    #[must_use]
    pub fn bytes(&self, reqtype: u32) -> Option<&[u8]> {
        let entry = self.0.iter().find(|entry| entry.header.nro_reqtype == reqtype)?;
        Some(&entry.body)
    }

    /// Whether there is an option of this type.
    #[must_use]
    pub fn has(&self, reqtype: u32) -> bool {
        self.0.iter().any(|entry| entry.header.nro_reqtype == reqtype)
    }

    /// Says how an option fared.
    pub fn set_status(&mut self, reqtype: u32, outcome: Result<(), Errno>) {
        for entry in self.0.iter_mut().filter(|entry| entry.header.nro_reqtype == reqtype) {
            entry.header.nro_status = outcome.err().map_or(0, status);
        }
    }

    /// Changes what an option says.
    pub fn set<T: Pod>(&mut self, reqtype: u32, value: &T) {
        for entry in self.0.iter_mut().filter(|entry| entry.header.nro_reqtype == reqtype) {
            entry.body = bytes_of(value).to_vec();
        }
    }

    /// `EOPNOTSUPP` if there is an option that the server does not know.
    pub fn check_all_known(&self) -> Result<(), Errno> {
        let unknown = status(Errno::OPNOTSUPP);
        match self.0.iter().any(|entry| entry.header.nro_status == unknown) {
            true => Err(Errno::OPNOTSUPP),
            false => Ok(()),
        }
    }
}

/// Bytes after the header of an option.
fn body_size(header: &OptionHeader) -> u64 {
    let fixed = |size: usize| size as u64;
    match header.nro_reqtype {
        option::EXTMEM => fixed(size_of::<OptExtmem>()),
        option::SYNC_KLOOP_EVENTFDS => header.nro_size.saturating_sub(HEADER as u64),
        option::CSB => fixed(size_of::<OptCsb>()),
        option::SYNC_KLOOP_MODE => fixed(size_of::<OptKloopMode>()),
        option::OFFSETS => fixed(size_of::<OptOffsets>()),
        _ => 0,
    }
}

fn status(error: Errno) -> u32 {
    error.raw_os_error().unsigned_abs()
}

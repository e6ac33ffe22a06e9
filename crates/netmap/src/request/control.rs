//! `NIOCCTRL`: a header, a body, a list of options.

use rustix::io::Errno;

use super::{Body, Options, Request, Server};
use crate::abi::{Header, NAME_SIZE, NETMAP_MAX_API, NETMAP_MIN_API};
use crate::memory::UserMemory;

/// Reads the request at `address`, has it served, and writes the answer back.
///
/// # Errors
/// netmap's errno for a malformed request, or what `server` says.
pub fn control(
    memory: &impl UserMemory,
    address: u64,
    server: &mut impl Server,
) -> Result<(), Errno> {
    if address == 0 {
        return Err(Errno::INVAL);
    }
    let mut header: Header = memory.read_struct(address)?;
    let outcome = exchange(memory, &mut header, server);
    memory.write_struct(address, &header)?;
    outcome
}

fn exchange(
    memory: &impl UserMemory,
    header: &mut Header,
    server: &mut impl Server,
) -> Result<(), Errno> {
    if !(NETMAP_MIN_API..=NETMAP_MAX_API).contains(&header.nr_version) || header.nr_reserved != 0 {
        return Err(Errno::INVAL);
    }
    let mut body = Body::empty(header.nr_reqtype);
    if body.bytes().is_empty() != (header.nr_body == 0) {
        return Err(Errno::INVAL);
    }
    if header.nr_body != 0 {
        memory.read(header.nr_body, body.bytes_mut())?;
    }
    let options = Options::read(memory, header.nr_options, body.bytes().len())?;
    header.nr_name.0[NAME_SIZE - 1] = 0;
    let mut request = Request { name: header.nr_name, body, options };
    let mut outcome = match request.body {
        Body::Unknown => Err(Errno::INVAL),
        _ => server.serve(&mut request),
    };
    if outcome.is_ok() {
        header.nr_name = request.name;
        if header.nr_body != 0 {
            outcome = memory.write(header.nr_body, request.body.bytes());
        }
    }
    request.options.write(memory, outcome)
}

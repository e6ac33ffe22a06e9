//! `vde_switch` with two clients that speak its protocol.
//!
//! A client sends a request over the switch's stream socket, naming the datagram socket it has
//! bound, and gets the address of the datagram socket to send to. Every datagram is a frame.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Ends, drive};
use crate::programs::{Killed, Scratch, await_file, find};
use crate::work::Work;

const MAGIC: u32 = 0xfeed_face;
const VERSION: u32 = 3;
const NEW_CONTROL: u32 = 0;

/// Size of `struct sockaddr_un`: a family and a path.
const ADDRESS: usize = 2 + 108;

/// Frames through the switch, or round trips.
pub fn measure(work: &Work, time: Duration) -> Result<f64> {
    let program = find("vde_switch", "vde2")?;
    let scratch = Scratch::new("vde")?;
    let socket = scratch.path("switch");
    let switch = Command::new(program)
        .args(["--sock", &socket])
        // It reads commands and ends with its input, so the input must stay open.
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot run vde_switch")?;
    let switch = Killed(switch);
    let (_control0, sender) = plug(&socket, &scratch.path("port0"))?;
    let (_control1, receiver) = plug(&socket, &scratch.path("port1"))?;
    let value = drive(Ends { sender, receiver }, work, time);
    drop(switch);
    value
}

/// A port: the connection that keeps it, and the descriptor that frames go through.
fn plug(switch: &str, own: &str) -> Result<(UnixStream, File)> {
    let socket = format!("{switch}/ctl");
    await_file(&socket)?;
    let mut control = UnixStream::connect(&socket).context("vde_switch did not start")?;
    let data = UnixDatagram::bind(own).with_context(|| format!("cannot bind {own}"))?;
    let mut request = Vec::new();
    for word in [MAGIC, VERSION, NEW_CONTROL] {
        request.extend(word.to_ne_bytes());
    }
    request.extend(address(own)?);
    request.extend(b"uvala bench\0");
    control.write_all(&request)?;
    let mut answer = [0; ADDRESS];
    control.read_exact(&mut answer).context("vde_switch refused a port")?;
    data.connect(path_of(&answer)?).context("cannot reach vde_switch's data socket")?;
    Ok((control, File::from(OwnedFd::from(data))))
}

/// `struct sockaddr_un` of a path.
fn address(path: &str) -> Result<[u8; ADDRESS]> {
    let mut address = [0; ADDRESS];
    let family = rustix::net::AddressFamily::UNIX.as_raw();
    address[..2].copy_from_slice(&family.to_ne_bytes());
    if path.len() >= ADDRESS - 2 {
        bail!("{path} is too long for a socket");
    }
    address[2..2 + path.len()].copy_from_slice(path.as_bytes());
    Ok(address)
}

/// The path in a `struct sockaddr_un`.
fn path_of(address: &[u8; ADDRESS]) -> Result<&str> {
    let path = address[2..].split(|&b| b == 0).next().unwrap_or_default();
    std::str::from_utf8(path).context("vde_switch's socket has no name in text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_address_there_and_back() {
        let path = "/tmp/x/ctl";
        assert_eq!(path_of(&address(path).unwrap()).unwrap(), path);
        assert!(address(&"x".repeat(108)).is_err());
    }
}

//! Listening sockets. A UNIX socket's file is its user's alone, and goes with the handle.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::process::ChildStdin;

use anyhow::{Context, Result};
use terminal::place::{Place, bind_unix};
use terminal::remover;

/// A listening socket.
#[derive(Debug)]
pub struct Socket {
    place: Place,
    kind: Kind,
    /// The other end removes the file of a UNIX socket when this is closed.
    _remover: Option<ChildStdin>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A listening socket of the runtime.
#[derive(Debug)]
pub enum Listener {
    /// At an address.
    Tcp(tokio::net::TcpListener),
    /// At a UNIX socket.
    Unix(tokio::net::UnixListener),
}

impl Socket {
    /// Listens there. Call this while the process has one thread.
    pub fn bind(place: Place) -> Result<Self> {
        let refused = || format!("cannot listen at {place}; choose another --listen");
        let (place, kind, _remover) = match &place {
            Place::Tcp(address) => {
                let (listener, address) = bind_tcp(*address).with_context(refused)?;
                (Place::Tcp(address), Kind::Tcp(listener), None)
            }
            Place::Unix(path) => {
                // The kernel keeps out all users but this one and root.
                let path = std::path::absolute(path).with_context(refused)?;
                let umask = rustix::process::umask(rustix::fs::Mode::from(0o177));
                let listener = bind_unix(&path);
                rustix::process::umask(umask);
                let dir = path.parent().filter(|dir| !dir.exists());
                let missing = dir.map(|dir| format!("no directory {}; make it", dir.display()));
                let listener = listener.with_context(|| missing.unwrap_or_else(refused))?;
                listener.set_nonblocking(true)?;
                let remover = remover::start_for(&path)
                    .context("cannot start the process that removes the socket")?;
                (Place::Unix(path), Kind::Unix(listener), Some(remover))
            }
        };
        Ok(Self { place, kind, _remover })
    }

    /// Where it listens: an address with the port that the system chose.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A handle for the runtime.
    pub fn listener(&self) -> Result<Listener> {
        Ok(match &self.kind {
            Kind::Tcp(listener) => {
                Listener::Tcp(tokio::net::TcpListener::from_std(listener.try_clone()?)?)
            }
            Kind::Unix(listener) => {
                Listener::Unix(tokio::net::UnixListener::from_std(listener.try_clone()?)?)
            }
        })
    }
}

fn bind_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

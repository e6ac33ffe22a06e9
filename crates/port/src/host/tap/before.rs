//! A TAP that was there before, changed for a port: it is what it was where that is not made.

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;

use crate::host::Undo;
use crate::host::netlink::{Change, Interface, Netlink};

/// Changes a TAP, and takes that back when it is dropped, unless the port is made.
pub(super) struct Before {
    /// In the namespace of the TAP.
    netlink: Netlink,
    was: Interface,
    /// What takes the changes back, the last one first.
    back: Vec<Change<'static>>,
    added: Option<(IpAddr, u8)>,
}

impl Before {
    pub fn new(netlink: Netlink, was: Interface) -> Self {
        Self { netlink, was, back: Vec::new(), added: None }
    }

    pub fn mac(&mut self, mac: [u8; 6]) -> Result<(), Errno> {
        self.change(Change::Mac(mac), Change::Mac(self.was.mac))
    }

    pub fn mtu(&mut self, mtu: u32) -> Result<(), Errno> {
        self.change(Change::Mtu(mtu), Change::Mtu(self.was.mtu))
    }

    pub fn up(&mut self) -> Result<(), Errno> {
        if self.was.up { Ok(()) } else { self.change(Change::Up, Change::Down) }
    }

    pub fn address(&mut self, address: IpAddr, prefix: u8) -> Result<(), Errno> {
        if self.netlink.add_address(self.was.index, address, prefix)? {
            self.added = Some((address, prefix));
        }
        Ok(())
    }

    /// All stays as it is now.
    pub fn forget(&mut self) {
        self.back.clear();
        self.added = None;
    }

    fn change(&mut self, change: Change<'_>, back: Change<'static>) -> Result<(), Errno> {
        self.netlink.change(self.was.index, change)?;
        self.back.push(back);
        Ok(())
    }
}

impl Undo for Before {
    fn keep(&mut self) -> io::Result<()> {
        self.forget();
        Ok(())
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        // One that is gone is not changed any more.
        if let Some((address, prefix)) = self.added {
            let _ = self.netlink.del_address(self.was.index, address, prefix);
        }
        for back in self.back.iter().rev() {
            let _ = self.netlink.change(self.was.index, *back);
        }
    }
}

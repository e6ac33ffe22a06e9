//! The saved state of a TAP that existed before it became a port.

use std::io;
use std::net::IpAddr;

use packet::MacAddr;
use rustix::io::Errno;

use crate::Undo;
use crate::netlink::{Change, Interface, Netlink};

/// Changes a TAP. Dropping this reverts the changes, in reverse order, unless the port was made.
pub(super) struct SavedState {
    /// A socket in the namespace of the TAP.
    netlink: Netlink,
    was: Interface,
    /// The changes that restore the old settings.
    restore: Vec<Change<'static>>,
    added: Option<(IpAddr, u8)>,
}

impl SavedState {
    pub fn new(netlink: Netlink, was: Interface) -> Self {
        Self { netlink, was, restore: Vec::new(), added: None }
    }

    pub fn set_mac(&mut self, mac: MacAddr) -> Result<(), Errno> {
        self.change(Change::Mac(mac), Change::Mac(self.was.mac))
    }

    pub fn set_mtu(&mut self, mtu: u32) -> Result<(), Errno> {
        self.change(Change::Mtu(mtu), Change::Mtu(self.was.mtu))
    }

    pub fn set_up(&mut self) -> Result<(), Errno> {
        if self.was.up { Ok(()) } else { self.change(Change::Up, Change::Down) }
    }

    pub fn add_address(&mut self, address: IpAddr, prefix: u8) -> Result<(), Errno> {
        if self.netlink.add_address(self.was.index, address, prefix)? {
            self.added = Some((address, prefix));
        }
        Ok(())
    }

    /// Discards the saved state, so that the changes are permanent.
    pub fn discard(&mut self) {
        self.restore.clear();
        self.added = None;
    }

    fn change(&mut self, change: Change<'_>, restore: Change<'static>) -> Result<(), Errno> {
        self.netlink.change(self.was.index, change)?;
        self.restore.push(restore);
        Ok(())
    }
}

impl Undo for SavedState {
    fn keep(&mut self) -> io::Result<()> {
        self.discard();
        Ok(())
    }
}

impl Drop for SavedState {
    fn drop(&mut self) {
        // The calls fail if the interface is gone, and then there is nothing to restore.
        if let Some((address, prefix)) = self.added {
            let _ = self.netlink.del_address(self.was.index, address, prefix);
        }
        for restore in self.restore.iter().rev() {
            let _ = self.netlink.change(self.was.index, *restore);
        }
    }
}

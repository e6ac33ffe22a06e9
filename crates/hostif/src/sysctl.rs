//! Protection of the host's routes from router advertisements that arrive by a TAP (RA guard).
//!
//! A host that is not a router accepts routes, addresses and its default route from any router
//! that advertises itself on an interface that is up. Behind a TAP, every station of the switch
//! could be that router.

use std::io;
use std::path::Path;

use crate::HostError;

const SETTINGS: &str = "/proc/sys/net";

/// Makes the host ignore router advertisements and redirects on an interface. The caller does this
/// before it sets the interface up. Without IPv6 there is nothing to do.
///
/// # Errors
/// [`HostError::AcceptsRoutes`]: the settings are not 0 and cannot be written.
pub(crate) fn ignore_advertisements(name: &str) -> Result<(), HostError> {
    let failed = HostError::system("look for the settings of", name);
    if !Path::new(SETTINGS).try_exists().map_err(failed)? {
        return Err(HostError::AcceptsRoutes(name.to_owned(), io::ErrorKind::NotFound.into()));
    }
    for setting in ["accept_ra", "accept_redirects", "autoconf"] {
        let path = format!("{SETTINGS}/ipv6/conf/{name}/{setting}");
        match std::fs::read_to_string(&path) {
            Ok(now) if now.trim() == "0" => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            _ => {}
        }
        let failed = |error| HostError::AcceptsRoutes(name.to_owned(), error);
        std::fs::write(&path, "0").map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_ipv6_there_is_nothing_to_do() {
        ignore_advertisements("no-such-link").expect("nothing to write");
    }
}

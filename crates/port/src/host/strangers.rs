//! What a host is not to believe whoever is at the other end of a TAP.
//!
//! A host that is no router takes routes, addresses and its default route from any router that
//! advertises itself, by any interface that is up. By a TAP that is everybody on the switch.

use std::io;
use std::path::Path;

use super::{HostError, system};

const SETTINGS: &str = "/proc/sys/net";

/// Has the host take no routes and no addresses by an interface from who sends there. Without IPv6
/// there is nothing to do. It is to be done before the interface is set up.
///
/// # Errors
/// [`HostError::Believes`]: the settings cannot be written, and are not so already.
pub(super) fn disbelieve(name: &str) -> Result<(), HostError> {
    let failed = system("look for the settings of", name);
    if !Path::new(SETTINGS).try_exists().map_err(failed)? {
        return Err(HostError::Believes(name.to_owned(), io::ErrorKind::NotFound.into()));
    }
    for setting in ["accept_ra", "accept_redirects", "autoconf"] {
        let path = format!("{SETTINGS}/ipv6/conf/{name}/{setting}");
        match std::fs::read_to_string(&path) {
            Ok(now) if now.trim() == "0" => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            _ => {}
        }
        let failed = |error| HostError::Believes(name.to_owned(), error);
        std::fs::write(&path, "0").map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_is_no_ipv6_there_is_nothing_to_do() {
        disbelieve("no-such-link").expect("nothing to write");
    }
}

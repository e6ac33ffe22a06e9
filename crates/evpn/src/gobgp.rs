//! GoBGP by its gRPC interface (version 3, package `apipb`): its table of EVPN routes is read and
//! written as BGP has them in bytes, so the messages here are few.
//!
//! | call | does |
//! |---|---|
//! | `GetBgp` | says which speaker it is |
//! | `ListPath` | lists all routes, each with the speaker that it came from |
//! | `AddPathStream` | adds and withdraws routes of this speaker |
//! | `WatchEvent` | sends something whenever the best routes change; what, is read by `ListPath` |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use crate::bgp::{AFI, Encoded, SAFI};
use crate::grpc::{CallError, Client};
use crate::protobuf::{Malformed, Reader, Value, Writer};

const GET_BGP: &str = "/apipb.GobgpApi/GetBgp";
const LIST_PATH: &str = "/apipb.GobgpApi/ListPath";
const ADD_PATHS: &str = "/apipb.GobgpApi/AddPathStream";
const WATCH_EVENT: &str = "/apipb.GobgpApi/WatchEvent";
/// Routes in one call; they fit into the window of a call.
const PATHS_IN_CALL: usize = 64;
/// The most attributes of a route that are looked at.
const ATTRIBUTES_MAX: usize = 64;

/// The fields of messages.
mod field {
    pub const GLOBAL: u32 = 1;
    pub const ASN: u32 = 1;
    pub const ROUTER_ID: u32 = 2;

    pub const LIST_FAMILY: u32 = 3;
    pub const LIST_ONLY_BINARY: u32 = 9;
    pub const DESTINATION: u32 = 1;
    pub const PATHS: u32 = 2;

    pub const FAMILY_AFI: u32 = 1;
    pub const FAMILY_SAFI: u32 = 2;

    pub const ADDED_PATHS: u32 = 3;
    pub const BEST: u32 = 4;
    pub const IS_WITHDRAW: u32 = 5;
    pub const FAMILY: u32 = 9;
    pub const FILTERED: u32 = 12;
    pub const NEIGHBOR: u32 = 15;
    pub const NEXT_HOP_INVALID: u32 = 17;
    pub const NLRI: u32 = 20;
    pub const ATTRIBUTES: u32 = 21;

    pub const WATCH_TABLE: u32 = 2;
    pub const WATCH_FILTERS: u32 = 1;
}

/// Which BGP speaker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// The autonomous system.
    pub asn: u32,
    /// The router-id.
    pub router: [u8; 4],
}

/// A route of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path<'a> {
    /// The route's key.
    pub nlri: &'a [u8],
    /// The rest of it.
    pub attributes: Vec<&'a [u8]>,
    /// This speaker has it of itself.
    pub is_local: bool,
    /// The route is in use.
    pub is_best: bool,
}

/// A change of this speaker's own routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The route.
    pub route: Encoded,
    /// The route is withdrawn.
    pub is_withdraw: bool,
}

/// A GoBGP: one connection for calls, and one that says when its table has changed.
#[derive(Debug)]
pub struct GoBgp {
    calls: Client,
    watch: Client,
}

impl GoBgp {
    /// Connects.
    ///
    /// # Errors
    /// No GoBGP listens there.
    pub fn open(address: SocketAddr) -> Result<Self, CallError> {
        let (calls, mut watch) = (Client::open(address)?, Client::open(address)?);
        // The best routes, from now on.
        let filters = Writer::default().bytes(field::WATCH_FILTERS, &[]);
        let request = Writer::default().message(field::WATCH_TABLE, &filters);
        watch.follow(WATCH_EVENT, &request.done())?;
        Ok(Self { calls, watch })
    }

    /// Which speaker it is.
    ///
    /// # Errors
    /// BGP is not configured, or the connection is lost.
    pub fn speaker(&mut self) -> Result<Speaker, CallError> {
        let mut speaker = None;
        self.calls.call(GET_BGP, &[], |message| {
            speaker = Some(read_speaker(message)?);
            Ok(())
        })?;
        let unset = || io::Error::other("GoBGP has no router-id: configure [global.config]");
        Ok(speaker.flatten().ok_or_else(unset)?)
    }

    /// Gives all routes to `each`.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn paths(&mut self, mut each: impl FnMut(&Path<'_>)) -> Result<(), CallError> {
        let request = Writer::default()
            .message(field::LIST_FAMILY, &family())
            .number(field::LIST_ONLY_BINARY, 1);
        self.calls.call(LIST_PATH, &request.done(), |message| {
            read_destination(message, &mut each).map_err(invalid)
        })
    }

    /// Changes the speaker's own routes. Returns the refusal of the last one that is refused; the
    /// others are changed.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn change(&mut self, changes: &[Change]) -> io::Result<Option<String>> {
        let mut refusal = None;
        for some in changes.chunks(PATHS_IN_CALL) {
            if self.change_some(some)?.is_some() {
                // One that is refused stops those with it.
                for one in some {
                    refusal = self.change_some(std::slice::from_ref(one))?.or(refusal);
                }
            }
        }
        Ok(refusal)
    }

    fn change_some(&mut self, changes: &[Change]) -> io::Result<Option<String>> {
        let request = changes.iter().fold(Writer::default(), |request, change| {
            request.message(field::ADDED_PATHS, &path(change))
        });
        match self.calls.call(ADD_PATHS, &request.done(), |_| Ok(())) {
            Ok(()) => Ok(None),
            Err(CallError::Refused { message, .. }) => Ok(Some(message)),
            Err(CallError::Lost(error)) => Err(error),
        }
    }

    /// Reads what makes [`AsFd`] readable. Returns whether the table may have changed.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn read_event(&mut self) -> Result<bool, CallError> {
        self.watch.read_event()
    }
}

impl AsFd for GoBgp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

fn family() -> Writer {
    Writer::default().number(field::FAMILY_AFI, AFI.into()).number(field::FAMILY_SAFI, SAFI.into())
}

fn path(change: &Change) -> Writer {
    let path = Writer::default()
        .number(field::IS_WITHDRAW, change.is_withdraw.into())
        .message(field::FAMILY, &family())
        .bytes(field::NLRI, &change.route.nlri);
    change.route.attributes.iter().fold(path, |path, it| path.bytes(field::ATTRIBUTES, it))
}

fn read_speaker(message: &[u8]) -> io::Result<Option<Speaker>> {
    let (mut asn, mut router) = (0, None);
    for field in Reader::new(message) {
        let (field::GLOBAL, global) = field.map_err(invalid)? else { continue };
        for field in Reader::new(global.bytes()) {
            match field.map_err(invalid)? {
                (field::ASN, value) => asn = u32::try_from(value.number()).unwrap_or(0),
                (field::ROUTER_ID, value) => router = text(value).parse().ok(),
                _ => {}
            }
        }
    }
    let router = router.and_then(|router| match router {
        IpAddr::V4(router) => Some(router.octets()),
        IpAddr::V6(_) => None,
    });
    Ok(router.map(|router| Speaker { asn, router }))
}

fn read_destination(message: &[u8], each: &mut impl FnMut(&Path<'_>)) -> Result<(), Malformed> {
    for field in Reader::new(message) {
        let (field::DESTINATION, destination) = field? else { continue };
        for field in Reader::new(destination.bytes()) {
            let (field::PATHS, path) = field? else { continue };
            if let Some(path) = read_path(path.bytes())? {
                each(&path);
            }
        }
    }
    Ok(())
}

/// A route, unless it is not in use for a reason of its own.
fn read_path(message: &[u8]) -> Result<Option<Path<'_>>, Malformed> {
    // GoBGP writes "<nil>" for itself.
    let mut path = Path { is_local: true, ..Path::default() };
    let mut is_out = false;
    for field in Reader::new(message) {
        match field? {
            (field::BEST, value) => path.is_best = value.number() != 0,
            (field::IS_WITHDRAW | field::FILTERED | field::NEXT_HOP_INVALID, value) => {
                is_out |= value.number() != 0;
            }
            (field::NEIGHBOR, value) => path.is_local = text(value).parse::<IpAddr>().is_err(),
            (field::NLRI, value) => path.nlri = value.bytes(),
            (field::ATTRIBUTES, value) if path.attributes.len() < ATTRIBUTES_MAX => {
                path.attributes.push(value.bytes());
            }
            _ => {}
        }
    }
    Ok((!is_out).then_some(path))
}

fn text(value: Value<'_>) -> &str {
    std::str::from_utf8(value.bytes()).unwrap_or_default()
}

fn invalid(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_route_says_whose_it_is_and_whether_it_is_in_use() {
        let list = |neighbor: &[u8], out: u32| {
            let path = Writer::default()
                .number(field::BEST, 1)
                .number(out, 1)
                .bytes(field::NEIGHBOR, neighbor)
                .bytes(field::NLRI, &[2, 0])
                .bytes(field::ATTRIBUTES, &[1])
                .bytes(field::ATTRIBUTES, &[2]);
            let destination = Writer::default().bytes(1, b"name").message(field::PATHS, &path);
            let message = Writer::default().message(field::DESTINATION, &destination).done();
            let mut seen = Vec::new();
            let each = &mut |path: &Path<'_>| seen.push((path.is_local, path.attributes.len()));
            read_destination(&message, each).unwrap();
            seen
        };
        assert_eq!(list(b"<nil>", 99), [(true, 2)]);
        assert_eq!(list(b"10.0.0.2", 99), [(false, 2)]);
        assert_eq!(list(b"10.0.0.2", field::NEXT_HOP_INVALID), []);
        assert_eq!(list(b"10.0.0.2", field::FILTERED), []);
    }

    #[test]
    fn a_speaker_without_a_number_is_none() {
        let global = Writer::default().number(field::ASN, 65_001).bytes(2, b"10.0.0.1");
        let message = Writer::default().message(field::GLOBAL, &global).done();
        let speaker = Speaker { asn: 65_001, router: [10, 0, 0, 1] };
        assert_eq!(read_speaker(&message).unwrap(), Some(speaker));
        let unset = Writer::default().message(field::GLOBAL, &Writer::default()).done();
        assert_eq!(read_speaker(&unset).unwrap(), None);
        assert!(read_speaker(&[0xff]).is_err());
    }
}

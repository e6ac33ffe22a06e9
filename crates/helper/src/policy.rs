//! The helper's policy: one file that only root can write.
//!
//! ```toml
//! [[allow]]
//! user = "uvala"
//! kinds = ["tap", "xdp"]
//! interfaces = ["eth1", "tap*"]
//! addresses = ["10.0.0.0/24"]
//! ```
//!
//! A prefix lets the user make TAPs of such names, and open those that were made for this user. To
//! open any other TAP, the user needs a rule with its whole name.
//!
//! An address brings a route: a user that could choose any address would receive all that the host
//! sends. So a TAP gets an address of the networks that the policy names, or none.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use hostif::netlink::Interface;
use protocol::Address;
use rustix::fs::OFlags;
use serde::Deserialize;

use crate::wire::{Kind, Request};

/// The path of the policy.
pub const PATH: &str = "/etc/uvala/helper.toml";
const DIRECTORY: &str = "/etc/uvala";
/// The most bytes of the file.
const BYTES_MAX: u64 = 64 << 10;

/// The parsed policy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    allow: Vec<Allow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    user: User,
    kinds: Vec<Kind>,
    interfaces: Vec<String>,
    /// The networks of which the host may have an address on a TAP.
    #[serde(default)]
    addresses: Vec<Address>,
}

/// How a rule names an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// By a prefix of its name.
    ByPrefix,
    /// By its whole name.
    Whole,
}

/// A user ID, or a name of `/etc/passwd`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum User {
    Number(u32),
    Name(String),
}

/// Why there is no valid policy, or why it forbids a request.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("uvala-helper: cannot read {0}: {1}; it says which user may have which interface")]
    Unreadable(&'static str, std::io::Error),
    /// Users other than root can write the file.
    #[error("uvala-helper: {0} must belong to root, and only root may write it")]
    Open(&'static str),
    /// The file is invalid.
    #[error("uvala-helper: {PATH}: {0}")]
    Nonsense(String),
    /// No rule allows the request.
    #[error(
        "user {uid} may not have a port of kind {} on interface {}: {PATH} does not allow it",
        .kind.name(), .ifname.escape_debug()
    )]
    Forbidden {
        /// The user.
        uid: u32,
        /// The kind of port.
        kind: Kind,
        /// The interface.
        ifname: String,
    },
    /// No rule allows the address.
    #[error(
        "user {uid} may not have address {address} on interface {}: {PATH} names no network that \
         it is in (addresses)", .ifname.escape_debug()
    )]
    Elsewhere {
        /// The user.
        uid: u32,
        /// The address.
        address: Address,
        /// The interface.
        ifname: String,
    },
    /// Settings are asked for, of an interface that the helper did not make.
    #[error(
        "interface {0} was there before, and the helper changes only those that it makes: leave \
         mtu, mac and address out, or delete it"
    )]
    Unchanged(String),
    /// Only a prefix allows a TAP that was not made for the user.
    #[error(
        "TAP {ifname} was there before and was not made for user {uid}, and {PATH} has only a \
         prefix of its name: write its whole name there, or delete it and make it anew: ip tuntap \
         add dev {ifname} mode tap user {uid}"
    )]
    Foreign {
        /// The user.
        uid: u32,
        /// The interface.
        ifname: String,
    },
}

impl Policy {
    /// Reads the file, after a check of its owner.
    ///
    /// # Errors
    /// [`PolicyError`].
    pub fn load() -> Result<Self, PolicyError> {
        Self::load_from(DIRECTORY, PATH)
    }

    fn load_from(directory: &'static str, path: &'static str) -> Result<Self, PolicyError> {
        let open = |path: &'static str, flags: OFlags| {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file =
                OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
            let file = file.map_err(|error| PolicyError::Unreadable(path, error))?;
            let about = file.metadata().map_err(|error| PolicyError::Unreadable(path, error))?;
            let alone = is_roots_alone(about.uid(), about.mode());
            alone.then_some(file).ok_or(PolicyError::Open(path))
        };
        open(directory, OFlags::DIRECTORY)?;
        let file = open(path, OFlags::empty())?;
        Self::parse(&read(file)?)
    }

    /// Parses a policy. User names are looked up in `/etc/passwd` only: a name service would load
    /// foreign modules into a privileged program.
    ///
    /// # Errors
    /// [`PolicyError::Nonsense`].
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        Self::parse_with(text, &std::fs::read_to_string("/etc/passwd").unwrap_or_default())
    }

    fn parse_with(text: &str, users: &str) -> Result<Self, PolicyError> {
        let mut policy: Self = toml::from_str(text)
            .map_err(|error| PolicyError::Nonsense(error.message().replace('\n', " ")))?;
        for allow in &mut policy.allow {
            allow.user = User::Number(allow.user.number(users)?);
        }
        let bad = policy.allow.iter().flat_map(|allow| &allow.interfaces).find(|name| {
            let name = name.strip_suffix('*').unwrap_or(name);
            name.contains(['*', '/']) || name.len() > 15
        });
        match bad {
            Some(name) => Err(PolicyError::Nonsense(format!(
                "interface {name:?}: write a name, or its beginning with a * behind it"
            ))),
            None => Ok(policy),
        }
    }

    /// Checks a request of a user; returns how the rule names the interface that allows it.
    ///
    /// # Errors
    /// [`PolicyError::Forbidden`], [`PolicyError::Elsewhere`].
    pub fn judge(&self, uid: u32, request: &Request) -> Result<Named, PolicyError> {
        let allows = |allow: &Allow| {
            let is_meant = matches!(allow.user, User::Number(user) if user == uid)
                && allow.kinds.contains(&request.kind);
            let names = allow.interfaces.iter().filter(|_| is_meant);
            names.filter_map(|pattern| matches(pattern, &request.ifname)).max()
        };
        let ifname = request.ifname.clone();
        let allowed = self.allow.iter().filter_map(|allow| Some((allow, allows(allow)?)));
        let allowed: Vec<_> = allowed.collect();
        let Some(named) = allowed.iter().map(|(_, named)| *named).max() else {
            return Err(PolicyError::Forbidden { uid, kind: request.kind, ifname });
        };
        let mut networks = allowed.iter().flat_map(|(allow, _)| &allow.addresses);
        match request.address {
            Some(address) if !networks.any(|network| address.is_within(*network)) => {
                Err(PolicyError::Elsewhere { uid, address, ifname })
            }
            _ => Ok(named),
        }
    }
}

/// Checks whether a TAP may be opened that was there before. Its name may begin like that of a rule
/// by chance. The kernel keeps a TAP for its owner, but not from the helper, which gets even the
/// next queue of a TAP that a program is using.
///
/// # Errors
/// [`PolicyError::Unchanged`], [`PolicyError::Foreign`].
pub fn check_existing(
    uid: u32,
    named: Named,
    request: &Request,
    there: &Interface,
) -> Result<(), PolicyError> {
    let ifname = request.ifname.clone();
    if request.mtu.is_some() || request.mac.is_some() || request.address.is_some() {
        return Err(PolicyError::Unchanged(ifname));
    }
    if named == Named::ByPrefix && there.driver == "tun" && there.owner != Some(uid) {
        return Err(PolicyError::Foreign { uid, ifname });
    }
    Ok(())
}

/// Whether root alone may write what has this owner and mode.
const fn is_roots_alone(owner: u32, mode: u32) -> bool {
    owner == 0 && mode & 0o022 == 0
}

fn read(file: File) -> Result<String, PolicyError> {
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| PolicyError::Unreadable(PATH, error))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(PolicyError::Nonsense("more than 64 KiB".to_owned()));
    }
    Ok(text)
}

fn matches(pattern: &str, name: &str) -> Option<Named> {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start).then_some(Named::ByPrefix),
        None => (name == pattern).then_some(Named::Whole),
    }
}

impl User {
    /// The user ID, which may be written as text.
    fn number(&self, users: &str) -> Result<u32, PolicyError> {
        let name = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(name) => name,
        };
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let mut rows = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let number = rows.find_map(|row| match row[..] {
            [first, _, number, ..] if first == name => number.parse().ok(),
            _ => None,
        });
        number.ok_or_else(|| PolicyError::Nonsense(format!("user {name:?} is not in /etc/passwd")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_what_is_allowed_is() {
        let text = "[[allow]]\nuser = 1000\nkinds = [\"tap\"]\ninterfaces = [\"tap*\", \"lan\"]\n\
                    [[allow]]\nuser = \"root\"\nkinds = [\"xdp\"]\ninterfaces = [\"eth1\"]\n";
        let policy = Policy::parse(text).unwrap();
        let may = |uid, kind, name| policy.judge(uid, &Request::plain(kind, name)).is_ok();
        assert!(may(1000, Kind::Tap, "tap0") && may(1000, Kind::Tap, "lan"));
        assert!(may(0, Kind::Xdp, "eth1"), "by name");
        assert!(!may(1000, Kind::Packet, "tap0") && !may(1000, Kind::Tap, "lan0"));
        assert!(!may(1001, Kind::Tap, "tap0") && !may(0, Kind::Tap, "tap0"));
        assert!(!may(0, Kind::Xdp, "eth10") && !may(0, Kind::Xdp, ""));
        let refusal = policy.judge(7, &Request::plain(Kind::Xdp, "eth1")).unwrap_err().to_string();
        assert!(
            refusal.contains("user 7 may not have a port of kind xdp on interface eth1"),
            "{refusal}"
        );
        let empty = Policy::parse("").unwrap();
        assert!(empty.judge(0, &Request::plain(Kind::Tap, "tap0")).is_err());
    }

    #[test]
    fn users_are_numbers_or_of_the_file_of_users() {
        let with = |user: &str| {
            let text =
                format!("[[allow]]\nuser = {user}\nkinds = [\"tap\"]\ninterfaces = [\"a\"]\n");
            Policy::parse_with(&text, "red:x:7:8::/:\nblue:x:9\nhalf:x\n")
        };
        for (user, uid) in [("7", 7), ("\"7\"", 7), ("\"red\"", 7), ("\"blue\"", 9)] {
            let policy = with(user).expect(user);
            let may = |uid| policy.judge(uid, &Request::plain(Kind::Tap, "a")).is_ok();
            assert!(may(uid) && !may(8) && !may(0), "{user}");
        }
        for user in ["\"nosuch\"", "\"half\"", "\"\"", "\"x\"", "\"-1\"", "\"4294967296\""] {
            let error = with(user).expect_err(user).to_string();
            assert!(error.contains(&format!("user {user} is not in /etc/passwd")), "{error}");
        }
    }

    #[test]
    fn addresses_are_of_the_networks_that_are_named() {
        let text = "[[allow]]\nuser = 7\nkinds = [\"tap\"]\ninterfaces = [\"lan\"]\n\
                    addresses = [\"10.0.0.0/24\", \"fd00::/64\"]\n\
                    [[allow]]\nuser = 7\nkinds = [\"tap\"]\ninterfaces = [\"tap*\"]\n";
        let policy = Policy::parse(text).unwrap();
        let may = |name: &str, address: &str| {
            let address = Some(address.parse().unwrap());
            policy.judge(7, &Request { address, ..Request::plain(Kind::Tap, name) }).is_ok()
        };
        for address in ["10.0.0.1/24", "10.0.0.9/32", "fd00::1/64", "fd00::ffff/128"] {
            assert!(may("lan", address), "{address}");
            assert!(!may("tap0", address), "{address}: named for another interface");
        }
        for address in
            ["128.0.0.1/1", "10.0.0.1/23", "10.0.1.1/24", "0.0.0.0/0", "fd00:0:0:1::1/64"]
        {
            assert!(!may("lan", address), "{address}");
        }
        assert!(!may("lan", "a00::1/64"), "the same bits, of the other family");
        assert!(policy.judge(7, &Request::plain(Kind::Tap, "tap0")).is_ok(), "without an address");
        let request = Request {
            address: Some("9.9.9.9/8".parse().unwrap()),
            ..Request::plain(Kind::Tap, "lan")
        };
        let refusal = policy.judge(7, &request).unwrap_err().to_string();
        assert!(refusal.contains("user 7 may not have address 9.9.9.9/8"), "{refusal}");
    }

    #[test]
    fn a_whole_name_counts_more_than_a_prefix() {
        let text = "[[allow]]\nuser = 7\nkinds = [\"tap\"]\ninterfaces = [\"tap*\", \"tap1\"]\n\
                    [[allow]]\nuser = 7\nkinds = [\"tap\"]\ninterfaces = [\"tap2\"]\n\
                    [[allow]]\nuser = 8\nkinds = [\"tap\"]\ninterfaces = [\"tap3\"]\n";
        let policy = Policy::parse(text).unwrap();
        let named = |name: &str| policy.judge(7, &Request::plain(Kind::Tap, name)).unwrap();
        assert_eq!(["tap1", "tap2"].map(named), [Named::Whole; 2]);
        assert_eq!(["tap", "tap3", "tap12"].map(named), [Named::ByPrefix; 3]);
    }

    #[test]
    fn a_prefix_opens_no_tap_that_was_not_made_for_its_user() {
        let request = Request::plain(Kind::Tap, "tap0");
        let may_open = |named, owner, driver: &str| {
            let there = Interface { owner, driver: driver.to_owned(), ..Interface::default() };
            check_existing(7, named, &request, &there).is_ok()
        };
        for owner in [None, Some(0), Some(8)] {
            assert!(!may_open(Named::ByPrefix, owner, "tun"), "{owner:?}");
            assert!(may_open(Named::Whole, owner, "tun"), "{owner:?}");
        }
        assert!(may_open(Named::ByPrefix, Some(7), "tun"));
        assert!(may_open(Named::ByPrefix, None, "veth"), "what is no TAP is refused as such");
        let request = Request { mtu: Some(9000), ..request };
        let there = Interface { owner: Some(7), driver: "tun".to_owned(), ..Interface::default() };
        let refused = check_existing(7, Named::Whole, &request, &there).unwrap_err().to_string();
        assert!(refused.contains("tap0 was there before"), "{refused}");
    }

    #[test]
    fn a_policy_that_others_may_write_is_refused() {
        assert!(is_roots_alone(0, 0o100_644) && is_roots_alone(0, 0o040_755));
        for (owner, mode) in [(1000, 0o100_644), (0, 0o100_664), (0, 0o100_646), (0, 0o041_777)] {
            assert!(!is_roots_alone(owner, mode), "{owner} {mode:o}");
        }
        let name = format!("uvala-policy-{}", std::process::id());
        let directory: &'static str = std::env::temp_dir().join(name).display().to_string().leak();
        let path: &'static str = format!("{directory}/helper.toml").leak();
        let chmod = |path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
        std::fs::create_dir(directory).unwrap();
        std::fs::write(path, "").unwrap();
        chmod(path, 0o666).unwrap();
        chmod(directory, 0o777).unwrap();
        let of_file = Policy::load_from("/", path);
        let of_directory = Policy::load_from(directory, "/etc/passwd");
        std::fs::remove_dir_all(directory).unwrap();
        for loaded in [of_file, of_directory] {
            assert!(matches!(loaded, Err(PolicyError::Open(_))), "{loaded:?}");
        }
    }

    #[test]
    fn nonsense_is_refused_as_a_whole() {
        for text in [
            "[[allow]]\nuser = 1\nkinds = [\"stack\"]\ninterfaces = []",
            "[[allow]]\nuser = 1\nkinds = []\ninterfaces = [\"a*b\"]",
            "[[allow]]\nuser = 1\nkinds = []\ninterfaces = [\"../x\"]",
            "[[allow]]\nuser = -1\nkinds = []\ninterfaces = []",
            "[[allow]]\nkinds = []\ninterfaces = []",
            "[[allow]]\nuser = 1\nkinds = []\ninterfaces = []\naddresses = [\"10.0.0.0\"]",
            "everyone = true",
            "[[",
        ] {
            assert!(matches!(Policy::parse(text), Err(PolicyError::Nonsense(_))), "{text}");
        }
    }
}

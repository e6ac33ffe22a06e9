//! Port names, in netmap's grammar.
//!
//! ```text
//! vale<switch>:<port>            a port of a switch        vale0:vm1   valelab:fw_out   vale:p
//! vale<switch>:<port>{<id>       master end of a pipe      vale0:a{1
//! vale<switch>:<port>}<id>       slave end of a pipe       vale0:a}1
//! netmap:<interface>             an interface              netmap:v0   netmap:eth0   netmap:v0{1
//! netmap:<PCI address>           a ptnet of this machine   netmap:0000:00:04.0
//! ```
//!
//! `<port>` and `<id>` are one or more of `0-9 A-Z a-z _`; `<switch>` may be empty, as in netmap.
//! An interface has a name of its own, which may have dots and is at most
//! [`PortName::INTERFACE_BYTES`] long. It is alone in a switch that is named as it is, until
//! an operator puts it into another one: `netmap:v0` may become `vale0:v0`.
//! A ptnet has the name of its PCI device, which no interface can have; no daemon serves it.
//! A whole name fits [`PortName::MAX_BYTES`] bytes. A name that was parsed is valid for ever:
//! everything behind this module takes [`PortName`] and [`SwitchName`], never `&str`.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use packet::MacAddr;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// The name of a switch with its `vale` prefix: `vale0`, `valelab`, `vale`; or the switch in which
/// an interface is alone: `netmap:v0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwitchName(String);

/// The name of a port or of one end of a pipe.
///
/// ```
/// use protocol::name::PortName;
/// let name: PortName = "vale0:vm1".parse().unwrap();
/// assert_eq!((name.switch().as_str(), name.port()), ("vale0", "vm1"));
/// assert!("vale0:vm-1".parse::<PortName>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    switch: SwitchName,
    port: String,
    pipe: Option<PipeEnd>,
}

/// Which end of which pipe: the part of a name after the port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PipeEnd {
    /// Master or slave.
    pub side: PipeSide,
    /// What both ends of one pipe have in common.
    pub id: String,
}

/// The two ends of a pipe, named by the brace that separates port and identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PipeSide {
    /// `{`
    Master,
    /// `}`
    Slave,
}

/// Why a text is no name. Each message is one line that shows a good name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Does not begin with `vale`.
    #[error(
        "bad name '{0}': it must begin with 'vale', as the switch vale0 and its port vale0:vm1, or \
         with 'netmap:'"
    )]
    NoPrefix(String),
    /// A port name without `:`.
    #[error("bad port name '{0}': no ':' between switch and port, as in vale0:vm1")]
    NoColon(String),
    /// Nothing after `:`, `{` or `}`.
    #[error("bad port name '{name}': nothing after '{after}', write for example {example}")]
    Empty {
        /// The text.
        name: String,
        /// The separator that nothing follows.
        after: char,
        /// A good name.
        example: &'static str,
    },
    /// A port in the place of a switch.
    #[error("bad name '{name}': it names a port; name its switch: {switch}")]
    IsPort {
        /// The text.
        name: String,
        /// What is in front of the port.
        switch: String,
    },
    /// A character outside `0-9 A-Z a-z _`.
    #[error(
        "bad name '{name}': {found:?} (character {position}) is not allowed, \
         only letters, digits and '_', as in vale0:vm1"
    )]
    BadCharacter {
        /// The text.
        name: String,
        /// The offending character.
        found: char,
        /// The character's position, counted from 1.
        position: usize,
    },
    /// Longer than a name may be.
    #[error(
        "bad name '{}…': {length} bytes are too many, at most {most} are allowed, as in vale0:vm1",
        .start
    )]
    TooLong {
        /// The first characters of the text.
        start: String,
        /// The name's length in bytes.
        length: usize,
        /// How long it may be.
        most: usize,
    },
}

impl SwitchName {
    /// What the name of a switch begins with.
    pub const PREFIX: &str = "vale";
    /// What the name of an interface begins with.
    pub const INTERFACE: &str = "netmap:";
    /// The longest name: a port's name needs two bytes more, `:` and a letter.
    pub const MAX_BYTES: usize = PortName::MAX_BYTES - 2;

    /// The whole name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The port `port` of this switch.
    pub fn join(&self, port: &str) -> Result<PortName, NameError> {
        format!("{self}:{port}").parse()
    }

    /// Whether an interface is alone in it.
    #[must_use]
    pub fn is_interface(&self) -> bool {
        self.0.starts_with(Self::INTERFACE)
    }

    /// The PCI address of a device that has this name: see [`PortName::pci_address`].
    #[must_use]
    pub fn pci_address(&self) -> Option<&str> {
        let name = without_side(self.0.strip_prefix(Self::INTERFACE)?);
        Some(name).filter(|name| is_pci_address(name))
    }

    /// For the switch of one side of an interface, that of the other.
    #[must_use]
    pub fn other_side(&self) -> Option<Self> {
        let side = |name: &str| match name.strip_suffix(PortName::HOST_SIDE) {
            Some(nic) => nic.to_owned(),
            None => format!("{name}{}", PortName::HOST_SIDE),
        };
        self.is_interface().then(|| Self(side(&self.0)))
    }
}

impl PortName {
    /// The longest name, netmap's `NETMAP_REQ_IFNAMSIZ` less the closing zero.
    pub const MAX_BYTES: usize = 63;
    /// What the name of an interface's other side ends with.
    pub const HOST_SIDE: char = '^';
    /// The longest name of an interface, the kernel's `IFNAMSIZ` less the closing zero.
    pub const INTERFACE_BYTES: usize = 15;

    /// The interface of this name, alone in its switch.
    pub fn interface(name: &str) -> Result<Self, NameError> {
        format!("{}{name}", SwitchName::INTERFACE).parse()
    }

    /// The least of all possible names of a switch's ports: where they begin in an ordered table.
    #[must_use]
    pub fn first_of(switch: &SwitchName) -> Self {
        Self { switch: switch.clone(), port: String::new(), pipe: None }
    }

    /// The address of a guest's network card on this port: one in QEMU's range that differs between
    /// ports.
    #[must_use]
    pub fn guest_mac(&self) -> MacAddr {
        let hash = self
            .to_string()
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let [a, b, c, _] = hash.to_le_bytes();
        MacAddr::new([0x52, 0x54, 0, a, b, c])
    }

    /// The switch that the port belongs to.
    #[must_use]
    pub fn switch(&self) -> &SwitchName {
        &self.switch
    }

    /// The part between `:` and the brace of a pipe.
    #[must_use]
    pub fn port(&self) -> &str {
        &self.port
    }

    /// Whether this is an interface that is alone in its switch, or the end of a pipe of one.
    #[must_use]
    pub fn is_interface(&self) -> bool {
        self.switch.is_interface()
    }

    /// The PCI address of the device that has the port, `0000:00:04.0`, if it is one of this
    /// machine's own: a ptnet in a guest. Also of pipes and the host's side, which no device has.
    #[must_use]
    pub fn pci_address(&self) -> Option<&str> {
        self.switch.pci_address()
    }

    /// The name that netmap writes into a `netmap_if`: an interface's is that of the system.
    #[must_use]
    pub fn netmap_name(&self) -> String {
        let text = self.to_string();
        text.strip_prefix(SwitchName::INTERFACE).map_or(&*text, without_side).to_owned()
    }

    /// Whether this is the host's side of an interface, `netmap:eth0^`: what netmap calls its host
    /// rings.
    #[must_use]
    pub fn is_host_side(&self) -> bool {
        self.port.ends_with(Self::HOST_SIDE)
    }

    /// The host's side of this.
    ///
    /// # Errors
    /// If the name gets too long, or is one already.
    pub fn host_side(&self) -> Result<Self, NameError> {
        format!("{}{}", self.parent(), Self::HOST_SIDE).parse()
    }

    /// The other side of an interface that is alone.
    #[must_use]
    pub fn other_side(&self) -> Option<Self> {
        self.switch.other_side().and_then(|side| side.as_str().parse().ok())
    }

    /// The interface of the system that has this port's name.
    #[must_use]
    pub fn interface_name(&self) -> &str {
        without_side(&self.port)
    }

    /// The port in whose memory a pipe lives, for the end of one; for others the name itself.
    #[must_use]
    pub fn parent(&self) -> Self {
        Self { pipe: None, ..self.clone() }
    }

    /// Which end of a pipe this is, if it is one.
    #[must_use]
    pub fn pipe(&self) -> Option<&PipeEnd> {
        self.pipe.as_ref()
    }

    /// The other end of the pipe, if this is one.
    #[must_use]
    pub fn peer(&self) -> Option<Self> {
        let end = self.pipe.as_ref()?;
        let pipe = Some(PipeEnd { side: end.side.other(), id: end.id.clone() });
        Some(Self { pipe, ..self.clone() })
    }
}

impl PipeSide {
    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Master => Self::Slave,
            Self::Slave => Self::Master,
        }
    }

    /// The brace that names this end.
    #[must_use]
    pub fn brace(self) -> char {
        match self {
            Self::Master => '{',
            Self::Slave => '}',
        }
    }
}

impl FromStr for SwitchName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check_length(text, Self::MAX_BYTES)?;
        if let Some(interface) = text.strip_prefix(Self::INTERFACE) {
            check_interface(text, without_side(interface))?;
            return Ok(Self(text.to_owned()));
        }
        let Some(rest) = text.strip_prefix(Self::PREFIX) else {
            return Err(NameError::NoPrefix(printable(text)));
        };
        if let Some((switch, _)) = text.split_once(':') {
            return Err(NameError::IsPort { name: printable(text), switch: printable(switch) });
        }
        check_ident(text, rest)?;
        Ok(Self(text.to_owned()))
    }
}

impl FromStr for PortName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check_length(text, Self::MAX_BYTES)?;
        if let Some(rest) = text.strip_prefix(SwitchName::INTERFACE) {
            let (interface, pipe) = split_pipe(text, rest)?;
            check_interface(text, without_side(interface))?;
            let switch = SwitchName(format!("{}{interface}", SwitchName::INTERFACE));
            return Ok(Self { switch, port: interface.to_owned(), pipe });
        }
        if !text.starts_with(SwitchName::PREFIX) {
            return Err(NameError::NoPrefix(printable(text)));
        }
        let Some((switch, rest)) = text.split_once(':') else {
            return Err(NameError::NoColon(printable(text)));
        };
        check_ident(text, switch)?;
        let (port, pipe) = split_pipe(text, rest)?;
        check_part(text, without_side(port), ':', "vale0:vm1")?;
        Ok(Self { switch: SwitchName(switch.to_owned()), port: port.to_owned(), pipe })
    }
}

/// A name without the mark of the host's side.
fn without_side(port: &str) -> &str {
    port.strip_suffix(PortName::HOST_SIDE).unwrap_or(port)
}

/// Cuts `a{1` into `a` and the pipe end `{1`.
fn split_pipe<'a>(whole: &'a str, rest: &'a str) -> Result<(&'a str, Option<PipeEnd>), NameError> {
    let Some(at) = rest.find(['{', '}']) else {
        return Ok((rest, None));
    };
    let (port, brace_and_id) = rest.split_at(at);
    let side = if brace_and_id.starts_with('{') { PipeSide::Master } else { PipeSide::Slave };
    let id = &brace_and_id[1..];
    check_part(whole, id, side.brace(), "vale0:a{1 and vale0:a}1")?;
    Ok((port, Some(PipeEnd { side, id: id.to_owned() })))
}

fn check_length(text: &str, most: usize) -> Result<(), NameError> {
    if text.len() <= most {
        return Ok(());
    }
    let start = printable(&text.chars().take(16).collect::<String>());
    Err(NameError::TooLong { start, length: text.len(), most })
}

fn check_part(
    whole: &str,
    part: &str,
    after: char,
    example: &'static str,
) -> Result<(), NameError> {
    if part.is_empty() {
        return Err(NameError::Empty { name: printable(whole), after, example });
    }
    check_ident(whole, part)
}

fn check_interface(whole: &str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        let (name, after) = (printable(whole), ':');
        return Err(NameError::Empty { name, after, example: "netmap:eth0" });
    }
    check_length(name, PortName::INTERFACE_BYTES)?;
    if is_pci_address(name) {
        return Ok(());
    }
    name.split('.').try_for_each(|part| check_ident(whole, part))
}

/// Whether it is domain, bus, device and function in the kernel's way of writing: `0000:00:04.0`.
fn is_pci_address(text: &str) -> bool {
    let digits = |part: &str, counts: std::ops::RangeInclusive<usize>| {
        counts.contains(&part.len())
            && part.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
    };
    let parts = text.split_once('.').map(|(place, function)| (place.split(':'), function));
    let Some((mut place, function)) = parts else { return false };
    let (domain, bus, device) = (place.next(), place.next(), place.next());
    digits(domain.unwrap_or_default(), 4..=6)
        && digits(bus.unwrap_or_default(), 2..=2)
        && digits(device.unwrap_or_default(), 2..=2)
        && place.next().is_none()
        && matches!(function.as_bytes(), [b'0'..=b'7'])
}

/// `part` is a slice of `whole`, so that the position in the message is the one the user sees.
fn check_ident(whole: &str, part: &str) -> Result<(), NameError> {
    let Some((at, found)) = part.char_indices().find(|&(_, c)| !is_ident(c)) else {
        return Ok(());
    };
    let offset = part.as_ptr().addr() - whole.as_ptr().addr() + at;
    let position = whole[..offset].chars().count() + 1;
    Err(NameError::BadCharacter { name: printable(whole), found, position })
}

fn is_ident(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Control characters of a hostile name must not reach a terminal or a log.
fn printable(text: &str) -> String {
    text.escape_debug().to_string()
}

impl fmt::Display for SwitchName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.switch.0)?;
        if !self.is_interface() {
            f.write_str(":")?;
            f.write_str(&self.port)?;
        }
        match &self.pipe {
            Some(end) => write!(f, "{}{}", end.side.brace(), end.id),
            None => Ok(()),
        }
    }
}

/// The text of a name in a message, which is no string of its own: a listing of a thousand ports
/// has as many names.
struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err = NameError>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! in_messages {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_str(Text(PhantomData))
            }
        }
    )*};
}

in_messages!(SwitchName, PortName);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        text.parse::<PortName>().unwrap_err().to_string()
    }

    #[test]
    fn test_a_ptnet_has_the_name_of_its_device_and_nothing_else_looks_like_one() {
        let name: PortName = "netmap:0000:00:04.0".parse().unwrap();
        assert_eq!((name.pci_address(), name.is_interface()), (Some("0000:00:04.0"), true));
        assert_eq!(
            (name.to_string(), name.netmap_name()),
            ("netmap:0000:00:04.0".to_owned(), "0000:00:04.0".to_owned(),)
        );
        assert_eq!(name.switch().join("a").ok(), None);
        for interface in ["netmap:eth0", "netmap:0000.00", "netmap:eth0{1", "vale0:a"] {
            let name: PortName = interface.parse().unwrap();
            assert_eq!(name.pci_address(), None, "{interface}");
        }
        for part in ["netmap:0000:00:04.0{1", "netmap:0000:00:04.0^", "netmap:0000:00:04.0^}a"] {
            let name: PortName = part.parse().unwrap();
            assert_eq!(name.pci_address(), Some("0000:00:04.0"), "{part}");
        }
        for bad in ["0000:00:04", "0000:00:04.8", "00:04.0", "0000:00:4.0", "0000:00:0G.0", "a:b"] {
            assert!(format!("netmap:{bad}").parse::<PortName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn test_parse_good_names() {
        for text in ["vale0:vm1", "valelab:fw_out", "vale:p", "vale0:a{1", "vale0:a}x_9"] {
            assert_eq!(text.parse::<PortName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn test_interfaces_are_alone_in_a_switch() {
        for text in ["netmap:v0", "netmap:eth0.100", "netmap:v0{1", "netmap:v0}x"] {
            let name: PortName = text.parse().unwrap();
            assert_eq!((name.to_string().as_str(), name.is_interface()), (text, true));
            let switch: SwitchName = name.switch().as_str().parse().unwrap();
            assert_eq!(switch.as_str(), format!("netmap:{}", name.port()));
            assert_eq!(name.parent(), PortName::interface(name.port()).unwrap());
        }
        let vale: PortName = "vale0:v0{1".parse().unwrap();
        assert_eq!((vale.parent().to_string().as_str(), vale.is_interface()), ("vale0:v0", false));
        assert!(error("netmap:").contains("nothing after ':'"));
        assert!(error("netmap:a-b").contains("'-' (character 9)"));
        assert!(error("netmap:0123456789abcdef").contains("16 bytes are too many, at most 15"));
        assert!(error("netmap:netmap:v0").contains("':' (character 14)"));
    }

    #[test]
    fn test_netmap_knows_interfaces_by_their_name_alone() {
        let pairs = [
            ("netmap:ve0", "ve0"),
            ("netmap:ve0^", "ve0"),
            ("netmap:ve0{1", "ve0{1"),
            ("vale0:ve0", "vale0:ve0"),
            ("vale0:ve0^", "vale0:ve0^"),
        ];
        for (name, netmaps) in pairs {
            assert_eq!(name.parse::<PortName>().unwrap().netmap_name(), netmaps);
        }
    }

    #[test]
    fn test_pipe_ends_are_peers() {
        let master: PortName = "vale0:a{1".parse().unwrap();
        let slave = master.peer().unwrap();
        assert_eq!(slave.to_string(), "vale0:a}1");
        assert_eq!(slave.peer().unwrap(), master);
        assert_eq!("vale0:a".parse::<PortName>().unwrap().peer(), None);
    }

    #[test]
    fn test_errors_name_the_character_and_a_good_name() {
        assert_eq!(
            error("vale0:vm-1"),
            "bad name 'vale0:vm-1': '-' (character 9) is not allowed, \
             only letters, digits and '_', as in vale0:vm1"
        );
        let port = "vale0:vm1".parse::<SwitchName>().unwrap_err().to_string();
        assert!(port.ends_with("it names a port; name its switch: vale0"), "{port}");
        assert!(error("valé0:vm1").contains("begin with 'vale'"));
        assert!(error("vale0é:vm").contains("'é' (character 6)"));
        assert!(error("eth0").contains("begin with 'vale'"));
        assert!(error("vale0").contains("no ':'"));
        assert!(error("vale0:").contains("nothing after ':'"));
        assert!(error("vale0:a{").contains("nothing after '{'"));
        assert!(error("vale0:{1").contains("nothing after ':'"));
        assert!(error("vale0:a{1}2").contains("'}' (character 10)"));
        assert!(error("vale0:a:b").contains("':' (character 8)"));
        assert!(error(&format!("vale0:{}", "x".repeat(64))).contains("70 bytes"));
        assert!(!error("vale0:\x1b[31m").contains('\x1b'));
    }

    #[test]
    fn test_every_switch_name_leaves_room_for_a_port() {
        let longest: SwitchName = format!("vale{}", "x".repeat(57)).parse().unwrap();
        assert!(longest.join("p").is_ok());
        let error = format!("{longest}x").parse::<SwitchName>().unwrap_err().to_string();
        assert!(error.contains("62 bytes are too many, at most 61"), "{error}");
    }

    #[test]
    fn test_serde_checks_names() {
        assert!(serde_json::from_str::<PortName>("\"vale0:vm1\"").is_ok());
        assert!(serde_json::from_str::<PortName>("\"vale0:vm 1\"").is_err());
    }

    #[test]
    fn test_the_hosts_side_is_marked_once_and_at_the_end() {
        let port: PortName = "vale0:eth0^".parse().unwrap();
        assert!(port.is_host_side() && port.interface_name() == "eth0");
        assert!(port.host_side().is_err());
        let nic: PortName = "netmap:eth0.10".parse().unwrap();
        assert_eq!(nic.host_side().unwrap().to_string(), "netmap:eth0.10^");
        assert!(!nic.is_host_side());
        for bad in ["vale0:^", "vale0:a^b", "vale0:a^^", "vale^:a", "netmap:^"] {
            assert!(bad.parse::<PortName>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn test_display_parse_roundtrip(
            switch in "[0-9A-Za-z_]{0,16}",
            port in "[0-9A-Za-z_]{1,16}",
            pipe in proptest::option::of("[{}][0-9A-Za-z_]{1,16}"),
        ) {
            let text = format!("vale{switch}:{port}{}", pipe.unwrap_or_default());
            let name: PortName = text.parse().unwrap();
            prop_assert_eq!(name.to_string(), text);
        }

        #[test]
        fn test_parse_never_panics_and_only_roundtrips(text in "(vale)?.{0,80}") {
            if let Ok(name) = text.parse::<PortName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}

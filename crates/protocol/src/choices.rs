//! Settings with a fixed list of values, which are words in messages, files and command lines.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use packet::ParseError;
use serde::{Deserialize, Serialize};

/// Declares an enum, the word of each value, and the list of words for messages.
macro_rules! choice {
    (
        $(#[$doc:meta])* $name:ident, $expected:literal;
        $($(#[$about:meta])* $value:ident = $word:literal,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $name {
            $($(#[$about])* $value,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$value),*];

            /// The word of the value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                let known = Self::ALL.iter().copied().find(|value| value.name() == text);
                known.ok_or_else(|| ParseError::new($expected, text))
            }
        }

        packet::text_form!($name);
    };
}

choice! {
    /// Which frames of a port: seen from the switch.
    Direction, "in, out or both";
    /// What enters the switch by the port.
    In = "in",
    /// What leaves it by the port.
    Out = "out",
    /// Both.
    #[default]
    Both = "both",
}

choice! {
    /// Whether a port leads to a multicast router: as `mcast_router` of Linux's bridge.
    McastRouter, "off, auto or on";
    /// Never; queries that are heard there count for nothing.
    Off = "off",
    /// While one is heard there.
    #[default]
    Auto = "auto",
    /// Always.
    On = "on",
}

choice! {
    /// The protocol of multicast routers and members.
    McastFamily, "ipv4 or ipv6";
    /// IGMP.
    #[default]
    Ipv4 = "ipv4",
    /// MLD.
    Ipv6 = "ipv6",
}

choice! {
    /// The forwarding function of a switch: which function decides where frames go.
    Forwarding, "learning, hub, patch, static, static-flood, chain or program:FILE";
    /// An 802.1D bridge.
    #[default]
    Learning = "learning",
    /// Every frame to every other port.
    Hub = "hub",
    /// Two ports, cross-connected.
    Patch = "patch",
    /// Static entries only; an unknown unicast destination is dropped.
    Static = "static",
    /// Static entries only; an unknown unicast destination is flooded.
    StaticFlood = "static-flood",
    /// Through chains of functions, and from there as `Learning` does it.
    Chain = "chain",
    /// As a program of the switch's owner says.
    Program = "program",
}

/// A forwarding function as an operator chooses it: with the file of its program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ForwardingChoice {
    /// The function.
    pub function: Forwarding,
    /// The object file of a program.
    pub program: Option<PathBuf>,
}

impl FromStr for ForwardingChoice {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        const FILE: &str = "program:FILE, with the object file of a program";
        match text.strip_prefix("program:") {
            Some("") => Err(ParseError::new(FILE, text)),
            Some(file) => {
                Ok(Self { function: Forwarding::Program, program: Some(PathBuf::from(file)) })
            }
            None => match text.parse()? {
                Forwarding::Program => Err(ParseError::new(FILE, text)),
                function => Ok(Self { function, program: None }),
            },
        }
    }
}

impl TryFrom<String> for ForwardingChoice {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

choice! {
    /// What happens to a frame for a port that has no room for it.
    OnFull, "drop or wait";
    /// The switch drops and counts it.
    #[default]
    Drop = "drop",
    /// The sender waits.
    Wait = "wait",
}

choice! {
    /// Which workers run a switch.
    RunBy, "one or all";
    /// One worker, with all ports.
    #[default]
    One = "one",
    /// All workers, each with a share of the ports.
    All = "all",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_choices_survive_their_text_and_a_refusal_lists_them() {
        for forwarding in Forwarding::ALL {
            assert_eq!(forwarding.to_string().parse(), Ok(*forwarding));
            let refusal = "x".parse::<Forwarding>().unwrap_err().to_string();
            assert!(refusal.contains(forwarding.name()), "{refusal}");
        }
        let choice = |text: &str| text.parse::<ForwardingChoice>();
        let file = choice("program:/a.o").unwrap();
        assert_eq!((file.function, file.program), (Forwarding::Program, Some("/a.o".into())));
        assert_eq!(choice("hub").unwrap().function, Forwarding::Hub);
        for text in ["program", "program:"] {
            assert!(choice(text).unwrap_err().to_string().contains("program:FILE"), "{text}");
        }
        assert_eq!(serde_json::to_value(Forwarding::StaticFlood).unwrap(), "static-flood");
        assert_eq!(serde_json::from_str::<OnFull>("\"wait\"").unwrap(), OnFull::Wait);
        assert!("block".parse::<OnFull>().unwrap_err().to_string().contains("drop or wait"));
    }
}

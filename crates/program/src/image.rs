//! An image: a program as it is passed about and kept, before it has memory.
//!
//! The text has a line for each part, so that it goes into messages and saved state as it is, and a
//! reader sees what is in it:
//!
//! ```text
//! uvala-program 1
//! function forward header
//! code 6112000000000000…
//! data 0200000000010300
//! map stations hash 6 4 1024
//! ```

use std::fmt::{self, Write};
use std::str::FromStr;

use packet::shown::shown;
use thiserror::Error;

use crate::code::{CodeError, INSN};
use crate::maps::{MapDef, NAME_MAX};

/// Most instructions of a program.
pub const INSNS_MAX: usize = 2048;
/// Most bytes of constants.
pub const DATA_MAX: usize = 8192;
/// Most maps of a program.
pub const MAPS_MAX: usize = 16;
/// Most bytes of memory that the maps of a program take.
pub const MEMORY_MAX: usize = 4 << 20;
/// The first line of the text.
const FIRST: &str = "uvala-program 1";

/// How far a program looks into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Addresses, type and tag. Frames that follow each other with the same get one decision.
    Header,
    /// The first bytes of what is behind it, too.
    Packet,
}

impl Looks {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Packet => "packet",
        }
    }
}

/// A program before it has memory. Nothing of it is checked before [`Program::new`] does.
///
/// [`Program::new`]: crate::Program::new
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Name of the function.
    pub function: String,
    /// How far it looks into a frame.
    pub looks: Looks,
    /// Instructions.
    pub code: Vec<u8>,
    /// Constants.
    pub data: Vec<u8>,
    /// Maps.
    pub maps: Vec<MapDef>,
}

/// Why a program is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// An instruction cannot be.
    #[error(transparent)]
    Code(#[from] CodeError),
    /// There is too much of something.
    #[error("it has {have} {what}, and {max} is the limit")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// So much.
        have: usize,
        /// So much may be.
        max: usize,
    },
    /// A map cannot be.
    #[error("map {0}: {1}")]
    Map(String, String),
    /// Two maps have one name.
    #[error("it has two maps of the name {0}")]
    SameName(String),
    /// The name of the function is too long, or has other letters.
    #[error("its function has no name of up to {NAME_MAX} letters, digits and '_'")]
    Function,
    /// The text of an image is none.
    #[error("line {0} of the program's text is not what `uvala` writes")]
    Text(usize),
}

impl Image {
    /// Checks names, sizes and maps.
    ///
    /// # Errors
    /// The first that is out of its limits.
    pub fn check(&self) -> Result<(), ImageError> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let function = &self.function;
        if !(1..=NAME_MAX).contains(&function.len()) || !function.bytes().all(is_letter) {
            return Err(ImageError::Function);
        }
        for (what, have, max) in [
            ("instructions", self.code.len() / INSN, INSNS_MAX),
            ("bytes of constants", self.data.len(), DATA_MAX),
            ("maps", self.maps.len(), MAPS_MAX),
        ] {
            limit(what, have, max)?;
        }
        for (number, map) in self.maps.iter().enumerate() {
            map.check().map_err(|why| ImageError::Map(said(&map.name), why))?;
            if self.maps[..number].iter().any(|other| other.name == map.name) {
                return Err(ImageError::SameName(map.name.clone()));
            }
        }
        let memory = self.maps.iter().map(MapDef::memory).fold(0, usize::saturating_add);
        limit("bytes of maps", memory, MEMORY_MAX)
    }

    /// Bytes of memory that the program takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let maps: usize = self.maps.iter().map(MapDef::memory).sum();
        maps + self.data.len() + 2 * self.code.len() + (16 << 10)
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{FIRST}\nfunction {} {}", self.function, self.looks.name())?;
        writeln!(f, "code {}", to_hex(&self.code))?;
        if !self.data.is_empty() {
            writeln!(f, "data {}", to_hex(&self.data))?;
        }
        self.maps.iter().try_for_each(|map| writeln!(f, "map {map}"))
    }
}

impl FromStr for Image {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let mut lines = text.lines().zip(1..);
        if lines.next().is_none_or(|(line, _)| line != FIRST) {
            return Err(ImageError::Text(1));
        }
        let (mut function, mut looks) = (String::new(), Looks::Header);
        let (mut code, mut data, mut maps) = (Vec::new(), Vec::new(), Vec::new());
        for (line, number) in lines {
            let wrong = ImageError::Text(number);
            match line.split_once(' ').ok_or(wrong.clone())? {
                ("function", said) => {
                    let (name, how) = said.split_once(' ').ok_or(wrong.clone())?;
                    let all = [Looks::Header, Looks::Packet];
                    looks = all.into_iter().find(|it| it.name() == how).ok_or(wrong)?;
                    name.clone_into(&mut function);
                }
                ("code", hex) => code = from_hex(hex).ok_or(wrong)?,
                ("data", hex) => data = from_hex(hex).ok_or(wrong)?,
                ("map", _) if maps.len() == MAPS_MAX => {
                    let (what, have, max) = ("maps", MAPS_MAX + 1, MAPS_MAX);
                    return Err(ImageError::Limit { what, have, max });
                }
                ("map", map) => {
                    maps.push(map.parse().map_err(|why| ImageError::Map(said(map), why))?);
                }
                _ => return Err(wrong),
            }
        }
        Ok(Self { function, looks, code, data, maps })
    }
}

/// A name of a hostile file, as an error says it: it may have any characters, and a MiB of them.
pub(crate) fn said(name: &str) -> String {
    shown(name, 2 * NAME_MAX)
}

/// Whether there is no more than there may be.
pub(crate) fn limit(what: &'static str, have: usize, max: usize) -> Result<(), ImageError> {
    if have > max { Err(ImageError::Limit { what, have, max }) } else { Ok(()) }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// The bytes of hexadecimal digits.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            function: "forward".to_owned(),
            looks: Looks::Packet,
            code: vec![0x95, 0, 0, 0, 0, 0, 0, 0],
            data: vec![1, 0xab],
            maps: vec!["stations hash 6 4 1024".parse().unwrap()],
        }
    }

    #[test]
    fn test_an_image_survives_its_text() {
        assert_eq!(image().to_string().parse(), Ok(image()));
        let bare = Image { data: Vec::new(), maps: Vec::new(), ..image() };
        assert_eq!(bare.to_string().parse(), Ok(bare));
    }

    #[test]
    fn test_a_text_that_is_none_is_refused_with_its_line() {
        let text = image().to_string();
        for (from, to, line) in [
            ("uvala-program 1", "uvala-program 2", 1),
            (" packet", " all", 2),
            ("code 95", "code 9x", 3),
            ("code 95", "code 9", 3),
            ("data ", "date ", 4),
            ("map ", "map", 5),
        ] {
            let error = text.replace(from, to).parse::<Image>().unwrap_err();
            assert_eq!(error, ImageError::Text(line), "{from}");
        }
        let error = text.replace(" hash ", " heap ").parse::<Image>().unwrap_err();
        assert!(error.to_string().starts_with("map stations heap"), "{error}");
    }

    #[test]
    fn test_an_error_says_of_a_hostile_name_no_more_than_a_terminal_shows() {
        let mut hostile = image();
        hostile.maps[0].name = "\x1b[2J".repeat(1000);
        let checked = hostile.check().unwrap_err().to_string();
        let text = image().to_string().replace("stations hash", "\x1b[2J\u{202e}");
        let read = text.parse::<Image>().unwrap_err().to_string();
        for error in [checked, read] {
            assert!(error.starts_with(r"map \u{1b}[2J\u{") && error.len() < 200, "{error}");
            assert!(!error.contains(['\x1b', '\u{202e}']), "{error}");
        }
    }

    #[test]
    fn test_an_image_beyond_its_limits_is_refused() {
        let map = |text: &str| text.parse::<MapDef>().unwrap();
        let refused = |change: &dyn Fn(&mut Image)| {
            let mut image = image();
            change(&mut image);
            image.check().unwrap_err().to_string()
        };
        image().check().unwrap();
        let insns = refused(&|it| it.code = vec![0; (INSNS_MAX + 1) * INSN]);
        assert_eq!(insns, "it has 2049 instructions, and 2048 is the limit");
        assert!(refused(&|it| it.data = vec![0; DATA_MAX + 1]).contains("bytes of constants"));
        let large = |it: &mut Image| it.maps.push(map("large array 4 256 65536"));
        assert!(refused(&large).contains("bytes of maps"));
        let twice = refused(&|it| it.maps.push(it.maps[0].clone()));
        assert_eq!(twice, "it has two maps of the name stations");
        let wide = refused(&|it| it.maps[0].key = 65);
        assert_eq!(wide, "map stations: its key is 65; of kind hash, expected 1 to 64");
        assert!(
            refused(&|it| it.function = "a\nb".to_owned()).contains("its function has no name")
        );
        assert!(refused(&|it| it.maps[0].entries = u32::MAX).contains("number of entries"));
    }
}

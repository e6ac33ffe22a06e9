//! The forwarding program of a switch, and the entries of its maps that commands have set.
//!
//! An entry may name a port, by `port:NAME`. The number of a port is its own only while it carries
//! frames, so control keeps the name, and the map has an entry while the port has a number.

use program::{Image, MapDef, MapKind, Program, image};
use protocol::name::PortName;
use protocol::{ProgramEntry, ProgramSpec};

use super::error::BadValue;

/// Bytes of an entry that commands have set, as control keeps it: its texts and its key.
pub const ENTRY_BYTES: usize = 1024;

/// What an entry begins with that is the number of a port.
const PORT: &str = "port:";

/// A program as control knows it.
#[derive(Clone, Debug)]
pub struct LoadedProgram {
    /// What was loaded.
    pub image: Image,
    /// Entries that commands have set.
    pub entries: Vec<SetEntry>,
}

/// An entry that a command has set.
#[derive(Clone, Debug)]
pub struct SetEntry {
    /// As the command has it.
    pub entry: ProgramEntry,
    /// Number of its map.
    pub map: usize,
    /// The key that the map has now, if there is an entry.
    pub applied: Option<Vec<u8>>,
}

impl LoadedProgram {
    /// A program as a request or a record has it, checked.
    pub fn new(spec: &ProgramSpec) -> Result<Self, BadValue> {
        let bad = |why: String| BadValue(format!("the program is refused: {why}"));
        let image: Image = spec.image.parse().map_err(|why| bad(format!("{why}")))?;
        Program::check(&image).map_err(|why| bad(why.to_string()))?;
        let mut loaded = Self { image, entries: Vec::new() };
        for entry in &spec.entries {
            loaded.put(entry.clone())?;
        }
        Ok(loaded)
    }

    /// The program as a record has it.
    #[must_use]
    pub fn spec(&self) -> ProgramSpec {
        let entries = self.entries.iter().map(|it| it.entry.clone()).collect();
        ProgramSpec { image: self.image.to_string(), entries }
    }

    /// Takes over the entries that commands have set in maps that an older program declares alike.
    /// The maps themselves have these entries already.
    pub fn carry(&mut self, old: &Self) {
        for set in &old.entries {
            let def = &old.image.maps[set.map];
            if let Some(map) = self.image.maps.iter().position(|mine| mine == def) {
                self.entries.push(SetEntry { map, ..set.clone() });
            }
        }
    }

    /// The program at workers where its maps are empty: what commands have set is to be written.
    #[must_use]
    pub fn with_empty_maps(mut self) -> Self {
        self.entries.iter_mut().for_each(|set| set.applied = None);
        self
    }

    /// Bytes of memory that the program takes, at the worker and here.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.image.memory() + self.entries.len() * ENTRY_BYTES) as u64
    }

    /// The map of a name, and its number.
    pub fn map(&self, name: &str) -> Result<(usize, &MapDef), BadValue> {
        let mut maps = self.image.maps.iter().enumerate();
        maps.find(|(_, map)| map.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.image.maps.iter().map(|map| &*map.name).collect();
            BadValue(match names.is_empty() {
                true => "the program has no maps".to_owned(),
                false => format!("the program has no map {name:?}, but {}", names.join(", ")),
            })
        })
    }

    /// Notes an entry that a command sets, or a record has. Returns its place, and what was there.
    pub fn put(&mut self, entry: ProgramEntry) -> Result<(usize, Option<SetEntry>), BadValue> {
        let (map, def) = self.map(&entry.map)?;
        let entry = ProgramEntry { key: canonical(def, &entry.key)?, ..entry };
        check("value", &entry.value, def.value_bytes())?;
        let is_named = [&entry.key, &entry.value].iter().any(|text| text.starts_with(PORT));
        if is_named && def.kind == MapKind::Array {
            let why = "while a port carries no frames, its entry is missing, and an array has all \
                       of its entries; declare the map as a hash";
            return Err(BadValue(why.to_owned()));
        }
        let is_it = |it: &SetEntry| it.map == map && it.entry.key == entry.key;
        if let Some(at) = self.entries.iter().position(is_it) {
            let before = self.entries[at].clone();
            self.entries[at].entry = entry;
            return Ok((at, Some(before)));
        }
        if self.entries.len() >= protocol::PROGRAM_ENTRIES_MAX {
            let max = protocol::PROGRAM_ENTRIES_MAX;
            return Err(BadValue(format!("commands have set {max} entries, the limit")));
        }
        self.entries.push(SetEntry { entry, map, applied: None });
        Ok((self.entries.len() - 1, None))
    }
}

/// A program with what commands have set in the maps of an older one.
#[must_use]
pub fn with_entries_of(new: ProgramSpec, old: &ProgramSpec) -> ProgramSpec {
    match (new.image.parse(), LoadedProgram::new(old)) {
        (Ok(image), Ok(old)) => {
            let mut loaded = LoadedProgram { image, entries: Vec::new() };
            loaded.carry(&old);
            loaded.spec()
        }
        _ => new,
    }
}

/// The form of a key's text that is the same for the same entry.
pub fn canonical(def: &MapDef, text: &str) -> Result<String, BadValue> {
    check("key", text, def.key_bytes())?;
    let read = image::from_hex(text).map(|key| def.canonical(key));
    match read {
        None => Ok(text.to_owned()),
        Some(Some(key)) => Ok(image::to_hex(&key)),
        Some(None) => Err(BadValue("key: the prefix is longer than the address".to_owned())),
    }
}

/// The bytes that a text stands for; `number`: that of a port. `None`: the port has none now.
pub fn bytes_of(
    text: &str,
    bytes: usize,
    number: impl FnOnce(&str) -> Option<u16>,
) -> Option<Vec<u8>> {
    match text.strip_prefix(PORT) {
        None => image::from_hex(text),
        Some(port) => {
            let mut padded = number(port)?.to_le_bytes().to_vec();
            padded.resize(bytes, 0);
            Some(padded)
        }
    }
}

/// Whether a text stands for so many bytes.
pub fn check(what: &str, text: &str, bytes: usize) -> Result<(), BadValue> {
    let fits = match text.strip_prefix(PORT) {
        Some(port) => {
            // Names have the same form in each switch, and are short.
            let name = format!("vale0:{port}").parse::<PortName>();
            (2..=8).contains(&bytes) && name.is_ok_and(|name| name.pipe().is_none())
        }
        None => image::from_hex(text).is_some_and(|read| read.len() == bytes),
    };
    if fits {
        return Ok(());
    }
    Err(BadValue(format!("{what}: expected {bytes} bytes in hexadecimal digits, or port:NAME")))
}

/// Whether an entry names this port.
pub fn names(entry: &ProgramEntry, port: &str) -> bool {
    let is_it = |text: &str| text.strip_prefix(PORT) == Some(port);
    is_it(&entry.key) || is_it(&entry.value)
}

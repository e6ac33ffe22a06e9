//! Forwarding programs and their maps.

use serde::{Deserialize, Serialize};

use crate::name::SwitchName;

/// Most entries of maps that commands set in a switch.
pub const PROGRAM_ENTRIES_MAX: usize = 1024;

/// A program, as a switch gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramSpec {
    /// The text of the `program` crate's `Image`: code, constants and maps.
    pub image: String,
    /// Entries of maps that were set by commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<ProgramEntry>,
}

/// An entry of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramEntry {
    /// Name of the map.
    pub map: String,
    /// The bytes of the key, two hexadecimal digits each; or, where a command has set it so,
    /// `port:NAME`, which is the number of that port of the switch while it carries frames. Without
    /// a number, the map has no entry, though listings do.
    pub key: String,
    /// The bytes of the value, likewise.
    pub value: String,
}

/// A program in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramInfo {
    /// The switch that it decides for.
    pub switch: SwitchName,
    /// Name of the function.
    pub function: String,
    /// What it sees of frames: `header` or `packet`.
    pub looks: String,
    /// Number of its instructions.
    pub instructions: u32,
    /// Bytes of memory that it takes.
    pub memory: u64,
    /// Decisions that it was asked for.
    pub runs: u64,
    /// Decisions that it failed to give.
    pub faults: u64,
    /// Why it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<String>,
    /// Maps of the program.
    pub maps: Vec<ProgramMap>,
}

/// A map in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ProgramMap {
    /// Name of the map.
    pub map: String,
    /// How it finds entries: `array`, `hash` or `lpm`.
    pub kind: String,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Number of entries.
    pub entries: u32,
    /// Most entries.
    pub max_entries: u32,
}

/// Asks for the entries of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramMapQuery {
    /// The switch.
    pub switch: SwitchName,
    /// Name of the map.
    pub map: String,
    /// Where the page begins: `next` of the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Names an entry of a map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramEntryRef {
    /// The switch.
    pub switch: SwitchName,
    /// Name of the map.
    pub map: String,
    /// The key, as in [`ProgramEntry::key`].
    pub key: String,
}

/// An entry of a map to be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramEntrySet {
    /// The switch.
    pub switch: SwitchName,
    /// The entry.
    pub entry: ProgramEntry,
}

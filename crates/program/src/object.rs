//! Reads an object file of clang (`-target bpf`) into an [`Image`].
//!
//! ```text
//!  section forward/…      the function that is asked         ┐ code, in this order
//!  section .text          functions that it calls            ┘
//!  section maps           declarations of maps, 20 bytes each (UVALA_MAP)
//!  sections .rodata*      constants
//!  relocations            of code, to maps, constants and functions
//! ```
//!
//! The file is hostile: the parser of the `object` crate bounds what it reads, and what is taken
//! from it here is bounded again by [`Image::check`].

use std::collections::HashMap;

use object::read::elf::{ElfFile64, ElfSection64, FileHeader};
use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, SectionIndex, SymbolIndex, SymbolKind, elf,
};
use thiserror::Error;

use crate::code::{DATA, INSN, LOCAL, MAP};
use crate::image::{DATA_MAX, INSNS_MAX, Image, ImageError, Looks, MAPS_MAX, limit};
use crate::maps::{MapDef, MapKind};

/// Largest object file.
pub const FILE_MAX: usize = 1 << 20;
/// The section of the function that is asked, by how far it looks.
const SECTIONS: [(&str, Looks); 2] =
    [("forward/header", Looks::Header), ("forward/packet", Looks::Packet)];
/// The section of declarations of maps.
const MAPS: &str = "maps";
/// Most relocations of a section that are looked at: each instruction has one at most.
const RELOCATIONS_MAX: usize = INSNS_MAX;
/// Bytes of a declaration.
const DECLARATION: usize = 20;

/// Why an object file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// The file cannot be read.
    #[error("this is no object file for eBPF ({0}); compile with: clang -O2 -target bpf -c")]
    Malformed(String),
    /// The file is too large.
    #[error("the file has more than {FILE_MAX} bytes")]
    Size,
    /// There is no function to be asked, or more than one.
    #[error(
        "it needs one function in SEC(\"forward/header\") or SEC(\"forward/packet\"), and has {0}; \
         helper functions are static, without SEC"
    )]
    Functions(usize),
    /// Maps are declared in another way.
    #[error("maps are declared by UVALA_MAP of uvala_program.h, and not in section .maps")]
    BtfMaps,
    /// A declaration of a map is wrong.
    #[error("map {0}: {1}")]
    Map(String, String),
    /// Constants refer to something.
    #[error("section {0} has pointers, and constants have none here: use numbers")]
    Pointers(String),
    /// The code refers to something that it cannot have.
    #[error("instruction {at} of section {section} refers to {name}, {why}")]
    Reference {
        /// Section of the instruction.
        section: String,
        /// Place of the instruction.
        at: u64,
        /// Name of the symbol.
        name: String,
        /// Why it cannot, and the cure.
        why: &'static str,
    },
    /// What was read is no program.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl From<object::Error> for ObjectError {
    fn from(error: object::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

type Elf<'a> = ElfFile64<'a, Endianness>;
type Section<'a, 'f> = ElfSection64<'a, 'f, Endianness>;

/// Reads an object file, and checks the program in it.
///
/// # Errors
/// What is wrong with it.
pub fn read(file: &[u8]) -> Result<Image, ObjectError> {
    if file.len() > FILE_MAX {
        return Err(ObjectError::Size);
    }
    let elf = Elf::parse(file)?;
    let header = elf.elf_header();
    if !elf.is_little_endian() || header.e_machine(elf.endian()) != elf::EM_BPF {
        return Err(ObjectError::Malformed("another machine's".to_owned()));
    }
    let image = Loader::new(&elf)?.load()?;
    crate::Program::check(&image)?;
    Ok(image)
}

/// A file on its way to an image.
struct Loader<'a, 'f> {
    elf: &'f Elf<'a>,
    looks: Looks,
    function: String,
    entry: Section<'a, 'f>,
    text: Option<Section<'a, 'f>>,
    /// Where the functions of `.text` begin in the code.
    text_at: u64,
    data: Vec<u8>,
    /// Where each section of constants begins in the data.
    constants: HashMap<SectionIndex, u64>,
    maps: Vec<MapDef>,
    /// The number of the map that a symbol is.
    map_numbers: HashMap<SymbolIndex, usize>,
}

impl<'a, 'f> Loader<'a, 'f> {
    fn new(elf: &'f Elf<'a>) -> Result<Self, ObjectError> {
        let named = |name| elf.section_by_name(name).filter(|section| section.size() > 0);
        if named(".maps").is_some() {
            return Err(ObjectError::BtfMaps);
        }
        let mut entries =
            SECTIONS.into_iter().filter_map(|(name, looks)| Some((named(name)?, looks)));
        let (Some((entry, looks)), None) = (entries.next(), entries.next()) else {
            let count = SECTIONS.into_iter().filter(|(name, _)| named(name).is_some()).count();
            return Err(ObjectError::Functions(count));
        };
        let is_entry = |kind: SymbolKind| kind == SymbolKind::Text;
        let mut functions = elf.symbols().filter(|symbol| {
            symbol.section_index() == Some(entry.index()) && is_entry(symbol.kind())
        });
        let (Some(function), None) = (functions.next(), functions.next()) else {
            return Err(ObjectError::Functions(2));
        };
        if function.address() != 0 {
            return Err(ObjectError::Functions(2));
        }
        let function = function.name()?.to_owned();
        // What the file has: a section may claim any size.
        let text_at = entry.data()?.len() as u64;
        let mut loader = Self {
            elf,
            looks,
            function,
            entry,
            text: named(".text"),
            text_at,
            data: Vec::new(),
            constants: HashMap::new(),
            maps: Vec::new(),
            map_numbers: HashMap::new(),
        };
        loader.read_constants()?;
        loader.read_maps()?;
        Ok(loader)
    }

    fn read_constants(&mut self) -> Result<(), ObjectError> {
        for section in self.elf.sections() {
            if section.name().is_ok_and(|name| name.starts_with(".rodata")) {
                if section.relocations().next().is_some() {
                    return Err(ObjectError::Pointers(section.name()?.to_owned()));
                }
                let bytes = section.data()?;
                self.data.resize(self.data.len().next_multiple_of(8), 0);
                // Looked at before it is copied: many sections may be the same bytes of a file.
                limit("bytes of constants", self.data.len() + bytes.len(), DATA_MAX)?;
                self.constants.insert(section.index(), self.data.len() as u64);
                self.data.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Reads the declarations of maps, in the order in which they stand.
    fn read_maps(&mut self) -> Result<(), ObjectError> {
        let Some(section) = self.elf.section_by_name(MAPS) else { return Ok(()) };
        let bytes = section.data()?;
        let mut symbols: Vec<_> = self
            .elf
            .symbols()
            .filter(|symbol| symbol.section_index() == Some(section.index()))
            .filter(|symbol| symbol.kind() == SymbolKind::Data)
            .collect();
        limit("maps", symbols.len(), MAPS_MAX)?;
        symbols.sort_by_key(object::ObjectSymbol::address);
        for symbol in symbols {
            let name = symbol.name()?.to_owned();
            let at = usize::try_from(symbol.address()).unwrap_or(usize::MAX);
            let def = bytes.get(at..).and_then(|rest| rest.first_chunk::<DECLARATION>());
            let def = def.ok_or("its declaration is cut off".to_owned());
            let def = def.and_then(|def| declared(name.clone(), def));
            let def = def.map_err(|why| ObjectError::Map(name, why))?;
            self.map_numbers.insert(symbol.index(), self.maps.len());
            self.maps.push(def);
        }
        Ok(())
    }

    fn load(self) -> Result<Image, ObjectError> {
        let mut code = self.linked(&self.entry, 0)?;
        if let Some(text) = &self.text {
            code.extend(self.linked(text, self.text_at)?);
        }
        let Self { function, looks, data, maps, .. } = self;
        Ok(Image { function, looks, code, data, maps })
    }

    /// The code of a section, which begins `begin` bytes behind the beginning of all code, with
    /// what it refers to filled in.
    fn linked(&self, section: &Section<'a, 'f>, begin: u64) -> Result<Vec<u8>, ObjectError> {
        let bytes = section.data()?;
        limit("instructions", bytes.len() / INSN, INSNS_MAX)?;
        let mut code = bytes.to_vec();
        for (number, (offset, relocation)) in section.relocations().enumerate() {
            limit("relocations", number, RELOCATIONS_MAX)?;
            let RelocationTarget::Symbol(symbol) = relocation.target() else { continue };
            let symbol = self.elf.symbol_by_index(symbol)?;
            let name = match symbol.name()? {
                "" => match symbol.section_index() {
                    Some(index) => self.elf.section_by_index(index)?.name()?,
                    None => "nothing",
                },
                name => name,
            };
            let wrong = |why| ObjectError::Reference {
                section: section.name().unwrap_or_default().to_owned(),
                at: offset / INSN as u64,
                name: name.to_owned(),
                why,
            };
            let at = usize::try_from(offset).ok().filter(|at| at.is_multiple_of(INSN));
            let insn = at.and_then(|at| code.get_mut(at..)?.first_chunk_mut::<INSN>());
            let insn = insn.ok_or_else(|| wrong("from outside of the code"))?;
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let place = Place { at: symbol.address(), section: symbol.section_index() };
            match r_type {
                elf::R_BPF_64_64 => self.link_address(insn, symbol.index(), place),
                elf::R_BPF_64_32 => self.link_call(insn, begin + offset, place),
                _ => Err("in a way that is unknown"),
            }
            .map_err(wrong)?;
        }
        Ok(code)
    }

    /// Fills in the number of a map, or the offset of constants.
    fn link_address(
        &self,
        insn: &mut [u8; INSN],
        symbol: SymbolIndex,
        place: Place,
    ) -> Result<(), &'static str> {
        if let Some(&map) = self.map_numbers.get(&symbol) {
            let number = i32::try_from(map).map_err(|_| "one of too many maps")?;
            fill(insn, MAP, number);
            return Ok(());
        }
        let begin = place.section.and_then(|section| self.constants.get(&section));
        let begin = begin.ok_or(
            "which is neither a map nor a constant: programs keep what they remember in maps",
        )?;
        let offset = begin.checked_add(place.at).zip(u64::try_from(immediate(insn)).ok());
        let offset = offset.and_then(|(begin, more)| begin.checked_add(more));
        let offset = offset.and_then(|offset| i32::try_from(offset).ok());
        fill(insn, DATA, offset.ok_or("at an offset that it does not have")?);
        Ok(())
    }

    /// Fills in the distance to a function.
    fn link_call(&self, insn: &mut [u8; INSN], at: u64, place: Place) -> Result<(), &'static str> {
        let begin = match place.section {
            Some(section) if section == self.entry.index() => 0,
            Some(section) if self.text.as_ref().is_some_and(|it| it.index() == section) => {
                self.text_at
            }
            _ => {
                return Err(
                    "a function that is not in the object: helpers are those of uvala_program.h, \
                     and loops in place of memcpy or memset, or __builtin_memcpy of a constant \
                     size, need none",
                );
            }
        };
        // The immediate value counts instructions behind the one after the call.
        let step = INSN as u64;
        let inside = i64::try_from(place.at / step).map_err(|_| "too far away")?;
        let target = i64::from(immediate(insn)) + 1 + inside;
        let begin = i64::try_from(begin / step).map_err(|_| "too far away")?;
        let here = i64::try_from(at / step).map_err(|_| "too far away")?;
        let distance = i32::try_from(begin + target - here - 1).map_err(|_| "too far away")?;
        fill(insn, LOCAL, distance);
        Ok(())
    }
}

/// Where a symbol is.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    section: Option<SectionIndex>,
}

fn immediate(insn: &[u8; INSN]) -> i32 {
    let &[.., i0, i1, i2, i3] = insn;
    i32::from_le_bytes([i0, i1, i2, i3])
}

/// Fills in the source register and the immediate value.
fn fill(insn: &mut [u8; INSN], src: u8, value: i32) {
    insn[1] = insn[1] & 15 | src << 4;
    insn[4..].copy_from_slice(&value.to_le_bytes());
}

/// The map of a declaration: type, bytes of a key, bytes of a value, entries, flags.
fn declared(name: String, bytes: &[u8; DECLARATION]) -> Result<MapDef, String> {
    let (words, _) = bytes.as_chunks::<4>();
    let &[kind, key, value, entries, flags] = words else { return Err("no numbers".to_owned()) };
    // The kernel's numbers.
    let kind = match u32::from_le_bytes(kind) {
        1 => MapKind::Hash,
        2 => MapKind::Array,
        11 => MapKind::Lpm,
        other => return Err(format!("maps of type {other} are unknown")),
    };
    // An LPM map of Linux needs BPF_F_NO_PREALLOC, which changes nothing here.
    const NO_PREALLOC: u32 = 1;
    if u32::from_le_bytes(flags) & !NO_PREALLOC != 0 {
        return Err("maps have no flags here".to_owned());
    }
    let [key, value, entries] = [key, value, entries].map(u32::from_le_bytes);
    let def = MapDef { name, kind, key, value, entries };
    def.check()?;
    Ok(def)
}

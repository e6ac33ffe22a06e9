//! Reads an object file of LLVM (clang's or rustc's code for BPF) into an [`Image`].
//!
//! ```text
//!  section forward/…      the function that is asked             ┐ code, in this order
//!  .text, .text.NAME      those with functions that it calls     ┘
//!  section maps           declarations of maps, 20 bytes each (UVALA_MAP)
//!  sections .rodata*      constants
//!  relocations            of code, to maps, constants and functions
//! ```
//!
//! clang has all functions in one section, and rustc each in one of its own. Sections to which no
//! call leads are left out, as a linker leaves them out.
//!
//! The file is hostile: the parser of the `object` crate bounds what it reads, and what is taken
//! from it here is bounded again by [`Image::check`].

use std::collections::HashMap;

use object::read::elf::{ElfFile64, ElfSection64, FileHeader};
use object::{
    Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    RelocationTarget, SectionIndex, SectionKind, SymbolIndex, SymbolKind, elf,
};
use thiserror::Error;

use crate::code::{DATA, HELPER, INSN, LOCAL, MAP};
use crate::dispatch::TRAP;
use crate::image::{DATA_MAX, INSNS_MAX, Image, ImageError, Looks, MAPS_MAX, limit, said};
use crate::maps::{MapDef, MapKind};

/// Largest object file.
pub const FILE_MAX: usize = 1 << 20;
/// The section of the function that is asked, by how far it looks.
const SECTIONS: [(&str, Looks); 2] =
    [("forward/header", Looks::Header), ("forward/packet", Looks::Packet)];
/// The section of declarations of maps.
const MAPS: &str = "maps";
/// Most relocations of code: each instruction has one at most.
const RELOCATIONS_MAX: usize = INSNS_MAX;
/// Bytes of a declaration.
const DECLARATION: usize = 20;
/// What LLVM calls where code ends that cannot go on, as after a panic.
const TRAP_SYMBOL: &str = "__bpf_trap";
/// The first bytes of LLVM's bitcode.
const BITCODE: &[u8] = b"BC\xc0\xde";

/// Why an object file is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ObjectError {
    /// The file cannot be read.
    #[error("this is no object file for eBPF ({0}); compile with: clang -O2 -target bpf -c")]
    Malformed(String),
    /// The file is what rustc writes as an object file of this target.
    #[error(
        "this is LLVM's bitcode, as rustc writes it for eBPF; make an object file of it: \
         llc -mcpu=v3 -filetype=obj FILE -o FILE.o, with llc of rustup's component llvm-tools"
    )]
    Bitcode,
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
    if file.starts_with(BITCODE) {
        return Err(ObjectError::Bitcode);
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
    /// Sections of code that are needed, and where each begins in all code.
    code: Vec<(SectionIndex, u64)>,
    /// Bytes of all of these.
    code_end: u64,
    /// Number of their relocations that were looked at.
    relocations: usize,
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
        let mut loader = Self {
            elf,
            looks,
            function,
            code: Vec::new(),
            code_end: 0,
            relocations: 0,
            data: Vec::new(),
            constants: HashMap::new(),
            maps: Vec::new(),
            map_numbers: HashMap::new(),
        };
        loader.place(&entry)?;
        loader.read_constants()?;
        loader.read_maps()?;
        Ok(loader)
    }

    fn read_constants(&mut self) -> Result<(), ObjectError> {
        for section in self.elf.sections() {
            if section.name().is_ok_and(|name| name.starts_with(".rodata")) {
                if section.relocations().next().is_some() {
                    return Err(ObjectError::Pointers(said(section.name()?)));
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
            let def = def.map_err(|why| ObjectError::Map(said(&name), why))?;
            self.map_numbers.insert(symbol.index(), self.maps.len());
            self.maps.push(def);
        }
        Ok(())
    }

    fn load(mut self) -> Result<Image, ObjectError> {
        let (mut code, mut next) = (Vec::new(), 0);
        // A call to another section puts that one behind the last.
        while let Some(&(section, begin)) = self.code.get(next) {
            code.extend(self.linked(&self.elf.section_by_index(section)?, begin)?);
            next += 1;
        }
        let Self { function, looks, data, maps, .. } = self;
        Ok(Image { function, looks, code, data, maps })
    }

    /// Where a section of code begins in all code. It gets a place with the first call to it.
    fn place(&mut self, section: &Section<'a, 'f>) -> Result<u64, ObjectError> {
        if let Some(&(_, begin)) = self.code.iter().find(|(it, _)| *it == section.index()) {
            return Ok(begin);
        }
        let begin = self.code_end;
        // What the file has: a section may claim any size.
        self.code_end += section.data()?.len() as u64;
        let insns = usize::try_from(self.code_end).unwrap_or(usize::MAX) / INSN;
        limit("instructions", insns, INSNS_MAX)?;
        self.code.push((section.index(), begin));
        Ok(begin)
    }

    /// The code of a section, which begins `begin` bytes behind the beginning of all code, with
    /// what it refers to filled in.
    fn linked(&mut self, section: &Section<'a, 'f>, begin: u64) -> Result<Vec<u8>, ObjectError> {
        let mut code = section.data()?.to_vec();
        for (offset, relocation) in section.relocations() {
            self.relocations += 1;
            limit("relocations", self.relocations, RELOCATIONS_MAX)?;
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
                section: said(section.name().unwrap_or_default()),
                at: offset / INSN as u64,
                name: said(name),
                why,
            };
            let at = usize::try_from(offset).ok().filter(|at| at.is_multiple_of(INSN));
            let insn = at.and_then(|at| code.get_mut(at..)?.first_chunk_mut::<INSN>());
            let insn = insn.ok_or_else(|| wrong("from outside of the code"))?;
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let place = Place { at: symbol.address(), section: symbol.section_index() };
            match r_type {
                elf::R_BPF_64_64 => self.link_address(insn, symbol.index(), place),
                elf::R_BPF_64_32 if name == TRAP_SYMBOL => {
                    fill(insn, HELPER, TRAP);
                    Ok(())
                }
                elf::R_BPF_64_32 => {
                    let callee = self.callee(place.section)?.ok_or_else(|| missing(name));
                    let function = callee.map_err(&wrong)?.checked_add(place.at);
                    let linked = function.and_then(|it| link_call(insn, begin + offset, it));
                    linked.ok_or("too far away")
                }
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
            "which is neither a map nor a constant without pointers: what a program remembers is \
             in maps; in Rust, also panics have pointers without -C panic=immediate-abort",
        )?;
        let offset = begin.checked_add(place.at).zip(u64::try_from(immediate(insn)).ok());
        let offset = offset.and_then(|(begin, more)| begin.checked_add(more));
        let offset = offset.and_then(|offset| i32::try_from(offset).ok());
        fill(insn, DATA, offset.ok_or("at an offset that it does not have")?);
        Ok(())
    }

    /// Where the section of a function begins in all code; `None`: the object has no such function.
    fn callee(&mut self, section: Option<SectionIndex>) -> Result<Option<u64>, ObjectError> {
        let Some(section) = section else { return Ok(None) };
        let section = self.elf.section_by_index(section)?;
        let is_code = section.kind() == SectionKind::Text;
        is_code.then(|| self.place(&section)).transpose()
    }
}

/// Fills in the distance from a place to a function.
fn link_call(insn: &mut [u8; INSN], at: u64, function: u64) -> Option<()> {
    let place = |bytes: u64| i64::try_from(bytes / INSN as u64).ok();
    // The immediate value counts instructions behind the one after the call.
    let distance = place(function)? + i64::from(immediate(insn)) - place(at)?;
    fill(insn, LOCAL, i32::try_from(distance).ok()?);
    Some(())
}

/// Why a function that is not in the object cannot be called, and the cure.
fn missing(name: &str) -> &'static str {
    // How rustc begins the names of functions.
    match name.starts_with("_R") || name.starts_with("_ZN") {
        true => {
            "a function of Rust's core that is not in the object: let it be inlined (--release), \
             and let panics end the program at once (-C panic=immediate-abort)"
        }
        false => {
            "a function that is not in the object: helpers are those of uvala_program.h, and loops \
             in place of memcpy or memset, or __builtin_memcpy of a constant size, need none"
        }
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

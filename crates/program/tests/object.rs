//! Object files: what clang makes of the examples, and files that are no programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::write::{Object, Relocation, SectionId, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};
use program::object::{ObjectError, read};
use program::{Decision, FaultKind, Frame, Image, Looks, Program};

/// A file with some sections of code, and symbols of its beginnings.
struct Written(Object<'static>);

impl Written {
    fn new() -> Self {
        Self(Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little))
    }

    fn section(&mut self, name: &str, kind: SectionKind, bytes: &[u8]) -> SectionId {
        let id = self.0.add_section(Vec::new(), name.into(), kind);
        self.0.append_section_data(id, bytes, 8);
        id
    }

    fn symbol(&mut self, name: &str, section: Option<SectionId>, kind: SymbolKind, value: u64) {
        self.0.add_symbol(Symbol {
            name: name.into(),
            value,
            size: 8,
            kind,
            scope: SymbolScope::Dynamic,
            weak: false,
            section: section.map_or(SymbolSection::Undefined, SymbolSection::Section),
            flags: SymbolFlags::None,
        });
    }

    /// A function that returns 0, in this section.
    fn function(&mut self, section: &str) -> SectionId {
        let id = self.section(section, SectionKind::Text, &RETURN);
        self.symbol("main", Some(id), SymbolKind::Text, 0);
        id
    }

    /// A section with a function of this name and code.
    fn code(&mut self, section: &str, name: &str, code: &[[u8; 8]]) -> SectionId {
        let id = self.section(section, SectionKind::Text, &code.concat());
        self.symbol(name, Some(id), SymbolKind::Text, 0);
        id
    }

    fn relocate(&mut self, section: SectionId, to: &str, offset: u64, r_type: u32) {
        let symbol = self.0.symbol_id(to.as_bytes()).expect("a symbol");
        let flags = RelocationFlags::Elf { r_type };
        let relocation = Relocation { offset, symbol, addend: 0, flags };
        self.0.add_relocation(section, relocation).expect("a relocation");
    }

    fn read(&self) -> Result<Image, ObjectError> {
        read(&self.0.write().expect("a file"))
    }
}

/// `r0 = 0 ll; exit`
const RETURN: [u8; 24] =
    [0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

fn refused(file: &Written) -> String {
    file.read().unwrap_err().to_string()
}

#[test]
fn a_function_maps_and_constants_are_read() {
    let mut file = Written::new();
    let code = file.function("forward/packet");
    let map = [1u32, 6, 2, 100, 0].map(u32::to_le_bytes).concat();
    let maps = file.section("maps", SectionKind::Data, &map);
    file.symbol("stations", Some(maps), SymbolKind::Data, 0);
    file.relocate(code, "stations", 0, elf::R_BPF_64_64);
    let image = file.read().unwrap();
    assert_eq!((&*image.function, image.looks), ("main", Looks::Packet));
    assert_eq!(image.maps[0].to_string(), "stations hash 6 2 100");
    assert_eq!(image.code[1] >> 4, program::code::MAP);
}

#[test]
fn what_a_program_cannot_have_is_named() {
    assert!(refused(&Written::new()).contains("and has 0"));
    let mut two = Written::new();
    two.function("forward/header");
    two.section("forward/packet", SectionKind::Text, &RETURN);
    assert!(refused(&two).contains("and has 2"));

    let mut btf = Written::new();
    btf.function("forward/header");
    btf.section(".maps", SectionKind::Data, &[0; 32]);
    assert!(refused(&btf).contains("UVALA_MAP"));

    for (section, kind, says) in [
        (Some(".data"), elf::R_BPF_64_64, "what a program remembers is in maps"),
        (None, elf::R_BPF_64_32, "a function that is not in the object"),
        (None, 99, "in a way that is unknown"),
    ] {
        let mut file = Written::new();
        let code = file.function("forward/header");
        let section = section.map(|name| file.section(name, SectionKind::Data, &[0; 8]));
        file.symbol("other", section, SymbolKind::Data, 0);
        file.relocate(code, "other", 0, kind);
        let why = refused(&file);
        assert!(why.contains("refers to other") && why.contains(says), "{why}");
    }

    let mut pointers = Written::new();
    pointers.function("forward/header");
    let constants = pointers.section(".rodata", SectionKind::ReadOnlyData, &[0; 8]);
    pointers.relocate(constants, "main", 0, elf::R_BPF_64_64);
    assert!(refused(&pointers).contains("has pointers"));
    let mut many = Written::new();
    many.function("forward/header");
    for number in 0..40 {
        many.section(&format!(".rodata.{number}"), SectionKind::ReadOnlyData, &[7; 1000]);
    }
    assert!(refused(&many).contains("bytes of constants"));

    for (words, says) in [
        ([5, 4, 4, 4, 0], "type 5"),
        ([1, 4, 4, 4, 8], "no flags"),
        ([1, 99, 4, 4, 0], "its key is 99"),
        ([1, 4, 4, u32::MAX, 0], "number of entries"),
    ] {
        let mut file = Written::new();
        file.function("forward/header");
        let maps = file.section("maps", SectionKind::Data, &words.map(u32::to_le_bytes).concat());
        file.symbol("m", Some(maps), SymbolKind::Data, 0);
        assert!(refused(&file).contains(says), "{}", refused(&file));
    }
}

#[test]
fn hostile_names_are_cut_and_have_nothing_that_controls_a_terminal() {
    let bad = "\x1b]0;x\x07\n\u{202e}".repeat(1000);
    let mut section = Written::new();
    section.function("forward/header");
    let name = format!(".rodata{bad}");
    let constants = section.section(&name, SectionKind::ReadOnlyData, &[0; 8]);
    section.relocate(constants, "main", 0, elf::R_BPF_64_64);
    let mut symbol = Written::new();
    let code = symbol.function("forward/header");
    symbol.symbol(&bad, None, SymbolKind::Data, 0);
    symbol.relocate(code, &bad, 0, elf::R_BPF_64_32);
    let mut map = Written::new();
    map.function("forward/header");
    let maps = map.section("maps", SectionKind::Data, &[0; 20]);
    map.symbol(&bad, Some(maps), SymbolKind::Data, 0);
    for file in [section, symbol, map] {
        let why = refused(&file);
        assert!(why.contains(r"\u{1b}]0;x\u{7}\n\u{202e}") && why.len() < 500, "{why}");
        assert!(!why.contains(|c: char| c.is_control() || c == '\u{202e}'), "{why}");
    }
}

/// A call to a symbol, before it is linked.
const CALL: [u8; 8] = [0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff];
const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];
/// `r0 += 1`
const INCREMENT: [u8; 8] = [0x07, 0, 0, 0, 1, 0, 0, 0];

/// rustc has each function in a section of its own.
#[test]
fn functions_in_sections_of_their_own_are_linked_if_something_calls_them() {
    let mut file = Written::new();
    file.code(".text.unused", "unused", &[[0; 8]]);
    file.code(".text.inner", "inner", &[INCREMENT, EXIT]);
    let outer = file.code(".text.outer", "outer", &[CALL, INCREMENT, CALL, EXIT]);
    let zero = [0xb7, 0, 0, 0, 0, 0, 0, 0];
    let main = file.code("forward/header", "main", &[zero, CALL, CALL, EXIT]);
    for (section, to, offset) in
        [(outer, "inner", 0), (outer, "inner", 16), (main, "inner", 8), (main, "outer", 16)]
    {
        file.relocate(section, to, offset, elf::R_BPF_64_32);
    }
    let image = file.read().unwrap();
    assert_eq!(image.code.len(), 8 * (4 + 2 + 4), "without `unused`");
    let mut file = Program::new(&image, 1).unwrap();
    let frame = Frame { now_us: 0, port: 1, vlan: 1, bytes: &[] };
    let fault = file.run(&frame).unwrap_err();
    assert_eq!(fault.kind, FaultKind::Decision, "it returns 4");
}

#[test]
fn a_trap_is_a_fault_and_may_end_the_code() {
    let mut file = Written::new();
    let main = file.code("forward/header", "main", &[CALL]);
    file.symbol("__bpf_trap", None, SymbolKind::Data, 0);
    file.relocate(main, "__bpf_trap", 0, elf::R_BPF_64_32);
    let mut program = Program::new(&file.read().unwrap(), 1).unwrap();
    let fault = program.run(&Frame { now_us: 0, port: 1, vlan: 1, bytes: &[] }).unwrap_err();
    assert_eq!((fault.kind, fault.at), (FaultKind::Panic, 0));
    assert!(fault.to_string().starts_with("panicked"), "{fault}");
}

#[test]
fn what_rustc_leaves_out_is_refused_with_the_cure() {
    let mut file = Written::new();
    let main = file.code("forward/header", "main", &[CALL, EXIT]);
    let symbol = "_RNvNtCs1234_4core9panicking18panic_bounds_check";
    file.symbol(symbol, None, SymbolKind::Data, 0);
    file.relocate(main, symbol, 0, elf::R_BPF_64_32);
    assert!(refused(&file).contains("-C panic=immediate-abort"), "{}", refused(&file));
    let mut by_address = Written::new();
    by_address.code("forward/header", "main", &[[0x8d, 0, 0, 0, 1, 0, 0, 0], EXIT]);
    assert!(refused(&by_address).contains("compile with -O2 (Rust: --release)"));
    let bitcode = read(b"BC\xc0\xde and what follows").unwrap_err();
    assert!(bitcode.to_string().contains("llc -mcpu=v3"), "{bitcode}");
}

#[test]
fn a_file_that_is_no_object_is_refused() {
    let mut other =
        Written(Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little));
    other.function("forward/header");
    let mut file = Written::new();
    file.function("forward/header");
    let bytes = file.0.write().unwrap();
    for bytes in [&b""[..], b"\x7fELF", &bytes[..64], &other.0.write().unwrap(), &vec![0; 2 << 20]]
    {
        assert!(read(bytes).is_err(), "{} bytes", bytes.len());
    }
}

/// A file of clang with each of its bytes changed to some others: refused, or a program that comes
/// to an end.
#[test]
fn a_damaged_file_is_refused_or_harmless() {
    let mut file = Written::new();
    let code = file.function("forward/header");
    let maps = file.section(
        "maps",
        SectionKind::Data,
        &[1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0],
    );
    file.symbol("m", Some(maps), SymbolKind::Data, 0);
    file.relocate(code, "m", 0, elf::R_BPF_64_64);
    let good = file.0.write().unwrap();
    for at in 0..good.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= change;
            if let Ok(image) = read(&bytes) {
                let mut program = Program::new(&image, 1).expect("it was checked");
                let _ = program.run(&Frame { now_us: 0, port: 1, vlan: 1, bytes: &[0; 60] });
            }
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles a program as its users do. `None`: there is no clang.
fn compile(name: &str, source: &Path, cpu: &str) -> Option<Image> {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{cpu}.o"));
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-Wall", "-Werror", "-target", "bpf", "-c", "-o"]).arg(&to);
    clang.arg(format!("-mcpu={cpu}")).arg("-I").arg(root().join("include")).arg(source);
    match clang.status() {
        Err(_) => {
            println!("SKIPPED: clang is missing (Debian: apt install clang)");
            None
        }
        Ok(status) => {
            assert!(status.success(), "{name}");
            let file = std::fs::read(&to).expect("a file");
            Some(read(&file).unwrap_or_else(|why| panic!("{name}: {why}")))
        }
    }
}

/// An example, ready to run; once for each processor that clang knows.
fn example(name: &str, check: impl Fn(&mut Example)) {
    let source = root().join(format!("examples/forwarding/{name}.c"));
    let lines = std::fs::read_to_string(&source).expect("an example").lines().count();
    assert!(lines <= 60, "{name} has {lines} lines");
    for cpu in ["v1", "v2", "v3"] {
        let Some(image) = compile(name, &source, cpu) else { return };
        let program = Program::new(&image, 1).unwrap();
        let maps = image.maps.iter().map(|map| map.name.clone()).collect();
        check(&mut Example { program, maps, now_us: 1_000_000 });
    }
}

struct Example {
    program: Program,
    maps: Vec<String>,
    now_us: u64,
}

impl Example {
    fn set(&mut self, map: &str, key: &[u8], value: &[u8]) {
        let map = self.maps.iter().position(|name| name == map).expect("a map");
        self.program.set(map, key, value).unwrap();
    }

    fn ask(&mut self, bytes: &[u8]) -> Decision {
        let frame = Frame { now_us: self.now_us, port: 9, vlan: 1, bytes };
        self.program.run(&frame).unwrap_or_else(|fault| panic!("{fault}"))
    }
}

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

fn header(dst: u8, src: u8) -> Vec<u8> {
    [&mac(dst)[..], &mac(src), &[8, 0]].concat()
}

/// A TCP segment.
fn tcp(src: [u8; 4], dst: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    let ports = ports.map(u16::to_be_bytes).concat();
    [&header(1, 2)[..], &ip, &src, &dst, &ports, &[0; 16]].concat()
}

#[test]
fn example_stations_sends_to_known_stations_only() {
    example("stations", |it| {
        it.set("stations", &mac(1), &[4, 0]);
        assert_eq!(it.ask(&header(1, 7)), Decision::To(4));
        assert_eq!(it.ask(&header(3, 7)), Decision::Drop);
        assert_eq!(it.ask(&[&[0xff; 6][..], &mac(1), &[8, 0]].concat()), Decision::Flood);
    });
}

#[test]
fn example_by_source_keeps_segments_apart() {
    example("by_source", |it| {
        for (at, port, segment) in [(0u32, 4u32, 10u32), (1, 5, 20), (2, 6, 10)] {
            it.set("ports", &at.to_le_bytes(), &port.to_le_bytes());
            it.set("members", &at.to_le_bytes(), &segment.to_le_bytes());
        }
        it.set("segments", &mac(1), &10u32.to_le_bytes());
        it.set("segments", &mac(2), &20u32.to_le_bytes());
        assert_eq!(it.ask(&header(9, 1)), Decision::Set);
        assert_eq!(it.program.ports(), [4, 6]);
        assert_eq!(it.ask(&header(9, 2)), Decision::Set);
        assert_eq!(it.program.ports(), [5]);
        assert_eq!(it.ask(&header(9, 3)), Decision::Drop, "a sender that is in none");
    });
}

#[test]
fn example_balance_keeps_a_connection_at_its_server() {
    example("balance", |it| {
        let service = [&32u32.to_le_bytes()[..], &[192, 0, 2, 80]].concat();
        it.set("services", &service, &3u32.to_le_bytes());
        for at in 0..3u32 {
            it.set("servers", &at.to_le_bytes(), &(10 + at).to_le_bytes());
        }
        let mut used = [0; 3];
        for port in 1000..1300 {
            let frame = tcp([10, 0, 0, 1], [192, 0, 2, 80], [port, 80]);
            let Decision::To(server) = it.ask(&frame) else { panic!("no server") };
            assert_eq!(it.ask(&frame), Decision::To(server));
            used[usize::from(server - 10)] += 1;
        }
        assert!(used.iter().all(|&count| count > 60), "{used:?}");
        let other = tcp([10, 0, 0, 1], [192, 0, 2, 81], [1000, 80]);
        assert_eq!(it.ask(&other), Decision::Learning);
        assert_eq!(it.ask(&header(1, 2)), Decision::Learning);
    });
}

#[test]
fn example_knock_opens_for_a_minute() {
    example("knock", |it| {
        let knock = |port| tcp([10, 0, 0, 1], [10, 0, 0, 2], [5000, port]);
        let other = |port| tcp([10, 0, 0, 3], [10, 0, 0, 2], [5000, port]);
        assert_eq!(it.ask(&knock(22)), Decision::Drop);
        for port in [7000, 9000, 8000] {
            it.ask(&knock(port));
        }
        assert_eq!(it.ask(&knock(22)), Decision::Drop, "in the wrong order");
        for port in [7000, 8000, 9000] {
            assert_eq!(it.ask(&knock(port)), Decision::Drop);
        }
        assert_eq!(it.ask(&knock(22)), Decision::Learning);
        assert_eq!(it.ask(&other(22)), Decision::Drop);
        assert_eq!(it.ask(&knock(80)), Decision::Learning);
        let (mut fragment, mut v6) = (other(22), other(22));
        fragment[21] = 1;
        v6[12..14].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!([fragment, v6].map(|frame| it.ask(&frame)), [Decision::Drop; 2]);
        it.now_us += 61_000_000;
        assert_eq!(it.ask(&knock(22)), Decision::Drop);
        it.ask(&knock(7000));
        it.now_us += 2_000_000;
        it.ask(&knock(8000));
        it.ask(&knock(9000));
        assert_eq!(it.ask(&knock(22)), Decision::Drop, "too slow");
    });
}

#[test]
fn functions_of_the_object_are_called_and_missing_ones_named() {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls.c");
    let text = "#include \"uvala_program.h\"\n\
        #define OUT static __attribute__((noinline)) __u32\n\
        OUT twice(__u32 n) { asm volatile(\"\"); return 2 * n; }\n\
        OUT more(__u32 n) { return twice(n) + twice(n + 1); }\n\
        SEC(\"forward/header\") int f(struct uvala_frame *frame)\n\
        { return UVALA_TO(more(frame->port)); }\n";
    std::fs::write(&source, text).unwrap();
    if let Some(image) = compile("calls", &source, "v3") {
        let frame = Frame { now_us: 0, port: 5, vlan: 1, bytes: &[] };
        assert_eq!(Program::new(&image, 1).unwrap().run(&frame), Ok(Decision::To(22)));
    }
}

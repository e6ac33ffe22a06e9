//! What a C header says against what Rust says; the tests of both headers use it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use ring::abi::{NetmapIf, NetmapRing, Slot};

/// A C expression and the value that Rust gives it.
pub type Fact = (String, u64);

/// Size of the field that `_get` returns.
pub fn field_size<S, F>(_get: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The facts of one structure; `$header`: bytes before the first field that Rust knows.
macro_rules! structure {
    ($facts:ident, $c:expr, $rust:ty { $($field:ident),* }) => {
        structure!($facts, $c, 0, $rust { $($field),* })
    };
    ($facts:ident, $c:expr, $header:expr, $rust:ty { $($field:ident),* }) => {
        let header: usize = $header;
        let align = align_of::<$rust>().max(if header > 0 { 8 } else { 1 });
        let size = (header + size_of::<$rust>()).next_multiple_of(align);
        $facts.push((format!("sizeof(struct {})", $c), size as u64));
        $(
            let (c, field) = ($c, stringify!($field));
            let offset = header + std::mem::offset_of!($rust, $field);
            $facts.push((format!("offsetof(struct {c}, {field})"), offset as u64));
            let size = $crate::facts::field_size(|value: &$rust| &value.$field);
            $facts.push((format!("sizeof(((struct {c} *)0)->{field})"), size as u64));
        )*
    };
}

/// The structures that are netmap's, under the names that a header gives them.
pub fn of_netmap(slot: &str, ring: &str, interface: &str) -> Vec<Fact> {
    let mut facts = Vec::new();
    structure!(facts, slot, Slot { buf_idx, len, flags, ptr });
    structure!(
        facts,
        ring,
        NetmapRing {
            buf_ofs,
            num_slots,
            nr_buf_size,
            ringid,
            dir,
            head,
            cur,
            tail,
            flags,
            ts,
            offset_mask,
            buf_align,
            sem
        }
    );
    structure!(
        facts,
        interface,
        NetmapIf {
            ni_name,
            ni_version,
            ni_flags,
            ni_tx_rings,
            ni_rx_rings,
            ni_bufs_head,
            ni_host_tx_rings,
            ni_host_rx_rings,
            ni_spare1
        }
    );
    facts
}

/// Names and values as facts.
pub fn numbers<const N: usize>(values: [(&str, u64); N]) -> Vec<Fact> {
    values.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// Compiles `source` with `options` against the headers in `include`; the path of the program.
pub fn compile(name: &str, include: &Path, options: &[&str], source: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (dir.join(format!("{name}.src")), dir.join(name));
    std::fs::write(&file, source).unwrap();
    let output = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .args(["-Wall", "-Wextra", "-Werror"])
        .args(options)
        .arg("-I")
        .arg(include)
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A program that starts with `prelude` and is made by `compile` prints the value of every fact.
pub fn compare(facts: &[Fact], prelude: &str, compile: impl Fn(&str) -> PathBuf) {
    let mut source = format!("#include <stdio.h>\n{prelude}int main(void)\n{{\n");
    for (expression, _) in facts {
        writeln!(source, "\tprintf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    source.push_str("\treturn 0;\n}\n");
    let output = Command::new(compile(&source)).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let values: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), facts.len());
    for ((expression, rust), c) in facts.iter().zip(values) {
        assert_eq!(c, *rust, "{expression}: C (left) and Rust (right) differ");
    }
}

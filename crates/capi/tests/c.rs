//! The library as C programs meet it: header, names, linking, bad arguments, examples.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("a directory of its own");
    dir
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

/// Directory with libuvala.so and libuvala.a, built now: no other crate makes cargo build them.
fn libraries() -> &'static Path {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("target/tmp");
        run(Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "uvala-capi", "--lib", "--target-dir"])
            .arg(target)
            .current_dir(root()));
        let dir = target.join("debug");
        let soname = dir.join("libuvala.so.0");
        if !soname.exists() {
            std::os::unix::fs::symlink("libuvala.so", soname).expect("a link");
        }
        dir
    });
    &DIR
}

fn compile(compiler: &str, options: &[&str], source: &Path, program: &Path) {
    run(Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-O2"])
        .args(options)
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg("-L")
        .arg(libraries())
        .args(["-luvala", "-lpthread"]));
}

#[test]
fn test_bad_arguments_are_errors_in_c_and_cxx() {
    let (source, dir) = (root().join("crates/capi/tests/abi.c"), scratch("abi"));
    for (compiler, language) in [("cc", "-std=c11"), ("c++", "-std=c++17")] {
        let program = dir.join(compiler);
        let options = if compiler == "cc" { vec![language] } else { vec![language, "-xc++"] };
        compile(compiler, &options, &source, &program);
        let said = run(Command::new(&program).env("LD_LIBRARY_PATH", libraries()));
        assert_eq!(said.trim(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn test_the_static_library_suffices() {
    let program = scratch("static").join("abi");
    let archive = libraries().join("libuvala.a");
    run(Command::new("cc")
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join("crates/capi/tests/abi.c"))
        .arg(archive)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program));
    run(&mut Command::new(&program));
}

#[test]
fn test_the_library_has_its_soname_and_exports_the_header_and_nothing_else() {
    let library = libraries().join("libuvala.so");
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("soname: [libuvala.so.0]"), "{dynamic}");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let header = std::fs::read_to_string(root().join("include/uvala.h")).expect("the header");
    let mut exported: Vec<&str> =
        symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let mut declared: Vec<&str> = header.lines().filter_map(prototype).collect();
    exported.sort_unstable();
    declared.sort_unstable();
    assert_eq!(exported, declared);
}

/// The name of the function that a line of the header declares and does not define.
fn prototype(line: &str) -> Option<&str> {
    let is_type = line.starts_with(|c: char| c.is_ascii_lowercase());
    let is_other = ["static", "typedef"].iter().any(|word| line.starts_with(word));
    let (before, _) = line.split_once('(').filter(|_| is_type && !is_other)?;
    before.rsplit([' ', '*']).next()
}

#[test]
fn test_the_examples_compile_and_complain_in_one_line() {
    let (sources, dir) = (root().join("examples/c"), scratch("examples"));
    for name in ["send", "receive", "echo", "bridge", "epoll", "delay", "divert"] {
        let (source, program) = (sources.join(name).with_extension("c"), dir.join(name));
        compile("cc", &["-std=c99"], &source, &program);
        let lines = std::fs::read_to_string(&source).expect("the example").lines().count();
        assert!(lines <= 60, "{name}.c has {lines} lines");
        let output = Command::new(&program)
            .args(["vale0:a", "vale0:b"])
            .env("UVALA_DIR", "/nowhere/uvala")
            .env("LD_LIBRARY_PATH", libraries())
            .output()
            .expect("the example runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains("start one with: uvala daemon"), "{name}: {said}");
    }
}

#[test]
fn test_the_makefile_of_the_examples_works() {
    let sources = root().join("examples/c");
    run(Command::new("make")
        .arg("-C")
        .arg(&sources)
        .arg("--dry-run")
        .arg("CFLAGS=-I../../include")
        .arg("LDLIBS=-luvala"));
}

//! Programs in C: their compiler, and the libraries that they are linked with.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Scratch;
use crate::{root, skip};

/// Whether C programs can be compiled here; if not, that is said loudly.
#[must_use]
pub fn has_compiler() -> bool {
    let found = Command::new("cc").arg("--version").output().is_ok();
    if !found {
        skip("there is no C compiler (apt-get install gcc)");
    }
    found
}

/// Directory with the library of a package, built now: no Rust program needs it. `tmp`: what Cargo
/// calls `CARGO_TARGET_TMPDIR`.
///
/// # Panics
/// If it does not build.
#[must_use]
pub fn library(package: &str, tmp: &str) -> PathBuf {
    let target = Path::new(tmp).parent().expect("a directory in target");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", package, "--lib", "--target-dir"])
        .arg(target)
        .current_dir(root())
        .status();
    assert!(status.expect("cargo").success(), "{package} does not build");
    target.join("debug")
}

/// Compiles a program of this source, a path from the root, with libuvala in this directory. It
/// finds that in `place`.
///
/// # Panics
/// If it does not compile.
#[must_use]
pub fn compile(source: &str, library: &Path, place: &Scratch) -> PathBuf {
    let source = root().join(source);
    let program = place.path().join(source.file_stem().expect("a file"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-I"]);
    compiler.arg(root().join("include")).arg(&source);
    compiler.arg("-o").arg(&program).arg("-L").arg(library).arg("-luvala");
    assert!(compiler.status().expect("cc").success(), "{source:?} does not compile");
    soname(library, place);
    program
}

/// Gives the libuvala of a directory the name in `place` by which programs ask for it.
///
/// # Panics
/// If there is no room.
pub fn soname(library: &Path, place: &Scratch) {
    let soname = place.path().join("libuvala.so.0");
    if !soname.exists() {
        std::os::unix::fs::symlink(library.join("libuvala.so"), soname).expect("our own directory");
    }
}

//! Programs in Python: the package of this tree, with libuvala below it.

use std::path::Path;
use std::process::Command;

use crate::c::soname;
use crate::process::Scratch;
use crate::{root, skip};

/// An interpreter that finds the package `uvala` in this tree and the libuvala of a directory in
/// `place`; none where there is no Python, which is said loudly.
#[must_use]
pub fn python(library: &Path, place: &Scratch) -> Option<Command> {
    if Command::new("python3").arg("--version").output().is_err() {
        skip("there is no python3 (apt-get install python3)");
        return None;
    }
    soname(library, place);
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", root().join("python")).env("LD_LIBRARY_PATH", place.path());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Some(command)
}

//! Our drivers for guests (`guest/linux`), built for the kernel that guests boot.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::Kit;
use crate::process::{Scratch, uvala_path};
use crate::root;

/// A driver that was built. Its file goes with it.
#[derive(Debug)]
pub struct Built {
    place: Scratch,
    /// The kernel's version.
    pub version: String,
}

impl Built {
    /// Builds the driver of ptnet for the kernel for clouds. None: the headers of that kernel are
    /// missing, and that was said.
    ///
    /// # Panics
    /// If it does not build.
    #[must_use]
    pub fn ptnet(kit: &Kit) -> Option<Self> {
        let version = version(&kit.kernel("kernel")?)?;
        let headers = PathBuf::from(format!("/usr/src/linux-headers-{version}"));
        if !headers.join("Makefile").exists() {
            crate::skip(&format!("no linux-headers-{version}; run .ci/guests as root"));
            return None;
        }
        let place = Scratch::new("driver");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let files = std::fs::read_dir(source.join("guest/linux")).expect("our source");
        let files = files.map(|file| file.expect("our source").path()).filter(|it| it.is_file());
        for file in files.chain([source.join("include/uvala_ring.h")]) {
            let to = place.path().join(file.file_name().expect("a file"));
            std::fs::copy(file, to).expect("room");
        }
        let mut make = Command::new("make");
        make.arg("-C").arg(headers).arg(format!("M={}", place.path().display()));
        let said = make.arg("modules").output().expect("make");
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success() && !errors.contains("warning:"), "{errors}");
        Some(Self { place, version })
    }

    /// The module.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.place.path().join("uvala_ptnet.ko")
    }
}

/// The version in the name of a kernel's file.
fn version(kernel: &Path) -> Option<String> {
    let name = kernel.file_name()?.to_str()?;
    Some(name.strip_prefix("vmlinuz-")?.to_owned())
}

/// The programs of ours that a guest gets: `uvala`, its library for netmap programs, and one such
/// program.
///
/// # Panics
/// If they are not there, or there is no compiler.
#[must_use]
pub fn programs(place: &Scratch) -> Vec<PathBuf> {
    let program = place.path().join("guest");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]);
    compiler.arg(root().join("include")).arg(root().join("tests/netmap/guest.c"));
    assert!(compiler.arg("-o").arg(&program).status().expect("cc").success());
    let files = [uvala_path().to_owned(), uvala_path().with_file_name("libuvala_netmap.so")];
    let small = files.map(|file| {
        let to = place.path().join(file.file_name().expect("a file"));
        let done = Command::new("strip").arg("-o").arg(&to).arg(&file).status();
        assert!(done.expect("strip, which comes with cc").success());
        to
    });
    [&small[..], &[program]].concat()
}

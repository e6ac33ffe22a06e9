//! A Linux kernel's file: which version it is, and the modules that it needs for its network card.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The version of a kernel, as its header says it.
pub fn version(kernel: &Path) -> Result<String> {
    let shown = kernel.display();
    let file = File::open(kernel).with_context(|| format!("cannot read the kernel {shown}"))?;
    let read = |at: u64, bytes: &mut [u8]| file.read_exact_at(bytes, at);
    let (mut magic, mut pointer, mut text) = ([0; 4], [0; 2], [0; 128]);
    let header = read(0x202, &mut magic).and_then(|()| read(0x20e, &mut pointer));
    let is_kernel = header.is_ok() && magic == *b"HdrS";
    ensure!(is_kernel, "{shown} is no Linux kernel (bzImage); give --initrd with other kernels");
    let at = u64::from(u16::from_le_bytes(pointer)) + 0x200;
    read(at, &mut text).with_context(|| format!("{shown} ends within its header"))?;
    let word = text.split(|byte| b" \0".contains(byte)).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(word).into_owned())
}

/// Fails with a kernel whose file ends before it does: it would end at once, without a word.
pub fn check_whole(kernel: &Path) -> Result<()> {
    let shown = kernel.display();
    let unread = |error: &io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("cannot read {shown}; copy it with sudo cp, or run as root")
        }
        _ => format!("cannot read {shown}; name a Linux kernel"),
    };
    let context = |error: io::Error| {
        let what = unread(&error);
        anyhow::Error::new(error).context(what)
    };
    // Before it is opened, which waits where a pipe has no writer.
    let kind = std::fs::metadata(kernel).map_err(context)?;
    ensure!(kind.is_file(), "{shown} is no file; name a Linux kernel");
    let file = File::open(kernel).map_err(context)?;
    let mut header = [0; 0x210];
    if file.read_exact_at(&mut header, 0).is_err() || header[0x202..0x206] != *b"HdrS" {
        return Ok(()); // Of another kind, and QEMU's to judge.
    }
    // Sectors of its setup, where 0 means 4, and one before; paragraphs behind them.
    let sectors = if header[0x1f1] == 0 { 4 } else { u64::from(header[0x1f1]) };
    let [a, b, c, d] = [0x1f4, 0x1f5, 0x1f6, 0x1f7].map(|at| header[at]);
    let size = (sectors + 1) * 512 + u64::from(u32::from_le_bytes([a, b, c, d])) * 16;
    let have = kind.len();
    ensure!(have >= size, "{shown} ends after {have} bytes of {size}: copy the kernel again");
    Ok(())
}

/// Whether a file is a module.
pub fn is_module(path: &Path) -> bool {
    name(path).is_some()
}

/// The modules that a guest loads, in that order, as they are loaded: not compressed. `wanted` are
/// those of its network card; those of `more` are files, and come before the kernel's own.
pub fn modules(
    kernel: &Path,
    busybox: &Path,
    wanted: &[&str],
    more: &[PathBuf],
) -> Result<Vec<Vec<u8>>> {
    let version = version(kernel)?;
    let places = places(kernel, &version);
    let Some(place) = places.iter().find(|place| place.join("kernel").is_dir()) else {
        let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        bail!(
            "no modules of kernel {version} in {}; install them, or give --initrd",
            places.join(", ")
        );
    };
    let mut set = Set { busybox, files: more.to_vec(), order: Vec::new(), loaded: Vec::new() };
    list(place, &mut set.files);
    for name in more.iter().filter_map(|path| name(path)) {
        set.load(&name)?;
    }
    let builtin = std::fs::read_to_string(place.join("modules.builtin")).unwrap_or_default();
    for &wanted in wanted {
        let is_builtin = builtin.lines().any(|line| name(Path::new(line)) == Some(wanted.into()));
        let found = set.load(wanted)?;
        ensure!(
            found || is_builtin,
            "no module {wanted} in {}: {}, or give --initrd",
            place.display(),
            cure(wanted, &version)
        );
    }
    Ok(set.loaded)
}

/// What helps against a module that is missing.
fn cure(module: &str, version: &str) -> String {
    match module {
        "uvala_ptnet" => format!(
            "build it from uvala's source, with the headers of that kernel: make -C guest/linux \
             KDIR=/usr/src/linux-headers-{version}, and --add guest/linux/uvala_ptnet.ko"
        ),
        _ => format!("kernel {version} cannot use a network card here; take another"),
    }
}

/// Where modules may be: the system's, and those beside a kernel that was only unpacked.
fn places(kernel: &Path, version: &str) -> Vec<PathBuf> {
    let kernel = std::fs::canonicalize(kernel).unwrap_or_else(|_| kernel.to_path_buf());
    let mut roots: Vec<_> = kernel.ancestors().skip(1).take(2).collect();
    roots.extend([Path::new("/"), Path::new("/usr")]);
    let mut places = Vec::new();
    for place in roots.iter().map(|root| root.join("lib/modules").join(version)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    // Where the kernel lies among them.
    places.extend(kernel.parent().filter(|dir| dir.ends_with(version)).map(Path::to_path_buf));
    places
}

/// Modules of a kernel, and those that are loaded.
struct Set<'a> {
    busybox: &'a Path,
    files: Vec<PathBuf>,
    /// Names of those that are.
    order: Vec<String>,
    loaded: Vec<Vec<u8>>,
}

impl Set<'_> {
    /// Adds a module behind all that it needs; false if there is none, since it is built in.
    fn load(&mut self, module: &str) -> Result<bool> {
        if self.order.iter().any(|loaded| loaded == module) {
            return Ok(true);
        }
        let is_it = |path: &&PathBuf| name(path).is_some_and(|name| name == module);
        let Some(path) = self.files.iter().find(is_it).cloned() else { return Ok(false) };
        let bytes = self.read(&path)?;
        // A module that needed itself would be none.
        self.order.push(module.to_owned());
        for needed in depends(&bytes) {
            self.load(&needed)?;
        }
        self.loaded.push(bytes);
        Ok(true)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>> {
        let with = |program: &Path, words: &[&str]| {
            let output = Command::new(program).args(words).arg(path).output();
            let output = output.with_context(|| {
                format!("cannot unpack {}: no program {}", path.display(), program.display())
            })?;
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(output.status.success(), "cannot unpack {}: {why}", path.display());
            Ok(output.stdout)
        };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("xz") => with(self.busybox, &["xz", "-dc"]),
            Some("gz") => with(self.busybox, &["gzip", "-dc"]),
            Some("zst") => with("zstd".as_ref(), &["-dcq"]),
            _ => std::fs::read(path).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

/// The name of a module by that of its file: `virtio_net` of `virtio-net.ko.xz`.
fn name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (name, packed) = file.split_once(".ko")?;
    let is_module = ["", ".xz", ".gz", ".zst"].contains(&packed);
    is_module.then(|| name.replace('-', "_"))
}

/// The modules that a module depends on, by its own `depends` field.
fn depends(module: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let at = module.windows(FIELD.len()).position(|bytes| bytes == FIELD);
    let text = at.map_or(&[][..], |at| &module[at + FIELD.len()..]);
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(text).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// All files below a directory; what cannot be read is not there.
fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    for entry in entries.filter_map(io::Result::ok) {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => list(&entry.path(), files),
            _ => files.push(entry.path()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_a_kernel_is_as_long_as_its_header_says() {
        let dir = tempfile::tempdir().unwrap();
        let of = |bytes: &[u8]| {
            let path = dir.path().join("kernel");
            std::fs::write(&path, bytes).unwrap();
            check_whole(&path).map_err(|error| error.to_string())
        };
        let mut kernel = vec![0; 2 * 512 + 64 * 16];
        kernel[0x202..0x206].copy_from_slice(b"HdrS");
        (kernel[0x1f1], kernel[0x1f4]) = (1, 64);
        assert_eq!(of(&kernel), Ok(()));
        let short = of(&kernel[..2000]).unwrap_err();
        assert!(short.contains("ends after 2000 bytes of 2048"), "{short}");
        assert_eq!(of(b"an ELF file"), Ok(()));
        assert!(check_whole(dir.path()).is_err(), "a directory");
    }

    #[test]
    fn test_modules_are_known_by_their_files_and_say_what_they_need() {
        let of = |file: &str| name(Path::new(file));
        assert_eq!(of("kernel/net/virtio-net.ko.xz").as_deref(), Some("virtio_net"));
        assert_eq!(of("virtio_pci.ko").as_deref(), Some("virtio_pci"));
        assert_eq!(of("virtio_pci.kobj"), None);
        assert_eq!(depends(b"\x7fELF\0license=GPL\0depends=a,b-c\0name=x\0"), ["a", "b_c"]);
        assert!(depends(b"\x7fELF\0license=GPL\0depends=\0name=x\0").is_empty());
    }

    #[test]
    fn test_a_kernel_says_its_version_and_other_files_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernel");
        let mut bytes = vec![0; 1024];
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        bytes[0x300..0x30e].copy_from_slice(b"6.1.0-x (me) #");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(version(&path).unwrap(), "6.1.0-x");
        let error =
            modules(&path, Path::new("busybox"), &["virtio_net"], &[]).unwrap_err().to_string();
        assert!(error.contains("no modules of kernel 6.1.0-x in /"), "{error}");
        std::fs::write(&path, "hello").unwrap();
        assert!(version(&path).unwrap_err().to_string().contains("no Linux kernel"));
        std::fs::remove_file(&path).unwrap();
        assert!(version(&path).unwrap_err().to_string().contains("cannot read the kernel"));
    }
}

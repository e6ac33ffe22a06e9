//! The sandbox of a process that runs functions: what it has after its start.

use anyhow::Context;
use client::ptnet;
use confine::{Access, Files, Mode, Thread};
use terminal::say;

use super::part::Part;

/// Confines the process while it has one thread. If the kernel cannot do all of it, a line says
/// why, and the functions run all the same.
pub fn enter(mode: Mode, parts: &[Part]) -> anyhow::Result<()> {
    if mode == Mode::Off {
        return Ok(());
    }
    let reports = parts.iter().any(|part| part.name == "exporter");
    let thread = if reports { Thread::Exporter } else { Thread::Function };
    let report = confine::enter(mode, thread, &files(parts))
        .context("cannot enter the sandbox; run without it: --sandbox=off")?;
    if mode == Mode::On && !report.is_whole() {
        say::remark(format_args!("uvala: the sandbox is not complete: {report}"));
    }
    Ok(())
}

/// The directories of the functions' files: an editor that saves a file puts a new one in its
/// place. And in a guest, the devices of the ports.
fn files(parts: &[Part]) -> Files {
    let devices = parts.iter().filter_map(|part| part.port.pci_address().map(ptnet::directory));
    let files = devices.fold(Files::of_a_client(), |files, device| {
        let used = ["resource0", "resource4", "enable"].map(|file| device.join(file));
        used.iter()
            .fold(files.and(&device, Access::Read), |files, file| files.and(file, Access::Write))
    });
    let own = parts.iter().filter_map(|part| part.file.as_deref());
    own.fold(files, |files, file| {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        // Not the whole system for the sake of a file in its root.
        let dir = file.parent().filter(|dir| dir.parent().is_some());
        let files = dir.into_iter().fold(files, |files, dir| files.and(dir, Access::Read));
        files.and(&file, Access::Read)
    })
}

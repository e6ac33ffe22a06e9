//! Object files of forwarding programs, which commands read with the rights of their user.

use std::path::Path;

use anyhow::{Context, anyhow};
use program::{Image, object};
use protocol::ProgramSpec;
use protocol::file::read_bytes;

/// Reads an object file.
pub fn read(file: &Path) -> anyhow::Result<ProgramSpec> {
    let name = file.display();
    let bytes =
        read_bytes(file, object::FILE_MAX).with_context(|| format!("cannot read {name}"))?;
    let image: Image = object::read(&bytes).map_err(|why| anyhow!("{name}: {why}"))?;
    Ok(ProgramSpec { image: image.to_string(), entries: Vec::new() })
}

//! Nothing is left of a machine whose `uvala vm run` is killed: neither its QEMU nor its port.
//!
//! ```text
//!   uvala vm run ──────► QEMU        ended by the kernel, when its parent ends
//!        │ a connection, which closes when it ends, however that comes about
//!        ▼
//!   uvala daemon         the port goes with the connection that added it
//! ```

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Error, Result};
use rustix::process::Signal;

use terminal::process;

/// A command for a program that ends when this process does: ourselves, as `uvala vm exec`.
pub fn dependent(program: &Path) -> Result<Command> {
    let mut command = Command::new(process::exe()?);
    command.args(["vm", "exec", &std::process::id().to_string()]).arg(program);
    Ok(command)
}

/// Becomes that program.
pub fn exec(parent: i32, program: &Path, args: &[OsString]) -> Error {
    // It restores the terminal, and ends.
    if let Err(error) = process::end_with(parent, Signal::TERM) {
        return error;
    }
    let error = Command::new(program).args(args).exec();
    Error::new(error).context(format!("cannot run {}", program.display()))
}

//! Interfaces of the kernel, as `ip` makes them.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::find;

/// Does what one line of `ip` says.
pub fn ip(arguments: &str) -> Result<()> {
    run(Command::new(find("ip", "iproute2")?).args(arguments.split(' ')))
        .with_context(|| format!("ip {arguments}"))
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A bridge with these ports.
pub fn bridge(ports: &[&str]) -> Result<()> {
    ip("link add br0 type bridge stp_state 0 forward_delay 0")?;
    for port in ports {
        ip(&format!("link set {port} master br0"))?;
        ip(&format!("link set {port} up"))?;
    }
    ip("link set br0 up")
}

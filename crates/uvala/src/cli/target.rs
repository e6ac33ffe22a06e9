//! What a change is about, and the call that makes it.

use client::control::unexpected;
use protocol::name::{NameError, SwitchName};
use protocol::{Reply, Request};

use super::Global;
use super::output::Output;

/// Arguments of every change of what a switch has.
#[derive(Debug, clap::Args)]
pub struct InSwitch {
    /// Name of the switch, such as vale0
    switch: String,
    #[command(flatten)]
    pub output: Output,
}

impl InSwitch {
    /// Name of the switch.
    pub fn name(&self) -> Result<SwitchName, NameError> {
        self.switch.parse()
    }

    /// Makes a change that answers with nothing.
    pub fn change(
        &self,
        global: &Global,
        request: impl FnOnce(SwitchName) -> Request,
    ) -> anyhow::Result<()> {
        change(global, request(self.name()?), self.output)
    }
}

/// A call that answers with nothing.
pub fn change(global: &Global, request: Request, output: Output) -> anyhow::Result<()> {
    match global.connect()?.call(request)? {
        Reply::Done => output.done(),
        other => Err(unexpected(&other).into()),
    }
}

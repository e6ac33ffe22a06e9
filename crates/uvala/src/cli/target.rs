//! What a change is about, and the call that makes it.

use client::control::unexpected;
use protocol::name::{NameError, SwitchName};
use protocol::{Reply, Request};

use super::Global;
use super::output::Output;
use terminal::Usage;

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

/// Refuses a change that changes nothing.
pub fn refuse_empty<T: Default + PartialEq>(settings: &T, command: &str) -> Result<(), Usage> {
    match *settings == T::default() {
        false => Ok(()),
        true => Err(Usage(format!("{command}: no setting given; name one, such as --mode 660"))),
    }
}

/// A call that answers with nothing.
pub fn change(global: &Global, request: Request, output: Output) -> anyhow::Result<()> {
    match global.connect()?.call(request)? {
        Reply::Done => output.done(),
        other => Err(unexpected(&other).into()),
    }
}

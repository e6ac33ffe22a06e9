//! Listings, which the daemon answers page by page.

use clap::Args;
use client::control::{Connection, ControlError};
use client::listing::Listed;
use protocol::Request;
use protocol::name::SwitchName;
use serde::Serialize;

use super::Global;
use super::output::Watch;
use super::target::InSwitch;
use terminal::table::{Column, Table};

/// Arguments of a listing of what a switch has.
#[derive(Debug, Args)]
pub struct OfSwitch {
    #[command(flatten)]
    of: InSwitch,
    #[command(flatten)]
    watch: Watch,
}

impl OfSwitch {
    /// Prints what `list` finds, and below the table what `more` says of it.
    pub fn print<T: Serialize>(
        &self,
        global: &Global,
        list: impl Fn(&Connection, &SwitchName) -> anyhow::Result<Vec<T>>,
        columns: &[Column<T>],
        more: impl Fn(&[T]) -> String,
    ) -> anyhow::Result<()> {
        let (switch, output) = (self.of.name()?, self.of.output);
        let text = |items: &Vec<T>| Table::of(items, columns).fitted() + &more(items);
        self.watch.repeat(global, |connection, _| output.print(&list(connection, &switch)?, text))
    }
}

/// All of it. `ask` asks for what comes behind a page.
pub fn all<T: Listed>(
    connection: &Connection,
    ask: impl Fn(Option<String>) -> Request,
) -> Result<Vec<T>, ControlError> {
    client::listing::all(|request| connection.call(request), ask)
}

//! `uvala assets`: man pages and completions, written by the program that they describe.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::{Shell, generate_to};

use super::Cli;

/// Write man pages and shell completions to a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// Gets the folders man and completions
    dir: PathBuf,
}

/// Writes them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let man = args.dir.join("man");
    let completions = args.dir.join("completions");
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let mut command = without_help(Cli::command());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command, "uvala", &completions)?;
    }
    command.build();
    clap_mangen::generate_to(command, &man)?;
    Ok(())
}

/// No pages that only repeat what other pages say.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

//! The one binary: `uvala daemon`, `demo`, `gen`, `bridge`, `bench`, and the listings.

mod bench;

use clap::{Parser, Subcommand};

/// A virtual local Ethernet in user space
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
}

fn main() -> anyhow::Result<()> {
    let Command::Bench(args) = Cli::parse().command;
    bench::run(&args)
}

//! The one binary: `uvala daemon`, `demo`, `gen`, `bridge`, `bench`, and the listings.

#![deny(clippy::print_stdout, clippy::print_stderr)] // `say` does not panic

mod bench;
mod bridge;
mod cli;
mod demo;
mod preload;
mod say;
mod table;
mod traffic;

fn main() -> std::process::ExitCode {
    cli::main()
}

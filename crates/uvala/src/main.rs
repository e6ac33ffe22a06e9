//! The one binary: `uvala daemon`, `demo`, `gen`, `bridge`, `bench`, and the listings.

mod bench;
mod bridge;
mod cli;
mod demo;
mod table;
mod traffic;

fn main() -> std::process::ExitCode {
    cli::main()
}

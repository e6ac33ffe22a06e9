//! The one binary: `uvala daemon`, `demo`, `gen`, `bridge`, `bench`, and the listings.

mod bench;
mod cli;
mod table;

fn main() -> std::process::ExitCode {
    cli::main()
}

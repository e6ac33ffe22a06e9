//! The one binary: `uvala daemon`, `demo`, `gen`, `bridge`, `bench`, and the listings.

#![deny(clippy::print_stdout, clippy::print_stderr)] // `say` does not panic

mod bench;
mod bridge;
mod cli;
mod cni;
mod demo;
mod doctor;
mod nf;
mod ourselves;
mod preload;
mod say;
mod table;
mod traffic;
mod vm;

fn main() -> std::process::ExitCode {
    cli::main()
}

//! The program `uvala`: the daemon, and every command.

#![deny(clippy::print_stdout, clippy::print_stderr)] // `terminal::say` does not panic

mod bridge;
mod cli;
mod cni;
mod demo;
mod doctor;
mod expression;
mod internet;
mod netavark;
mod pcap;
mod preload;
mod private_dir;
mod vm;

fn main() -> std::process::ExitCode {
    if terminal::remover::is_done() {
        return std::process::ExitCode::SUCCESS;
    }
    cli::main()
}

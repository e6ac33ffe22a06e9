//! The project's rules as programs: `cargo xtask tidy`, `lengths`, `house` and `counts`.
//!
//! `tidy` prints one line per broken rule, `path:line: rule: what to do`, and exits 1 when there
//! is any. `lengths` prints how long the functions and files are, crate by crate. `house` prints
//! figures of the layout: the largest crate, trait, struct and enum, cycles, words. `counts`
//! compares what a frame costs with what is kept, in instructions, and exits 1 when it costs more.

mod counts;
mod house;
mod lengths;
mod rules;
mod tree;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::tree::Tree;

const USAGE: &str = "usage: cargo xtask tidy | lengths | house | counts [--accept]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[&str]) -> Result<ExitCode> {
    match args {
        ["tidy"] => tidy(),
        ["lengths"] => {
            print!("{}", lengths::table(&workspace()?));
            Ok(ExitCode::SUCCESS)
        }
        ["house"] => {
            print!("{}", house::table(&workspace()?));
            Ok(ExitCode::SUCCESS)
        }
        ["counts"] => counts::run(root()?, false),
        ["counts", "--accept"] => counts::run(root()?, true),
        _ => anyhow::bail!(USAGE),
    }
}

fn tidy() -> Result<ExitCode> {
    let tree = workspace()?;
    let findings = rules::check(&tree)?;
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files follow the rules", tree.files.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} to mend; STYLE.md has the reasons", findings.len());
    Ok(ExitCode::from(1))
}

/// The workspace this program was built from.
fn workspace() -> Result<Tree> {
    Tree::read(root()?)
}

/// The directory of the workspace.
fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let findings = rules::check(&workspace().unwrap()).unwrap();
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn an_unknown_command_is_refused() {
        assert!(run(&["tydy"]).unwrap_err().to_string().contains("usage"));
        assert!(run(&[]).is_err());
    }
}

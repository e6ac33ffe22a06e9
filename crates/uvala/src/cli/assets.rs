//! `uvala assets`: man pages and completions, written by the program that they describe.

mod completion;
mod config_page;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use anyhow::{Context, ensure};
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
        let path = generate_to(shell, &mut command, "uvala", &completions)?;
        let script = fs::read_to_string(&path)?;
        fs::write(&path, completion::with_names(shell, &script))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    command.build();
    clap_mangen::generate_to(command, &man)?;
    fs::write(man.join("uvala-device.1"), page_of(&crate::vm::device::program()?)?)?;
    for page in fs::read_dir(&man)? {
        let path = page?.path();
        let finished = finished(&fs::read_to_string(&path)?);
        fs::write(&path, finished).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let path = man.join("uvala.toml.5");
    fs::write(&path, config_page::page())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The page of a program that writes it itself.
fn page_of(program: &Path) -> anyhow::Result<Vec<u8>> {
    let named = || format!("cannot get the man page of {}", program.display());
    let made = Process::new(program).arg("--man").output().with_context(named)?;
    ensure!(made.status.success(), "{}: {}", named(), String::from_utf8_lossy(&made.stderr));
    Ok(made.stdout)
}

/// What follows the options of every page.
const ABOUT_ALL: &str = "\
.SH ENVIRONMENT
.TP
\\fBUVALA_DIR\\fR
Directory of the daemon\\*(Aqs socket, where \\fB\\-\\-dir\\fR does not say.
.SH FILES
.TP
\\fI/etc/uvala.toml\\fR
The configuration of the service: see \\fBuvala.toml\\fR(5).
.TP
\\fI/run/uvala/uvala.sock\\fR, \\fI$XDG_RUNTIME_DIR/uvala/uvala.sock\\fR
The daemon\\*(Aqs socket.
.SH SEE ALSO
\\fBuvala\\fR(1), \\fBuvala\\-daemon\\fR(1), \\fBuvala\\-switch\\fR(1), \\fBuvala\\-port\\fR(1),
\\fBuvala.toml\\fR(5)
";

/// A page with its examples line by line, and with what is the same for all.
fn finished(page: &str) -> String {
    let (page, examples) = page.split_once(".SH EXTRA\n").unwrap_or((page, ""));
    let (examples, rest) = match examples.find("\n.SH ") {
        Some(end) => examples.split_at(end + 1),
        None => (examples, ""),
    };
    let examples = match examples.trim_end() {
        "" => String::new(),
        lines => format!(".SH EXAMPLES\n.nf\n{lines}\n.fi\n"),
    };
    format!("{}\n{examples}{ABOUT_ALL}{rest}", page.trim_end())
}

/// No pages that only repeat what other pages say.
fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_examples_of_a_man_page_keep_their_lines_and_sections_their_order() {
        let page = finished(".SH NAME\nuvala\n.SH EXTRA\nExamples:\n  uvala demo\n.SH VERSION\nv0");
        assert!(
            page.contains(".SH EXAMPLES\n.nf\nExamples:\n  uvala demo\n.fi\n.SH ENV"),
            "{page}"
        );
        assert!(page.ends_with(".SH VERSION\nv0"), "{page}");
        let page = finished(".SH NAME\nuvala\n");
        assert!(page.starts_with(".SH NAME\nuvala\n.SH ENVIRONMENT\n"), "{page}");
    }
}

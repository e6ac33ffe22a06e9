//! The manual page, made of the help.

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use terminal::say;

/// Prints the page.
pub fn print() -> Result<()> {
    say::out(page(crate::Args::command())?)
}

/// The page of the program; that of its command is a part of it.
fn page(mut program: Command) -> Result<String> {
    program.build();
    let token = program.find_subcommand("token").cloned().unwrap_or_default();
    let (page, token) = (rendered(program)?, rendered(token)?);
    let (head, examples) = page.split_once(".SH EXTRA").unwrap_or((&page, ""));
    let (examples, version) = examples.split_once("\n.SH VERSION").unwrap_or((examples, ""));
    // The list of commands points to pages of their own, which there are not.
    let (head, _) = head.split_once(".SH SUBCOMMANDS").unwrap_or((head, ""));
    let (_, token) = token.split_once(".SH SYNOPSIS").unwrap_or(("", &token));
    let token = token.replace("\n.SH ", "\n.SS ");
    Ok(format!(
        "{head}.SH TOKENS{token}.SH EXAMPLES\n.nf{examples}\n.fi\n.SH SEE ALSO\n\\fBuvala\\fR(1)\n\
         .SH VERSION{version}"
    ))
}

fn rendered(command: Command) -> Result<String> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(String::from_utf8(page)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_all_options_and_examples_line_by_line() {
        let page = page(crate::Args::command()).unwrap();
        for part in [
            ".TH uvala-http 1",
            "\\-\\-listen",
            "\\-\\-sandbox",
            ".SH TOKENS\n\\fBuvala\\-http token\\fR",
            "\\-\\-write",
            ".SH EXAMPLES\n.nf\n",
            "\n.fi\n.SH SEE ALSO",
        ] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(!page.contains("SH EXTRA") && !page.contains("uvala\\-http\\-token(1)"), "{page}");
    }
}

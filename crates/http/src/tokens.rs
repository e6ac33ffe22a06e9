//! Tokens: what a caller by TCP shows.
//!
//! A line of the file is `NAME read|write TOKEN`. The file is its user's alone, or the program does
//! not start. It is read once: a token that was taken out holds until the program starts again.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use terminal::say;

/// The shortest token, in bytes: others could guess a shorter one.
const TOKEN_MIN: usize = 32;

/// Make a token and add it to a file
///
/// Prints the token. A browser takes it behind the address: http://127.0.0.1:9777/#token=TOKEN
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the token, for people
    name: String,
    /// The file, which is made if it is missing
    file: PathBuf,
    /// May change things; by default a token may only look
    #[arg(long)]
    write: bool,
}

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To look.
    Read,
    /// To change things.
    Write,
}

/// All tokens.
#[derive(Debug, Default)]
pub struct Tokens(Vec<(String, Right)>);

impl Tokens {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self> {
        let named = || format!("tokens {}", path.display());
        let mut file = File::open(path).with_context(named)?;
        check(&file, path).with_context(named)?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(named)?;
        let tokens = Self::parse(&text).with_context(named)?;
        let path = path.display();
        ensure!(
            !tokens.0.is_empty(),
            "tokens {path}: there is none; make one with: uvala-http token NAME {path}"
        );
        Ok(tokens)
    }

    fn parse(text: &str) -> Result<Self> {
        let lines = (1..).zip(text.lines()).filter(|(_, line)| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with('#')
        });
        let tokens =
            lines.map(|(number, line)| parse_line(line).with_context(|| format!("line {number}")));
        tokens.collect::<Result<_>>().map(Self)
    }

    /// What this token allows, if it is one.
    pub fn right(&self, shown: &str) -> Option<Right> {
        // All of them are compared, so that the time says nothing.
        self.0.iter().fold(None, |found, (token, right)| {
            if is_same(token.as_bytes(), shown.as_bytes()) { Some(*right) } else { found }
        })
    }
}

fn parse_line(line: &str) -> Result<(String, Right)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, right, token] = words[..] else { bail!("expected NAME read|write TOKEN") };
    let right = match right {
        "read" => Right::Read,
        "write" => Right::Write,
        other => bail!("{other:?} is no right: write read or write"),
    };
    ensure!(
        token.len() >= TOKEN_MIN && token.is_ascii(),
        "the token has fewer than {TOKEN_MIN} characters, or others than ASCII; make one with: \
         uvala-http token"
    );
    Ok((token.to_owned(), right))
}

/// Compares in a time that depends on the lengths alone.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && std::hint::black_box(a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b))) == 0
}

/// Checks that the file is for this user alone. One of root's may be for a group, as credentials of
/// systemd are.
fn check(file: &File, path: &Path) -> Result<()> {
    let found = file.metadata()?;
    let ours = rustix::process::geteuid().as_raw();
    let others = if found.uid() == 0 && ours != 0 { 0o007 } else { 0o077 };
    ensure!(found.is_file(), "no regular file");
    let is_ours = found.mode() & others == 0;
    ensure!(is_ours, "others may use the file; run: chmod 600 {}", path.display());
    ensure!([0, ours].contains(&found.uid()), "the file belongs to user {}", found.uid());
    Ok(())
}

/// Makes a token.
pub fn make(args: &Args) -> Result<()> {
    let Args { name, file: path, write } = args;
    let named = || format!("tokens {}", path.display());
    let is_word = !name.is_empty() && !name.starts_with('#') && !name.contains(char::is_whitespace);
    ensure!(is_word, "{name:?} is no name: write one word");
    let mut options = OpenOptions::new();
    let options = options.read(true).append(true).create(true).mode(0o600);
    let mut file = options.open(path).with_context(named)?;
    check(&file, path).with_context(named)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(named)?;
    // A line that is deleted takes all away that has this name.
    let is_taken = text.lines().any(|line| line.split_whitespace().next() == Some(name));
    let shown = path.display();
    ensure!(!is_taken, "tokens {shown}: {name} has one already; delete its line first");
    let mut bytes = [0; TOKEN_MIN];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let right = if *write { "write" } else { "read" };
    // An editor may have left the last line without its end.
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    writeln!(file, "{end}{name} {right} {token}").with_context(named)?;
    say::out(token + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_allows_what_its_line_says() {
        let [a, b] = ["a", "b"].map(|letter| letter.repeat(TOKEN_MIN));
        let tokens = Tokens::parse(&format!("# mine\n\nx read {a}\ny write {b}\n")).unwrap();
        assert_eq!(
            [&a, &b].map(|token| tokens.right(token)),
            [Some(Right::Read), Some(Right::Write)]
        );
        for wrong in ["", "a", &a[1..], &format!("{a}a"), &a.to_uppercase()] {
            assert_eq!(tokens.right(wrong), None, "{wrong}");
        }
        assert_eq!(Tokens::default().right(""), None);
    }

    #[test]
    fn a_name_is_given_once_and_a_file_without_tokens_lets_no_caller_in() {
        let path = std::env::temp_dir().join(format!("uvala-tokens-{}", std::process::id()));
        let args = |name: &str| Args { name: name.to_owned(), file: path.clone(), write: false };
        File::create(&path).unwrap();
        let open = format!("{:#}", Tokens::read(&path).unwrap_err());
        assert!(open.contains(&format!("chmod 600 {}", path.display())), "{open}");
        std::fs::remove_file(&path).unwrap();
        make(&args("laptop")).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.trim_end()).unwrap();
        make(&args("phone")).unwrap();
        let twice = make(&args("laptop")).unwrap_err().to_string();
        assert!(twice.contains("laptop has one already"), "{twice}");
        assert_eq!(Tokens::read(&path).unwrap().0.len(), 2);
        std::fs::write(&path, "# none\n").unwrap();
        let none = Tokens::read(&path).unwrap_err().to_string();
        assert!(none.contains("make one with: uvala-http token NAME /"), "{none}");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, why) in [
            ("x read", "expected NAME"),
            ("x all 01234567890123456789012345678901", "no right"),
            ("x read 0123", "fewer than 32"),
        ] {
            let error = format!("{:#}", Tokens::parse(&format!("#\n{text}")).unwrap_err());
            assert!(error.starts_with("line 2: ") && error.contains(why), "{error}");
        }
    }
}

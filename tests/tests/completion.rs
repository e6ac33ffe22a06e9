//! What a shell completes, asked of the shells.

use std::path::Path;
use std::process::Command;

use harness::daemon::Daemon;
use harness::process::{Scratch, uvala_path};
use harness::skip;

/// A daemon with a port, and the scripts of this build.
fn scripts() -> (Daemon, Scratch) {
    let (daemon, place) = (Daemon::start(), Scratch::new("completion"));
    assert!(daemon.uvala(&["port", "add", "vale0:web"]).status.success());
    let made = Command::new(uvala_path()).arg("assets").arg(place.path()).status();
    assert!(made.unwrap().success());
    (daemon, place)
}

/// What a shell prints, with the script as `$SCRIPT`. None: there is no such shell.
fn said(shell: &[&str], script: &Path, daemon: &Daemon, lines: &str) -> Option<String> {
    let bin = uvala_path().parent().unwrap().to_path_buf();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(lines).env("PATH", path).env("SCRIPT", script);
    let Ok(output) = command.env("UVALA_DIR", daemon.dir()).output() else {
        skip(&format!("no {}: run .ci/prepare as root", shell[0]));
        return None;
    };
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8(text).unwrap())
}

#[test]
fn bash_completes_names_also_behind_the_colon_at_which_it_breaks_words() {
    let (daemon, place) = scripts();
    let script = place.path().join("completions/uvala.bash");
    let complete = |line: &str, words: &str| {
        let last = words.split(' ').count() - 1;
        let lines = format!(
            ". $SCRIPT; COMP_LINE={line:?} COMP_POINT=${{#COMP_LINE}} COMP_WORDS=({words}) \
             COMP_CWORD={last}; _uvala_or_names uvala \"${{COMP_WORDS[{last}]}}\" x; \
             echo \" ${{COMPREPLY[*]}} \""
        );
        said(&["bash", "--norc", "-c"], &script, &daemon, &lines)
    };
    let Some(text) = complete("uvala port show vale0:w", "uvala port show vale0 : w") else {
        return;
    };
    assert_eq!(text.trim(), "web");
    let text = complete("uvala port show v", "uvala port show v").unwrap();
    assert_eq!(text.trim(), "vale0 vale0:web");
    let text = complete("uvala port sh", "uvala port sh").unwrap();
    assert_eq!(text.trim(), "show");
    let text = complete("uvala port show --js", "uvala port show --js").unwrap();
    assert_eq!(text.trim(), "--json");
}

#[test]
fn fish_and_zsh_complete_names() {
    let (daemon, place) = scripts();
    let at = |name: &str| place.path().join("completions").join(name);
    let lines = "source $SCRIPT; complete -C 'uvala port show vale0:'";
    if let Some(text) = said(&["fish", "--no-config", "-c"], &at("uvala.fish"), &daemon, lines) {
        assert!(text.lines().any(|line| line.starts_with("vale0:web")), "{text}");
    }
    // Of zsh's completion what can be had without a terminal: the list that it offers.
    let lines = "compdef() { }; compadd() { shift; print -l ${(P)1} }; . $SCRIPT; _uvala_names";
    if let Some(text) = said(&["zsh", "-f", "-c"], &at("_uvala"), &daemon, lines) {
        assert_eq!(text, "vale0\nvale0:web\n");
    }
}

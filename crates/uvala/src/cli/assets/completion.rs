//! Names of switches and ports in the completion of shells.
//!
//! `clap_complete` knows commands and options. The lines that are added here ask the daemon for
//! what it has (`uvala names`) when the user presses TAB.

use clap_complete::Shell;

/// The script of a shell, with names.
pub fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => script.replace(" -F _uvala ", " -F _uvala_or_names ") + BASH,
        Shell::Zsh => {
            let lines = script.lines().map(|line| match is_name(line) {
                true => line.replace(":_default'", ":_uvala_names'") + "\n",
                false => format!("{line}\n"),
            });
            // The function must be there when the last lines run the first one.
            lines.collect::<String>().replacen("\n_uvala() {", &format!("\n{ZSH}_uvala() {{"), 1)
        }
        _ => script.to_owned() + FISH,
    }
}

/// Whether a line of zsh's is about an argument that is a name.
fn is_name(line: &str) -> bool {
    let argument = line.trim_start().trim_start_matches(['\'', ':']);
    ["port", "switch", "place"].iter().any(|name| argument.starts_with(&format!("{name} -- ")))
}

/// Bash breaks words at colons, and replaces the last part: `vm` of `vale0:vm`.
const BASH: &str = r#"
_uvala_or_names() {
    _uvala "$@"
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[ =]} names name
    [[ $word == -* || ( -z $word && $COMP_CWORD -lt 3 ) ]] && return
    names=$(compgen -W "$(uvala names 2>/dev/null)" -- "$word")
    local before=${word%"${word##*:}"}
    for name in $names; do COMPREPLY+=("${name#"$before"}"); done
}
"#;

const ZSH: &str = r#"_uvala_names() {
    local -a names
    names=(${(f)"$(uvala names 2>/dev/null)"})
    compadd -a names
}

"#;

const FISH: &str = r#"
complete -c uvala -n 'test (count (commandline -opc)) -ge 2' -f -a '(uvala names 2>/dev/null)'
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_arguments_that_are_names_are_completed_by_what_the_daemon_has() {
        let script = "#compdef uvala\n\n_uvala() {\n':port -- Name:_default' \\\n\
                      '::switch -- Show:_default' \\\n':file -- File:_default' \\\n}\n";
        let zsh = with_names(Shell::Zsh, script);
        assert!(zsh.contains("':port -- Name:_uvala_names' \\\n"), "{zsh}");
        assert!(zsh.contains("'::switch -- Show:_uvala_names' \\\n"), "{zsh}");
        assert!(zsh.contains("':file -- File:_default' \\\n"), "{zsh}");
        assert!(zsh.starts_with("#compdef uvala\n\n_uvala_names() {\n"), "{zsh}");
        let bash = with_names(Shell::Bash, "complete -F _uvala -o default uvala\n");
        assert!(bash.starts_with("complete -F _uvala_or_names -o default uvala\n"), "{bash}");
    }
}

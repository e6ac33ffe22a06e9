//! Comments and documents say what acts on what, in the words of the field.
//!
//! Four checks: a doc comment has a subject of its own; it states and does not ask; words without
//! an agent stay rare; names of the code are not those of the list below, which the field does not
//! know.

use syn::visit::{self, Visit};

use super::Finding;
use crate::tree::{Kind, Source, Tree, is_test_only};

/// How a doc comment begins that leans on the line above it.
const HEADLESS: [&str; 11] = [
    "Of",
    "It",
    "Its",
    "Those",
    "These",
    "That",
    "They",
    "Their",
    "See above",
    "Does so",
    "The same",
];

/// Words that hide the agent, and how often all of them may stand in the tree: the last resort of
/// a sentence, and the name of a UNIX user.
const AGENTLESS: [&str; 7] =
    ["nobody", "somebody", "everybody", "anybody", "whom", "who has", "whoever"];
const AGENTLESS_MAX: usize = 20;

/// Documents that keep the words of their time.
const HISTORY: [&str; 4] =
    ["CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE", "xtask/src/rules/prose.rs"];

/// Names of types and modules that the field does not know, and what it says instead.
const HOME_MADE: [(&str, &str); 29] = [
    ("Asks", "slot flags"),
    ("Begun", "a partial checksum, or a pending call"),
    ("Commons", "a bound region"),
    ("Course", "Verdict"),
    ("Door", "a listener"),
    ("Draft", "a plan"),
    ("Ear", "an epoll set"),
    ("Fate", "Verdict"),
    ("Front", "headroom"),
    ("Furniture", "a reservation"),
    ("Hand", "a queue hand-off"),
    ("HostPort", "krings; `host` is the Linux host"),
    ("Keeper", "a writer, or a connector"),
    ("Loan", "a holder"),
    ("Lone", "unswitched rings"),
    ("Made", "generated frames"),
    ("Mail", "a pending flag"),
    ("Misfit", "an invalid value, or a conflict"),
    ("MisfitError", "ValidationError"),
    ("Nonsense", "malformed"),
    ("Plain", "plain old data, or what it is"),
    ("Rival", "a rejected peer"),
    ("Rivals", "rejected peers"),
    ("Settle", "reconcile, or return"),
    ("Sight", "a mirror point"),
    ("Strangers", "what they are"),
    ("Twins", "duplicates"),
    ("Voice", "a rate-limited log"),
    ("Wishes", "requests"),
];

/// Words of the list that variables, fields, parameters and functions may not have as names either.
const NOT_OF_VALUES: [&str; 10] =
    ["begun", "commons", "fate", "front", "loan", "misfit", "rival", "rivals", "settle", "twins"];

/// First words of functions that say nothing of what is done.
const VAGUE_VERBS: [&str; 2] = ["settle", "tend"];

/// Doc comments and names of one file.
pub fn check(source: &Source, file: &syn::File) -> Vec<Finding> {
    let mut findings: Vec<Finding> = headless(source)
        .map(|line| Finding::new(source, line, "headless-doc", "begin with a subject of its own"))
        .collect();
    findings.extend(questions(source).map(|line| {
        Finding::new(source, line, "question-doc", "state it: `Whether …`, `Checks that …`")
    }));
    let mut walk = Walk { source, findings: Vec::new() };
    walk.visit_file(file);
    if let Some(module) = source.path.file_stem().and_then(|stem| stem.to_str()) {
        walk.check_name(module, 1);
    }
    findings.append(&mut walk.findings);
    findings
}

/// The lines at which a doc comment, or what follows a heading in it, begins without a subject.
pub fn headless(source: &Source) -> impl Iterator<Item = usize> {
    let (mut before, mut is_heading) = (None, false);
    let begins = move |(index, line): (usize, &str)| {
        let line = line.trim_start();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark));
        let continues = mark == std::mem::replace(&mut before, mark);
        let text = line.strip_prefix(mark?)?.trim_start();
        let is_first = std::mem::replace(&mut is_heading, text.starts_with("# ")) || !continues;
        (is_first && is_headless(text)).then_some(index + 1)
    };
    source.text.lines().enumerate().filter_map(begins)
}

fn is_headless(text: &str) -> bool {
    let goes_on = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric());
    HEADLESS.iter().any(|start| text.strip_prefix(start).is_some_and(goes_on))
}

/// The lines of doc comments that ask. Diagrams, known by runs of spaces, and code may.
fn questions(source: &Source) -> impl Iterator<Item = usize> {
    let asks = |(index, line): (usize, &str)| {
        let line = line.trim_start();
        let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "))?;
        let is_prose = !text.contains("  ") && !text.starts_with('|');
        (is_prose && (text.ends_with('?') || text.contains("? "))).then_some(index + 1)
    };
    source.text.lines().enumerate().filter_map(asks)
}

/// How many doc comments there are.
pub fn doc_comments(source: &Source) -> usize {
    let is_doc = |line: &str| line.trim_start().starts_with("///");
    let lines: Vec<&str> = source.text.lines().collect();
    (0..lines.len()).filter(|&at| is_doc(lines[at]) && (at == 0 || !is_doc(lines[at - 1]))).count()
}

/// Words without an agent, where the whole tree has too many.
pub fn check_tree(tree: &Tree) -> Vec<Finding> {
    let in_file = |source| {
        agentless(source).map(move |(line, word)| {
            let advice = format!("`{word}`: name the agent (the switch, the client, an operator)");
            Finding::new(source, line, "agentless", advice)
        })
    };
    let found: Vec<Finding> = tree.files.iter().flat_map(in_file).collect();
    if found.len() > AGENTLESS_MAX { found } else { Vec::new() }
}

/// The lines with a word that hides the agent.
pub fn agentless(source: &Source) -> impl Iterator<Item = (usize, &'static str)> {
    let read =
        source.kind != Kind::Other && !HISTORY.iter().any(|&path| source.path.ends_with(path));
    let lines = source.text.lines().enumerate().filter(move |_| read);
    // What a test types and expects is data; its comments are prose.
    let comments_only = source.is_test_code();
    lines.filter_map(move |(index, line)| {
        let prose = if comments_only {
            line.find("//").or(line.find("/*")).map_or("", |at| &line[at..])
        } else {
            line
        };
        let line = prose.to_lowercase();
        let word = AGENTLESS.iter().find(|&&word| has_word(&line, word))?;
        Some((index + 1, *word))
    })
}

/// Whether `word` stands in the line, not as a part of another one, nor in a name or in quotes.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || "_`".contains(c);
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(part) && !line[at + word.len()..].starts_with(part))
}

struct Walk<'a> {
    source: &'a Source,
    findings: Vec<Finding>,
}

impl Walk<'_> {
    fn check_name(&mut self, name: &str, line: usize) {
        let matches = |(word, _): &&(&str, &str)| word.eq_ignore_ascii_case(name);
        if let Some((_, instead)) = HOME_MADE.iter().find(matches) {
            let advice = format!("`{name}` is a word of our own; the field says: {instead}");
            self.findings.push(Finding::new(self.source, line, "home-made", advice));
        }
    }

    fn check_value(&mut self, ident: &syn::Ident) {
        let name = ident.to_string();
        if NOT_OF_VALUES.contains(&name.as_str()) {
            self.check_name(&name, ident.span().start().line);
        }
    }

    fn check_function(&mut self, sig: &syn::Signature) {
        let name = sig.ident.to_string();
        let verb = name.split('_').next().unwrap_or_default();
        if VAGUE_VERBS.contains(&verb) {
            let advice = format!("`{name}`: say what it does (publish, account, reconcile, …)");
            let line = sig.ident.span().start().line;
            self.findings.push(Finding::new(self.source, line, "home-made", advice));
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let ident = match item {
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            syn::Item::Type(item) => &item.ident,
            syn::Item::Mod(item) if is_test_only(&item.attrs) => return,
            _ => return visit::visit_item(self, item),
        };
        self.check_name(&ident.to_string(), ident.span().start().line);
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, sig: &'ast syn::Signature) {
        self.check_function(sig);
        self.check_value(&sig.ident);
        visit::visit_signature(self, sig);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.check_value(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        field.ident.iter().for_each(|ident| self.check_value(ident));
        visit::visit_field(self, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let source = Source::new(path.into(), text.into());
        let findings = check(&source, source.rust().unwrap());
        findings.iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    fn found(text: &str) -> Vec<(usize, &'static str)> {
        found_in("crates/x/src/lib.rs", text)
    }

    #[test]
    fn a_doc_comment_has_a_subject() {
        assert_eq!(found("//! x\n/// Its name.\nfn f() {}\n"), [(2, "headless-doc")]);
        assert_eq!(found("//! x\n/// See above.\nfn f() {}\n"), [(2, "headless-doc")]);
        assert_eq!(found("//! x\n/// The port's name.\n/// It is short.\nfn f() {}\n"), []);
        assert_eq!(found("//! Of frames.\n"), [(1, "headless-doc")]);
        assert_eq!(found("//! Office hours.\n"), []);
        assert_eq!(found("//! x\n/// These.\nstruct X;\n"), [(2, "headless-doc")]);
        let errors = "//! x\n/// The port.\n///\n/// # Errors\n/// It is gone.\nfn f() {}\n";
        assert_eq!(found(errors), [(5, "headless-doc")]);
    }

    #[test]
    fn a_doc_comment_does_not_ask() {
        assert_eq!(found("//! x\n/// Is it up?\nfn f() {}\n"), [(2, "question-doc")]);
        assert_eq!(found("//! x\n/// Is it up? Call late.\nfn f() {}\n"), [(2, "question-doc")]);
        assert_eq!(found("//! x\n/// Whether the port is up.\nfn f() {}\n"), []);
        let drawing = "//! x\n//!   frame ──► up? ── no ─► drop\n/// open()?;\nfn f() {}\n";
        assert_eq!(found(drawing), []);
    }

    #[test]
    fn names_are_the_field_s() {
        assert_eq!(found("//! x\nstruct Furniture;\n"), [(2, "home-made")]);
        assert_eq!(found("//! x\nimpl A {\n    fn settle_all() {}\n}\n"), [(3, "home-made")]);
        assert_eq!(found("//! x\nfn settled() {}\nstruct Earth;\n"), []);
        assert_eq!(found_in("crates/x/src/twins.rs", "//! x\n"), [(1, "home-made")]);
        assert_eq!(found("//! x\nstruct A {\n    rival: u32,\n}\n"), [(3, "home-made")]);
        assert_eq!(found("//! x\nfn f(loan: u32) {}\n"), [(2, "home-made")]);
        assert_eq!(found("//! x\nfn f() {\n    let fate = 1;\n}\n"), [(3, "home-made")]);
        assert_eq!(found("//! x\nfn f(asks: u32) {}\n"), []);
    }

    #[test]
    fn a_few_words_without_an_agent_are_enough() {
        let tree = |count: usize| {
            let text = format!("//! x\n{}", "// For nobody.\n".repeat(count));
            let files = vec![Source::new("crates/x/src/lib.rs".into(), text)];
            Tree { root: "".into(), files }
        };
        assert_eq!(check_tree(&tree(AGENTLESS_MAX)), []);
        assert_eq!(check_tree(&tree(AGENTLESS_MAX + 1)).len(), AGENTLESS_MAX + 1);
        let quoted = Source::new("a.md".into(), "The user `nobody`; nobody_knows.\n".into());
        assert_eq!(agentless(&quoted).count(), 0);
    }
}

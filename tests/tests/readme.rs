//! What the README and the pages of docs/ tell users to type, typed.

use std::path::Path;
use std::process::{Command, Output};

use harness::daemon::Daemon;
use harness::process::{Scratch, uvala_path};
use harness::root;
use serde_json::Value;

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

/// The shell blocks of a page that begin with or contain these words.
fn blocks<'a>(page: &'a str, words: &str) -> Vec<&'a str> {
    let fenced = page.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    fenced.filter(|block| block.contains(words)).collect()
}

/// Runs lines in a directory of their own, with this build of `uvala` and no other daemon.
fn sh(lines: &str) -> (Output, String) {
    let place = Scratch::new("readme");
    let bin = uvala_path().parent().unwrap().to_path_buf();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    // Whatever happens, no daemon stays.
    let lock = "\"$UVALA_DIR/uvala.lock\"";
    let end = format!("trap 'test ! -e {lock} || kill \"$(cat {lock})\"' EXIT\n");
    let script = format!("{end}{lines}\nwait\n");
    let output = Command::new("sh")
        .args(["-e", "-c", &script])
        .current_dir(place.path())
        .env("PATH", path)
        .env("UVALA_DIR", place.path().join("run"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &error;
    (output, text)
}

#[test]
fn the_first_lines_work_as_they_stand() {
    let page = page("README.md");
    let [lines] = blocks(&page, "uvala daemon")[..] else { panic!("one block of first steps") };
    let (output, text) = sh(lines);
    assert!(output.status.success(), "{text}");
    let counted = text.lines().find(|line| line.starts_with("vale0:b  ")).expect(&text);
    let numbers: Vec<&str> = counted.split_whitespace().collect();
    assert_ne!(numbers[3], "0", "the port has received nothing: {text}");
}

/// `make install` with these variables, and no cargo.
fn install(place: &Scratch, target: &Path) -> Output {
    let to = place.path().join("to here");
    Command::new("make")
        .args(["-C", root().to_str().unwrap(), "--no-print-directory", "install", "CARGO=false"])
        .arg(format!("DESTDIR={}", to.display()))
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap()
}

#[test]
fn libraries_are_taken_from_where_cargo_puts_them() {
    let mut make = Command::new("make");
    make.args(["-C", root().to_str().unwrap(), "-n", "libs"]);
    let output = make.env("CARGO_TARGET_DIR", "/else/where").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let copied = "cp /else/where/preload/libuvala_netmap.so /else/where/release/";
    assert!(output.status.success() && text.contains(copied), "{text}");
}

#[test]
fn install_copies_and_builds_nothing() {
    let place = Scratch::new("install");
    let target = place.path().join("target");
    let output = install(&place, &target);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("run `make build` first"), "{error}");
    let release = target.join("release");
    std::fs::create_dir_all(&release).unwrap();
    std::fs::copy(uvala_path(), release.join("uvala")).unwrap();
    let libraries = ["libuvala.so", "libuvala.a", "libuvala_netmap.so", "libnetmap.a"];
    let programs = ["uvala-device", "uvala-evpn", "uvala-helper", "uvala-http"];
    for name in [&libraries[..], &programs].concat() {
        std::fs::write(release.join(name), "not looked into").unwrap();
    }
    // Not by the copy: another thread's child may still have it open as it was written.
    let made = Command::new(uvala_path()).arg("assets").arg(target.join("assets")).status();
    assert!(made.unwrap().success());
    let output = install(&place, &target);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let installed = [
        "bin/uvala",
        "bin/uvala-device",
        "bin/uvala-http",
        "lib/systemd/user/uvala-http.service",
        "bin/uvala-evpn",
        "lib/libuvala.so.0",
        "include/uvala.h",
        "share/man/man1/uvala.1",
    ];
    let netmap = ["include/uvala/libnetmap.h", "include/uvala/net/netmap.h"];
    let netmap_library = ["lib/uvala/libnetmap.a", "lib/pkgconfig/uvala-netmap.pc"];
    for name in [&installed[..], &netmap, &netmap_library].concat() {
        assert!(place.path().join("to here/usr/local").join(name).exists(), "{name}: {text}");
    }
}

/// A daemon that gives its socket to a group, as docs/uvala.toml says, calls chown.
#[test]
fn the_unit_lets_the_daemon_give_its_socket_to_a_group() {
    let unit = page("dist/uvala.service.in");
    let mut filters = unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
    let chown = |rule: &&str| ["@system-service", "~@privileged", "@chown"].contains(rule);
    // A later one adds to the earlier ones, or takes from them.
    assert_eq!(filters.rfind(chown), Some("@chown"));
    assert!(unit.contains("SupplementaryGroups=uvala"));
}

#[test]
fn the_examples_of_the_page_on_switching_work_as_they_stand() {
    let page = page("docs/switching.md");
    let blocks = blocks(&page, "uvala");
    assert!(blocks.len() > 8, "{} blocks", blocks.len());
    let (output, text) = sh(&blocks.join("\n"));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("vale5:web "), "{text}");
    assert!(text.contains("switch      vale4 (permanent)"), "{text}");
    assert!(text.contains("no_room  ") && !text.contains("uvala: error"), "{text}");
}

/// A user types what the README says, and goes on with the page, as the README tells.
#[test]
fn the_page_on_switching_goes_on_where_the_readme_ends() {
    let (readme, page) = (page("README.md"), page("docs/switching.md"));
    let first = blocks(&readme, "uvala daemon")[0];
    let rest = blocks(&page, "uvala");
    assert!(rest[0].contains("uvala daemon"), "the README's runs already: {}", rest[0]);
    let (output, text) = sh(&format!("{first}\n{}", rest[1..].join("\n")));
    assert!(output.status.success(), "{text}");
}

#[test]
fn help_says_how_new_switches_and_ports_are() {
    let daemon = Daemon::start();
    let said = |args: &[&str]| String::from_utf8(daemon.uvala(args).stdout).unwrap();
    said(&["switch", "add", "vale0"]);
    said(&["port", "add", "vale0:a"]);
    let json = |args: &[&str]| serde_json::from_str::<Value>(&said(args)).unwrap();
    let switch = json(&["switch", "show", "vale0", "--json"]);
    let port = json(&["port", "show", "vale0:a", "--json"]);
    let help = said(&["switch", "add", "--help"]);
    for (option, key) in [
        ("--forwarding", "forwarding"),
        ("--age", "age_s"),
        ("--fdb-capacity", "fdb_capacity"),
        ("--group-fwd-mask", "group_fwd_mask"),
        ("--mode", "mode"),
        ("--new-ports", "new_ports"),
    ] {
        assert_default(&help, option, &switch[key]);
    }
    let help = said(&["port", "add", "--help"]);
    let settings = port["settings"].as_object().unwrap();
    assert!(settings.len() >= 8);
    // Its owner is the user that creates it.
    for (key, value) in settings.iter().filter(|(key, _)| *key != "owner" && *key != "group") {
        assert_default(&help, &format!("--{}", key.replace('_', "-")), value);
    }
}

/// The help of an option ends with the value that new things have.
fn assert_default(help: &str, option: &str, value: &Value) {
    let start = help.find(&format!("{option} ")).or_else(|| help.find(&format!("{option}[")));
    let rest = &help[start.unwrap_or_else(|| panic!("{option}: {help}"))..];
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    // Help breaks lines where a terminal does.
    let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = rest.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
    assert_eq!(said.map(|(said, _)| said), Some(value.as_str()), "{option}: {rest}");
}

#[test]
fn the_list_of_documents_is_whole() {
    let list = page("docs/README.md");
    for folder in ["", "design", "recipes", "spec"] {
        for entry in std::fs::read_dir(root().join("docs").join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let link = format!("]({})", Path::new(folder).join(&name).display());
            let is_page = name.contains('.') && name != "README.md" && !name.ends_with(".png");
            assert!(list.contains(&link) || !is_page, "{link}");
        }
    }
}

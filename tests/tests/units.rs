//! The units of `dist/`, as systemd itself reads them.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::process::{Scratch, uvala_path};
use harness::skip;

/// Each unit as `make install` would put it there, with the program that was built; the helper's
/// stands for any that can be started.
fn installed(place: &Path) -> Vec<(&'static str, PathBuf)> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let uvala = uvala_path();
    let bin = uvala.parent().unwrap().to_str().unwrap();
    let units = [
        ("--system", "uvala.service.in", "uvala.service"),
        ("--system", "uvala-helper.socket", "uvala-helper.socket"),
        ("--system", "uvala-helper@.service.in", "uvala-helper@.service"),
        ("--system", "uvala-metrics.service.in", "uvala-metrics.service"),
        ("--system", "uvala-evpn@.service.in", "uvala-evpn@.service"),
        ("--user", "uvala.user.service.in", "user/uvala.service"),
        ("--system", "uvala-http.service.in", "uvala-http.service"),
        ("--user", "uvala-http.user.service.in", "user/uvala-http.service"),
    ];
    std::fs::create_dir(place.join("user")).unwrap();
    let fill = |(whose, from, to)| {
        let text = std::fs::read_to_string(dist.join(from)).unwrap();
        let text = text.replace("@BINDIR@", bin).replace("@SYSCONFDIR@", "/etc");
        let text = text.replace("@PREFIX@", "/usr/local");
        let text = text.replace("@LIBEXECDIR@/uvala-helper", &format!("{bin}/uvala"));
        assert!(!text.contains("DIR@"), "{from}: {text}");
        let path = place.join(to);
        std::fs::write(&path, text).unwrap();
        (whose, path)
    };
    units.map(fill).into()
}

#[test]
fn systemd_finds_nothing_to_say_of_them() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip("no systemd-analyze: apt install systemd");
    }
    let place = Scratch::new("units");
    for (whose, unit) in installed(place.path()) {
        let mut verify = Command::new("systemd-analyze");
        // Pages of the manual are installed elsewhere.
        verify.args(["verify", "--man=no", whose]).arg(&unit);
        let output = verify.env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{unit:?}: {said}");
    }
}

/// Most that `systemd-analyze security` may find of each service, in tenths.
const EXPOSURE: [(&str, &str); 7] = [
    ("uvala.service", "9"),
    ("user/uvala.service", "14"),
    ("uvala-http.service", "17"),
    ("user/uvala-http.service", "16"),
    ("uvala-metrics.service", "17"),
    ("uvala-evpn@.service", "17"),
    ("uvala-helper@.service", "26"),
];

#[test]
fn no_unit_is_more_exposed_than_it_was() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return skip("no systemd-analyze: apt install systemd");
    }
    let place = Scratch::new("units-exposure");
    let services = installed(place.path());
    let services = services.iter().filter(|(_, unit)| unit.extension().unwrap() == "service");
    for (whose, unit) in services {
        let limit = EXPOSURE.iter().find(|(name, _)| unit.ends_with(name) && is_of(whose, name));
        let (_, most) = limit.unwrap_or_else(|| panic!("{unit:?} has a limit"));
        let mut security = Command::new("systemd-analyze");
        security.args([whose, "security", "--offline=true", "--no-pager"]);
        security.arg(format!("--threshold={most}")).arg(unit);
        let output = security.env("XDG_RUNTIME_DIR", place.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("exposure level"), "{unit:?}: {said}");
    }
}

/// `ends_with` alone takes a unit of a user for the system's.
fn is_of(whose: &str, name: &str) -> bool {
    (whose == "--user") == name.starts_with("user/")
}

#[test]
fn no_unit_writes_core_dumps() {
    let place = Scratch::new("units-core");
    for (_, unit) in installed(place.path()) {
        let text = std::fs::read_to_string(&unit).unwrap();
        let is_service = unit.extension().is_some_and(|kind| kind == "service");
        let limits = text.lines().filter(|line| *line == "LimitCORE=0").count();
        assert_eq!(limits, usize::from(is_service), "{unit:?}");
    }
}

/// Without these calls a program that confines itself goes on as it was.
#[test]
fn each_unit_lets_its_program_confine_itself() {
    const CALLS: [&str; 4] =
        ["seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"];
    let place = Scratch::new("units-confinement");
    for (_, unit) in installed(place.path()) {
        let name = unit.to_string_lossy();
        // The helper is root's, and has no sandbox of its own.
        if !name.ends_with(".service") || name.contains("uvala-helper") {
            continue;
        }
        let text = std::fs::read_to_string(&unit).unwrap();
        let filters = text.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
        let allowed = filters.filter(|calls| !calls.starts_with('~'));
        let allowed: Vec<&str> = allowed.flat_map(str::split_whitespace).collect();
        assert!(CALLS.iter().all(|call| allowed.contains(call)), "{unit:?}: {allowed:?}");
    }
}

/// A tag may be another image tomorrow.
#[test]
fn images_of_others_are_named_by_their_digest() {
    let manifest = std::fs::read_to_string(harness::root().join("dist/kubernetes/uvala.yaml"));
    let manifest = manifest.expect("it is there");
    let images = manifest.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    let images: Vec<&str> = images.collect();
    let is_pinned = |image: &&str| {
        let digest = image.split_once("@sha256:").map_or("", |(_, digest)| digest);
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let (own, others): (Vec<&str>, Vec<&str>) =
        images.into_iter().partition(|image| image.starts_with("localhost/uvala:"));
    assert!(!own.is_empty() && others.iter().all(is_pinned), "{others:?}");
}

//! systemd, as the first process of namespaces of its own, with units of `dist/`.
//!
//! ```text
//!   unshare ── sh: a control group of its own ── unshare ── sh: mounts ── systemd
//! ```
//!
//! It sees the system's files and cannot change them. `/run`, `/tmp` and what else a manager writes
//! to is empty and its own, and goes with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::process::{Owned, Scratch, uvala_path};
use crate::{is_root, skip, wait};

/// Puts this process into a control group of its own, and then into namespaces. Its arguments: a
/// directory for this, and the programs' directory.
const GROUP: &str = r#"
set -e
mkdir "$1/groups"
mount -t cgroup2 groups "$1/groups"
mkdir "$1/groups/$2"
echo $$ > "$1/groups/$2/cgroup.procs"
umount "$1/groups"
exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net sh -c "$3" sh "$1" "$4"
"#;

/// Makes mounts, and becomes the manager.
const MOUNTS: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs own /run
mkdir -p /run/bin /run/units
mount --bind "$2" /run/bin
cp -r "$1/units/." /run/units
for dir in /tmp /var/tmp /var/log /var/cache /var/lib/systemd; do
    mkdir -p "$dir"
    mount -t tmpfs own "$dir"
done
mkdir -p /var/lib/private
mount -t tmpfs -o mode=0700 own /var/lib/private
mount -t tmpfs own /etc/systemd
cp -r /run/units/. /etc/systemd
mount -t proc proc /proc
mount -t tmpfs own /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
exec env -i PATH="$PATH" container=other \
    /lib/systemd/systemd --system --unit=test.target --log-target=null --show-status=no
"#;

/// Gives the control groups back. Its arguments: a directory, and the group's name.
const AFTERWARDS: &str = r#"
mount -t cgroup2 groups "$1/groups"
find "$1/groups/$2" -depth -type d -exec rmdir {} +
"#;

/// Holds for all services: they need nothing else that a system has, and their log is a file.
const ALL_SERVICES: &str = "\
[Unit]
DefaultDependencies=no
[Service]
StandardOutput=append:/run/log
StandardError=append:/run/log
";

/// A manager, which ends with this.
#[derive(Debug)]
pub struct Systemd {
    place: Scratch,
    group: String,
    outer: Owned,
    manager: u32,
}

impl Systemd {
    /// Starts it with units, by their names in `dist/` without `.in`. `None` where that is not
    /// possible, which is said.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(units: &[&str]) -> Option<Self> {
        if !is_root() {
            skip("systemd as the first process of a namespace: run this as root");
            return None;
        }
        if !Path::new("/lib/systemd/systemd").exists() {
            skip("no systemd: apt install systemd");
            return None;
        }
        let kinds = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !kinds.contains("cgroup2") {
            skip("systemd needs control groups of version 2 (cgroup2)");
            return None;
        }
        let place = Scratch::new("systemd");
        for unit in units {
            install(&place, unit);
        }
        put(&place, "system/test.target", "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n");
        put(&place, "system/service.d/test.conf", ALL_SERVICES);
        put(&place, "user/service.d/test.conf", ALL_SERVICES);
        let group = place.path().file_name().expect("a name").to_string_lossy().into_owned();
        let bin = uvala_path().parent().expect("a directory");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", GROUP, "sh"]);
        command.arg(place.path()).args([&group, MOUNTS]).arg(bin).stdin(Stdio::null());
        let outer = Owned::spawn(&mut command);
        let children = format!("/proc/{0}/task/{0}/children", outer.pid());
        let mut systemd = Self { place, group, outer, manager: 0 };
        systemd.manager = wait::find("systemd", || {
            let pid = std::fs::read_to_string(&children).ok()?.trim().parse().ok()?;
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            (name.trim() == "systemd").then_some(pid)
        });
        wait::until("systemd to answer", || {
            systemd.ask("systemctl is-active test.target") == "active"
        });
        Some(systemd)
    }

    /// Runs a program among its processes.
    ///
    /// # Panics
    /// If it cannot be run.
    #[must_use]
    pub fn run(&self, words: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.manager));
        command.args(["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--"]);
        command.args(words.split(' ')).output().expect("util-linux")
    }

    /// Runs a program that succeeds.
    ///
    /// # Panics
    /// If it does not.
    pub fn done(&self, words: &str) {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {said}\n{}", self.log());
    }

    /// What a program says.
    #[must_use]
    pub fn ask(&self, words: &str) -> String {
        String::from_utf8_lossy(&self.run(words).stdout).trim().to_owned()
    }

    /// A property of a service.
    #[must_use]
    pub fn property(&self, service: &str, name: &str) -> String {
        self.ask(&format!("systemctl show {service} --value --property={name}"))
    }

    /// What the services have logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("/run/log")).unwrap_or_default()
    }

    /// Where a file of its namespace is.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.manager))
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // The first process of the namespace takes all others along.
        self.outer.kill();
        wait::until("the end of its processes", || {
            !Path::new(&format!("/proc/{}", self.manager)).exists()
        });
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", AFTERWARDS, "sh"]).arg(self.place.path());
        let status = command.arg(&self.group).status();
        if !status.is_ok_and(|status| status.success()) {
            eprintln!("the control group {} is left", self.group);
        }
    }
}

/// Puts a unit of `dist/` where systemd finds it.
fn install(place: &Scratch, unit: &str) {
    let dist = crate::root().join("dist");
    let text = std::fs::read_to_string(dist.join(format!("{unit}.in")))
        .or_else(|_| std::fs::read_to_string(dist.join(unit)))
        .unwrap_or_else(|error| panic!("{unit}: {error}"));
    let text = text.replace("@BINDIR@", "/run/bin").replace("@LIBEXECDIR@", "/run/bin");
    let text = text.replace("@SYSCONFDIR@", "/run").replace("@PREFIX@", "/usr/local");
    let to = match unit.strip_suffix(".user.service") {
        Some(name) => format!("user/{name}.service"),
        None => format!("system/{unit}"),
    };
    put(place, &to, &text);
}

fn put(place: &Scratch, name: &str, text: &str) {
    let path = place.path().join("units").join(name);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("room");
    std::fs::write(path, text).expect("room");
}

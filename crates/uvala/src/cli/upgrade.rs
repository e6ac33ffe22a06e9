//! `uvala upgrade`: this program takes over from the daemon that runs, with what that one was
//! started with: its options, its environment, its working directory.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{fs, io, process};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Parser;
use protocol::users::user_name;
use rustix::process::geteuid;
use terminal::process::exe;

use super::{Cli, Command, Global, background};

/// Have this version of uvala take over from the daemon that runs
///
/// Starts a daemon with the options of the one that runs, in the background, and ends that one.
/// Interfaces that it has made and native clients go on, as `uvala daemon --replace` says, and what
/// it cannot take over attaches again. If the new daemon cannot start, the old one goes on. The
/// service of systemd does this at `systemctl reload uvala`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {}

/// Options that are not to be repeated.
const ONCE: [&str; 3] = ["--background", "--replace", "--forget"];

/// Starts a daemon in place of the one that runs.
pub fn run(global: &Global, _: &Args) -> anyhow::Result<()> {
    let connection = global.connect()?;
    let peer = connection.peer().context("the daemon that runs")?;
    let pid = peer.pid.context("the daemon that runs is in another PID namespace")?;
    let running = Running(pid);
    let is_reload = std::env::var("MAINPID").is_ok_and(|main| main == pid.to_string());
    if peer.uid != geteuid().as_raw() {
        let user = user_name(peer.uid);
        let otherwise = anyhow!("the daemon that runs is {user}'s: run this as {user}");
        return Err(running.reload().unwrap_or(otherwise));
    }
    let old = running.args().context("cannot see how the daemon was started")?;
    let cli = Cli::try_parse_from(&old);
    let cli =
        cli.map_err(|error| anyhow!("the daemon's options are not known any more: {error}"))?;
    let Command::Daemon(args) = cli.command else {
        bail!("process {pid} is the daemon, but was not started as `uvala daemon`");
    };
    let mut command = process::Command::new(exe()?);
    command.args(args_again(&old));
    let dir = connection.path().parent().context("the daemon's directory")?;
    let dir = std::path::absolute(dir)?;
    if is_reload {
        ensure!(std::env::var_os("NOTIFY_SOCKET").is_some(), "the unit lacks NotifyAccess=exec");
        return background::start_as_service(&command, &dir);
    }
    command.current_dir(running.dir()?).env_clear().envs(running.environment()?);
    // All of this was still that process's.
    connection.hello("uvala upgrade")?;
    background::start(command, args.log_file, true, &dir)
}

/// The arguments of the daemon that takes over.
fn args_again(old: &[OsString]) -> impl Iterator<Item = &OsStr> {
    let repeated = |arg: &&OsStr| !ONCE.iter().any(|once| arg == once);
    let words = old.iter().skip(1).map(OsString::as_os_str);
    words.filter(repeated).chain([OsStr::new("--replace")])
}

/// The process of the daemon that runs.
struct Running(u32);

impl Running {
    fn file(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    fn args(&self) -> io::Result<Vec<OsString>> {
        Ok(words(&fs::read(self.file("cmdline"))?).collect())
    }

    fn dir(&self) -> anyhow::Result<PathBuf> {
        fs::read_link(self.file("cwd")).map_err(|error| self.unseen(error))
    }

    /// The environment of a daemon that is no service.
    fn environment(&self) -> anyhow::Result<Vec<(OsString, OsString)>> {
        let text = fs::read(self.file("environ")).map_err(|error| self.unseen(error))?;
        let all: Vec<_> = words(&text).filter_map(variable).collect();
        // systemd would not take a process that it has not started for the service's.
        let is_service = all.iter().any(|(name, _)| name == "NOTIFY_SOCKET");
        match self.reload().filter(|_| is_service) {
            Some(reload) => Err(reload),
            None => Ok(all),
        }
    }

    /// A service may have a user namespace of its own, where nothing of it can be seen.
    fn unseen(&self, error: io::Error) -> anyhow::Error {
        let other = || anyhow!(error).context("cannot see how the daemon was started");
        self.reload().unwrap_or_else(other)
    }

    /// What to do instead, if it is in the control group of a service.
    fn reload(&self) -> Option<anyhow::Error> {
        let groups = fs::read_to_string(self.file("cgroup")).ok()?;
        let reload = reload(&groups)?;
        Some(anyhow!("the daemon is a service of systemd; run `{reload}`"))
    }
}

/// The command that reloads the unit of a process in these control groups.
fn reload(groups: &str) -> Option<String> {
    let names = || groups.lines().flat_map(|line| line.rsplit('/'));
    let is_manager = |name: &&str| name.starts_with("user@");
    let unit = names().find(|name| name.ends_with(".service") && !is_manager(name))?;
    let user = if names().any(|name| is_manager(&name)) { "--user " } else { "" };
    Some(format!("systemctl {user}reload {unit}"))
}

/// A variable of an environment: `NAME=VALUE`.
fn variable(text: OsString) -> Option<(OsString, OsString)> {
    let bytes = text.as_bytes();
    let (name, value) = bytes.split_at(bytes.iter().position(|&byte| byte == b'=')?);
    Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(&value[1..]).to_owned()))
}

fn words(text: &[u8]) -> impl Iterator<Item = OsString> + '_ {
    let ended = text.strip_suffix(b"\0").unwrap_or(text);
    ended.split(|&byte| byte == 0).map(|word| OsStr::from_bytes(word).to_owned())
}

const EXAMPLES: &str = "\
Examples:
  uvala upgrade                       after a new version was installed
  uvala --dir /tmp/lab upgrade        the daemon of this directory
  systemctl reload uvala              where systemd runs the daemon";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_options_are_repeated_but_those_that_are_for_once() {
        let old = "/old/uvala daemon --forget --dir /d --background --log-file l".split(' ');
        let old: Vec<_> = old.map(OsString::from).collect();
        let again: Vec<_> = args_again(&old).collect();
        assert_eq!(again, ["daemon", "--dir", "/d", "--log-file", "l", "--replace"]);
    }

    #[test]
    fn test_the_unit_of_a_process_is_reloaded() {
        let reload = |groups: &str| reload(groups).unwrap_or_default();
        let user = "0::/user.slice/user-7.slice/user@7.service/app.slice/lab.service\n";
        assert_eq!(reload(user), "systemctl --user reload lab.service");
        let system = "1:name=systemd:/system.slice/uvala.service\n0::/\n";
        assert_eq!(reload(system), "systemctl reload uvala.service");
        for scope in ["session-1.scope", "user@7.service/app.slice/a.scope"] {
            assert_eq!(reload(&format!("0::/user.slice/user-7.slice/{scope}\n")), "");
        }
    }

    #[test]
    fn test_words_may_be_empty() {
        assert_eq!(words(b"a\0\0b\0").collect::<Vec<_>>(), ["a", "", "b"]);
    }
}

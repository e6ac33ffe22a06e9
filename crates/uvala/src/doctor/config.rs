//! Checks a configuration, as far as this host can say without a daemon.

use std::path::Path;
use std::{fs, io};

use daemon::config::{Config, ConfigError};
use hostif::{HostError, namespace};
use protocol::{HostIf, Machine, PortKind};
use rustix::thread::{CpuSet, sched_getaffinity};
use terminal::shell::quoted;

use super::{Finding, note, problem};

/// Names what is wrong with the file, and what the daemon and its ports will miss on this host.
pub fn configuration(file: &Path) -> Vec<Finding> {
    let config = match Config::load(file) {
        Ok(config) => config,
        Err(error) => return vec![refused(&error)],
    };
    let mut findings: Vec<_> = cpus(&config).into_iter().collect();
    findings.extend(config.helper.as_deref().and_then(helper));
    findings.extend(config.vm_sockets.iter().filter_map(|dir| vm_sockets(dir)));
    for port in config.switches.iter().flat_map(|plan| &plan.ports) {
        let name = port.name.to_string();
        let host = port.host.as_ref();
        findings.extend(host.and_then(|host| interface(&name, port.name.port(), port.kind, host)));
        findings.extend(port.machine.as_ref().and_then(|machine| socket(&name, machine)));
    }
    findings
}

/// Why there is no configuration. Errors begin with what they are about.
fn refused(error: &ConfigError) -> Finding {
    let cure = match error {
        ConfigError::Read { error, .. } if error.kind() == io::ErrorKind::NotFound => {
            "name a file that exists: docs/uvala.toml shows all of one"
        }
        ConfigError::Read { error, .. } if error.kind() == io::ErrorKind::InvalidData => {
            "name a configuration file, which is text"
        }
        ConfigError::Read { .. } => "name a file that this user may read",
        ConfigError::Parse { .. } => "correct the file: man uvala.toml has every key",
    };
    let what = error.to_string();
    problem("config", what.strip_prefix("config ").unwrap_or(&what), cure)
}

fn cpus(config: &Config) -> Option<Finding> {
    let ours = sched_getaffinity(None).ok()?;
    let is_missing = |cpu: &&u32| {
        let cpu = usize::try_from(**cpu).unwrap_or(usize::MAX);
        cpu >= CpuSet::MAX_CPU || !ours.is_set(cpu)
    };
    let cpu = config.workers.cpus.iter().find(is_missing)?;
    let what = format!("workers.cpus names CPU {cpu}, on which no process may run here");
    Some(problem("config", what, "name CPUs of /sys/devices/system/cpu/online, or none"))
}

fn helper(path: &Path) -> Option<Finding> {
    let what = format!("helper {} does not exist", path.display());
    let cure = "install uvala-helper, or start uvala-helper.socket; without a helper, ports for \
                interfaces need a daemon with capabilities";
    (!path.exists()).then(|| problem("config", what, cure))
}

fn vm_sockets(dir: &Path) -> Option<Finding> {
    let what = format!("vm_sockets has {}, which is no directory", dir.display());
    let path = quoted(&dir.to_string_lossy());
    let cure = format!("mkdir -p {path}, before the daemon starts: it is confined then");
    (!dir.is_dir()).then(|| problem("config", what, cure))
}

/// A namespace or an interface that is not there. A TAP the daemon creates itself.
fn interface(name: &str, own: &str, kind: PortKind, host: &HostIf) -> Option<Finding> {
    if let Some(netns) = &host.netns {
        return namespace(name, netns);
    }
    let ifname = host.ifname.as_deref().unwrap_or(own);
    let is_missing = fs::metadata(format!("/sys/class/net/{ifname}")).is_err();
    let what = format!("there is no interface {ifname}");
    let cure = "see: ip link; the port carries frames when there is one";
    (is_missing && kind != PortKind::Tap).then(|| note(name, what, cure))
}

/// A namespace that is not there. What this user may not open is there.
fn namespace(name: &str, netns: &str) -> Option<Finding> {
    let (what, cure) = match namespace::open(netns).err()? {
        HostError::NoNamespace(_) => (
            format!("there is no network namespace {netns}"),
            format!("ip netns add {}; the port carries frames from then on", quoted(netns)),
        ),
        HostError::NoNamespaceAt(path) => (
            format!("there is no network namespace at {path}"),
            "correct the path, or create the namespace before the daemon starts".to_owned(),
        ),
        HostError::NoProcess(_) => (
            format!("there is no process {netns}, which it names for its network namespace"),
            "name a process that runs, or the namespace by a path".to_owned(),
        ),
        _ => return None,
    };
    Some(note(name, what, cure))
}

fn socket(name: &str, machine: &Machine) -> Option<Finding> {
    let path = Path::new(machine.socket.as_ref()?);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty())?;
    let what = format!("there is no directory for socket {}", path.display());
    let cure = format!("mkdir -p {}", quoted(&dir.to_string_lossy()));
    (!dir.is_dir()).then(|| problem(name, what, cure))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let line = |found: Finding| format!("{}: {} ({})", found.about, found.what, found.cure);
        configuration(file.path()).into_iter().map(line).collect()
    }

    #[test]
    fn test_a_file_that_can_be_used_is_not_complained_about() {
        assert_eq!(check("[switch.vale0.port.a]\n"), [""; 0]);
        assert_eq!(check("[switch.vale0.port.a]\nkind = \"tap\"\n"), [""; 0]);
        assert_eq!(check("[switch.vale0.port.a]\nkind = \"packet\"\nifname = \"lo\"\n"), [""; 0]);
    }

    #[test]
    fn test_each_fault_is_named_with_its_cure() {
        for (text, wanted) in [
            ("switsh = 1\n", "unknown key"),
            ("[workers]\ncpus = [1023]\n", "names CPU 1023"),
            ("helper = \"/no/such/helper\"\n", "helper /no/such/helper does not exist"),
            ("vm_sockets = [\"/no/such/dir\"]\n", "mkdir -p /no/such/dir"),
            (
                "[switch.vale0.port.a]\nkind = \"packet\"\nifname = \"nosuch0\"\n",
                "vale0:a: there is no interface nosuch0",
            ),
            (
                "[switch.vale0.port.a]\nkind = \"tap\"\nnetns = \"nosuchns\"\n",
                "vale0:a: there is no network namespace nosuchns",
            ),
            (
                "[switch.vale0.port.a]\nkind = \"tap\"\nnetns = \"/run/netns/nosuchns\"\n",
                "vale0:a: there is no network namespace at /run/netns/nosuchns (correct the path",
            ),
            (
                "[switch.vale0.port.a]\nkind = \"tap\"\nnetns = \"/etc/passwd\"\n",
                "vale0:a: there is no network namespace at /etc/passwd",
            ),
            (
                "[switch.vale0.port.a]\nkind = \"tap\"\nnetns = \"4294967295\"\n",
                "vale0:a: there is no process 4294967295",
            ),
            (
                "[switch.vale0.port.a]\nkind = \"vhost-user\"\nsocket = \"/no/dir/s.sock\"\n",
                "vale0:a: there is no directory for socket /no/dir/s.sock",
            ),
        ] {
            let found = check(text);
            assert!(found.len() == 1 && found[0].contains(wanted), "{text}: {found:?}");
        }
    }

    #[test]
    fn test_a_file_that_cannot_be_read_is_named_once_with_another_cure() {
        for (path, wanted) in
            [("/no/such.toml", "/no/such.toml: No such file or directory"), ("/", "/: ")]
        {
            let found = configuration(Path::new(path)).remove(0);
            assert!(found.about == "config" && found.what.starts_with(wanted), "{found:?}");
            assert!(!found.cure.contains("correct"), "{found:?}");
        }
    }
}

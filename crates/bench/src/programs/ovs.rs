//! Open vSwitch with its data path in user space: a database and a daemon of our own, in a
//! directory of their own; whatever of it the system runs is left alone.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::dpdk::Pages;
use super::{Killed, Scratch, await_file, find};
use crate::work::Work;

/// Megabytes of the daemon with DPDK.
pub const MEGABYTES: u32 = 512;
/// How long it may take to start.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Where Debian has the schema.
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// A running Open vSwitch.
pub struct Ovs {
    // In this order: the daemon before its database, both before their directory.
    daemon: Option<Killed>,
    _database: Killed,
    scratch: Scratch,
}

impl Ovs {
    /// Starts the database.
    pub fn new() -> Result<Ovs> {
        let package = "openvswitch-switch-dpdk";
        let scratch = Scratch::new("ovs")?;
        let tool = find("ovsdb-tool", package)?;
        let mut create = Command::new(tool);
        create.arg("create").arg(scratch.path("conf.db")).arg(SCHEMA);
        let created = create.output().context("cannot run ovsdb-tool")?;
        if !created.status.success() {
            bail!("ovsdb-tool: {}", String::from_utf8_lossy(&created.stderr).trim());
        }
        let mut server = Command::new(find("ovsdb-server", package)?);
        server.arg(scratch.path("conf.db")).arg(format!("--remote=punix:{}", socket(&scratch)));
        let database = Killed(start(&mut server, scratch.dir())?);
        await_file(&socket(&scratch))?;
        let ovs = Ovs { daemon: None, _database: database, scratch };
        ovs.tell(&["--no-wait", "init"])?;
        Ok(ovs)
    }

    /// A file in its directory.
    pub fn path(&self, name: &str) -> String {
        self.scratch.path(name)
    }

    /// Configures DPDK: the polling thread has one core, everything else the other.
    pub fn use_dpdk(&self, pages: &Pages, work: &Work) -> Result<()> {
        let set = |key: &str, value: String| {
            let value = format!("other_config:{key}={value}");
            self.tell(&["--no-wait", "set", "Open_vSwitch", ".", &value])
        };
        let mask = |cpu: usize| format!("{:#x}", 1_u64 << cpu);
        let mut extra = pages.options(MEGABYTES);
        extra.push(format!("--file-prefix=uvala-ovs-{} --no-pci", std::process::id()));
        set("dpdk-extra", format!("\"{}\"", extra.join(" ")))?;
        set("dpdk-lcore-mask", mask(work.placement.sender))?;
        set("pmd-cpu-mask", mask(work.placement.switch))?;
        set("dpdk-init", "true".into())
    }

    /// Starts the daemon.
    pub fn run(&mut self, program: &Path) -> Result<()> {
        let mut daemon = Command::new(program);
        daemon.arg(format!("unix:{}", socket(&self.scratch)));
        self.daemon = Some(Killed(start(&mut daemon, self.scratch.dir())?));
        Ok(())
    }

    /// A bridge whose data path is in user space.
    pub fn add_bridge(&self) -> Result<()> {
        self.tell(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])
    }

    /// Gives a command to the database, and waits until the daemon has done it.
    pub fn tell(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new(find("ovs-vsctl", "openvswitch-switch-dpdk")?);
        command.arg(format!("--db=unix:{}", socket(&self.scratch)));
        command.arg(format!("--timeout={}", PATIENCE.as_secs())).args(arguments);
        let output = environment(&mut command, self.scratch.dir()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let log = std::fs::read_to_string(self.scratch.path("log")).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let last = log.lines().rev().find(|line| line.contains("ERR")).unwrap_or_default();
        bail!("ovs-vsctl {}: {said} {last}", arguments.join(" "))
    }
}

fn socket(scratch: &Scratch) -> String {
    scratch.path("db.sock")
}

/// Everything that it would put into the system's directories goes to ours.
fn environment<'a>(command: &'a mut Command, dir: &Path) -> &'a mut Command {
    for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(name, dir);
    }
    command.stdin(Stdio::null())
}

fn start(command: &mut Command, dir: &Path) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"))?;
    environment(command, dir).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))
}

//! Machines of Proxmox VE: its hookscript, called as Proxmox documents it, with a daemon and QEMU.

use std::process::{Command, Output, Stdio};

use harness::daemon::Daemon;
use harness::process::{Owned, Scratch, uvala_path};
use harness::{root, skip, wait};
use protocol::MachineState;

const VMID: &str = "100";

/// What Proxmox keeps of a machine, and where the hook notes what it has added.
struct Node {
    place: Scratch,
    daemon: Daemon,
}

impl Node {
    fn new() -> Self {
        let node = Self { place: Scratch::new("proxmox"), daemon: Daemon::start() };
        std::fs::create_dir(node.place.path().join("qemu-server")).unwrap();
        node
    }

    /// A shell that finds this build of `uvala` and the daemon.
    fn shell(&self, lines: &str) -> Output {
        let bin = uvala_path().parent().unwrap().to_path_buf();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-ec", lines]).current_dir(self.place.path()).env("PATH", path);
        shell.env("UVALA_DIR", self.daemon.dir()).env("PVE_DIR", self.place.path());
        shell.env("UVALA_HOOK_DIR", self.place.path().join("added"));
        shell.stdin(Stdio::null()).output().unwrap()
    }

    fn run(&self, lines: &str) -> String {
        let output = self.shell(lines);
        assert!(output.status.success(), "{lines}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn hook(&self, phase: &str) -> Output {
        let script = root().join("dist/proxmox/uvala-hook");
        self.shell(&format!("{} {VMID} {phase}", script.display()))
    }

    /// A configuration with these `args`, and a snapshot from the time of other ones.
    fn configure(&self, args: &str) {
        let text = format!(
            "agent: 1\nargs: {args}\nmemory: 256\nname: web\n\n[before]\nargs: -chardev \
             socket,id=c,path=/run/uvala/vale0:old.sock\nmemory: 256\n"
        );
        let path = self.place.path().join("qemu-server").join(format!("{VMID}.conf"));
        std::fs::write(path, text).unwrap();
    }
}

/// The lines of the page that are uvala's: they leave `$args`.
fn lines() -> String {
    let page = std::fs::read_to_string(root().join("docs/recipes/proxmox.md")).unwrap();
    let block = page.split("```sh\n").nth(1).and_then(|rest| rest.split("\n```").next());
    block.unwrap().replace("2G", "256M")
}

fn has_qemu() -> bool {
    let found = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    if !found {
        skip("no qemu-system-x86_64: run .ci/guests as root");
    }
    found
}

#[test]
fn the_port_of_a_machine_comes_before_it_and_goes_with_it() {
    if !has_qemu() {
        return;
    }
    let node = Node::new();
    let args = node.run(&format!("{}\necho \"$args\"", lines()));
    node.configure(args.trim());
    assert!(node.daemon.port("vale0:vm100").is_none());
    for _ in 0..2 {
        let started = node.hook("pre-start");
        assert!(started.status.success(), "{started:?}");
        let state = || node.daemon.port("vale0:vm100")?.machine.map(|machine| machine.state);
        assert_eq!(state(), Some(MachineState::Waiting));
        assert!(node.daemon.port("vale0:old").is_none(), "of a snapshot");
        // As Proxmox does: its own options, and those of `args` behind.
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args("-accel tcg -nodefaults -display none -m 256".split(' '));
        qemu.args(args.split_whitespace()).stdin(Stdio::null());
        let mut machine = Owned::spawn(&mut qemu);
        wait::until("a machine", || state() != Some(MachineState::Waiting) || machine.has_ended());
        assert!(!machine.has_ended() && node.hook("post-start").status.success());
        assert!(node.hook("pre-stop").status.success());
        drop(machine);
        let ended = node.hook("post-stop");
        assert!(ended.status.success(), "{ended:?}");
        assert!(node.daemon.port("vale0:vm100").is_none());
        assert!(node.hook("post-stop").status.success(), "it may be called twice");
    }
}

#[test]
fn a_port_that_is_there_stays_as_it_is() {
    let node = Node::new();
    let socket = |name| format!("-chardev socket,id={name},path=/run/uvala/vale0:{name}.sock ");
    node.configure(&format!("{}-numa node {}", socket("mine"), socket("its")));
    node.run("uvala port add vale0:mine --kind vhost-user --vlan access:5");
    assert!(node.hook("pre-start").status.success());
    assert!(node.daemon.port("vale0:its").is_some());
    assert!(node.hook("post-stop").status.success());
    assert!(node.daemon.port("vale0:its").is_none());
    let shown = node.run("uvala port show vale0:mine");
    assert!(shown.contains("access:5"), "{shown}");
}

#[test]
fn a_machine_does_not_start_without_its_port_and_the_log_says_why() {
    let node = Node::new();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    node.configure("-cpu host");
    let output = node.hook("pre-start");
    assert!(!output.status.success() && said(&output).contains("see: uvala vm-args"), "{output:?}");
    let output = node.hook("pre-sale");
    assert!(!output.status.success() && said(&output).contains("expected VMID"), "{output:?}");
    node.configure("-chardev socket,id=c,path=/run/uvala/vale0:vm100.sock");
    node.daemon.terminate();
    let output = node.hook("pre-start");
    assert!(!output.status.success() && said(&output).contains("daemon"), "{output:?}");
    assert!(!node.place.path().join("added").join(VMID).exists());
}

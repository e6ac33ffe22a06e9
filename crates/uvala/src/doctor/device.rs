//! Checks of emulated network cards: VMMs that reach one by vfio-user.

use std::path::Path;

use protocol::name::PortName;
use serde::Deserialize;
use terminal::shell::quoted;

use super::facts::Vmm;
use super::{Finding, machine, problem, vmm};

/// The state of a connected socket in `/proc/net/unix`.
const CONNECTED: &str = "03";

/// QEMU's `-device` in JSON, as far as it concerns us.
#[derive(Deserialize)]
struct Device {
    driver: String,
    socket: Option<Socket>,
}

#[derive(Deserialize)]
struct Socket {
    path: String,
}

/// Cards without a process, and memory that no process can see. `unix` is `/proc/net/unix`;
/// `is_ours` says whether a socket is one of the daemon's, by its path and the port of its name.
pub fn check(
    vmms: &[Vmm],
    unix: &str,
    is_ours: impl Fn(&Path, Option<PortName>) -> bool,
) -> Vec<Finding> {
    let cards = vmms.iter().flat_map(|vmm| sockets(&vmm.words).map(move |path| (vmm, path)));
    let is_ours = |path: &str| {
        let path = Path::new(path);
        is_ours(path, path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()))
    };
    let ours = cards.filter(|(_, path)| is_ours(path));
    ours.filter_map(|(vmm, path)| card(vmm, &path, unix)).collect()
}

/// The sockets of a machine's cards.
fn sockets(words: &[String]) -> impl Iterator<Item = String> {
    let devices = vmm::options(words, "device");
    let parsed = devices.filter_map(|word| serde_json::from_str::<Device>(word).ok());
    let ours = parsed.filter(|device| device.driver == "vfio-user-pci");
    ours.filter_map(|device| Some(device.socket?.path))
}

fn card(vmm: &Vmm, path: &str, unix: &str) -> Option<Finding> {
    let stem = Path::new(path).file_stem().unwrap_or_default().to_string_lossy();
    let socket = quoted(path);
    let name = stem.parse::<PortName>().map_or_else(|_| socket.clone(), |port| port.to_string());
    let ends = unix.lines().filter(|line| line.ends_with(&format!(" {path}")));
    let states: Vec<&str> = ends.filter_map(|line| line.split_whitespace().nth(5)).collect();
    if states.is_empty() {
        let what = format!("process {} has a card at {socket}, where no process listens", vmm.pid);
        let cure = format!(
            "start uvala-device --nic e1000 --port PORT --socket {socket}, and then the machine \
             again: QEMU does not connect twice"
        );
        return Some(problem(&name, what, cure));
    }
    if !states.contains(&CONNECTED) {
        let what = format!("process {} has a card at {socket}, and is not connected", vmm.pid);
        let cure = "start the machine again: QEMU does not connect to a uvala-device twice";
        return Some(problem(&name, what, cure));
    }
    machine::unshared(&name, &vmm.words)
}

#[cfg(test)]
mod tests {
    use super::super::facts::Person;
    use super::*;

    fn qemu(memory: &str) -> Vec<Vmm> {
        let device = r#"{"driver":"vfio-user-pci","socket":{"path":"/r/vale0:a.vfio"}}"#;
        let more = ["-device", "e1000,netdev=n", "-device", "{", "-device", device];
        let words = ["qemu"].into_iter().chain(memory.split(' ')).chain(more);
        let words = words.map(str::to_owned).collect();
        let user = Person { name: "a".to_owned(), uid: 1, gids: vec![1], group: None };
        vec![Vmm { pid: 7, words, user }]
    }

    const SHARED: &str = "-object memory-backend-memfd,id=m,size=1G,share=on -numa node,memdev=m";
    const LISTENER: &str = "0: 00000002 00000000 00010000 0001 01 123 /r/vale0:a.vfio\n";
    const UNIX: &str = "0: 00000002 00000000 00010000 0001 01 123 /r/vale0:a.vfio\n\
                        1: 00000003 00000000 00000000 0001 03 124 /r/vale0:a.vfio\n";

    fn found(vmms: &[Vmm], unix: &str) -> Vec<Finding> {
        check(vmms, unix, |_, _| true)
    }

    #[test]
    fn test_a_card_of_another_daemon_is_left_to_that() {
        let others = |_: &Path, name: Option<PortName>| name.is_none();
        assert_eq!(check(&qemu(SHARED), "", others), []);
    }

    #[test]
    fn test_a_card_without_a_process_and_one_without_memory_are_problems() {
        assert_eq!(found(&qemu(SHARED), UNIX), []);
        let [missing] = &found(&qemu(SHARED), "")[..] else { panic!("one") };
        assert_eq!(missing.about, "vale0:a");
        assert!(missing.what.contains("process 7") && missing.cure.contains("--socket /r/vale0:a"));
        let [dead] = &found(&qemu(SHARED), LISTENER)[..] else { panic!("one") };
        assert!(dead.what.contains("not connected"), "{}", dead.what);
        let [closed] = &found(&qemu("-m 1G"), UNIX)[..] else { panic!("one") };
        assert!(closed.what.contains("not shared"), "{}", closed.what);
    }

    #[test]
    fn test_the_path_of_a_hostile_command_line_is_a_word_for_a_shell() {
        let device = r#"{"driver":"vfio-user-pci","socket":{"path":"/x\u001b[2J;reboot #.vfio"}}"#;
        let mut hostile = qemu(SHARED);
        hostile[0].words.extend(["-device", device].map(str::to_owned));
        let [found] = &found(&hostile, UNIX)[..] else { panic!("one") };
        let word = r"'/x\u{1b}[2J;reboot #.vfio'";
        assert_eq!(found.about, word);
        assert!(found.what.contains(&format!("a card at {word}, where")), "{}", found.what);
        assert!(found.cure.contains(&format!("--socket {word}, and")), "{}", found.cure);
    }
}

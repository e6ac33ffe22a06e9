//! The pages of docs/recipes, pasted.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use harness::daemon::Daemon;
use harness::lab::{self, Lab};
use harness::net::{Namespace, ip};
use harness::process::{Owned, Scratch, uvala_path};
use harness::{is_root, root, skip, wait};
use packet::build::{ethernet, ipv4, udp};
use packet::{EtherType, MacAddr};

/// The shell blocks of a page, in their order.
fn blocks(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join("docs/recipes").join(page)).unwrap();
    let fenced = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    fenced.map(str::to_owned).collect()
}

fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| {
        !Command::new("sh")
            .args(["-c", &format!("command -v {name}")])
            .output()
            .unwrap()
            .status
            .success()
    });
    if let Some(name) = missing {
        skip(&format!("no {name}: run .ci/prepare as root"));
    }
    missing.is_none()
}

/// A shell in a place, with this build of `uvala`, whose daemon is the one in `dir`.
fn shell(place: &Path, dir: &Path) -> Command {
    let bin = uvala_path().parent().unwrap().to_path_buf();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.arg("-ec").current_dir(place).env("PATH", path).env("UVALA_DIR", dir);
    command
}

fn good(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

/// What a user without rights types. Users of their own are needed for that, so the files of users
/// are others here, and so is the kind of control groups.
const ROOTLESS: &str = r#"
    user=54321 home=$PLACE/home
    mkdir -p $home $PLACE/run && chmod 700 $PLACE/run && chown $user:$user $home $PLACE/run
    for file in passwd group subuid subgid; do
        cp /etc/$file $PLACE/$file 2>/dev/null || touch $PLACE/$file
    done
    echo "recipe:x:$user:$user::$home:/bin/sh" >> $PLACE/passwd
    echo "recipe:x:$user:" >> $PLACE/group
    echo "recipe:200000:65536" | tee -a $PLACE/subuid >> $PLACE/subgid
    for file in passwd group subuid subgid; do
        touch /etc/$file && mount --bind $PLACE/$file /etc/$file
    done
    printf '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\n' > $PLACE/containers.conf
    # The image that the page names, of what there is here.
    mkdir -p $PLACE/image/bin $PLACE/image/tmp && cp "$(command -v busybox)" $PLACE/image/bin/
    for name in sh httpd wget sleep cat; do ln -s busybox $PLACE/image/bin/$name; done
    tar -c -f $PLACE/image.tar -C $PLACE/image .
    exec setpriv --reuid=$user --regid=$user --clear-groups env HOME=$home USER=recipe \
        XDG_RUNTIME_DIR=$PLACE/run CONTAINERS_CONF=$PLACE/containers.conf sh -ec "$LINES"
"#;

#[test]
fn containers_of_an_ordinary_user_reach_each_other() {
    if !is_root() {
        return skip("needs root, to become another user");
    }
    if !has(&["podman", "runc", "newuidmap", "busybox"]) {
        return;
    }
    let place = Scratch::new("podman");
    let [daemon, containers, _, clean] = &blocks("podman.md")[..] else { panic!("four blocks") };
    let end = "trap 'podman rm -f -t 0 -a; kill $(cat $UVALA_DIR/uvala.lock)' EXIT";
    let lines = format!(
        "cd; podman import -q - docker.io/library/busybox < $PLACE/image.tar\n\
         {daemon}\n{end}\n{containers}\n{clean}\nuvala port list"
    );
    // Its programs, for a user that may not read this one's directory.
    let bin = place.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::copy(uvala_path(), bin.join("uvala")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", ROOTLESS]).current_dir("/");
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    command.env("PLACE", place.path()).env("LINES", lines).stdin(Stdio::null());
    let text = good(&command.output().unwrap());
    assert!(text.contains("\nhello\n"), "{text}");
    assert!(!text.contains("vale0:web"), "it is cleaned up: {text}");
}

#[test]
fn a_capture_is_replayed_into_a_switch() {
    if !has(&["tcpreplay"]) {
        return;
    }
    let Some(lab) = Lab::new(0) else { return };
    lab.tell(|daemon, _| {
        let place = Scratch::new("tcpreplay");
        std::fs::write(place.path().join("web.pcap"), ten_frames()).unwrap();
        let [lines] = &blocks("tcpreplay.md")[..] else { panic!("one block") };
        good(&shell(place.path(), &daemon.dir()).arg(lines).output().unwrap());
        let seen = std::fs::read(place.path().join("seen.pcapng")).unwrap();
        let count = seen.windows(6).filter(|bytes| *bytes == b"frame ").count();
        assert_eq!(count, 10);
    });
}

/// A datagram to a port.
fn datagram(port: u16, text: &str) -> Vec<u8> {
    let datagram = udp(9, port, text.as_bytes());
    let ips = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    let (to, from) = (MacAddr::new([2, 0, 0, 0, 0, 2]), MacAddr::new([2, 0, 0, 0, 0, 1]));
    ethernet(to, from, EtherType::IPV4.0, &ipv4(17, ips[0], ips[1], &datagram))
}

/// A capture file with ten datagrams to port 9.
fn ten_frames() -> Vec<u8> {
    let head = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file[4..8].copy_from_slice(&[2, 0, 4, 0]);
    for number in 0..10 {
        let frame = datagram(9, &format!("frame {number:20}"));
        let len = u32::try_from(frame.len()).unwrap();
        file.extend([0, number, len, len].iter().flat_map(|word| word.to_ne_bytes()));
        file.extend(frame);
    }
    file
}

/// A Suricata that went to the background, which ends with this.
struct Background(PathBuf);

impl Drop for Background {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.0).unwrap_or_default();
        drop(Command::new("kill").arg(pid.trim()).stderr(Stdio::null()).status());
    }
}

#[test]
fn suricata_sees_all_at_a_mirror_port_and_drops_what_a_rule_names_between_two_switches() {
    if !has(&["suricata"]) {
        return;
    }
    let Some(lab) = Lab::new(0) else { return };
    let [ids, end, ips] = &blocks("suricata.md")[..] else { panic!("three blocks") };
    lab.tell(|daemon, _| {
        let place = Scratch::new("suricata");
        let shell = || shell(place.path(), &daemon.dir());
        let run = |lines: &str| good(&shell().arg(lines).output().unwrap());
        let log = |file: &str| std::fs::read_to_string(place.path().join(file)).unwrap_or_default();
        let [mut web, mut db] = ["vale0:web", "vale0:db"].map(|name| daemon.open(name));
        let _ends = ["ids/pid", "ips/pid"].map(|pid| Background(place.path().join(pid)));
        run(ids);
        for port in [9, 10, 9] {
            web.send(&datagram(port, "a secret")).unwrap();
        }
        db.send(&datagram(9, "another secret")).unwrap();
        wait::until("alerts", || log("ids/fast.log").matches("discard").count() == 3);
        run(end);
        wait::until("its end", || !place.path().join("ids/pid").exists());
        run(ips);
        drop(db);
        let mut db = daemon.open("vale1:db");
        for number in 0..50 {
            web.send(&datagram(9 + number % 2, &format!("secret {number}"))).unwrap();
        }
        // The kernel says something by its interfaces, too.
        let is_ours = |frame: &[u8]| frame[6..12] == [2, 0, 0, 0, 0, 1];
        let (mut frame, mut passed) = (Vec::new(), Vec::new());
        while passed.len() < 25 {
            assert!(db.recv_timeout(&mut frame, Some(wait::PATIENCE)).unwrap(), "{passed:?}");
            passed.extend(is_ours(&frame).then(|| frame.clone()));
        }
        let sent = (1..50).step_by(2).map(|number| datagram(10, &format!("secret {number}")));
        assert_eq!(passed, sent.collect::<Vec<_>>());
        wait::until("drops", || log("ips/fast.log").matches("[Drop]").count() == 25);
        db.send(&datagram(10, "an answer")).unwrap();
        wait::until("an answer", || {
            web.try_recv(&mut frame).unwrap() && frame == datagram(10, "an answer")
        });
    });
}

/// A host with a switch, and a tunnel's other end where the kernel has none.
struct Host<'a> {
    namespace: &'a Namespace,
    daemon: Daemon,
    place: Scratch,
    tunnel: Owned,
}

impl<'a> Host<'a> {
    /// As far as the keys.
    fn new(namespace: &'a Namespace, keys: &str) -> Self {
        namespace.visit(|| {
            let place = Scratch::new("wireguard");
            let daemon = Daemon::start();
            // wg finds the process by its socket below /run/wireguard, one for each host.
            let run = "mkdir -p /run/wireguard && mount -t tmpfs tunnel /run/wireguard && exec \
                       wireguard-go -f wg0";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-ec", run]).stdout(Stdio::null());
            let tunnel = Owned::spawn(command.stderr(Stdio::null()));
            let host = Self { namespace, daemon, place, tunnel };
            wait::until("a tunnel", || harness::net::is_there("wg0"));
            host.run(keys);
            host
        })
    }

    /// Runs lines of the page, but for the one that asks the kernel for a tunnel.
    fn run(&self, lines: &str) -> String {
        let kernel = |line: &&str| !line.starts_with("ip link add wg0");
        let lines = lines.lines().filter(kernel).collect::<Vec<_>>().join("\n");
        self.namespace.within(|| {
            let shell = shell(self.place.path(), &self.daemon.dir());
            let mut enter = Command::new("nsenter");
            enter.arg("--mount").args(["--target", &self.tunnel.pid().to_string()]);
            enter.arg(format!("--wd={}", self.place.path().display())).arg(shell.get_program());
            enter.args(shell.get_args()).arg(&lines);
            for (key, value) in shell.get_envs() {
                enter.env(key, value.unwrap());
            }
            good(&enter.output().unwrap())
        })
    }
}

#[test]
fn two_hosts_are_one_network_through_wireguard() {
    if !has(&["wg", "wireguard-go", "ping"]) {
        return;
    }
    let Some(lab) = Lab::new(1) else { return };
    let there = &lab.guests[0];
    let [keys, first, second] = &blocks("wireguard.md")[..] else { panic!("three blocks") };
    lab.home.within(|| {
        lab::veth(there, "under", "192.0.2.2/24", "");
        ip("addr add 192.0.2.1/24 dev under");
    });
    std::thread::scope(|scope| {
        // The processes of a host live as long as the thread that started them.
        scope.spawn(|| {
            let hosts = [Host::new(&lab.home, keys), Host::new(there, keys)];
            for (from, to) in [(0, 1), (1, 0)] {
                let [from, to] = [from, to].map(|at: usize| hosts[at].place.path());
                std::fs::copy(from.join("wg.pub"), to.join("peer.pub")).unwrap();
            }
            hosts[0].run(first);
            hosts[1].run(second);
            let ping = |bytes: usize, seconds: u8| {
                format!("ping -q -c 1 -W {seconds} -M do -s {bytes} 192.168.7.2")
            };
            hosts[0].run(&ping(1342, 10));
            let shown = hosts[0].run("uvala port show vale0:fabric");
            assert!(shown.contains("inner mtu") && shown.contains("1370"), "{shown}");
            let refused = hosts[0].run(&format!("! {}", ping(1343, 1)));
            assert!(refused.contains(" 0 received"), "{refused}");
            // What the underlay carries is the tunnel's.
            let carried = hosts[0].run("wg show wg0 transfer");
            let bytes: Vec<u64> =
                carried.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            assert!(bytes.iter().all(|bytes| *bytes > 1342), "{carried}");
        });
    });
}

#[test]
fn machines_of_the_laptop_start_as_its_page_says() {
    let [machines, _] = &blocks("laptop.md")[..] else { panic!("two blocks") };
    let line = "uvala vm run /boot/vmlinuz-$(uname -r) --internet";
    // internet.rs runs it, with the kernel that it has.
    assert_eq!(machines.lines().collect::<Vec<_>>(), ["uvala daemon --background", line, line]);
}

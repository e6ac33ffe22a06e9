//! Functions of a chain: the README's firewall and router, and what `uvala apply` makes.

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use harness::chain::{configuration, function, functions};
use harness::daemon::{Daemon, Setup};
use harness::lab::Lab;
use harness::net::{tcp, udp};
use harness::process::{Owned, Scratch, USER, uvala, uvala_path};
use harness::role::Become;
use harness::{is_root, root, skip, wait};

/// The lines of the README's section: the commands, and those that a non-root user types before.
fn blocks() -> [String; 2] {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = page.split_once("### Network functions\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let blocks = section.split("```text\n").skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.map(str::to_owned).collect::<Vec<_>>().try_into().expect("two blocks")
}

/// The four commands among them.
fn commands() -> Vec<String> {
    let [block, _] = blocks();
    let lines = block.lines().map(|line| line.split("  #").next().unwrap().trim_end().to_owned());
    lines.filter(|line| line.starts_with("uvala apply") || line.starts_with("uvala nf")).collect()
}

/// Types the lines in a shell of its own, in namespaces that end with it, as another user if one is
/// named; what it prints.
fn typed(user: Option<u32>) -> Owned {
    let [lines, before] = blocks();
    let (enter, more) = before.split_once('\n').expect("one line to enter, and others");
    let enter = match user {
        Some(user) => {
            let ids = format!("--reuid {user} --regid {user} --clear-groups");
            format!("setpriv {ids} {enter}")
        }
        None if is_root() => enter.replace(" --map-root-user", ""),
        None => enter.to_owned(),
    };
    let mut words: Vec<&str> = enter.split(' ').collect();
    let script = format!("{more}\n{lines}\n");
    words.extend(["--pid", "--fork", "--kill-child", "sh", "-c", &script]);
    let bin = uvala_path().parent().unwrap().display();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(root()).env("PATH", path).env_remove("UVALA_DIR");
    Owned::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

/// What the lines come to: an answer of blue's, and two functions that have seen it.
fn shows_a_chain(mut shell: Owned) {
    let mut lines = BufReader::new(shell.stdout()).lines().map_while(Result::ok);
    let answers = lines.find(|line| line.contains("packets transmitted")).expect("ping's end");
    assert!(!answers.contains(" 0 received"), "{answers}");
    for port in ["valenf:fw ", "valenf:r "] {
        let shown = |line: &String| {
            let words: Vec<&str> = line.split_whitespace().collect();
            line.contains(port) && line.contains(" up ") && words.get(8) != Some(&"0")
        };
        assert!(lines.any(|line| shown(&line)), "{port} is not shown");
    }
    shell.kill();
}

/// Whether something can be done here, as that user.
fn can(user: Option<u32>, words: &str) -> bool {
    let ids = user.map(|user| format!("setpriv --reuid {user} --regid {user} --clear-groups "));
    let line = ids.unwrap_or_default() + words;
    let words: Vec<&str> = line.split(' ').collect();
    let tried = Command::new(words[0]).args(&words[1..]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

#[test]
fn the_readmes_lines_show_a_chain_when_they_are_pasted() {
    if !can(None, "ping -V") {
        return skip("there is no ping (apt-get install iputils-ping)");
    }
    let uvala = format!("{} --version", uvala_path().display());
    for user in [None, is_root().then_some(USER)] {
        let enters = if user.is_none() && is_root() { "" } else { " --map-root-user" };
        if !can(user, &format!("unshare{enters} --net --mount true")) {
            skip("namespaces cannot be made, or not by ordinary users");
        } else if !can(user, &uvala) {
            skip("the sources are closed to other users");
        } else {
            shows_a_chain(typed(user));
        }
    }
}

/// The files that they name, for these namespaces.
fn files(lab: &Lab) -> Scratch {
    let (place, from) = (Scratch::new("functions"), root().join("examples/nf"));
    let to = place.path().join("examples/nf");
    std::fs::create_dir_all(&to).unwrap();
    for name in ["two-namespaces.toml", "firewall.toml", "router.toml"] {
        let mut text = std::fs::read_to_string(from.join(name)).unwrap();
        for (guest, colour) in lab.guests.iter().zip(["red", "blue"]) {
            let namespace = format!("netns = \"{}\"", guest.name());
            text = text.replace(&format!("netns = \"{colour}\""), &namespace);
        }
        std::fs::write(to.join(name), text).unwrap();
    }
    place
}

fn start(daemon: &Daemon, place: &Scratch, command: &str) -> Owned {
    let words: Vec<&str> = command.trim_end_matches(" &").split(' ').skip(1).collect();
    let mut command = uvala(Become::default(), &words, None);
    command.env("UVALA_DIR", daemon.dir()).current_dir(place.path());
    Owned::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

/// What `uvala` prints.
fn says(daemon: &Daemon, words: &str) -> String {
    let output = daemon.uvala(&words.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn drops(daemon: &Daemon, reason: &str) -> u64 {
    let red = daemon.stats("valenf:red");
    red.drops.get(reason).copied().unwrap_or(0)
}

#[test]
fn a_firewall_and_a_router_stand_between_two_namespaces() {
    let Some(lab) = Lab::new(2) else { return };
    lab.tell(|daemon, lab| {
        let [red, blue] = [&lab.guests[0], &lab.guests[1]];
        let (place, commands) = (files(lab), commands());
        let [apply, firewall, router, list] = &commands[..] else { panic!("{commands:?}") };
        assert!(start(daemon, &place, apply).wait().success());
        for (guest, network) in [(red, 1), (blue, 2)] {
            guest.ip(&format!("route add default via 10.0.{network}.1"));
        }
        let mut first = start(daemon, &place, firewall);
        let _router = start(daemon, &place, router);
        // A person types the next command when both are there.
        let runs = || says(daemon, "nf list valenf").matches(" up ").count();
        wait::until("both instances", || runs() == 2);
        let mut list = start(daemon, &place, list);
        let shown = BufReader::new(list.stdout()).lines().map_while(Result::ok);
        let mut running = shown.filter(|line| line.contains(" up "));
        assert!(running.next().is_some_and(|line| line.contains("valenf:fw")));
        drop((running, list));
        red.within(|| udp(blue, "10.0.2.2", 100));
        tcp(red, blue, "10.0.2.2", 1 << 20);
        // Blue may answer, and not begin.
        let before = says(daemon, "nf list valenf");
        blue.within(|| {
            let socket = UdpSocket::bind("10.0.2.2:0").unwrap();
            wait::until("a drop by the firewall", || {
                socket.send_to(&[1; 64], "10.0.1.2:9").unwrap();
                dropped(daemon) > 0
            });
        });
        assert!(before.contains("valenf:r "), "{before}");
        red.within(|| {
            let socket = UdpSocket::bind("10.0.1.2:0").unwrap();
            let ping = || drop(socket.send_to(&[2; 64], "10.0.2.2:9"));
            (0..100).for_each(|_| ping());
            first.kill();
            wait::until("drops without a firewall", || {
                ping();
                drops(daemon, "no_instance") > 0
            });
        });
        let shown = says(daemon, "chain show valenf");
        assert!(shown.contains("no process runs firewall"), "{shown}");
        let _again = start(daemon, &place, firewall);
        red.within(|| udp(blue, "10.0.2.2", 100));
        // The next version of the file has another name for the chain that its ports use.
        let file = place.path().join("examples/nf/two-namespaces.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace("guarded", "kept")).unwrap();
        assert!(start(daemon, &place, apply).wait().success());
        let shown = says(daemon, "chain show valenf");
        assert!(shown.contains("kept") && !shown.contains("guarded"), "{shown}");
        red.within(|| udp(blue, "10.0.2.2", 100));
        tcp(red, blue, "10.0.2.2", 1 << 20);
        let shown = says(daemon, "chain list valenf");
        assert!(shown.contains("kept") && shown.contains(" ok"), "{shown}");
    });
}

/// Frames that the firewall wanted dropped, as `uvala nf list` has them.
fn dropped(daemon: &Daemon) -> u64 {
    let json: serde_json::Value =
        serde_json::from_str(&says(daemon, "nf list valenf --json")).unwrap();
    let all = json.as_array().unwrap().iter();
    let of = |row: &serde_json::Value| row["dropped"].as_u64().unwrap();
    all.filter(|row| row["service"] == "firewall").map(of).sum()
}

/// One file is a daemon's configuration and what `uvala apply` makes of one that runs.
#[test]
fn apply_takes_what_a_daemon_starts_with_and_names_a_wrong_line() {
    const TEXT: &str = "[workers]\nwait = \"block\"\n[switch.valenf]\nforwarding = \"chain\"\n\
        mode = \"640\"\n[switch.valenf.port.fw]\nservice = \"fw\"\n\
        [switch.valenf.port.sink]\nkind = \"null\"\nstatic = [\"02:00:00:00:00:07@3\"]\n\
        [switch.valenf.port.in]\nchain = \"web\"\nisolated = true\n\
        label = \"way in\"\n\
        [[switch.valenf.chain]]\nname = \"web\"\nservices = [\"fw\"]\nout = \"sink\"\n\
        [[switch.valenf.rule]]\naction = \"drop\"\nsrc = \"192.0.2.0/24\"\npriority = 3\n";
    let (place, started, changed) = (Scratch::new("apply"), Setup::new(TEXT), Daemon::start());
    let started = started.start();
    let file = place.path().join("uvala.toml");
    let apply = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = changed.uvala(&["apply", file.to_str().unwrap()]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = apply(TEXT);
    assert!(status == Some(0) && said.contains("workers: takes effect only when"), "{said}");
    for words in [
        "switch show valenf --json",
        "port show valenf:in --json",
        "port show valenf:sink --json",
        "chain list valenf --json",
        "rule list valenf --json",
        "fdb list valenf --json",
    ] {
        assert_eq!(says(&started, words), says(&changed, words), "{words}");
    }
    assert!(says(&changed, "fdb list valenf").contains("02:00:00:00:00:07"));
    // What is refused for the sake of something else is told as that.
    if is_root() {
        let up = "[switch.valenf.port.up]\nkind = \"tap\"\nifname = \"lo\"\n";
        let (status, said) = apply(&(up.to_owned() + TEXT));
        assert!(status == Some(11) && said.contains("interface lo"), "{status:?} {said}");
    }
    // Nor does a port become another one.
    let (status, said) = apply(&TEXT.replace("kind = \"null\"", "kind = \"vhost-user\""));
    assert!(status == Some(11) && said.contains("--kind is null there"), "{status:?} {said}");
    // What cannot be meant is found before anything is made.
    let bad = TEXT.replace("640", "660") + "[[switch.valenf.rule]]\naction = \"chain:no\"\n";
    let (status, said) = apply(&bad);
    let line = bad.lines().count() - 1;
    let place = format!("uvala.toml:{line}: valenf: rule 2: there is no chain no");
    assert!(status == Some(9) && said.contains(&place), "{said}");
    // Nor do names that are neither in the file nor in the switch.
    let wrong = TEXT.replace("640", "660");
    let (end, rule) = (wrong.lines().count(), "[[switch.valenf.rule]]\naction = \"drop\"\n");
    says(&changed, "port add valenf:own --service fw");
    for (text, line, why) in [
        (wrong.replace("chain = \"web\"\n", "chain = \"no\"\n"), 11, "no chain no in the file"),
        (wrong.replace("[\"fw\"]", "[\"ids\"]"), 15, "chain web: there is no service ids"),
        (wrong.replace("out = \"sink\"", "out = \"far\""), 15, "there is no port far"),
        (wrong.clone() + rule + "in = \"fw\"\n", end + 1, "fw is an instance of service fw"),
        (wrong.clone() + rule + "in = \"own\"\n", end + 1, "own is an instance of service fw"),
        (wrong.clone() + "[[switch.valenf.rule]]\nvlan = 9\n", end + 1, "action is missing"),
        (wrong + "[[switch.valenf.rule]]\naction = \"port:z\"\n", end + 1, "there is no port z"),
    ] {
        let (status, said) = apply(&text);
        let says = said.contains(&format!("uvala.toml:{line}: ")) && said.contains(why);
        assert!(status == Some(9) && says, "{line}, {why}: {said}");
    }
    let less = TEXT.split("[[switch.valenf.chain]]").next().unwrap();
    let (status, said) = apply(&less.replace("chain = \"web\"", "chain = \"\""));
    assert!(status == Some(0) && said.contains("does not have it: chain web, 1 rule\n"), "{said}");
    let (_, said) = apply(TEXT);
    assert!(!said.contains("deleted"), "{said}");
    let shown = says(&changed, "switch show valenf");
    assert!(shown.contains("640"), "nothing has changed: {shown}");
}

/// A message has room for a few hundred rules.
#[test]
fn apply_gives_a_switch_all_its_rules_or_none() {
    let (place, daemon) = (Scratch::new("apply_many"), Daemon::start());
    let file = place.path().join("many.toml");
    let apply = |action: &str, last: &str| {
        let rule = |n: u32| {
            let net = format!("10.{}.{}.0/24", n >> 8, n & 255);
            format!("[[switch.valenf.rule]]\naction = \"{action}\"\nsrc = \"{net}\"\n")
        };
        let rules: String = (0..4095).map(rule).collect();
        let switch = "[switch.valenf]\nforwarding = \"chain\"\n";
        let last = format!("[[switch.valenf.rule]]\naction = \"{last}\"\nvlan = 7\npriority = 1\n");
        std::fs::write(&file, format!("{switch}{rules}{last}")).unwrap();
        let output = daemon.uvala(&["apply", file.to_str().unwrap()]);
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let actions = || {
        let listed: serde_json::Value =
            serde_json::from_str(&says(&daemon, "rule list valenf --json")).unwrap();
        let rows = listed.as_array().unwrap().iter();
        rows.map(|row| row["rule"]["action"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (done, said) = apply("drop", "drop");
    assert!(done, "{said}");
    assert_eq!(actions(), ["drop"; 4096]);
    // Only the daemon knows which ports there are.
    let (done, said) = apply("forward", "port:nobody");
    assert!(!done && said.contains("there is no port nobody"), "{said}");
    assert_eq!(actions(), ["drop"; 4096]);
}

/// Where a process has its first shared memory, and whether any of its pages are reserved huge
/// pages. A function is listed before it has mapped its region.
fn memory(pid: u32) -> (String, bool) {
    let is_huge = |line: &str| line.starts_with("VmFlags:") && line.contains(" ht");
    wait::find("a region", || {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let shared = maps.lines().find(|line| line.contains("/memfd:"))?;
        Some((shared.split('-').next().unwrap().to_owned(), maps.lines().any(is_huge)))
    })
}

/// Neither addresses that must be free, nor huge pages.
#[test]
fn functions_are_ordinary_processes_with_memory_anywhere() {
    const ADDR_NO_RANDOMIZE: u32 = 0x4_0000;
    let daemon = Setup::new(&configuration(2)).start();
    let _all: Vec<Owned> = (0..2).map(|n| function(&daemon, n)).collect();
    let pids: Vec<u32> = functions(&daemon).iter().map(|info| info.pid.unwrap()).collect();
    for pid in &pids {
        let text = std::fs::read_to_string(format!("/proc/{pid}/personality")).unwrap();
        let personality = u32::from_str_radix(text.trim(), 16).unwrap();
        assert_eq!(personality & ADDR_NO_RANDOMIZE, 0, "{text}");
    }
    let [(one, huge), (other, also)] = [memory(pids[0]), memory(pids[1])];
    assert!(!huge && !also);
    match std::fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap().trim() {
        "0" => skip("this system maps everything at one address (randomize_va_space)"),
        _ => assert_ne!(one, other, "one group's memory, at different addresses"),
    }
}

//! DPDK's virtio-user as a machine: a frontend that shares no line with ours, with queues of both
//! kinds. Two devices of one `dpdk-testpmd` hand each other the same frames through the switch.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use harness::daemon::Daemon;
use harness::process::Owned;
use harness::wait;
use protocol::{MachineState, PortAdd, PortKind, PortRequest, PortSettings, Request};

/// Frames that go round: a burst of each device.
const ROUND: u64 = 2 * 32;
const PORTS: [&str; 2] = ["vale0:a", "vale0:b"];

struct Testpmd {
    input: ChildStdin,
    lines: Receiver<String>,
    _process: Owned,
}

impl Testpmd {
    /// With a device for each socket, of which `options` says the kind of queue.
    fn start(sockets: &[String], options: &str) -> Self {
        // What it says comes line by line.
        let mut command = Command::new("stdbuf");
        command.args([
            "-oL",
            "dpdk-testpmd",
            "-l",
            "0,1",
            "--main-lcore",
            "0",
            "--no-huge",
            "-m",
            "128",
            "--no-pci",
        ]);
        command
            .arg("--no-telemetry")
            .env("RUNTIME_DIRECTORY", Path::new(&sockets[0]).parent().unwrap());
        for (i, socket) in sockets.iter().enumerate() {
            let mac = format!("02:00:00:00:01:{i:02}");
            command.arg(format!(
                "--vdev=net_virtio_user{i},path={socket},queue_size=256,mac={mac},{options}"
            ));
        }
        command.args(["--", "-i", "--total-num-mbufs=4096", "--no-lsc-interrupt", "--no-flush-rx"]);
        command.args([0, 1].map(|i| format!("--eth-peer={i},02:00:00:00:01:{:02}", 1 - i)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (mut process, input) = Owned::spawn_with_input(&mut command);
        let output = process.stdout();
        let (to, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = to.send(line);
            }
        });
        Self { input, lines, _process: process }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Stops; returns how many frames each device has sent and received.
    fn stop(&mut self) -> [[u64; 2]; 2] {
        self.tell("stop");
        let mut counts = [[0; 2]; 2];
        for device in [0, 1] {
            for (kind, word) in ["TX-packets:", "RX-packets:"].into_iter().enumerate().rev() {
                let number = std::iter::from_fn(|| self.lines.recv_timeout(wait::PATIENCE).ok())
                    .find_map(|line| line.split_once(word).map(|(_, rest)| rest.to_owned()));
                let number = number.expect("it says how many");
                counts[kind][device] = number.split_whitespace().next().unwrap().parse().unwrap();
            }
        }
        counts
    }
}

fn frames_go_round(options: &str) {
    if Command::new("dpdk-testpmd").arg("--version").output().is_err() {
        harness::skip("no dpdk-testpmd; run .ci/guests as root");
        return;
    }
    let daemon = Daemon::start();
    let sockets = PORTS.map(|port| {
        let (name, kind) = (port.parse().unwrap(), PortKind::VhostUser);
        let settings = PortSettings::default();
        let add = PortAdd { port: name, kind, settings, host: None, machine: None, vxlan: None };
        daemon.call(Request::Port(PortRequest::Add(Box::new(add)))).unwrap();
        daemon.port(port).unwrap().machine.unwrap().socket
    });
    let mut testpmd = Testpmd::start(&sockets, options);
    for port in PORTS {
        let is_up = || daemon.port(port).unwrap().machine.unwrap().state == MachineState::Up;
        wait::until("a machine", is_up);
    }
    testpmd.tell("set fwd io");
    testpmd.tell("start tx_first");
    wait::until("frames", || PORTS.iter().all(|port| daemon.stats(port).rx.frames > 20 * ROUND));
    let [sent, received] = testpmd.stop();
    wait::until("the last", || [0, 1].map(|i| daemon.stats(PORTS[i]).tx.frames) == sent);
    for (i, stats) in PORTS.map(|port| daemon.stats(port)).iter().enumerate() {
        assert_eq!(stats.rx.frames, sent[1 - i], "what one sends the other is given");
        assert!(stats.drops.values().all(|drops| *drops == 0), "{stats:?}");
    }
    // Those that go round were on their way when it stopped, or thrown away by it.
    let [sent, received] = [sent, received].map(|counts| counts.into_iter().sum::<u64>());
    assert!(sent >= received && sent - received <= ROUND, "{sent} sent, {received} received");
}

#[test]
fn frames_go_round_in_split_queues() {
    frames_go_round("packed_vq=0");
}

#[test]
fn frames_go_round_in_packed_queues() {
    frames_go_round("packed_vq=1");
}

#[test]
fn frames_go_round_in_order_and_in_one_buffer_each() {
    frames_go_round("packed_vq=0,mrg_rxbuf=0,in_order=1");
    frames_go_round("packed_vq=1,mrg_rxbuf=0");
}

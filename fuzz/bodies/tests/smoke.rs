//! Every fuzz body with the inputs that libFuzzer found worth keeping (`fuzz/corpus`), and with
//! seeded ones: pure noise, and good inputs with a few bytes changed.
//!
//! A failure prints the file, or the seed; `input(seed, …)` gives the bytes back.

use std::path::{Path, PathBuf};

/// Inputs for each body. `make fuzz` runs many more.
const INPUTS: u64 = 3000;

/// The most bytes that are kept of a target's inputs.
const CORPUS_MAX: usize = 40 << 10;

/// A xorshift generator: small, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap() % bound.max(1)
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 24).to_le_bytes()[0]
    }
}

/// The input of a seed: noise, or one of the samples with up to four bytes changed.
fn input(seed: u64, samples: &[&[u8]]) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    random.next();
    if samples.is_empty() || seed.is_multiple_of(8) {
        let len = random.below(600);
        return (0..len).map(|_| random.byte()).collect();
    }
    let mut bytes = samples[random.below(samples.len())].to_vec();
    for _ in 0..random.below(5) {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes[at] = random.byte(),
            1 => bytes.insert(at, b"{}:\"[]0_\0,="[random.below(11)]),
            _ if bytes.len() > 1 => drop(bytes.remove(at)),
            _ => {}
        }
    }
    bytes
}

fn smoke(name: &str, body: fn(&[u8]), samples: &[&str]) {
    let samples: Vec<&[u8]> = samples.iter().map(|sample| sample.as_bytes()).collect();
    smoke_bytes(name, body, &samples);
}

fn smoke_bytes(name: &str, body: fn(&[u8]), samples: &[&[u8]]) {
    // What a fuzzer tries first.
    for len in 0..4 {
        body(&[0; 4][..len]);
    }
    for sample in samples {
        body(sample);
    }
    let corpus = corpus(name);
    for (file, bytes) in &corpus {
        let result = std::panic::catch_unwind(|| body(bytes));
        assert!(result.is_ok(), "{}", file.display());
    }
    let kept = corpus.iter().map(|(_, bytes)| bytes.as_slice());
    let samples: Vec<&[u8]> = samples.iter().copied().chain(kept).collect();
    for seed in 1..=INPUTS {
        let bytes = input(seed, &samples);
        let result = std::panic::catch_unwind(|| body(&bytes));
        assert!(result.is_ok(), "seed {seed}: {bytes:02x?}");
    }
}

/// What is kept of a target's inputs.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(name);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("it is listed").path())
        .collect();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files.sort();
    let read = |file: PathBuf| {
        let bytes = std::fs::read(&file).expect("ours");
        (file, bytes)
    };
    let corpus: Vec<_> = files.into_iter().map(read).collect();
    let bytes: usize = corpus.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= CORPUS_MAX, "{bytes} bytes in {}", dir.display());
    corpus
}

#[test]
fn port_name() {
    let names = ["vale0:vm1", "vale:p", "valelab:fw_out", "vale0:a{1", "vale0:a}1", "vale0"];
    smoke("port_name", fuzz_bodies::port_name, &names);
}

/// The corpus has what clang makes of the examples.
#[test]
fn program_object() {
    smoke("program_object", fuzz_bodies::program_object, &[]);
}

#[test]
fn control_message() {
    let calls = [
        r#"{"v":1,"call":{"hello":{"client":"x"}}}"#,
        r#"{"v":1,"call":{"attach":{"port":"vale0:vm1","tx_slots":512,"group":"g"}}}"#,
        r#"{"v":1,"call":{"port_set":{"port":"vale0:a","settings":{"isolated":true}}}}"#,
        r#"{"v":1,"call":{"fdb_add":{"port":"vale0:a","mac":"02:00:00:00:00:01","vlan":7}}}"#,
        r#"{"v":1,"call":{"switch_add":{"switch":"vale1","settings":{"mode":"660"}}}}"#,
        r#"{"v":1,"call":{"bind":{"port":"vale0:a","mem_id":3,"rings":{"one":2},"kind":"null"}}}"#,
        r#"{"v":1,"call":{"bind":{"port":"netmap:v0","kind":{"monitor":{"tx":true,"rx":false}}}}}"#,
        r#"{"v":1,"call":"resume"}"#,
        r#"{"v":1,"call":{"chain_add":{"switch":"vale0",
            "chain":{"name":"w","services":["a@least"]}}}}"#,
        r#"{"v":1,"call":{"rule_add":{"switch":"vale0",
            "rules":[{"action":"drop","dport":"9"}]}}}"#,
        r#"{"v":1,"call":{"audit":{"from":"1000/nf/7"}}}"#,
        r#"{"v":1,"call":{"port_geometry":{"port":"vale0:a","mem_id":1,"tx_slots":64}}}"#,
        r#"{"v":1,"result":{"err":{"code":"in_use","message":"no"}}}"#,
        r#"{"v":1,"result":{"ok":"done"}}"#,
    ];
    smoke("control_message", fuzz_bodies::control_message, &calls);
}

#[test]
fn config() {
    let shown = include_str!("../../../docs/uvala.toml");
    let all = shown.replace("#! ", "");
    smoke(
        "config",
        fuzz_bodies::config,
        &[shown, &all, "[workers]\ncount = 2\n", "log = \"debug\"\n"],
    );
}

#[test]
fn rules() {
    let samples = [
        r#"{"chains":[{"name":"web","services":["fw@least","r"],"out":"a"}],"rules":[]}"#,
        r#"{"chains":[{"name":"web","services":["fw"]}],
            "rules":[{"action":"chain:web","in":"a"}]}"#,
        r#"{"chains":[{"name":"web","services":["r"]}],
            "rules":[{"action":"port:f0","vlan":7,"id":3},
            {"action":"drop","src":"10.0.0.0/8","dst":"fd00::/8","priority":5,"proto":"tcp"}]}"#,
        r#"{"chains":[{"name":"web","services":["fw"]}],
            "rules":[{"action":"forward","sport":"1-9"},
            {"action":"drop","ethertype":"0x88cc","src_mac":"02:00:00:00:00:01"}]}"#,
        r#"{"rules":[{"action":"chain:\n","in":"\u001b[2J"}]}"#,
        r#"{"rules":[{"action":"port:a\nb"}]}"#,
    ];
    smoke("rules", fuzz_bodies::rules, &samples);
}

#[test]
fn chain() {
    smoke("chain", fuzz_bodies::chain, &[]);
}

#[test]
fn flow() {
    smoke("flow", fuzz_bodies::flow, &[]);
}

#[test]
fn frame_header() {
    smoke("frame_header", fuzz_bodies::frame_header, &[]);
}

#[test]
fn frame_offload() {
    let samples = fuzz_bodies::offload_samples();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    smoke_bytes("frame_offload", fuzz_bodies::frame_offload, &samples);
}

#[test]
fn fdb_ops() {
    smoke("fdb_ops", fuzz_bodies::fdb_ops, &[]);
}

#[test]
fn ring_slots() {
    smoke("ring_slots", fuzz_bodies::ring_slots, &[]);
}

#[test]
fn helper_question() {
    let policy = "[[allow]]\nuser = 123456\nkinds = [\"tap\", \"packet\", \"xdp\"]\n\
                  interfaces = [\"eth1\", \"tap*\"]\naddresses = [\"10.0.0.0/24\", \"fd00::/64\"]\n\
                  [[allow]]\nuser = \"root\"\nkinds = [\"xdp\"]\ninterfaces = [\"*\"]\n";
    let questions = [
        r#"{"kind":"tap","ifname":"tap0","mtu":1500,"mac":"02:00:00:00:00:01","queues":4}"#,
        r#"{"kind":"tap","ifname":"tap0","address":"10.0.0.1/24"}"#,
        r#"{"kind":"tap","ifname":"eth1","address":"fd00::1/64"}"#,
        r#"{"kind":"packet","ifname":"eth1"}"#,
        r#"{"kind":"xdp","ifname":"eth1","queues":"0-3,6","filter":"vlan=10,type=0x0806"}"#,
    ];
    let samples = questions.map(|question| format!("{question}\n{policy}"));
    smoke("helper_question", fuzz_bodies::helper_question, &samples.each_ref().map(String::as_str));
}

#[test]
fn netmap_request() {
    let samples = fuzz_bodies::netmap_samples();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    smoke_bytes("netmap_request", fuzz_bodies::netmap_request, &samples);
}

#[test]
fn stream_port() {
    smoke("stream_port", fuzz_bodies::stream_port, &[]);
}

#[test]
fn vxlan_datagram() {
    smoke("vxlan_datagram", fuzz_bodies::vxlan_datagram, &[]);
}

#[test]
fn mcast_message() {
    smoke("mcast_message", fuzz_bodies::mcast_message, &[]);
}

#[test]
fn virtqueue() {
    smoke("virtqueue", fuzz_bodies::virtqueue, &[]);
}

#[test]
fn vfio_user_message() {
    smoke_bytes("vfio_user_message", fuzz_bodies::vfio_user_message, &[]);
}

#[test]
fn e1000() {
    let samples = fuzz_bodies::e1000_samples();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    smoke_bytes("e1000", fuzz_bodies::e1000, &samples);
}

#[test]
fn ptnet() {
    let samples = fuzz_bodies::ptnet_samples();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    smoke_bytes("ptnet", fuzz_bodies::ptnet, &samples);
}

#[test]
fn vhost_message() {
    let samples: Vec<Vec<u8>> = (1..=40u8)
        .flat_map(|request| [0, 8, 32, 40].map(|size| (request, size)))
        .map(|(request, size)| {
            let header = [[request, 0, 0, 0], [1, 0, 0, 0], [size, 0, 0, 0]].concat();
            header.into_iter().chain((0..size).map(|i| i % 3)).collect()
        })
        .collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    smoke_bytes("vhost_message", fuzz_bodies::vhost_message, &samples);
}

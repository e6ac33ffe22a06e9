//! `include/uvala_ring.h` says the same as `ring::abi`: a C program prints every size, offset and
//! constant of the header, and each must be the one that Rust uses.

use std::path::{Path, PathBuf};
use std::process::Command;

#[macro_use]
mod facts;

use facts::Fact;
use ring::abi::{
    Bell, CsbAtok, CsbKtoa, FIRST_BUFFER, LINE, NAME_SIZE, NI_PRIV_MEM, NetmapRing, RegionHeader,
    dir, sleep_mode, slot_flag, sync_flag,
};
use ring::doorbell::Ringer;

fn structures() -> Vec<Fact> {
    let mut facts = facts::of_netmap("uvala_slot", "uvala_ring", "uvala_if");
    // Padding in netmap's own header.
    structure!(facts, "uvala_ring", NetmapRing { turn });
    structure!(
        facts,
        "uvala_csb_atok",
        CsbAtok { head, cur, appl_need_kick, sync_flags, called, passed, sleep_mode }
    );
    structure!(facts, "uvala_csb_ktoa", CsbKtoa { hwcur, hwtail, kern_need_kick, resyncs, wakes });
    structure!(facts, "uvala_bell", Bell { need_kick, news });
    structure!(
        facts,
        "uvala_region_header",
        RegionHeader { magic, version, stride, buffers, pad, pool_offset, size }
    );
    facts
}

fn constants() -> Vec<Fact> {
    facts::numbers([
        ("UVALA_LINE", LINE as u64),
        ("UVALA_NAME_SIZE", NAME_SIZE as u64),
        ("UVALA_FIRST_BUFFER", FIRST_BUFFER.into()),
        ("UVALA_NI_PRIV_MEM", NI_PRIV_MEM.into()),
        ("UVALA_NS_BUF_CHANGED", slot_flag::BUF_CHANGED.into()),
        ("UVALA_NS_REPORT", slot_flag::REPORT.into()),
        ("UVALA_NS_FORWARD", slot_flag::FORWARD.into()),
        ("UVALA_NS_NO_LEARN", slot_flag::NO_LEARN.into()),
        ("UVALA_NS_INDIRECT", slot_flag::INDIRECT.into()),
        ("UVALA_NS_MOREFRAG", slot_flag::MOREFRAG.into()),
        ("UVALA_NS_RFRAGS_SHIFT", slot_flag::RFRAGS_SHIFT.into()),
        ("UVALA_NS_PORT_MASK", slot_flag::PORT_MASK.into()),
        ("UVALA_DIR_TX", dir::TX.into()),
        ("UVALA_DIR_RX", dir::RX.into()),
        ("UVALA_SYNC_LIGHT", sync_flag::LIGHT.into()),
        ("UVALA_SYNC_OFFSETS", sync_flag::OFFSETS.into()),
        ("UVALA_SYNC_OFFSET_MAX_SHIFT", sync_flag::OFFSET_MAX_SHIFT.into()),
        ("UVALA_SLEEP_DESCRIPTOR", sleep_mode::DESCRIPTOR.into()),
        ("UVALA_SLEEP_FUTEX", sleep_mode::FUTEX.into()),
        ("UVALA_KICK_ALWAYS", Ringer::ALWAYS.into()),
    ])
}

fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include")
}

/// Compiles `source` as `language` ("c" or "c++"); the path of the program.
fn compile(name: &str, language: &str, source: &str) -> PathBuf {
    let standard = if language == "c" { "-std=c11" } else { "-std=c++14" };
    let options = ["-pedantic", "-x", language, standard];
    facts::compile(name, &include_dir(), &options, source)
}

#[test]
fn c_and_rust_agree_on_every_field() {
    let mut facts = structures();
    facts.extend(constants());
    facts::compare(&facts, "#include <uvala_ring.h>\n", |source| {
        compile("header_facts", "c", source)
    });
}

/// Every field that the header declares is one that the test compares, padding aside.
#[test]
fn no_field_of_the_header_goes_unchecked() {
    let header = std::fs::read_to_string(include_dir().join("uvala_ring.h")).unwrap();
    let checked = structures();
    let mut name = "";
    for line in header.lines() {
        if let Some(rest) = line.strip_prefix("struct ") {
            name = rest.trim_end_matches(" {");
        }
        let Some(declaration) = line.strip_prefix('\t').and_then(|l| l.split_once(';')) else {
            continue;
        };
        let is_type = ["uint", "int64"].iter().any(|prefix| line.trim_start().starts_with(prefix));
        let field = declaration.0.split_whitespace().last().unwrap_or_default();
        let field = field.split('[').next().unwrap_or_default();
        let skipped = ["pad", "slot", "ring_ofs"].iter().any(|prefix| field.starts_with(prefix));
        if name.is_empty() || !is_type || skipped || line.contains('=') {
            continue;
        }
        let wanted = format!("offsetof(struct {name}, {field})");
        assert!(checked.iter().any(|(fact, _)| *fact == wanted), "{wanted} is not compared");
    }
}

#[test]
fn the_accessors_walk_a_port_as_the_layout_says() {
    use ring::cursor::RingSize;
    use ring::layout::{FIRST_BLOCK, PortLayout, RingCounts};

    let span = |slots| RingSize::new(slots).expect("a legal ring");
    let counts = RingCounts { tx_rings: 2, rx_rings: 3, tx_slots: span(8), rx_slots: span(16) };
    let layout = PortLayout::new(FIRST_BLOCK, counts);
    let offset = |ring: usize| layout.ring(ring) - layout.nifp();
    let source = format!(
        r"#include <uvala_ring.h>
static _Alignas(128) char memory[65536];
int main(void)
{{
	struct uvala_if *nifp = (struct uvala_if *)memory;
	nifp->ni_tx_rings = 2;
	nifp->ni_rx_rings = 3;
	nifp->ni_host_tx_rings = nifp->ni_host_rx_rings = 1;
	nifp->ring_ofs[1] = {tx1};
	nifp->ring_ofs[3] = {rx0};
	struct uvala_ring *ring = uvala_rx_ring(nifp, 0);
	if ((char *)uvala_tx_ring(nifp, 1) != memory + {tx1} || (char *)ring != memory + {rx0})
		return 1;
	ring->num_slots = 16;
	ring->nr_buf_size = 2112;
	ring->buf_ofs = 4096;
	if (&ring->slot[5] != uvala_slot_at(ring, 5) || uvala_next(ring, 15) != 0)
		return 2;
	if ((char *)uvala_buffer(ring, 3) != (char *)ring + 4096 + 3 * 2112)
		return 3;
	if (uvala_space(16, 15, 2) != 3 || uvala_space(16, 4, 4) != 0)
		return 4;
	return 0;
}}
",
        tx1 = offset(1),
        rx0 = offset(2),
    );
    let status = Command::new(compile("header_accessors", "c", &source)).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_publication_carries_the_handshake() {
    let source = r"#include <uvala_ring.h>
int main(void)
{
	struct uvala_csb_atok atok = {0};
	struct uvala_csb_ktoa ktoa = {0};
	struct uvala_bell bell = {0};
	bell.need_kick = 7;
	ktoa.hwtail = 9;
	if (uvala_csb_publish(&atok, 3, &bell.need_kick) != 7 || atok.head != 3 || atok.cur != 3)
		return 1;
	uvala_csb_arm(&atok, 5, 2);
	if (atok.cur != 5 || atok.appl_need_kick != 2 || uvala_csb_tail(&ktoa) != 9)
		return 2;
	uvala_csb_disarm(&atok);
	return atok.appl_need_kick == 0 ? 0 : 3;
}
";
    let status = Command::new(compile("header_handshake", "c", source)).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_header_is_cpp_too() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no C++ compiler here");
        return;
    }
    compile("header_cpp", "c++", "#include <uvala_ring.h>\nint main() { return 0; }\n");
}

//! `include/net/netmap.h` says the same as `uvala_netmap::abi` and `ring::abi`: a C program prints
//! every size, offset and constant of the header, and each must be the one that Rust uses.

use std::path::{Path, PathBuf};
use std::process::Command;

#[macro_use]
#[path = "../../ring/tests/facts/mod.rs"]
mod facts;

use facts::Fact;
use ring::abi::{NI_PRIV_MEM, slot_flag};
use uvala_netmap::abi;
use uvala_netmap::abi::{
    Header, IfReq, KloopStart, Legacy, OptCsb, OptExtmem, OptKloopMode, OptOffsets, OptionHeader,
    PoolsInfo, PortHdr, PortInfo, Register, ValeAttach, ValeDetach, ValeList, ValeNewif,
    ValePolling, command, flag, ioctl, mode, option, reqtype, ringid,
};

fn shared_memory() -> Vec<Fact> {
    let mut facts = facts::of_netmap("netmap_slot", "netmap_ring", "netmap_if");
    // The fourth word of ktoa is ours; netmap has room there.
    for (c, field, offset) in [
        ("nm_csb_atok", "head", 0),
        ("nm_csb_atok", "cur", 4),
        ("nm_csb_atok", "appl_need_kick", 8),
        ("nm_csb_atok", "sync_flags", 12),
        ("nm_csb_ktoa", "hwcur", 0),
        ("nm_csb_ktoa", "hwtail", 4),
        ("nm_csb_ktoa", "kern_need_kick", 8),
    ] {
        facts.push((format!("offsetof(struct {c}, {field})"), offset));
    }
    for c in ["nm_csb_atok", "nm_csb_ktoa"] {
        facts.push((format!("sizeof(struct {c})"), 64));
    }
    for (ring, offset) in [("netmap_ring, slot", 256), ("netmap_if, ring_ofs", 56)] {
        facts.push((format!("offsetof(struct {ring})"), offset));
    }
    facts.push(("__alignof__(struct netmap_ring)".to_string(), 128));
    facts
}

fn requests() -> Vec<Fact> {
    let mut facts = Vec::new();
    structure!(
        facts,
        "nmreq_header",
        Header { nr_version, nr_reqtype, nr_reserved, nr_name, nr_options, nr_body }
    );
    structure!(
        facts,
        "nmreq_register",
        Register {
            nr_offset,
            nr_memsize,
            nr_tx_slots,
            nr_rx_slots,
            nr_tx_rings,
            nr_rx_rings,
            nr_host_tx_rings,
            nr_host_rx_rings,
            nr_mem_id,
            nr_ringid,
            nr_mode,
            nr_extra_bufs,
            nr_flags
        }
    );
    structure!(
        facts,
        "nmreq_port_info_get",
        PortInfo {
            nr_memsize,
            nr_tx_slots,
            nr_rx_slots,
            nr_tx_rings,
            nr_rx_rings,
            nr_host_tx_rings,
            nr_host_rx_rings,
            nr_mem_id,
            pad
        }
    );
    facts
}

fn vale_requests() -> Vec<Fact> {
    let mut facts = Vec::new();
    structure!(facts, "nmreq_vale_attach", ValeAttach { reg, port_index, pad1 });
    structure!(facts, "nmreq_vale_detach", ValeDetach { port_index, pad1 });
    structure!(facts, "nmreq_vale_list", ValeList { nr_bridge_idx, pad1, nr_port_idx });
    structure!(facts, "nmreq_port_hdr", PortHdr { nr_hdr_len, pad1 });
    structure!(
        facts,
        "nmreq_vale_newif",
        ValeNewif { nr_tx_slots, nr_rx_slots, nr_tx_rings, nr_rx_rings, nr_mem_id, pad1 }
    );
    structure!(
        facts,
        "nmreq_vale_polling",
        ValePolling { nr_mode, nr_first_cpu_id, nr_num_polling_cpus, pad1 }
    );
    structure!(
        facts,
        "nmreq_pools_info",
        PoolsInfo {
            nr_memsize,
            nr_mem_id,
            pad1,
            nr_if_pool_offset,
            nr_if_pool_objtotal,
            nr_if_pool_objsize,
            nr_ring_pool_offset,
            nr_ring_pool_objtotal,
            nr_ring_pool_objsize,
            nr_buf_pool_offset,
            nr_buf_pool_objtotal,
            nr_buf_pool_objsize
        }
    );
    structure!(facts, "nmreq_sync_kloop_start", KloopStart { sleep_us, pad1 });
    facts
}

fn options_and_legacy() -> Vec<Fact> {
    let mut facts = Vec::new();
    structure!(facts, "nmreq_option", OptionHeader { nro_next, nro_reqtype, nro_status, nro_size });
    structure!(facts, "nmreq_opt_extmem", 24, OptExtmem { nro_usrptr, nro_info });
    structure!(facts, "nmreq_opt_csb", 24, OptCsb { csb_atok, csb_ktoa });
    structure!(facts, "nmreq_opt_sync_kloop_mode", 24, OptKloopMode { mode });
    structure!(
        facts,
        "nmreq_opt_offsets",
        24,
        OptOffsets {
            nro_max_offset,
            nro_initial_offset,
            nro_offset_bits,
            nro_tx_align,
            nro_min_gap
        }
    );
    let eventfds = "struct nmreq_opt_sync_kloop_eventfds";
    facts.push((format!("sizeof({eventfds})"), 24));
    facts.push((format!("offsetof({eventfds}, eventfds)"), 24));
    facts.push((format!("sizeof((({eventfds} *)0)->eventfds[0])"), 8));
    structure!(
        facts,
        "nmreq",
        Legacy {
            nr_name,
            nr_version,
            nr_offset,
            nr_memsize,
            nr_tx_slots,
            nr_rx_slots,
            nr_tx_rings,
            nr_rx_rings,
            nr_ringid,
            nr_cmd,
            nr_arg1,
            nr_arg2,
            nr_arg3,
            nr_flags,
            spare2
        }
    );
    structure!(facts, "nm_ifreq", IfReq { nifr_name, data });
    facts
}

fn numbers() -> Vec<Fact> {
    facts::numbers([
        ("NETMAP_API", 14),
        ("NETMAP_MIN_API", abi::NETMAP_MIN_API.into()),
        ("NETMAP_MAX_API", abi::NETMAP_MAX_API.into()),
        ("NETMAP_REQ_MAXSIZE", abi::NETMAP_REQ_MAXSIZE as u64),
        ("NETMAP_REQ_IFNAMSIZ", abi::NAME_SIZE as u64),
        ("IFNAMSIZ", abi::LEGACY_NAME_SIZE as u64),
        ("NIOCCTRL", ioctl::CTRL),
        ("NIOCGINFO", ioctl::GINFO),
        ("NIOCREGIF", ioctl::REGIF),
        ("NIOCTXSYNC", ioctl::TXSYNC),
        ("NIOCRXSYNC", ioctl::RXSYNC),
        ("NIOCCONFIG", ioctl::CONFIG),
        ("NIOCCTRL", 0xc058_6997),
        ("NIOCGINFO", 0xc03c_6991),
        ("NIOCREGIF", 0xc03c_6992),
        ("NIOCTXSYNC", 0x6994),
        ("NIOCRXSYNC", 0x6995),
        ("NIOCCONFIG", 0xc110_6996),
        ("NETMAP_REQ_REGISTER", reqtype::REGISTER.into()),
        ("NETMAP_REQ_PORT_INFO_GET", reqtype::PORT_INFO_GET.into()),
        ("NETMAP_REQ_VALE_ATTACH", reqtype::VALE_ATTACH.into()),
        ("NETMAP_REQ_VALE_DETACH", reqtype::VALE_DETACH.into()),
        ("NETMAP_REQ_VALE_LIST", reqtype::VALE_LIST.into()),
        ("NETMAP_REQ_PORT_HDR_SET", reqtype::PORT_HDR_SET.into()),
        ("NETMAP_REQ_PORT_HDR_GET", reqtype::PORT_HDR_GET.into()),
        ("NETMAP_REQ_VALE_NEWIF", reqtype::VALE_NEWIF.into()),
        ("NETMAP_REQ_VALE_DELIF", reqtype::VALE_DELIF.into()),
        ("NETMAP_REQ_VALE_POLLING_ENABLE", reqtype::VALE_POLLING_ENABLE.into()),
        ("NETMAP_REQ_VALE_POLLING_DISABLE", reqtype::VALE_POLLING_DISABLE.into()),
        ("NETMAP_REQ_POOLS_INFO_GET", reqtype::POOLS_INFO_GET.into()),
        ("NETMAP_REQ_SYNC_KLOOP_START", reqtype::SYNC_KLOOP_START.into()),
        ("NETMAP_REQ_SYNC_KLOOP_STOP", reqtype::SYNC_KLOOP_STOP.into()),
        ("NETMAP_REQ_CSB_ENABLE", reqtype::CSB_ENABLE.into()),
        ("NETMAP_REQ_OPT_EXTMEM", option::EXTMEM.into()),
        ("NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS", option::SYNC_KLOOP_EVENTFDS.into()),
        ("NETMAP_REQ_OPT_CSB", option::CSB.into()),
        ("NETMAP_REQ_OPT_SYNC_KLOOP_MODE", option::SYNC_KLOOP_MODE.into()),
        ("NETMAP_REQ_OPT_OFFSETS", option::OFFSETS.into()),
        ("NETMAP_REQ_OPT_MAX", option::MAX.into()),
        ("NETMAP_POLLING_MODE_SINGLE_CPU", abi::POLLING_SINGLE_CPU.into()),
        ("NETMAP_POLLING_MODE_MULTI_CPU", abi::POLLING_MULTI_CPU.into()),
        ("NM_OPT_SYNC_KLOOP_DIRECT_TX", abi::KLOOP_DIRECT_TX.into()),
        ("NM_OPT_SYNC_KLOOP_DIRECT_RX", abi::KLOOP_DIRECT_RX.into()),
        ("NR_TIMESTAMP", abi::NR_TIMESTAMP.into()),
        ("NR_FORWARD", abi::NR_FORWARD.into()),
        ("NI_PRIV_MEM", NI_PRIV_MEM.into()),
        ("NR_REG_MASK", mode::MASK.into()),
    ])
}

fn flags() -> Vec<Fact> {
    facts::numbers([
        ("NS_BUF_CHANGED", slot_flag::BUF_CHANGED.into()),
        ("NS_REPORT", slot_flag::REPORT.into()),
        ("NS_FORWARD", slot_flag::FORWARD.into()),
        ("NS_NO_LEARN", slot_flag::NO_LEARN.into()),
        ("NS_INDIRECT", slot_flag::INDIRECT.into()),
        ("NS_MOREFRAG", slot_flag::MOREFRAG.into()),
        ("NS_TXMON", 0x40),
        ("NS_PORT_SHIFT", slot_flag::RFRAGS_SHIFT.into()),
        ("NS_PORT_MASK", 0xff00),
        ("NETMAP_MAX_FRAGS", 64),
        ("NR_REG_DEFAULT", mode::DEFAULT.into()),
        ("NR_REG_ALL_NIC", mode::ALL_NIC.into()),
        ("NR_REG_SW", mode::SW.into()),
        ("NR_REG_NIC_SW", mode::NIC_SW.into()),
        ("NR_REG_ONE_NIC", mode::ONE_NIC.into()),
        ("NR_REG_PIPE_MASTER", mode::PIPE_MASTER.into()),
        ("NR_REG_PIPE_SLAVE", mode::PIPE_SLAVE.into()),
        ("NR_REG_NULL", mode::NULL.into()),
        ("NR_REG_ONE_SW", mode::ONE_SW.into()),
        ("NR_MONITOR_TX", flag::MONITOR_TX),
        ("NR_MONITOR_RX", flag::MONITOR_RX),
        ("NR_ZCOPY_MON", flag::ZCOPY_MON),
        ("NR_EXCLUSIVE", flag::EXCLUSIVE),
        ("NR_RX_RINGS_ONLY", flag::RX_RINGS_ONLY),
        ("NR_TX_RINGS_ONLY", flag::TX_RINGS_ONLY),
        ("NR_ACCEPT_VNET_HDR", flag::ACCEPT_VNET_HDR),
        ("NR_DO_RX_POLL", flag::DO_RX_POLL),
        ("NR_NO_TX_POLL", flag::NO_TX_POLL),
        ("NETMAP_RING_MASK", ringid::MASK.into()),
        ("NETMAP_NO_TX_POLL", ringid::NO_TX_POLL.into()),
        ("NETMAP_SW_RING", ringid::SW_RING.into()),
        ("NETMAP_HW_RING", ringid::HW_RING.into()),
        ("NETMAP_DO_RX_POLL", ringid::DO_RX_POLL.into()),
        ("NETMAP_BDG_ATTACH", command::BDG_ATTACH.into()),
        ("NETMAP_BDG_DETACH", command::BDG_DETACH.into()),
        ("NETMAP_BDG_LIST", command::BDG_LIST.into()),
        ("NETMAP_BDG_VNET_HDR", command::BDG_VNET_HDR.into()),
        ("NETMAP_BDG_NEWIF", command::BDG_NEWIF.into()),
        ("NETMAP_BDG_DELIF", command::BDG_DELIF.into()),
        ("NETMAP_BDG_POLLING_ON", command::BDG_POLLING_ON.into()),
        ("NETMAP_BDG_POLLING_OFF", command::BDG_POLLING_OFF.into()),
        ("NETMAP_VNET_HDR_GET", command::VNET_HDR_GET.into()),
        ("NETMAP_BDG_HOST", command::BDG_HOST.into()),
    ])
}

fn all_facts() -> Vec<Fact> {
    let requests = [requests(), vale_requests(), options_and_legacy()].concat();
    [shared_memory(), requests, numbers(), flags()].concat()
}

/// Where the header lies; `UVALA_NETMAP_INCLUDE` compares another one, such as netmap's own.
fn include_dir() -> PathBuf {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    std::env::var_os("UVALA_NETMAP_INCLUDE").map_or(ours, PathBuf::from)
}

/// Compiles `source` as `language` ("c" or "c++"); the path of the program.
fn compile(name: &str, language: &str, source: &str) -> PathBuf {
    let standard = if language == "c" { "-std=gnu11" } else { "-std=gnu++14" };
    facts::compile(name, &include_dir(), &["-O1", "-x", language, standard], source)
}

#[test]
fn c_and_rust_agree_on_every_field_and_number() {
    let prelude = "#include <stddef.h>\n#include <sys/ioctl.h>\n#define NETMAP_WITH_LIBS\n\
                   #include <net/netmap_user.h>\n";
    facts::compare(&all_facts(), prelude, |source| compile("netmap_facts", "c", source));
}

/// Every constant that the header defines as a number is one that the test compares.
#[test]
fn no_number_of_the_header_goes_unchecked() {
    let text = std::fs::read_to_string(include_dir().join("net/netmap.h")).unwrap();
    let facts = all_facts();
    let defined = text.lines().filter_map(|line| {
        let define = line.strip_prefix("#define ")?.split_whitespace().collect::<Vec<_>>();
        (define.len() > 1 && !define[0].contains('(')).then(|| define[0].to_string())
    });
    let enumerated = text.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix('\t')?.split_once(" = ")?;
        let is_name = name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
        (is_name && rest.contains(',')).then(|| name.to_string())
    });
    // What no Rust code has a use for.
    let exempt = [
        "NM_CACHE_ALIGN",
        "NM_BDG_NAME",
        "NM_IFRDATA_LEN",
        "NETMAP_BDG_REGOPS",
        "NETMAP_PT_HOST_CREATE",
        "NETMAP_PT_HOST_DELETE",
    ];
    for name in defined.chain(enumerated).filter(|name| !exempt.contains(&name.as_str())) {
        assert!(facts.iter().any(|(fact, _)| *fact == name), "{name} is not compared");
    }
}

#[test]
fn the_accessors_walk_a_port() {
    let source = r#"#include <net/netmap_user.h>
static _Alignas(128) char memory[65536];
int main(void)
{
	struct netmap_if *nifp = NETMAP_IF(memory, 1024);
	ssize_t *ofs = (ssize_t *)(nifp + 1);
	uint32_t *rings = (uint32_t *)((char *)nifp + 24);
	rings[0] = 2; /* transmit */
	rings[1] = 3; /* receive */
	rings[3] = rings[4] = 1;
	ofs[1] = 3072; /* transmit 1 */
	ofs[4] = 6144; /* receive 1 */
	struct netmap_ring *ring = NETMAP_RXRING(nifp, 1);
	if ((char *)NETMAP_TXRING(nifp, 1) != memory + 4096 || (char *)ring != memory + 7168)
		return 1;
	*(int64_t *)ring = 2048;
	((uint32_t *)ring)[2] = 16;   /* num_slots */
	((uint32_t *)ring)[3] = 2112; /* nr_buf_size */
	if (NETMAP_BUF(ring, 3) != (char *)ring + 2048 + 3 * 2112)
		return 2;
	if (NETMAP_BUF_IDX(ring, NETMAP_BUF(ring, 3)) != 3)
		return 3;
	if (nm_ring_next(ring, 15) != 0 || nm_ring_next(ring, 3) != 4 || !nm_ring_empty(ring))
		return 4;
	ring->head = 15, ring->tail = 2;
	if (nm_ring_space(ring) != 3 || nm_ring_empty(ring))
		return 5;
	ring->head = 4, ring->tail = 3;
	if (nm_tx_pending(ring) || nm_ring_space(ring) != 15)
		return 6;
	*(uint64_t *)((char *)ring + 56) = 0xff; /* offset_mask */
	ring->slot[2].ptr = 0x1200;
	NETMAP_WOFFSET(ring, &ring->slot[2], 0x1134);
	if (ring->slot[2].ptr != 0x1234 || NETMAP_ROFFSET(ring, &ring->slot[2]) != 0x34)
		return 7;
	ring->slot[2].buf_idx = 5;
	if (NETMAP_BUF_OFFSET(ring, &ring->slot[2]) != NETMAP_BUF(ring, 5) + 0x34)
		return 8;
	ring->slot[2].flags = 0x320;
	if (NS_RFRAGS(&ring->slot[2]) != 3)
		return 9;
	return 0;
}
"#;
    let status = Command::new(compile("netmap_accessors", "c", source)).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn names_are_parsed_as_netmap_writes_them() {
    let source = r#"#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>
static int is(const char *text, const char *name, unsigned int flags, int ringid, int memory)
{
	struct nm_desc d;
	char why[NM_ERRBUF_SIZE];
	memset(&d, 0, sizeof(d));
	if (nm_parse(text, &d, why)) {
		fprintf(stderr, "%s\n", why);
		return 0;
	}
	return !strcmp(d.req.nr_name, name) && d.req.nr_flags == flags &&
	       d.req.nr_ringid == ringid && d.req.nr_arg2 == memory;
}
static int bad(const char *text)
{
	struct nm_desc d;
	memset(&d, 0, sizeof(d));
	return nm_parse(text, &d, NULL) == -1 && errno == EINVAL && !d.self;
}
int main(void)
{
	if (!is("netmap:eth0", "eth0", NR_REG_ALL_NIC, 0, 0) ||
	    !is("vale0:a", "vale0:a", NR_REG_ALL_NIC, 0, 0) ||
	    !is("vale:a", "vale:a", NR_REG_ALL_NIC, 0, 0) ||
	    !is("netmap:eth0^", "eth0", NR_REG_SW, 0, 0) ||
	    !is("netmap:eth0*", "eth0", NR_REG_NIC_SW, 0, 0) ||
	    !is("netmap:eth0-3", "eth0", NR_REG_ONE_NIC, 3, 0) ||
	    !is("vale1:x{12/R", "vale1:x", NR_REG_PIPE_MASTER | NR_RX_RINGS_ONLY, 12, 0) ||
	    !is("vale1:x}12@7", "vale1:x", NR_REG_PIPE_SLAVE, 12, 7) ||
	    !is("netmap:eth0/xzt@1", "eth0",
		NR_REG_ALL_NIC | NR_EXCLUSIVE | NR_ZCOPY_MON | NR_MONITOR_TX, 0, 1) ||
	    !is("netmap:eth0.100-1", "eth0.100", NR_REG_ONE_NIC, 1, 0) ||
	    !is("netmap:vale0:a{3", "vale0:a", NR_REG_PIPE_MASTER, 3, 0) ||
	    !is("vale0:a@1/x", "vale0:a", NR_REG_ALL_NIC | NR_EXCLUSIVE, 0, 1) ||
	    !is("vale0:a/x@1/T", "vale0:a",
		NR_REG_ALL_NIC | NR_EXCLUSIVE | NR_TX_RINGS_ONLY, 0, 1))
		return 1;
	if (!bad("eth0") || !bad("netmap:") || !bad("vale0") || !bad("netmap:eth0-") ||
	    !bad("netmap:eth0{4096") || !bad("netmap:eth0/q") || !bad("netmap:eth0@") ||
	    !bad("netmap:eth0^-1") || !bad("netmap:eth0/") || !bad("netmap:eth0@1/") ||
	    !bad("netmap:eth0/x/t") || !bad("netmap:eth0@1@2") || !bad("netmap:eth0@0") ||
	    !bad("vale0:much_too_long_a_name"))
		return 2;
	return 0;
}
"#;
    let status = Command::new(compile("netmap_names", "c", source)).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_registers_of_paravirtual_devices_are_where_guests_look_for_them() {
    let source = r#"#include <net/netmap_virt.h>
#define AT(name, value) _Static_assert(name == value, #name)
AT(PTNETMAP_PCI_VENDOR_ID, 0x1b36);
AT(PTNETMAP_PCI_DEVICE_ID, 12);
AT(PTNETMAP_PCI_NETIF_ID, 13);
AT(PTNET_MDEV_IO_MEMID, 8);
AT(PTNET_MDEV_IO_IF_POOL_OFS, 64);
AT(PTNET_MDEV_IO_RING_POOL_OFS, 64 + 12);
AT(PTNET_MDEV_IO_BUF_POOL_OFS, 64 + 24);
AT(PTNET_MDEV_IO_BUF_POOL_OBJSZ, PTNET_MDEV_IO_END - 4);
AT(PTNET_IO_NIFP_OFS, 24);
AT(PTNET_IO_HOSTMEMID, 48);
AT(PTNET_IO_CSB_GH_BAH, 52);
AT(PTNET_IO_CSB_HG_BAL, PTNET_IO_END - 4);
AT(PTNET_IO_KICK_BASE, 128);
int main(void) { return sizeof(PTNETMAP_MEMDEV_NAME) - 16; }
"#;
    let status = Command::new(compile("netmap_virt", "c", source)).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_header_is_cpp_too() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no C++ compiler here");
        return;
    }
    let source = "#define NETMAP_WITH_LIBS\n#include <net/netmap_user.h>\n\
                  #include <libnetmap.h>\nint main() {}\n";
    compile("netmap_cpp", "c++", source);
}

//! netmap's structures and numbers, as a program sees them: API 14 and 15, x86-64.
//!
//! What lies in shared memory (`netmap_if`, `netmap_ring`, `netmap_slot`, the CSB) is
//! [`ring::abi`]'s. Here is what travels through ioctls: each structure with its size and offsets,
//! and the numbers of requests, options, modes and flags. The C view is `include/net/netmap.h`;
//! `tests/header.rs` compares the two.

#![allow(unsafe_code)] // UNSAFETY: marker trait of plain-data structs only.

use core::mem::{offset_of, size_of};

/// Least version of a request.
pub const NETMAP_MIN_API: u16 = 14;
/// Greatest version of an `NIOCCTRL` request; the legacy calls take every greater one.
pub const NETMAP_MAX_API: u16 = 15;
/// Most bytes of a request's body and its options together.
pub const NETMAP_REQ_MAXSIZE: usize = 4096;
/// Room for a name in a request, its end included.
pub const NAME_SIZE: usize = 64;
/// Room for a name in a legacy request.
pub const LEGACY_NAME_SIZE: usize = 16;

/// Numbers of the ioctls.
pub mod ioctl {
    use super::{Header, IfReq, Legacy, size_of};

    /// `_IOWR('i', number, structure of that size)`.
    const fn both_ways(number: u64, size: usize) -> u64 {
        3 << 30 | (size as u64) << 16 | (b'i' as u64) << 8 | number
    }

    /// Every request of today.
    pub const CTRL: u64 = both_ways(151, size_of::<Header>());
    /// Legacy: describes a port.
    pub const GINFO: u64 = both_ways(145, size_of::<Legacy>());
    /// Legacy: bind, and all the rest.
    pub const REGIF: u64 = both_ways(146, size_of::<Legacy>());
    /// Send.
    pub const TXSYNC: u64 = (b'i' as u64) << 8 | 148;
    /// Receive.
    pub const RXSYNC: u64 = (b'i' as u64) << 8 | 149;
    /// Configure the forwarding code of a switch.
    pub const CONFIG: u64 = both_ways(150, size_of::<IfReq>());
}

/// `nmreq_header.nr_reqtype`.
pub mod reqtype {
    /// Bind the descriptor to a port.
    pub const REGISTER: u16 = 1;
    /// What a port looks like.
    pub const PORT_INFO_GET: u16 = 2;
    /// Put a port into a switch.
    pub const VALE_ATTACH: u16 = 3;
    /// Take it out.
    pub const VALE_DETACH: u16 = 4;
    /// Lists the ports of the switches.
    pub const VALE_LIST: u16 = 5;
    /// Set the length of the virtio-net header.
    pub const PORT_HDR_SET: u16 = 6;
    /// Get it.
    pub const PORT_HDR_GET: u16 = 7;
    /// Make a persistent port.
    pub const VALE_NEWIF: u16 = 8;
    /// Delete it.
    pub const VALE_DELIF: u16 = 9;
    /// Poll a hardware port of a switch.
    pub const VALE_POLLING_ENABLE: u16 = 10;
    /// No longer.
    pub const VALE_POLLING_DISABLE: u16 = 11;
    /// What a memory looks like.
    pub const POOLS_INFO_GET: u16 = 12;
    /// Run the sync loop in this call.
    pub const SYNC_KLOOP_START: u16 = 13;
    /// End it.
    pub const SYNC_KLOOP_STOP: u16 = 14;
    /// Exchange indexes through the caller's memory.
    pub const CSB_ENABLE: u16 = 15;
}

/// `nmreq_option.nro_reqtype`.
pub mod option {
    /// The caller's memory becomes the region.
    pub const EXTMEM: u32 = 1;
    /// Descriptors to ring and to be rung through.
    pub const SYNC_KLOOP_EVENTFDS: u32 = 2;
    /// Where the status blocks are.
    pub const CSB: u32 = 3;
    /// The side that syncs.
    pub const SYNC_KLOOP_MODE: u32 = 4;
    /// Frames begin inside of buffers.
    pub const OFFSETS: u32 = 5;
    /// The first number that is no option.
    pub const MAX: u32 = 6;
}

/// `nmreq_register.nr_mode`.
pub mod mode {
    /// Legacy: `nr_ringid` says it.
    pub const DEFAULT: u32 = 0;
    /// All rings of the port.
    pub const ALL_NIC: u32 = 1;
    /// All rings of the host.
    pub const SW: u32 = 2;
    /// All of both.
    pub const NIC_SW: u32 = 3;
    /// One pair of the port's.
    pub const ONE_NIC: u32 = 4;
    /// Legacy: the master end of a pipe.
    pub const PIPE_MASTER: u32 = 5;
    /// Legacy: the slave end of a pipe.
    pub const PIPE_SLAVE: u32 = 6;
    /// Rings that lead nowhere.
    pub const NULL: u32 = 7;
    /// One pair of the host's.
    pub const ONE_SW: u32 = 8;
    /// The mode's bits in a legacy request's flags.
    pub const MASK: u32 = 0xf;
}

/// `nmreq_register.nr_flags`.
pub mod flag {
    /// Monitor what is sent.
    pub const MONITOR_TX: u64 = 0x100;
    /// Monitor what is received.
    pub const MONITOR_RX: u64 = 0x200;
    /// Without copies.
    pub const ZCOPY_MON: u64 = 0x400;
    /// No other descriptor may bind these rings.
    pub const EXCLUSIVE: u64 = 0x800;
    /// Receive rings only.
    pub const RX_RINGS_ONLY: u64 = 0x2000;
    /// Transmit rings only.
    pub const TX_RINGS_ONLY: u64 = 0x4000;
    /// The program copes with a virtio-net header.
    pub const ACCEPT_VNET_HDR: u64 = 0x8000;
    /// No effect.
    pub const DO_RX_POLL: u64 = 0x1_0000;
    /// A poll for input alone does not send.
    pub const NO_TX_POLL: u64 = 0x2_0000;
}

/// Bits of a legacy request's `nr_ringid`.
pub mod ringid {
    /// The number.
    pub const MASK: u16 = 0x0fff;
    /// [`super::flag::NO_TX_POLL`].
    pub const NO_TX_POLL: u16 = 0x1000;
    /// With no mode: the host's rings.
    pub const SW_RING: u16 = 0x2000;
    /// With no mode: one pair of rings.
    pub const HW_RING: u16 = 0x4000;
    /// [`super::flag::DO_RX_POLL`].
    pub const DO_RX_POLL: u16 = 0x8000;
}

/// A legacy request's `nr_cmd`.
pub mod command {
    /// Put a port into a switch.
    pub const BDG_ATTACH: u16 = 1;
    /// Take it out.
    pub const BDG_DETACH: u16 = 2;
    /// For kernel modules.
    pub const BDG_REGOPS: u16 = 3;
    /// Lists the ports of the switches; through `NIOCGINFO`.
    pub const BDG_LIST: u16 = 4;
    /// Set the length of the virtio-net header.
    pub const BDG_VNET_HDR: u16 = 5;
    /// Make a persistent port.
    pub const BDG_NEWIF: u16 = 6;
    /// Delete it.
    pub const BDG_DELIF: u16 = 7;
    /// No version of netmap supports it.
    pub const PT_HOST_CREATE: u16 = 8;
    /// No version of netmap supports it.
    pub const PT_HOST_DELETE: u16 = 9;
    /// Poll a hardware port of a switch.
    pub const BDG_POLLING_ON: u16 = 10;
    /// No longer.
    pub const BDG_POLLING_OFF: u16 = 11;
    /// Get the length of the virtio-net header.
    pub const VNET_HDR_GET: u16 = 12;
    /// `nr_arg1` of an attachment: the host's rings too.
    pub const BDG_HOST: u16 = 1;
}

/// `nmreq_vale_polling.nr_mode`: one CPU for all rings.
pub const POLLING_SINGLE_CPU: u32 = 1;
/// `nmreq_vale_polling.nr_mode`: a CPU for each ring.
pub const POLLING_MULTI_CPU: u32 = 2;
/// `nmreq_opt_sync_kloop_mode.mode`: sync where the application rings, transmit.
pub const KLOOP_DIRECT_TX: u32 = 1;
/// `nmreq_opt_sync_kloop_mode.mode`: sync where the application rings, receive.
pub const KLOOP_DIRECT_RX: u32 = 2;
/// `netmap_ring.flags`: set the time at every sync.
pub const NR_TIMESTAMP: u32 = 0x2;
/// `netmap_ring.flags`: heed `NS_FORWARD`.
pub const NR_FORWARD: u32 = 0x4;

/// Structures without padding that any bytes are a valid value of.
///
/// # Safety
/// The type is `repr(C)`, holds integers and arrays of them only, and its fields fill it.
pub unsafe trait Pod: Copy + Default {}

/// Declares structures of the ABI, each with its proof: size and offsets in netmap's order.
macro_rules! structures {
    ($(
        $(#[$meta:meta])*
        $name:ident: $size:literal {
            $($(#[$field_meta:meta])* $field:ident @ $offset:literal: $type:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!($size == 0 $(+ size_of::<$type>())*);
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
        // SAFETY: integers only, and the sizes of the fields add up to the structure's.
        unsafe impl Pod for $name {}
    )*};
}

/// A name in a request; a type of its own because arrays of this size have no default.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name(pub [u8; NAME_SIZE]);
const _: () = assert!(size_of::<Name>() == 64);

impl Default for Name {
    fn default() -> Self {
        Self([0; NAME_SIZE])
    }
}

impl Name {
    /// The bytes before the first zero.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(NAME_SIZE);
        &self.0[..end]
    }

    /// Replaces the name; cuts off what has no room.
    pub fn set(&mut self, bytes: &[u8]) {
        self.0 = [0; NAME_SIZE];
        for (to, from) in self.0[..NAME_SIZE - 1].iter_mut().zip(bytes) {
            *to = *from;
        }
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.bytes()))
    }
}

/// Room of [`IfReq`] for whatever a switch's forwarding code understands.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IfData(pub [u8; 256]);

impl Default for IfData {
    fn default() -> Self {
        Self([0; 256])
    }
}

structures! {
    /// `struct nmreq_header`: every request of today.
    Header: 88 {
        /// In [`NETMAP_MIN_API`]`..=`[`NETMAP_MAX_API`].
        nr_version @ 0: u16,
        /// One of [`reqtype`].
        nr_reqtype @ 2: u16,
        /// 0.
        nr_reserved @ 4: u32,
        /// Which port, zero-terminated.
        nr_name @ 8: Name,
        /// Address of the first option, or 0.
        nr_options @ 72: u64,
        /// Address of the body, or 0.
        nr_body @ 80: u64,
    }
    /// `struct nmreq_option`: how every option begins.
    OptionHeader: 24 {
        /// Address of the next option, or 0.
        nro_next @ 0: u64,
        /// One of [`option`].
        nro_reqtype @ 8: u32,
        /// Answer: 0 or an errno.
        nro_status @ 12: u32,
        /// Bytes of the whole option, where its size varies.
        nro_size @ 16: u64,
    }
    /// `struct nmreq_register`.
    Register: 56 {
        /// Answer: where the `netmap_if` lies.
        nr_offset @ 0: u64,
        /// Answer: bytes of the region.
        nr_memsize @ 8: u64,
        /// Slots of each transmit ring.
        nr_tx_slots @ 16: u32,
        /// Slots of each receive ring.
        nr_rx_slots @ 20: u32,
        /// Transmit rings.
        nr_tx_rings @ 24: u16,
        /// Receive rings.
        nr_rx_rings @ 26: u16,
        /// The host's transmit rings.
        nr_host_tx_rings @ 28: u16,
        /// The host's receive rings.
        nr_host_rx_rings @ 30: u16,
        /// Number of the region.
        nr_mem_id @ 32: u16,
        /// Which ring.
        nr_ringid @ 34: u16,
        /// One of [`mode`].
        nr_mode @ 36: u32,
        /// Buffers beside those of the slots.
        nr_extra_bufs @ 40: u32,
        /// Fills up.
        pad1 @ 44: u32,
        /// Bits of [`flag`].
        nr_flags @ 48: u64,
    }
    /// `struct nmreq_port_info_get`.
    PortInfo: 32 {
        /// Bytes of the region.
        nr_memsize @ 0: u64,
        /// Slots of each transmit ring.
        nr_tx_slots @ 8: u32,
        /// Slots of each receive ring.
        nr_rx_slots @ 12: u32,
        /// Transmit rings.
        nr_tx_rings @ 16: u16,
        /// Receive rings.
        nr_rx_rings @ 18: u16,
        /// The host's transmit rings.
        nr_host_tx_rings @ 20: u16,
        /// The host's receive rings.
        nr_host_rx_rings @ 22: u16,
        /// Number of the region.
        nr_mem_id @ 24: u16,
        /// Fills up.
        pad @ 26: [u16; 3],
    }
    /// `struct nmreq_vale_attach`.
    ValeAttach: 64 {
        /// Which rings, how many, which region.
        reg @ 0: Register,
        /// Answer: number of the port in its switch.
        port_index @ 56: u32,
        /// Fills up.
        pad1 @ 60: u32,
    }
    /// `struct nmreq_vale_detach`.
    ValeDetach: 8 {
        /// Answer: number of the port in its switch.
        port_index @ 0: u32,
        /// Fills up.
        pad1 @ 4: u32,
    }
    /// `struct nmreq_vale_list`.
    ValeList: 8 {
        /// Number of the switch.
        nr_bridge_idx @ 0: u16,
        /// Fills up.
        pad1 @ 2: u16,
        /// Number of the port in it.
        nr_port_idx @ 4: u32,
    }
    /// `struct nmreq_port_hdr`.
    PortHdr: 8 {
        /// 0, 10 or 12.
        nr_hdr_len @ 0: u32,
        /// Fills up.
        pad1 @ 4: u32,
    }
    /// `struct nmreq_vale_newif`.
    ValeNewif: 16 {
        /// Slots of each transmit ring.
        nr_tx_slots @ 0: u32,
        /// Slots of each receive ring.
        nr_rx_slots @ 4: u32,
        /// Transmit rings.
        nr_tx_rings @ 8: u16,
        /// Receive rings.
        nr_rx_rings @ 10: u16,
        /// Number of the region.
        nr_mem_id @ 12: u16,
        /// Fills up.
        pad1 @ 14: u16,
    }
    /// `struct nmreq_vale_polling`.
    ValePolling: 16 {
        /// [`POLLING_SINGLE_CPU`] or [`POLLING_MULTI_CPU`].
        nr_mode @ 0: u32,
        /// The first CPU.
        nr_first_cpu_id @ 4: u32,
        /// How many.
        nr_num_polling_cpus @ 8: u32,
        /// Fills up.
        pad1 @ 12: u32,
    }
    /// `struct nmreq_pools_info`.
    PoolsInfo: 64 {
        /// Bytes of the region.
        nr_memsize @ 0: u64,
        /// Number of the region.
        nr_mem_id @ 8: u16,
        /// Fills up.
        pad1 @ 10: [u16; 3],
        /// Where the `netmap_if` structures lie.
        nr_if_pool_offset @ 16: u64,
        /// How many.
        nr_if_pool_objtotal @ 24: u32,
        /// How large.
        nr_if_pool_objsize @ 28: u32,
        /// Where the rings lie.
        nr_ring_pool_offset @ 32: u64,
        /// How many.
        nr_ring_pool_objtotal @ 40: u32,
        /// How large.
        nr_ring_pool_objsize @ 44: u32,
        /// Where the buffers lie.
        nr_buf_pool_offset @ 48: u64,
        /// How many.
        nr_buf_pool_objtotal @ 56: u32,
        /// How large.
        nr_buf_pool_objsize @ 60: u32,
    }
    /// `struct nmreq_sync_kloop_start`.
    KloopStart: 8 {
        /// Between two looks, where no descriptors are given.
        sleep_us @ 0: u32,
        /// Fills up.
        pad1 @ 4: u32,
    }
    /// `struct nmreq_opt_extmem` after its header.
    OptExtmem: 72 {
        /// Address of the memory.
        nro_usrptr @ 0: u64,
        /// Pools of that memory.
        nro_info @ 8: PoolsInfo,
    }
    /// `struct nmreq_opt_csb` after its header.
    OptCsb: 16 {
        /// Address of the application's status blocks.
        csb_atok @ 0: u64,
        /// Address of the loop's.
        csb_ktoa @ 8: u64,
    }
    /// `struct nmreq_opt_sync_kloop_mode` after its header.
    OptKloopMode: 8 {
        /// [`KLOOP_DIRECT_TX`] and [`KLOOP_DIRECT_RX`].
        mode @ 0: u32,
        /// Fills up.
        pad1 @ 4: u32,
    }
    /// `struct nmreq_opt_offsets` after its header.
    OptOffsets: 32 {
        /// No offset is larger.
        nro_max_offset @ 0: u64,
        /// What slots say at first.
        nro_initial_offset @ 8: u64,
        /// Bits of `slot.ptr`.
        nro_offset_bits @ 16: u32,
        /// Alignment of frames to send.
        nro_tx_align @ 20: u32,
        /// 0.
        nro_min_gap @ 24: u64,
    }
    /// `struct nmreq`: every legacy request.
    Legacy: 60 {
        /// Which port, zero-terminated.
        nr_name @ 0: [u8; LEGACY_NAME_SIZE],
        /// At least [`NETMAP_MIN_API`].
        nr_version @ 16: u32,
        /// Answer: where the `netmap_if` lies.
        nr_offset @ 20: u32,
        /// Answer: bytes of the region.
        nr_memsize @ 24: u32,
        /// Slots of each transmit ring.
        nr_tx_slots @ 28: u32,
        /// Slots of each receive ring.
        nr_rx_slots @ 32: u32,
        /// Transmit rings.
        nr_tx_rings @ 36: u16,
        /// Receive rings.
        nr_rx_rings @ 38: u16,
        /// A number and bits of [`ringid`].
        nr_ringid @ 40: u16,
        /// 0, or one of [`command`].
        nr_cmd @ 42: u16,
        /// By command.
        nr_arg1 @ 44: u16,
        /// Number of the region.
        nr_arg2 @ 46: u16,
        /// Extra buffers.
        nr_arg3 @ 48: u32,
        /// A mode and bits of [`flag`].
        nr_flags @ 52: u32,
        /// Unused.
        spare2 @ 56: u32,
    }
    /// `struct nm_ifreq`.
    IfReq: 272 {
        /// Which switch.
        nifr_name @ 0: [u8; LEGACY_NAME_SIZE],
        /// For its forwarding code.
        data @ 16: IfData,
    }
}

/// The bytes of a structure.
pub fn bytes_of<T: Pod>(value: &T) -> &[u8] {
    let p: *const T = value;
    // SAFETY: a live value without padding; `Pod` promises both.
    unsafe { core::slice::from_raw_parts(p.cast(), size_of::<T>()) }
}

/// The bytes of a structure, to be filled.
pub fn bytes_of_mut<T: Pod>(value: &mut T) -> &mut [u8] {
    let p: *mut T = value;
    // SAFETY: a live value without padding that any bytes are valid for; `Pod` promises both.
    unsafe { core::slice::from_raw_parts_mut(p.cast(), size_of::<T>()) }
}

//! See `fuzz_bodies::vxlan_datagram`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::vxlan_datagram(data));

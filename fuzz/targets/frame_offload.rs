//! See `fuzz_bodies::frame_offload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::frame_offload(data));

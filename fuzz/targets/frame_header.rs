//! See `fuzz_bodies::frame_header`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::frame_header(data));

//! See `fuzz_bodies::stream_port`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::stream_port(data));

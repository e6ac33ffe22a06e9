//! See `fuzz_bodies::ptnet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::ptnet(data));

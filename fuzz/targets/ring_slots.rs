//! See `fuzz_bodies::ring_slots`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::ring_slots(data));

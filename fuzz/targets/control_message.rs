//! See `fuzz_bodies::control_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::control_message(data));

//! See `fuzz_bodies::helper_question`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::helper_question(data));

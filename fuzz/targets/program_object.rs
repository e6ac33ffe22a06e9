//! See `fuzz_bodies::program_object`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::program_object(data));

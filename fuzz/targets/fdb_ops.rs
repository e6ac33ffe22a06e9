//! See `fuzz_bodies::fdb_ops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::fdb_ops(data));

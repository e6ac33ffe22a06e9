//! See `fuzz_bodies::virtqueue`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::virtqueue(data));

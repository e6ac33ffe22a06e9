//! See `fuzz_bodies::vhost_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::vhost_message(data));

//! See `fuzz_bodies::mcast_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::mcast_message(data));

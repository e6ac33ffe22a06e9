//! See `fuzz_bodies::vfio_user_message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::vfio_user_message(data));

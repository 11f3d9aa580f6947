#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| oncegate_fuzz::cbor::check(input));

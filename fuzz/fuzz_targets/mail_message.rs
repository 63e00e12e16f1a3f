#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| tollgate_fuzz::mail_message(input));

//! The program of all fuzz targets: libFuzzer's own, with `SANDPOD_FUZZ_TARGET` saying which.

#![no_main]

libfuzzer_sys::fuzz_target!(init: sandpod_fuzz::begin(), |data: &[u8]| sandpod_fuzz::run(data));

//! The program of all fuzz targets: libFuzzer's `main`; `SANDPOD_FUZZ_TARGET` selects the target.

#![no_main]

libfuzzer_sys::fuzz_target!(init: sandpod_fuzz::begin(), |data: &[u8]| sandpod_fuzz::run(data));

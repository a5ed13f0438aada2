//! Random bytes for what listens to strangers: the guest, its paths and patterns, and the client.
//!
//! libFuzzer makes inputs, keeps those that reach new code and goes on from them. A [`Target`] gives
//! an input to its subject and panics when a promise is broken: nothing panics, hangs, takes more
//! memory than the bounds allow or touches what it must not. What a target does, it does in a [`cell`].
//!
//! Each target can be told to put a known bug in front of its subject, so that a test can show that
//! it would find one: that is what `planted` means everywhere here.

pub mod cell;
mod client;
mod frames;
mod globs;
mod http;
mod memory;
mod messages;
mod outside;
mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;

/// Takes one input; with a bug of its own if `planted`.
type Run = fn(input: &[u8], planted: bool);

/// One thing that is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As people name it.
    pub name: &'static str,
    run: Run,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "client", run: client::run },
    Target { name: "frames", run: frames::run },
    Target { name: "globs", run: globs::run },
    Target { name: "http", run: http::run },
    Target { name: "messages", run: messages::run },
];

static CHOSEN: OnceLock<(Run, bool)> = OnceLock::new();

/// Chooses the target that `SANDPOD_FUZZ_TARGET` names, and enters the cell.
///
/// # Panics
///
/// When there is no such target, or no cell can be made.
pub fn begin() {
    let name = std::env::var("SANDPOD_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    let target =
        target.unwrap_or_else(|| panic!("SANDPOD_FUZZ_TARGET={name} is no target: use cargo xtask fuzz"));
    let planted = std::env::var_os("SANDPOD_FUZZ_PLANTED").is_some();
    CHOSEN.get_or_init(|| (target.run, planted));
    // Merging corpora starts this program again for each step, and only that takes inputs.
    if std::env::args().any(|argument| argument == "-merge=1") {
        return;
    }
    let directories =
        |name| std::env::var_os(name).iter().flat_map(std::env::split_paths).collect::<Vec<PathBuf>>();
    cell::enter(&directories("SANDPOD_FUZZ_READS"), &directories("SANDPOD_FUZZ_WRITES")).unwrap_or_else(
        |error| panic!("nothing is fuzzed without a cell, and none can be made here: {error}"),
    );
}

/// Gives an input to the chosen target.
pub fn run(input: &[u8]) {
    if let Some((run, planted)) = CHOSEN.get() {
        memory::bounded(|| run(input, *planted));
    }
}

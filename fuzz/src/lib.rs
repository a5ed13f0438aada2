//! Random inputs for all code that reads untrusted bytes: the guest, its paths and patterns, the client, and the router.
//!
//! libFuzzer makes inputs, keeps those that reach new code and mutates them. A [`Target`] passes an input to its subject
//! and panics when a promise is broken: a subject must not panic, hang, exceed its memory limit or access files outside of
//! its root. All targets run in a [`cell`].
//!
//! Each target has a known bug that it can put in front of its subject (`planted`), so that a test can check that the
//! target finds it.

pub mod cell;
mod client;
mod frames;
mod globs;
mod http;
mod memory;
mod messages;
mod outside;
mod paths;
mod router;
mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;

/// Processes one input, with the planted bug if `planted` is set.
type Run = fn(input: &[u8], planted: bool);

/// A subject of fuzzing.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target.
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
    Target { name: "paths", run: paths::run },
    Target { name: "router", run: router::run },
];

static CHOSEN: OnceLock<(Run, bool)> = OnceLock::new();

/// Selects the target that `SANDPOD_FUZZ_TARGET` names, and enters the cell.
///
/// # Panics
///
/// If the target does not exist, or the cell cannot be created.
pub fn begin() {
    let name = std::env::var("SANDPOD_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    let target =
        target.unwrap_or_else(|| panic!("SANDPOD_FUZZ_TARGET={name} is no target: use cargo xtask fuzz"));
    let planted = std::env::var_os("SANDPOD_FUZZ_PLANTED").is_some();
    CHOSEN.get_or_init(|| (target.run, planted));
    // A merge of corpora starts this program again for each step, and only these processes get inputs.
    if std::env::args().any(|argument| argument == "-merge=1") {
        return;
    }
    let directories =
        |name| std::env::var_os(name).iter().flat_map(std::env::split_paths).collect::<Vec<PathBuf>>();
    cell::enter(&directories("SANDPOD_FUZZ_READS"), &directories("SANDPOD_FUZZ_WRITES")).unwrap_or_else(
        |error| panic!("nothing is fuzzed without a cell, and none can be made here: {error}"),
    );
}

/// Passes an input to the selected target.
pub fn run(input: &[u8]) {
    if let Some((run, planted)) = CHOSEN.get() {
        memory::bounded(|| run(input, *planted));
    }
}

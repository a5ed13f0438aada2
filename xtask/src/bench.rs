//! `cargo xtask bench NAME`: measures both sides of a comparison in one run, prints the numbers and writes them to
//! `bench/results`. The guest and the command are built as for a release.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::node::{PACKAGE, Package};
use crate::progress::step;
use crate::python::Environment;
use crate::shell::{command, run};
use crate::workspace::{root, target};
use crate::{cluster, guest, packages};

/// A benchmark.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Name {
    /// Sandboxes of agent-sandbox, beside its own Python client
    AgentSandbox,
    /// The guest alone: calls, commands, transfers and searches over a Unix socket
    Guest,
    /// A sandbox on this machine, beside bubblewrap
    Local,
    /// Calls and transfers of the npm package, beside the same from Rust
    Node,
    /// Sandboxes as Pods: from a warm pool, without one, many at once, and many that stay open
    Raw,
    /// The path from a call to a command in a Pod and back
    Spine,
}

/// Prepares and runs a benchmark.
pub(crate) fn run_one(name: Name) -> Result<()> {
    match name {
        Name::Guest => {
            let guest = released_guest()?;
            packages::install(packages::BENCH)?;
            run(bench("bench-guest")
                .arg("--no-default-features")
                .env("SANDPOD_BENCH_GUEST", guest.join("sandpod-guest")))
        }
        Name::Local => {
            packages::install(packages::BENCH_LOCAL)?;
            let guest = released_guest()?;
            step("building the command");
            run(command("cargo", ["build", "--profile=dist", "--quiet", "--package=sandpod-cli"])
                .current_dir(root()))?;
            run(bench("bench-local")
                .arg("--no-default-features")
                .env("SANDPOD_GUEST_DIR", guest)
                .env("SANDPOD_BENCH_COMMAND", target().join("dist/sandpod")))
        }
        Name::Node => node(),
        Name::Raw => {
            released_guest()?;
            run(bench("bench-raw").env("SANDPOD_TEST_KUBECONFIG", cluster::up()?))
        }
        Name::AgentSandbox => beside_python("bench-agent-sandbox"),
        Name::Spine => beside_python("bench-spine"),
    }
}

/// The benchmark of the npm package. Without a cluster it measures local mode only.
fn node() -> Result<()> {
    let guest = released_guest()?;
    Package::prepare()?.run_script("build")?;
    step("building the benchmark and the addon");
    // In one build, so that both have the same library.
    let arguments = ["build", "--release", "--quiet", "--package=sandpod-bench", "--package=sandpod-node"];
    run(command("cargo", arguments).args(["--lib", "--bin=bench-node"]).current_dir(root()))?;
    let release = target().join("release");
    // Node loads an addon by this extension only.
    let addon = release.join("sandpod.node");
    fs::copy(release.join("libsandpod_node.so"), &addon).context("cannot copy the addon")?;
    let mut bench = Command::new(release.join("bench-node"));
    match cluster::obstacle() {
        None => drop(bench.env("SANDPOD_TEST_KUBECONFIG", cluster::up()?)),
        Some(reason) => {
            step(format!("no measurement of raw mode: {reason}"));
            bench.env_remove("SANDPOD_TEST_KUBECONFIG");
        }
    }
    run(bench
        .current_dir(root())
        .env("SANDPOD_GUEST_DIR", guest)
        .env("SANDPOD_BENCH_NODE_PACKAGE", root().join(PACKAGE))
        .env("NAPI_RS_NATIVE_LIBRARY_PATH", addon))
}

/// A benchmark on the cluster that also starts Python and kubectl.
fn beside_python(binary: &str) -> Result<()> {
    released_guest()?;
    let kubeconfig = cluster::up()?;
    let python = Environment::prepare()?;
    run(bench(binary)
        .env("SANDPOD_TEST_KUBECONFIG", kubeconfig)
        .env("SANDPOD_BENCH_PYTHON", python.program("python"))
        .env("PATH", cluster::path_with_tools()?))
}

/// Builds the guest as for a release.
fn released_guest() -> Result<PathBuf> {
    guest::build(guest::Arch::own(), guest::Profile::Dist)
}

fn bench(binary: &str) -> Command {
    step("building the benchmark");
    let mut bench =
        command("cargo", ["run", "--release", "--quiet", "--package=sandpod-bench", "--bin", binary]);
    bench.current_dir(root());
    bench
}

//! `cargo xtask bench NAME`: both sides of each claim in one run, printed and kept in `bench/results`.

use anyhow::Result;
use clap::ValueEnum;

use crate::progress::step;
use crate::python::Environment;
use crate::shell::{command, run};
use crate::workspace::root;
use crate::{cluster, guest};

/// A benchmark.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Name {
    /// The path from a call to a command in a Pod and back
    Spine,
}

/// Starts what the benchmark needs and runs it.
pub(crate) fn run_one(name: Name) -> Result<()> {
    let Name::Spine = name;
    let kubeconfig = cluster::up()?;
    guest::build(guest::Arch::own())?;
    let python = Environment::prepare()?;
    step("building the benchmark");
    let mut bench =
        command("cargo", ["run", "--release", "--quiet", "--package=sandpod-bench", "--bin=bench-spine"]);
    bench
        .current_dir(root())
        .env("SANDPOD_TEST_KUBECONFIG", kubeconfig)
        .env("PATH", cluster::path_with_tools()?);
    bench.env("SANDPOD_BENCH_PYTHON", python.program("python"));
    run(&mut bench)
}

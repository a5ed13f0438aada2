//! `cargo xtask lint`: runs all checks that need no test, then prints the command that repeats each failed one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::{Clock, step};
use crate::python::{self, Environment};
use crate::shell::{command, line, output, run};
use crate::workspace::{cache, files, root, target};
use crate::{dist, node};
use crate::{links, packages, prose};

const CARGO_DENY: &str = "0.20.2";
/// The directory of the workflows, and the programs that check them.
const WORKFLOWS: &str = ".github/workflows";
const ACTIONLINT: &str = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12";
const ZIZMOR: &str = "zizmor==1.32.0";

/// Runs all checks.
pub(crate) fn run_all() -> Result<()> {
    packages::install(packages::LINT)?;
    let deny = cargo_deny()?;
    let python = Environment::prepare()?;
    let node = node::Package::prepare()?;
    let checks = [
        ("rustfmt", command("cargo", ["fmt", "--all", "--check"])),
        (
            "clippy",
            command("cargo", ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
        ),
        ("rustfmt of fuzz", command("cargo", ["fmt", "--manifest-path=fuzz/Cargo.toml", "--check"])),
        ("clippy of fuzz", fuzz_clippy()),
        ("rustdoc", rustdoc()),
        ("cargo-deny", command(deny, ["--log-level=error", "check", "bans", "licenses", "sources"])),
        ("ruff", command(python.program("ruff"), ["check", "--quiet", python::PACKAGE, "bench", "scripts"])),
        (
            "ruff format",
            command(
                python.program("ruff"),
                ["format", "--check", "--quiet", python::PACKAGE, "bench", "scripts"],
            ),
        ),
        ("pyright", pyright(&python)),
        ("go vet", command("go", ["-C", "testbed", "vet", "./..."])),
        ("shellcheck", command("shellcheck", shell_scripts()?)),
        ("actionlint", command("go", ["run", ACTIONLINT])),
        ("zizmor", command(zizmor()?, ["--offline", "--quiet", WORKFLOWS])),
    ];
    let mut failures = Vec::new();
    for (name, mut check) in checks {
        let again = line(&check);
        attempt(name, &again, &mut failures, || run(check.current_dir(root())));
    }
    attempt("stubtest", "cargo xtask lint", &mut failures, || stubtest(&python));
    attempt("lint of the npm package", "npm --prefix bindings/node run lint", &mut failures, || {
        run(&mut node.npm(&["run", "--silent", "lint"]))
    });
    attempt("gofmt", "gofmt -d testbed", &mut failures, gofmt);
    attempt("versions", "cargo xtask lint", &mut failures, dist::check_versions);
    attempt("links in docs", "cargo xtask lint", &mut failures, || links::check(&root()));
    attempt("prose", "cargo xtask prose", &mut failures, || prose::check(&root()));
    if failures.is_empty() {
        return Ok(());
    }
    bail!("lint failed; each line is the command that repeats a check:\n{}", failures.join("\n"))
}

fn attempt(name: &str, again: &str, failures: &mut Vec<String>, check: impl FnOnce() -> Result<()>) {
    let clock = Clock::start();
    step(name);
    if let Err(error) = check() {
        eprintln!("{error:#}");
        failures.push(format!("  {name}: {again}"));
    }
    step(format!("{name}: {:.1}s", clock.seconds()));
}

/// Clippy of the fuzz targets. They are built without coverage, and so in a target directory of their own.
fn fuzz_clippy() -> Command {
    let mut clippy =
        command("cargo", ["clippy", "--manifest-path=fuzz/Cargo.toml", "--all-targets", "--quiet"]);
    clippy.arg("--target-dir").arg(target().join("fuzz/lint")).args(["--", "-D", "warnings"]);
    clippy.env("RUSTFLAGS", "--cfg fuzzing");
    clippy
}

fn rustdoc() -> Command {
    let mut rustdoc = command("cargo", ["doc", "--workspace", "--no-deps", "--quiet"]);
    rustdoc.env("RUSTDOCFLAGS", "-D warnings");
    rustdoc
}

fn pyright(python: &Environment) -> Command {
    let mut pyright = python.tool("pyright");
    pyright.args(["--project", python::PACKAGE, "--pythonpath"]).arg(python.program("python"));
    pyright
}

/// Compares the native module with its stub. The profile is the one of `pip install`, so there is one build for both.
fn stubtest(python: &Environment) -> Result<()> {
    run(command("cargo", ["build", "--quiet", "--package=sandpod-python", "--profile=quick"])
        .current_dir(root()))?;
    let package = target().join("stubtest/sandpod");
    fs::create_dir_all(&package)?;
    for name in ["__init__.py", "errors.py", "_native.pyi"] {
        fs::copy(root().join(python::PACKAGE).join("python/sandpod").join(name), package.join(name))?;
    }
    fs::copy(target().join("quick/lib_native.so"), package.join("_native.abi3.so"))?;
    let path = target().join("stubtest");
    let mut stubtest = python.tool("stubtest");
    stubtest.env("MYPYPATH", &path).env("PYTHONPATH", &path).env("MYPY_CACHE_DIR", path.join("cache"));
    run(stubtest.args(["--concise", "sandpod._native"]))
}

/// The tracked files that are shell scripts by their name or first line.
fn shell_scripts() -> Result<Vec<PathBuf>> {
    let is_script = |path: &PathBuf| {
        let start = fs::read(root().join(path)).unwrap_or_default();
        path.extension().is_some_and(|extension| extension == "sh")
            || start.starts_with(b"#!/usr/bin/env bash")
            || start.starts_with(b"#!/bin/sh")
    };
    Ok(files(&root())?.into_iter().filter(is_script).collect())
}

fn gofmt() -> Result<()> {
    let unformatted = output(command("gofmt", ["-l", "testbed"]).current_dir(root()))?;
    if !unformatted.is_empty() {
        bail!("these files are not formatted, run `gofmt -w testbed`:\n{unformatted}");
    }
    Ok(())
}

/// Returns zizmor in our version, from the cache or installed there now.
fn zizmor() -> Result<PathBuf> {
    let dir = cache()?.join("python/zizmor");
    let why = "installing zizmor into a virtual environment, once";
    Ok(Environment::of(dir, why, &[ZIZMOR])?.program("zizmor"))
}

/// Returns cargo-deny in our version, from the cache or installed there now.
fn cargo_deny() -> Result<PathBuf> {
    let dir = cache()?.join(format!("tools/cargo-deny-{CARGO_DENY}"));
    let binary = dir.join("bin/cargo-deny");
    if !binary.exists() {
        step(format!("installing cargo-deny {CARGO_DENY}, once: about two minutes on two cores"));
        let mut install = command(
            "cargo",
            ["install", "cargo-deny", "--locked", "--quiet", "--debug", "--version", CARGO_DENY],
        );
        run(install.arg("--root").arg(&dir)).context("cannot install cargo-deny")?;
    }
    Ok(binary)
}

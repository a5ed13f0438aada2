//! `cargo xtask guest`: the static binaries that go into a sandbox, into the cache where the
//! library looks for them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::progress::{Clock, step};
use crate::shell::{command, run, succeeds};
use crate::workspace::{cache, root, target};

const BINARIES: [&str; 2] = ["sandpod-boot", "sandpod-guest"];

/// An architecture that sandboxes run on, as Kubernetes names it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// This machine's own.
    pub(crate) fn own() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    pub(crate) fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }
}

/// Builds the guest for `arch` and returns the directory it is kept in.
pub(crate) fn build(arch: Arch) -> Result<PathBuf> {
    let clock = Clock::start();
    step(format!("building the guest for {}", arch.name()));
    let triple = usable_target(arch)?;
    let mut cargo = command("cargo", ["build", "--release", "--package=sandpod-guest", "--bins", "--quiet"]);
    cargo.arg("--target").arg(&triple).current_dir(root());
    set_linker(&mut cargo, arch, &triple);
    run(&mut cargo).context("cannot build the guest")?;

    let dir = cache()?.join("guest").join(arch.name());
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for binary in BINARIES {
        // Renamed into place: a sandbox that starts meanwhile reads the old one or the new one.
        let (built, unfinished) =
            (target().join(&triple).join("release").join(binary), dir.join(format!(".{binary}")));
        fs::copy(&built, &unfinished).with_context(|| format!("cannot copy {}", built.display()))?;
        fs::rename(&unfinished, dir.join(binary))?;
        let size = fs::metadata(dir.join(binary))?.len();
        step(format!("{binary} for {}: {} KiB", arch.name(), size / 1024));
    }
    step(format!("built in {:.0}s", clock.seconds()));
    Ok(dir)
}

/// The musl target, added if need be; glibc linked statically where it can't be had.
fn usable_target(arch: Arch) -> Result<String> {
    let musl = format!("{}-unknown-linux-musl", arch.rust());
    if succeeds(&mut command("rustup", ["target", "add", &musl])) {
        return Ok(musl);
    }
    if arch != Arch::own() {
        bail!("there is no {musl} toolchain: run `rustup target add {musl}` and see what it says");
    }
    step(format!("there is no {musl} toolchain: linking glibc statically instead"));
    Ok(format!("{}-unknown-linux-gnu", arch.rust()))
}

fn set_linker(cargo: &mut Command, arch: Arch, triple: &str) {
    if triple.ends_with("gnu") {
        cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    }
    if arch != Arch::own() {
        // No C is linked, so the toolchain's own linker does for a foreign architecture.
        let variable = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
        cargo.env(variable, "rust-lld");
    }
}

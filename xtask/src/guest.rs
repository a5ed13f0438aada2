//! The static binaries that go into a sandbox. `cargo xtask guest` builds them quickly, into the cache where the library
//! looks for them. `cargo xtask dist` builds the released ones, into `dist`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use sha2::{Digest as _, Sha256};

use crate::progress::{Clock, step};
use crate::shell::{command, output, run, succeeds};
use crate::workspace::{cache, hex, root, target};

const GUEST: &str = "sandpod-guest";
pub(crate) const BINARIES: [&str; 2] = ["sandpod-boot", "sandpod-guest"];
/// The largest size of each as released, in bytes.
const LIMITS: [(&str, usize); 2] = [("sandpod-boot", 500 << 10), ("sandpod-guest", 5 << 20)];

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

    pub(crate) fn name(self) -> &'static str {
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

/// The Cargo profile that the guest is built with.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// For tests: quick to build.
    Quick,
    /// For an image that a developer makes.
    Release,
    /// For a release: small.
    Dist,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Release => "release",
            Self::Dist => "dist",
        }
    }
}

/// Builds the guest for `arch` and returns the directory in the cache that holds it.
pub(crate) fn build(arch: Arch, profile: Profile) -> Result<PathBuf> {
    let clock = Clock::start();
    step(format!("building the guest for {}", arch.name()));
    let kept = keep(&compile(&[GUEST], arch, &usable_target(arch)?, profile)?, arch)?;
    step(format!("built in {:.0}s", clock.seconds()));
    Ok(kept)
}

/// The static binaries that tests put into images.
pub(crate) struct ForTests {
    /// The directory that holds the guest.
    pub(crate) guest: PathBuf,
    /// The command `sandpod`.
    pub(crate) command: PathBuf,
}

/// Builds the guest and the command for tests, at once: apart, they would need two builds of some dependencies.
pub(crate) fn build_for_tests() -> Result<ForTests> {
    step("building the guest and the command for tests");
    let arch = Arch::own();
    let built = compile(&[GUEST, "sandpod-cli"], arch, &usable_target(arch)?, Profile::Quick)?;
    Ok(ForTests { guest: keep(&built, arch)?, command: built.join("sandpod") })
}

/// Copies the guest into the cache; returns the directory there.
fn keep(built: &Path, arch: Arch) -> Result<PathBuf> {
    let dir = cache()?.join("guest").join(arch.name());
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for binary in BINARIES {
        // Renamed into place: a sandbox that starts meanwhile reads the old one or the new one.
        let (built, unfinished) = (built.join(binary), dir.join(format!(".{binary}")));
        fs::copy(&built, &unfinished).with_context(|| format!("cannot copy {}", built.display()))?;
        fs::rename(&unfinished, dir.join(binary))?;
        let size = fs::metadata(dir.join(binary))?.len();
        step(format!("{binary} for {}: {} KiB", arch.name(), size / 1024));
    }
    Ok(dir)
}

/// Builds the released binaries for every architecture that can be built here; fails if one is too large.
pub(crate) fn dist() -> Result<()> {
    let (dist, mut shipped) = (root().join("dist"), Shipped::default());
    for arch in [Arch::Amd64, Arch::Arm64] {
        step(format!("building the released binaries for {}", arch.name()));
        let triple = match usable_target(arch) {
            Ok(triple) => triple,
            Err(error) if arch != Arch::own() => {
                step(format!("skipped: {error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        shipped.add(&compile(&[GUEST], arch, &triple, Profile::Dist)?, &dist, &triple)?;
        if arch == Arch::own() {
            run_in_empty_root(&dist.join(&triple).join("sandpod-guest"))?;
        }
    }
    fs::write(dist.join("SHA256SUMS"), &shipped.sums)?;
    ensure!(shipped.too_large.is_empty(), "larger than the limit: {}", shipped.too_large.join(", "));
    Ok(())
}

/// The contents of `dist`.
#[derive(Default)]
struct Shipped {
    sums: String,
    too_large: Vec<String>,
}

impl Shipped {
    /// Copies the binaries of one architecture there.
    fn add(&mut self, built: &Path, dist: &Path, triple: &str) -> Result<()> {
        fs::create_dir_all(dist.join(triple))?;
        for (binary, limit) in LIMITS {
            let shipped = dist.join(triple).join(binary);
            fs::copy(built.join(binary), &shipped)?;
            let content = fs::read(&shipped)?;
            step(format!("{triple}/{binary}: {} KiB of at most {}", content.len() / 1024, limit / 1024));
            writeln!(self.sums, "{}  {triple}/{binary}", hex(&Sha256::digest(&content)))?;
            self.too_large.extend((content.len() > limit).then(|| format!("{triple}/{binary}")));
        }
        Ok(())
    }
}

/// Checks that the guest runs in a root directory without any other file, as in an empty image.
fn run_in_empty_root(guest: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        step("not run in an empty root: that needs root");
        return Ok(());
    }
    let empty = tempfile::tempdir()?;
    fs::copy(guest, empty.path().join("guest"))?;
    let version =
        output(&mut command("chroot", [empty.path().as_os_str(), "/guest".as_ref(), "--version".as_ref()]))
            .context("the guest does not run in an empty root")?;
    step(format!("it runs in an empty root: {}", version.trim()));
    Ok(())
}

/// Compiles the binaries of packages; returns the directory that holds them.
fn compile(packages: &[&str], arch: Arch, triple: &str, profile: Profile) -> Result<PathBuf> {
    let mut cargo = command("cargo", ["build", "--bins", "--quiet"]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    cargo.args(["--profile", profile.name(), "--target", triple]).current_dir(root());
    set_linker(&mut cargo, arch, triple);
    if arch == Arch::own() {
        // ring's C code needs no library, so this machine's compiler can build it for musl.
        cargo.env(format!("CC_{}", triple.replace('-', "_")), "cc");
    }
    run(&mut cargo).with_context(|| format!("cannot build {}", packages.join(" and ")))?;
    Ok(target().join(triple).join(profile.name()))
}

/// The musl target, which is added if needed; a target with static glibc if there is no musl.
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
        // No C is linked, so the toolchain's own linker works for another architecture.
        let variable = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
        cargo.env(variable, "rust-lld");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_binaries_have_checksums_and_a_too_large_one_is_named() {
        let (built, dist) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut shipped = Shipped::default();
        for (triple, boot_bytes) in [("one", 3), ("other", (500 << 10) + 1)] {
            fs::write(built.path().join("sandpod-boot"), vec![0; boot_bytes]).unwrap();
            fs::write(built.path().join("sandpod-guest"), "guest").unwrap();
            shipped.add(built.path(), dist.path(), triple).unwrap();
        }
        fs::write(dist.path().join("SHA256SUMS"), &shipped.sums).unwrap();

        assert_eq!(shipped.too_large, ["other/sandpod-boot"]);
        let mut check = command("sha256sum", ["--check", "SHA256SUMS"]);
        let listing = output(check.current_dir(dist.path())).unwrap();
        assert_eq!(listing.lines().filter(|line| line.ends_with(": OK")).count(), 4, "{listing}");
    }
}

//! The static binaries that go into a sandbox, and the command, which contains them. `cargo xtask guest` builds the guest
//! quickly, into the cache where the library looks for it. `cargo xtask dist` builds the released ones.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::dist;
use crate::progress::{Clock, step};
use crate::shell::{command, run, succeeds};
use crate::workspace::{cache, root, target};

const GUEST: &str = "sandpod-guest";
const COMMAND: &str = "sandpod-cli";
const ROUTER: &str = "sandpod-router";
/// The programs of these two packages.
const PROGRAMS: [&str; 2] = ["sandpod", "sandpod-router"];
pub(crate) const BINARIES: [&str; 2] = ["sandpod-boot", "sandpod-guest"];

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

    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Amd64 => Self::Arm64,
            Self::Arm64 => Self::Amd64,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Its name in Node.
    pub(crate) fn node(self) -> &'static str {
        match self {
            Self::Amd64 => "x64",
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
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Profile {
    /// For tests: quick to build.
    Quick,
    /// For an image that a developer makes.
    Release,
    /// For a release: small.
    Dist,
}

impl Profile {
    pub(crate) fn name(self) -> &'static str {
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
    let built = Build { packages: &[GUEST], programs: &BINARIES, arch, profile, guests: None }.run(None)?;
    let kept = keep(&built, arch)?;
    step(format!("built in {:.0}s", clock.seconds()));
    Ok(kept)
}

/// The static binaries that tests put into images.
pub(crate) struct ForTests {
    /// The directory that holds the guest.
    pub(crate) guest: PathBuf,
    /// The directory that holds one directory with the guest for each architecture, as packages contain it.
    pub(crate) embedded: PathBuf,
    /// The command `sandpod`, which contains the guest.
    pub(crate) command: PathBuf,
    pub(crate) router: PathBuf,
}

/// Builds the guest, the command and the router for tests. Both builds select all packages, so that they share their
/// dependencies.
pub(crate) fn build_for_tests() -> Result<ForTests> {
    step("building the guest, the command and the router for tests");
    let (arch, profile) = (Arch::own(), Profile::Quick);
    let packages = &[GUEST, COMMAND, ROUTER];
    let guest = Build { packages, programs: &BINARIES, arch, profile, guests: None };
    let programs = guest.run(None)?;
    let embedded = stage(&programs, arch, profile)?;
    Build { programs: &PROGRAMS, guests: Some(&embedded), ..guest }.run(None)?;
    let [command, router] = PROGRAMS.map(|program| programs.join(program));
    Ok(ForTests { guest: keep(&programs, arch)?, embedded, command, router })
}

/// Builds the guest of a release; returns the directory that holds one directory for each architecture built so far.
pub(crate) fn build_released(arch: Arch) -> Result<PathBuf> {
    let profile = Profile::Dist;
    let build = Build { packages: &[GUEST], programs: &BINARIES, arch, profile, guests: None };
    stage(&build.run(None)?, arch, profile)
}

/// Builds the command of a release with the guests below `guests`, and the router; returns their paths. `zigbuild` makes the
/// command of cargo-zigbuild, which compiles C for another architecture.
pub(crate) fn build_released_programs(
    arch: Arch,
    guests: &Path,
    zigbuild: impl FnOnce() -> Result<Command>,
) -> Result<[PathBuf; 2]> {
    let packages = &[COMMAND, ROUTER];
    let programs =
        Build { packages, programs: &PROGRAMS, arch, profile: Profile::Dist, guests: Some(guests) };
    let zigbuild = if arch == Arch::own() { None } else { Some(zigbuild()?) };
    let built = programs.run(zigbuild)?;
    Ok(PROGRAMS.map(|program| built.join(program)))
}

/// Copies the guest to where builds embed it; returns the directory that holds one directory for each architecture. Files that
/// did not change keep their times, because cargo compares those.
fn stage(built: &Path, arch: Arch, profile: Profile) -> Result<PathBuf> {
    let all = target().join("guests").join(profile.name());
    let dir = all.join(arch.name());
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for binary in BINARIES {
        let (built, staged) = (fs::read(built.join(binary))?, dir.join(binary));
        if fs::read(&staged).ok().as_ref() != Some(&built) {
            fs::write(&staged, built)?;
            fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(all)
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

/// A build of static programs.
#[derive(Clone, Copy)]
struct Build<'a> {
    packages: &'a [&'a str],
    programs: &'a [&'a str],
    arch: Arch,
    profile: Profile,
    /// The directory of the guests that the command embeds.
    guests: Option<&'a Path>,
}

impl Build<'_> {
    /// Runs cargo, or the given command of cargo-zigbuild; returns the directory that holds the programs.
    fn run(&self, zigbuild: Option<Command>) -> Result<PathBuf> {
        let triple = usable_target(self.arch)?;
        let flags = if triple.ends_with("gnu") { "-Ctarget-feature=+crt-static" } else { "" };
        let mut cargo = match zigbuild {
            Some(mut zigbuild) => {
                zigbuild.arg("zigbuild");
                zigbuild
            }
            None => self.own_cargo(&triple),
        };
        cargo.args(["--quiet", "--locked", "--profile", self.profile.name(), "--target", &triple]);
        cargo.args(self.packages.iter().flat_map(|package| ["--package", package]));
        cargo.args(self.programs.iter().flat_map(|program| ["--bin", program]));
        if let Some(guests) = self.guests {
            cargo.env("SANDPOD_EMBED_GUESTS", guests);
        }
        if self.profile == Profile::Dist {
            dist::make_reproducible(&mut cargo, flags)?;
        } else if !flags.is_empty() {
            cargo.env("RUSTFLAGS", flags);
        }
        run(cargo.current_dir(root()))
            .with_context(|| format!("cannot build {}", self.programs.join(" and ")))?;
        Ok(target().join(triple).join(self.profile.name()))
    }

    /// `cargo build`, which compiles no C for another architecture.
    fn own_cargo(&self, triple: &str) -> Command {
        let mut cargo = command("cargo", ["build"]);
        if self.arch == Arch::own() {
            // ring's C code needs no library, so this machine's compiler can build it for musl.
            cargo.env(format!("CC_{}", triple.replace('-', "_")), "cc");
        } else {
            // No C is linked, so the toolchain's own linker works for another architecture.
            let variable = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase().replace('-', "_"));
            cargo.env(variable, "rust-lld");
        }
        cargo
    }
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

//! The tools of a full release: zig compiles and links for other machines, maturin makes wheels.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::archive::set_source_date;
use super::platform::Platform;
use crate::progress::step;
use crate::python::Environment;
use crate::shell::{command, output, run, succeeds};
use crate::workspace::{cache, root, target};

const PACKAGES: &[&str] =
    &["auditwheel==6.8.2", "cargo-zigbuild==0.24.0", "maturin==1.16.0", "ziglang==0.17.0"];
const CYCLONEDX: &str = "0.5.9";

/// The tools, in the cache.
pub(super) struct Tools {
    environment: Environment,
}

impl Tools {
    /// Returns the tools from the cache, or installs them there, and adds the targets of Rust.
    pub(super) fn prepare() -> Result<Self> {
        for platform in Platform::ALL {
            let triple = platform.triple();
            let added = succeeds(&mut command("rustup", ["target", "add", &triple]));
            anyhow::ensure!(added, "there is no {triple} toolchain: run `rustup target add {triple}`");
        }
        let environment = Environment::of(
            cache()?.join("python/dist"),
            "installing zig, maturin and auditwheel into a virtual environment, once",
            PACKAGES,
        )?;
        Ok(Self { environment })
    }

    /// A program of the environment, which finds zig.
    pub(super) fn program(&self, name: &str) -> Result<Command> {
        let mut program = self.environment.tool(name);
        let path = env::var_os("PATH").unwrap_or_default();
        let programs = [self.environment.program("")].into_iter().chain(env::split_paths(&path));
        program.env("PATH", env::join_paths(programs)?);
        Ok(program)
    }

    /// The licence of musl, which zig contains.
    pub(super) fn musl_license(&self) -> Result<String> {
        let find = "import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).parent)";
        let dir = output(self.environment.tool("python").args(["-c", find]))?;
        let path = Path::new(dir.trim()).join("lib/libc/musl/COPYRIGHT");
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// `cargo build` with zig as the compiler and linker of C.
    pub(super) fn cargo(&self, platform: Platform) -> Result<Command> {
        let mut cargo = self.program("cargo-zigbuild")?;
        cargo.args(["zigbuild", "--locked", "--quiet", "--target", &platform.zig_triple()]);
        reproducible(&mut cargo, "")?;
        Ok(cargo)
    }
}

/// Sets variables so that the output does not depend on the time and on the paths of this machine. `flags` are further
/// arguments of rustc.
pub(crate) fn reproducible(build: &mut Command, flags: &str) -> Result<()> {
    let cargo = match env::var_os("CARGO_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => env::home_dir().context("no home directory: set HOME or CARGO_HOME")?.join(".cargo"),
    };
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let flags =
        [remap(&cargo, "/cargo"), remap(&root(), "/sandpod"), remap(&target(), "/target"), flags.to_owned()];
    build.env("RUSTFLAGS", flags.join(" ").trim_end());
    set_source_date(build)
}

/// Returns cargo-cyclonedx in our version, from the cache or installed there now.
pub(super) fn cyclonedx() -> Result<PathBuf> {
    let dir = cache()?.join(format!("tools/cargo-cyclonedx-{CYCLONEDX}"));
    let binary = dir.join("bin/cargo-cyclonedx");
    if !binary.exists() {
        step(format!("installing cargo-cyclonedx {CYCLONEDX}, once: about two minutes on two cores"));
        let mut install = command(
            "cargo",
            ["install", "cargo-cyclonedx", "--locked", "--quiet", "--debug", "--version", CYCLONEDX],
        );
        run(install.arg("--root").arg(&dir)).context("cannot install cargo-cyclonedx")?;
    }
    Ok(binary)
}

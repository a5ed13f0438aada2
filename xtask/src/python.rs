//! The virtual environments in the cache that the package in `bindings/python` is tested in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::progress::step;
use crate::shell::{command, run};
use crate::workspace::{cache, fingerprint, root};

/// The package, from the root.
pub(crate) const PACKAGE: &str = "bindings/python";

/// Environments for packages that conflict with the others, with the arguments of `pip install`: a version of Deep Agents
/// that is refused, the oldest for files and commands, the oldest for everything, and a server with an older protobuf.
const OTHERS: [(&str, &[&str]); 4] = [
    ("deepagents-0.5.9", &["--no-deps", "deepagents==0.5.9"]),
    ("deepagents-0.6.1", &["deepagents==0.6.1"]),
    ("deepagents-0.7.6", &["deepagents==0.7.6", "pytest>=9.2", "pytest-asyncio>=1.4", "pytest-timeout>=2.4"]),
    ("langgraph-dev", &["deepagents>=0.7.30", "langgraph-cli[inmem]>=0.4.40", "langgraph-api>=0.16.7"]),
];

/// A virtual environment with the tools that the package's tests and checks need.
pub(crate) struct Environment {
    dir: PathBuf,
}

impl Environment {
    /// Returns the environment from the cache, or creates it.
    pub(crate) fn prepare() -> Result<Self> {
        let project = root().join(PACKAGE).join("pyproject.toml");
        let dir = cache()?.join("python").join(fingerprint(&[project], "")?);
        Self::of(
            dir,
            "installing Python's test tools into a virtual environment, once",
            &["--group", &format!("{PACKAGE}/pyproject.toml:dev")],
        )
    }

    /// Creates the other environments that are not in the cache. Each is in a directory of its name below the returned one.
    pub(crate) fn prepare_others() -> Result<PathBuf> {
        let all = cache()?.join("python/others");
        for (name, packages) in OTHERS {
            let why = format!("installing {name} into a virtual environment, once");
            Self::of(all.join(name), &why, packages)?;
        }
        Ok(all)
    }

    /// Returns the environment at `dir`, which is created with `packages` unless it exists.
    pub(crate) fn of(dir: PathBuf, why: &str, packages: &[&str]) -> Result<Self> {
        let environment = Self { dir };
        let complete = environment.dir.join("complete");
        let wanted = packages.join(" ");
        if fs::read_to_string(&complete).is_ok_and(|installed| installed == wanted) {
            return Ok(environment);
        }
        step(why);
        run(command("python3", ["-m", "venv", "--clear"]).arg(&environment.dir))
            .context("cannot create a virtual environment: python3 needs its venv module")?;
        let pip = |args: &[&str]| run(environment.tool("pip").args(["install", "--quiet"]).args(args));
        pip(&["--upgrade", "pip"])?;
        pip(packages)?;
        fs::write(complete, wanted)?;
        Ok(environment)
    }

    /// Installs a wheel of the package, whatever version is installed.
    pub(crate) fn install_wheel(&self, wheel: &Path) -> Result<()> {
        step(format!("installing {}", wheel.display()));
        let mut pip = self.tool("pip");
        pip.args(["install", "--quiet", "--force-reinstall", "--no-deps"]);
        run(pip.arg(wheel)).with_context(|| format!("cannot install {}", wheel.display()))
    }

    /// A program of the environment, started at the root.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let mut tool = Command::new(self.program(name));
        tool.current_dir(root()).env("VIRTUAL_ENV", &self.dir);
        tool
    }

    /// The path of a program of the environment.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.dir.join(Path::new("bin")).join(name)
    }
}

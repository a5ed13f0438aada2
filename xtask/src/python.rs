//! Python as the package in `bindings/python` needs it: a virtual environment in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::progress::step;
use crate::shell::{command, run};
use crate::workspace::{cache, fingerprint, root};

/// The package, from the root.
pub(crate) const PACKAGE: &str = "bindings/python";

/// Versions of Deep Agents that are tested beside the newest, and what is installed with each: one that is refused, the
/// oldest for files and commands, and the oldest for all else.
const OLDER: [(&str, &[&str]); 3] = [
    ("0.5.9", &["--no-deps"]),
    ("0.6.1", &[]),
    ("0.7.30", &["pytest>=9.2", "pytest-asyncio>=1.4", "pytest-timeout>=2.4"]),
];

/// A virtual environment with the tools that the package's tests and checks need.
pub(crate) struct Environment {
    dir: PathBuf,
}

impl Environment {
    /// Finds the environment in the cache, or makes it.
    pub(crate) fn prepare() -> Result<Self> {
        let project = root().join(PACKAGE).join("pyproject.toml");
        let dir = cache()?.join("python").join(fingerprint(&[project], "")?);
        Self::of(
            dir,
            "installing Python's test tools into an environment of their own, once",
            &["--group", &format!("{PACKAGE}/pyproject.toml:dev")],
        )
    }

    /// Finds the environments with older versions of Deep Agents, or makes them: each is named by its version below the
    /// directory that is returned.
    pub(crate) fn prepare_older() -> Result<PathBuf> {
        let all = cache()?.join("python/deepagents");
        for (version, with) in OLDER {
            let exactly = format!("deepagents=={version}");
            let why = format!("installing deepagents {version} into an environment of its own, once");
            let packages = [&[exactly.as_str()], with].concat();
            Self::of(all.join(version), &why, &packages)?;
        }
        Ok(all)
    }

    /// The environment at `dir`, which is made by installing `packages` if it isn't there yet.
    fn of(dir: PathBuf, why: &str, packages: &[&str]) -> Result<Self> {
        let environment = Self { dir };
        let complete = environment.dir.join("complete");
        if complete.exists() {
            return Ok(environment);
        }
        step(why);
        run(command("python3", ["-m", "venv", "--clear"]).arg(&environment.dir))
            .context("cannot make a virtual environment: python3 needs its venv module")?;
        let pip = |args: &[&str]| run(environment.tool("pip").args(["install", "--quiet"]).args(args));
        pip(&["--upgrade", "pip"])?;
        pip(packages)?;
        fs::write(complete, "")?;
        Ok(environment)
    }

    /// Installs the package as a user would.
    pub(crate) fn install_package(&self) -> Result<()> {
        step(format!("installing {PACKAGE}, which builds the native module"));
        run(self
            .tool("pip")
            .args(["install", "--quiet", "--force-reinstall", "--no-deps"])
            .arg(format!("./{PACKAGE}")))
        .with_context(|| format!("cannot install {PACKAGE}: try `pip install ./{PACKAGE}`"))
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

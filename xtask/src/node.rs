//! The npm package in `bindings/node`: its tools, from the lock file, and its native addon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::guest::{self, Arch};
use crate::progress::step;
use crate::shell::{command, on_path, run};
use crate::workspace::{fingerprint, root, target};

/// The package, from the root.
pub(crate) const PACKAGE: &str = "bindings/node";

/// The package with the npm packages that its tests and checks need.
pub(crate) struct Package {
    dir: PathBuf,
}

impl Package {
    /// Installs what the lock file pins, unless it is installed.
    pub(crate) fn prepare() -> Result<Self> {
        if !on_path("npm") {
            bail!(
                "the tests of {PACKAGE} need Node and npm. Install Node 20 or newer from https://nodejs.org"
            );
        }
        let dir = root().join(PACKAGE);
        let package = Self { dir };
        let wanted = fingerprint(&[package.dir.join("package-lock.json")], "")?;
        let complete = package.dir.join("node_modules/.complete");
        if fs::read_to_string(&complete).is_ok_and(|installed| installed == wanted) {
            return Ok(package);
        }
        step(format!("installing the npm packages of {PACKAGE}, once"));
        // Not `npm ci`: it fails where a registry lacks an optional package for another platform.
        run(&mut package.npm(&["install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"]))?;
        fs::write(complete, wanted)?;
        Ok(package)
    }

    /// Builds the addon in the dev profile, puts it, the guest of a directory and the license into the package, and makes
    /// JavaScript from TypeScript.
    pub(crate) fn build(&self, guest: &Path) -> Result<()> {
        let own = Arch::own();
        step(format!("building {PACKAGE}"));
        run(command("cargo", ["build", "--quiet", "--package=sandpod-node"]).current_dir(root()))?;
        let addon = self.addon();
        let new = addon.with_extension("new");
        // Without its symbols, which are larger than the rest: what npm packs is limited.
        run(command("strip", ["--strip-unneeded", "-o"])
            .arg(&new)
            .arg(target().join("debug/libsandpod_node.so")))?;
        // Another file, not other content: processes may have the old one mapped.
        fs::rename(new, addon)?;
        let in_package = self.dir.join("guest").join(own.name());
        fs::create_dir_all(&in_package)?;
        for binary in guest::BINARIES {
            // A sandbox of an earlier run may still execute the old file, which cannot be written then.
            let new = in_package.join(binary).with_extension("new");
            fs::copy(guest.join(binary), &new)?;
            fs::rename(new, in_package.join(binary))?;
        }
        fs::copy(root().join("LICENSE"), self.dir.join("LICENSE")).context("cannot copy the license")?;
        self.run_script("build")
    }

    /// The addon that [`build`](Self::build) puts into the package.
    pub(crate) fn addon(&self) -> PathBuf {
        self.dir.join(format!("sandpod.linux-{}-gnu.node", Arch::own().node()))
    }

    /// The directory of the package.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs a script of the package.
    pub(crate) fn run_script(&self, name: &str) -> Result<()> {
        run(&mut self.npm(&["run", "--silent", name]))
    }

    /// npm, started in the package.
    pub(crate) fn npm(&self, args: &[&str]) -> Command {
        let mut npm = command("npm", args);
        npm.current_dir(&self.dir);
        npm
    }

    /// A program of the installed packages, started in the package.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let mut tool = Command::new(self.dir.join("node_modules/.bin").join(name));
        tool.current_dir(&self.dir);
        tool
    }
    /// A script of the installed packages on a certain Node, started in the package.
    pub(crate) fn script_on(&self, node: &Path, script: &str) -> Command {
        let mut tool = Command::new(node);
        tool.arg(self.dir.join("node_modules").join(script)).current_dir(&self.dir);
        tool
    }
}

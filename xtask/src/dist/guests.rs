//! The guest of a release, for both architectures.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::archive::{self, Entries, PROGRAM};
use super::{Files, version};
use crate::guest::{self, Arch, BINARIES};
use crate::progress::step;
use crate::shell::{command, output};

/// The largest size of each program as released, in bytes.
const LIMITS: [(&str, usize); 2] = [("sandpod-boot", 500 << 10), ("sandpod-guest", 5 << 20)];

/// Builds the guest for both architectures, and packs each as an archive. Returns the directory that holds one directory for
/// each architecture.
pub(super) fn build(files: &Files) -> Result<PathBuf> {
    let mut dir = PathBuf::new();
    for arch in [Arch::Amd64, Arch::Arm64] {
        step(format!("building the released guest for {}", arch.name()));
        dir = guest::build_released(arch)?;
        check_sizes(&dir.join(arch.name()))?;
        pack(files, arch, &dir.join(arch.name()))?;
    }
    run_in_empty_root(&dir.join(Arch::own().name()).join("sandpod-guest"))?;
    Ok(dir)
}

fn pack(files: &Files, arch: Arch, built: &Path) -> Result<()> {
    let mut entries = Entries::new();
    for binary in BINARIES {
        entries.insert(binary.to_owned(), (PROGRAM, fs::read(built.join(binary))?));
    }
    let name = format!("sandpod-guest-{}-linux-{}", version(), arch.node());
    files.add(&format!("{name}.tar.gz"), &archive::pack(&name, &entries)?)
}

/// Fails if a program is larger than its limit: it is copied into each Pod.
fn check_sizes(built: &Path) -> Result<()> {
    for (binary, limit) in LIMITS {
        let size = fs::read(built.join(binary))?.len();
        step(format!("{binary}: {} KiB of at most {}", size / 1024, limit / 1024));
        ensure!(size <= limit, "{binary} is larger than the limit of {limit} bytes: {size}");
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_is_larger_than_the_limit_is_refused_by_name() {
        let built = tempfile::tempdir().unwrap();
        fs::write(built.path().join("sandpod-guest"), "guest").unwrap();
        fs::write(built.path().join("sandpod-boot"), vec![0; 500 << 10]).unwrap();
        check_sizes(built.path()).unwrap();
        fs::write(built.path().join("sandpod-boot"), vec![0; (500 << 10) + 1]).unwrap();
        let error = check_sizes(built.path()).unwrap_err().to_string();
        assert!(error.starts_with("sandpod-boot is larger"), "{error}");
    }
}

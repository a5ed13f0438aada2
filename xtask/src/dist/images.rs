//! The images of a release for both architectures, as OCI archives: the guest, and the command with its guests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use tar::Builder;

use super::{Files, version};
use crate::guest::Arch;
use crate::guest_image;
use crate::oci::{self, Platform, append};

/// The command of one architecture.
pub(super) type Command = (Arch, PathBuf);

/// Writes both images. `guests` has one directory for each architecture.
pub(super) fn add(files: &Files, guests: &Path, commands: &[Command]) -> Result<()> {
    let (mut of_guest, mut of_command) = (Vec::new(), Vec::new());
    for (arch, sandpod) in commands {
        let layer = guest_image::layer(&guests.join(arch.name()))?;
        of_guest.push(Platform { arch: *arch, layer });
        of_command.push(Platform { arch: *arch, layer: command_layer(sandpod)? });
    }
    write(files, "sandpod-guest", "/boot", &of_guest)?;
    write(files, "sandpod", "/bin/sandpod", &of_command)
}

fn write(files: &Files, name: &str, entrypoint: &str, platforms: &[Platform]) -> Result<()> {
    let to = files.dir().join(format!("{name}-{}-image.tar", version()));
    oci::write(&format!("{name}:{}", version()), entrypoint, platforms, &to)
}

fn command_layer(sandpod: &Path) -> Result<Vec<u8>> {
    let program = fs::read(sandpod).with_context(|| format!("cannot read {}", sandpod.display()))?;
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, "bin/sandpod", 0o755, &program)?;
    Ok(layer.into_inner()?)
}

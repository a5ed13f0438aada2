//! The images of a release for both architectures, as OCI archives: the guest, the command with its guests, and the router.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Files, version};
use crate::guest::Arch;
use crate::oci::{self, Platform};
use crate::{guest_image, program_images};

/// The command and the router of one architecture.
pub(super) type Programs = (Arch, [PathBuf; 2]);

/// Writes the images. `guests` has one directory for each architecture.
pub(super) fn add(files: &Files, guests: &Path, programs: &[Programs]) -> Result<()> {
    let layer = |(arch, _): &Programs| guest_image::layer(&guests.join(arch.name()));
    write(files, "sandpod-guest", "/boot", programs, layer)?;
    write(files, "sandpod", "/bin/sandpod", programs, |(_, [command, _])| program_images::layer(command))?;
    let layer = |(_, [_, router]): &Programs| program_images::layer(router);
    write(files, "sandpod-router", "/bin/sandpod-router", programs, layer)
}

fn write(
    files: &Files,
    name: &str,
    entrypoint: &str,
    programs: &[Programs],
    layer: impl Fn(&Programs) -> Result<Vec<u8>>,
) -> Result<()> {
    let platform = |program: &Programs| Ok(Platform { arch: program.0, layer: layer(program)? });
    let platforms = programs.iter().map(platform).collect::<Result<Vec<_>>>()?;
    let to = files.dir().join(format!("{name}-{}-image.tar", version()));
    oci::write(&format!("{name}:{}", version()), entrypoint, &platforms, &to)
}

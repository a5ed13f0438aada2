//! The image with the guest, for the option `guest_image`, and the loading of images into the testbed.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use tar::Builder;

use crate::guest::Arch;
use crate::oci::{self, Platform, append};
use crate::shell::{command, output};

/// Its name in the tests.
pub(crate) const NAME: &str = "sandpod.test/guest:1";

/// Writes the image of the guest in `built` to `to`.
pub(crate) fn write(built: &Path, arch: Arch, name: &str, to: &Path) -> Result<()> {
    oci::write(name, "/boot", &[Platform { arch, layer: layer(built)? }], to)
}

/// Loads the image of the guest in `built` into the testbed whose kubeconfig this is. Another cluster must have it already.
pub(crate) fn load(built: &Path, kubeconfig: &Path) -> Result<()> {
    give(kubeconfig, |archive| write(built, Arch::own(), NAME, archive))
}

/// Loads an image into the testbed whose kubeconfig this is. Another cluster must have it already.
pub(crate) fn give(kubeconfig: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let Some(mut ctr) = ctr(kubeconfig) else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let archive = dir.path().join("image.tar");
    write(&archive)?;
    ctr.args(["images", "import"]).arg(archive);
    output(&mut ctr).map(drop).context("cannot load an image into the testbed")
}

/// containerd's command for the testbed whose kubeconfig this is; `None` for another cluster.
pub(crate) fn ctr(kubeconfig: &Path) -> Option<Command> {
    let socket = kubeconfig.with_file_name("containerd.sock");
    let mut ctr = command("ctr", ["--namespace", "k8s.io", "--address"]);
    ctr.arg(&socket);
    socket.exists().then_some(ctr)
}

/// The files of the image, at its root: the boot stub, and the guest as one deflated part.
pub(crate) fn layer(built: &Path) -> Result<Vec<u8>> {
    let mut guest = DeflateEncoder::new(Vec::new(), Compression::best());
    guest.write_all(&fs::read(built.join("sandpod-guest"))?)?;
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, "boot", 0o555, &fs::read(built.join("sandpod-boot"))?)?;
    append(&mut layer, "guest.0", 0o444, &guest.finish()?)?;
    Ok(layer.into_inner()?)
}

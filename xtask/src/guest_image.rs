//! Writes OCI images without a registry or Docker, among them the one for the option `guest_image`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, Header};

use crate::guest::Arch;
use crate::progress::step;
use crate::shell::{command, output};
use crate::workspace::hex;

/// Its name in the tests.
pub(crate) const NAME: &str = "sandpod.test/guest:1";

/// Writes the image of the guest in `built` to `to`, as `docker save` would.
pub(crate) fn write(built: &Path, arch: Arch, name: &str, to: &Path) -> Result<()> {
    save(&layer(built)?, "/boot", arch, name, to)
}

/// Writes an image of one layer, as `docker save` would.
pub(crate) fn save(layer: &[u8], entrypoint: &str, arch: Arch, name: &str, to: &Path) -> Result<()> {
    let config = serde_json::to_vec(&json!({
        "architecture": arch.name(),
        "os": "linux",
        "config": { "Entrypoint": [entrypoint], "Env": ["PATH=/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&Sha256::digest(layer)))] },
    }))?;
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let file = File::create(to).with_context(|| format!("cannot write {}", to.display()))?;
    let mut image = Builder::new(file);
    append(&mut image, "config.json", 0o644, &config)?;
    append(&mut image, "layer.tar", 0o644, layer)?;
    append(&mut image, "manifest.json", 0o644, &serde_json::to_vec(&manifest)?)?;
    image.into_inner()?.flush()?;
    step(format!("{name} is in {}", to.display()));
    Ok(())
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
fn layer(built: &Path) -> Result<Vec<u8>> {
    let mut guest = DeflateEncoder::new(Vec::new(), Compression::best());
    guest.write_all(&fs::read(built.join("sandpod-guest"))?)?;
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, "boot", 0o555, &fs::read(built.join("sandpod-boot"))?)?;
    append(&mut layer, "guest.0", 0o444, &guest.finish()?)?;
    Ok(layer.into_inner()?)
}

pub(crate) fn append<W: std::io::Write>(
    tar: &mut Builder<W>,
    path: &str,
    mode: u32,
    content: &[u8],
) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

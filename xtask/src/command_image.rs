//! An image with the command `sandpod` and the guest, as the reaper uses it in a cluster.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use tar::Builder;

use crate::guest::{Arch, ForTests};
use crate::guest_image::give;
use crate::oci::{self, Platform, append};

/// Its name in the tests.
const NAME: &str = "sandpod.test/cli:1";

/// Loads the image into the testbed whose kubeconfig this is. Another cluster must have it already.
pub(crate) fn load(built: &ForTests, kubeconfig: &Path) -> Result<()> {
    give(kubeconfig, |archive| {
        let platform = Platform { arch: Arch::own(), layer: layer(built)? };
        oci::write(NAME, "/bin/sandpod", &[platform], archive)
    })
}

fn layer(built: &ForTests) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, "bin/sandpod", 0o755, &read(&built.command)?)?;
    for binary in ["sandpod-boot", "sandpod-guest"] {
        let place = format!("bin/guest/{}/{binary}", Arch::own().name());
        append(&mut layer, &place, 0o755, &read(&built.guest.join(binary))?)?;
    }
    Ok(layer.into_inner()?)
}

//! An image of the command `sandpod`, with the guest beside it, as the reaper in a cluster runs it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use tar::Builder;

use crate::guest::{self, Arch};
use crate::guest_image::{append, give, save};

/// What the tests call it.
const NAME: &str = "sandpod.test/cli:1";

/// Gives the testbed whose kubeconfig this is the image of the command as it is now, with the guest in `guest_dir`; another
/// cluster has to have it.
pub(crate) fn load(guest_dir: &Path, kubeconfig: &Path) -> Result<()> {
    give(kubeconfig, |archive| save(&layer(guest_dir)?, "/bin/sandpod", Arch::own(), NAME, archive))
}

fn layer(guest_dir: &Path) -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, "bin/sandpod", 0o755, &read(&guest::build_command()?)?)?;
    for binary in ["sandpod-boot", "sandpod-guest"] {
        let place = format!("bin/guest/{}/{binary}", Arch::own().name());
        append(&mut layer, &place, 0o755, &read(&guest_dir.join(binary))?)?;
    }
    Ok(layer.into_inner()?)
}

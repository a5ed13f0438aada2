//! An image with sandboxd, a runtime of agent-sandbox in the version that the testbed pins, and with busybox for commands.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use tar::{Builder, EntryType, Header};

use crate::cluster;
use crate::guest::Arch;
use crate::guest_image::give;
use crate::oci::{self, Platform, append};
use crate::shell::{command, output};

/// Its name in the tests.
const NAME: &str = "sandpod.test/sandboxd:1";
const BUSYBOX: &str = "/bin/busybox";

/// Loads the image into the testbed whose kubeconfig this is. Another cluster must have it already.
pub(crate) fn load(kubeconfig: &Path) -> Result<()> {
    give(kubeconfig, |archive| {
        let platform = Platform { arch: Arch::own(), layer: layer()? };
        oci::write(NAME, "/sandboxd", &[platform], archive)
    })
}

fn layer() -> Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let path = cluster::path_with_tools()?;
    let tools = std::env::split_paths(&path).next().unwrap_or_default();
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, "sandboxd", 0o755, &read(&tools.join("sandboxd"))?)?;
    append(&mut layer, "bin/busybox", 0o755, &read(BUSYBOX.as_ref())?)?;
    for applet in output(&mut command(BUSYBOX, ["--list"]))?.lines().filter(|name| *name != "busybox") {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        layer.append_link(&mut header, format!("bin/{applet}"), "busybox")?;
    }
    Ok(layer.into_inner()?)
}

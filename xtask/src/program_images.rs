//! The images of the programs that run in a cluster: the command, for the reaper, and the router.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use tar::Builder;

use crate::guest::{Arch, ForTests};
use crate::guest_image::give;
use crate::oci::{self, Platform, append};

/// Their names in the tests.
const COMMAND: &str = "sandpod.test/cli:1";
const ROUTER: &str = "sandpod.test/router:1";

/// Loads both images into the testbed whose kubeconfig this is. Another cluster must have them already.
pub(crate) fn load(built: &ForTests, kubeconfig: &Path) -> Result<()> {
    for (name, program) in [(COMMAND, &built.command), (ROUTER, &built.router)] {
        give(kubeconfig, |archive| {
            let platform = Platform { arch: Arch::own(), layer: layer(program)? };
            oci::write(name, &entrypoint(program), &[platform], archive)
        })?;
    }
    Ok(())
}

/// A layer with the program in `/bin`.
pub(crate) fn layer(program: &Path) -> Result<Vec<u8>> {
    let content = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let mut layer = Builder::new(Vec::new());
    append(&mut layer, entrypoint(program).trim_start_matches('/'), 0o755, &content)?;
    Ok(layer.into_inner()?)
}

/// The path of the program in its image.
pub(crate) fn entrypoint(program: &Path) -> String {
    format!("/bin/{}", program.file_name().unwrap_or_default().to_string_lossy())
}

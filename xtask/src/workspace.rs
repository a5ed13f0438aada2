//! The paths of the checkout, of the cache and of the build output.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::shell::{command, output};

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The cache that all checkouts share: cluster binaries, images, lint tools.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => env::home_dir()
            .context("no home directory to keep the cache in: set HOME or XDG_CACHE_HOME")?
            .join(".cache"),
    };
    Ok(base.join("sandpod"))
}

/// Cargo's build output: `CARGO_TARGET_DIR` or the checkout's own `target`.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The files of a clone, by their path from `root`: tracked ones, and new ones that are not ignored. Symbolic links are
/// omitted.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let listing = output(command("git", ["ls-files", "-z", "-co", "--exclude-standard"]).current_dir(root))?;
    let paths = listing.split_terminator('\0').map(PathBuf::from);
    Ok(paths.filter(|path| !root.join(path).is_symlink()).collect())
}

/// A short hash of the names and contents of files and directories, as a key for cached results.
pub(crate) fn fingerprint(paths: &[PathBuf], salt: &str) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(salt);
    for path in paths {
        hash_into(&mut hasher, path)?;
    }
    Ok(hex(&hasher.finalize())[..16].to_owned())
}

/// Lowercase hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hash_into(hasher: &mut Sha256, path: &Path) -> Result<()> {
    let reading = || format!("cannot read {}", path.display());
    if path.is_dir() {
        let mut entries =
            fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>).with_context(reading)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        return entries.iter().try_for_each(|entry| hash_into(hasher, &entry.path()));
    }
    let content = fs::read(path).with_context(reading)?;
    let name = path.file_name().unwrap_or_default();
    hasher.update(name.as_encoded_bytes());
    hasher.update((content.len() as u64).to_le_bytes());
    hasher.update(content);
    Ok(())
}

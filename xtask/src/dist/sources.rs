//! Copies of the checkout's files.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::workspace::{files, root};

/// Copies the files that git tracks, and new ones that are not ignored, if `wanted` accepts their paths. Returns these paths.
pub(super) fn copy(to: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut copied = Vec::new();
    for path in files(&root())? {
        let (name, from) = (path.to_string_lossy().into_owned(), root().join(&path));
        // A file that was deleted and not committed is still tracked.
        if !wanted(&name) || !from.is_file() {
            continue;
        }
        let to = to.join(&path);
        fs::create_dir_all(to.parent().context("the path has a directory")?)?;
        fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        copied.push(name);
    }
    Ok(copied)
}

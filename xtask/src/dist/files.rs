//! The directory of a release, its checksums and its list.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use crate::workspace::hex;

const CHECKSUMS: &str = "SHA256SUMS";

/// The files of a release, in one directory.
pub(crate) struct Files {
    dir: PathBuf,
}

impl Files {
    /// Creates the directory and removes the files of an earlier run.
    pub(super) fn empty(dir: PathBuf) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        Self::existing(dir)
    }

    /// Creates the directory, and keeps its files.
    pub(super) fn existing(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file.
    pub(super) fn add(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes the files with this extension whose names are `unwanted`.
    pub(super) fn remove(&self, extension: &str, unwanted: impl Fn(&str) -> bool) -> Result<()> {
        for path in self.with_extension(extension)? {
            if unwanted(&path.file_name().unwrap_or_default().to_string_lossy()) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// The paths of the files with this extension.
    pub(super) fn with_extension(&self, extension: &str) -> Result<Vec<PathBuf>> {
        let mut paths: Vec<_> = self.names()?.into_iter().map(|name| self.dir.join(name)).collect();
        paths.retain(|path| path.extension().is_some_and(|found| found == extension));
        Ok(paths)
    }

    /// Writes the SHA-256 of each file, as `sha256sum --check` reads them.
    pub(super) fn write_checksums(&self) -> Result<()> {
        let mut sums = String::new();
        for name in self.names()?.iter().filter(|name| *name != CHECKSUMS) {
            writeln!(sums, "{}  {name}", hex(&Sha256::digest(fs::read(self.dir.join(name))?)))?;
        }
        self.add(CHECKSUMS, sums.as_bytes())
    }

    /// Prints each file with its size.
    pub(super) fn print(&self) -> Result<()> {
        for name in self.names()? {
            let size = fs::metadata(self.dir.join(&name))?.len();
            println!("{:>8} KiB  {name}", size.div_ceil(1024));
        }
        Ok(())
    }

    /// The names of all files, in order.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{command, output};

    #[test]
    fn checksums_cover_every_file_and_are_those_of_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::existing(dir.path().to_owned()).unwrap();
        files.add("b.whl", b"wheel").unwrap();
        files.add("a.tar.gz", b"archive").unwrap();
        files.write_checksums().unwrap();
        files.write_checksums().unwrap(); // without a line for the first list

        let listing = output(command("sha256sum", ["--check", CHECKSUMS]).current_dir(dir.path())).unwrap();

        assert_eq!(listing, "a.tar.gz: OK\nb.whl: OK\n");
        files.remove("whl", |_| true).unwrap();
        assert_eq!(files.names().unwrap(), [CHECKSUMS, "a.tar.gz"]);
    }
}

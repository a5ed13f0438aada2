//! The kept inputs of each fuzz target. Inputs with a name, mostly regressions, are files in `fuzz/corpus/TARGET`;
//! inputs that libFuzzer found are packed into `fuzz/corpus/TARGET.tar.gz`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tar::{Archive, Builder};

use crate::oci::append;
use crate::workspace::root;

/// The names of all targets: each has a directory of inputs.
pub(crate) fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("fuzz/corpus")).context("cannot read fuzz/corpus")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The directory of the inputs that have a name.
pub(crate) fn named(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(target)
}

/// Unpacks the inputs that libFuzzer found into `directory`.
pub(crate) fn unpack(target: &str, directory: &Path) -> Result<()> {
    unpack_archive(&archive(target), directory)
}

/// Replaces the packed inputs by those in `directory` that have no name.
pub(crate) fn pack(target: &str, directory: &Path) -> Result<()> {
    pack_archive(&archive(target), directory)
}

fn archive(target: &str) -> PathBuf {
    root().join("fuzz/corpus").join(format!("{target}.tar.gz"))
}

fn unpack_archive(archive: &Path, directory: &Path) -> Result<()> {
    let packed = fs::File::open(archive).with_context(|| format!("cannot read {}", archive.display()))?;
    Archive::new(GzDecoder::new(packed))
        .unpack(directory)
        .with_context(|| format!("cannot unpack {}", archive.display()))
}

/// The entries are sorted and have no times, so that the same inputs give the same archive.
fn pack_archive(archive: &Path, directory: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| is_hash(name));
    names.sort();
    let mut packed = Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for name in &names {
        append(&mut packed, name, 0o644, &fs::read(directory.join(name))?)?;
    }
    let packed = packed.into_inner()?.finish()?;
    fs::File::create(archive)
        .and_then(|mut file| file.write_all(&packed))
        .with_context(|| format!("cannot write {}", archive.display()))
}

/// Whether libFuzzer named an input: with its SHA-1.
fn is_hash(name: &str) -> bool {
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_keeps_unnamed_inputs_and_is_reproducible() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let hash = "0123456789abcdef0123456789abcdef01234567";
        fs::write(from.path().join(hash), b"\0\xff").unwrap();
        fs::write(from.path().join("a_path_with_a_dot"), b"named").unwrap();
        let archives = ["a", "b"].map(|name| to.path().join(name));
        for archive in &archives {
            pack_archive(archive, from.path()).unwrap();
        }
        assert_eq!(fs::read(&archives[0]).unwrap(), fs::read(&archives[1]).unwrap());
        let unpacked = to.path().join("unpacked");
        unpack_archive(&archives[0], &unpacked).unwrap();
        let names: Vec<_> =
            fs::read_dir(&unpacked).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [hash]);
        assert_eq!(fs::read(unpacked.join(hash)).unwrap(), b"\0\xff");
    }
}
